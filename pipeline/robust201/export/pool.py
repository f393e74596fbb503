"""Several processes that write files of results, each one file at a time."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from robust201.core.errors import StorageError
from robust201.core.processes import end_with_parent, fork_server, holding_interrupts
from robust201.export.written_file import ExportStoppedError, ResultFile, WrittenFile

MEMORY_BYTES = 1_500_000_000
"""Bound on what all processes hold together (proportional set sizes), by which their number is chosen."""

WORKER_BYTES = 110_000_000
"""What a process that writes JSON of 120 classes holds; ``python -m benchmarks.export`` measures one of 100."""

PARQUET_WORKER_BYTES = 190_000_000
"""What a process that writes Parquet holds in the mean while all are busy; its row groups lie beside those it reads."""

FORK_SERVER_BYTES = 50_000_000

POOL_CACHE_BYTES = 192 << 20
"""Bound on the decoded row groups that all processes keep together."""

_POLL_SECONDS = 0.5

_stopped: Any = None
_rows: Any = None


def default_processes(*, parquet: bool) -> int:
    """How many processes an export uses: the CPUs that this process may use, as far as `MEMORY_BYTES` allows."""
    return min(len(os.sched_getaffinity(0)), most_processes(parquet=parquet))


def most_processes(*, parquet: bool) -> int:
    """How many processes stay below `MEMORY_BYTES` together with this one, which holds the inventory by now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    room = MEMORY_BYTES - FORK_SERVER_BYTES - pages * os.sysconf("SC_PAGE_SIZE")
    return max(1, room // (PARQUET_WORKER_BYTES if parquet else WORKER_BYTES))


def write_files(files: Iterable[ResultFile], processes: int, on_rows: Callable[[int], None]) -> Iterator[WrittenFile]:
    """Write files of results, made as processes become free, in this process where one is asked for.

    Yields each file when it is whole; `on_rows` receives now and then how many rows are written in all.

    Raises:
        StorageError: a process died, or see `ResultFile.write`. Other files in the making are abandoned.
    """
    if processes > 1:
        yield from _write_in_pool(files, processes, on_rows)
        return
    n_rows = 0

    def count(n_units: int) -> None:
        nonlocal n_rows
        n_rows += n_units
        on_rows(n_rows)

    for file in files:
        yield file.write(count)


def _write_in_pool(
    files: Iterable[ResultFile], processes: int, on_rows: Callable[[int], None]
) -> Iterator[WrittenFile]:
    from robust201.core.memory import give_back_freed_memory

    context = fork_server(["robust201.export.json_files", "robust201.shards"])
    # This process takes no lock that a worker may hold when it is killed.
    stopped, rows = context.RawValue("b", 0), context.Value("q", 0)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start, initargs=(stopped, rows))
    give_back_freed_memory()  # this process keeps what it holds now as long as the others work
    left = iter(files)
    pending: set[Future[WrittenFile]] = set()
    try:
        while True:
            # One file waits beside those that run: making more would hold their rows in memory for nothing.
            while len(pending) <= processes and (file := next(left, None)) is not None:
                with holding_interrupts():
                    pending.add(pool.submit(_write, file))
            if not pending:
                break
            done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            on_rows(rows.get_obj().value)
            for future in done:
                yield future.result()
        on_rows(rows.get_obj().value)
    except BrokenProcessPool as error:
        raise StorageError(
            "Exporting failed for a worker process: expected it to finish its file, got a process that died, perhaps "
            "for lack of memory. Run the same command again, with fewer --processes."
        ) from error
    finally:
        with holding_interrupts():  # a second one would leave workers that nobody has told to stop
            stopped.value = 1
            pool.shutdown(cancel_futures=True)


def _start(stopped: Any, rows: Any) -> None:
    global _stopped, _rows  # what a worker is given at its start has no other place
    _stopped, _rows = stopped, rows
    end_with_parent()


def _write(file: ResultFile) -> WrittenFile:
    return file.write(_count_rows)


def _count_rows(n_units: int) -> None:
    with _rows.get_lock():
        _rows.value += n_units
    if _stopped.value:
        raise ExportStoppedError(
            "Exporting failed for a file: expected to finish it, got a request to stop. Export again."
        )
