"""Results of trained networks, read from exports with several weights, by recipe, training length and seed."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.core.records import ArchitectureId
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.error_bars import count_evaluated_images
from robust201.reader.frames import read_table
from robust201.reader.value_checks import CLEAN
from robust201.statistics.outcomes import Packed


class TrainedWeights(NamedTuple):
    """Named weights in an export, with the training run that produced them.

    Attributes:
        reader: reader of the export.
        name: the weights' name in the export.
        recipe: recipe of the training run.
        length: length of training up to these weights, in epochs or iterations (see `Exports`).
        seed: seed of the training run.
    """

    reader: RobustnessDataset
    name: str
    recipe: str
    length: float
    seed: int


class NetworkOutcomes(NamedTuple):
    """Per-image outcomes of M trained networks of one architecture.

    Attributes:
        networks: one row per network, with `recipe`, `length` and `seed`.
        packed: (M, ceil(N / 8)) uint8: one bit per image, in the order of `networks`.
        n_images: number N of images.
    """

    networks: pd.DataFrame
    packed: Packed
    n_images: int


class Exports:
    """Exports of a study's sweeps, read as one table of trained networks."""

    def __init__(self, folders: Sequence[Path], *, iterations_per_epoch: int | None = None) -> None:
        """Open exports.

        Args:
            folders: folders of the exports.
            iterations_per_epoch: iterations per epoch, to measure the training length in iterations. With None, the
                training length is measured in epochs, and snapshots within an epoch are omitted.

        Raises:
            ResultsError: a folder is not an export.
        """
        self.readers = [RobustnessDataset(folder) for folder in folders]
        self._iterations_per_epoch = iterations_per_epoch
        self._accuracy_cache: dict[tuple[str, str, str, str], list[tuple[str, float, float]]] = {}

    @cached_property
    def trained_weights(self) -> tuple[TrainedWeights, ...]:
        """All weights of the exports.

        Raises:
            ResultsError: an export has no named weights.
        """
        return tuple(weights for reader in self.readers for weights in self._read_weights(reader))

    def _read_weights(self, reader: RobustnessDataset) -> Iterator[TrainedWeights]:
        fields_by_name = (reader.sweep or {}).get("weights") or {}
        if not fields_by_name:
            raise ResultsError(
                f"Reading trained networks failed for {reader.path}: its sweep.json names no weights with recipe, "
                "epochs and seed. Sweep several seeds or snapshots with `weights: {path: …}`, and export as Parquet."
            )
        for name, fields in fields_by_name.items():
            length = self._training_length(fields)
            if length is not None and fields.get("seed") is not None:
                yield TrainedWeights(reader, name, fields.get("recipe") or "", length, int(fields["seed"]))

    def _training_length(self, fields: dict[str, Any]) -> float | None:
        """Return the length of training up to these weights (see `__init__`); None if the weights are omitted."""
        epochs, steps = fields.get("epochs"), fields.get("steps")
        if self._iterations_per_epoch is None:
            return None if epochs is None else float(epochs)
        return (
            float(steps)
            if steps is not None
            else None
            if epochs is None
            else float(epochs) * self._iterations_per_epoch
        )

    def accuracies(
        self, dataset: str, key: str, recipes: Sequence[str], architectures: Sequence[ArchitectureId]
    ) -> pd.DataFrame:
        """Read accuracies of trained networks for a key at all its strengths; clean images are strength 0.

        Returns:
            One row per `architecture`, `recipe`, `length`, `seed` and `strength`, with `accuracy`.

        Raises:
            ResultsError: no network has results for the key on the dataset, or two exports disagree.
        """
        architectures_by_id = {str(architecture): architecture for architecture in architectures}
        rows = [
            (architectures_by_id[identifier], weights.recipe, weights.length, weights.seed, strength, accuracy)
            for weights in self._select_weights(dataset, key, recipes)
            for identifier, strength, accuracy in self._read_accuracies(weights, dataset, key)
            if identifier in architectures_by_id
        ]
        if not rows:
            raise self.missing_results_error(dataset, key, recipes, architectures)
        key_columns = ["architecture", "recipe", "length", "seed", "strength"]
        table = pd.DataFrame(rows, columns=[*key_columns, "accuracy"]).drop_duplicates()
        contradictions = table[table.duplicated(key_columns)]
        if len(contradictions):
            architecture, recipe, length, seed, strength, _ = contradictions.iloc[0]
            raise self._contradiction_error(f"{dataset} {key} {strength:g}", architecture, recipe, length, seed)
        return table.sort_values(key_columns, kind="stable", ignore_index=True)

    def _read_accuracies(self, weights: TrainedWeights, dataset: str, key: str) -> list[tuple[str, float, float]]:
        """Return ids, strengths and accuracies of all architectures with these weights, and cache them."""
        cache_key = (str(weights.reader.path), weights.name, dataset, key)
        if cache_key not in self._accuracy_cache:
            table = read_table(weights.reader.files.restrict_to_weights(weights.name), dataset, key, "accuracy")
            self._accuracy_cache[cache_key] = [
                (identifier, strength, float(value))
                for identifier, values in table.rows.items()
                for strength, value in zip(table.strengths, values, strict=True)
                if value is not None
            ]
        return self._accuracy_cache[cache_key]

    def outcomes(
        self, dataset: str, key: str, strength: float, recipes: Sequence[str], architecture: ArchitectureId
    ) -> NetworkOutcomes:
        """Return per-image outcomes of an architecture's networks, ordered by recipe, length and seed.

        Raises:
            ResultsError: there are no outcomes, the exports have different numbers of images, or two exports disagree.
        """
        packed: dict[tuple[str, float, int], NDArray[np.uint8]] = {}
        n_images = 0
        for weights in self._select_weights(dataset, key, recipes):
            outcomes = weights.reader.outcomes(dataset, key, strength, weights=weights.name)
            if architecture in outcomes.architectures:
                network, packed_outcomes = (
                    (weights.recipe, weights.length, weights.seed),
                    outcomes.packed[outcomes.architectures.index(architecture)],
                )
                if not np.array_equal(packed.setdefault(network, packed_outcomes), packed_outcomes):
                    raise self._contradiction_error(f"{dataset} {key} {strength:g}", architecture, *network)
                n_images = outcomes.n_images
        if not packed:
            raise self.missing_results_error(dataset, key, recipes, [architecture])
        if len({len(packed_outcomes) for packed_outcomes in packed.values()}) > 1:
            raise ResultsError(
                f"Reading outcomes failed for {dataset} {key}: the study's exports have different numbers of images. "
                "Evaluate the same images in all sweeps."
            )
        ordered_networks = sorted(packed)
        networks = pd.DataFrame(ordered_networks, columns=["recipe", "length", "seed"])
        return NetworkOutcomes(networks, np.stack([packed[network] for network in ordered_networks]), n_images)

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Return the strengths of a key on a dataset in the first export that has the key; empty if none has it."""
        for reader in self.readers:
            if dataset in reader.data and key in reader.keys_all:
                return reader.strengths(dataset, key)
        return ()

    def dataset_size(self, dataset: str) -> tuple[int | None, int | None]:
        """Return a dataset's number of classes and number of evaluated clean images; None for an unknown number."""
        for reader in self.readers:
            if dataset in reader.data:
                n_classes = DATASETS[dataset].n_classes if dataset in DATASETS else reader.files.count_classes(dataset)
                return n_classes, count_evaluated_images(reader.files, dataset, CLEAN)
        return None, None

    def _select_weights(self, dataset: str, key: str, recipes: Sequence[str]) -> Iterator[TrainedWeights]:
        """Yield the weights of the recipes from exports that have, or may have, results for the key on the dataset."""
        for weights in self.trained_weights:
            if weights.recipe in recipes and dataset in weights.reader.data:
                planned = weights.reader.files.find_planned_strengths(dataset)
                if key == CLEAN or planned is None or key in planned:
                    yield weights

    def _contradiction_error(
        self, evaluation: str, architecture: ArchitectureId, recipe: str, length: float, seed: int
    ) -> ResultsError:
        folders = ", ".join(str(reader.path) for reader in self.readers)
        unit = "epoch" if self._iterations_per_epoch is None else "iteration"
        return ResultsError(
            f"Reading trained networks failed for {evaluation}: two exports have different results for {architecture}, "
            f"trained with the recipe {recipe} and seed {seed} up to {unit} {length:g}: {folders}. Omit one of them."
        )

    def missing_results_error(
        self, dataset: str, key: str, recipes: Sequence[str], architectures: Sequence[ArchitectureId]
    ) -> ResultsError:
        """Return the error for missing results; its message lists the existing ones."""
        available = sorted(
            {(name, weights.recipe or '""') for weights in self.trained_weights for name in weights.reader.data}
        )
        folders = ", ".join(str(reader.path) for reader in self.readers)
        keys = sorted({key for reader in self.readers for key in reader.files.find_planned_strengths(dataset) or ()})
        return ResultsError(
            f"Reading trained networks failed for {dataset} {key}: there are no results of "
            f"{', '.join(map(str, architectures))} trained with {', '.join(recipes)} in {folders}. "
            f"Available: {', '.join(map(' with '.join, available)) or 'no trained networks'} (keys on {dataset}: "
            f"{', '.join(keys) or 'none'}). Correct the names in the study, or run its sweeps."
        )
