"""Ctrl-C, SIGTERM and SIGUSR1: a run drains, everything else ends as on Ctrl-C.

SIGUSR1 is what a batch system sends some time before a job's time limit (`sbatch --signal`).
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGUSR1)


@dataclass
class DrainRequest:
    """Whether a run was asked to drain.

    Attributes:
        signal: number of the signal that asked; None as long as none did.
    """

    signal: int | None = None

    def __call__(self) -> bool:
        """Say whether a signal asked."""
        return self.signal is not None

    @property
    def is_time_limit(self) -> bool:
        """Whether it was the signal of a time limit that is near, rather than somebody who wants the run to stop."""
        return self.signal == signal.SIGUSR1


@contextmanager
def draining_on_signals(say: Callable[[str], None]) -> Iterator[DrainRequest]:
    """Turn the first Ctrl-C, SIGTERM or SIGUSR1 into a request to drain; the second interrupts at once.

    Args:
        say: told of the request.

    Yields:
        What says whether draining was asked for.
    """
    request = DrainRequest()

    def handle(signum: int, frame: FrameType | None) -> None:
        del frame
        if request():
            raise KeyboardInterrupt(f"second signal {signum}")
        request.signal = signum
        # From a thread, because the signal may have come in the middle of another line.
        line = "Stopping after the parts in progress; once more stops at once."
        threading.Thread(target=say, args=(line,), daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        yield request  # signals reach the main thread only
        return
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, *_ENDING)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def ending_signals_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 end a command as Ctrl-C does, so that temporary files and leases are removed."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
