"""Repeated searches on a dataset, summarised by the optimum and, for each method, the mean result and the regret."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.terms import find_evaluations, mean_accuracy
from robust201.core.errors import ConfigError, did_you_mean
from robust201.dataset.layout import CLEAN, PUBLISHED_DATASETS
from robust201.dataset.reader import Dataset
from robust201.networks.spaces import CellSpace
from robust201.search.cells import SearchCells
from robust201.search.methods import METHODS, find_method
from robust201.search.runs import Benchmark, Runs, run_methods
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


@dataclass(frozen=True, eq=False)
class MethodResult:
    """Result of one method.

    Attributes:
        method: name of the method.
        selected: (runs,) best cell of each run.
        reported: mean over runs of each reported column.
        regret: (queries,) mean over runs of the optimum minus the best value so far.
        low: (queries,) lower bound of the 95% interval of `regret`.
        high: (queries,) upper bound of the 95% interval of `regret`.
        optimum_fraction: fraction of runs that reached the optimum.
    """

    method: str
    selected: NDArray[np.int64]
    reported: dict[str, MeanOverRuns]
    regret: _Floats
    low: _Floats
    high: _Floats
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
                "reported": {name: _replace_nan_in_dict(mean._asdict()) for name, mean in result.reported.items()},
                "share_of_runs_at_optimum": result.optimum_fraction,
                "found": result.selected.tolist(),
                "regret_by_query": {
                    "mean": _replace_nan(result.regret),
                    "low": _replace_nan(result.low),
                    "high": _replace_nan(result.high),
                },
            }
            for result in self.results
        ]
        fields = ("objective", "dataset", "n_members", "n_queries", "n_runs", "optimum")
        return {name: getattr(self, name) for name in fields} | {"absent": list(self.absent), "methods": methods}


def repeat_searches(
    reader: Dataset,
    dataset: str,
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
        reader: reader of the results folder.
        dataset: name of the dataset to search.
        objectives: accuracies to maximise: scores, keys, or keys at a strength (see `terms.find_evaluations`).
        methods: names in `METHODS`; by default all.
        n_queries: budget of a run.
        n_runs: number of runs per method.
        seed: seed of all random numbers.
        on_progress: called after each batch of runs with the number of finished runs and the number of all runs.

    Raises:
        ConfigError: results are missing or cover too few architectures, or an argument is invalid.
    """
    space = cell_space_of(reader)
    results = _read_searchable_results(reader, dataset)
    objectives = [objective.strip() for objective in objectives]
    objective_values = [_values_by_cell(space, results, objective) for objective in objectives]
    available = [name for name in TABLE1_COLUMNS if find_evaluations(results, name)]
    columns = {name: _values_by_cell(space, results, name) for name in dict.fromkeys([*available, *objectives])}
    absent = tuple(name for name in TABLE1_COLUMNS if name not in available)
    method_names = [find_method(name).name for name in dict.fromkeys(METHODS if methods is None else methods)]
    has_all_values = ~np.isnan(np.sum([*objective_values, *columns.values()], axis=0))
    cells = SearchCells(space, has_all_values)
    if len(cells) < n_queries:
        raise ConfigError(
            f"Searching failed for {dataset}: {n_queries:,} queries need at least that many architectures with all "
            f"results, but there are {len(cells):,}. Lower --queries, or evaluate more architectures."
        )
    runs_by_benchmark = run_methods(
        [Benchmark(cells, values[cells.isomorphs]) for values in objective_values],
        method_names,
        n_queries=n_queries,
        n_runs=n_runs,
        seed=seed,
        on_progress=on_progress,
    )
    values_by_column = {name: values[cells.isomorphs] for name, values in columns.items()}
    optimum = {name: float(values[cells.members].max()) for name, values in values_by_column.items()}
    return [
        RepeatedSearch(
            objective,
            dataset,
            optimum,
            tuple(_summarise(method_runs, values_by_column) for method_runs in runs),
            len(cells),
            n_queries,
            n_runs,
            absent,
        )
        for objective, runs in zip(objectives, runs_by_benchmark, strict=True)
    ]


def datasets_with_accuracies(reader: Dataset) -> list[str]:
    """Return the datasets with accuracies in a folder; `reader.data` may list more if the folder has no sweep.json."""
    return [name for name in reader.data if any(reader.has(name, key) for key in reader.keys_all)]


def cell_space_of(reader: Dataset) -> CellSpace:
    """Return the cell space of a folder's architectures; raise ConfigError if they are not cells."""
    if reader.space is None:
        raise ConfigError(
            f"Searching failed for {reader.path}: its architectures belong to the space "
            f"{reader.space_name or 'unknown'}, which has no cells. Choose a dataset of cells."
        )
    return reader.space


def _read_searchable_results(reader: Dataset, dataset: str) -> DatasetResults:
    available_datasets = datasets_with_accuracies(reader)
    if dataset not in available_datasets:
        raise ConfigError(
            f"Searching failed for {reader.path}: it has no results on {dataset!r}."
            f"{did_you_mean(dataset, available_datasets)}"
        )
    return DatasetResults(dataset, reader, reader.accuracies(dataset))


def _values_by_cell(space: CellSpace, results: DatasetResults, name: str) -> _Floats:
    """Return an accuracy (n,) by cell index; NaN for cells that were not evaluated."""
    accuracies = mean_accuracy(results, name)
    values = np.full(len(space.specs()), np.nan)
    values[accuracies.index.to_numpy(np.int64)] = accuracies.to_numpy(np.float64)
    return values


def _summarise(runs: Runs, values_by_column: dict[str, _Floats]) -> MethodResult:
    values = runs.benchmark.values
    optimum = float(values[runs.benchmark.cells.members].max())
    best_by_query = runs.best_by_query()
    selected = best_by_query[:, -1]
    reported = {name: _mean_over_runs(column_values[selected]) for name, column_values in values_by_column.items()}
    regret = mean_intervals(optimum - values[best_by_query])
    return MethodResult(runs.method, selected, reported, *regret, float(np.mean(values[selected] == optimum)))


def _mean_over_runs(samples: _Floats) -> MeanOverRuns:
    mean, low, high = (float(end) for end in mean_intervals(samples))
    return MeanOverRuns(mean, low, high, float(samples.std(ddof=1)) if len(samples) > 1 else float("nan"))


def _replace_nan_in_dict(floats: dict[str, float]) -> dict[str, float | None]:
    return {name: None if np.isnan(number) else number for name, number in floats.items()}


def _replace_nan(floats: _Floats) -> list[float | None]:
    return [None if np.isnan(number) else float(number) for number in floats]


PAPER_OPTIMUM = 0.9468
"""Optimal clean accuracy on CIFAR-10 in the paper's table 1, the only number of the table that is compared."""

TOLERANCE = 0.0005 + 1e-9
"""Maximum difference from published accuracies, which have three decimals."""


class PaperComparison(NamedTuple):
    """Optimal clean accuracy in table 1 and in our searches, as fractions, and whether they agree after rounding."""

    published: float
    ours: float
    agrees: bool


def compare_with_paper(reader: Dataset, searches: Sequence[RepeatedSearch]) -> PaperComparison | None:
    """Compare the optimal clean accuracy with the paper's.

    Returns:
        The comparison; None if no search covered all cells of the published dataset on CIFAR-10.
    """
    if reader.sweep is not None and "network" in reader.sweep.get("sweep", {}):
        return None
    full_member_counts = {len(reader.meta["ids"]), len(reader.non_isomorph_ids)}
    comparable_searches = [
        search
        for search in searches
        if search.dataset == PUBLISHED_DATASETS[0] and search.n_members in full_member_counts
    ]
    optima = [search.optimum[CLEAN] for search in comparable_searches if CLEAN in search.optimum]
    if not optima:
        return None
    return PaperComparison(PAPER_OPTIMUM, optima[0], abs(optima[0] - PAPER_OPTIMUM) <= TOLERANCE)
