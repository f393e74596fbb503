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
from robust201.search.cells import SearchCells
from robust201.search.methods import find_method

RUNS_PER_PROCESS = 4
"""Number of runs that a process advances together, so that their networks fit in a core's cache (see
`search.ensemble`)."""


@dataclass(frozen=True, eq=False)
class Benchmark:
    """The objective's values of all cells that a search may query.

    Attributes:
        cells: the cells that may be queried.
        values: (n,) by cell index; higher is better. Isomorphic cells have the same value.
    """

    cells: SearchCells
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of one method on one benchmark.

    Attributes:
        method: name of the method.
        benchmark: the benchmark.
        queried: (runs, n_queries) architectures in the order of their queries.
    """

    method: str
    benchmark: Benchmark
    queried: NDArray[np.int64]

    def best_by_query(self) -> NDArray[np.int64]:
        """Return the best architecture of each run after each query: (runs, n_queries).

        Of several architectures with the same value, the first is returned.
        """
        values = self.benchmark.values[self.queried]
        is_better = np.diff(np.maximum.accumulate(values, axis=1), axis=1, prepend=-np.inf) > 0
        best_positions = np.maximum.accumulate(np.where(is_better, np.arange(values.shape[1]), 0), axis=1)
        return np.take_along_axis(self.queried, best_positions, axis=1)


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
        n_queries: number of queries of a run, at most the number of members.
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
    queried = np.empty((len(benchmarks), len(methods), n_runs, n_queries), dtype=np.int64)
    n_finished = 0
    for (index, name, chunk), traces in _iter_finished_jobs(benchmarks, jobs, n_queries, seed, n_processes):
        queried[index, methods.index(name), chunk.start : chunk.stop] = traces
        n_finished += len(chunk)
        on_progress(n_finished, len(benchmarks) * len(methods) * n_runs)
    return [
        [Runs(name, benchmark, runs) for name, runs in zip(methods, queried[index], strict=True)]
        for index, benchmark in enumerate(benchmarks)
    ]


def run_together(
    method: str, benchmark: Benchmark, *, n_queries: int, seed: int, run_numbers: Sequence[int]
) -> list[list[int]]:
    """Advance several runs of a method together; each run has the same result as if it were alone.

    Returns:
        For each run, the queried architectures in order.
    """
    optimiser_class = find_method(method).optimiser
    optimisers = [
        optimiser_class(
            benchmark.cells, np.random.default_rng([seed, run_number, *method.encode()]), n_queries=n_queries
        )
        for run_number in run_numbers
    ]
    queried: list[list[int]] = [[] for _ in run_numbers]
    for _ in range(n_queries):
        optimiser_class.prepare(optimisers)
        for optimiser, architectures in zip(optimisers, queried, strict=True):
            architecture = optimiser.ask()
            optimiser.tell(architecture, float(benchmark.values[architecture]))
            architectures.append(architecture)
    return queried


_Job = tuple[int, str, range]
"""Index of a benchmark, name of a method, and numbers of the runs."""

_worker_benchmarks: dict[int, Benchmark] = {}
"""Benchmarks by index, in a worker process."""


def _iter_finished_jobs(
    benchmarks: Sequence[Benchmark], jobs: Sequence[_Job], n_queries: int, seed: int, processes: int
) -> Iterator[tuple[_Job, list[list[int]]]]:
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
            "out. Free some memory, and run the same command again."
        ) from error
    finally:
        stop_writer.close()  # ends the worker processes and their remaining runs
        with delaying_interrupts():
            pool.shutdown(cancel_futures=True)
        stop_reader.close()


def _start_worker(benchmarks: Sequence[Benchmark], stop_reader: Connection) -> None:
    _worker_benchmarks.update(enumerate(benchmarks))
    end_with_parent(stop_reader)


def _run_in_worker(job: _Job, n_queries: int, seed: int) -> list[list[int]]:
    return _run_job(_worker_benchmarks[job[0]], job, n_queries, seed)


def _run_job(benchmark: Benchmark, job: _Job, n_queries: int, seed: int) -> list[list[int]]:
    _, name, chunk = job
    with threadpool_limits(1, "blas"):  # matrices are small, and each CPU has its own process
        return run_together(name, benchmark, n_queries=n_queries, seed=seed, run_numbers=chunk)
