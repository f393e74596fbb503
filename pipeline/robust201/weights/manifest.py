"""The manifest of a checkpoint store. For each weights file, it has a line of JSON about the network and its training.

A header line is followed by one line per checkpoint. Adding a checkpoint appends a line, which replaces an earlier line
with the same (space, dataset, index, recipe, epochs, seed, steps). Therefore, an interrupted import loses nothing. At
worst, the last line is incomplete. Such a line is ignored, and the next import removes it. This module does not import
torch.
"""

import errno
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from robust201.core.errors import CheckpointError, one_line
from robust201.core.files import atomic_write, reporting_write_errors
from robust201.core.records import ArchitectureId, format_architecture

MANIFEST_NAME = "manifest.jsonl"

_HEADER = b'{"format": "robust201 checkpoints", "version": 1}'
_RECREATE_ADVICE = "Restore the manifest, or remove it and import or train the weights again."

_Integer = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Fraction = Annotated[float, Field(ge=0, le=1)]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class TrainingOutcome(_Record):
    """Outcome of a training run at a snapshot; a field is None if it is unknown.

    Attributes:
        steps: number of training iterations so far.
        n_batches: iterations per epoch.
        train_loss: mean loss of the last epoch, or of its completed part.
        train_accuracy: accuracy on the augmented images of that epoch.
        test_accuracy: accuracy on the test images.
        torch: version of PyTorch.
    """

    steps: _Count | None = None
    n_batches: _Count | None = None
    train_loss: Annotated[float, Field(allow_inf_nan=False)] | None = None
    train_accuracy: _Fraction | None = None
    test_accuracy: _Fraction | None = None
    torch: str | None = None


class TrainingRecord(_Record):
    """A training run: its inputs other than network and seed (see `training.identity`) as JSON, and its outcome."""

    inputs: dict[str, Any] = {}
    outcome: TrainingOutcome = TrainingOutcome()


class CheckpointRecord(_Record):
    """One line of the manifest, about the network, training and source of a weights file.

    Attributes:
        index: id of the architecture.
        spec: cell string of the architecture; None in spaces without cells.
        epochs: number of training epochs; for a snapshot within an epoch, number of complete epochs before it.
        channels: channels of the first stage (C), if the size of the networks can be set; otherwise None.
        cells: cells per stage (N), or None like `channels`.
        source: file from which the weights were imported, or the software that trained them.
        source_sha256: SHA-256 of the source file or archive member, or the id of the training run, 64 hex digits.
        file: path of the weights below the store's folder, with ``/``.
        sha256: SHA-256 of the weights file, 64 hex digits.
        training: recipe and outcome of the training run if robust201 trained the weights; otherwise None.
        recipe: name of the training recipe, to distinguish training runs of equal length and seed; empty if it has no
            name, like the published recipe.
        test_accuracy: accuracy on the whole test split according to the source, as a fraction; None if unknown.
        steps: number of iterations before a snapshot within an epoch; None after complete epochs.
    """

    space: str
    index: ArchitectureId
    spec: str | None = None
    dataset: str
    epochs: _Count
    seed: _Integer
    channels: _Count | None = None
    cells: _Count | None = None
    n_classes: _Count
    parameters: _Count
    source: str
    source_sha256: _Digest
    file: str
    sha256: _Digest
    training: TrainingRecord | None = None
    recipe: str = ""
    test_accuracy: _Fraction | None = None
    steps: _Count | None = None

    @property
    def network(self) -> "NetworkName":
        return self.space, self.dataset, self.index

    @property
    def trial(self) -> "Trial":
        """Training run and snapshot, which identify one of the network's checkpoints on a dataset."""
        return self.recipe, self.epochs, self.seed, self.steps

    @property
    def label(self) -> str:
        return f"{format_architecture(self.index)} {self.dataset} {describe_trial(self.trial)}"

    @property
    def recorded_accuracy(self) -> float | None:
        """Accuracy on the test split according to the source or the training run; None if unknown."""
        return self._outcome.test_accuracy if self.test_accuracy is None else self.test_accuracy

    @property
    def steps_done(self) -> int | None:
        """Number of training iterations before the snapshot; None if it is not recorded."""
        return self._outcome.steps if self.steps is None else self.steps

    @property
    def is_final(self) -> bool | None:
        """Whether these are the final weights of their training run; None if the records do not show this."""
        recipe = self.inputs.get("recipe", {})
        epochs, n_batches = recipe.get("epochs"), self._outcome.n_batches
        length = recipe.get("iterations") if epochs is None or n_batches is None else epochs * n_batches
        return None if length is None or self.steps_done is None else bool(self.steps_done == length)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Inputs of the training run as JSON; empty if they are not recorded."""
        return {} if self.training is None else self.training.inputs

    @property
    def _outcome(self) -> TrainingOutcome:
        return TrainingOutcome() if self.training is None else self.training.outcome

    def to_line(self) -> bytes:
        """Return the record as a line of the manifest."""
        return self.model_dump_json(exclude_defaults=True).encode() + b"\n"


NetworkName = tuple[str, str, ArchitectureId]
"""Space, dataset and architecture."""

Trial = tuple[str, int, int, int | None]
"""Recipe, epochs and seed of a training run, and the steps of a snapshot within an epoch."""

Trials = dict[Trial, CheckpointRecord]
"""Checkpoints of one network on one dataset, by trial."""


def describe_trial(trial: Trial) -> str:
    """Describe a trial in messages, such as ``200 epochs seed 777``."""
    recipe, epochs, seed, steps = trial
    length = f"{epochs} epoch{'' if epochs == 1 else 's'}" if steps is None else f"{steps} steps"
    return f"{recipe}{' ' if recipe else ''}{length} seed {seed}"


def trial_sort_key(trial: Trial) -> tuple[str, int, int, int]:
    """Return the sort key of a trial, which orders trials by recipe, then by length, then by seed."""
    recipe, epochs, seed, steps = trial
    return recipe, epochs, steps or 0, seed


class ManifestWriter:
    """Appends lines to a manifest. The first line creates the manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO | None = None

    def append(self, record: CheckpointRecord) -> None:
        """Append one line, or raise StorageError (StorageFullError if no space is left on the disk)."""
        with reporting_write_errors(self._path):
            if self._stream is None:
                self._stream = _open_for_appending(self._path)
            line = record.to_line()
            if self._stream.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Make the lines durable and close the manifest; `append` opens it again."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            with stream:
                os.fsync(stream.fileno())


def _open_for_appending(path: Path) -> BinaryIO:
    """Open a manifest, after creating it or removing an incomplete last line."""
    if not path.exists():
        with atomic_write(path) as stream:
            stream.write(_HEADER + b"\n")
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)
    return path.open("ab", buffering=0)


def read_manifest(path: Path) -> dict[NetworkName, Trials]:
    """Read the checkpoints of a manifest, by network and then by trial."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"Opening weights failed for {path.parent}: {MANIFEST_NAME} cannot be read ({error.strerror}). "
            "Correct the path, or create the store with `robust201 import` or `robust201 run`."
        ) from error
    # An interrupted import may leave an incomplete line after the last newline.
    header, *lines = content.split(b"\n")[:-1] or [b""]
    if header != _HEADER:
        raise CheckpointError(
            f"Opening weights failed for {path}: expected the first line {_HEADER.decode()}, got "
            f"{one_line(header[:80])}. {_RECREATE_ADVICE}"
        )
    networks: dict[NetworkName, Trials] = defaultdict(dict)
    for line_number, line in enumerate(lines, start=2):
        record = parse_line(line, f"{path} line {line_number}")
        networks[record.network][record.trial] = record
    return dict(networks)


def parse_line(line: bytes, name: str) -> CheckpointRecord:
    """Return the record in a line, or raise a `CheckpointError` that contains `name` and the first invalid field."""
    try:
        return CheckpointRecord.model_validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(map(str, fault["loc"]))
        raise CheckpointError(
            f"Opening weights failed for {name}: {f'the field {field!r}: ' if field else ''}{fault['msg']}, got "
            f"{one_line(fault['input'], 80)}. {_RECREATE_ADVICE}"
        ) from error
