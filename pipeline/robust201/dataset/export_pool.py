"""A pool of processes that write result files. Each process writes the files of one key at a time."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from robust201.core.errors import EvaluationError, StorageError
from robust201.core.processes import delaying_interrupts, end_with_parent, fork_server
from robust201.dataset.key_files import KeyFiles, KeyReport

MEMORY_BYTES = 1_500_000_000
"""Memory limit for all processes together, in bytes (sum of proportional set sizes). It limits their number."""

WORKER_BYTES = 190_000_000
"""Memory of a process that writes the files of a key (measured for 120 classes: 180 MB)."""

FORK_SERVER_BYTES = 50_000_000

MIN_PARALLEL_EVALUATIONS = 20_000
"""Minimum number of evaluations whose export with several processes is faster."""

_POLL_SECONDS = 0.5

_stop_flag: Any = None
_unit_counter: Any = None


class ExportStoppedError(EvaluationError):
    """Writing stopped because the export was interrupted, or failed for another key."""


def default_processes(n_evaluations: int) -> int:
    """Return the number of processes for an export: one per usable CPU, or one in all for few evaluations.

    Together with this process, they need less than `MEMORY_BYTES`.
    """
    if n_evaluations < MIN_PARALLEL_EVALUATIONS:
        return 1
    n_memory_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    available_bytes = MEMORY_BYTES - FORK_SERVER_BYTES - n_memory_pages * os.sysconf("SC_PAGE_SIZE")
    max_processes = max(1, available_bytes // WORKER_BYTES)
    return min(len(os.sched_getaffinity(0)), max_processes)


def write_files(keys: Iterable[KeyFiles], processes: int, on_units: Callable[[int], None]) -> Iterator[KeyReport]:
    """Write the files of keys with several processes, or in this process if `processes` is 1.

    A key is taken from the iterator when a process becomes free. `on_units` is called periodically with the total
    number of written units.

    Raises:
        StorageError: a process died, or writing failed. Unfinished files are deleted.
    """
    if processes > 1:
        yield from _write_in_pool(keys, processes, on_units)
        return
    n_units = 0

    def report_units(n_new_units: int) -> None:
        nonlocal n_units
        n_units += n_new_units
        on_units(n_units)

    for key in keys:
        yield key.write(report_units)


def _write_in_pool(keys: Iterable[KeyFiles], processes: int, on_units: Callable[[int], None]) -> Iterator[KeyReport]:
    from robust201.core.memory import give_back_freed_memory

    context = fork_server(["robust201.dataset.key_files", "robust201.dataset.shard_rows"])
    # This process reads the counter without its lock, because a killed worker may have left it locked.
    stop_flag, unit_counter = context.RawValue("b", 0), context.Value("q", 0)
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_start_worker, initargs=(stop_flag, unit_counter)
    )
    give_back_freed_memory()  # the memory of this process counts against the limit while the workers run
    remaining_keys = iter(keys)
    pending_futures: set[Future[KeyReport]] = set()
    try:
        while True:
            # Only one key is queued in addition to those being written, because each has names of files in memory.
            while len(pending_futures) <= processes and (key := next(remaining_keys, None)) is not None:
                with delaying_interrupts():
                    pending_futures.add(pool.submit(_write_in_worker, key))
            if not pending_futures:
                break
            finished_futures, pending_futures = wait(
                pending_futures, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED
            )
            on_units(unit_counter.get_obj().value)
            for future in finished_futures:
                yield future.result()
        on_units(unit_counter.get_obj().value)
    except BrokenProcessPool as error:
        raise StorageError(
            "Exporting failed for a worker process: it died before its file was complete, possibly because memory ran "
            "out. Free some memory, and run the same command again."
        ) from error
    finally:
        with delaying_interrupts():  # a second interrupt here would leave workers running
            stop_flag.value = 1
            pool.shutdown(cancel_futures=True)


def _start_worker(stop_flag: Any, unit_counter: Any) -> None:
    # Shared ctypes values reach the workers only through the initializer, not as arguments of `submit`.
    global _stop_flag, _unit_counter
    _stop_flag, _unit_counter = stop_flag, unit_counter
    end_with_parent()


def _write_in_worker(key: KeyFiles) -> KeyReport:
    return key.write(_count_units)


def _count_units(n_new_units: int) -> None:
    with _unit_counter.get_lock():
        _unit_counter.value += n_new_units
    if _stop_flag.value:
        raise ExportStoppedError(
            "Exporting failed for a file: the export was stopped before the file was complete. Export again."
        )
