"""`robust201.place`: the rank of a network among the evaluated architectures of a dataset."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from robust201.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from robust201.analysis.evaluation import Evaluation
    from robust201.dataset.reader import Dataset


def place(result: "Evaluation", dataset: "Dataset", *, data: str = "cifar10") -> pd.DataFrame:
    """Rank a network among the evaluated architectures of a dataset.

    The ranks are meaningful only if the network was evaluated on the dataset's images and with its attack parameters
    (docs/protocol.md), which is not checked.

    Args:
        result: result of `evaluate`.
        dataset: dataset of evaluated architectures.
        data: image dataset on which the architectures were evaluated.

    Returns:
        One row per row of the result's table that has an accuracy: `key`, `strength`, `accuracy`, `rank` (1 if no
        architecture is better; missing if the dataset has no accuracy at this key and strength), `architectures`
        (number of architectures with such an accuracy), `percentile` (percentage of these that are worse; ties count
        half),
        `median`, `best` and `best_architecture`.

    Raises:
        ConfigError: the dataset has no such image dataset.
        ResultsError: a file of the dataset is damaged.
    """
    if data not in dataset.data:
        raise ConfigError(
            f"Ranking failed for data={data!r}: the dataset has no results on such an image dataset."
            f"{did_you_mean(data, dataset.data)}"
        )
    rows = [
        _rank_accuracy(str(row["key"]), float(row["strength"]), float(row["accuracy"]), dataset, data)
        for row in result.table.dropna(subset="accuracy").to_dict("records")
    ]
    columns = ("key", "strength", "accuracy", "rank", "architectures")
    frame = pd.DataFrame(rows, columns=[*columns, "percentile", "median", "best", "best_architecture"])
    has_text_ids = any(isinstance(name, str) for name in frame["best_architecture"])
    return frame.astype({"rank": "Int64", "best_architecture": "string" if has_text_ids else "Int64"})


def _rank_accuracy(key: str, strength: float, accuracy: float, dataset: "Dataset", data: str) -> dict[str, Any]:
    """Return one row of the result of `place`."""
    row: dict[str, Any] = {"key": key, "strength": strength, "accuracy": accuracy, "architectures": 0}
    if not dataset.has(data, key):
        return row
    # At strength 0, an attack's file may contain clean accuracies, which are not results of the attack.
    if strength not in dataset.strengths(data, key):
        return row
    frame = dataset.to_frame(data, key)
    accuracies = frame[frame["strength"] == strength].set_index("architecture")["value"].dropna()
    if accuracies.empty:
        return row
    n_better, n_equal = int((accuracies > accuracy).sum()), int((accuracies == accuracy).sum())
    return row | {
        "rank": 1 + n_better,
        "architectures": len(accuracies),
        "percentile": 100 * (len(accuracies) - n_better - n_equal / 2) / len(accuracies),
        "median": float(accuracies.median()),
        "best": float(accuracies.max()),
        "best_architecture": accuracies.index[int(accuracies.argmax())],
    }
