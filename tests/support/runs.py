"""Runs of sweeps in this process, complete or killed."""

from robust201.run.sweep import run_sweep
from robust201.run.work import Moment, Tally
from robust201.sweep.config import SweepConfig
from robust201.sweep.filters import EVERYTHING, Filters


class KilledError(BaseException):
    """End of a run as if the process was killed."""


def run_inline(config: SweepConfig, filters: Filters = EVERYTHING, *, killed_after: int | None = None) -> Tally:
    """Run a sweep in this process; raise `KilledError` after a number of parts."""

    def kill(moment: Moment) -> None:
        if moment.tally.n_parts == killed_after:
            raise KilledError

    execution = config.execution.model_copy(update={"executor": "inline"})
    return run_sweep(config.model_copy(update={"execution": execution}), filters, on_moment=kill)
