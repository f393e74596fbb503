"""Repeated searches on a dataset: the optimum, and the mean accuracy of the cells that each method selects."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.terms import find_evaluations, mean_accuracy
from robust201.core.errors import ConfigError
from robust201.networks.spaces import CellSpace
from robust201.search.cells import SearchCells
from robust201.search.methods import METHODS, find_method
from robust201.search.runs import Benchmark, run_methods
from robust201.statistics.intervals import mean_intervals

_Floats = NDArray[np.float64]

PAPER_QUERIES, PAPER_RUNS = 300, 100
"""Budget and number of runs in table 1 of Jung, Lukasik and Keuper (ICLR 2023)."""

TABLE1_COLUMNS = {
    "clean": "clean",
    "fgsm:1/255": "FGSM 1",
    "pgd:1/255": "PGD 1",
    "aa_apgd-ce:1/255": "APGD 1",
    "aa_square:1/255": "Square 1",
    "corruption": "corruptions",
}
"""Column headings of table 1 by objective. The columns are accuracies of the selected cells on clean images, under
attacks at epsilon 1/255, and on average over the corruptions."""


@dataclass(frozen=True, eq=False)
class RepeatedSearches:
    """Repeated searches by several methods for several objectives.

    Attributes:
        table: one row per objective, method and reported column: `objective`, `dataset`, `method`, `column`; `mean`
            over the cells that the runs selected, with its 95% interval `low` and `high`, and `deviation` (standard
            deviation over runs); `optimum` (highest value of any member in the column) and `optimum_fraction`
            (fraction of runs that reached the objective's optimum).
        selected: (runs,) best cell of each run, by objective and method.
        n_members: number of cells that could be queried.
        absent: names of columns that are omitted because the dataset lacks their results.
    """

    table: pd.DataFrame
    selected: dict[str, dict[str, NDArray[np.int64]]]
    n_members: int
    absent: tuple[str, ...]


def repeat_searches(
    results: DatasetResults,
    objectives: Sequence[str],
    *,
    methods: Sequence[str] | None = None,
    n_queries: int = PAPER_QUERIES,
    n_runs: int = PAPER_RUNS,
    seed: int = 0,
    on_progress: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> RepeatedSearches:
    """Search a dataset repeatedly for each of several objectives.

    The reported columns are the objectives, and those accuracies of table 1 that the dataset contains.

    Args:
        results: results on the dataset to search.
        objectives: accuracies to maximise: scores, keys, or keys at a strength (see `terms.find_evaluations`).
        methods: names in `METHODS`; by default all.
        n_queries: budget of a run.
        n_runs: number of runs per method.
        seed: seed of all random numbers.
        on_progress: called after each run with the number of finished runs and the number of all runs.

    Raises:
        ConfigError: results are missing or cover too few architectures, or an argument is invalid.
    """
    space = results.space
    if space is None:
        raise ConfigError(
            f"Searching failed for {results.reader.path}: its architectures belong to the space "
            f"{results.reader.space_name or 'unknown'}, which has no cells. Choose a dataset of cells."
        )
    objectives = list(dict.fromkeys(objective.strip() for objective in objectives))
    objective_values = [_values_by_cell(space, results, objective) for objective in objectives]
    available = [name for name in TABLE1_COLUMNS if find_evaluations(results, name)]
    columns = {name: _values_by_cell(space, results, name) for name in dict.fromkeys([*available, *objectives])}
    absent = tuple(name for name in TABLE1_COLUMNS if name not in available)
    names = list(dict.fromkeys(METHODS if methods is None else methods))
    for name in names:
        find_method(name)  # raises an error for an unknown name
    cells = SearchCells(space, ~np.isnan(np.sum([*objective_values, *columns.values()], axis=0)))
    if len(cells) < n_queries:
        raise ConfigError(
            f"Searching failed for {results.name}: {n_queries:,} queries need at least that many architectures with "
            f"all results, but there are {len(cells):,}. Lower --queries, or evaluate more architectures."
        )
    benchmarks = [Benchmark(cells, values[cells.isomorphs]) for values in objective_values]
    options: dict[str, Any] = {"n_queries": n_queries, "n_runs": n_runs, "seed": seed, "on_progress": on_progress}
    queried = run_methods(benchmarks, names, **options)
    values_by_column = {name: values[cells.isomorphs] for name, values in columns.items()}
    selected = {
        objective: {name: benchmark.best(runs) for name, runs in zip(names, runs_by_method, strict=True)}
        for objective, benchmark, runs_by_method in zip(objectives, benchmarks, queried, strict=True)
    }
    rows = [
        {"objective": objective, "dataset": results.name, "method": method, **numbers}
        for (objective, cells_by_method), benchmark in zip(selected.items(), benchmarks, strict=True)
        for method, best_cells in cells_by_method.items()
        for numbers in _summarise(benchmark, best_cells, values_by_column)
    ]
    return RepeatedSearches(pd.DataFrame(rows), selected, len(cells), absent)


def _summarise(
    benchmark: Benchmark, selected: NDArray[np.int64], values_by_column: dict[str, _Floats]
) -> Iterator[dict[str, Any]]:
    """Yield the fields of each reported column of one method and objective (see `RepeatedSearches.table`)."""
    members = benchmark.cells.members
    is_optimal = benchmark.values[selected] == benchmark.values[members].max()
    for column, values in values_by_column.items():
        mean, low, high = map(float, mean_intervals(values[selected]))
        deviation = float(values[selected].std(ddof=1)) if len(selected) > 1 else np.nan
        interval = {"mean": mean, "low": low, "high": high, "deviation": deviation}
        optimum = {"optimum": float(values[members].max()), "optimum_fraction": float(is_optimal.mean())}
        yield {"column": column, **interval, **optimum}


def _values_by_cell(space: CellSpace, results: DatasetResults, name: str) -> _Floats:
    """Return the accuracy with this name by cell index, (n,); NaN for cells that were not evaluated."""
    accuracies = mean_accuracy(results, name)
    values = np.full(len(space.specs()), np.nan)
    values[accuracies.index.to_numpy(np.int64)] = accuracies.to_numpy(np.float64)
    return values
