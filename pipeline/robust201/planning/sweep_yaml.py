"""The text of a sweep YAML to plain values: nothing but names, numbers, lists and mappings, no name given twice.

Values may refer to environment variables, as ``${NAME}`` or ``${NAME:-default}``.
"""

import copy
import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator

from robust201.core.errors import ConfigError
from robust201.core.files import bundled, show_bytes

MAX_SWEEP_BYTES = 4 << 20
"""Bytes of a sweep YAML: one that names every cell of NAS-Bench-201 by its string has 1.1 MB."""

MAX_NODES = 200_000
"""Names and values in a sweep YAML, with aliases written out: files of weights for 15,625 networks are 31,250."""

MAX_DEPTH = 50
"""Lists and mappings of a sweep YAML in one another."""

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")

_IN_A_STRING = ' in "<unicode string>",'
"""What the parser says before the line of an error, as it does not know the file."""

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C where PyYAML was built with it: a megabyte takes the one in Python ten seconds."""


class _StrictLoader(_SafeLoader):  # type: ignore[misc]
    """A safe loader that refuses a field given twice, where YAML would silently keep the last.

    Fields' names are text also where YAML 1.1 reads a truth value, such as `on`.
    """

    _MERGE, _TRUTH, _TEXT = (f"tag:yaml.org,2002:{name}" for name in ("merge", "bool", "str"))

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a field without a name", key_node.start_mark)
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"field {key_node.value!r} is given twice", key_node.start_mark
                )
            if key_node.tag != self._MERGE:
                seen.add(key_node.value)
            if key_node.tag == self._TRUTH:
                key_node.tag = self._TEXT
        constructed: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return constructed


def read_fields(path: Path, what: str = "sweep") -> dict[str, Any]:
    """Read the fields of a YAML file, unchecked; `what` the file describes is for errors."""
    try:
        payload = copy.deepcopy(_construct(_read_text(path)))
    except OSError as error:
        raise ConfigError(
            f"Reading the {what} failed for {path}: expected a YAML file, got {error.strerror}. See jobs/ for examples."
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        summary = " ".join(str(error).split()).replace(_IN_A_STRING, ",")
        raise ConfigError(
            f"Reading the {what} failed for {path}: expected YAML, got an error: {summary}. Correct the file."
        ) from error
    if not isinstance(payload, dict):
        raise ConfigError(
            f"Reading the {what} failed for {path}: expected fields such as `name: …`, got "
            f"{'an empty file' if payload is None else type(payload).__name__}. See jobs/ for examples."
        )
    return payload


def _read_text(path: Path) -> str:
    """Read a YAML file; also a pipe, as a shell makes for ``<(…)``."""
    with path.open("rb") as stream:
        content = stream.read(MAX_SWEEP_BYTES + 1)
    if len(content) > MAX_SWEEP_BYTES:
        raise ValueError(f"more than {show_bytes(MAX_SWEEP_BYTES)}")
    return content.decode()


@functools.lru_cache(maxsize=1)  # commands read a file once to see what it describes, and again to load it
def _construct(text: str) -> Any:
    """Build the value of a YAML text, unless it has more values than a sweep can have, with aliases written out."""
    _check_depth(text)
    loader = _StrictLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count_nodes(node, {}) > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} names and values, with aliases written out")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_depth(text: str) -> None:
    """Refuse lists and mappings that lie too deep in one another: the parser in C would end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ValueError(f"lists and mappings more than {MAX_DEPTH} deep in one another")


def _count_nodes(node: yaml.Node, counted: dict[int, int]) -> int:
    """Count the values of a node with aliases written out; `counted` has the counts by node."""
    if id(node) not in counted:
        counted[id(node)] = MAX_NODES + 1  # of a node that holds itself
        inside: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inside = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inside = node.value
        counted[id(node)] = 1 + sum(_count_nodes(part, counted) for part in inside)
    return counted[id(node)]


def find_line(path: Path, steps: Sequence[str]) -> int | None:
    """Find the line, from 1, of a field in a YAML file, or of the innermost field around it; None without one.

    The outermost of the steps comes first; they are names of fields and positions in lists.
    """
    if not path.is_file():
        return None  # a pipe has been read to its end
    try:
        text = _read_text(path)
        _check_depth(text)
        node: Any = yaml.compose(text, Loader=_SafeLoader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    line = None
    while steps:
        inside = {}
        if isinstance(node, yaml.MappingNode):
            inside = {name.value: (name, value) for name, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            inside = {str(place): (value, value) for place, value in enumerate(node.value)}
        # A name may have dots in it, so the longest one that is there counts.
        n_steps = max((n for n in range(1, len(steps) + 1) if ".".join(steps[:n]) in inside), default=0)
        if not n_steps:
            break
        mark, node = inside[".".join(steps[:n_steps])]
        line = mark.start_mark.line + 1
        steps = steps[n_steps:]
    return line


def substitute_variables(value: str) -> str:
    """Replace ``${NAME}`` and ``${NAME:-default}`` by environment variables; a `ValueError` names one that is unset."""

    def substitute(match: re.Match[str]) -> str:
        name, default = match.groups()
        text = os.environ.get(name, default)
        if text is None:
            raise ValueError(
                f"expected the environment variable {name} to be set, got none. Set it with: export "
                f"{name}=FOLDER, or write the path out."
            )
        return text

    return _VARIABLE.sub(substitute, value)


def referenced_variables(value: object) -> frozenset[str]:
    """Names of the environment variables, set or not, that plain values of a sweep YAML refer to, as in ``${NAME}``."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return frozenset[str]().union(*map(referenced_variables, value))
    return frozenset(match[1] for match in _VARIABLE.finditer(value)) if isinstance(value, str) else frozenset()


def _expand(value: object) -> object:
    """Replace ``${NAME}`` and ``${NAME:-default}``, and find ``bundled:`` files that ship with robust201."""
    if not isinstance(value, str):
        return value
    text = substitute_variables(value)
    if not text or "\0" in text:
        raise ValueError(f"expected a path, got {text!r}. Name a file or folder, '.' for the current one.")
    if text.startswith("bundled:"):
        return bundled(text.removeprefix("bundled:"))
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"expected a path, got {text!r}: no such user. Write the folder out.") from error


ConfigPath = Annotated[Path, BeforeValidator(_expand)]
"""A path of the YAML, whose variables are replaced."""
