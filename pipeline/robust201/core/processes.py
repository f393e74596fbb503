"""Worker processes, which a fork server starts and which end with the process that requested them.

The fork server imports the libraries once, so a worker adds only the memory that it allocates itself. Workers end with
the requesting process even if it is killed, because an orphan could write into a folder that another run uses by then.
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

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def fork_server(modules: Sequence[str]) -> ForkServerContext:
    """Return a context that starts processes with `modules` already imported.

    The fork server imports the modules of the first call only; later calls in the same process cannot change them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules])
    return context


@contextmanager
def delaying_interrupts() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGUSR1 until the end of a block that starts a process.

    If an interrupt stopped the block in the middle, a process would be left that nobody waits for and that prints
    errors when its parent is gone. A terminal sends Ctrl-C to all processes. If the block starts the fork server, the
    server and its workers inherit a signal mask that blocks Ctrl-C, so they never receive it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    pending_signals: list[int] = []
    previous_handlers = {
        signum: signal.signal(signum, lambda signum, _frame: pending_signals.append(signum)) for signum in _STOP_SIGNALS
    }
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        for signum, handler in previous_handlers.items():
            signal.signal(signum, handler)
        if pending_signals:
            signal.raise_signal(pending_signals[0])


def end_with_parent(stop_pipe: Connection | None = None) -> None:
    """Make this worker process end when its parent dies, and leave Ctrl-C to the parent, which also receives it.

    The process also ends as soon as the other end of `stop_pipe` is closed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_wait_and_end, args=(stop_pipe,), daemon=True).start()


def _wait_and_end(stop_pipe: Connection | None) -> None:
    parent = multiprocessing.parent_process()
    awaited_objects: list[Any] = [] if parent is None else [parent.sentinel]
    awaited_objects += [] if stop_pipe is None else [stop_pipe]
    if awaited_objects:
        wait_for(awaited_objects)
        os._exit(1)
