"""Actors of the Ray executor with faults inside."""

from pathlib import Path
from typing import Any
from unittest import mock

from robust201.runtime.executors import ray as ray_executor
from tests.faults.injections import Injections

_Original = ray_executor._WorkerActor


class _WorkerActor(_Original):
    """The executor's actor under its own name, in a process that the trial's orders were applied to first."""

    def __init__(self, start: Any, folder: str) -> None:
        # Where the driver stands is the trial's folder, on every machine that sees it.
        Injections(Path(folder)).apply()
        super().__init__(start, folder)


def install() -> None:
    """Let the executor of this process start them."""
    mock.patch.object(ray_executor, "_WorkerActor", _WorkerActor).start()
