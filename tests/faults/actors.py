"""Actors of the Ray executor with injected faults."""

from pathlib import Path
from typing import Any
from unittest import mock

from robust201.runtime.executors import ray as ray_executor
from tests.faults.injections import Injections

_Original = ray_executor._WorkerActor


class _WorkerActor(_Original):
    """The executor's actor, extended to inject the trial's faults into its process first.

    The tests find the processes of workers by the name of this class, which must not change.
    """

    def __init__(self, start: Any, folder: str) -> None:
        # `folder` is the driver's working directory, which is the trial's folder.
        Injections(Path(folder)).apply()
        super().__init__(start, folder)


def install() -> None:
    """Make the Ray executor of this process start these actors."""
    mock.patch.object(ray_executor, "_WorkerActor", _WorkerActor).start()
