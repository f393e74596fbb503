"""Many runs of search methods, in several processes: what each asked for, and the best that it had after each query."""

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
from robust201.core.processes import end_with_parent, fork_server, holding_interrupts
from robust201.search.benchmark import Benchmark
from robust201.search.methods import find_method
from robust201.search.optimiser import Optimiser, Query

TOGETHER = 4
"""Runs that go on side by side in a process: networks of so many fit in a core's cache (see `search.ensemble`)."""

NOTHING = -1
"""In place of an architecture, where a run has none yet."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of one method on one benchmark.

    Attributes:
        method: its name in the table.
        benchmark: what was searched.
        asked: (runs, n) architectures wholly evaluated, in order, as far as the longest run goes; else `NOTHING`.
        ready: (runs, n) evaluations of whole objectives spent when each value arrived; inf after a run's end.
        n_queries: the budget of a run.
    """

    method: str
    benchmark: Benchmark
    asked: NDArray[np.int64]
    ready: NDArray[np.float64]
    n_queries: int

    def best_by_query(self) -> NDArray[np.int64]:
        """Return the best architecture of one objective after each query: (runs, n_queries); the first of equals."""
        values = np.where(self.asked == NOTHING, -np.inf, self.benchmark.values[self.asked, 0])
        so_far = np.maximum.accumulate(values, axis=1)
        is_new = np.diff(so_far, axis=1, prepend=-np.inf) > 0
        columns = np.broadcast_to(np.arange(values.shape[1]), values.shape)
        place = np.maximum.accumulate(np.where(is_new, columns, -1), axis=1)
        best = np.where(place < 0, NOTHING, np.take_along_axis(self.asked, np.maximum(place, 0), axis=1))
        return self._by_query(best)

    def _by_query(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the state after each whole query, of one after each evaluation."""
        budgets = np.arange(1, self.n_queries + 1) + 1e-9
        found = np.full((len(states), self.n_queries), NOTHING, dtype=np.int64)
        for run, (ready, row) in enumerate(zip(self.ready, states, strict=True)):
            last = np.searchsorted(ready, budgets, side="right") - 1
            found[run] = np.where(last < 0, NOTHING, row[np.maximum(last, 0)])
        return found


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

    Equal seeds give equal runs, whatever the number of processes. The draws of a run follow from the seed, the method
    and the number of the run.

    Args:
        benchmarks: what is searched.
        methods: names of the table.
        n_queries: budget of a run, in evaluations of whole objectives.
        n_runs: runs of each method on each benchmark.
        seed: of all draws.
        processes: how many, at most and by default one a CPU that this process may use. In this process where one is
            enough.
        on_progress: (runs done, all runs), called after each batch.

    Returns:
        For each benchmark, the runs of each method, in their order.

    Raises:
        EvaluationError: a process died.
    """
    chunks = [range(start, min(start + TOGETHER, n_runs)) for start in range(0, n_runs, TOGETHER)]
    # The slowest method comes first in the table: the processes end together if it is begun first.
    jobs = [(place, name, chunk) for name in methods for place in range(len(benchmarks)) for chunk in chunks]
    n_cpus = len(os.sched_getaffinity(0))
    n_processes = min(len(jobs), n_cpus, n_cpus if processes is None else processes)
    found: dict[tuple[int, str], list[_Trace]] = {(place, name): [] for place, name, _ in jobs}
    done = 0
    for (place, name, chunk), traces in _finished(benchmarks, jobs, n_queries, seed, n_processes):
        found[place, name] += zip(chunk, traces, strict=True)
        done += len(chunk)
        on_progress(done, len(benchmarks) * len(methods) * n_runs)
    return [
        [_gather(name, benchmark, found[place, name], n_queries) for name in methods]
        for place, benchmark in enumerate(benchmarks)
    ]


def run_together(
    method: str, benchmark: Benchmark, *, n_queries: int, seed: int, numbers: Sequence[int]
) -> list[tuple[list[int], list[float]]]:
    """Run a method several times side by side; each run as if it were alone.

    Returns:
        For each run, the architectures wholly evaluated and what was spent by then.
    """
    kind = find_method(method).optimiser
    optimisers = [_begin(kind, method, benchmark, n_queries, seed, number) for number in numbers]
    measured: list[dict[int, int]] = [{} for _ in numbers]
    spent = [0] * len(numbers)
    traces: list[tuple[list[int], list[float]]] = [([], []) for _ in numbers]
    running = list(range(len(numbers)))
    size = benchmark.n_evaluations
    while running:
        kind.prepare([optimisers[place] for place in running])
        for place in tuple(running):
            query = optimisers[place].ask()
            if query is None or spent[place] + (cost := _cost(query, size, measured[place])) > n_queries * size:
                running.remove(place)
                continue
            spent[place] += cost
            optimisers[place].tell(query, benchmark.evaluate(query))
            whole = query.n_evaluations is None or query.n_evaluations == size
            measured[place][query.architecture] = size if whole else query.n_evaluations or size
            if whole:
                traces[place][0].append(query.architecture)
                traces[place][1].append(spent[place] / size)
    return traces


def _cost(query: Query, size: int, measured: dict[int, int]) -> int:
    """Count the evaluations that a query adds; a whole one is paid in full, also if it was made before."""
    if query.n_evaluations is None:
        return size
    return max(0, query.n_evaluations - measured.get(query.architecture, 0))


def _begin(
    kind: type[Optimiser], method: str, benchmark: Benchmark, n_queries: int, seed: int, number: int
) -> Optimiser:
    return kind(
        benchmark.cells,
        np.random.default_rng([seed, number, *method.encode()]),
        n_queries=n_queries,
        n_objectives=benchmark.n_objectives,
        n_evaluations=benchmark.n_evaluations,
    )


_Job = tuple[int, str, range]
_Trace = tuple[int, tuple[list[int], list[float]]]

_in_worker: dict[int, Benchmark] = {}
"""The benchmarks by their place, in a worker process."""


def _finished(
    benchmarks: Sequence[Benchmark], jobs: Sequence[_Job], n_queries: int, seed: int, processes: int
) -> Iterator[tuple[_Job, list[tuple[list[int], list[float]]]]]:
    if processes <= 1:
        for job in jobs:
            yield job, _run(benchmarks[job[0]], job, n_queries, seed)
        return
    context = fork_server(["robust201.search.runs"])
    stopped, stopping = context.Pipe(duplex=False)
    initial = (tuple(benchmarks), stopped)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start, initargs=initial)
    try:
        with holding_interrupts():
            pending = {pool.submit(_work, job, n_queries, seed): job for job in jobs}
        for future in as_completed(pending):
            yield pending[future], future.result()
    except BrokenProcessPool as error:
        raise EvaluationError(
            "Searching failed for a worker process: expected it to finish its runs, got a process that died, perhaps "
            "for lack of memory. Run the same command again, with fewer --processes."
        ) from error
    finally:
        stopping.close()  # workers that are not done end in the middle of their runs, which nobody waits for
        with holding_interrupts():
            pool.shutdown(cancel_futures=True)
        stopped.close()


def _start(benchmarks: Sequence[Benchmark], stopped: Connection) -> None:
    _in_worker.update(enumerate(benchmarks))
    end_with_parent(stopped)


def _work(job: _Job, n_queries: int, seed: int) -> list[tuple[list[int], list[float]]]:
    return _run(_in_worker[job[0]], job, n_queries, seed)


def _run(benchmark: Benchmark, job: _Job, n_queries: int, seed: int) -> list[tuple[list[int], list[float]]]:
    _, name, chunk = job
    with threadpool_limits(1, "blas"):  # matrices are small, and other CPUs have processes of their own
        return run_together(name, benchmark, n_queries=n_queries, seed=seed, numbers=chunk)


def _gather(method: str, benchmark: Benchmark, traces: Sequence[_Trace], n_queries: int) -> Runs:
    ordered = [trace for _, trace in sorted(traces, key=lambda one: one[0])]
    longest = max((len(asked) for asked, _ in ordered), default=0)
    asked = np.full((len(ordered), longest), NOTHING, dtype=np.int64)
    ready = np.full((len(ordered), longest), np.inf)
    for run, (architectures, spent) in enumerate(ordered):
        asked[run, : len(architectures)] = architectures
        ready[run, : len(spent)] = spent
    return Runs(method, benchmark, asked, ready, n_queries)
