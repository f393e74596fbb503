"""All methods stay within the budget, query only available cells and depend only on the seed and the run number.

Further tests check that each method behaves as published.
"""

import os
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom

from robust201.networks.nb201.cells import OPERATIONS, format_spec, neighbours, parse, resolve, specs
from robust201.search import bananas
from robust201.search.cells import SearchCells
from robust201.search.ensemble import fit_and_predict
from robust201.search.evolution import mutation_probability
from robust201.search.methods import METHODS
from robust201.search.runs import Benchmark, run_method, run_methods
from tests.support.planted import planted_accuracy

BUDGETS = {"bananas": 30}
"""Budgets of slow methods, which are smaller than the default; BANANAS trains five networks per batch."""


def query_budget(method: str) -> int:
    return BUDGETS.get(method, 100)


@pytest.fixture(params=list(METHODS))
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a method's name; BANANAS trains for two epochs, enough for tests with this fixture."""
    monkeypatch.setattr(bananas, "fit_and_predict", partial(fit_and_predict, epochs=2))
    return str(request.param)


def run_traces(
    method: str, benchmark: Benchmark, run_numbers: Sequence[int] = (0, 1), seed: int = 0, n_queries: int = 0
) -> list:
    """Return the queried cells of each run."""
    n_queries = n_queries or query_budget(method)
    return [run_method(method, benchmark, n_queries=n_queries, seed=seed, run=run) for run in run_numbers]


def test_method_spends_its_budget(method, planted_clean_benchmark):
    for queried in run_traces(method, planted_clean_benchmark):
        assert len(queried) == query_budget(method)
        assert {*queried} <= {*planted_clean_benchmark.cells.members.tolist()}


def test_runs_depend_only_on_seed_and_run_number(method, planted_clean_benchmark):
    first, second = run_traces(method, planted_clean_benchmark)
    assert first != second
    assert run_traces(method, planted_clean_benchmark, (1,)) == [second]
    assert run_traces(method, planted_clean_benchmark, (0,), seed=1) != [first]


def test_method_queries_only_members(method, space):
    is_evaluated = np.zeros(15_625, dtype=bool)
    is_evaluated[::40] = True
    cells = SearchCells(space, is_evaluated)
    assert len(cells) > 60
    benchmark = Benchmark(cells, planted_accuracy("clean", 0))
    (queried,) = run_traces(method, benchmark, (0,), n_queries=40)
    assert is_evaluated[np.array(space.isomorphs())[queried]].all()


def test_results_do_not_depend_on_number_of_processes(planted_clean_benchmark, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    single_process_cells, two_process_cells = (
        run_methods([planted_clean_benchmark], ["random", "local"], n_queries=30, n_runs=6, processes=processes)
        for processes in (1, 2)
    )
    np.testing.assert_array_equal(single_process_cells, two_process_cells)


def test_random_search_samples_without_replacement(space):
    """Sampling q of n cells without replacement includes the best one with probability q / n."""
    is_evaluated = np.zeros(15_625, dtype=bool)
    is_evaluated[::26] = True
    cells = SearchCells(space, is_evaluated)
    accuracies = planted_accuracy("clean", 0)
    best_cell = int(cells.members[np.argmax(accuracies[cells.members])])
    benchmark = Benchmark(cells, accuracies)
    n_runs, n_queries = 400, len(cells) // 3
    ((queried,),) = run_methods([benchmark], ["random"], n_queries=n_queries, n_runs=n_runs, processes=1)
    n_hits = int((queried == best_cell).any(axis=1).sum())
    low, high = binom.interval(0.999, n_runs, n_queries / len(cells))
    assert low <= n_hits <= high
    assert all(len({*cells_of_run.tolist()}) == n_queries for cells_of_run in queried[:20])


@pytest.mark.parametrize("method_name", ["local", "evolution"])
def test_method_beats_random_search(method_name, planted_clean_benchmark):
    (runs_by_method,) = run_methods(
        [planted_clean_benchmark], [method_name, "random"], n_queries=200, n_runs=15, processes=1
    )
    accuracies = planted_clean_benchmark.values
    best_accuracies = [accuracies[planted_clean_benchmark.best(queried)] for queried in runs_by_method]
    standard_error = np.sqrt(sum(sample.var(ddof=1) / len(sample) for sample in best_accuracies))
    assert best_accuracies[0].mean() - best_accuracies[1].mean() > 4 * standard_error
    assert (best_accuracies[0] == accuracies.max()).mean() > 0.5


def test_bananas_beats_random_search_early(planted_clean_benchmark):
    runs_by_method = [
        run_methods([planted_clean_benchmark], [name], n_queries=50, n_runs=n_runs, processes=1)[0, 0]
        for name, n_runs in (("bananas", 2), ("random", 100))
    ]
    bananas_values, random_values = (
        planted_clean_benchmark.values[planted_clean_benchmark.best(queried)] for queried in runs_by_method
    )
    assert bananas_values.min() > np.quantile(random_values, 0.9)


def test_local_search_continues_from_the_best_start_without_repeated_queries(planted_clean_benchmark):
    (queried,) = run_traces("local", planted_clean_benchmark, (0,), n_queries=300)
    assert len({*queried}) == len(queried)
    values = planted_clean_benchmark.values
    start = max(queried[:10], key=lambda cell: values[cell])
    assert queried[10] in planted_clean_benchmark.cells.neighbours(start)


def test_best_returns_the_first_of_equally_good_cells(cells):
    values = np.zeros(15_625)
    values[[7, 9]] = 1.0
    assert Benchmark(cells, values).best(np.array([[3, 5, 7, 9], [9, 7, 5, 3]])).tolist() == [7, 9]


def test_neighbours_match_the_space(cells):
    for cell in (0, 1462, 9930):
        assert cells.neighbours(cell) == tuple(resolve(other) for _, _, other in neighbours(specs()[cell]))


def operation_numbers(cell: int) -> list[int]:
    return [OPERATIONS.index(operation) for operation in parse(specs()[cell])]


def test_mutate_changes_each_edge_with_the_given_probability(cells):
    rng = np.random.default_rng(0)
    operations = np.array(operation_numbers(0))
    assert mutation_probability(6) == 0.25
    mutants = np.array([operation_numbers(cells.mutate(0, rng, 0.25)) for _ in range(2000)])
    rates = (mutants != operations).mean(axis=0)
    assert abs(rates - 0.25).max() < 0.05
    operation_counts = np.bincount(mutants[mutants[:, 0] != operations[0], 0], minlength=5)
    assert operation_counts[operations[0]] == 0
    assert np.delete(operation_counts, operations[0]).min() > 85  # expected: 125 each


def test_path_encodings_mark_the_paths_of_a_cell(cells):
    two_edge_encodings, three_edge_encodings = cells.path_encodings(2), cells.path_encodings(3)
    assert two_edge_encodings.shape == (15_625, 30)  # as in naszilla
    assert three_edge_encodings.shape == (15_625, 155)
    np.testing.assert_array_equal(three_edge_encodings[:, :30], two_edge_encodings)
    skip, pool = 1, 4
    cell = resolve(format_spec([OPERATIONS[number] for number in (skip, pool) * 3]))
    features = np.flatnonzero(two_edge_encodings[cell])
    # Paths: in → out; in → 1 → out; in → 2 → out. The two longer paths use the same 25 features.
    assert features.tolist() == sorted({pool, 5 + skip + 5 * skip, 5 + pool + 5 * pool})
