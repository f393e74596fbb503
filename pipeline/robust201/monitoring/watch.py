"""Watch a sweep or trainings until they are complete or no process has computed them for a while."""

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

from robust201.core.errors import InputError

Ending = Literal["complete", "abandoned"]

PATIENT_READINGS = 3
"""Consecutive readings that may fail, since a restarting file server can show empty folders for a while."""


class Watched(Protocol):
    """The status that a reading returns."""

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""

    @property
    def running(self) -> bool:
        """Whether any process computes it."""


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
    """Read and show a status repeatedly.

    A sweep counts as abandoned after `patience` seconds without activity, since its tasks may wait in a queue.
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
