"""Runs of search methods in several processes, with the queried architectures and the best architecture so far."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from robust201.core.errors import EvaluationError
from robust201.core.processes import delaying_interrupts, end_with_parent, fork_server
from robust201.search.benchmark import Benchmark
from robust201.search.methods import find_method
from robust201.search.optimiser import Optimiser, Query

RUNS_PER_PROCESS = 4
"""Number of runs that a process advances together, so that their networks fit in a core's cache (see
`search.ensemble`)."""

NO_ARCHITECTURE = -1
"""Placeholder for an architecture that a run does not have yet."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of one method on one benchmark.

    Attributes:
        method: name of the method.
        benchmark: the benchmark.
        queried: (runs, n) fully evaluated architectures in the order of their queries, padded with `NO_ARCHITECTURE`.
        spent: (runs, n) budget spent up to and including each query, in evaluations of complete objectives; inf after a
            run's end.
        n_queries: budget of a run.
    """

    method: str
    benchmark: Benchmark
    queried: NDArray[np.int64]
    spent: NDArray[np.float64]
    n_queries: int

    def best_by_query(self) -> NDArray[np.int64]:
        """Return the best architecture of each run within each budget from 1 to `n_queries`: (runs, n_queries).

        Of several architectures with the same value, the first is returned.
        """
        values = np.where(self.queried == NO_ARCHITECTURE, -np.inf, self.benchmark.values[self.queried, 0])
        best_values = np.maximum.accumulate(values, axis=1)
        is_better = np.diff(best_values, axis=1, prepend=-np.inf) > 0
        columns = np.broadcast_to(np.arange(values.shape[1]), values.shape)
        best_positions = np.maximum.accumulate(np.where(is_better, columns, -1), axis=1)
        best = np.where(
            best_positions < 0, NO_ARCHITECTURE, np.take_along_axis(self.queried, np.maximum(best_positions, 0), axis=1)
        )
        return self._expand_by_query(best)

    def _expand_by_query(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the state at each budget from 1 to `n_queries`, given the states (runs, n) after each query."""
        budgets = np.arange(1, self.n_queries + 1) + 1e-9
        states_by_query = np.full((len(states), self.n_queries), NO_ARCHITECTURE, dtype=np.int64)
        for run, (spent, run_states) in enumerate(zip(self.spent, states, strict=True)):
            latest_positions = np.searchsorted(spent, budgets, side="right") - 1
            states_by_query[run] = np.where(
                latest_positions < 0, NO_ARCHITECTURE, run_states[np.maximum(latest_positions, 0)]
            )
        return states_by_query


def run_methods(
    benchmarks: Sequence[Benchmark],
    methods: Sequence[str],
    *,
    n_queries: int,
    n_runs: int,
    seed: int = 0,
    processes: int | None = None,
    on_progress: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> list[list[Runs]]:
    """Run methods on benchmarks.

    Equal seeds give equal runs for any number of processes, because the random numbers of a run depend only on the
    seed, the method and the number of the run.

    Args:
        benchmarks: benchmarks to search.
        methods: names of the methods.
        n_queries: budget of a run, in evaluations of complete objectives.
        n_runs: number of runs of each method on each benchmark.
        seed: seed of all random numbers.
        processes: maximum number of processes; by default one per CPU that this process may use. If there is only one,
            it is this process.
        on_progress: called after each batch of runs with the number of finished runs and the number of all runs.

    Returns:
        For each benchmark, the runs of each method, in order.

    Raises:
        EvaluationError: a process died.
    """
    chunks = [range(start, min(start + RUNS_PER_PROCESS, n_runs)) for start in range(0, n_runs, RUNS_PER_PROCESS)]
    # Submit the slowest method first (the first in the table), so that the processes finish together.
    jobs = [(index, name, chunk) for name in methods for index in range(len(benchmarks)) for chunk in chunks]
    n_cpus = len(os.sched_getaffinity(0))
    n_processes = min(len(jobs), n_cpus, n_cpus if processes is None else processes)
    traces_by_job: dict[tuple[int, str], list[_NumberedTrace]] = {(index, name): [] for index, name, _ in jobs}
    n_finished = 0
    for (index, name, chunk), traces in _iter_finished_jobs(benchmarks, jobs, n_queries, seed, n_processes):
        traces_by_job[index, name] += zip(chunk, traces, strict=True)
        n_finished += len(chunk)
        on_progress(n_finished, len(benchmarks) * len(methods) * n_runs)
    return [
        [_gather_runs(name, benchmark, traces_by_job[index, name], n_queries) for name in methods]
        for index, benchmark in enumerate(benchmarks)
    ]


def run_together(
    method: str, benchmark: Benchmark, *, n_queries: int, seed: int, run_numbers: Sequence[int]
) -> list[tuple[list[int], list[float]]]:
    """Advance several runs of a method together; each run has the same result as if it were alone.

    Returns:
        For each run, the fully evaluated architectures, and the budget spent up to each of them.
    """
    optimiser_class = find_method(method).optimiser
    optimisers = [
        _create_optimiser(optimiser_class, method, benchmark, n_queries, seed, run_number) for run_number in run_numbers
    ]
    n_evaluated: list[dict[int, int]] = [{} for _ in run_numbers]
    spent = [0] * len(run_numbers)
    traces: list[tuple[list[int], list[float]]] = [([], []) for _ in run_numbers]
    running_indices = list(range(len(run_numbers)))
    n_complete = benchmark.n_evaluations  # number of evaluations of a complete query
    while running_indices:
        optimiser_class.prepare([optimisers[index] for index in running_indices])
        for index in tuple(running_indices):
            query = optimisers[index].ask()
            if (
                query is None
                or spent[index] + (cost := _count_added_evaluations(query, n_complete, n_evaluated[index]))
                > n_queries * n_complete
            ):
                running_indices.remove(index)
                continue
            spent[index] += cost
            optimisers[index].tell(query, benchmark.evaluate(query))
            is_complete = query.n_evaluations is None or query.n_evaluations == n_complete
            n_evaluated[index][query.architecture] = n_complete if is_complete else query.n_evaluations or n_complete
            if is_complete:
                traces[index][0].append(query.architecture)
                traces[index][1].append(spent[index] / n_complete)
    return traces


def _count_added_evaluations(query: Query, n_complete: int, n_evaluated: dict[int, int]) -> int:
    """Return the number of evaluations that a query adds; a complete query costs all, even if it is repeated."""
    if query.n_evaluations is None:
        return n_complete
    return max(0, query.n_evaluations - n_evaluated.get(query.architecture, 0))


def _create_optimiser(
    optimiser_class: type[Optimiser], method: str, benchmark: Benchmark, n_queries: int, seed: int, run_number: int
) -> Optimiser:
    return optimiser_class(
        benchmark.cells,
        np.random.default_rng([seed, run_number, *method.encode()]),
        n_queries=n_queries,
        n_objectives=benchmark.n_objectives,
        n_evaluations=benchmark.n_evaluations,
    )


_Job = tuple[int, str, range]
"""Index of a benchmark, name of a method, and numbers of the runs."""

_NumberedTrace = tuple[int, tuple[list[int], list[float]]]
"""Number of a run, its fully evaluated architectures, and the budget spent up to each of them."""

_worker_benchmarks: dict[int, Benchmark] = {}
"""Benchmarks by index, in a worker process."""


def _iter_finished_jobs(
    benchmarks: Sequence[Benchmark], jobs: Sequence[_Job], n_queries: int, seed: int, processes: int
) -> Iterator[tuple[_Job, list[tuple[list[int], list[float]]]]]:
    if processes <= 1:
        for job in jobs:
            yield job, _run_job(benchmarks[job[0]], job, n_queries, seed)
        return
    context = fork_server(["robust201.search.runs"])
    stop_reader, stop_writer = context.Pipe(duplex=False)
    initargs = (tuple(benchmarks), stop_reader)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker, initargs=initargs)
    try:
        with delaying_interrupts():
            jobs_by_future = {pool.submit(_run_in_worker, job, n_queries, seed): job for job in jobs}
        for future in as_completed(jobs_by_future):
            yield jobs_by_future[future], future.result()
    except BrokenProcessPool as error:
        raise EvaluationError(
            "Searching failed for a worker process: it died before finishing its runs, perhaps because memory ran "
            "out. Run the same command again, with fewer --processes."
        ) from error
    finally:
        stop_writer.close()  # ends the worker processes and their remaining runs
        with delaying_interrupts():
            pool.shutdown(cancel_futures=True)
        stop_reader.close()


def _start_worker(benchmarks: Sequence[Benchmark], stop_reader: Connection) -> None:
    _worker_benchmarks.update(enumerate(benchmarks))
    end_with_parent(stop_reader)


def _run_in_worker(job: _Job, n_queries: int, seed: int) -> list[tuple[list[int], list[float]]]:
    return _run_job(_worker_benchmarks[job[0]], job, n_queries, seed)


def _run_job(benchmark: Benchmark, job: _Job, n_queries: int, seed: int) -> list[tuple[list[int], list[float]]]:
    _, name, chunk = job
    with threadpool_limits(1, "blas"):  # matrices are small, and each CPU has its own process
        return run_together(name, benchmark, n_queries=n_queries, seed=seed, run_numbers=chunk)


def _gather_runs(method: str, benchmark: Benchmark, numbered_traces: Sequence[_NumberedTrace], n_queries: int) -> Runs:
    ordered_traces = [trace for _, trace in sorted(numbered_traces, key=lambda numbered_trace: numbered_trace[0])]
    max_length = max((len(queried) for queried, _ in ordered_traces), default=0)
    queried = np.full((len(ordered_traces), max_length), NO_ARCHITECTURE, dtype=np.int64)
    spent = np.full((len(ordered_traces), max_length), np.inf)
    for run, (architectures, spent_by_query) in enumerate(ordered_traces):
        queried[run, : len(architectures)] = architectures
        spent[run, : len(spent_by_query)] = spent_by_query
    return Runs(method, benchmark, queried, spent, n_queries)
