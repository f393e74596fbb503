"""Weights of a sweep's networks, from a checkpoint store, from files, or by random initialisation."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from robust201.core.errors import CheckpointError
from robust201.core.files import sha256_of
from robust201.core.records import ArchitectureId, Unit, Weights, canonical_json, format_architecture
from robust201.networks.space import Space
from robust201.sweep.config import SweepConfig
from robust201.weights.loading import check_shapes
from robust201.weights.published.state_dicts import parse_safetensors, read_shapes
from robust201.weights.store import CheckpointRecord, CheckpointStore

if TYPE_CHECKING:
    from pathlib import Path

    import torch

Shape = tuple[int, ...]

WRONG_WEIGHTS_ADVICE = "Import the right weights, or correct `weights.files`."
"""Remedy in error messages about weights that do not fit the network."""

_RANDOM_VERSION = 1
"""Version of random initialisation; incremented when a seed gives different weights than before."""


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
        assert section is not None and section.path is not None  # noqa: S101, PT018 - only called if the sweep has a store
        return CheckpointStore(section.path)

    def _weights_file(self, architecture: ArchitectureId) -> "Path":
        section = self._config.weights
        assert section is not None and section.files is not None  # noqa: S101, PT018 - only called if the sweep has files
        return section.files[str(architecture)]

    def find(self, dataset: str, architecture: ArchitectureId) -> dict[Weights, float | None]:
        """Return the weights of a network on a dataset, each with the test accuracy that was recorded with it."""
        if self._from_files:
            return {Weights(_hash_weights(self._weights_file(architecture))): None}
        if self._seeds:
            return dict.fromkeys(self._random_weights(dataset, architecture, seed) for seed in self._seeds)
        records = self._find_records(dataset, architecture)
        if self._config.weights is None:
            return {Weights(records[0].sha256): records[0].recorded_accuracy}
        return {
            Weights(
                record.sha256,
                record.recipe,
                record.epochs if record.steps is None else None,
                record.seed,
                steps=record.steps_done,
            ): record.recorded_accuracy
            for record in records
        }

    def check(self, dataset: str, architecture: ArchitectureId) -> None:
        """Check from file headers that a network's weights exist, are complete and have the right names and shapes.

        Names and shapes of networks from a user's file are checked by workers, because the file must not be executed
        yet.
        """
        for name, shapes in self._read_headers(dataset, architecture):
            if not self._space.executes_code:
                self._check_shapes(dataset, architecture, name, shapes)

    def _read_headers(self, dataset: str, architecture: ArchitectureId) -> Iterator[tuple[str, Mapping[str, Shape]]]:
        """Yield a label for messages and the tensor shapes of each of a network's weights files."""
        if self._from_files:
            path = self._weights_file(architecture)
            yield f"{format_architecture(architecture)} {dataset} from {path}", _read_shapes(path)
        elif not self._seeds:
            for record in self._find_records(dataset, architecture):
                yield f"{record.label} from {self._store.root / record.file}", self._store.read_shapes(record)

    def _check_shapes(self, dataset: str, architecture: ArchitectureId, name: str, shapes: Mapping[str, Shape]) -> None:
        n_classes = self._config.dataset_spec(dataset).n_classes
        check_shapes(self._space, architecture, shapes, n_classes=n_classes, name=name, advice=WRONG_WEIGHTS_ADVICE)

    def _find_records(self, dataset: str, architecture: ArchitectureId) -> tuple[CheckpointRecord, ...]:
        """Return the selected records of the store, after checking that they differ and fit the network."""
        checkpoints, weights, space = self._config.checkpoints, self._config.weights, self._space.weights_name
        if checkpoints is not None:
            records: tuple[CheckpointRecord, ...] = (
                self._store.find(architecture, dataset, space=space, epochs=checkpoints.epochs, seed=checkpoints.seed),
            )
        else:
            assert weights is not None  # noqa: S101 - the sweep has one of the two
            records = self._store.find_all(
                architecture,
                dataset,
                space=space,
                recipes=weights.recipes,
                epochs=weights.epochs,
                steps=weights.steps,
                seeds=weights.seeds,
            )
        records_by_hash: dict[str, CheckpointRecord] = {}
        for record in records:
            self._check_size(record, dataset)
            earlier_record = records_by_hash.setdefault(record.sha256, record)
            if earlier_record is not record:
                raise CheckpointError(
                    f"Choosing weights failed for {record.label} in {self._store.root}: the weights are identical to "
                    f"those of {earlier_record.label}. Select one of the two with `recipe`, `epochs`, "
                    "`steps` and `seeds`."
                )
        return records

    def _check_size(self, record: CheckpointRecord, dataset: str) -> None:
        n_classes = self._config.dataset_spec(dataset).n_classes
        identity = self._space.identity().items()
        expected = {"n_classes": n_classes} | {name: value for name, value in identity if hasattr(record, name)}
        actual = {name: getattr(record, name) for name in expected}
        if actual != expected:
            differing_fields = [name for name in expected if actual[name] != expected[name]]
            if "n_classes" in differing_fields:
                advice = "Choose weights of networks with the dataset's number of classes."
            else:
                advice = "Set `network` to the values that the weights were trained with."
            raise CheckpointError(
                f"Choosing weights failed for {record.label} in {self._store.root}: expected a network with "
                f"{', '.join(f'{name} {expected[name]}' for name in differing_fields)}, got "
                f"{', '.join(str(actual[name]) for name in differing_fields)}. {advice}"
            )

    def _random_weights(self, dataset: str, architecture: ArchitectureId, seed: int) -> Weights:
        identity = {
            "random": _RANDOM_VERSION,
            "space": self._space.name,
            "network": dict(self._space.identity()),
            "architecture": architecture,
            "n_classes": self._config.dataset_spec(dataset).n_classes,
            "seed": seed,
        }
        digest = hashlib.sha256(canonical_json(identity).encode()).hexdigest()
        return Weights(digest, seed=seed, is_random=True)

    def random_seed(self, unit: Unit) -> int | None:
        """Return the seed for initialising a unit's network; None if its weights are loaded (see `load`)."""
        if not self._seeds:
            return None
        for weights in self.find(unit.dataset, unit.architecture):
            if weights.sha256 == unit.checkpoint_sha256:
                return weights.seed
        raise _unexpected_weights_error(unit, "the weights of other seeds")

    def load(self, unit: Unit) -> dict[str, "torch.Tensor"]:
        """Load the planned weights of a unit."""
        if self._from_files:
            return _load_file(self._weights_file(unit.architecture), unit)
        # The weights are selected by hash, because weights added to the store after planning must not affect the plan.
        name, sha256 = self._space.weights_name, unit.checkpoint_sha256
        record = self._store.find_by_hash(unit.architecture, unit.dataset, sha256, space=name)
        if record is None:
            raise _unexpected_weights_error(unit, self._find_records(unit.dataset, unit.architecture)[0].sha256[:16])
        return self._store.load(record)


def _load_file(path: "Path", unit: Unit) -> dict[str, "torch.Tensor"]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _missing_file_error(path) from error
    digest = hashlib.sha256(raw).hexdigest()
    if digest != unit.checkpoint_sha256:
        raise _unexpected_weights_error(unit, digest[:16])
    return parse_safetensors(raw, str(path))


def _read_shapes(path: "Path") -> Mapping[str, Shape]:
    try:
        return read_shapes(path, str(path), "Correct `weights.files`.")
    except OSError as error:
        raise _missing_file_error(path) from error


def _hash_weights(path: "Path") -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise _missing_file_error(path) from error


def _missing_file_error(path: "Path") -> CheckpointError:
    return CheckpointError(
        f"Finding weights failed for {path}: the safetensors file does not exist or cannot be read. "
        "Correct `weights.files`."
    )


def _unexpected_weights_error(unit: Unit, actual: str) -> CheckpointError:
    return CheckpointError(
        f"Loading weights failed for {unit.network_label}: expected the planned checkpoint "
        f"{unit.checkpoint_sha256[:16]}, got {actual}. Rerun the sweep to plan with the new weights."
    )
