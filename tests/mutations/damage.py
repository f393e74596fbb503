"""Random damage of a single file."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.irregular_files import OBSTACLES

Draws = np.random.Generator
Damage = Callable[[Path, Sequence[Path], Draws], None]


def _flip_bit(path: Path, _others: Sequence[Path], draws: Draws) -> None:
    content = bytearray(path.read_bytes())
    content[int(draws.integers(len(content)))] ^= 1 << int(draws.integers(8))
    path.write_bytes(content)


def _truncate(path: Path, _others: Sequence[Path], draws: Draws) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(draws.integers(len(content)))])


def _zero(path: Path, _others: Sequence[Path], draws: Draws) -> None:
    content = bytearray(path.read_bytes())
    start = int(draws.integers(len(content)))
    length = min(int(draws.integers(1, 512)), len(content) - start)
    content[start : start + length] = bytes(length)
    path.write_bytes(content)


def _replace_by(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path, _others: Sequence[Path], _draws: Draws) -> None:
        path.unlink()
        make(path)

    return damage


def _swap(path: Path, others: Sequence[Path], draws: Draws) -> None:
    other = others[int(draws.integers(len(others)))]
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _damage_and_rename(path: Path, others: Sequence[Path], draws: Draws) -> None:
    (_flip_bit if draws.integers(2) else _zero)(path, others, draws)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    path.rename(path.with_name(re.sub(r"[0-9a-f]{16}\.parquet$", f"{digest}.parquet", path.name)))


WRONG_VALUES: tuple[Any, ...] = (None, "text", -1, 2.5, True, [], {}, [None], 10**30, "x" * 5000, {"a": {"b": 1}})


def _mistype(path: Path, _others: Sequence[Path], draws: Draws) -> None:
    """Replace a random value in the JSON, or in a random line of JSON Lines, with a value of another type."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = int(draws.integers(len(lines)))
    content = json.loads(lines[number])
    wrong = WRONG_VALUES[int(draws.integers(len(WRONG_VALUES)))]
    parent: Any = content
    for _ in range(12):
        names = list(parent) if isinstance(parent, dict) else range(len(parent))
        name = names[int(draws.integers(len(names)))]
        child = parent[name]
        if not isinstance(child, (dict, list)) or not child or draws.integers(4) == 0:
            parent[name] = wrong
            break
        parent = child
    lines[number] = json.dumps(content)
    path.write_text("\n".join(lines))


DAMAGES: dict[str, Damage] = {
    "bit flipped": _flip_bit,
    "truncated": _truncate,
    "zeroed": _zero,
    "deleted": _replace_by(lambda _path: None),
    "a folder": _replace_by(Path.mkdir),
    "swapped": _swap,
    **{name: _replace_by(make) for name, make in OBSTACLES.items() if name != "a folder"},
    "renamed to its hash": _damage_and_rename,
    "another type": _mistype,
}


def damages_of(kind: str, path: Path) -> list[str]:
    """Return the names of the kinds of damage that apply to a file."""
    names = [name for name in DAMAGES if name not in {"renamed to its hash", "another type"}]
    if "shard" in kind:
        names.append("renamed to its hash")
    if path.suffix in {".json", ".jsonl"}:
        names.append("another type")
    return names
