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


class SignalInterrupt(KeyboardInterrupt):
    """A signal asked to stop at once; a plain KeyboardInterrupt in a worker was raised by code of the user's."""


class DrainDeadlineError(BaseException):
    """Draining took too long: what is in progress is abandoned. No evaluation's error, so no evaluation catches it."""


@dataclass
class DrainRequest:
    """Whether a run was asked to drain.

    Attributes:
        signal: number of the signal that asked; None as long as none did.
        is_expired: whether the deadline for draining has passed.
    """

    signal: int | None = None
    is_expired: bool = False
    _is_interruptible: bool = False

    def __call__(self) -> bool:
        """Say whether a signal asked."""
        return self.signal is not None

    @property
    def is_time_limit(self) -> bool:
        """Whether it was the signal of a time limit that is near, rather than somebody who wants the run to stop."""
        return self.signal == signal.SIGUSR1

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the deadline interrupt a block; once it has passed, none begins.

        Raises:
            DrainDeadlineError: it has passed, before the block or in the middle of it.
        """
        self._is_interruptible = True
        try:
            if self.is_expired:
                raise DrainDeadlineError
            yield
        finally:
            self._is_interruptible = False

    def expire(self) -> None:
        """Note that the deadline has passed; called in the main thread, where it interrupts an interruptible block."""
        self.is_expired = True
        if self._is_interruptible:
            raise DrainDeadlineError


@contextmanager
def draining_on_signals(say: Callable[[str], None], drain_seconds: float | None = None) -> Iterator[DrainRequest]:
    """Turn the first Ctrl-C, SIGTERM or SIGUSR1 into a request to drain; the second interrupts at once.

    `say` receives a line about the request, whose deadline (`DrainRequest.interruptible`) is `drain_seconds` later.
    """
    request = DrainRequest()
    timer: threading.Timer | None = None
    has_rung, is_over = threading.Event(), threading.Event()
    ringing = threading.Lock()

    def ring() -> None:
        # Only a signal interrupts what the main thread waits for; once our handler is gone, it would end the process.
        with ringing:
            if not is_over.is_set():
                has_rung.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal timer
        del frame
        if has_rung.is_set() and not request.is_expired:
            request.expire()
            return
        if request():
            raise SignalInterrupt(f"second signal {signum}")
        request.signal = signum
        if drain_seconds is not None:
            timer = threading.Timer(drain_seconds, ring)
            timer.daemon = True
            timer.start()
        # From a thread, because the signal may have come in the middle of another line.
        limit = "" if drain_seconds is None else f", or in {drain_seconds:g} s"
        line = f"Stopping after the evaluations in progress{limit}; a second signal stops at once."
        threading.Thread(target=say, args=(line,), daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        yield request  # signals reach the main thread only
        return
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, *_ENDING)}
    try:
        yield request
    finally:
        if timer is not None:
            timer.cancel()
        with ringing:
            is_over.set()
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def ending_signals_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 end a command as Ctrl-C does, so that temporary files and leases are removed.

    Ctrl-C, unless it is ignored, becomes a `SignalInterrupt`, too.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise SignalInterrupt

    ending = list(_ENDING)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ending.append(signal.SIGINT)
    previous = {number: signal.signal(number, interrupt) for number in ending}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
