"""Saved states of a training, from which it resumes with the same result: safetensors with JSON, without pickles.

A file is named ``step-<number of steps>-<first 16 hex digits of its SHA-256>.safetensors``, is written atomically, and
is used only if its hash matches. The newest two are kept, in case the last one is damaged. A folder is used by one
process at a time, for one training.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from robust201.core.errors import StorageError
from robust201.core.files import new_file, read_file
from robust201.core.records import canonical_json

_FILE_NAME = re.compile(r"step-(\d{9})-([0-9a-f]{16})\.safetensors")

_DAMAGED = "damaged-"
"""Prefix of damaged files that were renamed."""

_KEPT = 2

_MAX_SNAPSHOT_BYTES = 16 << 30  # weights and momentum


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Results of one epoch, or of its completed part.

    Attributes:
        epoch: number, from 1.
        learning_rate: learning rate of the first step.
        loss: mean loss over the training images as used (augmented, in training mode).
        accuracy: fraction of correctly classified images among these; with `pgd`, among the adversarial ones.
    """

    epoch: int
    learning_rate: float
    loss: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class TrainingState:
    """The state of a training."""

    step: int
    network: Mapping[str, torch.Tensor]
    momentum: Mapping[str, torch.Tensor]
    loss_sum: float
    n_correct: int
    n_images: int
    history: tuple[EpochRecord, ...]


class StateFolder:
    """The states of one training."""

    def __init__(self, folder: Path, training_id: str, notice: Callable[[str], None]) -> None:
        self._folder = folder
        self._training_id = training_id
        self._notice = notice

    def save(self, state: TrainingState) -> None:
        """Save a state, and keep the newest previous one."""
        raw = _encode(state, self._training_id)
        digest = hashlib.sha256(raw).hexdigest()
        name = f"step-{state.step:09d}-{digest[:16]}.safetensors"
        with new_file(self._folder, name) as new:
            new.stream.write(raw)
        # If an earlier snapshot was lost, there are states of later steps, which must not displace the new one.
        for path in [path for path in self._paths() if path.name != name][_KEPT - 1 :]:
            path.unlink()

    def load(self, at_most: int) -> TrainingState | None:
        """Return the newest intact state of at most `at_most` steps, or None.

        Damaged states are renamed, and incomplete files of killed processes are removed.

        Raises:
            StorageError: a state belongs to another training, or cannot be read.
        """
        for leftover in self._folder.glob(".step-*.tmp"):
            leftover.unlink()
        for path in self._paths():
            step, digest = self._parse_name(path)
            if step > at_most:
                continue
            try:
                raw = read_file(path, _MAX_SNAPSHOT_BYTES)
            except OSError as error:
                raise StorageError(
                    f"Reading the state of a training failed for {path}: expected a file that can be read, got "
                    f"{error.strerror}. Correct the permissions."
                ) from error
            if hashlib.sha256(raw).hexdigest().startswith(digest):
                return self._decode(raw, path)
            path.rename(path.with_name(_DAMAGED + path.name))
            self._notice(
                f"The state of a training after {step} steps in {path} was damaged ({len(raw):,} bytes with another "
                f"hash) and is set aside as {_DAMAGED}{path.name}; the one before it is used."
            )
        return None

    def _paths(self) -> list[Path]:
        states = (path for path in self._folder.glob("step-*") if _FILE_NAME.fullmatch(path.name))
        return sorted(states, reverse=True)

    @staticmethod
    def _parse_name(path: Path) -> tuple[int, str]:
        step, digest = path.name.removesuffix(".safetensors").split("-")[1:]
        return int(step), digest

    def _decode(self, raw: bytes, path: Path) -> TrainingState:
        from safetensors.torch import load

        length = int.from_bytes(raw[:8], "little")
        fields = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["training"])
        if fields["training_id"] != self._training_id:
            raise StorageError(
                f"Reading the state of a training failed for {path}: expected training {self._training_id[:16]}…, got "
                f"one of training {fields['training_id'][:16]}…. Choose another folder, or remove this one."
            )
        tensors = load(raw)
        return TrainingState(
            step=fields["step"],
            network=dict(_named(tensors, "network/")),
            momentum=dict(_named(tensors, "momentum/")),
            loss_sum=fields["loss_sum"],
            n_correct=fields["n_correct"],
            n_images=fields["n_images"],
            history=tuple(EpochRecord(**record) for record in fields["history"]),
        )


def _encode(state: TrainingState, training_id: str) -> bytes:
    from safetensors.torch import save

    fields: dict[str, Any] = {
        "training_id": training_id,
        "step": state.step,
        "loss_sum": state.loss_sum,
        "n_correct": state.n_correct,
        "n_images": state.n_images,
        "history": [asdict(record) for record in state.history],
    }
    tensors = {f"network/{name}": tensor for name, tensor in state.network.items()}
    tensors |= {f"momentum/{name}": tensor for name, tensor in state.momentum.items()}
    raw: bytes = save(tensors, metadata={"training": canonical_json(fields)})
    return raw


def _named(tensors: Mapping[str, torch.Tensor], prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name.removeprefix(prefix), tensor) for name, tensor in tensors.items() if name.startswith(prefix))
