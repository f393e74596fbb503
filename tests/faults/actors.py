"""Actors of the Ray executor with injected faults."""

from pathlib import Path
from typing import Any
from unittest import mock

from robust201.runtime.executors import ray as ray_executor
from tests.faults.injections import Injections

_Original = ray_executor._WorkerActor


class _WorkerActor(_Original):
    """The executor's actor, which first applies the trial's injections to its process; the class name must be equal."""

    def __init__(self, start: Any, folder: str) -> None:
        # The driver's working directory is the trial's folder, on all machines with access to it.
        Injections(Path(folder)).apply()
        super().__init__(start, folder)


def install() -> None:
    """Make the Ray executor of this process start these actors."""
    mock.patch.object(ray_executor, "_WorkerActor", _WorkerActor).start()
