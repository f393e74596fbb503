"""Handle Ctrl-C, SIGTERM and SIGUSR1.

Any of these signals makes a run drain: it finishes the evaluations in progress and starts no others. Every other
command ends immediately, as Python programs do on Ctrl-C. Batch systems send SIGUSR1 shortly before a job's time limit
(`sbatch --signal`).
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class SignalInterrupt(KeyboardInterrupt):
    """A signal requested an immediate stop. In a worker, any other KeyboardInterrupt comes from user code."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"signal {signum}")
        self.signal = signum


@contextmanager
def interrupt_on_stop_signals() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 end a command as Ctrl-C does, so that temporary files and locks are removed.

    Ctrl-C also becomes a `SignalInterrupt`, unless it is ignored. The handlers are restored afterwards.

    Raises:
        SignalInterrupt: a signal arrived. It replaces any exception from the block, because an interrupted import
            leaves a half-imported module, which causes other errors.
    """
    interrupts: list[SignalInterrupt] = []

    def handle(signum: int, _frame: FrameType | None) -> None:
        interrupts.append(SignalInterrupt(signum))
        raise interrupts[-1]

    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signals = _STOP_SIGNALS if is_ignored else (*_STOP_SIGNALS, signal.SIGINT)
    previous_handlers = {signum: signal.signal(signum, handle) for signum in signals}
    try:
        yield
    except Exception as error:
        if not interrupts:
            raise
        raise SignalInterrupt(interrupts[0].signal) from error
    finally:
        for signum, previous_handler in previous_handlers.items():
            signal.signal(signum, previous_handler)
