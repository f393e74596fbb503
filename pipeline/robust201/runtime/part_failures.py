"""What a worker makes of an error that ended a part: a failure of that part, or its own end."""

import traceback
from collections.abc import Sequence

import torch

from robust201.core.errors import StorageError, WorkerBrokenError
from robust201.core.interrupts import SignalInterrupt
from robust201.core.records import Part, UnitFailure
from robust201.runtime.devices import is_out_of_memory
from robust201.runtime.work_log import WorkLog

CODE_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""What a user's code may raise."""


def failure_of(
    error: BaseException,
    part: Part,
    strengths: Sequence[float],
    *,
    log: WorkLog,
    device: torch.device,
    doing: str,
    attempt: int = 1,
) -> UnitFailure:
    """Return the failure of the strengths of a part that are not done yet.

    Raises:
        StorageError: the error is one: results cannot be written, and the run must stop.
        SignalInterrupt: the error is one: a signal ended the work, not its code.
        WorkerBrokenError: the device failed, so that this process can compute nothing any more.
    """
    if isinstance(error, StorageError):
        log.write("storage_failed", str(error), level="error")
        raise error
    if isinstance(error, SignalInterrupt):
        raise error
    if isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error):
        log.write("device_failed", str(error), level="error", traceback=traceback.format_exc())
        raise WorkerBrokenError(
            f"{doing} failed for {part.label}: expected a working {device.type} device, got {error}. Its process "
            "cannot continue; a new one resumes its work."
        ) from error
    kind = "memory" if is_out_of_memory(error) else "application"
    message = " ".join(f"{type(error).__name__}: {error}".split())  # torch may append the frames of C++
    rest = Part(part.unit, tuple(strengths), part.start, part.stop)
    return UnitFailure(rest, kind, message, traceback.format_exc(), attempt)
