"""What makes a cell robust: effects of operations on edges, a small tree, prediction from the cell, Pareto fronts.

Effects are exact: the space is a full factorial (every operation on every edge), and each cell has the accuracy of its
isomorphism class. So effects of edges and of pairs are orthogonal, and their shares of the variance add up.
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
from robust201.statistics.pareto import on_front

_Floats = NDArray[np.float64]

_N_DRAWS = 400
"""Draws of isomorphism classes behind the intervals of effects."""

TRAINING_SIZES = (50, 100, 200, 400, 800, 1600, 3200)
REPEATS = 5
TREE_DEPTH = 3
SMALLEST_LEAF = 20

MORE_EDGES = "three edges or more"


class Effects(NamedTuple):
    """Effects of the operations of all cells of a space on an accuracy.

    Attributes:
        operations: one row per edge and operation: `edge`, `operation`, `mean` accuracy of the cells that have it,
            `effect`, that minus the mean over all cells, and the ends `low` and `high` of its 95 % interval, from a
            bootstrap over isomorphism classes.
        variance: one row per edge, pair of edges (``a & b``) and for what is left: `edges`, `freedom`, degrees of
            freedom, and `share` of the variance over all cells in [0, 1]; they sum to 1.
        pairs: one row per pair of edges and of operations on them: `edges`, `operations`, `mean` and `interaction`, by
            how much that exceeds what the two effects add up to.
    """

    operations: pd.DataFrame
    variance: pd.DataFrame
    pairs: pd.DataFrame


def operation_effects(results: DatasetResults, accuracies: "pd.Series[float]", *, seed: int = 0) -> Effects:
    """Compute the effects of operations and of pairs of them over all cells of the space.

    Raises:
        ResultsError: the architectures are no cells, or the class of a cell was not evaluated.
    """
    space = _cells_of(results)
    specs = space.specs()
    isomorphs = np.asarray(space.isomorphs())
    by_class = accuracies.dropna()
    lacking = lacking_classes(results, accuracies)
    if len(lacking):
        raise ResultsError(
            f"Computing effects of operations failed for {results.name}: expected accuracies of all "
            f"{len(set(isomorphs)):,} classes of cells, got none of {len(lacking):,}, such as {lacking[0]}. In a part "
            "of the space, effects mix with one another: export a dataset of all."
        )
    codes = _codes_of_cells(space)
    values: _Floats = np.asarray(by_class.loc[isomorphs], np.float64)
    n_operations, n_edges = len(space.operations), len(space.edges)
    table = np.empty((n_operations,) * n_edges)
    table[tuple(codes.T)] = values
    grand = float(table.mean())
    edges = range(n_edges)
    singles = [table.mean(axis=tuple(axis for axis in edges if axis != edge)) - grand for edge in edges]
    ends = _effect_intervals(codes, values, isomorphs, n_operations, seed)
    names = [space.operation_labels[operation] for operation in space.operations]
    operations = pd.DataFrame(
        [
            (label, names[code], grand + effect, effect, *ends[edge, code])
            for edge, label in enumerate(space.edge_labels)
            for code, effect in enumerate(singles[edge])
        ],
        columns=["edge", "operation", "mean", "effect", "low", "high"],
    )
    total = float(np.square(table - grand).mean())
    variance: list[tuple[str, int, float]] = [
        (label, n_operations - 1, float(np.square(single).mean()))
        for label, single in zip(space.edge_labels, singles, strict=True)
    ]
    pairs: list[tuple[str, str, float, float]] = []
    for first, second in itertools.combinations(edges, 2):
        means = table.mean(axis=tuple(axis for axis in edges if axis not in (first, second)))
        interaction = means - grand - singles[first][:, None] - singles[second][None, :]
        label = f"{space.edge_labels[first]} & {space.edge_labels[second]}"
        variance.append((label, (n_operations - 1) ** 2, float(np.square(interaction).mean())))
        pairs += [
            (label, f"{names[i]} & {names[j]}", float(means[i, j]), float(interaction[i, j]))
            for i, j in np.ndindex(interaction.shape)
        ]
    used = sum(freedom for _, freedom, _ in variance), sum(share for *_, share in variance)
    variance.append((MORE_EDGES, len(specs) - 1 - used[0], max(0.0, total - used[1])))
    shares = pd.DataFrame(variance, columns=["edges", "freedom", "share"])
    shares["share"] /= total or np.nan
    return Effects(
        operations,
        shares.sort_values("share", ascending=False, kind="stable", ignore_index=True),
        pd.DataFrame(pairs, columns=["edges", "operations", "mean", "interaction"]),
    )


@functools.cache  # takes as long as the effects of a score, and follows from the space alone
def _codes_of_cells(space: CellSpace) -> NDArray[np.int64]:
    """Return the operations on the edges of all cells as (N, E) positions in `space.operations`."""
    return np.array([[space.operations.index(name) for name in space.parse(spec)] for spec in space.specs()])


def lacking_classes(results: DatasetResults, accuracies: "pd.Series[float]") -> NDArray[np.int64]:
    """List the isomorphism classes of cells that have no accuracy, by the architecture that stands for each."""
    return np.setdiff1d(_cells_of(results).isomorphs(), accuracies.dropna().index.to_numpy())


def _effect_intervals(
    codes: NDArray[np.int64], values: _Floats, isomorphs: NDArray[np.int64], n_operations: int, seed: int
) -> _Floats:
    """Give (E, O, 2) ends of 95 % intervals of effects: isomorphism classes are drawn, all cells of one together."""
    _, first, members, sizes = np.unique(isomorphs, return_index=True, return_inverse=True, return_counts=True)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=_N_DRAWS).astype(np.float64)
    accuracies = values[first]
    overall = weights @ (sizes * accuracies) / (weights @ sizes)
    ends = np.empty((codes.shape[1], n_operations, 2))
    for edge in range(codes.shape[1]):
        having = np.zeros((len(sizes), n_operations))  # how many cells of a class have an operation on the edge
        np.add.at(having, (members, codes[:, edge]), 1)
        means = weights @ (having * accuracies[:, None]) / (weights @ having)
        ends[edge] = np.quantile(means - overall[:, None], (0.025, 0.975), axis=0).T
    return ends


def describe_tree(results: DatasetResults, accuracies: "pd.Series[float]") -> str:
    """Fit a regression tree of depth `TREE_DEPTH` to the evaluated cells and write its rules.

    A rule asks whether an edge carries an operation; a leaf has at least `SMALLEST_LEAF` cells.
    """
    from sklearn.tree import DecisionTreeRegressor, export_text

    space, held = _cells_of(results), accuracies.dropna()
    codes = _codes(results, held)
    names, columns = [], []
    for edge, label in enumerate(space.edge_labels):
        for code, operation in enumerate(space.operations):
            names.append(f"{label} is {space.operation_labels[operation]}")
            columns.append(codes[:, edge] == code)
    tree = DecisionTreeRegressor(max_depth=TREE_DEPTH, min_samples_leaf=SMALLEST_LEAF, random_state=0)
    tree.fit(np.stack(columns, axis=1).astype(np.float64), held.to_numpy(np.float64))
    rules: str = export_text(tree, feature_names=names, decimals=3)
    return rules.replace(" <= 0.500", ": no").replace(" >  0.500", ": yes").replace("value: ", "")


def predict_from_cells(results: DatasetResults, accuracies: "pd.Series[float]", *, seed: int = 0) -> pd.DataFrame:
    """Predict an accuracy from the operations of a cell by gradient boosting, and rank held-out cells.

    Of the evaluated cells, as many as a training size are drawn, without replacement, and all others are predicted;
    `REPEATS` times per size.

    Returns:
        One row per training size that leaves at least as many cells over: `cells`, `kendall` and `spearman`, medians
        over the repeats, and the lowest and highest of each, in `_low` and `_high`.
    """
    from scipy.stats import kendalltau, spearmanr
    from sklearn.ensemble import HistGradientBoostingRegressor

    held = accuracies.dropna()
    codes, values = _codes(results, held), held.to_numpy(np.float64)
    rng = np.random.default_rng(seed)
    rows = []
    for size in TRAINING_SIZES:
        if 2 * size > len(values):
            break
        found = []
        for repeat in range(REPEATS):
            order = rng.permutation(len(values))
            model = HistGradientBoostingRegressor(
                categorical_features=list(range(codes.shape[1])), min_samples_leaf=5, random_state=repeat
            )
            model.fit(codes[order[:size]], values[order[:size]])
            predicted, true = model.predict(codes[order[size:]]), values[order[size:]]
            found.append((kendalltau(predicted, true).statistic, spearmanr(predicted, true).statistic))
        low, middle, high = np.quantile(np.array(found), (0, 0.5, 1), axis=0)
        rows.append((size, middle[0], low[0], high[0], middle[1], low[1], high[1]))
    names = [f"{name}{end}" for name in ("kendall", "spearman") for end in ("", "_low", "_high")]
    return pd.DataFrame(rows, columns=["cells", *names])


def pareto_table(columns: pd.DataFrame, *, maximise: Sequence[str], minimise: Sequence[str] = ()) -> pd.DataFrame:
    """Choose the architectures that no other beats: none is as good in all objectives and better in one.

    Args:
        columns: numbers by architecture; those that lack one of the objectives are left out.
        maximise: names of the columns that should be high.
        minimise: names of the columns that should be low.

    Returns:
        The rows on the front, sorted by the first objective, the best first.

    Raises:
        ConfigError: fewer than two objectives, or one twice.
    """
    names = [*maximise, *minimise]
    if len(set(names)) < 2 or len(set(names)) != len(names):
        raise ConfigError(
            f"Finding the Pareto front failed for {', '.join(names) or 'no objective'}: expected two different "
            "objectives or more. Name what to maximise and what to minimise."
        )
    held = columns[names].dropna()
    signs = np.array([1.0] * len(maximise) + [-1.0] * len(minimise))
    first = names[0]
    chosen = held[on_front(held.to_numpy(np.float64) * signs)]
    return chosen.sort_values(first, ascending=first in minimise, kind="stable")


def _cells_of(results: DatasetResults) -> CellSpace:
    if results.space is None:
        raise ResultsError(
            f"Analysing cells failed for {results.name}: expected architectures that are cells, got those of another "
            "space. Use `robust201 correlate`, which needs none."
        )
    return results.space


def _codes(results: DatasetResults, held: "pd.Series[float]") -> NDArray[np.int64]:
    """(N, E) operations by number of the architectures of some accuracies."""
    space = _cells_of(results)
    if len(held) < 2 * SMALLEST_LEAF:
        raise ResultsError(
            f"Analysing cells failed for {results.name}: expected at least {2 * SMALLEST_LEAF} evaluated cells, got "
            f"{len(held)}. Export more."
        )
    return np.array([[space.operations.index(one) for one in space.parse(results.spec(index))] for index in held.index])
