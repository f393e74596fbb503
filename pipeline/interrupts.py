"""Ctrl-C and SIGTERM: a run drains, everything else ends as on Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def draining_on_signals(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a request to drain; the second interrupts at once.

    Args:
        say: told of the request.

    Yields:
        A function that says whether draining was asked for.
    """
    asked = threading.Event()

    def handle(signum: int, frame: FrameType | None) -> None:
        del frame
        if asked.is_set():
            raise KeyboardInterrupt(f"second signal {signum}")
        asked.set()
        # From a thread, because the signal may have come in the middle of another line.
        line = "Stopping after the parts in progress; once more stops at once."
        threading.Thread(target=say, args=(line,), daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # signals reach the main thread only
        return
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that temporary files and leases are removed."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
