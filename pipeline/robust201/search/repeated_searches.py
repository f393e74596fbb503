"""Searches on a dataset and what they found: mean and interval by method, the optimum, and regret by query."""

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
"""Budget and runs of table 1 of Jung, Lukasik and Keuper (ICLR 2023)."""

TABLE1_OBJECTIVES = ("clean", "fgsm:1")

TABLE1_COLUMNS = {
    "clean": "clean",
    "fgsm:1": "FGSM 1",
    "pgd:1": "PGD 1",
    "aa_apgd-ce:1": "APGD 1",
    "aa_square:1": "Square 1",
    "corruption": "corruptions",
}
"""What table 1 reports of the cells found, at epsilon 1/255 and as the mean over corruptions, with its headings."""

VOLUME = "hypervolume"
"""What is reported of the front of several objectives: the share of the attainable volume."""


class Estimated(NamedTuple):
    """A mean over runs and its 95 % interval; `deviation` is that of single runs."""

    mean: float
    low: float
    high: float
    deviation: float


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What one method found.

    Attributes:
        method: its name in the table.
        found: (runs,) the cell found by each run; of several objectives empty.
        reported: by column of the table.
        regret: (queries,) mean over runs of how far the best so far is from the optimum, NaN before all runs have one;
            of several objectives, the share of the attainable volume that is not dominated.
        low: (queries,) lower end of its 95 % interval.
        high: (queries,) upper end.
        hits: share of runs that found the optimum.
    """

    method: str
    found: NDArray[np.int64]
    reported: dict[str, Estimated]
    regret: _Floats
    low: _Floats
    high: _Floats
    hits: float


@dataclass(frozen=True, eq=False)
class RepeatedSearch:
    """Searches for one objective, or for a front of several.

    Attributes:
        objective: as it was asked for.
        dataset: what was searched on.
        reported_on: the dataset that the columns are of.
        columns: headings of the table.
        optimum: by column the highest value of any member, each column by itself.
        results: of each method.
        n_members: how many cells could be asked for.
        n_queries: budget of a run.
        n_runs: runs of each method.
        is_front: whether there are several objectives.
        absent: columns left out, since the dataset has no such results.
        in_percent: whether each column is made of accuracies, or is the share of a volume.
        n_predicted: number of cells that could be asked for, one per isomorphism class, whose accuracies are
            predictions.
        n_estimated: number of those some of whose accuracies are estimates from samples of the images.
        estimated: columns, and objectives, that are made of such estimates.
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
        """One row per method and column, with mean, interval, deviation and optimum."""
        rows = [
            {"objective": self.objective, "searched_on": self.dataset, "reported_on": self.reported_on}
            | {"method": result.method, "column": column, **estimated._asdict(), "optimum": self.optimum[column]}
            | ({"from_estimates": self.is_estimated(column)} if self.n_estimated else {})
            for result in self.results
            for column, estimated in result.reported.items()
        ]
        return pd.DataFrame(rows)

    def is_estimated(self, column: str) -> bool:
        """Whether a column is made of estimates; the hypervolume is, if any objective of the front is."""
        return column in self.estimated or (self.is_front and bool(self.estimated))

    def to_payload(self) -> dict[str, Any]:
        methods = [
            {
                "method": result.method,
                "reported": {name: _without_nan(one._asdict()) for name, one in result.reported.items()},
                "share_of_runs_at_optimum": result.hits,
                "found": result.found.tolist(),
                "regret_by_query": {
                    "mean": _nulls(result.regret),
                    "low": _nulls(result.low),
                    "high": _nulls(result.high),
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
        reader: the folder.
        dataset: which of its datasets is searched on.
        objectives: texts (see `search.objectives`); one with a comma is a front.
        methods: names of `METHODS`; by default those that apply.
        n_queries: budget of a run.
        n_runs: runs of each method.
        seed: of all draws.
        report: objectives reported of the cells found; by default those of table 1 that the dataset has. A front is
            reported by its hypervolume instead.
        report_on: the dataset they are reported on; by default `dataset`.
        constraints: which cells may be asked for (see `search.objectives.meets`).
        join: tables, or their files, whose columns are terms and costs (see `RobustnessDataset.join`).
        distinct: whether isomorphic cells are one member: 6,466 of NAS-Bench-201 instead of 15,625.
        predictions: a file of `search.cell_predictions`, for the accuracies that the dataset lacks.
        estimates: whether estimates from samples of the images stand for accuracies that were not counted.
        processes: by default one per CPU.
        on_progress: (runs done, all runs), called after each batch.

    Raises:
        ConfigError: the dataset has no such results, or those of too few architectures, or an argument is wrong.
    """
    values = TableValues(reader, dataset, predictions, estimates=estimates)
    target = values if report_on is None else TableValues(reader, report_on, predictions, estimates=estimates)
    tables = read_join_tables(reader, join, [values.terms.results, target.terms.results])
    for one in (values, target):
        one.join(tables)
    parsed = [(text, parse_objectives(text)) for text in objectives]
    searched = [[values.objective(name, terms) for name, terms in parts] for _, parts in parsed]
    single = any(len(parts) == 1 for _, parts in parsed)
    if report is not None and not single:
        raise ConfigError(
            f"Searching failed for {objectives[0]!r}: expected a single objective with --report, got several, of "
            "which the hypervolume is reported. Leave --report out."
        )
    default = list(TABLE1_COLUMNS) if single else []
    wanted = default if report is None else list(dict.fromkeys(report))
    own = [parts[0][0] for _, parts in parsed if len(parts) == 1]
    columns, absent = _read_columns(target, wanted, own, explicit=report is not None)
    chosen = _choose_methods(methods, [objective for parts in searched for objective in parts], len(searched))
    known = [objective.columns.sum(axis=1) for parts in searched for objective in parts]
    if report is None and predictions is not None:
        unpredicted = _find_unpredicted(columns, own, known, values.is_predicted)
        columns = {name: column for name, column in columns.items() if name not in unpredicted}
        absent += unpredicted
    reported = [column.values for column in columns.values()]
    present = ~np.isnan(np.sum([*known, *reported], axis=0)) & meets(values, constraints)
    cells = SearchCells(values.space, present, distinct=distinct)
    _check_size(cells, n_queries, dataset)
    benchmarks = [Benchmark(cells, parts) for parts in searched]
    found = run_methods(
        benchmarks, chosen, n_queries=n_queries, n_runs=n_runs, seed=seed, processes=processes, on_progress=on_progress
    )
    return [
        replace(
            _summarise(text.strip(), dataset, target.dataset, benchmark, runs, columns, absent),
            n_predicted=int((values.is_predicted & present).sum()),
            n_estimated=max(values.n_estimated, target.n_estimated),
            estimated=_find_estimated(values, target, parts, columns if len(parts) == 1 else ()),
        )
        for (text, parts), benchmark, runs in zip(parsed, benchmarks, found, strict=True)
    ]


def _find_estimated(
    values: TableValues,
    target: TableValues,
    objectives: Sequence[tuple[str, Sequence[ObjectiveTerm]]],
    columns: Iterable[str],
) -> tuple[str, ...]:
    """Name the objectives searched for and the columns reported that are made of estimates."""
    names = [name for name, terms in objectives if values.uses_estimates(terms)]
    names += [name for name in columns if target.uses_estimates(parse_objectives(name)[0][1])]
    return tuple(dict.fromkeys(names))


def _read_columns(
    values: TableValues, wanted: Sequence[str], objectives: Sequence[str], *, explicit: bool
) -> tuple[dict[str, WeightedSum], tuple[str, ...]]:
    columns: dict[str, WeightedSum] = {}
    absent = []
    for text in dict.fromkeys([*wanted, *objectives]):
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
    known: Sequence[_Floats],
    is_predicted: NDArray[np.bool_],
) -> tuple[str, ...]:
    """List the default columns that some predicted cells with all objectives lack, and that would exclude these."""
    searched = is_predicted & ~np.isnan(np.sum(known, axis=0))
    return tuple(
        name for name, column in columns.items() if name not in objectives and np.isnan(column.values[searched]).any()
    )


def _choose_methods(methods: Sequence[str] | None, objectives: Sequence[Any], n_searches: int) -> list[str]:
    fit = len(objectives) == n_searches and all(len(objective.weights) > 1 for objective in objectives)
    if methods is None:
        return [row.name for row in METHODS.values() if fit or not row.of_parts]
    chosen = [find_method(name) for name in dict.fromkeys(methods)]
    unfit = [row.name for row in chosen if row.of_parts and not fit]
    if unfit:
        raise ConfigError(
            f"Searching failed for method {unfit[0]}: expected one objective that is a mean over several strengths, "
            "such as pgd, got another. Choose such an objective, or another method."
        )
    return [row.name for row in chosen]


def _check_size(cells: SearchCells, n_queries: int, dataset: str) -> None:
    if len(cells) < n_queries:
        raise ConfigError(
            f"Searching failed for {dataset}: expected at least as many architectures with all results as queries "
            f"({n_queries:,}), got {len(cells):,}. Lower --queries, relax constraints, or evaluate more architectures."
        )


def _summarise(
    text: str,
    dataset: str,
    reported_on: str,
    benchmark: Benchmark,
    several: Sequence[Runs],
    columns: dict[str, WeightedSum],
    absent: tuple[str, ...],
) -> RepeatedSearch:
    members = benchmark.cells.members
    is_front = benchmark.n_objectives > 1
    if is_front:
        optimum, in_percent = {VOLUME: 1.0}, {VOLUME: True}
        results = [_summarise_front(runs) for runs in several]
    else:
        by_index = {name: column.values[benchmark.cells.isomorphs] for name, column in columns.items()}
        optimum = {name: float(values[members].max()) for name, values in by_index.items()}
        in_percent = {name: column.is_accuracy for name, column in columns.items()}
        results = [_summarise_single(runs, by_index) for runs in several]
    n_runs = len(several[0].asked) if several else 0
    n_queries = several[0].n_queries if several else 0
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
    found = by_query[:, -1]
    reported = {name: _estimate(column[found]) for name, column in columns.items()}
    return MethodResult(runs.method, found, reported, *mean_intervals(regret), float(np.mean(values[found] == best)))


def _summarise_front(runs: Runs) -> MethodResult:
    shares = front_shares(runs)
    reported = {VOLUME: _estimate(shares[:, -1])}
    hits = float(np.mean(np.isclose(shares[:, -1], 1.0, rtol=0, atol=1e-12)))
    nothing = np.empty(0, dtype=np.int64)
    return MethodResult(runs.method, nothing, reported, *mean_intervals(1 - shares), hits)


def front_shares(runs: Runs) -> _Floats:
    """Return the share of the attainable volume that the cells asked for dominate, after each query: (runs, queries).

    Volumes are over the worst value of any member in each objective.
    """
    members = runs.benchmark.values[runs.benchmark.cells.members]
    low, high = members.min(axis=0), members.max(axis=0)
    scaled = (runs.benchmark.values - low) / np.where(high > low, high - low, 1.0)
    attainable = hypervolume((members - low) / np.where(high > low, high - low, 1.0))
    volumes = np.zeros((len(runs.asked), runs.n_queries))
    for run, asked in enumerate(runs.asked):
        front = np.empty((0, runs.benchmark.n_objectives))
        volume = 0.0
        for place, cell in enumerate(asked[: runs.n_queries]):
            if cell != NOTHING and not (front >= scaled[cell]).all(axis=1).any():
                covered = hypervolume(np.minimum(front, scaled[cell]))
                volume += float(np.prod(scaled[cell])) - covered
                front = np.concatenate([front, scaled[cell][None]])
                front = front[front_indices(front)]
            volumes[run, place] = volume
        volumes[run, len(asked) :] = volume
    return volumes / (attainable or 1.0)


def _estimate(samples: _Floats) -> Estimated:
    mean, low, high = (float(number) for number in mean_intervals(samples))
    return Estimated(mean, low, high, float(samples.std(ddof=1)) if len(samples) > 1 else float("nan"))


def _without_nan(numbers: dict[str, float]) -> dict[str, float | None]:
    return {name: None if np.isnan(number) else number for name, number in numbers.items()}


def _nulls(numbers: _Floats) -> list[float | None]:
    return [None if np.isnan(number) else float(number) for number in numbers]


PAPER_OPTIMUM = 0.9468
"""Clean accuracy on CIFAR-10; the only number of the table whose source was at hand."""

TOLERANCE = 0.0005 + 1e-9
"""Published accuracies have three decimals."""


class PaperComparison(NamedTuple):
    """The optimum of table 1 and ours, as fractions, and whether they agree to the decimals that were published."""

    published: float
    ours: float
    agrees: bool


def compare_with_paper(reader: RobustnessDataset, searches: Sequence[RepeatedSearch]) -> PaperComparison | None:
    """Compare the clean optimum, where a search is on the published results: of CIFAR-10, of all cells, of no sweep."""
    if reader.sweep is not None and "network" in reader.sweep.get("sweep", {}):
        return None
    all_cells = {len(reader.meta["ids"]), len(reader.non_isomorph_ids)}
    whole = [one for one in searches if one.reported_on == PUBLISHED_DATASETS[0] and one.n_members in all_cells]
    optima = [one.optimum[CLEAN] for one in whole if CLEAN in one.columns]
    if not optima:
        return None
    return PaperComparison(PAPER_OPTIMUM, optima[0], abs(optima[0] - PAPER_OPTIMUM) <= TOLERANCE)
