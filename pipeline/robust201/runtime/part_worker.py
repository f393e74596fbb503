"""Base class of the workers of sweeps and training runs, which compute parts one by one and report their outcomes.

A part is the evaluation of one network on a range of images at some of the strengths of a key, or a training run with
several snapshots. Its outcomes are a receipt for each stored result and, if it fails, a failure.
"""

import threading
import traceback
from collections.abc import Iterator

import torch

from robust201.core.errors import StorageError, WorkerBrokenError
from robust201.core.interrupts import SignalInterrupt
from robust201.core.records import Bundle, Part, Receipt, UnitFailure
from robust201.models.device import choose_device, free_cached_memory, is_out_of_memory
from robust201.runtime.executors.base import WorkSettings
from robust201.runtime.heartbeat import Heartbeat
from robust201.runtime.work_log import WorkLog

_CODE_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""Exceptions that may come from a user's code and therefore fail only the part."""


class PartWorker:
    """Computes bundles in this process, on `device`; subclasses implement `compute`.

    Raises:
        ConfigError: this machine lacks the required device or precision.
    """

    activity = "Evaluating"
    """Name of the work in messages."""

    def __init__(self, config: WorkSettings) -> None:
        self.device = choose_device(config.execution.device, config.precision)
        self._results = config.results
        self._log = WorkLog(config.results)
        self._draining = threading.Event()

    def compute(self, part: Part, heartbeat: Heartbeat) -> Iterator[Receipt]:
        """Compute a part; yield a receipt after each commit of the results of one or more strengths."""
        raise NotImplementedError

    def use_less_memory(self) -> bool:
        """Reduce memory use after a part has run out of memory; return False if that is impossible."""
        return False

    def drain(self) -> None:
        """Stop after the part in progress; may be called from another thread."""
        self._draining.set()

    def run(self, bundle: Bundle) -> Iterator[Receipt | UnitFailure]:
        with Heartbeat(self._results) as heartbeat:
            for part in bundle.parts:
                if self._draining.is_set():
                    return
                heartbeat.begin(part)
                with self._log.about_part(part):
                    images = f"{part.start}:{part.stop}" if part.unit.n_images > 1 else None
                    self._log.write("part_started", strengths=part.strengths, images=images)
                    for outcome in self._compute_with_retries(part, heartbeat):
                        self._log.write_outcome(outcome)
                        yield outcome

    def _compute_with_retries(self, part: Part, heartbeat: Heartbeat) -> Iterator[Receipt | UnitFailure]:
        """Compute a part, retrying with less memory if it runs out; yield its receipts, and a failure if it fails."""
        remaining_strengths, attempt = part.strengths, 1
        while True:
            if attempt > 1:
                # Not in the `except` block, in which the error still keeps the tensors of the evaluation alive.
                free_cached_memory(self.device)
            try:
                for receipt in self.compute(Part(part.unit, remaining_strengths, part.start, part.stop), heartbeat):
                    remaining_strengths = tuple(
                        strength for strength in remaining_strengths if strength not in receipt.strengths
                    )
                    yield receipt
            except _CODE_ERRORS as error:
                may_retry = not isinstance(error, StorageError | SignalInterrupt)
                if not (may_retry and is_out_of_memory(error) and self.use_less_memory()):
                    remaining_part = Part(part.unit, remaining_strengths, part.start, part.stop)
                    yield self._make_failure(error, remaining_part, attempt)
                    return
                attempt += 1
            else:
                return

    def _make_failure(self, error: BaseException, remaining_part: Part, attempt: int) -> UnitFailure:
        """Return a `UnitFailure` for the remaining strengths of a part, in which `error` occurred.

        Raises:
            StorageError: `error` itself; results cannot be written, so the run must stop.
            SignalInterrupt: `error` itself; a signal interrupted the work.
            WorkerBrokenError: the device failed, so this process cannot continue.
        """
        if isinstance(error, StorageError):
            self._log.write("storage_failed", str(error), level="error")
            raise error
        if isinstance(error, SignalInterrupt):
            raise error
        if isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error):
            self._log.write("device_failed", str(error), level="error", traceback=traceback.format_exc())
            raise WorkerBrokenError(
                f"{self.activity} failed for {remaining_part.label}: the {self.device.type} device failed ({error}). "
                "The worker's process cannot continue; a new one resumes its work."
            ) from error
        failure_kind = "memory" if is_out_of_memory(error) else "application"
        message = " ".join(f"{type(error).__name__}: {error}".split())  # torch may append C++ stack frames
        return UnitFailure(remaining_part, failure_kind, message, traceback.format_exc(), attempt)
