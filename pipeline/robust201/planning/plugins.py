"""Tasks and spaces of installed packages, by entry points; looked up when a YAML names one, and never before.

An entry point of the group ``robust201.tasks`` or ``robust201.spaces`` names a mapping in a light module: the fields of
a task or space of one's own (docs/your-own.md), `file` relative to that module. The file is then treated as a user's:
hashed, copied and executed by workers alone.
"""

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from robust201.core.errors import ConfigError
from robust201.core.user_code import describe_failure

TASKS_GROUP = "robust201.tasks"
SPACES_GROUP = "robust201.spaces"


class Plugin(NamedTuple):
    """What an installed package declares.

    Attributes:
        fields: as a YAML would have them, `file` absolute.
        distribution: name and version of the package, such as ``my-attacks==1.2``.
    """

    fields: dict[str, Any]
    distribution: str

    @property
    def file(self) -> Path:
        return Path(self.fields["file"])


def plugin_names(group: str) -> list[str]:
    """List the names that installed packages register; nothing is imported."""
    return sorted({entry.name for entry in entry_points(group=group)})


def find_plugin(group: str, name: str) -> Plugin | None:
    """Find what an installed package registers under a name; None if none does.

    Raises:
        ConfigError: two packages register the name, or one registers something else than a mapping with a file.
    """
    return _find_plugin(group, name, tuple(sys.path))


@lru_cache(maxsize=64)  # what is installed changes with the path alone
def _find_plugin(group: str, name: str, _path: tuple[str, ...]) -> Plugin | None:
    found = {_distribution(entry): entry for entry in entry_points(group=group, name=name)}
    if len(found) > 1:
        raise ConfigError(
            f"Looking up {name!r} failed: expected one installed package that registers it in {group}, got "
            f"{', '.join(sorted(found))}. Uninstall one of them."
        )
    return next((_read_plugin(entry) for entry in found.values()), None)


def is_installed(group: str, file: Path, distribution: str) -> bool:
    """Whether an installed package, as NAME==VERSION, registers this file.

    A YAML may claim any distribution, so only modules of the package in whose folder the file lies are imported.
    """
    entries = [entry for entry in entry_points(group=group) if distribution and _distribution(entry) == distribution]
    return any(_read_plugin(entry).file == file for entry in entries if _is_in_package(file, entry))


def _is_in_package(file: Path, entry: EntryPoint) -> bool:
    """Whether a file lies in the package, or beside the single module, that declares an entry; nothing is imported."""
    spec = find_spec(entry.module.partition(".")[0])
    if spec is None:
        return False
    if spec.submodule_search_locations is None:
        return spec.origin is not None and file.is_relative_to(Path(spec.origin).resolve().parent)
    return any(file.is_relative_to(Path(folder).resolve()) for folder in spec.submodule_search_locations)


def _distribution(entry: EntryPoint) -> str:
    return "" if entry.dist is None else f"{entry.dist.name}=={entry.dist.version}"


def _read_plugin(entry: EntryPoint) -> Plugin:
    what = f"Loading {entry.name} of {_distribution(entry)} failed"
    try:
        declared = entry.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{what}: expected {entry.value} to be importable, got {describe_failure(error)}. Correct or uninstall the "
            "package."
        ) from error
    file = declared.get("file") if isinstance(declared, Mapping) else None
    if not isinstance(file, str):
        raise ConfigError(
            f"{what}: expected {entry.value} to be a mapping with `file`, the name of a Python file beside it, got "
            f"{type(declared).__name__}. Correct the package."
        )
    folder = Path(str(sys.modules[entry.module].__file__)).resolve().parent
    return Plugin({**declared, "file": str(folder / file)}, _distribution(entry))
