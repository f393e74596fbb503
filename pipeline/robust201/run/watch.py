"""Watches a sweep or training runs until the work is complete or no process has worked on it for a while."""

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

from robust201.core.errors import InputError

Ending = Literal["complete", "abandoned"]

MAX_FAILED_READINGS = 3
"""Maximum number of consecutive readings that may fail: a restarting file server can show empty folders for a while."""


class WatchedStatus(Protocol):
    """Status of a sweep or of training runs at one point in time."""

    @property
    def complete(self) -> bool:
        """Whether no result is missing."""

    @property
    def running(self) -> bool:
        """Whether any process is computing."""


_Status = TypeVar("_Status", bound=WatchedStatus)


def watch(
    read: Callable[[], _Status],
    show: Callable[[_Status, float], None],
    *,
    every: float,
    patience: float,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
) -> Ending:
    """Read and show a status every `every` seconds, until the work is complete or abandoned.

    Because tasks may wait in a queue, work counts as abandoned only after `patience` seconds without activity. `show`
    receives the status and the seconds since the last activity.
    """
    inactive_since: float | None = None
    n_failed_readings = 0
    while True:
        try:
            status = read()
        except (InputError, OSError):
            n_failed_readings += 1
            if n_failed_readings > MAX_FAILED_READINGS:
                raise
            sleep(every)
            continue
        n_failed_readings = 0
        current_time = clock()
        inactive_since = None if status.running else current_time if inactive_since is None else inactive_since
        inactive_seconds = 0.0 if inactive_since is None else current_time - inactive_since
        show(status, inactive_seconds)
        if status.complete:
            return "complete"
        if inactive_since is not None and inactive_seconds >= patience:
            return "abandoned"
        sleep(every)
