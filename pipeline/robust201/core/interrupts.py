"""Ctrl-C, SIGTERM and SIGUSR1: a run drains, everything else ends as on Ctrl-C.

SIGUSR1 is what a batch system sends some time before a job's time limit (`sbatch --signal`).

Python calls the handler of a signal between any two instructions of the main thread. An exception raised there is
printed and dropped in a destructor, and in an import it leaves a half-imported module, which raises something else. So
the interrupt is raised only outside imports, again after it was dropped, and replaces errors that it causes.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGUSR1)
_RETRY_SECONDS = 0.02
_MAX_IMPORT_SECONDS = 10.0
"""Time after which a signal interrupts an import, too: the import may hang."""


class SignalInterrupt(KeyboardInterrupt):
    """A signal asked to stop at once; a plain KeyboardInterrupt in a worker was raised by user code."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"signal {signum}")
        self.signal = signum


class DrainDeadlineError(BaseException):
    """Draining took too long, so the evaluations in progress are abandoned.

    It is not an `Exception`, so that the code of an evaluation does not catch it.
    """


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


def _stop(signum: int) -> None:
    raise SignalInterrupt(signum)


@contextmanager
def _interrupting() -> Iterator[Callable[[Callable[[], None], FrameType | None], None]]:
    """Yield a function for signal handlers, which calls its argument to raise an interrupt from the block.

    It calls it outside imports, and again after the interrupt was dropped. Its second argument is the frame that the
    signal interrupted.

    Raises:
        SignalInterrupt: it was raised. Other exceptions are replaced by it from then on.
    """
    stopped: SignalInterrupt | None = None
    latest: Callable[[], None] | None = None
    unraisable = sys.unraisablehook
    previous_alarm: Any = None

    def interrupt(raise_interrupt: Callable[[], None], frame: FrameType | None, since: float | None = None) -> None:
        nonlocal stopped, latest
        since = since or time.monotonic()
        if _is_importing(frame) and time.monotonic() - since < _MAX_IMPORT_SECONDS:
            interrupt_later(raise_interrupt, since)
            return
        latest = raise_interrupt
        try:
            raise_interrupt()
        except SignalInterrupt as error:
            stopped = error
            raise

    def interrupt_later(raise_interrupt: Callable[[], None], since: float | None = None) -> None:
        # A timer of the system, not a thread: the main thread may hold any lock here.
        nonlocal previous_alarm
        replaced = signal.signal(signal.SIGALRM, lambda _signum, frame: interrupt(raise_interrupt, frame, since))
        if previous_alarm is None:  # SIG_DFL is falsy
            previous_alarm = replaced
        signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)

    def retry_dropped(dropped: Any) -> None:
        if isinstance(dropped.exc_value, SignalInterrupt | DrainDeadlineError) and latest is not None:
            interrupt_later(latest)
        else:
            unraisable(dropped)

    sys.unraisablehook = retry_dropped
    try:
        yield interrupt
    except Exception as error:
        if stopped is None:
            raise
        raise SignalInterrupt(stopped.signal) from error
    finally:
        sys.unraisablehook = unraisable
        if previous_alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous_alarm)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether an import statement is being executed; executing a user's file does not count as one."""
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


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
        if has_rung.is_set() and not request.is_expired and not is_over.is_set():
            request.is_expired = True  # at once, although the interrupt may come later
            interrupt(request.expire, frame)
            return
        if request():
            is_over.set()  # the deadline must not replace this interrupt, which may come later
            interrupt(partial(_stop, signum), frame)
            return
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
    with _interrupting() as interrupt:
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
    ending = list(_ENDING)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        ending.append(signal.SIGINT)
    with _interrupting() as interrupt:

        def handle(signum: int, frame: FrameType | None) -> None:
            interrupt(partial(_stop, signum), frame)

        previous = {number: signal.signal(number, handle) for number in ending}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
