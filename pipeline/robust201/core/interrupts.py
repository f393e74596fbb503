"""Handle Ctrl-C, SIGTERM and SIGUSR1.

Any of these signals makes a run drain: it finishes the evaluations in progress and starts no others. Every other
command ends immediately, as Python programs do on Ctrl-C. Batch systems send SIGUSR1 shortly before a job's time limit
(`sbatch --signal`).

Python calls a signal handler between any two instructions of the main thread. An exception raised in a destructor is
printed and dropped, and one raised in an import leaves a half-imported module, which causes other errors. Therefore
this module raises an interrupt only outside imports, raises it again if Python dropped it, and raises it in place of
the errors that it causes.
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

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_RETRY_SECONDS = 0.02
"""Delay before a postponed or dropped interrupt is raised again."""

_MAX_IMPORT_SECONDS = 10.0
"""Time after which a signal interrupts even an import, which may hang."""


class SignalInterrupt(KeyboardInterrupt):
    """A signal requested an immediate stop. In a worker, any other KeyboardInterrupt comes from user code."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"signal {signum}")
        self.signal = signum


class DrainDeadlineError(BaseException):
    """Draining took too long, so the evaluations in progress are abandoned.

    It is not an `Exception`, so that evaluation code does not catch it.
    """


@dataclass
class DrainRequest:
    """State of a request to drain a run.

    Attributes:
        signal: number of the signal that requested draining; None if there is no request yet.
        is_expired: whether the deadline for draining has passed.

    Calling the object returns whether draining has been requested.
    """

    signal: int | None = None
    is_expired: bool = False
    _is_interruptible: bool = False

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def is_time_limit(self) -> bool:
        """Whether the signal announced a time limit, instead of a request to stop."""
        return self.signal == signal.SIGUSR1

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the deadline interrupt a block.

        Raises:
            DrainDeadlineError: the deadline passed during the block or earlier; if earlier, the block is not entered.
        """
        self._is_interruptible = True
        try:
            if self.is_expired:
                raise DrainDeadlineError
            yield
        finally:
            self._is_interruptible = False

    def expire(self) -> None:
        """Mark the deadline as passed, and interrupt an interruptible block; call it in the main thread only."""
        self.is_expired = True
        if self._is_interruptible:
            raise DrainDeadlineError


def _raise_interrupt(signum: int) -> None:
    raise SignalInterrupt(signum)


@contextmanager
def _provide_interrupt_function() -> Iterator[Callable[[Callable[[], None], FrameType | None], None]]:
    """Yield a function for signal handlers that raises an interrupt in the block.

    The first argument of the yielded function is a function that raises the interrupt. It is called outside imports,
    and again if Python dropped the interrupt. The second argument is the frame that the signal interrupted.

    Raises:
        SignalInterrupt: an interrupt was raised; it also replaces all later exceptions.
    """
    raised_interrupt: SignalInterrupt | None = None
    latest_raise_interrupt: Callable[[], None] | None = None
    original_hook = sys.unraisablehook
    previous_alarm_handler: Any = None

    def interrupt(raise_interrupt: Callable[[], None], frame: FrameType | None, start: float | None = None) -> None:
        nonlocal raised_interrupt, latest_raise_interrupt
        start = start or time.monotonic()
        if _is_importing(frame) and time.monotonic() - start < _MAX_IMPORT_SECONDS:
            interrupt_later(raise_interrupt, start)
            return
        latest_raise_interrupt = raise_interrupt
        try:
            raise_interrupt()
        except SignalInterrupt as error:
            raised_interrupt = error
            raise

    def interrupt_later(raise_interrupt: Callable[[], None], start: float | None = None) -> None:
        # This uses a system timer instead of a thread, because the main thread may own any lock here.
        nonlocal previous_alarm_handler
        replaced_handler = signal.signal(
            signal.SIGALRM, lambda _signum, frame: interrupt(raise_interrupt, frame, start)
        )
        if previous_alarm_handler is None:  # SIG_DFL is falsy
            previous_alarm_handler = replaced_handler
        signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)

    def retry_dropped_interrupt(unraisable: Any) -> None:
        if (
            isinstance(unraisable.exc_value, SignalInterrupt | DrainDeadlineError)
            and latest_raise_interrupt is not None
        ):
            interrupt_later(latest_raise_interrupt)
        else:
            original_hook(unraisable)

    sys.unraisablehook = retry_dropped_interrupt
    try:
        yield interrupt
    except Exception as error:
        if raised_interrupt is None:
            raise
        raise SignalInterrupt(raised_interrupt.signal) from error
    finally:
        sys.unraisablehook = original_hook
        if previous_alarm_handler is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous_alarm_handler)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether an import statement is being executed, directly or by a caller of the frame.

    Executing a user's file with `core.user_code` does not count as an import.
    """
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def draining_on_signals(
    print_line: Callable[[str], None], drain_seconds: float | None = None
) -> Iterator[DrainRequest]:
    """Turn the first Ctrl-C, SIGTERM or SIGUSR1 into a request to drain; a second one interrupts immediately.

    `print_line` is called with a message about the request. The deadline (see `DrainRequest.interruptible`) is
    `drain_seconds` after the request.
    """
    request = DrainRequest()
    timer: threading.Timer | None = None
    deadline_passed, deadline_cancelled = threading.Event(), threading.Event()
    deadline_lock = threading.Lock()

    def on_deadline() -> None:
        # Only a signal interrupts a wait of the main thread. Without our handler, that signal would end the process.
        with deadline_lock:
            if not deadline_cancelled.is_set():
                deadline_passed.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal timer
        if deadline_passed.is_set() and not request.is_expired and not deadline_cancelled.is_set():
            request.is_expired = True  # immediately, although the interrupt may be delayed
            interrupt(request.expire, frame)
            return
        if request():
            deadline_cancelled.set()  # the deadline must not replace this interrupt, which may be delayed
            interrupt(partial(_raise_interrupt, signum), frame)
            return
        request.signal = signum
        if drain_seconds is not None:
            timer = threading.Timer(drain_seconds, on_deadline)
            timer.daemon = True
            timer.start()
        # The line is printed in a thread, because the signal may have interrupted the output of another line.
        limit = "" if drain_seconds is None else f", or in {drain_seconds:g} s"
        message = f"Stopping after the evaluations in progress{limit}; a second signal stops immediately."
        threading.Thread(target=print_line, args=(message,), daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        yield request  # signals reach the main thread only
        return
    with _provide_interrupt_function() as interrupt:
        previous_handlers = {signum: signal.signal(signum, handle) for signum in (signal.SIGINT, *_STOP_SIGNALS)}
        try:
            yield request
        finally:
            if timer is not None:
                timer.cancel()
            with deadline_lock:
                deadline_cancelled.set()
            for signum, handler in previous_handlers.items():
                signal.signal(signum, handler)


@contextmanager
def stop_signals_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 end a command like Ctrl-C, so that temporary files and leases are removed.

    Ctrl-C also becomes a `SignalInterrupt`, unless it is ignored.
    """
    stop_signals = list(_STOP_SIGNALS)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        stop_signals.append(signal.SIGINT)
    with _provide_interrupt_function() as interrupt:

        def handle(signum: int, frame: FrameType | None) -> None:
            interrupt(partial(_raise_interrupt, signum), frame)

        previous_handlers = {signum: signal.signal(signum, handle) for signum in stop_signals}
        try:
            yield
        finally:
            for signum, handler in previous_handlers.items():
                signal.signal(signum, handler)
