"""Several processes that read files, each one file at a time."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from robust201.core.errors import StorageError
from robust201.core.processes import end_with_parent, fork_server, holding_interrupts

Job = TypeVar("Job")
Answer = TypeVar("Answer")

MAX_READERS = 8
"""Processes that read unless more are asked for."""


def default_readers() -> int:
    """How many processes read at once: the CPUs that this process may use, up to `MAX_READERS`."""
    return min(len(os.sched_getaffinity(0)), MAX_READERS)


def map_jobs(work: Callable[[Job], Answer], jobs: Sequence[Job], processes: int) -> list[Answer]:
    """Do some jobs, several at once.

    Args:
        work: a function of a module, which other processes can import.
        jobs: what it is called with; other processes get copies.
        processes: 1 does them in this process. With more, a script that calls this must guard its main part by
            ``if __name__ == "__main__"``.

    Returns:
        The answers, in the order of the jobs.

    Raises:
        StorageError: a process died. What `work` raises is raised here too.
    """
    processes = min(processes, len(jobs))
    if processes <= 1:
        return [work(job) for job in jobs]
    context = fork_server([work.__module__, "robust201.reader.parquet_results"])
    theirs, ours = context.Pipe(duplex=False)  # closing it ends the workers at once: a file takes a minute to read
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=end_with_parent, initargs=(theirs,))
    try:
        with holding_interrupts():
            futures = [pool.submit(work, job) for job in jobs]
        answers = [future.result() for future in futures]
        pool.shutdown()
    except BrokenProcessPool as error:
        raise StorageError(
            "Reading failed for a worker process: expected it to read its file, got its death (out of memory?). "
            "Run the same command again with --processes 1."
        ) from error
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)
        theirs.close()
    return answers
