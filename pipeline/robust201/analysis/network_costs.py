"""What networks cost, as it is known without evaluating them: parameters and multiply-accumulates."""

from collections.abc import Iterable

import pandas as pd

from robust201.core.records import ArchitectureId
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.networks import trained_architecture

PARAMETERS, FLOPS = "parameters", "flops"

_IMAGE_SIZE = 32
"""For datasets whose images are unknown; the order by multiply-accumulates does not depend on it."""


def network_costs(
    reader: RobustnessDataset, dataset: str, architectures: Iterable[ArchitectureId], *, n_classes: int | None = None
) -> pd.DataFrame:
    """Count parameters and multiply-accumulates of the networks of a dataset, in the size that its sweep gives them.

    Args:
        reader: the folder.
        dataset: one of its datasets.
        architectures: ids; a training of an architecture costs what the architecture does.
        n_classes: where the dataset is not a known one.

    Returns:
        Columns `PARAMETERS` and `FLOPS` by architecture; no column where the architectures are no cells or the number
        of classes is unknown.
    """
    names, space, row = list(architectures), reader.files.cost_space, DATASETS.get(dataset)
    classes = n_classes if row is None else row.n_classes
    if space is None or classes is None:
        return pd.DataFrame(index=pd.Index(names))
    size = ({} if reader.sweep is None else reader.sweep.get("sweep", {})).get("network")
    sized = space if size is None else space.sized(**size)
    image_size = _IMAGE_SIZE if row is None else row.image_size
    counted = [
        (sized.parameter_count(cell, n_classes=classes), sized.macs(cell, n_classes=classes, image_size=image_size))
        for cell in map(trained_architecture, names)
    ]
    return pd.DataFrame(counted, index=pd.Index(names), columns=[PARAMETERS, FLOPS], dtype="float64")
