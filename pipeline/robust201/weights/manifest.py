"""The manifest of a checkpoint store. For each weights file, it has a line of JSON about the network and its training.

Format version 1 is a header line, followed by one line per checkpoint. Adding a checkpoint appends a line, which
replaces an earlier line with the same (space, dataset, index, recipe, epochs, seed, steps). Therefore, an interrupted
import loses nothing. At worst, the last line is incomplete. Such a line is ignored, and the next import removes it.
This module does not import torch.
"""

import errno
import hashlib
import json
import math
import os
import reprlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from robust201.core.errors import CheckpointError, StorageFullError
from robust201.core.files import MAX_JSON_BYTES, atomic_write, open_file, read_file
from robust201.core.records import ArchitectureId, canonical_json, format_architecture
from robust201.spaces import SPACES
from robust201.spaces.base import Space

MANIFEST_NAME = "manifest.jsonl"
MANIFEST_VERSION = 1

_HEADER = {"format": "robust201 checkpoints", "version": MANIFEST_VERSION}
_OPTIONAL_DEFAULTS = {
    "spec": None,
    "channels": None,
    "cells": None,
    "training": None,
    "recipe": "",
    "test_accuracy": None,
    "steps": None,
}
"""Optional fields of a line, and their default values."""


_Integer = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""Integer that fits into 64 bits."""

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Fraction = Annotated[float, Field(ge=0, le=1)]
_UNION_STEPS = ("int", "str")
"""Types that pydantic adds to the location of a field with several types."""

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Section(BaseModel):
    """Object inside `CheckpointRecord.training`, with the fields that robust201 reads; others may have any value."""

    model_config = ConfigDict(strict=True, extra="allow")


class _RecipeSection(_Section):
    epochs: _Count | None = None
    iterations: _Count | None = None


class _InputsSection(_Section):
    recipe: _RecipeSection | None = None


class _OutcomeSection(_Section):
    steps: _Count | None = None
    n_batches: _Count | None = None
    test_accuracy: _Fraction | None = None
    train_accuracy: _Fraction | None = None
    train_loss: Annotated[float, Field(allow_inf_nan=False)] | None = None


class _TrainingSection(_Section):
    inputs: _InputsSection | None = None
    outcome: _OutcomeSection | None = None


class _LineSections(BaseModel):
    training: _TrainingSection | None


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(strict=True))
class CheckpointRecord:
    """One line of the manifest, about the network, training and source of a weights file.

    Attributes:
        index: id of the architecture.
        spec: cell string of the architecture; None in spaces without cells.
        epochs: number of epochs of training; for a snapshot within an epoch, of complete epochs before it.
        channels: channels of the first stage (C), if the size of the networks can be set; otherwise None.
        cells: cells per stage (N), or None like `channels`.
        source: file from which the weights were imported, or the software that trained them.
        source_sha256: SHA-256 of the source file, or the id of the training run (see `hash_training`), 64 hex digits.
        file: path of the weights below the store's folder, with ``/``.
        sha256: SHA-256 of the weights file, 64 hex digits.
        training: recipe and outcome of the training run if robust201 trained the weights; otherwise None.
        recipe: name of the training recipe, to distinguish training runs of equal length and seed; empty for the
            published recipe.
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
    training: dict[str, Any] | None = field(default=None, hash=False)
    recipe: str = ""
    test_accuracy: _Fraction | None = None
    steps: _Count | None = None

    @property
    def network(self) -> "NetworkName":
        return self.space, self.dataset, self.index

    @property
    def recorded_accuracy(self) -> float | None:
        """Accuracy on the test split according to the source or the training run; None if unknown."""
        training_accuracy: float | None = self._outcome.get("test_accuracy")
        return training_accuracy if self.test_accuracy is None else self.test_accuracy

    @property
    def steps_done(self) -> int | None:
        """Number of training iterations before the snapshot; None if it is not recorded."""
        outcome_steps: int | None = self._outcome.get("steps")
        return outcome_steps if self.steps is None else self.steps

    @property
    def is_final(self) -> bool | None:
        """Whether these are the final weights of their training run; None if its length is not recorded."""
        recipe = self.inputs.get("recipe") or {}
        epochs, n_batches = recipe.get("epochs"), self._outcome.get("n_batches")
        length = recipe.get("iterations") if epochs is None or n_batches is None else epochs * n_batches
        return None if length is None or self.steps_done is None else bool(self.steps_done == length)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Inputs of `hash_training` other than the network; empty if they are not recorded."""
        return (self.training or {}).get("inputs") or {}

    @property
    def _outcome(self) -> Mapping[str, Any]:
        return (self.training or {}).get("outcome") or {}

    @property
    def trial(self) -> "Trial":
        """Training run and snapshot, which identify one of the network's checkpoints on a dataset."""
        return self.recipe, self.epochs, self.seed, self.steps

    @property
    def label(self) -> str:
        return f"{format_architecture(self.index)} {self.dataset} {describe_trial(self.trial)}"


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


def record_line(record: CheckpointRecord) -> bytes:
    """Return a record as a line of the manifest."""
    fields = {
        key: value
        for key, value in asdict(record).items()
        if key not in _OPTIONAL_DEFAULTS or value != _OPTIONAL_DEFAULTS[key]
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


class ManifestWriter:
    """Appends lines to a manifest. The first line creates the manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO | None = None

    def append(self, record: CheckpointRecord) -> None:
        """Append one line, or raise StorageFullError if no space is left on the disk."""
        line = record_line(record)
        if self._stream is None:
            self._stream = _open_for_appending(self._path)
        try:
            is_disk_full = self._stream.write(line) != len(line)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            is_disk_full = True
        if is_disk_full:
            self.close()
            raise StorageFullError(
                f"Writing failed for {self._path}: the disk is full. "
                "Free some space and run the same command again; imported weights are not lost."
            )

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
            stream.write(json.dumps(_HEADER).encode() + b"\n")
    content = read_file(path, MAX_JSON_BYTES)
    n_complete_bytes = content.rfind(b"\n") + 1
    if n_complete_bytes != len(content):
        os.truncate(path, n_complete_bytes)
    return open_file(path, None, "ab", buffering=0)


def read_manifest(path: Path) -> dict[NetworkName, Trials]:
    """Read the checkpoints of a manifest, by network and then by trial."""
    try:
        content = read_file(path, MAX_JSON_BYTES)
    except ValueError as error:
        raise CheckpointError(
            f"Opening weights failed for {path}: the file is not a manifest ({error}). "
            "Restore the manifest, or remove it and import or train the weights again."
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"Opening weights failed for {path.parent}: {MANIFEST_NAME} cannot be read ({error.strerror}). "
            "Correct the path, or create the store with import-weights or train."
        ) from error
    # An interrupted import may leave an incomplete line after the last newline.
    header, *lines = content.split(b"\n")[:-1] or [b""]
    _check_header(header, path)
    networks: dict[NetworkName, Trials] = defaultdict(dict)
    for line_number, line in enumerate(lines, start=2):
        record = parse_line(line, line_number, path)
        networks[record.network][record.trial] = record
    return dict(networks)


def _check_header(line: bytes, path: Path) -> None:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if header != _HEADER:
        has_version = isinstance(header, dict) and "version" in header
        difference = f"got version {header['version']}" if has_version else "but this is not a manifest"
        raise CheckpointError(
            f"Opening weights failed for {path}: expected a manifest of version {MANIFEST_VERSION}, {difference}. "
            "Use the version of robust201 that wrote the manifest, or remove it and import or train the weights again."
        )


def parse_line(line: bytes, line_number: int, path: Path) -> CheckpointRecord:
    """Return the record in a line. If the line is damaged, the `CheckpointError` contains its number."""
    try:
        fields = json.loads(line, parse_float=_parse_float, parse_constant=_parse_float)
        record = CheckpointRecord(**fields)
        _LineSections(training=fields.get("training"))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(str(step) for step in problem["loc"] if step not in _UNION_STEPS)
        raise _damaged_line_error(
            line_number, path, f"the field {name!r}: {problem['msg']}, got {reprlib.repr(problem['input'])}"
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged_line_error(line_number, path, f"it is not a checkpoint ({error})") from error
    try:
        is_unedited = matches_training_id(record)
    except (ValueError, RecursionError) as error:  # valid JSON from which no id can be computed
        raise _damaged_line_error(line_number, path, f"its recipe cannot be hashed ({error})") from error
    if not is_unedited:
        raise _damaged_line_error(
            line_number,
            path,
            f"the line was edited: the field 'training' of {record.label} does not match the id "
            f"{record.source_sha256[:16]}…",
        )
    return record


def _parse_float(digits: str) -> float:
    """Parse a number, or raise ValueError for NaN and infinity, because no id can be computed from them."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"a number that is not finite: {digits[:20]}")
    return number


def _damaged_line_error(line_number: int, path: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"Opening weights failed for {path} line {line_number}: {problem}. Restore the manifest, or remove it and "
        "import or train the weights again."
    )


TRAINING_VERSION = 1
"""Version of the training code. It increases only when equal recipes give different weights than before."""


def hash_training(
    *,
    space: str,
    space_identity: Mapping[str, Any],
    architecture: ArchitectureId,
    n_classes: int,
    data: Any,
    recipe: Mapping[str, Any],
    seed: int,
    device: str,
    threads: int | None,
    precision: str | None,
    start: str | None,
) -> str:
    """Return the SHA-256 (64 hex digits) of everything that determines the weights of a training run.

    `data` is the identity of the training data (`training.data.TrainingData.identity`), `recipe` is the identity of the
    recipe (`training.recipes.Recipe.identity`), and `start` is the hash of the initial weights. The type of the device
    is included, but not its model. On a CPU, the number of threads is included, because it affects the last bits.
    """
    payload = {
        "version": TRAINING_VERSION,
        "space": [space, space_identity],
        "architecture": architecture,
        "n_classes": n_classes,
        "data": data,
        "recipe": recipe,
        "seed": seed,
        "device": {device: threads if device == "cpu" else precision},
        "start": start,
    }
    return hashlib.sha256(canonical_json(payload).encode()).hexdigest()


def matches_training_id(record: CheckpointRecord, space: Space | None = None) -> bool:
    """Return whether the recipe in a record matches the record's id; True for a record without a recipe.

    Without `space`, records of custom spaces are not checked, because their ids contain the hash of a user's file.
    """
    inputs, space = record.inputs, space or _space_of(record)
    if not inputs or space is None:
        return True
    return record.source_sha256 == hash_training(
        space=space.name,
        space_identity=space.identity(),
        architecture=record.index,
        n_classes=record.n_classes,
        data=inputs.get("data"),
        recipe=inputs.get("recipe") or {},
        seed=record.seed,
        device=str(inputs.get("device")),
        threads=inputs.get("threads"),
        precision=inputs.get("precision"),
        start=inputs.get("start"),
    )


def _space_of(record: CheckpointRecord) -> Space | None:
    """Return the space of a record, with the size of the network; None for a custom space."""
    space = SPACES.get(record.space)
    if space is None or not space.is_sized or record.channels is None or record.cells is None:
        return space
    return space.with_size(channels=record.channels, cells=record.cells)
