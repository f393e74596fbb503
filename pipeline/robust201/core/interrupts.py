"""Handling of Ctrl-C, SIGTERM and SIGUSR1: a run drains; every other command ends as on Ctrl-C.

A batch system sends SIGUSR1 some time before a job's time limit (`sbatch --signal`).

Python calls a signal handler between any two instructions of the main thread. An exception raised in a destructor is
printed and dropped, and one raised in an import leaves a half-imported module, which causes other errors. Therefore
the interrupt is raised outside imports only, raised again if it was dropped, and replaces errors that it causes.
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
"""Time after which a signal interrupts even an import, which may hang."""


class SignalInterrupt(KeyboardInterrupt):
    """A signal requested an immediate stop; in a worker, a plain KeyboardInterrupt comes from user code."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"signal {signum}")
        self.signal = signum


class DrainDeadlineError(BaseException):
    """Draining took too long, so the evaluations in progress are abandoned.

    Not an `Exception`, so that evaluation code does not catch it.
    """


@dataclass
class DrainRequest:
    """State of a request to drain a run.

    Attributes:
        signal: number of the signal that requested it; None if there is no request yet.
        is_expired: whether the deadline for draining has passed.
    """

    signal: int | None = None
    is_expired: bool = False
    _is_interruptible: bool = False

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def is_time_limit(self) -> bool:
        """Whether the signal announced a time limit, and no person asked the run to stop."""
        return self.signal == signal.SIGUSR1

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the deadline interrupt a block; after the deadline, the block is not entered.

        Raises:
            DrainDeadlineError: the deadline has passed before or during the block.
        """
        self._is_interruptible = True
        try:
            if self.is_expired:
                raise DrainDeadlineError
            yield
        finally:
            self._is_interruptible = False

    def expire(self) -> None:
        """Mark the deadline as passed and interrupt an interruptible block; must be called in the main thread."""
        self.is_expired = True
        if self._is_interruptible:
            raise DrainDeadlineError


def _stop(signum: int) -> None:
    raise SignalInterrupt(signum)


@contextmanager
def _interrupting() -> Iterator[Callable[[Callable[[], None], FrameType | None], None]]:
    """Yield a function with which signal handlers raise an interrupt in the block.

    Its first argument raises the interrupt; it is called outside imports, and again if the interrupt was dropped. Its
    second argument is the frame that the signal interrupted.

    Raises:
        SignalInterrupt: an interrupt was raised; it also replaces all later exceptions.
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
        # A system timer and not a thread, because the main thread may own any lock here.
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

    `say` receives a line about the request. The deadline (see `DrainRequest.interruptible`) is `drain_seconds` later.
    """
    request = DrainRequest()
    timer: threading.Timer | None = None
    deadline_passed, is_over = threading.Event(), threading.Event()
    ending = threading.Lock()

    def on_deadline() -> None:
        # Only a signal interrupts a wait of the main thread; after our handler is removed, it would end the process.
        with ending:
            if not is_over.is_set():
                deadline_passed.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal timer
        if deadline_passed.is_set() and not request.is_expired and not is_over.is_set():
            request.is_expired = True  # immediately, although the interrupt may be delayed
            interrupt(request.expire, frame)
            return
        if request():
            is_over.set()  # the deadline must not replace this interrupt, which may be delayed
            interrupt(partial(_stop, signum), frame)
            return
        request.signal = signum
        if drain_seconds is not None:
            timer = threading.Timer(drain_seconds, on_deadline)
            timer.daemon = True
            timer.start()
        # In a thread, because the signal may have interrupted the output of another line.
        limit = "" if drain_seconds is None else f", or in {drain_seconds:g} s"
        line = f"Stopping after the evaluations in progress{limit}; a second signal stops immediately."
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
            with ending:
                is_over.set()
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def ending_signals_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 end a command like Ctrl-C, so that temporary files and leases are removed.

    Ctrl-C also becomes a `SignalInterrupt`, unless it is ignored.
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
