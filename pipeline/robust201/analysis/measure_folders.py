"""Measures of several folders side by side, each named with the split, mode and weights that it was taken with."""

from collections.abc import Sequence

import pandas as pd

from robust201.analysis.dataset_results import read_measures
from robust201.analysis.labels import measure_label
from robust201.core.errors import ConfigError
from robust201.reader.dataset import RobustnessDataset

UNNAMED_WEIGHTS = "trained"
"""Name of weights that have none: these come from files, whereas random ones are named by their seed."""


def read_measure_folders(folders: Sequence[RobustnessDataset], dataset: str) -> pd.DataFrame:
    """Read the measures of a dataset from every folder, for all weights that the folder has.

    Returns:
        `architecture`, and a float64 column per measure, folder and weights, such as ``Jacobian norm (train,
        random-s0)``; its name ends with that of the folder where two columns would have the same.
    """
    columns: dict[str, pd.Series] = {}
    for folder in folders:
        choices: list[str | None] = [*folder.weights] or [None]
        for weights in choices:
            for place, values in read_measures(folder, dataset, weights).items():
                label = measure_label(*place)  # type: ignore[misc]
                details = [*_describe_protocol(folder, dataset, str(place[0])), weights or UNNAMED_WEIGHTS]  # type: ignore[index]
                name = f"{label} ({', '.join(details)})"
                if name in columns:
                    name = f"{label} ({', '.join([*details, folder.path.name])})"
                if name in columns:
                    raise ConfigError(
                        f"Reading measures failed for {folder.path}: expected measures that differ from those of the "
                        f"others in split, mode, weights or folder name, got {name} twice. Name each folder once."
                    )
                columns[name] = values
    frame = pd.DataFrame(columns)
    return frame.rename_axis("architecture").reset_index()


def _describe_protocol(folder: RobustnessDataset, dataset: str, key: str) -> list[str]:
    """Describe the split of a measure and, where it is not evaluation, its mode, as far as sweep.json says."""
    protocols = folder.files.protocols_of(dataset, key)
    if len(protocols) != 1:
        return []
    (protocol,) = protocols
    split = str(protocol.get("images", {}).get("split", "test"))
    mode = protocol.get("parameters", {}).get("mode")
    return [split] if mode is None else [split, f"{mode} mode"]
