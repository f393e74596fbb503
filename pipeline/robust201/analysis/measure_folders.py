"""One table of the measures from several folders; columns are named by measure, split, mode and weights."""

from collections.abc import Sequence

import pandas as pd

from robust201.analysis.dataset_results import read_measures
from robust201.analysis.labels import measure_label
from robust201.core.errors import ConfigError
from robust201.dataset.reader import Dataset

UNNAMED_WEIGHTS = "trained"
"""Name that is shown for weights without a name, which come from files; random weights are named by their seed."""


def read_measure_folders(folders: Sequence[Dataset], dataset: str) -> pd.DataFrame:
    """Read a dataset's measures from every folder, for all weights in the folder.

    Returns:
        `architecture`, and one float64 column per measure, folder and weights, such as ``Jacobian norm (train,
        random-s0)``. If a column name would occur twice, the folder's name is appended.
    """
    columns: dict[str, pd.Series] = {}
    for folder in folders:
        weights_names: list[str | None] = [*folder.weights] or [None]
        for weights in weights_names:
            for column, values in read_measures(folder, dataset, weights).items():
                label = measure_label(*column)  # type: ignore[misc]
                qualifiers = [*_describe_protocol(folder, dataset, str(column[0])), weights or UNNAMED_WEIGHTS]  # type: ignore[index]
                column_name = f"{label} ({', '.join(qualifiers)})"
                if column_name in columns:
                    column_name = f"{label} ({', '.join([*qualifiers, folder.path.name])})"
                if column_name in columns:
                    raise ConfigError(
                        f"Reading measures failed for {folder.path}: {column_name} occurs twice, but measures must "
                        f"differ in split, mode, weights or folder name. List each folder only once."
                    )
                columns[column_name] = values
    frame = pd.DataFrame(columns)
    return frame.rename_axis("architecture").reset_index()


def _describe_protocol(folder: Dataset, dataset: str, key: str) -> list[str]:
    """Return a measure's split, and its mode if that is not evaluation mode; empty if sweep.json lacks them."""
    protocols = folder.protocols_of(dataset, key)
    if len(protocols) != 1:
        return []
    (protocol,) = protocols
    split = str(protocol.get("images", {}).get("split", "test"))
    mode = protocol.get("parameters", {}).get("mode", "evaluation")
    return [split] if mode == "evaluation" else [split, f"{mode} mode"]
