"""The contract of all methods (budget, members, determinism), and the known behaviour of each."""

import multiprocessing
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from threadpoolctl import threadpool_info, threadpool_limits

from robust201.search import bananas, runs
from robust201.search.benchmark import Benchmark, WeightedSum
from robust201.search.cells import SearchCells
from robust201.search.ensemble import fit_and_predict
from robust201.search.evolution import mutation_probability
from robust201.search.halving import plan_rungs
from robust201.search.methods import METHODS
from robust201.search.runs import NOTHING, Runs, run_methods, run_together
from robust201.spaces.cell_space import CellSpace
from robust201.spaces.nasbench201 import cell_index, isomorph_index, neighbour_indices, operation_numbers
from tests.support.planted import planted_accuracy

BUDGETS = {"bananas": 30}
"""Smaller budgets for slow methods: each batch of BANANAS trains five networks."""


def budget(method: str) -> int:
    return BUDGETS.get(method, 100)


@pytest.fixture(params=list(METHODS))
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of each method; networks are hardly trained, since the contract does not depend on their predictions."""
    monkeypatch.setattr(bananas, "fit_and_predict", partial(fit_and_predict, epochs=2))
    return str(request.param)


def traces(method: str, benchmark: Benchmark, numbers: Sequence[int] = (0, 1), seed: int = 0, queries: int = 0) -> list:
    return run_together(method, benchmark, n_queries=queries or budget(method), seed=seed, numbers=numbers)


def test_method_uses_its_budget(method: str, planted: Benchmark, planted_pgd: Benchmark) -> None:
    for benchmark in (planted, planted_pgd):
        for queried, spent in traces(method, benchmark):
            assert spent == sorted(spent)
            assert budget(method) - 1 <= spent[-1] <= budget(method)
            assert {*queried} <= {*benchmark.cells.members.tolist()}


def test_runs_depend_only_on_seed_and_number(method: str, planted: Benchmark) -> None:
    first, second = traces(method, planted)
    assert first != second
    assert traces(method, planted, (1,)) == [second]  # the same alone as next to another run
    assert traces(method, planted, (0,), seed=1) != [first]


def test_method_queries_only_members(method: str, space: CellSpace) -> None:
    present = np.zeros(15_625, dtype=bool)
    present[::40] = True
    for distinct in (False, True):
        cells = SearchCells(space, present, distinct=distinct)
        assert len(cells) > 60
        benchmark = Benchmark(cells, [WeightedSum("clean", planted_accuracy("clean", 0)[:, None], np.ones(1))])
        ((queried, _),) = traces(method, benchmark, (0,), queries=40)
        assert present[np.array(space.isomorphs())[queried]].all()
        assert not distinct or {*queried} <= {*space.isomorphs()}


def test_run_ends_when_the_space_is_exhausted(method: str, space: CellSpace) -> None:
    present = np.zeros(15_625, dtype=bool)
    present[[0, 1, 2]] = True
    cells = SearchCells(space, present, distinct=True)
    benchmark = Benchmark(cells, [WeightedSum("clean", planted_accuracy("clean", 0)[:, None], np.ones(1))])
    ((queried, spent),) = traces(method, benchmark, (0,), queries=12)
    assert {*queried} == {0, 1, 2}
    assert spent[-1] <= 12


def test_method_accepts_several_objectives(method: str, planted_front: Benchmark) -> None:
    if METHODS[method].of_parts:
        return
    ((queried, _),) = traces(method, planted_front, (0,))
    assert len(queried) == budget(method)


def test_results_do_not_depend_on_processes(planted: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    first, second = (
        run_methods([planted], ["random", "local"], n_queries=30, n_runs=6, processes=processes)[0]
        for processes in (1, 2)
    )
    for single, parallel in zip(first, second, strict=True):
        np.testing.assert_array_equal(single.queried, parallel.queried)
        np.testing.assert_array_equal(single.ready, parallel.ready)


def test_processes_do_not_exceed_cpus(planted: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(runs, "ProcessPoolExecutor", None)
    (result,) = run_methods([planted], ["random"], n_queries=5, n_runs=6, processes=1_000_000)[0]
    assert len(result.queried) == 6


def test_blas_uses_one_thread_per_process(planted: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def run(*arguments: Any, **options: Any) -> Any:
        threads.update(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return run_together(*arguments, **options)

    monkeypatch.setattr(runs, "run_together", run)
    with threadpool_limits(2, "blas"):
        run_methods([planted], ["random"], n_queries=5, n_runs=1, processes=1)
    assert threads == {1}


def test_worker_processes_end_with_the_search(planted: Benchmark) -> None:
    """The search ends after the first job, while those of BANANAS would run for half a minute."""
    jobs = [(0, "random", range(1)), *[(0, "bananas", range(4))] * 2]
    finished = runs._iter_finished([planted], jobs, 300, 0, 2)
    assert next(finished)[0] == jobs[0]
    assert multiprocessing.active_children()
    finished.close()
    assert multiprocessing.active_children() == []


def test_random_search_finds_the_best_at_the_hypergeometric_rate(space: CellSpace) -> None:
    """Without replacement, the probability of having queried the best cell after q queries is q / n."""
    present = np.zeros(15_625, dtype=bool)
    present[::26] = True
    cells = SearchCells(space, present, distinct=True)
    values = planted_accuracy("clean", 0)
    best = int(cells.members[np.argmax(values[cells.members])])
    benchmark = Benchmark(cells, [WeightedSum("clean", values[:, None], np.ones(1))])
    n_runs, n_queries = 400, len(cells) // 3
    (result,), *_ = run_methods([benchmark], ["random"], n_queries=n_queries, n_runs=n_runs, processes=1)
    hits = int((result.queried == best).any(axis=1).sum())
    low, high = binom.interval(0.999, n_runs, n_queries / len(cells))
    assert low <= hits <= high
    assert all(len({*row.tolist()}) == n_queries for row in result.queried[:20])


@pytest.mark.parametrize("better", ["local", "evolution"])
def test_method_beats_random_search(better: str, planted: Benchmark) -> None:
    results = run_methods([planted], [better, "random"], n_queries=200, n_runs=15, processes=1)[0]
    values = planted.values[:, 0]
    ends = [values[result.best_by_query()[:, -1]] for result in results]
    error = np.sqrt(sum(end.var(ddof=1) / len(end) for end in ends))
    assert ends[0].mean() - ends[1].mean() > 4 * error
    assert (ends[0] == values.max()).mean() > 0.5


def test_bananas_beats_random_search_early(planted: Benchmark) -> None:
    results = [
        run_methods([planted], [name], n_queries=50, n_runs=n_runs, processes=1)[0][0]
        for name, n_runs in (("bananas", 2), ("random", 100))
    ]
    bananas_values, random = (planted.values[result.best_by_query()[:, -1], 0] for result in results)
    assert bananas_values.min() > np.quantile(random, 0.9)


def test_local_search_moves_to_better_neighbours_or_restarts(planted: Benchmark) -> None:
    ((queried, _),) = traces("local", planted, (0,), queries=300)
    assert len({*queried}) == len(queried)
    values = planted.values[:, 0]
    start = max(queried[:10], key=lambda cell: values[cell])
    assert queried[10] in planted.cells.neighbours(start)


def test_halving_pays_only_for_added_evaluations(planted_pgd: Benchmark) -> None:
    rungs = plan_rungs(100, 7, 15_625)
    assert plan_rungs(1, 7, 15_625) == ((1, 7),)  # one cell reaches the end
    assert sum(n * (size - before) for (n, size), before in zip(rungs, (0, rungs[0][1]), strict=True)) <= 700
    ((queried, spent),) = traces("halving", planted_pgd, (0,))
    assert len(queried) == rungs[-1][0]
    assert spent[0] > 50  # whole evaluations come last
    values = planted_pgd.values[:, 0]
    random = [values[np.random.default_rng(seed).choice(15_625, 100)].max() for seed in range(200)]
    assert values[queried].max() > np.median(random)


def test_best_by_query_keeps_the_first_of_equals(cells: SearchCells) -> None:
    values = np.zeros(15_625)
    values[cells.isomorphs[7]] = 1.0
    benchmark = Benchmark(cells, [WeightedSum("x", values[:, None], np.ones(1))])
    queried = np.array([[3, 7, 5, NOTHING]])
    result = Runs("random", benchmark, queried, np.array([[1.5, 2.0, 3.0, np.inf]]), 4)
    assert result.best_by_query().tolist() == [[NOTHING, 7, 7, 7]]


def test_neighbours_match_the_space(cells: SearchCells, space: CellSpace) -> None:
    distinct = SearchCells(space, np.ones(15_625, dtype=bool), distinct=True)
    assert len(distinct) == len({*space.isomorphs()})
    for cell in (0, 1462, 9930):
        assert cells.neighbours(cell) == neighbour_indices(cell)
        expected = {isomorph_index(index) for index in neighbour_indices(cell)} - {cell}
        assert distinct.neighbours(cell) == tuple(sorted(expected))


def test_mutate_changes_each_edge_at_the_rate(cells: SearchCells) -> None:
    rng = np.random.default_rng(0)
    operations = np.array(operation_numbers(0))
    assert mutation_probability(6) == 0.25
    mutants = np.array([operation_numbers(cells.mutate(0, rng, 0.25)) for _ in range(2000)])
    rates = (mutants != operations).mean(axis=0)
    assert abs(rates - 0.25).max() < 0.05
    others = np.bincount(mutants[mutants[:, 0] != operations[0], 0], minlength=5)
    assert others[operations[0]] == 0
    assert np.delete(others, operations[0]).min() > 85  # about 125 each


def test_path_encodings_mark_the_paths(cells: SearchCells) -> None:
    short, whole = cells.path_encodings(2), cells.path_encodings(3)
    assert short.shape == (15_625, 30)  # as in naszilla
    assert whole.shape == (15_625, 155)
    np.testing.assert_array_equal(whole[:, :30], short)
    skip, pool = 1, 4
    cell = cell_index((skip, pool, skip, pool, skip, pool))
    features = np.flatnonzero(short[cell])
    # In → out. In → 1 → out and in → 2 → out share the features of two edges.
    assert features.tolist() == sorted({pool, 5 + skip + 5 * skip, 5 + pool + 5 * pool})
