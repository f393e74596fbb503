"""Watching a sweep until it is complete, or until nobody has worked on it for a while."""

from collections.abc import Callable
from typing import Literal

from robust201.core.errors import InputError
from robust201.monitoring.status import SweepStatus

Ending = Literal["complete", "abandoned"]

PATIENT_READINGS = 3
"""Readings in a row that may fail: a file server that is restarted shows its folders empty for a while."""


def watch(
    read: Callable[[], SweepStatus],
    show: Callable[[SweepStatus, float], None],
    *,
    every: float,
    patience: float,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
) -> Ending:
    """Read and show a sweep's status again and again.

    A sweep that is queued and has not begun, or whose tasks wait to be queued again, looks like one that nobody works
    on any more; `patience` tells them apart.
    """
    quiet_since: float | None = None
    n_failed = 0
    while True:
        try:
            state = read()
        except (InputError, OSError):
            n_failed += 1
            if n_failed > PATIENT_READINGS:
                raise
            sleep(every)
            continue
        n_failed = 0
        now = clock()
        quiet_since = None if state.running else now if quiet_since is None else quiet_since
        quiet = 0.0 if quiet_since is None else now - quiet_since
        show(state, quiet)
        if state.complete:
            return "complete"
        if quiet_since is not None and quiet >= patience:
            return "abandoned"
        sleep(every)
