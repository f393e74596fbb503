"""Names of shards. A shard is the file of one part, and its name records what has been computed.

    <dataset>/<unit[:2]>/<unit>.<strengths>.<slice>of<slices>.<columns>.<hash>.parquet

`unit` is the unit's id (32 hex digits). `strengths` and `columns` are digests (8 hex digits) of tuples stored in
``protocols/``. `slice` counts from 0, and `slices` is the number of slices of the unit (4 decimal digits each). `hash`
is the first 16 hex digits of the file's SHA-256. All names have the same length, so `Names` is one NumPy array.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import content_digest

SUFFIX = ".parquet"
HASH_DIGITS = 16
MAX_SLICES = 9_999

_SEPARATORS = {"dot1": b".", "dot2": b".", "of": b"of", "dot3": b".", "dot4": b".", "suffix": SUFFIX.encode()}
NAME_DTYPE = np.dtype(
    [
        ("unit", "S32"),
        ("dot1", "S1"),
        ("strengths", "S8"),
        ("dot2", "S1"),
        ("slice", "S4"),
        ("of", "S2"),
        ("slices", "S4"),
        ("dot3", "S1"),
        ("columns", "S8"),
        ("dot4", "S1"),
        ("hash", f"S{HASH_DIGITS}"),
        ("suffix", f"S{len(SUFFIX)}"),
    ]
)
NAME_LENGTH = NAME_DTYPE.itemsize

Names: TypeAlias = NDArray[np.void]
"""(F,) array of `NAME_DTYPE`: the names of a dataset's shards."""

Listing: TypeAlias = Mapping[str, Names]
"""Names of all shards by dataset."""


class ShardName(NamedTuple):
    """Components of a shard's name."""

    dataset: str
    unit: str
    strengths: str
    slice: int
    slices: int
    columns: str
    hash: str

    @property
    def file(self) -> str:
        """Name of the file."""
        prefix = f"{self.unit}.{self.strengths}.{self.slice:04}of{self.slices:04}.{self.columns}"
        return f"{prefix}.{self.hash}{SUFFIX}"

    @property
    def path(self) -> str:
        """Path below the folder of shards."""
        return f"{self.dataset}/{self.unit[:2]}/{self.file}"

    def matches_content(self, content: bytes) -> bool:
        """Return whether a file's content has the hash in the name."""
        return content_hash(content) == self.hash


def content_hash(content: bytes) -> str:
    """Return the first 16 hex digits of a file's SHA-256, as in its name."""
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS]


def tuple_digest(values: Sequence[float | str]) -> str:
    """Return the digest of strengths or columns, as in shard names."""
    return content_digest(list(values))[:8]


def parse_names(names: Iterable[str]) -> Names:
    """Return the file names that are valid shard names, sorted."""
    joined = "".join(name for name in names if len(name) == NAME_LENGTH and name.isascii())
    array = np.frombuffer(joined.encode("ascii"), NAME_DTYPE)
    is_valid = np.ones(len(array), bool)
    for field, separator in _SEPARATORS.items():
        is_valid &= array[field] == separator
    for field in ("slice", "slices"):
        is_valid &= np.strings.isdigit(array[field])
    valid = array[is_valid]
    return valid[np.argsort(valid.view(f"S{NAME_LENGTH}"))]


def merge_names(arrays: Sequence[Names]) -> Names:
    """Return the names of several sorted arrays, sorted and without repetitions."""
    if len(arrays) == 1:
        return arrays[0]
    texts = np.concatenate([np.empty(0, NAME_DTYPE), *arrays]).view(f"S{NAME_LENGTH}")
    texts = np.sort(texts, kind="stable")  # fast, because a stable sort merges sorted runs
    is_new = np.ones(len(texts), bool)
    is_new[1:] = texts[1:] != texts[:-1]
    return texts[is_new].view(NAME_DTYPE)


def names_of_unit(names: Names, unit: str) -> Names:
    """Return the names of a unit among sorted names."""
    first, last = (np.searchsorted(names["unit"], unit.encode(), side=side) for side in ("left", "right"))
    return names[first:last]


def names_of(listing: Listing, dataset: str) -> Names:
    """Return the names of a dataset's shards; may be empty."""
    return listing.get(dataset, np.empty(0, NAME_DTYPE))


def shard_name(dataset: str, name: Any) -> ShardName:
    """Return an element of a `Names` array as a `ShardName`."""
    unit, _, strengths, _, index, _, slices, _, columns, _, digest, _ = name.item()
    texts = unit.decode(), strengths.decode(), int(index), int(slices), columns.decode(), digest.decode()
    return ShardName(dataset, *texts)
