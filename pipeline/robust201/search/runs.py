"""Runs of search methods, distributed among processes."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from robust201.core.errors import EvaluationError
from robust201.search.cells import SearchCells
from robust201.search.methods import find_method


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Cells that a search may query, with their values of an objective.

    Attributes:
        cells: the cells that may be queried.
        values: (n,) by cell index; higher is better. Isomorphic cells have the same value.
    """

    cells: SearchCells
    values: NDArray[np.float64]

    def best(self, queried: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the best cell of each run, given the queried cells (runs, queries); of equal cells, the first."""
        positions = self.values[queried].argmax(axis=1)
        return np.take_along_axis(queried, positions[:, None], axis=1)[:, 0]


def run_methods(
    benchmarks: Sequence[Benchmark],
    methods: Sequence[str],
    *,
    n_queries: int,
    n_runs: int,
    seed: int = 0,
    processes: int | None = None,
    on_progress: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> NDArray[np.int64]:
    """Run methods on benchmarks.

    Equal seeds give equal runs for any number of processes, because the random numbers of a run depend only on the
    seed, the method and the number of the run.

    Args:
        benchmarks: benchmarks to search.
        methods: names of the methods.
        n_queries: number of queries of a run, at most the number of members.
        n_runs: number of runs of each method on each benchmark.
        seed: seed of all random numbers.
        processes: maximum number of processes; by default one per CPU that this process may use. With 1, no other
            process is started.
        on_progress: called after each run with the number of finished runs and the number of all runs.

    Returns:
        (benchmarks, methods, runs, queries) cells in the order of their queries.

    Raises:
        EvaluationError: a process died.
    """
    # Methods are submitted in order. `METHODS` begins with the slowest one, so that the processes finish together.
    jobs = [(index, method, run) for method in methods for index in range(len(benchmarks)) for run in range(n_runs)]
    n_cpus = len(os.sched_getaffinity(0))
    parallel = Parallel(min(len(jobs), n_cpus, processes or n_cpus), return_as="generator_unordered", batch_size=1)
    queried = np.empty((len(benchmarks), len(methods), n_runs, n_queries), dtype=np.int64)
    try:
        finished = parallel(delayed(_run_job)(benchmarks[job[0]], job, n_queries, seed) for job in jobs)
        for n_finished, ((index, method, run), trace) in enumerate(finished, start=1):
            queried[index, methods.index(method), run] = trace
            on_progress(n_finished, len(jobs))
    except BrokenProcessPool as error:
        raise EvaluationError(
            "Searching failed for a worker process: it died before finishing its runs, perhaps because memory ran "
            "out. Free some memory, and run the same command again."
        ) from error
    return queried


_Job = tuple[int, str, int]
"""Index of a benchmark, name of a method, and number of the run."""


def _run_job(benchmark: Benchmark, job: _Job, n_queries: int, seed: int) -> tuple[_Job, list[int]]:
    _, method, run = job
    with threadpool_limits(1, "blas"):  # matrices are small, and each CPU has its own process
        return job, run_method(method, benchmark, n_queries=n_queries, seed=seed, run=run)


def run_method(method: str, benchmark: Benchmark, *, n_queries: int, seed: int, run: int) -> list[int]:
    """Return the architectures that a run of a method queries, in order."""
    rng = np.random.default_rng([seed, run, *method.encode()])
    optimiser = find_method(method)(benchmark.cells, rng, n_queries=n_queries)
    queried = []
    for _ in range(n_queries):
        architecture = optimiser.ask()
        optimiser.tell(architecture, float(benchmark.values[architecture]))
        queried.append(architecture)
    return queried
