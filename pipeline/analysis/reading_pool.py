"""Several processes that read files, each one file at a time.

They come from a fork server that has imported the libraries once, and end with the process that started them, however
that ends.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any, TypeVar

from pipeline.errors import StorageError

Job = TypeVar("Job")
Answer = TypeVar("Answer")


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

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
    context = multiprocessing.get_context("forkserver")
    # A worker runs the script that started it up to its main part, so what that imports is loaded beforehand too.
    script = [name for name in ("pipeline.cli",) if name in sys.modules]
    context.set_forkserver_preload([work.__module__, "pipeline.analysis.parquet_results", *script])
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start, initargs=(theirs,))
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


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGUSR1 wait until the block has ended, as the start of a process must not stop halfway.

    A process that is half started is waited for by nobody, and complains when it finds its parent gone. The fork server
    that the block starts, and so its workers, never hear Ctrl-C, which a terminal sends to all of them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    held: list[int] = []
    previous = {number: signal.signal(number, lambda number, _frame: held.append(number)) for number in _ENDING}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in previous.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


def _start(stopped: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and stops its workers
    threading.Thread(target=_end_with_parent, args=(stopped,), daemon=True).start()


def _end_with_parent(stopped: Connection) -> None:
    """End this process when its parent has died or has closed its end of the pipe: a file takes a minute to read."""
    parent = multiprocessing.parent_process()
    watched: list[Any] = [stopped] if parent is None else [stopped, parent.sentinel]
    wait_for(watched)
    os._exit(1)
