"""Repeated searches on a dataset, summarised by the optimum and, for each method, the mean result and the regret."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.terms import read_join_tables
from robust201.core.errors import ConfigError
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import PUBLISHED_DATASETS
from robust201.reader.value_checks import CLEAN
from robust201.search.benchmark import Benchmark, WeightedSum
from robust201.search.cells import SearchCells
from robust201.search.methods import METHODS, find_method
from robust201.search.objectives import TableValues, find_cells_meeting_constraints, parse_objectives
from robust201.search.runs import NO_ARCHITECTURE, Runs, run_methods
from robust201.statistics.intervals import mean_intervals
from robust201.statistics.pareto import front_indices, hypervolume

_Floats = NDArray[np.float64]

PAPER_QUERIES, PAPER_RUNS = 300, 100
"""Budget and number of runs in table 1 of Jung, Lukasik and Keuper (ICLR 2023)."""

TABLE1_OBJECTIVES = ("clean", "fgsm:1")

TABLE1_COLUMNS = {
    "clean": "clean",
    "fgsm:1": "FGSM 1",
    "pgd:1": "PGD 1",
    "aa_apgd-ce:1": "APGD 1",
    "aa_square:1": "Square 1",
    "corruption": "corruptions",
}
"""Column headings of table 1 by objective. The columns are accuracies of the selected cells on clean images, under
attacks at epsilon 1/255, and on average over the corruptions."""

VOLUME = "hypervolume"
"""Name of the reported column if there are several objectives. It contains the fraction of the attainable volume that
the queried cells dominate; the attainable volume is the volume that all members dominate
together."""


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
        selected: (runs,) best cell of each run; empty for several objectives.
        reported: mean over runs of each reported column.
        regret: (queries,) mean over runs of the optimum minus the best value so far; NaN until all runs have a value.
            For several objectives, the fraction of the attainable volume that is not dominated.
        low: (queries,) lower bound of the 95% interval of `regret`.
        high: (queries,) upper bound of the 95% interval of `regret`.
        optimum_fraction: fraction of runs that reached the optimum; for several objectives, fraction of runs that
            reached the full attainable volume.
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
    """Repeated searches by several methods for one objective, or for the Pareto front of several.

    Attributes:
        objective: the objective as the user wrote it.
        dataset: dataset that was searched.
        reported_on: dataset from which the reported columns are taken.
        columns: names of the reported columns.
        optimum: highest value of any member in each column.
        results: results of the methods.
        n_members: number of cells that could be queried.
        n_queries: budget of a run.
        n_runs: number of runs of each method.
        has_several_objectives: whether there are several objectives, so that the result of a run is a Pareto front.
        absent: names of columns that are omitted because the dataset lacks their results.
        in_percent: whether each column is shown in percent, as accuracies and the dominated volume fraction are.
    """

    objective: str
    dataset: str
    reported_on: str
    columns: tuple[str, ...]
    optimum: dict[str, float]
    results: tuple[MethodResult, ...]
    n_members: int
    n_queries: int
    n_runs: int
    has_several_objectives: bool
    absent: tuple[str, ...]
    in_percent: dict[str, bool]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per method and column, with mean, interval, deviation and optimum."""
        rows = [
            {"objective": self.objective, "searched_on": self.dataset, "reported_on": self.reported_on}
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
        fields = ("objective", "dataset", "reported_on", "n_members", "n_queries", "n_runs", "optimum")
        return {name: getattr(self, name) for name in fields} | {
            "absent": list(self.absent),
            "methods": methods,
        }


def repeat_searches(
    reader: RobustnessDataset,
    dataset: str,
    objectives: Sequence[str],
    *,
    methods: Sequence[str] | None = None,
    n_queries: int = PAPER_QUERIES,
    n_runs: int = PAPER_RUNS,
    seed: int = 0,
    report: Sequence[str] | None = None,
    report_on: str | None = None,
    constraints: Sequence[str] = (),
    join: Sequence[Path | pd.DataFrame] = (),
    distinct: bool = False,
    processes: int | None = None,
    on_progress: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> list[RepeatedSearch]:
    """Search a dataset repeatedly for each of several objectives.

    Args:
        reader: reader of the results folder.
        dataset: name of the dataset to search.
        objectives: texts of objectives (see `search.objectives`); a text with commas asks for a Pareto front.
        methods: names in `METHODS`; by default all that are applicable.
        n_queries: budget of a run.
        n_runs: number of runs per method.
        seed: seed of all random numbers.
        report: objectives whose values are reported for the selected cells; by default those of table 1 that the
            dataset has. For a front, the hypervolume is reported instead.
        report_on: dataset from which these values are taken; by default `dataset`.
        constraints: constraints on the cells that may be queried (see
            `search.objectives.find_cells_meeting_constraints`).
        join: tables, or their files, whose columns become terms and costs (see `RobustnessDataset.join`).
        distinct: whether isomorphic cells are merged into one member: 6,466 members of NAS-Bench-201 instead of 15,625.
        processes: number of processes; by default one per CPU.
        on_progress: called after each batch of runs with the number of finished runs and the number of all runs.

    Raises:
        ConfigError: results are missing or cover too few architectures, or an argument is invalid.
    """
    values = TableValues(reader, dataset)
    report_values = values if report_on is None else TableValues(reader, report_on)
    tables = read_join_tables(reader, join, [values.terms.results, report_values.terms.results])
    for table_values in (values, report_values):
        table_values.join(tables)
    parsed_objectives = [(text, parse_objectives(text)) for text in objectives]
    sums_by_search = [
        [values.objective(name, terms) for name, terms in objective_terms] for _, objective_terms in parsed_objectives
    ]
    has_single_objective = any(len(objective_terms) == 1 for _, objective_terms in parsed_objectives)
    if report is not None and not has_single_objective:
        raise ConfigError(
            f"Searching failed for {objectives[0]!r}: --report needs a single objective, because the hypervolume is "
            "reported if there are several. Omit --report."
        )
    default_names = list(TABLE1_COLUMNS) if has_single_objective else []
    report_names = default_names if report is None else list(dict.fromkeys(report))
    objective_names = [objective_terms[0][0] for _, objective_terms in parsed_objectives if len(objective_terms) == 1]
    columns, absent = _read_columns(report_values, report_names, objective_names, is_explicit=report is not None)
    all_sums = [weighted_sum for sums in sums_by_search for weighted_sum in sums]
    method_names = _choose_methods(methods, all_sums, len(sums_by_search))
    objective_values = [weighted_sum.columns.sum(axis=1) for weighted_sum in all_sums]
    reported_values = [column.values for column in columns.values()]
    has_all_values = ~np.isnan(np.sum([*objective_values, *reported_values], axis=0))
    is_searchable = has_all_values & find_cells_meeting_constraints(values, constraints)
    cells = SearchCells(values.space, is_searchable, distinct=distinct)
    _check_size(cells, n_queries, dataset)
    benchmarks = [Benchmark(cells, sums) for sums in sums_by_search]
    runs_by_benchmark = run_methods(
        benchmarks,
        method_names,
        n_queries=n_queries,
        n_runs=n_runs,
        seed=seed,
        processes=processes,
        on_progress=on_progress,
    )
    return [
        _summarise(text.strip(), dataset, report_values.dataset, benchmark, runs, columns, absent)
        for (text, _), benchmark, runs in zip(parsed_objectives, benchmarks, runs_by_benchmark, strict=True)
    ]


def _read_columns(
    values: TableValues, report_names: Sequence[str], objectives: Sequence[str], *, is_explicit: bool
) -> tuple[dict[str, WeightedSum], tuple[str, ...]]:
    """Return the reported columns by name, and the names of columns that the dataset lacks.

    A missing default column is omitted; a missing column that the user chose (`is_explicit`) is an error.
    """
    columns: dict[str, WeightedSum] = {}
    absent = []
    for text in dict.fromkeys([*report_names, *objectives]):
        ((name, terms),) = parse_objectives(text)
        try:
            columns[name] = values.objective(name, terms)
        except ConfigError:
            if is_explicit or text in objectives:
                raise
            absent.append(name)
    return columns, tuple(absent)


def _choose_methods(methods: Sequence[str] | None, objectives: Sequence[Any], n_searches: int) -> list[str]:
    # Partial queries need searches with a single objective each, which consists of several evaluations.
    allows_partial_queries = len(objectives) == n_searches and all(
        len(objective.weights) > 1 for objective in objectives
    )
    if methods is None:
        return [row.name for row in METHODS.values() if allows_partial_queries or not row.needs_partial_queries]
    method_rows = [find_method(name) for name in dict.fromkeys(methods)]
    inapplicable_methods = [row.name for row in method_rows if row.needs_partial_queries and not allows_partial_queries]
    if inapplicable_methods:
        raise ConfigError(
            f"Searching failed for method {inapplicable_methods[0]}: it needs one objective that is a mean over "
            "several strengths, such as pgd. Choose such an objective, or another method."
        )
    return [row.name for row in method_rows]


def _check_size(cells: SearchCells, n_queries: int, dataset: str) -> None:
    if len(cells) < n_queries:
        raise ConfigError(
            f"Searching failed for {dataset}: {n_queries:,} queries need at least that many architectures with all "
            f"results, but there are {len(cells):,}. Lower --queries, relax constraints, or evaluate more "
            "architectures."
        )


def _summarise(
    objective: str,
    dataset: str,
    reported_on: str,
    benchmark: Benchmark,
    runs_by_method: Sequence[Runs],
    columns: dict[str, WeightedSum],
    absent: tuple[str, ...],
) -> RepeatedSearch:
    members = benchmark.cells.members
    has_several_objectives = benchmark.n_objectives > 1
    if has_several_objectives:
        optimum, in_percent = {VOLUME: 1.0}, {VOLUME: True}
        results = [_summarise_front(runs) for runs in runs_by_method]
    else:
        values_by_column = {name: column.values[benchmark.cells.isomorphs] for name, column in columns.items()}
        optimum = {name: float(values[members].max()) for name, values in values_by_column.items()}
        in_percent = {name: column.is_accuracy for name, column in columns.items()}
        results = [_summarise_single(runs, values_by_column) for runs in runs_by_method]
    n_runs = len(runs_by_method[0].queried) if runs_by_method else 0
    n_queries = runs_by_method[0].n_queries if runs_by_method else 0
    return RepeatedSearch(
        objective,
        dataset,
        reported_on,
        tuple(optimum),
        optimum,
        tuple(results),
        len(members),
        n_queries,
        n_runs,
        has_several_objectives,
        absent,
        in_percent,
    )


def _summarise_single(runs: Runs, values_by_column: dict[str, _Floats]) -> MethodResult:
    values = runs.benchmark.values[:, 0]
    optimum = float(values[runs.benchmark.cells.members].max())
    best_by_query = runs.best_by_query()
    regret = np.where(best_by_query == NO_ARCHITECTURE, np.nan, optimum - values[best_by_query])
    selected = best_by_query[:, -1]
    reported = {name: _mean_over_runs(column_values[selected]) for name, column_values in values_by_column.items()}
    return MethodResult(
        runs.method, selected, reported, *mean_intervals(regret), float(np.mean(values[selected] == optimum))
    )


def _summarise_front(runs: Runs) -> MethodResult:
    dominated_fractions = dominated_volume_fractions(runs)
    reported = {VOLUME: _mean_over_runs(dominated_fractions[:, -1])}
    optimum_fraction = float(np.mean(np.isclose(dominated_fractions[:, -1], 1.0, rtol=0, atol=1e-12)))
    no_selection = np.empty(0, dtype=np.int64)
    return MethodResult(runs.method, no_selection, reported, *mean_intervals(1 - dominated_fractions), optimum_fraction)


def dominated_volume_fractions(runs: Runs) -> _Floats:
    """Return the fraction of the attainable volume that the queried cells dominate, after each query: (runs, queries).

    The reference point of the volumes has the worst value of any member in each objective.
    """
    members = runs.benchmark.values[runs.benchmark.cells.members]
    low, high = members.min(axis=0), members.max(axis=0)
    scaled_values = (runs.benchmark.values - low) / np.where(high > low, high - low, 1.0)
    attainable_volume = hypervolume((members - low) / np.where(high > low, high - low, 1.0))
    volumes = np.zeros((len(runs.queried), runs.n_queries))
    for run, queried in enumerate(runs.queried):
        front = np.empty((0, runs.benchmark.n_objectives))
        volume = 0.0
        for index, cell in enumerate(queried[: runs.n_queries]):
            if cell != NO_ARCHITECTURE and not (front >= scaled_values[cell]).all(axis=1).any():
                overlap = hypervolume(np.minimum(front, scaled_values[cell]))
                volume += float(np.prod(scaled_values[cell])) - overlap
                front = np.concatenate([front, scaled_values[cell][None]])
                front = front[front_indices(front)]
            volumes[run, index] = volume
        volumes[run, len(queried) :] = volume
    return volumes / (attainable_volume or 1.0)


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


def compare_with_paper(reader: RobustnessDataset, searches: Sequence[RepeatedSearch]) -> PaperComparison | None:
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
        if search.reported_on == PUBLISHED_DATASETS[0] and search.n_members in full_member_counts
    ]
    optima = [search.optimum[CLEAN] for search in comparable_searches if CLEAN in search.columns]
    if not optima:
        return None
    return PaperComparison(PAPER_OPTIMUM, optima[0], abs(optima[0] - PAPER_OPTIMUM) <= TOLERANCE)
