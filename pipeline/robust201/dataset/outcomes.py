"""Per-image outcomes: whether each network classified each image correctly, under a key at a strength."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ArchitectureError, ResultsError
from robust201.core.records import ArchitectureId, format_architecture
from robust201.dataset.row_block import make_ids
from robust201.statistics.outcomes import Packed, count_correct, unpack_outcomes
from robust201.tasks.columns import CORRECT_BITS

if TYPE_CHECKING:
    from robust201.dataset.merged_folders import MergedFolders

_MAX_ROUNDING_ERROR = 5.1e-4
"""Maximum difference between an accuracy with three decimals, as published, and the exact fraction."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of several networks on the same images.

    Attributes:
        architectures: ids of the A evaluated architectures, ascending or in the order given to `of`.
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
                f"no outcomes ({len(missing_architectures)} of the selected architectures have none). Omit it."
            )
        rows = [row_indices[architecture] for architecture in selected_architectures]
        return Outcomes(selected_architectures, self.packed[rows], self.n_images)


def has_outcomes_of(reader: "MergedFolders", dataset: str, key: str) -> bool:
    """Return whether any of the folders has a key's outcomes and the table of their images."""
    return any(folder.find_outcomes(dataset, key) and folder.find_images(dataset) for folder in reader.folders)


def read_image_outcomes(reader: "MergedFolders", dataset: str, key: str, strength: float) -> Outcomes:
    """Read the outcomes of all networks (see `Dataset.outcomes`)."""
    packed_by_network: dict[Any, NDArray[np.uint8]] = {}
    reader.check_protocols(dataset, key)
    for folder in reader.folders:
        file = folder.find_outcomes(dataset, key)
        if file is None or strength not in folder.strengths(dataset, key):
            continue
        ids, weights, packed = folder.read_outcomes(file, strength)
        reader.check_weights(folder, dataset, key)
        names, rows = reader.name_networks(folder, make_ids(ids), np.array(weights, object))
        packed_by_network |= dict(zip(names.tolist(), packed[rows], strict=True))
    if not packed_by_network:
        raise ResultsError(
            f"Reading outcomes failed for {dataset} {key} of {reader.path}: there are no per-image outcomes "
            f"({CORRECT_BITS}) at strength {strength:g}. Export the results with --parquet --outcomes bits."
        )
    n_images, networks = len(read_images(reader, dataset)["label"]), sorted(packed_by_network)
    return Outcomes(tuple(networks), np.stack([packed_by_network[network] for network in networks]), n_images)


def read_checked_outcomes(reader: "MergedFolders", dataset: str, key: str, strength: float) -> Outcomes | None:
    """Read outcomes, and check that they agree with the accuracies; return None if there are no outcomes.

    Raises:
        ResultsError: the outcomes contradict an accuracy, or the key has outcomes at other strengths only.
    """
    if not has_outcomes_of(reader, dataset, key):
        return None
    outcomes = read_image_outcomes(reader, dataset, key, strength)
    table = reader.read_table(dataset, key)
    accuracies = table[table["strength"] == strength].set_index("architecture")["value"].dropna()
    common = [network for network in outcomes.architectures if network in accuracies.index]
    fractions = count_correct(outcomes.of(common).packed) / outcomes.n_images
    is_contradiction = np.abs(fractions - accuracies.loc[common].to_numpy(np.float64)) > _MAX_ROUNDING_ERROR
    if is_contradiction.any():
        network = common[int(is_contradiction.argmax())]
        raise ResultsError(
            f"Reading outcomes failed for {dataset} {key}: the per-image outcomes of {format_architecture(network)} "
            "contradict its accuracy. Only read folders together if they contain the same evaluations."
        )
    return outcomes


def read_images(reader: "MergedFolders", dataset: str) -> dict[str, NDArray[Any]]:
    """Read the table of images to which outcomes refer: `row`, `label` and `sha256` by position.

    All folders must have the same table, even for keys that only one folder has, because outcomes of several keys may
    be combined.
    """
    from robust201.dataset.parquet_rows import read_image_table

    tables = [(folder, read_image_table(file)) for folder in reader.folders if (file := folder.find_images(dataset))]
    if not tables:
        raise ResultsError(
            f"Reading the images of {dataset} failed for {reader.path}: there is no table of images. Export the "
            "dataset with --parquet --outcomes bits."
        )
    first_folder, images = tables[0]
    for folder, table in tables[1:]:
        if any(not np.array_equal(table[name], images[name]) for name in images):
            raise ResultsError(
                f"Reading outcomes failed for {dataset} of {folder.path}: the images differ from those of "
                f"{first_folder.path}. Read the folders one by one."
            )
    return images
