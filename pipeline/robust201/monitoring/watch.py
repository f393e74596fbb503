"""Watching a sweep or trainings until they are complete, or until nobody has worked on them for a while."""

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

from robust201.core.errors import InputError

Ending = Literal["complete", "abandoned"]

PATIENT_READINGS = 3
"""Readings in a row that may fail: a file server that is restarted shows its folders empty for a while."""


class Watched(Protocol):
    """What a reading says."""

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""

    @property
    def running(self) -> bool:
        """Whether anybody is at work."""


_Status = TypeVar("_Status", bound=Watched)


def watch(
    read: Callable[[], _Status],
    show: Callable[[_Status, float], None],
    *,
    every: float,
    patience: float,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
) -> Ending:
    """Read and show a status again and again.

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
