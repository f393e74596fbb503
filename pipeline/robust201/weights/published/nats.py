"""NATS-Bench's full archive: a folder of one bz2-compressed pickle a network.

Layout: ``NATS-tss-v1_0-3ffb9-full/{index:06d}.pickle.pbz2``, else ``{index:d}.pickle.pbz2`` (nats_bench 1.8,
api_utils.py, `NASBenchMetaAPI.reload`), pickle protocol 4. The "simple" archive has the same layout without weights.
"""

import bz2
import io
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from robust201.core.unpickling import load_pickle
from robust201.weights.published.base import (
    Member,
    NumberedFile,
    Selection,
    SourceWeights,
    TrainingRecord,
    WeightsFormat,
    has_numbered_files,
    numbered_files,
)
from robust201.weights.published.trials import records_of, weights_of

RECORD_NAME = re.compile(r"(\d{1,6})\.pickle\.pbz2")

# The largest network with all four datasets and three seeds, at both training lengths, has about 130 MB.
_MAX_RECORD_BYTES = 1 << 30


def record_member(index: int, name: str, read: Callable[[], tuple[bytes, str]]) -> Member:
    """Make a member of one compressed record.

    Args:
        index: index that the record is named by.
        name: file (and member) for messages.
        read: reads the compressed bytes and their SHA-256.

    Returns:
        The member, which decompresses and unpickles only when it is read.
    """

    def states(raw: bytes) -> Any:
        stream = cast(BinaryIO, bz2.BZ2File(io.BytesIO(raw)))
        return load_pickle(stream, name=name, max_bytes=_MAX_RECORD_BYTES)

    def weights(selection: Selection) -> Iterator[SourceWeights]:
        raw, sha256 = read()
        yield from weights_of(states(raw), selection, index=index, source=name, source_sha256=sha256)

    def records(selection: Selection) -> Iterator[TrainingRecord]:
        yield from records_of(states(read()[0]), selection, index=index, source=name)

    return Member(index, name, weights, records)


def _member(file: NumberedFile) -> Member:
    return record_member(file.index, str(file.path), file.read)


def _members(path: Path, indices: Collection[int] | None) -> list[Member]:
    return numbered_files(path, RECORD_NAME, indices, _member)


NATS_FULL = WeightsFormat(
    name="nats",
    description="NATS-tss-v1_0-3ffb9-full/{index:06d}.pickle.pbz2",
    matches=lambda path: has_numbered_files(path, RECORD_NAME),
    members=_members,
)
