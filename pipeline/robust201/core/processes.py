"""Worker processes: they are started by a fork server and end with the process that started them.

The fork server has imported the libraries once, so a worker adds only the memory it allocates itself. Workers end with
the process that started them, however it ends: an orphan could read on, or write into a folder that is in use again.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import ForkServerContext
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def fork_server(modules: Sequence[str]) -> ForkServerContext:
    """Return a context whose processes start with modules imported; only the first call of a process sets them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules])
    return context


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGUSR1 until the block has ended, for the start of a process.

    Nobody waits for a partly started process, and it prints errors when its parent is gone. The fork server that the
    block starts, and so its workers, never receive Ctrl-C, which a terminal sends to all of them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    pending: list[int] = []
    previous = {number: signal.signal(number, lambda number, _frame: pending.append(number)) for number in _ENDING}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in previous.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])


def end_with_parent(stopped: Connection | None = None) -> None:
    """Make this worker process end when its parent dies, and leave Ctrl-C to the parent, which also receives it.

    It also ends as soon as the other end of the pipe `stopped` is closed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_wait_and_end, args=(stopped,), daemon=True).start()


def _wait_and_end(stopped: Connection | None) -> None:
    parent = multiprocessing.parent_process()
    watched: list[Any] = [] if parent is None else [parent.sentinel]
    watched += [] if stopped is None else [stopped]
    if watched:
        wait_for(watched)
        os._exit(1)
