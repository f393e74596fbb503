"""The table of published weight formats. A new format needs a module and one entry here."""

from collections.abc import Collection, Iterable, Sized
from pathlib import Path

from robust201.core.errors import CheckpointError
from robust201.networks.nb201.cells import N_ARCHITECTURES
from robust201.weights.published.base import NetworkReader, WeightsFormat
from robust201.weights.published.nats_split import NATS_SPLIT
from robust201.weights.published.records import NASBENCH201_ARCHIVE, NATS_FULL
from robust201.weights.published.state_dicts import STATE_DICTS

FORMATS = {
    weights_format.name: weights_format
    for weights_format in (
        NATS_FULL,
        NATS_SPLIT,
        NASBENCH201_ARCHIVE,
        STATE_DICTS,
    )
}
"""Formats by name; `detect_format` tries them in this order."""


def detect_format(path: Path) -> WeightsFormat:
    """Return the first format of `FORMATS` that matches the file names at a path."""
    for weights_format in FORMATS.values():
        if weights_format.matches(path):
            return weights_format
    if not path.exists():
        raise CheckpointError(f"Finding weights failed for {path}: no such file or folder. Check the path.")
    known_formats = "; ".join(
        f"{weights_format.name}: {weights_format.description}" for weights_format in FORMATS.values()
    )
    file_names = sorted(file.name for file in path.iterdir())[:3] if path.is_dir() else [path.name]
    got = ", ".join(file_names) or "an empty folder"
    raise CheckpointError(
        f"Finding weights failed for {path}: expected one of the published formats ({known_formats}), got {got}. "
        "Check the path. Merged files of records, such as NATS-tss-v1_0-3ffb9.pickle.pbz2, have no weights."
    )


def open_networks(path: Path, indices: Collection[int] | None = None) -> tuple[Iterable[NetworkReader], int]:
    """Return readers of the networks of a source, and their number (an upper limit for tar archives)."""
    weights_format = detect_format(path)
    readers = weights_format.make_readers(path, indices)
    if indices is not None:
        return readers, len(set(indices))
    return readers, len(readers) if isinstance(readers, Sized) else N_ARCHITECTURES
