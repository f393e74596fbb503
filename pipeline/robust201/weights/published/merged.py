"""The merged benchmark files: every network's records in one file, without weights.

``NAS-Bench-201-v1_1-096897.pth`` (torch.save; nas_bench_201 2.1, api_201.py) and ``NATS-tss-v1_0-3ffb9.pickle.pbz2``
(bz2 + pickle; nats_bench 1.8, api_topology.py): {meta_archs, total_archs, arch2infos: {index: records}}. They are read
for accuracies; asked for weights, they say that they have none.
"""

import bz2
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from robust201.core.errors import CheckpointError
from robust201.core.files import sha256_of
from robust201.core.unpickling import load_pickle, load_torch
from robust201.weights.published.base import (
    Member,
    Selection,
    SourceWeights,
    TrainingRecord,
    WeightsFormat,
    absent_member,
)
from robust201.weights.published.nasbench201 import rename_hps
from robust201.weights.published.trials import records_of, weights_of

_NASBENCH201_NAME = re.compile(r"NAS-Bench-201-v1_\d-[0-9a-f]{6}\.pth")
_NATS_NAME = re.compile(r"NATS-tss-v1_\d-[0-9a-f]{5}\.pickle\.pbz2")

# The whole benchmark decompressed: 15,625 records of a third of a megabyte (000000.pickle.pbz2 has 325,810 bytes).
_MAX_MERGED_BYTES = 1 << 34


def _load_nasbench201(path: Path) -> Any:
    with path.open("rb") as stream:
        return load_torch(stream, str(path))


def _load_nats(path: Path) -> Any:
    with bz2.open(path) as stream:
        return load_pickle(cast(BinaryIO, stream), name=str(path), max_bytes=_MAX_MERGED_BYTES)


def _members_by(load: Callable[[Path], Any]) -> Callable[[Path, Collection[int] | None], Iterator[Member]]:
    def members(path: Path, indices: Collection[int] | None) -> Iterator[Member]:
        content = load(path)
        by_index = content.get("arch2infos") if isinstance(content, Mapping) else None
        if not isinstance(by_index, Mapping) or not all(isinstance(index, int) for index in by_index):
            raise CheckpointError(
                f"Reading records failed for {path}: expected records by architecture index under 'arch2infos', got "
                "none. Get the file again from its publisher."
            )
        for index in sorted(by_index if indices is None else set(indices)):
            if index in by_index:
                yield _member(path, index, rename_hps(by_index[index]))
            else:
                yield absent_member(
                    index,
                    CheckpointError(
                        f"Finding records failed for #{index} in {path}: expected its records, got those of "
                        f"{len(by_index)} others. Leave it out."
                    ),
                )

    return members


def _member(path: Path, index: int, states: Any) -> Member:
    name = f"{path} (#{index})"

    def weights(selection: Selection) -> Iterator[SourceWeights]:
        yield from weights_of(states, selection, index=index, source=name, source_sha256=sha256_of(path))

    def records(selection: Selection) -> Iterator[TrainingRecord]:
        yield from records_of(states, selection, index=index, source=name)

    return Member(index, name, weights, records)


NASBENCH201_MERGED = WeightsFormat(
    name="nasbench201-merged",
    description="NAS-Bench-201-v1_1-096897.pth (records only)",
    matches=lambda path: path.is_file() and _NASBENCH201_NAME.fullmatch(path.name) is not None,
    members=_members_by(_load_nasbench201),
)

NATS_MERGED = WeightsFormat(
    name="nats-merged",
    description="NATS-tss-v1_0-3ffb9.pickle.pbz2 (records only)",
    matches=lambda path: path.is_file() and _NATS_NAME.fullmatch(path.name) is not None,
    members=_members_by(_load_nats),
)
