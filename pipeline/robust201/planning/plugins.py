"""Tasks and spaces of installed packages, which are looked up by entry point when a YAML names them.

An entry point in the group ``robust201.tasks`` or ``robust201.spaces`` refers to a mapping in a module that is quick to
import: the fields of a custom task or space (docs/your-own.md), with `file` relative to that module. The file is then
treated like a user's file: hashed, copied and executed by workers only.
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
    """A task or space that an installed package registers.

    Attributes:
        fields: fields as in a YAML, with an absolute `file`.
        distribution: name and version of the package, such as ``my-attacks==1.2``.
    """

    fields: dict[str, Any]
    distribution: str

    @property
    def file(self) -> Path:
        return Path(self.fields["file"])


def plugin_names(group: str) -> list[str]:
    """Return the names that installed packages register in a group, without importing the packages."""
    return sorted({entry_point.name for entry_point in entry_points(group=group)})


def find_plugin(group: str, name: str) -> Plugin | None:
    """Return the plugin that an installed package registers under a name; None if there is none.

    Raises:
        ConfigError: two packages register the name, or the registered object is not a mapping with a file.
    """
    return _find_plugin(group, name, tuple(sys.path))


@lru_cache(maxsize=64)  # the installed packages depend only on sys.path
def _find_plugin(group: str, name: str, _path: tuple[str, ...]) -> Plugin | None:
    entries_by_distribution = {
        _distribution_label(entry_point): entry_point for entry_point in entry_points(group=group, name=name)
    }
    if len(entries_by_distribution) > 1:
        raise ConfigError(
            f"Looking up {name!r} failed: expected one installed package that registers it in {group}, got "
            f"{', '.join(sorted(entries_by_distribution))}. Uninstall all but one of them."
        )
    return next((_read_plugin(entry_point) for entry_point in entries_by_distribution.values()), None)


def is_installed(group: str, file: Path, distribution: str) -> bool:
    """Return whether the installed package `distribution` (NAME==VERSION) registers this file.

    A YAML may name any distribution, so a package's module is imported only if the package's folder contains the file.
    """
    entry_points_of_distribution = [
        entry_point
        for entry_point in entry_points(group=group)
        if distribution and _distribution_label(entry_point) == distribution
    ]
    return any(
        _read_plugin(entry_point).file == file
        for entry_point in entry_points_of_distribution
        if _is_in_package(file, entry_point)
    )


def _is_in_package(file: Path, entry_point: EntryPoint) -> bool:
    """Return whether a file is in the entry point's package or beside its module, without importing the package."""
    spec = find_spec(entry_point.module.partition(".")[0])
    if spec is None:
        return False
    if spec.submodule_search_locations is None:
        return spec.origin is not None and file.is_relative_to(Path(spec.origin).resolve().parent)
    return any(file.is_relative_to(Path(folder).resolve()) for folder in spec.submodule_search_locations)


def _distribution_label(entry_point: EntryPoint) -> str:
    return "" if entry_point.dist is None else f"{entry_point.dist.name}=={entry_point.dist.version}"


def _read_plugin(entry_point: EntryPoint) -> Plugin:
    failure = f"Loading {entry_point.name} of {_distribution_label(entry_point)} failed"
    try:
        declaration = entry_point.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{failure}: expected {entry_point.value} to be importable, got {describe_failure(error)}. Correct or "
            "uninstall the package."
        ) from error
    file = declaration.get("file") if isinstance(declaration, Mapping) else None
    if not isinstance(file, str):
        raise ConfigError(
            f"{failure}: expected {entry_point.value} to be a mapping with the field `file`, which names a Python file "
            f"in the same folder, got {type(declaration).__name__}. Correct the package."
        )
    folder = Path(str(sys.modules[entry_point.module].__file__)).resolve().parent
    return Plugin({**declaration, "file": str(folder / file)}, _distribution_label(entry_point))
