"""Packs: large files with many shards of one dataset, ``<dataset>/packs/<digest>.<start>.pack``.

A pack contains the shards, one after the other, and then its index: the sorted names of the shards
(`names.NAME_DTYPE`), and the positions of the shards and of the index (F + 1 int64). `start` is the position of the
index (14 decimal digits), and `digest` the first 16 hex digits of the index's SHA-256. As the names contain the hashes
of the contents, the name of a pack verifies all of its bytes.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.files import NewFile
from robust201.store.names import NAME_DTYPE, NAME_LENGTH, Names, ShardName, merge_names

PACKS = "packs"
PACK_BYTES = 512 << 20
"""Size in bytes at which a pack is full; the paper's sweep (200 GB) fills about 400 packs."""

_PACK_NAME = re.compile(r"([0-9a-f]{16})\.(\d{14})\.pack")


class Pack(NamedTuple):
    """A pack's path, the names (F,) of its F shards, and the positions (F + 1,) of the shards and the index."""

    path: str
    names: Names
    positions: NDArray[np.int64]

    @property
    def n_bytes(self) -> int:
        return int(self.positions[-1])


class Location(NamedTuple):
    """Bytes [start, stop) of a file; to the end of the file if `stop` is None."""

    path: str
    start: int = 0
    stop: int | None = None


class PackTable:
    """The shards of all packs of one dataset, for fast lookup."""

    def __init__(self, packs: Mapping[str, Pack]) -> None:
        self.packs = packs
        all_names = [pack.names for pack in packs.values()]
        self.names = merge_names(all_names)
        self._texts = _as_text(self.names)
        self._pack_numbers = np.zeros(len(self.names), np.int32)
        self._positions_in_packs = np.zeros(len(self.names), np.int64)
        for number, names in enumerate(all_names):
            rows = np.searchsorted(self._texts, _as_text(names))
            self._pack_numbers[rows], self._positions_in_packs[rows] = number, np.arange(len(names))
        self._paths = list(packs)  # indexed by `_pack_numbers`

    def find(self, name: ShardName) -> Location | None:
        """Return the location of a shard, or None if no pack has it."""
        text = name.file.encode()
        row = int(self._texts.searchsorted(text))
        if row == len(self.names) or self._texts[row] != text:
            return None
        pack, position = self.packs[self._paths[self._pack_numbers[row]]], self._positions_in_packs[row]
        start, stop = pack.positions[position : position + 2].tolist()
        return Location(pack.path, start, stop)


def contains(names: Names, other: Names) -> NDArray[np.bool_]:
    """Return whether each of the `other` names is in the sorted `names`."""
    rows = np.searchsorted(_as_text(names), _as_text(other))
    is_contained = np.zeros(len(other), bool)
    inside = rows < len(names)
    is_contained[inside] = names[rows[inside]] == other[inside]
    return is_contained


def _as_text(names: Names) -> NDArray[np.bytes_]:
    return names.view(f"S{NAME_LENGTH}")


def is_pack_name(name: str) -> bool:
    """Return whether a file name is the name of a pack."""
    return _PACK_NAME.fullmatch(name) is not None


def read_index(path: str, content: bytes) -> Pack:
    """Decode the index of a pack.

    Raises:
        ValueError: the index does not match the pack's name.
    """
    match = _PACK_NAME.fullmatch(path.rpartition("/")[2])
    count, rest = divmod(len(content) - 8, NAME_LENGTH + 8)
    if match is None or rest or hashlib.sha256(content).hexdigest()[:16] != match[1]:
        raise ValueError("bytes that do not match its name")
    names = np.frombuffer(content, NAME_DTYPE, count)
    return Pack(path, names, np.frombuffer(content, np.int64, count + 1, count * NAME_LENGTH))


def index_start(name: str) -> int:
    """Return the position of the index of a pack."""
    return int(name.split(".")[1])


NewPack = Callable[[], AbstractContextManager[NewFile]]
"""Function that opens a new file in the folder of packs."""


def write_packs(
    contents: Iterable[tuple[ShardName, bytes]], new_pack: NewPack, pack_bytes: int = PACK_BYTES
) -> Iterator[int]:
    """Write shards, which must be sorted by name, to packs; after each pack, yield its number of shards."""
    remaining = iter(contents)
    for first in remaining:
        with new_pack() as file:
            count = _write_pack(file, chain([first], remaining), pack_bytes)
        yield count


def _write_pack(file: NewFile, contents: Iterable[tuple[ShardName, bytes]], pack_bytes: int) -> int:
    names, positions = [], [0]
    for name, content in contents:
        file.stream.write(content)
        names.append(name.file)
        positions.append(positions[-1] + len(content))
        if positions[-1] >= pack_bytes:
            break
    index = "".join(names).encode() + np.array(positions, np.int64).tobytes()
    file.stream.write(index)
    file.name = f"{hashlib.sha256(index).hexdigest()[:16]}.{positions[-1]:014}.pack"
    return len(names)
