"""Safe parser of sweep and training YAML files.

It accepts only strings, decimal numbers, booleans, null, lists and mappings, and rejects duplicate fields.

Paths and URLs may refer to environment variables, as ``${NAME}`` or ``${NAME:-default}``.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator

from robust201.core.errors import ConfigError
from robust201.core.files import resolve_bundled

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")

_PARSER_LOCATION = ' in "<unicode string>",'
"""Part of PyYAML's error messages that is removed, because PyYAML does not know the name of the file."""

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C parser if PyYAML was built with it, because the Python parser takes ten seconds per megabyte."""

_STRING, _INTEGER, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float"))

_SIGNED_DIGITS = "0123456789+-"

_NUMBERS = (
    (_INTEGER, re.compile(r"[-+]?[0-9]+$"), _SIGNED_DIGITS),
    (
        _FLOAT,
        re.compile(
            r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        f"{_SIGNED_DIGITS}.",
    ),
)
"""Tags of numbers, with the pattern and the first characters of each. Leading zeros do not change a number, as on the
command line. Numbers in other bases, or in minutes and seconds, are strings, which number fields reject."""


class _StrictLoader(_SafeLoader):  # type: ignore[misc]
    """A safe loader that rejects duplicate fields, because PyYAML would silently keep only the last.

    Numbers are decimal. Field names are always strings. `yes`, `no`, `on`, `off` and dates are strings, as in YAML 1.2.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - an attribute of PyYAML
        first_character: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in {"merge", "null"}]
        for first_character, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        field_names: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a field name that is a list or mapping", key_node.start_mark
                )
            if key_node.value in field_names:
                raise yaml.constructor.ConstructorError(
                    None, None, f"field {key_node.value!r} appears twice", key_node.start_mark
                )
            if key_node.tag != "tag:yaml.org,2002:merge":
                field_names.add(key_node.value)
                key_node.tag = _STRING
        constructed: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return constructed

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        return int(str(self.construct_scalar(node)))


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes each string that `_StrictLoader` or another parser would not read as a string."""


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"
)
_StrictLoader.add_constructor(_INTEGER, _StrictLoader.construct_integer)
for _tag, _pattern, _first_characters in _NUMBERS:
    for _class in (_StrictLoader, _Dumper):
        _class.add_implicit_resolver(_tag, _pattern, _first_characters)


def dump_fields(fields: Mapping[str, Any], **options: Any) -> str:
    """Return fields as YAML text, in their order; `options` are those of PyYAML's `dump`."""
    text: str = yaml.dump(fields, Dumper=_Dumper, sort_keys=False, **options)
    return text


def read_fields(path: Path, content_name: str = "sweep") -> dict[str, Any]:
    """Read the fields of a YAML file without validating them; `content_name` names the file's content in errors."""
    try:
        payload = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # noqa: S506 - it is a safe loader
    except OSError as error:
        raise ConfigError(
            f"Reading the {content_name} failed for {path}: the file cannot be read ({error.strerror}). Correct the "
            "path; jobs/ has examples."
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        summary = " ".join(str(error).split()).replace(_PARSER_LOCATION, ",")
        raise ConfigError(
            f"Reading the {content_name} failed for {path}: not valid YAML: {summary}. Correct the file."
        ) from error
    if not isinstance(payload, dict):
        raise ConfigError(
            f"Reading the {content_name} failed for {path}: expected fields such as `name: …`, got "
            f"{'an empty file' if payload is None else type(payload).__name__}. See jobs/ for examples."
        )
    return payload


def find_line(path: Path, field_path: Sequence[str]) -> int | None:
    """Return the line (from 1) of a field in a YAML file, or of the innermost existing field that encloses it, or None.

    `field_path` consists of field names and list positions, outermost first.
    """
    if not path.is_file():
        return None  # a pipe has been read to its end
    try:
        node: Any = yaml.compose(path.read_text(encoding="utf-8"), Loader=_SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    line_number = None
    while field_path:
        children = {}
        if isinstance(node, yaml.MappingNode):
            children = {name.value: (name, value) for name, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            children = {str(index): (value, value) for index, value in enumerate(node.value)}
        # A field name may contain dots, so use the longest name that exists.
        n_names = max((n for n in range(1, len(field_path) + 1) if ".".join(field_path[:n]) in children), default=0)
        if not n_names:
            break
        position_node, node = children[".".join(field_path[:n_names])]
        line_number = position_node.start_mark.line + 1
        field_path = field_path[n_names:]
    return line_number


def substitute_variables(value: str) -> str:
    """Replace ``${NAME}`` and ``${NAME:-default}`` with environment variables; raise ValueError if one is not set."""

    def substitute(match: re.Match[str]) -> str:
        name, default = match.groups()
        variable_value = os.environ.get(name, default)
        if variable_value is None:
            raise ValueError(
                f"expected the environment variable {name} to be set. Set it with: export {name}=FOLDER, or write the "
                "full path."
            )
        return variable_value

    return _VARIABLE.sub(substitute, value)


def referenced_variables(value: object) -> frozenset[str]:
    """Return the names of all environment variables in the values of a YAML, as in ``${NAME}``."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return frozenset[str]().union(*map(referenced_variables, value))
    return frozenset(match[1] for match in _VARIABLE.finditer(value)) if isinstance(value, str) else frozenset()


def _expand_path(value: object) -> object:
    """Substitute environment variables, and resolve ``bundled:`` to files that ship with robust201."""
    if not isinstance(value, str):
        return value
    path_text = substitute_variables(value)
    if not path_text or "\0" in path_text:
        raise ValueError(
            f"expected a path, got {path_text!r}. Write the path of a file or folder; '.' is the current folder."
        )
    try:
        return resolve_bundled(path_text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"expected a path, got {path_text!r}: no such user. Write the full path.") from error


ConfigPath = Annotated[Path, BeforeValidator(_expand_path)]
"""Type of paths in the YAML, with environment variables substituted."""
