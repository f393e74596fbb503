"""Per-image outcomes: whether each network classified each image correctly, under a key at a strength."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ArchitectureError, ResultsError
from robust201.core.records import ArchitectureId, format_architecture
from robust201.reader.overlay import layers_of
from robust201.reader.result_files import ResultFiles
from robust201.reader.value_checks import check_ids, parse_architecture_id
from robust201.statistics.outcomes import Packed, unpack_outcomes
from robust201.tasks.columns import CORRECT_BITS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of several networks on the same images.

    Attributes:
        architectures: ids of the A evaluated architectures, ascending.
        packed: (A, B) uint8, the outcomes of each architecture as bits in B bytes (see `statistics.outcomes`).
        n_images: number of images N.
    """

    architectures: tuple[ArchitectureId, ...]
    packed: Packed
    n_images: int

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(A, N) bool: whether each architecture classified each image correctly."""
        return unpack_outcomes(self.packed, self.n_images)

    def of(self, architectures: Iterable[Any]) -> "Outcomes":
        """Return the outcomes of some architectures, in the given order.

        Raises:
            ArchitectureError: an architecture has no outcomes.
        """
        row_indices = {architecture: row_index for row_index, architecture in enumerate(self.architectures)}
        selected_architectures = tuple(architectures)
        missing_architectures = [
            architecture for architecture in selected_architectures if architecture not in row_indices
        ]
        if missing_architectures:
            raise ArchitectureError(
                f"Selecting outcomes failed for {format_architecture(missing_architectures[0])}: the architecture has "
                f"no outcomes ({len(missing_architectures)} of the selected architectures have none). Evaluate it with "
                "the measurement `predictions`, or omit it."
            )
        rows = [row_indices[architecture] for architecture in selected_architectures]
        return Outcomes(selected_architectures, self.packed[rows], self.n_images)


def has_outcomes_of(files: ResultFiles, dataset: str, key: str) -> bool:
    """Return whether any of the folders has a key's outcomes and the table of their images."""
    return any(layer.find_outcomes(dataset, key) and layer.find_images(dataset) for layer in layers_of(files))


def read_outcomes(files: ResultFiles, dataset: str, key: str, strength: float) -> Outcomes:
    """Read the outcomes of all architectures (see `RobustnessDataset.outcomes`)."""
    packed_by_id: dict[str, NDArray[np.uint8]] = {}
    for layer in layers_of(files):
        path = layer.find_outcomes(dataset, key)
        if path is None or strength not in layer.strengths(dataset, key):
            continue
        read_images(layer, dataset)
        ids, packed = layer.read_outcomes(path, strength)
        check_ids(path, key, CORRECT_BITS, ids, files.meta["ids"])
        for identifier, bits in zip(ids, packed, strict=True):
            packed_by_id.setdefault(identifier, bits)
    if not packed_by_id:
        raise ResultsError(
            f"Reading outcomes failed for {dataset} {key} of {files.path}: there are no per-image outcomes "
            f"({CORRECT_BITS}) at strength {strength:g}. Measure `predictions`, and export with --parquet --outcomes "
            "bits."
        )
    architectures_and_bits: list[tuple[Any, NDArray[np.uint8]]] = sorted(
        (parse_architecture_id(identifier), bits) for identifier, bits in packed_by_id.items()
    )
    n_images = len(read_images(files, dataset)["label"])
    packed = np.stack([bits for _, bits in architectures_and_bits])
    if packed.shape[1] != -(-n_images // 8):
        raise ResultsError(
            f"Reading outcomes failed for {dataset} {key} of {files.path}: expected {-(-n_images // 8)} bytes per row "
            f"for the {n_images:,} images in the table of images, got {packed.shape[1]}. Export or download the "
            "dataset again."
        )
    return Outcomes(tuple(architecture for architecture, _ in architectures_and_bits), packed, n_images)


def read_images(files: ResultFiles, dataset: str) -> dict[str, NDArray[Any]]:
    """Read the table of images to which outcomes refer: `row`, `label` and `sha256` by position.

    Overlaid folders must have the same table, even for keys that only one folder has, because outcomes of several keys
    may be combined.
    """
    from robust201.reader.parquet_results import read_image_table

    tables = [(layer, read_image_table(file)) for layer in layers_of(files) if (file := layer.find_images(dataset))]
    if not tables:
        raise ResultsError(
            f"Reading the images of {dataset} failed for {files.path}: there is no table of images. Export the dataset "
            "with --parquet --outcomes bits."
        )
    first_layer, images = tables[0]
    for layer, table in tables[1:]:
        if any(not np.array_equal(table[name], images[name]) for name in images):
            raise ResultsError(
                f"Reading outcomes failed for {dataset} of {layer.path}: the images differ from those of "
                f"{first_layer.path}. Read the folders one by one."
            )
    return images


def make_images_frame(files: ResultFiles, dataset: str) -> "pd.DataFrame":
    """Return the table of images as a DataFrame (see `RobustnessDataset.images`)."""
    import pandas as pd

    return pd.DataFrame(read_images(files, dataset)).rename_axis("position")
