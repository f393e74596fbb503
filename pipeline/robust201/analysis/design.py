"""The influence of a cell's design on robustness: effects of operations.

Effects are exact, because the space is a full factorial design (every operation on every edge) in which each cell has
the accuracy of its isomorphism class.
"""

import functools

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.core.errors import ResultsError
from robust201.networks.spaces import CellSpace

_Floats = NDArray[np.float64]

_N_BOOTSTRAP_SAMPLES = 400
"""Number of bootstrap samples of isomorphism classes for the intervals of effects."""


def operation_effects(results: DatasetResults, accuracies: "pd.Series[float]") -> pd.DataFrame:
    """Compute the effects of operations on an accuracy, over all cells of the space.

    Returns:
        One row per edge and operation: `edge`, `operation`, `mean` accuracy of the cells with this operation on this
        edge, `effect` (their mean minus the mean over all cells), and the ends `low` and `high` of the effect's 95%
        interval, from a bootstrap over isomorphism classes.

    Raises:
        ResultsError: the architectures are not cells, or an isomorphism class has no evaluated cell.
    """
    space = results.space
    if space is None:
        raise ResultsError(
            f"Analysing cells failed for {results.name}: its architectures are not cells. Choose a dataset of cells."
        )
    isomorphs = np.asarray(space.isomorphs())
    accuracies_by_class = accuracies.dropna()
    missing_classes = np.setdiff1d(isomorphs, accuracies_by_class.index.to_numpy())  # ids of their representatives
    if len(missing_classes):
        raise ResultsError(
            f"Computing effects of operations failed for {results.name}: {len(missing_classes):,} of the "
            f"{len(set(isomorphs)):,} isomorphism classes, such as the class of cell {missing_classes[0]}, have no "
            "accuracy. Effects can be separated only if every class has an accuracy. Export a dataset of all classes."
        )
    codes = _operation_codes_of_space(space)
    cell_accuracies: _Floats = np.asarray(accuracies_by_class.loc[isomorphs], np.float64)
    n_operations, mean = len(space.operations), float(cell_accuracies.mean())
    intervals = _effect_intervals(codes, cell_accuracies, isomorphs, n_operations)
    rows = []
    for edge, label in enumerate(space.edge_labels):
        for code, operation in enumerate(space.operations):
            mean_with_operation = float(cell_accuracies[codes[:, edge] == code].mean())
            effect = mean_with_operation - mean
            rows.append((label, space.operation_labels[operation], mean_with_operation, effect, *intervals[edge, code]))
    return pd.DataFrame(rows, columns=["edge", "operation", "mean", "effect", "low", "high"])


@functools.cache  # because parsing all cells takes as long as computing the effects on one score
def _operation_codes_of_space(space: CellSpace) -> NDArray[np.int64]:
    """Return the operations on the E edges of all N cells of a space, as (N, E) indices into `space.operations`."""
    return np.array([[space.operations.index(name) for name in space.parse(spec)] for spec in space.specs()])


def _effect_intervals(
    codes: NDArray[np.int64], cell_accuracies: _Floats, isomorphs: NDArray[np.int64], n_operations: int
) -> _Floats:
    """Return the ends of 95% intervals of effects, (E, O, 2), from a bootstrap over isomorphism classes."""
    _, first_members, class_indices, class_sizes = np.unique(
        isomorphs, return_index=True, return_inverse=True, return_counts=True
    )
    rng = np.random.default_rng(0)
    # Number of copies of each class in each bootstrap sample.
    multiplicities = rng.multinomial(
        len(class_sizes), np.full(len(class_sizes), 1 / len(class_sizes)), size=_N_BOOTSTRAP_SAMPLES
    ).astype(np.float64)
    accuracies = cell_accuracies[first_members]
    overall_means = multiplicities @ (class_sizes * accuracies) / (multiplicities @ class_sizes)
    intervals = np.empty((codes.shape[1], n_operations, 2))
    for edge in range(codes.shape[1]):
        n_cells = np.zeros((len(class_sizes), n_operations))  # cells of each class with each operation on this edge
        np.add.at(n_cells, (class_indices, codes[:, edge]), 1)
        means_with_operation = multiplicities @ (n_cells * accuracies[:, None]) / (multiplicities @ n_cells)
        intervals[edge] = np.quantile(means_with_operation - overall_means[:, None], (0.025, 0.975), axis=0).T
    return intervals
