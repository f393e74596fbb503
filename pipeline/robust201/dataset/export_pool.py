"""A pool of processes that write result files. Each process writes the files of one key at a time."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from robust201.core.errors import StorageError
from robust201.core.processes import delaying_interrupts, end_with_parent, fork_server
from robust201.dataset.key_files import KeyFiles, KeyReport

MAX_PROCESSES = 6
"""Maximum number of processes, each of which needs up to 220 MB of its own (100 classes), so all need 1.5 GB."""

MIN_PARALLEL_EVALUATIONS = 20_000
"""Minimum number of evaluations whose export with several processes is faster."""


def default_processes(n_evaluations: int) -> int:
    """Return the number of processes for an export: one per usable CPU, or one in all for few evaluations."""
    return 1 if n_evaluations < MIN_PARALLEL_EVALUATIONS else min(len(os.sched_getaffinity(0)), MAX_PROCESSES)


def write_files(keys: Sequence[KeyFiles], processes: int) -> Iterator[KeyReport]:
    """Write the files of keys with several processes, or in this process if `processes` is 1.

    Raises:
        StorageError: a process died, or writing failed. Unfinished files are deleted.
    """
    if processes == 1:
        yield from map(KeyFiles.write, keys)
        return
    context = fork_server(["robust201.dataset.key_files", "robust201.dataset.shard_rows"])
    stop_reader, stop_writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=end_with_parent, initargs=(stop_reader,))
    try:
        with delaying_interrupts():
            futures = [pool.submit(KeyFiles.write, key) for key in keys]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise StorageError(
            "Exporting failed for a worker process: it died before its file was complete, possibly because memory ran "
            "out. Free some memory, and run the same command again."
        ) from error
    finally:
        stop_writer.close()  # ends the processes, whatever they are writing
        with delaying_interrupts():
            pool.shutdown(cancel_futures=True)
        stop_reader.close()
