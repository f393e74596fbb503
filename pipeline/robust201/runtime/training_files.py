"""What the driver of trainings and its workers share: the work, and the paths of their files in the store. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from robust201.planning.training_config import TrainingConfig
from robust201.planning.training_inputs import Hashes
from robust201.planning.training_plan import DeviceKind, PlannedTraining
from robust201.weights.finished_snapshots import FinishedSnapshots


@dataclass(frozen=True)
class TrainingWork:
    """The work, small enough to send to workers.

    Attributes:
        trainings: by the ids of their units.
        images: hashes of the images that the driver copied.
        code: hashes of the Python files that it copied.
        device: kind of device in the trainings' ids.
    """

    config: TrainingConfig
    trainings: Mapping[str, PlannedTraining]
    images: Hashes
    code: Mapping[str, str]
    device: DeviceKind


def states_folder(config: TrainingConfig, planned: PlannedTraining) -> Path:
    """Folder of a training's states."""
    return config.results / "states" / planned.id[:32]


def saved_states(config: TrainingConfig) -> frozenset[Path]:
    """States of all unfinished trainings; one that was not there before means that steps were made."""
    return frozenset((config.results / "states").glob("*/step-*.safetensors"))


def finished_snapshots(config: TrainingConfig) -> FinishedSnapshots:
    """Snapshots that workers have stored, possibly not yet in the manifest."""
    return FinishedSnapshots(config.results / "finished")


def finished_name(planned: PlannedTraining, step: int) -> str:
    """Name of a snapshot in `finished_snapshots`."""
    return f"{planned.id[:32]}-{step:09d}"
