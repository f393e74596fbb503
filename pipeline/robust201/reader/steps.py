"""Per-image steps (the measurement `steps`): the step or query at which an attack first succeeded on each image."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.core.records import ArchitectureId
from robust201.reader.result_files import ResultFiles, list_values_per_strength
from robust201.reader.value_checks import format_id, parse_architecture_id
from robust201.tasks.columns import STEPS, steps_of


class NetworkSteps(NamedTuple):
    """Steps of one network under a key at a strength.

    Attributes:
        architecture: id of the architecture.
        strength: the strength.
        steps: (N,) float64, the step at which the attack first succeeded on each image; 0 for images that are
            misclassified without an attack, infinity for images on which it never succeeded.
    """

    architecture: ArchitectureId
    strength: float
    steps: NDArray[np.float64]


def has_steps(files: ResultFiles, dataset: str, key: str) -> bool:
    """Return whether a dataset has the measurement `steps` of a key."""
    return files.find(dataset, key, STEPS) is not None


def iter_steps(files: ResultFiles, dataset: str, key: str) -> Iterator[NetworkSteps]:
    """Yield the steps of each network under a key, reading only a few networks at a time.

    Raises:
        ResultsError: there are no steps, or they are damaged.
    """
    file = files.find_sole_file(dataset, key, STEPS)
    if file is not None and file.suffix == ".parquet":
        from robust201.reader.parquet_results import iter_lists

        for identifiers, strengths, integer_steps in iter_lists(file, STEPS, weights=files.weights):
            for identifier, strength, steps in zip(identifiers, strengths, integer_steps, strict=True):
                yield NetworkSteps(parse_architecture_id(identifier), strength, steps_of(steps))
        return
    all_strengths = files.strengths(dataset, key)
    for identifier, network_value in files.iter_values(dataset, key, STEPS):
        label = f"{format_id(identifier)} {dataset} {key} {STEPS}"
        values_of_strengths = (
            [network_value]
            if files.has_single_value(dataset, key)
            else list_values_per_strength(network_value, all_strengths, label)
        )
        for strength, value in zip(all_strengths, values_of_strengths, strict=True):
            if value is not None:  # None means that no overlaid folder has the evaluation
                yield NetworkSteps(parse_architecture_id(identifier), strength, steps_of(np.array(value, np.int64)))


def read_steps(
    files: ResultFiles, dataset: str, key: str, strength: float
) -> dict[ArchitectureId, NDArray[np.float64]]:
    """Read the steps of all networks under a key at a strength: (N,) by architecture, ascending.

    Raises:
        ResultsError: there are no steps at this strength, or they are damaged.
    """
    steps_by_architecture = {
        network_steps.architecture: network_steps.steps
        for network_steps in iter_steps(files, dataset, key)
        if network_steps.strength == strength
    }
    if not steps_by_architecture:
        raise ResultsError(
            f"Reading steps failed for {dataset} {key} of {files.path}: there are no steps at strength {strength:g}. "
            f"Evaluate the key at this strength with the measurement `{STEPS}`."
        )
    return dict(sorted(steps_by_architecture.items()))
