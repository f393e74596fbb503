"""What a driver of trainings and its workers share: the work, and where their files lie in the store. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from robust201.planning.training_config import TrainingConfig
from robust201.planning.training_inputs import Hashes
from robust201.planning.training_plan import DeviceKind, PlannedTraining
from robust201.weights.finished import FinishedSnapshots


@dataclass(frozen=True)
class TrainingWork:
    """What workers must know: small enough to travel.

    Attributes:
        trainings: by the ids of their units.
        images: hashes of the images that the driver kept.
        code: hashes of the Python files that it kept.
        device: kind of device that the trainings' ids hold.
    """

    config: TrainingConfig
    trainings: Mapping[str, PlannedTraining]
    images: Hashes
    code: Mapping[str, str]
    device: DeviceKind


def states_folder(config: TrainingConfig, planned: PlannedTraining) -> Path:
    """Where a training keeps its state."""
    return config.results / "states" / planned.id[:32]


def finished_snapshots(config: TrainingConfig) -> FinishedSnapshots:
    """What workers have stored and the manifest may not name yet."""
    return FinishedSnapshots(config.results / "finished")


def finished_name(planned: PlannedTraining, step: int) -> str:
    """Name of a snapshot among those."""
    return f"{planned.id[:32]}-{step:09d}"
