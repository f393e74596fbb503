"""The influence of a cell's design on robustness: effects of operations, a regression tree, and predictions.

Effects are exact, because the space is a full factorial design (every operation on every edge) in which each cell has
the accuracy of its isomorphism class. Effects of edges and of pairs of edges are therefore orthogonal, and their
fractions of the variance add up.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.core.errors import ConfigError, ResultsError
from robust201.spaces.cell_space import CellSpace
from robust201.statistics.pareto import non_dominated_mask

_Floats = NDArray[np.float64]

_N_BOOTSTRAP_SAMPLES = 400
"""Number of bootstrap samples of isomorphism classes for the intervals of effects."""

TRAINING_SIZES = (50, 100, 200, 400, 800, 1600, 3200)
"""Numbers of cells in the training sets of predictions."""

N_REPEATS = 5
"""Number of random training sets of each size."""

TREE_DEPTH = 3
"""Depth of the regression tree."""

MIN_LEAF_CELLS = 20
"""Minimum number of cells in a leaf of the regression tree."""

REMAINDER_LABEL = "three edges or more"


class Effects(NamedTuple):
    """Effects of operations on an accuracy, over all cells of a space.

    Attributes:
        operations: one row per edge and operation: `edge`, `operation`, `mean` accuracy of the cells with this
            operation on this edge, `effect` (their mean minus the mean over all cells), and the ends `low` and `high`
            of the effect's 95% interval, from a bootstrap over isomorphism classes.
        variance: one row per edge, per pair of edges (``a & b``) and for the remainder: `edges`, `freedom` (degrees of
            freedom) and `share` (fraction of the variance over all cells, in [0, 1]); the fractions sum to 1.
        pairs: one row per pair of edges and of operations on them: `edges`, `operations`, `mean` and `interaction` (the
            difference between the pair's effect and the sum of its two single effects).
    """

    operations: pd.DataFrame
    variance: pd.DataFrame
    pairs: pd.DataFrame


def operation_effects(results: DatasetResults, accuracies: "pd.Series[float]", *, seed: int = 0) -> Effects:
    """Compute the effects of operations and of their pairs over all cells of the space.

    Raises:
        ResultsError: the architectures are not cells, or an isomorphism class has no evaluated cell.
    """
    space = _require_cell_space(results)
    specs = space.specs()
    isomorphs = np.asarray(space.isomorphs())
    accuracies_by_class = accuracies.dropna()
    missing_classes = classes_without_accuracy(results, accuracies)
    if len(missing_classes):
        raise ResultsError(
            f"Computing effects of operations failed for {results.name}: {len(missing_classes):,} of the "
            f"{len(set(isomorphs)):,} isomorphism classes, such as the class of cell {missing_classes[0]}, have no "
            "accuracy. Effects can be separated only if every class has an accuracy. Export a dataset of all classes."
        )
    codes = _operation_codes_of_space(space)
    cell_accuracies: _Floats = np.asarray(accuracies_by_class.loc[isomorphs], np.float64)
    n_operations, n_edges = len(space.operations), len(space.edges)
    table = np.empty((n_operations,) * n_edges)
    table[tuple(codes.T)] = cell_accuracies
    mean = float(table.mean())
    edges = range(n_edges)
    effects = [table.mean(axis=tuple(axis for axis in edges if axis != edge)) - mean for edge in edges]
    intervals = _effect_intervals(codes, cell_accuracies, isomorphs, n_operations, seed)
    operation_labels = [space.operation_labels[operation] for operation in space.operations]
    operations = pd.DataFrame(
        [
            (label, operation_labels[code], mean + effect, effect, *intervals[edge, code])
            for edge, label in enumerate(space.edge_labels)
            for code, effect in enumerate(effects[edge])
        ],
        columns=["edge", "operation", "mean", "effect", "low", "high"],
    )
    total_variance = float(np.square(table - mean).mean())
    variance: list[tuple[str, int, float]] = [
        (label, n_operations - 1, float(np.square(edge_effects).mean()))
        for label, edge_effects in zip(space.edge_labels, effects, strict=True)
    ]
    pairs: list[tuple[str, str, float, float]] = []
    for first_edge, second_edge in itertools.combinations(edges, 2):
        means = table.mean(axis=tuple(axis for axis in edges if axis not in (first_edge, second_edge)))
        interaction = means - mean - effects[first_edge][:, None] - effects[second_edge][None, :]
        label = f"{space.edge_labels[first_edge]} & {space.edge_labels[second_edge]}"
        variance.append((label, (n_operations - 1) ** 2, float(np.square(interaction).mean())))
        pairs += [
            (label, f"{operation_labels[i]} & {operation_labels[j]}", float(means[i, j]), float(interaction[i, j]))
            for i, j in np.ndindex(interaction.shape)
        ]
    explained_degrees_of_freedom = sum(degrees_of_freedom for _, degrees_of_freedom, _ in variance)
    explained_variance = sum(component for *_, component in variance)
    variance.append(
        (REMAINDER_LABEL, len(specs) - 1 - explained_degrees_of_freedom, max(0.0, total_variance - explained_variance))
    )
    variance_table = pd.DataFrame(variance, columns=["edges", "freedom", "share"])
    variance_table["share"] /= total_variance or np.nan
    return Effects(
        operations,
        variance_table.sort_values("share", ascending=False, kind="stable", ignore_index=True),
        pd.DataFrame(pairs, columns=["edges", "operations", "mean", "interaction"]),
    )


@functools.cache  # because parsing all cells takes as long as computing the effects on one score
def _operation_codes_of_space(space: CellSpace) -> NDArray[np.int64]:
    """Return the operations on the E edges of all N cells of a space, as (N, E) indices into `space.operations`."""
    return np.array([[space.operations.index(name) for name in space.parse(spec)] for spec in space.specs()])


def classes_without_accuracy(results: DatasetResults, accuracies: "pd.Series[float]") -> NDArray[np.int64]:
    """Return the isomorphism classes that have no accuracy, as ids of their representatives."""
    return np.setdiff1d(_require_cell_space(results).isomorphs(), accuracies.dropna().index.to_numpy())


def _effect_intervals(
    codes: NDArray[np.int64], cell_accuracies: _Floats, isomorphs: NDArray[np.int64], n_operations: int, seed: int
) -> _Floats:
    """Return the ends of 95% intervals of effects, (E, O, 2), from a bootstrap over isomorphism classes."""
    _, first_members, class_indices, class_sizes = np.unique(
        isomorphs, return_index=True, return_inverse=True, return_counts=True
    )
    rng = np.random.default_rng(seed)
    # Number of copies of each class in each bootstrap sample.
    multiplicities = rng.multinomial(
        len(class_sizes), np.full(len(class_sizes), 1 / len(class_sizes)), size=_N_BOOTSTRAP_SAMPLES
    ).astype(np.float64)
    accuracies = cell_accuracies[first_members]
    overall = multiplicities @ (class_sizes * accuracies) / (multiplicities @ class_sizes)
    intervals = np.empty((codes.shape[1], n_operations, 2))
    for edge in range(codes.shape[1]):
        n_cells = np.zeros((len(class_sizes), n_operations))  # cells of each class with each operation on this edge
        np.add.at(n_cells, (class_indices, codes[:, edge]), 1)
        means = multiplicities @ (n_cells * accuracies[:, None]) / (multiplicities @ n_cells)
        intervals[edge] = np.quantile(means - overall[:, None], (0.025, 0.975), axis=0).T
    return intervals


def describe_tree(results: DatasetResults, accuracies: "pd.Series[float]") -> str:
    """Fit a regression tree of depth `TREE_DEPTH` to the evaluated cells, and return its rules as text.

    Each rule tests whether an edge has an operation; a leaf has at least `MIN_LEAF_CELLS` cells.
    """
    from sklearn.tree import DecisionTreeRegressor, export_text

    space, known_accuracies = _require_cell_space(results), accuracies.dropna()
    codes = _operation_codes(results, known_accuracies)
    feature_names, columns = [], []
    for edge, label in enumerate(space.edge_labels):
        for code, operation in enumerate(space.operations):
            feature_names.append(f"{label} is {space.operation_labels[operation]}")
            columns.append(codes[:, edge] == code)
    tree = DecisionTreeRegressor(max_depth=TREE_DEPTH, min_samples_leaf=MIN_LEAF_CELLS, random_state=0)
    tree.fit(np.stack(columns, axis=1).astype(np.float64), known_accuracies.to_numpy(np.float64))
    rules: str = export_text(tree, feature_names=feature_names, decimals=3)
    return rules.replace(" <= 0.500", ": no").replace(" >  0.500", ": yes").replace("value: ", "")


def predict_from_cells(results: DatasetResults, accuracies: "pd.Series[float]", *, seed: int = 0) -> pd.DataFrame:
    """Predict accuracies from cells' operations with gradient boosting, and measure how well held-out cells are ranked.

    For each training size, cells are sampled from the evaluated cells without replacement, and all other evaluated
    cells are predicted. This is repeated `N_REPEATS` times.

    Returns:
        One row per training size, up to half of the cells: `cells` (the size), `kendall` and `spearman` (medians over
        the repeats), and the minimum and maximum of both, with the suffixes `_low` and `_high`.
    """
    from scipy.stats import kendalltau, spearmanr
    from sklearn.ensemble import HistGradientBoostingRegressor

    known_accuracies = accuracies.dropna()
    codes, accuracy_values = _operation_codes(results, known_accuracies), known_accuracies.to_numpy(np.float64)
    rng = np.random.default_rng(seed)
    rows = []
    for size in TRAINING_SIZES:
        if 2 * size > len(accuracy_values):
            break
        correlations = []
        for repeat in range(N_REPEATS):
            order = rng.permutation(len(accuracy_values))
            model = HistGradientBoostingRegressor(
                categorical_features=list(range(codes.shape[1])), min_samples_leaf=5, random_state=repeat
            )
            model.fit(codes[order[:size]], accuracy_values[order[:size]])
            predictions, held_out_accuracies = model.predict(codes[order[size:]]), accuracy_values[order[size:]]
            kendall = kendalltau(predictions, held_out_accuracies).statistic
            correlations.append((kendall, spearmanr(predictions, held_out_accuracies).statistic))
        low, median, high = np.quantile(np.array(correlations), (0, 0.5, 1), axis=0)
        rows.append((size, median[0], low[0], high[0], median[1], low[1], high[1]))
    correlation_columns = [f"{name}{suffix}" for name in ("kendall", "spearman") for suffix in ("", "_low", "_high")]
    return pd.DataFrame(rows, columns=["cells", *correlation_columns])


def pareto_table(columns: pd.DataFrame, *, maximise: Sequence[str], minimise: Sequence[str] = ()) -> pd.DataFrame:
    """Return the Pareto front: the architectures that no other architecture dominates.

    An architecture dominates another if it is at least as good in all objectives, and better in at least one.

    Args:
        columns: numbers by architecture; rows that lack an objective are left out.
        maximise: names of the columns that should be high.
        minimise: names of the columns that should be low.

    Returns:
        The rows on the front, sorted by the first objective, the best first.

    Raises:
        ConfigError: fewer than two objectives, or a duplicate.
    """
    objectives = [*maximise, *minimise]
    if len(set(objectives)) < 2 or len(set(objectives)) != len(objectives):
        raise ConfigError(
            f"Finding the Pareto front failed for {', '.join(objectives) or 'no objective'}: at least two different "
            "objectives are needed. List objectives to maximise and to minimise."
        )
    complete_rows = columns[objectives].dropna()
    signs = np.array([1.0] * len(maximise) + [-1.0] * len(minimise))
    first_objective = objectives[0]
    front = complete_rows[non_dominated_mask(complete_rows.to_numpy(np.float64) * signs)]
    return front.sort_values(first_objective, ascending=first_objective in minimise, kind="stable")


def _require_cell_space(results: DatasetResults) -> CellSpace:
    if results.space is None:
        raise ResultsError(
            f"Analysing cells failed for {results.name}: its architectures are not cells. Use robust201 correlate, "
            "which accepts any architectures."
        )
    return results.space


def _operation_codes(results: DatasetResults, accuracies: "pd.Series[float]") -> NDArray[np.int64]:
    """Return the operations of the N architectures in `accuracies`, as (N, E) indices into `space.operations`."""
    space = _require_cell_space(results)
    if len(accuracies) < 2 * MIN_LEAF_CELLS:
        raise ResultsError(
            f"Analysing cells failed for {results.name}: it has {len(accuracies)} evaluated cells, and at least "
            f"{2 * MIN_LEAF_CELLS} are needed. Evaluate and export more cells."
        )
    return np.array(
        [[space.operations.index(name) for name in space.parse(results.spec(index))] for index in accuracies.index]
    )
