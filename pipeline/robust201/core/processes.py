"""Processes that work for this one: they come from a fork server, and end with the process that started them.

The fork server has imported the libraries once, so a worker adds only what it allocates itself. Workers end with the
process that started them, however that ends: an orphan would go on reading, or put a file among those of somebody else.
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
    """Make the context of processes that begin with some modules imported: those of the first call in a process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules])
    return context


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


def end_with_parent(stopped: Connection | None = None) -> None:
    """Let this process, a worker, end when its parent has died, and leave Ctrl-C to the parent, which hears it too.

    It ends at once when the other end of the pipe `stopped` is closed, too.
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
