"""Evaluations with given accuracies."""

from collections.abc import Iterable

import numpy as np

from robust201.analysis.evaluation import Evaluation, KeyResults


def evaluation_of(accuracies: Iterable[tuple[str, float, float]]) -> Evaluation:
    """Return an evaluation with these accuracies, as (key, strength, accuracy), without outcomes."""
    rows: dict[str, list[dict[str, object]]] = {}
    for key, strength, accuracy in accuracies:
        rows.setdefault(key, []).append({"key": key, "strength": strength, "accuracy": accuracy})
    results = {key: KeyResults(tuple(rows_of_key), {}, {}) for key, rows_of_key in rows.items()}
    return Evaluation("network", "", "", (), np.arange(10), results)
