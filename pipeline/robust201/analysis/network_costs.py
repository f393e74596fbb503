"""Costs of networks that can be computed without an evaluation: the numbers of parameters and multiply-accumulates."""

from collections.abc import Iterable

import pandas as pd

from robust201.core.records import ArchitectureId
from robust201.dataset.layout import architecture_of_network
from robust201.dataset.reader import Dataset
from robust201.images import DATASETS

PARAMETERS, MACS = "parameters", "flops"
"""Names of the costs. Multiply-accumulates are called flops, as is usual in tables of networks."""

_IMAGE_SIZE = 32
"""Assumed image size of unknown datasets; the ranking of networks by multiply-accumulates does not depend on it."""


def network_costs(
    reader: Dataset, dataset: str, architectures: Iterable[ArchitectureId], *, n_classes: int | None = None
) -> pd.DataFrame:
    """Count the parameters and multiply-accumulates of networks of the size that the dataset's sweep records.

    Args:
        reader: reader of the folder.
        dataset: name of a dataset in the folder.
        architectures: ids of architectures, or names of networks, which have the costs of their architecture.
        n_classes: number of classes; required if the dataset is unknown.

    Returns:
        Columns `PARAMETERS` and `MACS` by architecture; no columns if the architectures are not cells or the number of
        classes is unknown.
    """
    architecture_ids, space, known_dataset = list(architectures), reader.cost_space, DATASETS.get(dataset)
    class_count = n_classes if known_dataset is None else known_dataset.n_classes
    if space is None or class_count is None:
        return pd.DataFrame(index=pd.Index(architecture_ids))
    network_size = ({} if reader.sweep is None else reader.sweep.get("sweep", {})).get("network")
    sized_space = space if network_size is None else space.with_size(**network_size)
    image_size = _IMAGE_SIZE if known_dataset is None else known_dataset.image_size
    costs = [
        (
            sized_space.parameter_count(cell, n_classes=class_count),
            sized_space.macs(cell, n_classes=class_count, image_size=image_size),
        )
        for cell in map(architecture_of_network, architecture_ids)
    ]
    return pd.DataFrame(costs, index=pd.Index(architecture_ids), columns=[PARAMETERS, MACS], dtype="float64")
