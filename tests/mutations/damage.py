"""Functions that damage a file at random."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.irregular_files import OBSTACLES

Rng = np.random.Generator
Damage = Callable[[Path, Sequence[Path], Rng], None]
"""Function that damages a file; it receives the file, other files of the same kind and a random generator."""


def _flip_bit(path: Path, _siblings: Sequence[Path], rng: Rng) -> None:
    content = bytearray(path.read_bytes())
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def _truncate(path: Path, _siblings: Sequence[Path], rng: Rng) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(rng.integers(len(content)))])


def _zero(path: Path, _siblings: Sequence[Path], rng: Rng) -> None:
    """Overwrite up to 511 bytes with zeros."""
    content = bytearray(path.read_bytes())
    start = int(rng.integers(len(content)))
    length = min(int(rng.integers(1, 512)), len(content) - start)
    content[start : start + length] = bytes(length)
    path.write_bytes(content)


def _replace_with(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path, _siblings: Sequence[Path], _rng: Rng) -> None:
        path.unlink()
        make(path)

    return damage


def _swap(path: Path, siblings: Sequence[Path], rng: Rng) -> None:
    """Exchange the contents of two files."""
    sibling = siblings[int(rng.integers(len(siblings)))]
    content = path.read_bytes()
    path.write_bytes(sibling.read_bytes())
    sibling.write_bytes(content)


WRONG_VALUES: tuple[Any, ...] = (None, "text", -1, 2.5, True, [], {}, [None], 10**30, "x" * 5000, {"a": {"b": 1}})


def _set_wrong_type(path: Path, _siblings: Sequence[Path], rng: Rng) -> None:
    """Replace a random value in a JSON file, or in a random line of a JSON Lines file, with a wrong value."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    line_index = int(rng.integers(len(lines)))
    content = json.loads(lines[line_index])
    wrong_value = WRONG_VALUES[int(rng.integers(len(WRONG_VALUES)))]
    parent: Any = content
    for _ in range(12):  # the maximum depth
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        key = keys[int(rng.integers(len(keys)))]
        child = parent[key]
        if not isinstance(child, (dict, list)) or not child or rng.integers(4) == 0:
            parent[key] = wrong_value
            break
        parent = child
    lines[line_index] = json.dumps(content)
    path.write_text("\n".join(lines))


DAMAGES: dict[str, Damage] = {
    "bit flipped": _flip_bit,
    "truncated": _truncate,
    "zeroed": _zero,
    "deleted": _replace_with(lambda _path: None),
    "a folder": _replace_with(Path.mkdir),
    "swapped": _swap,
    **{name: _replace_with(make) for name, make in OBSTACLES.items() if name != "a folder"},
    "another type": _set_wrong_type,
}


def damages_of(path: Path) -> list[str]:
    """Return the names of the damages that are possible for a file."""
    damages = [name for name in DAMAGES if name != "another type"]
    if path.suffix in {".json", ".jsonl"}:
        damages.append("another type")
    return damages
