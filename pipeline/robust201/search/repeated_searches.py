"""Repeated searches on a dataset and their summary: mean and interval by method, optimum, and regret by query."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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
from robust201.search.objectives import ObjectiveTerm, TableValues, meets, parse_objectives
from robust201.search.runs import NOTHING, Runs, run_methods
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
"""Columns of table 1 with their headings: values of the selected cells, at epsilon 1/255 and as corruption mean."""

VOLUME = "hypervolume"
"""Column for the front of several objectives: the dominated fraction of the attainable volume."""


class Estimated(NamedTuple):
    """A mean over runs with its 95% interval; `deviation` is that of single runs."""

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
        reported: summary of each column of the table.
        regret: (queries,) mean over runs of the distance of the best value so far from the optimum, NaN until all runs
            have a value; for several objectives, the fraction of the attainable volume that is not dominated.
        low: (queries,) lower end of its 95% interval.
        high: (queries,) upper end of its 95% interval.
        hits: fraction of runs that found the optimum.
    """

    method: str
    selected: NDArray[np.int64]
    reported: dict[str, Estimated]
    regret: _Floats
    low: _Floats
    high: _Floats
    hits: float


@dataclass(frozen=True, eq=False)
class RepeatedSearch:
    """Searches for one objective, or for a front of several.

    Attributes:
        objective: the objective as the user wrote it.
        dataset: dataset that was searched.
        reported_on: dataset of the reported columns.
        columns: headings of the table.
        optimum: highest value of any member in each column.
        results: results of the methods.
        n_members: number of cells that could be queried.
        n_queries: budget of a run.
        n_runs: number of runs of each method.
        is_front: whether there are several objectives.
        absent: columns that are left out because the dataset lacks their results.
        in_percent: whether each column consists of accuracies, or is a fraction of a volume.
        n_predicted: number of cells that could be queried, one per isomorphism class, with predicted accuracies.
        n_estimated: number of cells, one per class, with accuracies that are estimates from samples of images.
        estimated: columns and objectives that are based on such estimates.
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
    is_front: bool
    absent: tuple[str, ...]
    in_percent: dict[str, bool]
    n_predicted: int = 0
    n_estimated: int = 0
    estimated: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per method and column, with mean, interval, deviation and optimum."""
        rows = [
            {"objective": self.objective, "searched_on": self.dataset, "reported_on": self.reported_on}
            | {"method": result.method, "column": column, **estimated._asdict(), "optimum": self.optimum[column]}
            | ({"from_estimates": self.is_estimated(column)} if self.n_estimated else {})
            for result in self.results
            for column, estimated in result.reported.items()
        ]
        return pd.DataFrame(rows)

    def is_estimated(self, column: str) -> bool:
        """Return whether a column is based on estimates, as the hypervolume is if any objective of the front is."""
        return column in self.estimated or (self.is_front and bool(self.estimated))

    def to_payload(self) -> dict[str, Any]:
        methods = [
            {
                "method": result.method,
                "reported": {name: _without_nan(estimated._asdict()) for name, estimated in result.reported.items()},
                "share_of_runs_at_optimum": result.hits,
                "found": result.selected.tolist(),
                "regret_by_query": {
                    "mean": _nan_to_none(result.regret),
                    "low": _nan_to_none(result.low),
                    "high": _nan_to_none(result.high),
                },
            }
            for result in self.results
        ]
        fields = ("objective", "dataset", "reported_on", "n_members", "n_queries", "n_runs", "optimum")
        return {name: getattr(self, name) for name in fields} | {
            "absent": list(self.absent),
            "methods": methods,
            **({"n_predicted": self.n_predicted} if self.n_predicted else {}),
            **({"n_estimated": self.n_estimated, "estimated": list(self.estimated)} if self.n_estimated else {}),
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
    predictions: Path | None = None,
    estimates: bool = False,
    processes: int | None = None,
    on_progress: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> list[RepeatedSearch]:
    """Search a dataset for each of several objectives.

    Args:
        reader: reader of the folder.
        dataset: name of the dataset to search.
        objectives: texts (see `search.objectives`); one with a comma is a front.
        methods: names of `METHODS`; by default the applicable ones.
        n_queries: budget of a run.
        n_runs: number of runs of each method.
        seed: seed of all random numbers.
        report: objectives to report of the selected cells; by default those of table 1 that the dataset has. For a
            front, its hypervolume is reported instead.
        report_on: dataset of the reported objectives; by default `dataset`.
        constraints: constraints on the cells that may be queried (see `search.objectives.meets`).
        join: tables, or their files, whose columns become terms and costs (see `RobustnessDataset.join`).
        distinct: whether isomorphic cells are a single member: 6,466 of NAS-Bench-201 instead of 15,625.
        predictions: a file of `search.cell_predictions`, for accuracies that the dataset lacks.
        estimates: whether estimates from samples of the images replace missing counts.
        processes: number of processes; by default one per CPU.
        on_progress: function of (finished runs, all runs), called after each batch.

    Raises:
        ConfigError: results are missing or cover too few architectures, or an argument is invalid.
    """
    values = TableValues(reader, dataset, predictions, estimates=estimates)
    target = values if report_on is None else TableValues(reader, report_on, predictions, estimates=estimates)
    tables = read_join_tables(reader, join, [values.terms.results, target.terms.results])
    for table_values in (values, target):
        table_values.join(tables)
    parsed = [(text, parse_objectives(text)) for text in objectives]
    searched = [[values.objective(name, terms) for name, terms in parts] for _, parts in parsed]
    single = any(len(parts) == 1 for _, parts in parsed)
    if report is not None and not single:
        raise ConfigError(
            f"Searching failed for {objectives[0]!r}: --report needs a single objective, because the hypervolume is "
            "reported for several. Leave --report out."
        )
    default = list(TABLE1_COLUMNS) if single else []
    report_names = default if report is None else list(dict.fromkeys(report))
    objective_names = [parts[0][0] for _, parts in parsed if len(parts) == 1]
    columns, absent = _read_columns(target, report_names, objective_names, explicit=report is not None)
    method_names = _choose_methods(methods, [objective for parts in searched for objective in parts], len(searched))
    objective_values = [objective.columns.sum(axis=1) for parts in searched for objective in parts]
    if report is None and predictions is not None:
        unpredicted = _find_unpredicted(columns, objective_names, objective_values, values.is_predicted)
        columns = {name: column for name, column in columns.items() if name not in unpredicted}
        absent += unpredicted
    reported = [column.values for column in columns.values()]
    present = ~np.isnan(np.sum([*objective_values, *reported], axis=0)) & meets(values, constraints)
    cells = SearchCells(values.space, present, distinct=distinct)
    _check_size(cells, n_queries, dataset)
    benchmarks = [Benchmark(cells, parts) for parts in searched]
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
        replace(
            _summarise(text.strip(), dataset, target.dataset, benchmark, runs, columns, absent),
            n_predicted=int((values.is_predicted & present).sum()),
            n_estimated=max(values.n_estimated, target.n_estimated),
            estimated=_find_estimated(values, target, parts, columns if len(parts) == 1 else ()),
        )
        for (text, parts), benchmark, runs in zip(parsed, benchmarks, runs_by_benchmark, strict=True)
    ]


def _find_estimated(
    values: TableValues,
    target: TableValues,
    objectives: Sequence[tuple[str, Sequence[ObjectiveTerm]]],
    columns: Iterable[str],
) -> tuple[str, ...]:
    """Return the names of objectives and reported columns that are based on estimates."""
    names = [name for name, terms in objectives if values.uses_estimates(terms)]
    names += [name for name in columns if target.uses_estimates(parse_objectives(name)[0][1])]
    return tuple(dict.fromkeys(names))


def _read_columns(
    values: TableValues, report_names: Sequence[str], objectives: Sequence[str], *, explicit: bool
) -> tuple[dict[str, WeightedSum], tuple[str, ...]]:
    columns: dict[str, WeightedSum] = {}
    absent = []
    for text in dict.fromkeys([*report_names, *objectives]):
        ((name, terms),) = parse_objectives(text)
        try:
            columns[name] = values.objective(name, terms)
        except ConfigError:
            if explicit or text in objectives:
                raise
            absent.append(name)
    return columns, tuple(absent)


def _find_unpredicted(
    columns: dict[str, WeightedSum],
    objectives: Sequence[str],
    objective_values: Sequence[_Floats],
    is_predicted: NDArray[np.bool_],
) -> tuple[str, ...]:
    """Return default columns that are missing for some predicted cells with all objectives, and would exclude these."""
    searched = is_predicted & ~np.isnan(np.sum(objective_values, axis=0))
    return tuple(
        name for name, column in columns.items() if name not in objectives and np.isnan(column.values[searched]).any()
    )


def _choose_methods(methods: Sequence[str] | None, objectives: Sequence[Any], n_searches: int) -> list[str]:
    has_parts = len(objectives) == n_searches and all(len(objective.weights) > 1 for objective in objectives)
    if methods is None:
        return [row.name for row in METHODS.values() if has_parts or not row.of_parts]
    rows = [find_method(name) for name in dict.fromkeys(methods)]
    inapplicable = [row.name for row in rows if row.of_parts and not has_parts]
    if inapplicable:
        raise ConfigError(
            f"Searching failed for method {inapplicable[0]}: it needs one objective that is a mean over several "
            "strengths, such as pgd. Choose such an objective, or another method."
        )
    return [row.name for row in rows]


def _check_size(cells: SearchCells, n_queries: int, dataset: str) -> None:
    if len(cells) < n_queries:
        raise ConfigError(
            f"Searching failed for {dataset}: {n_queries:,} queries need as many architectures with all results, and "
            f"there are {len(cells):,}. Lower --queries, relax constraints, or evaluate more architectures."
        )


def _summarise(
    text: str,
    dataset: str,
    reported_on: str,
    benchmark: Benchmark,
    runs_by_method: Sequence[Runs],
    columns: dict[str, WeightedSum],
    absent: tuple[str, ...],
) -> RepeatedSearch:
    members = benchmark.cells.members
    is_front = benchmark.n_objectives > 1
    if is_front:
        optimum, in_percent = {VOLUME: 1.0}, {VOLUME: True}
        results = [_summarise_front(runs) for runs in runs_by_method]
    else:
        by_index = {name: column.values[benchmark.cells.isomorphs] for name, column in columns.items()}
        optimum = {name: float(values[members].max()) for name, values in by_index.items()}
        in_percent = {name: column.is_accuracy for name, column in columns.items()}
        results = [_summarise_single(runs, by_index) for runs in runs_by_method]
    n_runs = len(runs_by_method[0].queried) if runs_by_method else 0
    n_queries = runs_by_method[0].n_queries if runs_by_method else 0
    return RepeatedSearch(
        text,
        dataset,
        reported_on,
        tuple(optimum),
        optimum,
        tuple(results),
        len(members),
        n_queries,
        n_runs,
        is_front,
        absent,
        in_percent,
    )


def _summarise_single(runs: Runs, columns: dict[str, _Floats]) -> MethodResult:
    values = runs.benchmark.values[:, 0]
    best = float(values[runs.benchmark.cells.members].max())
    by_query = runs.best_by_query()
    regret = np.where(by_query == NOTHING, np.nan, best - values[by_query])
    selected = by_query[:, -1]
    reported = {name: _estimate(column[selected]) for name, column in columns.items()}
    return MethodResult(
        runs.method, selected, reported, *mean_intervals(regret), float(np.mean(values[selected] == best))
    )


def _summarise_front(runs: Runs) -> MethodResult:
    shares = front_shares(runs)
    reported = {VOLUME: _estimate(shares[:, -1])}
    hits = float(np.mean(np.isclose(shares[:, -1], 1.0, rtol=0, atol=1e-12)))
    nothing = np.empty(0, dtype=np.int64)
    return MethodResult(runs.method, nothing, reported, *mean_intervals(1 - shares), hits)


def front_shares(runs: Runs) -> _Floats:
    """Return the fraction of the attainable volume that queried cells dominate, after each query: (runs, queries).

    Volumes are measured from the worst value of any member in each objective.
    """
    members = runs.benchmark.values[runs.benchmark.cells.members]
    low, high = members.min(axis=0), members.max(axis=0)
    scaled = (runs.benchmark.values - low) / np.where(high > low, high - low, 1.0)
    attainable = hypervolume((members - low) / np.where(high > low, high - low, 1.0))
    volumes = np.zeros((len(runs.queried), runs.n_queries))
    for run, queried in enumerate(runs.queried):
        front = np.empty((0, runs.benchmark.n_objectives))
        volume = 0.0
        for index, cell in enumerate(queried[: runs.n_queries]):
            if cell != NOTHING and not (front >= scaled[cell]).all(axis=1).any():
                covered = hypervolume(np.minimum(front, scaled[cell]))
                volume += float(np.prod(scaled[cell])) - covered
                front = np.concatenate([front, scaled[cell][None]])
                front = front[front_indices(front)]
            volumes[run, index] = volume
        volumes[run, len(queried) :] = volume
    return volumes / (attainable or 1.0)


def _estimate(samples: _Floats) -> Estimated:
    mean, low, high = (float(number) for number in mean_intervals(samples))
    return Estimated(mean, low, high, float(samples.std(ddof=1)) if len(samples) > 1 else float("nan"))


def _without_nan(numbers: dict[str, float]) -> dict[str, float | None]:
    return {name: None if np.isnan(number) else number for name, number in numbers.items()}


def _nan_to_none(numbers: _Floats) -> list[float | None]:
    return [None if np.isnan(number) else float(number) for number in numbers]


PAPER_OPTIMUM = 0.9468
"""Optimal clean accuracy on CIFAR-10, the only number of table 1 whose source was available."""

TOLERANCE = 0.0005 + 1e-9
"""Maximum difference from published accuracies, which have three decimals."""


class PaperComparison(NamedTuple):
    """The optimum of table 1 and of our searches, as fractions, and whether they agree to the published decimals."""

    published: float
    ours: float
    agrees: bool


def compare_with_paper(reader: RobustnessDataset, searches: Sequence[RepeatedSearch]) -> PaperComparison | None:
    """Compare the clean optimum for searches over all cells on the published CIFAR-10 results; None for others."""
    if reader.sweep is not None and "network" in reader.sweep.get("sweep", {}):
        return None
    all_cells = {len(reader.meta["ids"]), len(reader.non_isomorph_ids)}
    on_published = [
        search for search in searches if search.reported_on == PUBLISHED_DATASETS[0] and search.n_members in all_cells
    ]
    optima = [search.optimum[CLEAN] for search in on_published if CLEAN in search.columns]
    if not optima:
        return None
    return PaperComparison(PAPER_OPTIMUM, optima[0], abs(optima[0] - PAPER_OPTIMUM) <= TOLERANCE)
