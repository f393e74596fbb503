"""Per-image outcomes: which network classified which image correctly, under a key at a strength."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ArchitectureError, ResultsError
from robust201.core.records import ArchitectureId
from robust201.reader.overlay import layers_of
from robust201.reader.result_files import ResultFiles
from robust201.reader.value_checks import architecture_of, check_ids
from robust201.statistics.outcomes import Packed, unpack_outcomes
from robust201.tasks.columns import CORRECT_BITS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of all networks that have them, on the same images.

    Attributes:
        architectures: ids of the A evaluated architectures, ascending.
        packed: (A, B) uint8, one row of bits per architecture (see `statistics.outcomes`).
        n_images: images N.
    """

    architectures: tuple[ArchitectureId, ...]
    packed: Packed
    n_images: int

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(A, N) bool: whether an image was classified correctly."""
        return unpack_outcomes(self.packed, self.n_images)

    def of(self, architectures: Iterable[Any]) -> "Outcomes":
        """Return the outcomes of some architectures in their order.

        Raises:
            ArchitectureError: an architecture has no outcomes.
        """
        positions = {architecture: position for position, architecture in enumerate(self.architectures)}
        chosen = tuple(architectures)
        lacking = [architecture for architecture in chosen if architecture not in positions]
        if lacking:
            raise ArchitectureError(
                f"Choosing outcomes failed for {lacking[0]}: the architecture has no outcomes, like {len(lacking)} of "
                "those chosen. Evaluate it with the measurement `predictions`, or leave it out."
            )
        return Outcomes(chosen, self.packed[[positions[architecture] for architecture in chosen]], self.n_images)


def has_outcomes_of(files: ResultFiles, dataset: str, key: str) -> bool:
    """Return whether a folder, or any of several folders, has a key's outcomes and the table of their images."""
    return any(layer.find_outcomes(dataset, key) and layer.find_images(dataset) for layer in layers_of(files))


def read_outcomes(files: ResultFiles, dataset: str, key: str, strength: float) -> Outcomes:
    """Read the outcomes of all architectures (see `RobustnessDataset.outcomes`)."""
    packed_by_id: dict[str, NDArray[np.uint8]] = {}
    for layer in layers_of(files):
        file = layer.find_outcomes(dataset, key)
        if file is None or strength not in layer.strengths(dataset, key):
            continue
        read_images(layer, dataset)
        ids, packed = layer.read_outcomes(file, strength)
        check_ids(file, key, CORRECT_BITS, ids, files.meta["ids"])
        for identifier, row in zip(ids, packed, strict=True):
            packed_by_id.setdefault(identifier, row)
    if not packed_by_id:
        raise ResultsError(
            f"Reading outcomes failed for {dataset} {key} of {files.path}: expected {CORRECT_BITS} at strength "
            f"{strength:g}, got none. Measure `predictions`, and export with --parquet --outcomes bits."
        )
    pairs: list[tuple[Any, NDArray[np.uint8]]] = sorted((architecture_of(i), row) for i, row in packed_by_id.items())
    n_images = len(read_images(files, dataset)["label"])
    packed = np.stack([row for _, row in pairs])
    if packed.shape[1] != -(-n_images // 8):
        raise ResultsError(
            f"Reading outcomes failed for {dataset} {key} of {files.path}: expected outcomes of the {n_images:,} "
            f"images of its table, got {packed.shape[1]} bytes per row. Export or download the dataset again."
        )
    return Outcomes(tuple(architecture for architecture, _ in pairs), packed, n_images)


def read_images(files: ResultFiles, dataset: str) -> dict[str, NDArray[Any]]:
    """Read the table of the images of outcomes: `row`, `label` and `sha256` by position.

    Overlaid folders must have the same table, even for keys that only one of them has, because outcomes of several keys
    are combined.
    """
    from robust201.reader.parquet_results import read_image_table

    tables = [(layer, read_image_table(file)) for layer in layers_of(files) if (file := layer.find_images(dataset))]
    if not tables:
        raise ResultsError(
            f"Reading the images of {dataset} failed for {files.path}: there is no table of images. Export the dataset "
            "with --parquet --outcomes bits."
        )
    first, images = tables[0]
    for layer, table in tables[1:]:
        if any(not np.array_equal(table[name], images[name]) for name in images):
            raise ResultsError(
                f"Reading outcomes failed for {dataset} of {layer.path}: the images differ from those of {first.path}. "
                "Read the folders one by one."
            )
    return images


def images_frame(files: ResultFiles, dataset: str) -> "pd.DataFrame":
    """Return the table of images as a DataFrame (see `RobustnessDataset.images`)."""
    import pandas as pd

    return pd.DataFrame(read_images(files, dataset)).rename_axis("position")
