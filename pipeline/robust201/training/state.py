"""Saved states of a training run, from which it resumes with the same result: safetensors files with JSON metadata.

A file is named ``step-<number of steps>-<first 16 hex digits of its SHA-256>.safetensors``. It is written atomically,
and used only if its hash matches. A new state replaces the previous one. A folder belongs to one training run. Two
processes that use it at once write the same bytes.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from robust201.core.errors import RobustWarning, StorageError, one_line
from robust201.core.files import new_file
from robust201.core.records import canonical_json

_FILE_NAME = re.compile(r"step-(\d{9})-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Results of one epoch, or of its completed part.

    Attributes:
        epoch: number of the epoch, counted from 1.
        learning_rate: learning rate at the epoch's first step.
        loss: mean training loss (see `training.adversarial.StepLoss`), with the network in training mode.
        accuracy: fraction of the augmented images (with `pgd`, of the adversarial images) that are classified
            correctly.
    """

    epoch: int
    learning_rate: float
    loss: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class TrainingState:
    """State of a training run after `step` steps. Tensors are on the CPU, by name.

    `sums`: sum of losses, number of correctly classified images and number of images, in the current epoch so far.
    """

    step: int
    network: Mapping[str, torch.Tensor]
    momentum: Mapping[str, torch.Tensor]
    history: tuple[EpochRecord, ...]
    sums: tuple[float, int, int] = (0.0, 0, 0)


class StateFolder:
    """Folder with the last state of one training run."""

    def __init__(self, folder: Path, training_id: str) -> None:
        self._folder = folder
        self._training_id = training_id

    def save(self, state: TrainingState) -> None:
        """Save a state, and delete all others."""
        raw = _encode(state, self._training_id)
        name = f"step-{state.step:09d}-{hashlib.sha256(raw).hexdigest()[:16]}.safetensors"
        with new_file(self._folder, name) as new_state:
            new_state.stream.write(raw)
        for path in self._paths():
            if path.name != name:
                path.unlink(missing_ok=True)  # a lost worker that is still alive may have deleted it

    def load(self, max_step: int) -> TrainingState | None:
        """Return the intact state with the most steps up to `max_step`, or None.

        Damaged states, and incomplete files of killed processes, are deleted.

        Raises:
            StorageError: a state belongs to another training run, or cannot be read at the moment.

        Warns:
            RobustWarning: a state was damaged.
        """
        for incomplete_file in self._folder.glob(".step-*.tmp"):
            incomplete_file.unlink(missing_ok=True)
        for path in self._paths():
            step, digest = _parse_name(path)
            if step > max_step:
                continue
            try:
                raw = path.read_bytes()
            except FileNotFoundError:  # a lost worker, which may still be alive, has replaced it
                continue
            except OSError as error:
                raise StorageError(
                    f"Reading the state of a training run failed for {path}: {one_line(error)}. Check its permissions "
                    "and the file server, and run the same command again."
                ) from error
            if hashlib.sha256(raw).hexdigest().startswith(digest):
                return self._decode(raw, path)
            path.unlink(missing_ok=True)
            warnings.warn(
                f"The state of a training run after {step} steps in {path} was damaged ({len(raw):,} bytes with a "
                "wrong hash) and has been deleted. Training resumes from an earlier state or starts again.",
                RobustWarning,
                stacklevel=2,
            )
        return None

    def _paths(self) -> list[Path]:
        """Return the paths of the states, the latest step first."""
        states = (path for path in self._folder.glob("step-*") if _FILE_NAME.fullmatch(path.name))
        return sorted(states, reverse=True)

    def _decode(self, raw: bytes, path: Path) -> TrainingState:
        from safetensors.torch import load

        header_size = int.from_bytes(raw[:8], "little")
        fields = json.loads(json.loads(raw[8 : 8 + header_size])["__metadata__"]["training"])
        training_id = fields.get("training_id", "unnamed")
        if training_id != self._training_id:
            raise StorageError(
                f"Reading the state of a training run failed for {path}: it belongs to another training run "
                f"({training_id[:16]}…, not {self._training_id[:16]}…). Choose another folder, or delete this one."
            )
        tensors = load(raw)
        return TrainingState(
            step=fields["step"],
            network=_select_prefix(tensors, "network/"),
            momentum=_select_prefix(tensors, "momentum/"),
            history=tuple(EpochRecord(**record) for record in fields["history"]),
            sums=tuple(fields["sums"]),
        )


def _parse_name(path: Path) -> tuple[int, str]:
    """Return the number of steps, and the first hex digits of the hash, from a file's name."""
    step, digest = path.name.removesuffix(".safetensors").split("-")[1:]
    return int(step), digest


def _encode(state: TrainingState, training_id: str) -> bytes:
    from safetensors.torch import save

    history = [asdict(record) for record in state.history]
    fields = canonical_json({"training_id": training_id, "step": state.step, "history": history, "sums": state.sums})
    tensors = {f"network/{name}": tensor for name, tensor in state.network.items()}
    tensors |= {f"momentum/{name}": tensor for name, tensor in state.momentum.items()}
    raw: bytes = save(tensors, metadata={"training": fields})
    return raw


def _select_prefix(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with a prefix, by their names without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
