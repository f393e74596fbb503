"""What every worker does, for sweeps and for trainings: parts one by one, with a heartbeat, a log and receipts."""

import threading
import traceback
from collections.abc import Iterator

import torch

from robust201.core.errors import StorageError, WorkerBrokenError
from robust201.core.interrupts import SignalInterrupt
from robust201.core.records import Bundle, Part, Receipt, UnitFailure
from robust201.runtime.devices import choose_device, is_out_of_memory
from robust201.runtime.executors.base import WorkSettings
from robust201.runtime.heartbeat import Heartbeat
from robust201.runtime.work_log import WorkLog

_CODE_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""What a user's code may raise."""


class PartWorker:
    """Computes bundles in this process, on `device`; a subclass says how a part is computed.

    Raises:
        ConfigError: this machine lacks the device or the precision that the work asks for.
    """

    doing = "Evaluating"
    """The work's name in messages."""

    def __init__(self, config: WorkSettings) -> None:
        self.device = choose_device(config.execution.device, config.precision)
        self._results = config.results
        self._log = WorkLog(config.results)
        self._draining = threading.Event()

    def compute(self, part: Part, heartbeat: Heartbeat) -> Iterator[Receipt]:
        """Compute a part, and yield a receipt for each of its strengths, or several, once they are stored."""
        raise NotImplementedError

    def use_less_memory(self, part: Part) -> bool:
        """Arrange to need less memory after it ran out under a part; False if that is impossible."""
        del part
        return False

    def drain(self) -> None:
        """Stop after the part in progress; callable from another thread."""
        self._draining.set()

    def run(self, bundle: Bundle) -> Iterator[Receipt | UnitFailure]:
        with Heartbeat(self._results) as heartbeat:
            for part in bundle.parts:
                if self._draining.is_set():
                    return
                heartbeat.begin(part)
                with self._log.about(part):
                    images = f"{part.start}:{part.stop}" if part.unit.n_images > 1 else None
                    self._log.write("part_started", strengths=part.strengths, images=images)
                    for outcome in self._attempt(part, heartbeat):
                        self._log.write_outcome(outcome)
                        yield outcome

    def _attempt(self, part: Part, heartbeat: Heartbeat) -> Iterator[Receipt | UnitFailure]:
        remaining, attempt = part.strengths, 1
        while True:
            if attempt > 1 and self.device.type == "cuda":
                # Not where the error was caught: until that ends, it holds what the evaluation held.
                torch.cuda.empty_cache()
            try:
                for receipt in self.compute(Part(part.unit, remaining, part.start, part.stop), heartbeat):
                    remaining = tuple(strength for strength in remaining if strength not in receipt.strengths)
                    yield receipt
            except _CODE_ERRORS as error:
                is_of_part = not isinstance(error, StorageError | SignalInterrupt)
                if not (is_of_part and is_out_of_memory(error) and self.use_less_memory(part)):
                    rest = Part(part.unit, remaining, part.start, part.stop)
                    yield self._failure_of(error, rest, attempt)
                    return
                attempt += 1
            else:
                return

    def _failure_of(self, error: BaseException, rest: Part, attempt: int) -> UnitFailure:
        """Return the failure of what is not done of a part, for an error that is being handled.

        Raises:
            StorageError: the error is one: results cannot be written, and the run must stop.
            SignalInterrupt: the error is one: a signal ended the work, not its code.
            WorkerBrokenError: the device failed, so that this process can compute nothing any more.
        """
        if isinstance(error, StorageError):
            self._log.write("storage_failed", str(error), level="error")
            raise error
        if isinstance(error, SignalInterrupt):
            raise error
        if isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error):
            self._log.write("device_failed", str(error), level="error", traceback=traceback.format_exc())
            raise WorkerBrokenError(
                f"{self.doing} failed for {rest.label}: expected a working {self.device.type} device, got {error}. Its "
                "process cannot continue; a new one resumes its work."
            ) from error
        kind = "memory" if is_out_of_memory(error) else "application"
        message = " ".join(f"{type(error).__name__}: {error}".split())  # torch may append the frames of C++
        return UnitFailure(rest, kind, message, traceback.format_exc(), attempt)
