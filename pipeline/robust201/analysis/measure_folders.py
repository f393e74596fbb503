"""Measures from several folders side by side, each named with its split, mode and weights."""

from collections.abc import Sequence

import pandas as pd

from robust201.analysis.dataset_results import read_measures
from robust201.analysis.labels import measure_label
from robust201.core.errors import ConfigError
from robust201.reader.dataset import RobustnessDataset

UNNAMED_WEIGHTS = "trained"
"""Name shown for weights without a name, which come from files (random weights are named by their seed)."""


def read_measure_folders(folders: Sequence[RobustnessDataset], dataset: str) -> pd.DataFrame:
    """Read a dataset's measures from every folder, for all weights in the folder.

    Returns:
        `architecture`, and a float64 column per measure, folder and weights, such as ``Jacobian norm (train,
        random-s0)``; a name that would occur twice ends with its folder's name instead of the weights.
    """
    columns: dict[str, pd.Series] = {}
    for folder in folders:
        choices: list[str | None] = [*folder.weights] or [None]
        for weights in choices:
            for column, values in read_measures(folder, dataset, weights).items():
                label = measure_label(*column)  # type: ignore[misc]
                details = [*_describe_protocol(folder, dataset, str(column[0])), weights or UNNAMED_WEIGHTS]  # type: ignore[index]
                name = f"{label} ({', '.join(details)})"
                if name in columns:
                    name = f"{label} ({', '.join([*details, folder.path.name])})"
                if name in columns:
                    raise ConfigError(
                        f"Reading measures failed for {folder.path}: {name} occurs twice; measures must differ in "
                        f"split, mode, weights or folder name. Name each folder once."
                    )
                columns[name] = values
    frame = pd.DataFrame(columns)
    return frame.rename_axis("architecture").reset_index()


def _describe_protocol(folder: RobustnessDataset, dataset: str, key: str) -> list[str]:
    """Return a measure's split, and its mode if it is not evaluation, if sweep.json records them."""
    protocols = folder.files.protocols_of(dataset, key)
    if len(protocols) != 1:
        return []
    (protocol,) = protocols
    split = str(protocol.get("images", {}).get("split", "test"))
    mode = protocol.get("parameters", {}).get("mode")
    return [split] if mode is None else [split, f"{mode} mode"]
