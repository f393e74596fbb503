"""Handle Ctrl-C, SIGTERM and SIGUSR1.

Any of these signals makes a run drain: it finishes the evaluations in progress and starts no others. Every other
command ends immediately, as Python programs do on Ctrl-C. Batch systems send SIGUSR1 shortly before a job's time limit
(`sbatch --signal`).
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


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


_Handler = Callable[[int, FrameType | None], None]


@contextmanager
def _handle(signals: Iterable[int], handler: _Handler) -> Iterator[None]:
    """Handle signals in a block, and restore the previous handlers afterwards.

    Raises:
        SignalInterrupt: the handler raised it. It replaces an error of the block, because an interrupted import leaves
            a half-imported module, which causes other errors.
    """
    raised: list[SignalInterrupt] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        try:
            handler(signum, frame)
        except SignalInterrupt as interrupt:
            raised.append(interrupt)
            raise

    previous_handlers = {signum: signal.signal(signum, handle) for signum in signals}
    try:
        yield
    except Exception as error:
        if not raised:
            raise
        raise SignalInterrupt(raised[0].signal) from error
    finally:
        for signum, previous_handler in previous_handlers.items():
            signal.signal(signum, previous_handler)


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

    def handle(signum: int, _frame: FrameType | None) -> None:
        nonlocal timer
        if deadline_passed.is_set() and not request.is_expired:
            request.expire()
            return
        if request():
            raise SignalInterrupt(signum)
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
    with _handle((signal.SIGINT, *_STOP_SIGNALS), handle):
        try:
            yield request
        finally:
            if timer is not None:
                timer.cancel()
            with deadline_lock:
                deadline_cancelled.set()


@contextmanager
def stop_signals_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 end a command like Ctrl-C, so that temporary files and leases are removed.

    Ctrl-C also becomes a `SignalInterrupt`, unless it is ignored.
    """

    def handle(signum: int, _frame: FrameType | None) -> None:
        raise SignalInterrupt(signum)

    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with _handle(_STOP_SIGNALS if is_ignored else (*_STOP_SIGNALS, signal.SIGINT), handle):
        yield
