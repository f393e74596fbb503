"""Where a sweep's weights come from: a store of trained ones, files by name, or random initialisation."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from robust201.core.errors import CheckpointError
from robust201.core.files import read_file, sha256_of
from robust201.core.records import ArchitectureId, Unit, Weights, canonical_json, show_architecture
from robust201.planning.config import SweepConfig
from robust201.spaces.base import Space
from robust201.weights.loading import check_shapes
from robust201.weights.published.base import MAX_WEIGHTS_BYTES
from robust201.weights.published.state_dicts import parse_safetensors, read_shapes
from robust201.weights.store import CheckpointRecord, CheckpointStore

if TYPE_CHECKING:
    from pathlib import Path

    import torch

Shape = tuple[int, ...]

OTHER_WEIGHTS = "Import the right weights, or correct `weights.files`."
"""What to do about weights of another network."""

_RANDOM_VERSION = 1
"""Raised when equal seeds would give other random weights."""


class WeightsSource:
    """The weights that a sweep evaluates."""

    def __init__(self, config: SweepConfig, space: Space) -> None:
        self._config, self._space = config, space
        section = config.weights
        self._from_files = section is not None and section.files is not None
        self._seeds = section.random.seeds if section and section.random else ()

    @cached_property
    def _store(self) -> CheckpointStore:
        section = self._config.checkpoints or self._config.weights
        assert section is not None and section.path is not None  # noqa: S101, PT018 - asked for a store only
        return CheckpointStore(section.path)

    def _file(self, dataset: str, architecture: ArchitectureId) -> "Path":
        section = self._config.weights
        assert section is not None  # noqa: S101 - asked for files only
        return section.files_on(dataset)[str(architecture)]

    def find(self, dataset: str, architecture: ArchitectureId) -> tuple[Weights, ...]:
        """List the weights of one network."""
        if self._from_files:
            return (Weights(_hash_weights(self._file(dataset, architecture))),)
        if self._seeds:
            return tuple(self._random(dataset, architecture, seed) for seed in self._seeds)
        records = self._records(dataset, architecture)
        if self._config.weights is None:
            return (Weights(records[0].sha256),)
        return tuple(
            Weights(
                record.sha256,
                record.recipe,
                record.epochs if record.steps is None else None,
                record.seed,
                steps=record.steps_done,
            )
            for record in records
        )

    def test_accuracies(self, dataset: str, architecture: ArchitectureId) -> dict[str, float]:
        """Look up what was recorded with the weights of one network: accuracy on the test split, by their SHA-256."""
        if self._from_files or self._seeds:
            return {}
        recorded = {record.sha256: record.recorded_accuracy for record in self._records(dataset, architecture)}
        return {sha256: accuracy for sha256, accuracy in recorded.items() if accuracy is not None}

    def check(self, dataset: str, architecture: ArchitectureId) -> None:
        """Check that the weights of one network are there, whole, and of its names and shapes, by the files' headers.

        The networks of a user's file, which may not be executed yet, are left to `runtime.code_check`.
        """
        for name, shapes in self._headers(dataset, architecture):
            if not self._space.executes_code:
                self._check_shapes(dataset, architecture, name, shapes)

    def check_by_building(self, dataset: str, architecture: ArchitectureId) -> None:
        """Check names and shapes against the network as a user's file builds it, which is executed (see `check`)."""
        for name, shapes in self._headers(dataset, architecture):
            self._check_shapes(dataset, architecture, name, shapes)

    def _headers(self, dataset: str, architecture: ArchitectureId) -> Iterator[tuple[str, Mapping[str, Shape]]]:
        if self._from_files:
            path = self._file(dataset, architecture)
            yield f"{show_architecture(architecture)} {dataset} from {path}", _read_shapes(path)
        elif not self._seeds:
            for record in self._records(dataset, architecture):
                yield f"{record.label} from {self._store.root / record.file}", self._store.read_shapes(record)

    def _check_shapes(self, dataset: str, architecture: ArchitectureId, name: str, shapes: Mapping[str, Shape]) -> None:
        n_classes = self._config.dataset_spec(dataset).n_classes
        check_shapes(self._space, architecture, shapes, n_classes=n_classes, name=name, advice=OTHER_WEIGHTS)

    def _records(self, dataset: str, architecture: ArchitectureId) -> tuple[CheckpointRecord, ...]:
        one, several, space = self._config.checkpoints, self._config.weights, self._space.weights_name
        if one is not None:
            records: tuple[CheckpointRecord, ...] = (
                self._store.find(architecture, dataset, space=space, epochs=one.epochs, seed=one.seed),
            )
        else:
            assert several is not None  # noqa: S101 - the sweep has one of the two
            records = self._store.find_all(
                architecture,
                dataset,
                space=space,
                recipes=several.recipes,
                epochs=several.epochs,
                steps=several.steps,
                seeds=several.seeds,
            )
        by_hash: dict[str, CheckpointRecord] = {}
        for record in records:
            self._check_size(record, dataset)
            twin = by_hash.setdefault(record.sha256, record)
            if twin is not record:
                raise CheckpointError(
                    f"Choosing weights failed for {record.label} in {self._store.root}: expected weights that differ, "
                    f"got equal ones of {twin.label}. Choose one of the two by `recipe`, `epochs`, `steps` and `seeds`."
                )
        return records

    def _check_size(self, record: CheckpointRecord, dataset: str) -> None:
        n_classes = self._config.dataset_spec(dataset).n_classes
        identity = self._space.identity().items()
        expected = {"n_classes": n_classes} | {name: value for name, value in identity if hasattr(record, name)}
        got = {name: getattr(record, name) for name in expected}
        if got != expected:
            differing = [name for name in expected if got[name] != expected[name]]
            if "n_classes" in differing:
                advice = "Choose weights of networks with as many classes as the dataset has."
            else:
                advice = "Set `network` to what the weights were trained with."
            raise CheckpointError(
                f"Choosing weights failed for {record.label} in {self._store.root}: expected a network with "
                f"{', '.join(f'{name} {expected[name]}' for name in differing)}, got "
                f"{', '.join(str(got[name]) for name in differing)}. {advice}"
            )

    def _random(self, dataset: str, architecture: ArchitectureId, seed: int) -> Weights:
        recipe = {
            "random": _RANDOM_VERSION,
            "space": self._space.name,
            "network": dict(self._space.identity()),
            "architecture": architecture,
            "n_classes": self._config.dataset_spec(dataset).n_classes,
            "seed": seed,
        }
        digest = hashlib.sha256(canonical_json(recipe).encode()).hexdigest()
        return Weights(digest, seed=seed, is_random=True)

    def random_seed(self, unit: Unit) -> int | None:
        """Give the seed that a unit's network is initialised with; None where its weights are read (see `load`)."""
        if not self._seeds:
            return None
        for weights in self.find(unit.dataset, unit.architecture):
            if weights.sha256 == unit.checkpoint_sha256:
                return weights.seed
        raise _other_weights(unit, "a seed outside of this sweep")

    def load(self, unit: Unit) -> dict[str, "torch.Tensor"]:
        """Read the weights that were planned for a unit."""
        if self._from_files:
            return _load_file(self._file(unit.dataset, unit.architecture), unit)
        # By its hash, not chosen anew: a training that was added to the store since must not stop what is planned.
        name, sha256 = self._space.weights_name, unit.checkpoint_sha256
        record = self._store.find_hash(unit.architecture, unit.dataset, sha256, space=name)
        if record is None:
            raise _other_weights(unit, self._records(unit.dataset, unit.architecture)[0].sha256)
        return self._store.load(record)


def _load_file(path: "Path", unit: Unit) -> dict[str, "torch.Tensor"]:
    try:
        raw = read_file(path, MAX_WEIGHTS_BYTES)
    except OSError as error:
        raise _no_file(path) from error
    digest = hashlib.sha256(raw).hexdigest()
    if digest != unit.checkpoint_sha256:
        raise _other_weights(unit, digest)
    return parse_safetensors(raw, str(path))


def _read_shapes(path: "Path") -> Mapping[str, Shape]:
    try:
        return read_shapes(path, str(path), "Correct `weights.files`.")
    except OSError as error:
        raise _no_file(path) from error


def _hash_weights(path: "Path") -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise _no_file(path) from error


def _no_file(path: "Path") -> CheckpointError:
    return CheckpointError(
        f"Finding weights failed for {path}: expected a safetensors file, got none that can be read. "
        "Correct `weights.files`."
    )


def _other_weights(unit: Unit, got: str) -> CheckpointError:
    return CheckpointError(
        f"Loading weights failed for {unit.network_label}: expected the checkpoint {unit.checkpoint_sha256[:16]} that "
        f"was planned, got {got[:16]}. Start the run again to plan with the new weights."
    )
