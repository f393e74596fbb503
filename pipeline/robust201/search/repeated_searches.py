"""Repeated searches on a dataset, summarised by the optimum and the mean result of each method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class MeanOverRuns(NamedTuple):
    """A mean over runs with its 95% interval, and the standard deviation of single runs."""

    mean: float
    low: float
    high: float
    deviation: float

    def to_payload(self) -> dict[str, float | None]:
        return {name: None if np.isnan(value) else value for name, value in self._asdict().items()}


@dataclass(frozen=True, eq=False)
class MethodResult:
    """Result of one method.

    Attributes:
        method: name of the method.
        selected: (runs,) best cell of each run.
        reported: mean over runs of each reported column.
        optimum_fraction: fraction of runs that reached the optimum.
    """

    method: str
    selected: NDArray[np.int64]
    reported: dict[str, MeanOverRuns]
    optimum_fraction: float


@dataclass(frozen=True, eq=False)
class RepeatedSearch:
    """Repeated searches by several methods for one objective.

    Attributes:
        objective: the accuracy to maximise.
        dataset: dataset that was searched.
        optimum: highest value of any member in each reported column.
        results: results of the methods.
        n_members: number of cells that could be queried.
        n_queries: budget of a run.
        n_runs: number of runs of each method.
        absent: names of columns that are omitted because the dataset lacks their results.
    """

    objective: str
    dataset: str
    optimum: dict[str, float]
    results: tuple[MethodResult, ...]
    n_members: int
    n_queries: int
    n_runs: int
    absent: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per method and column, with mean, interval, deviation and optimum."""
        rows = [
            {"objective": self.objective, "dataset": self.dataset}
            | {"method": result.method, "column": column, **run_mean._asdict(), "optimum": self.optimum[column]}
            for result in self.results
            for column, run_mean in result.reported.items()
        ]
        return pd.DataFrame(rows)

    def to_payload(self) -> dict[str, Any]:
        methods = [
            {
                "method": result.method,
                "reported": {name: mean.to_payload() for name, mean in result.reported.items()},
                "share_of_runs_at_optimum": result.optimum_fraction,
                "found": result.selected.tolist(),
            }
            for result in self.results
        ]
        fields = ("objective", "dataset", "n_members", "n_queries", "n_runs", "optimum")
        return {name: getattr(self, name) for name in fields} | {"absent": list(self.absent), "methods": methods}


def repeat_searches(
    results: DatasetResults,
    objectives: Sequence[str],
    *,
    methods: Sequence[str] | None = None,
    n_queries: int = PAPER_QUERIES,
    n_runs: int = PAPER_RUNS,
    seed: int = 0,
    on_progress: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> list[RepeatedSearch]:
    """Search a dataset repeatedly for each of several objectives.

    The objectives and the accuracies of table 1 that the dataset has are reported for the selected cells.

    Args:
        results: results on the dataset to search.
        objectives: accuracies to maximise: scores, keys, or keys at a strength (see `terms.find_evaluations`).
        methods: names in `METHODS`; by default all.
        n_queries: budget of a run.
        n_runs: number of runs per method.
        seed: seed of all random numbers.
        on_progress: called after each batch of runs with the number of finished runs and the number of all runs.

    Raises:
        ConfigError: results are missing or cover too few architectures, or an argument is invalid.
    """
    space = results.space
    if space is None:
        raise ConfigError(
            f"Searching failed for {results.reader.path}: its architectures belong to the space "
            f"{results.reader.space_name or 'unknown'}, which has no cells. Choose a dataset of cells."
        )
    objectives = [objective.strip() for objective in objectives]
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
    optimum = {name: float(values[cells.members].max()) for name, values in values_by_column.items()}
    searches = []
    for objective, benchmark, runs_by_method in zip(objectives, benchmarks, queried, strict=True):
        summaries = tuple(
            _summarise(name, benchmark, benchmark.best(runs), values_by_column)
            for name, runs in zip(names, runs_by_method, strict=True)
        )
        searches.append(
            RepeatedSearch(objective, results.name, optimum, summaries, len(cells), n_queries, n_runs, absent)
        )
    return searches


def _values_by_cell(space: CellSpace, results: DatasetResults, name: str) -> _Floats:
    """Return an accuracy (n,) by cell index; NaN for cells that were not evaluated."""
    accuracies = mean_accuracy(results, name)
    values = np.full(len(space.specs()), np.nan)
    values[accuracies.index.to_numpy(np.int64)] = accuracies.to_numpy(np.float64)
    return values


def _summarise(
    method: str, benchmark: Benchmark, selected: NDArray[np.int64], values_by_column: dict[str, _Floats]
) -> MethodResult:
    reported = {name: _mean_over_runs(values[selected]) for name, values in values_by_column.items()}
    is_optimal = benchmark.values[selected] == benchmark.values[benchmark.cells.members].max()
    return MethodResult(method, selected, reported, float(np.mean(is_optimal)))


def _mean_over_runs(samples: _Floats) -> MeanOverRuns:
    mean, low, high = (float(end) for end in mean_intervals(samples))
    return MeanOverRuns(mean, low, high, float(samples.std(ddof=1)) if len(samples) > 1 else float("nan"))
