"""NAS-Bench-201's archive: a folder of one `torch.save` file a network.

Layout: ``NAS-Bench-201-v1_1-archive/{index:06d}-FULL.pth``, a dictionary of ``"full"`` (200 epochs) and ``"less"`` (12
epochs) (nas_bench_201 2.1, api_201.py, `NASBench201API.reload`). ``-SIMPLE.pth`` files hold no weights.
"""

import io
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from robust201.core.unpickling import load_torch
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

HP_NAMES = {"less": "12", "full": "200"}
"""NAS-Bench-201's names of the training lengths, and NATS-Bench's."""

_FILE_NAME = re.compile(r"(\d{6})-(?:FULL|SIMPLE)\.pth")


def rename_hps(states: Any) -> Any:
    """Call the training lengths of one network's records as NATS-Bench does."""
    return {HP_NAMES.get(hp, hp): state for hp, state in states.items()} if isinstance(states, dict) else states


def _member(file: NumberedFile) -> Member:
    name = str(file.path)

    def weights(selection: Selection) -> Iterator[SourceWeights]:
        raw, sha256 = file.read()
        states = rename_hps(load_torch(io.BytesIO(raw), name))
        yield from weights_of(states, selection, index=file.index, source=name, source_sha256=sha256)

    def records(selection: Selection) -> Iterator[TrainingRecord]:
        states = rename_hps(load_torch(io.BytesIO(file.read()[0]), name))
        yield from records_of(states, selection, index=file.index, source=name)

    return Member(file.index, name, weights, records)


def _members(path: Path, indices: Collection[int] | None) -> list[Member]:
    return numbered_files(path, _FILE_NAME, indices, _member)


NASBENCH201_ARCHIVE = WeightsFormat(
    name="nasbench201",
    description="NAS-Bench-201-v1_1-archive/{index:06d}-FULL.pth",
    matches=lambda path: has_numbered_files(path, _FILE_NAME),
    members=_members,
)
