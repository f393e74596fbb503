"""What every row of `METHODS` fulfils: budget, members, determinism; and what each is known for."""

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
"""Smaller than that of the others: each batch trains five networks."""


def budget(method: str) -> int:
    return BUDGETS.get(method, 100)


@pytest.fixture(params=list(METHODS))
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every method; networks are hardly trained, as the contract does not depend on how well they predict."""
    monkeypatch.setattr(bananas, "fit_and_predict", partial(fit_and_predict, epochs=2))
    return str(request.param)


def traces(method: str, benchmark: Benchmark, numbers: Sequence[int] = (0, 1), seed: int = 0, queries: int = 0) -> list:
    return run_together(method, benchmark, n_queries=queries or budget(method), seed=seed, numbers=numbers)


def test_the_budget_is_kept_and_used(method: str, planted: Benchmark, planted_pgd: Benchmark) -> None:
    for benchmark in (planted, planted_pgd):
        for asked, spent in traces(method, benchmark):
            assert spent == sorted(spent)
            assert budget(method) - 1 <= spent[-1] <= budget(method)
            assert {*asked} <= {*benchmark.cells.members.tolist()}


def test_runs_follow_from_seed_and_number_alone(method: str, planted: Benchmark) -> None:
    first, second = traces(method, planted)
    assert first != second
    assert traces(method, planted, (1,)) == [second]  # alone as beside another
    assert traces(method, planted, (0,), seed=1) != [first]


def test_only_members_are_asked_for(method: str, space: CellSpace) -> None:
    present = np.zeros(15_625, dtype=bool)
    present[::40] = True
    for distinct in (False, True):
        cells = SearchCells(space, present, distinct=distinct)
        assert len(cells) > 60
        benchmark = Benchmark(cells, [WeightedSum("clean", planted_accuracy("clean", 0)[:, None], np.ones(1))])
        ((asked, _),) = traces(method, benchmark, (0,), queries=40)
        assert present[np.array(space.isomorphs())[asked]].all()
        assert not distinct or {*asked} <= {*space.isomorphs()}


def test_a_space_that_is_exhausted_ends_the_run(method: str, space: CellSpace) -> None:
    present = np.zeros(15_625, dtype=bool)
    present[[0, 1, 2]] = True
    cells = SearchCells(space, present, distinct=True)
    benchmark = Benchmark(cells, [WeightedSum("clean", planted_accuracy("clean", 0)[:, None], np.ones(1))])
    ((asked, spent),) = traces(method, benchmark, (0,), queries=12)
    assert {*asked} == {0, 1, 2}
    assert spent[-1] <= 12


def test_several_objectives(method: str, planted_front: Benchmark) -> None:
    if METHODS[method].of_parts:
        return
    ((asked, _),) = traces(method, planted_front, (0,))
    assert len(asked) == budget(method)


def test_processes_do_not_matter(planted: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    first, second = (
        run_methods([planted], ["random", "local"], n_queries=30, n_runs=6, processes=processes)[0]
        for processes in (1, 2)
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.queried, other.queried)
        np.testing.assert_array_equal(one.ready, other.ready)


def test_processes_are_no_more_than_cpus(planted: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(runs, "ProcessPoolExecutor", None)
    (found,) = run_methods([planted], ["random"], n_queries=5, n_runs=6, processes=1_000_000)[0]
    assert len(found.queried) == 6


def test_blas_has_one_thread_in_a_process(planted: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def run(*arguments: Any, **options: Any) -> Any:
        threads.update(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return run_together(*arguments, **options)

    monkeypatch.setattr(runs, "run_together", run)
    with threadpool_limits(2, "blas"):
        run_methods([planted], ["random"], n_queries=5, n_runs=1, processes=1)
    assert threads == {1}


def test_processes_end_with_the_search(planted: Benchmark) -> None:
    """Here it ends after the first jobs; those of BANANAS would go on for half a minute."""
    jobs = [(0, "random", range(1)), *[(0, "bananas", range(4))] * 2]
    finished = runs._finished([planted], jobs, 300, 0, 2)
    assert next(finished)[0] == jobs[0]
    assert multiprocessing.active_children()
    finished.close()
    assert multiprocessing.active_children() == []


def test_random_search_finds_the_best_at_the_hypergeometric_rate(space: CellSpace) -> None:
    """Without replacement, the chance to have seen the one best cell after q queries is q / n."""
    present = np.zeros(15_625, dtype=bool)
    present[::26] = True
    cells = SearchCells(space, present, distinct=True)
    values = planted_accuracy("clean", 0)
    best = int(cells.members[np.argmax(values[cells.members])])
    benchmark = Benchmark(cells, [WeightedSum("clean", values[:, None], np.ones(1))])
    n_runs, n_queries = 400, len(cells) // 3
    (found,), *_ = run_methods([benchmark], ["random"], n_queries=n_queries, n_runs=n_runs, processes=1)
    hits = int((found.queried == best).any(axis=1).sum())
    low, high = binom.interval(0.999, n_runs, n_queries / len(cells))
    assert low <= hits <= high
    assert all(len({*row.tolist()}) == n_queries for row in found.queried[:20])


@pytest.mark.parametrize("better", ["local", "evolution"])
def test_searches_with_memory_beat_random_search(better: str, planted: Benchmark) -> None:
    found = run_methods([planted], [better, "random"], n_queries=200, n_runs=15, processes=1)[0]
    values = planted.values[:, 0]
    ends = [values[one.best_by_query()[:, -1]] for one in found]
    error = np.sqrt(sum(end.var(ddof=1) / len(end) for end in ends))
    assert ends[0].mean() - ends[1].mean() > 4 * error
    assert (ends[0] == values.max()).mean() > 0.5


def test_bananas_beats_random_search_early(planted: Benchmark) -> None:
    found = [
        run_methods([planted], [name], n_queries=50, n_runs=n_runs, processes=1)[0][0]
        for name, n_runs in (("bananas", 2), ("random", 100))
    ]
    ours, random = (planted.values[one.best_by_query()[:, -1], 0] for one in found)
    assert ours.min() > np.quantile(random, 0.9)


def test_local_search_moves_to_better_neighbours_or_starts_again(planted: Benchmark) -> None:
    ((asked, _),) = traces("local", planted, (0,), queries=300)
    assert len({*asked}) == len(asked)
    values = planted.values[:, 0]
    start = max(asked[:10], key=lambda cell: values[cell])
    assert asked[10] in planted.cells.neighbours(start)


def test_halving_pays_for_what_it_adds(planted_pgd: Benchmark) -> None:
    rungs = plan_rungs(100, 7, 15_625)
    assert plan_rungs(1, 7, 15_625) == ((1, 7),)  # one cell reaches the end
    assert sum(n * (size - before) for (n, size), before in zip(rungs, (0, rungs[0][1]), strict=True)) <= 700
    ((asked, spent),) = traces("halving", planted_pgd, (0,))
    assert len(asked) == rungs[-1][0]
    assert spent[0] > 50  # whole evaluations come last
    values = planted_pgd.values[:, 0]
    random = [values[np.random.default_rng(seed).choice(15_625, 100)].max() for seed in range(200)]
    assert values[asked].max() > np.median(random)


def test_the_best_by_query_is_the_first_of_equals(cells: SearchCells) -> None:
    values = np.zeros(15_625)
    values[cells.isomorphs[7]] = 1.0
    benchmark = Benchmark(cells, [WeightedSum("x", values[:, None], np.ones(1))])
    asked = np.array([[3, 7, 5, NOTHING]])
    found = Runs("random", benchmark, asked, np.array([[1.5, 2.0, 3.0, np.inf]]), 4)
    assert found.best_by_query().tolist() == [[NOTHING, 7, 7, 7]]


def test_neighbours(cells: SearchCells, space: CellSpace) -> None:
    distinct = SearchCells(space, np.ones(15_625, dtype=bool), distinct=True)
    assert len(distinct) == len({*space.isomorphs()})
    for cell in (0, 1462, 9930):
        assert cells.neighbours(cell) == neighbour_indices(cell)
        near = {isomorph_index(one) for one in neighbour_indices(cell)} - {cell}
        assert distinct.neighbours(cell) == tuple(sorted(near))


def test_mutations_change_each_edge_at_the_rate(cells: SearchCells) -> None:
    rng = np.random.default_rng(0)
    own = np.array(operation_numbers(0))
    assert mutation_probability(6) == 0.25
    reached = np.array([operation_numbers(cells.mutate(0, rng, 0.25)) for _ in range(2000)])
    rates = (reached != own).mean(axis=0)
    assert abs(rates - 0.25).max() < 0.05
    others = np.bincount(reached[reached[:, 0] != own[0], 0], minlength=5)
    assert others[own[0]] == 0
    assert np.delete(others, own[0]).min() > 85  # about 125 each


def test_paths_are_the_features(cells: SearchCells) -> None:
    short, whole = cells.path_encodings(2), cells.path_encodings(3)
    assert short.shape == (15_625, 30)  # what naszilla keeps
    assert whole.shape == (15_625, 155)
    np.testing.assert_array_equal(whole[:, :30], short)
    skip, pool = 1, 4
    cell = cell_index((skip, pool, skip, pool, skip, pool))
    found = np.flatnonzero(short[cell])
    # In → out; in → 1 → out and in → 2 → out share the features of two edges.
    assert found.tolist() == sorted({pool, 5 + skip + 5 * skip, 5 + pool + 5 * pool})
