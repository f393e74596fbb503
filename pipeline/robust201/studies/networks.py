"""Results of trained networks from exports of several weights: by recipe, length of training and seed."""

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
from robust201.reader.error_bars import images_behind
from robust201.reader.frames import read_table
from robust201.reader.value_checks import CLEAN
from robust201.statistics.outcomes import Packed


class Trained(NamedTuple):
    """Weights that an export names.

    Attributes:
        name: their name in the export.
        recipe: of the training.
        length: of the training until then, in epochs or iterations (see `Exports`).
        seed: of the training.
    """

    reader: RobustnessDataset
    name: str
    recipe: str
    length: float
    seed: int


class AttackedOutcomes(NamedTuple):
    """Outcomes by image of one architecture's networks.

    Attributes:
        networks: `recipe`, `length` and `seed`, one row per network.
        packed: (A, B) uint8 in the order of the networks.
        n_images: images N.
    """

    networks: pd.DataFrame
    packed: Packed
    n_images: int


class Exports:
    """Exports of the sweeps of a study, read as one table of networks."""

    def __init__(self, folders: Sequence[Path], *, iterations_per_epoch: int | None = None) -> None:
        """Open exports.

        Args:
            folders: of the exports.
            iterations_per_epoch: lengths of trainings are counted in iterations, of which an epoch has so many; None
                counts them in epochs, and leaves out snapshots within one.

        Raises:
            ResultsError: a folder is no export, or names no weights.
        """
        self.readers = [RobustnessDataset(folder) for folder in folders]
        self._iterations = iterations_per_epoch
        self._kept: dict[tuple[str, str, str, str], list[tuple[str, float, float]]] = {}

    @cached_property
    def trained(self) -> tuple[Trained, ...]:
        return tuple(one for reader in self.readers for one in self._list(reader))

    def _list(self, reader: RobustnessDataset) -> Iterator[Trained]:
        recorded = (reader.sweep or {}).get("weights") or {}
        if not recorded:
            raise ResultsError(
                f"Reading trained networks failed for {reader.path}: expected weights with recipe, epochs and seed in "
                "sweep.json, got none. Sweep several seeds or snapshots by `weights: {path: …}`, and export as Parquet."
            )
        for name, fields in recorded.items():
            length = self._length(fields)
            if length is not None and fields.get("seed") is not None:
                yield Trained(reader, name, fields.get("recipe") or "", length, int(fields["seed"]))

    def _length(self, fields: dict[str, Any]) -> float | None:
        epochs, steps = fields.get("epochs"), fields.get("steps")
        if self._iterations is None:
            return None if epochs is None else float(epochs)
        return float(steps) if steps is not None else None if epochs is None else float(epochs) * self._iterations

    def accuracies(
        self, dataset: str, key: str, recipes: Sequence[str], architectures: Sequence[ArchitectureId]
    ) -> pd.DataFrame:
        """Read accuracies of some networks under a key at all its strengths, clean images first as strength 0.

        Returns:
            One row per `architecture`, `recipe`, `length`, `seed` and `strength`, with `accuracy`.

        Raises:
            ResultsError: none of the networks has results of the key on the dataset, or two exports disagree on one.
        """
        wanted = {str(architecture): architecture for architecture in architectures}
        rows = [
            (wanted[identifier], one.recipe, one.length, one.seed, strength, accuracy)
            for one in self._of(dataset, key, recipes)
            for identifier, strength, accuracy in self._read(one, dataset, key)
            if identifier in wanted
        ]
        if not rows:
            raise self.absence(dataset, key, recipes, architectures)
        order = ["architecture", "recipe", "length", "seed", "strength"]
        found = pd.DataFrame(rows, columns=[*order, "accuracy"]).drop_duplicates()
        twice = found[found.duplicated(order)]
        if len(twice):
            of, recipe, length, seed, strength, _ = twice.iloc[0]
            raise self._contradiction(f"{dataset} {key} {strength:g}", of, recipe, length, seed)
        return found.sort_values(order, kind="stable", ignore_index=True)

    def _read(self, one: Trained, dataset: str, key: str) -> list[tuple[str, float, float]]:
        """Read ids, strengths and accuracies of all architectures with these weights, once."""
        place = (str(one.reader.path), one.name, dataset, key)
        if place not in self._kept:
            table = read_table(one.reader.files.choosing(one.name), dataset, key, "accuracy")
            self._kept[place] = [
                (identifier, strength, float(value))
                for identifier, values in table.rows.items()
                for strength, value in zip(table.strengths, values, strict=True)
                if value is not None
            ]
        return self._kept[place]

    def outcomes(
        self, dataset: str, key: str, strength: float, recipes: Sequence[str], architecture: ArchitectureId
    ) -> AttackedOutcomes:
        """Read outcomes by image of an architecture's networks, ordered by recipe, length and seed.

        Raises:
            ResultsError: there are none, or they are of other images in another export, or two exports disagree.
        """
        packed: dict[tuple[str, float, int], NDArray[np.uint8]] = {}
        n_images = 0
        for one in self._of(dataset, key, recipes):
            found = one.reader.outcomes(dataset, key, strength, weights=one.name)
            if architecture in found.architectures:
                network, row = (one.recipe, one.length, one.seed), found.packed[found.architectures.index(architecture)]
                if not np.array_equal(packed.setdefault(network, row), row):
                    raise self._contradiction(f"{dataset} {key} {strength:g}", architecture, *network)
                n_images = found.n_images
        if not packed:
            raise self.absence(dataset, key, recipes, [architecture])
        if len({len(row) for row in packed.values()}) > 1:
            raise ResultsError(
                f"Reading outcomes failed for {dataset} {key}: expected the same images in every export of the study, "
                "got more in one than in another. Evaluate the same selection of images."
            )
        order = sorted(packed)
        networks = pd.DataFrame(order, columns=["recipe", "length", "seed"])
        return AttackedOutcomes(networks, np.stack([packed[network] for network in order]), n_images)

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Strengths of a key on a dataset, as the first export has them that has the key."""
        for reader in self.readers:
            if dataset in reader.data and key in reader.keys_all:
                return reader.strengths(dataset, key)
        return ()

    def task_size(self, dataset: str) -> tuple[int | None, int | None]:
        """Return how many classes a dataset has, and images behind a clean accuracy; None where not recorded."""
        for reader in self.readers:
            if dataset in reader.data:
                n_classes = DATASETS[dataset].n_classes if dataset in DATASETS else reader.files.count_classes(dataset)
                return n_classes, images_behind(reader.files, dataset, CLEAN)
        return None, None

    def _of(self, dataset: str, key: str, recipes: Sequence[str]) -> Iterator[Trained]:
        for one in self.trained:
            if one.recipe in recipes and dataset in one.reader.data:
                planned = one.reader.files.planned(dataset)
                if key == CLEAN or planned is None or key in planned:
                    yield one

    def _contradiction(
        self, what: str, architecture: ArchitectureId, recipe: str, length: float, seed: int
    ) -> ResultsError:
        names = ", ".join(str(reader.path) for reader in self.readers)
        return ResultsError(
            f"Reading trained networks failed for {what}: expected one result of {architecture} {recipe} after "
            f"{length:g} with seed {seed}, got two that differ in {names}. Leave one of the exports out."
        )

    def absence(
        self, dataset: str, key: str, recipes: Sequence[str], architectures: Sequence[ArchitectureId]
    ) -> ResultsError:
        """Make the error of results that are not there, with those that are."""
        there = sorted({(name, one.recipe or '""') for one in self.trained for name in one.reader.data})
        names = ", ".join(str(reader.path) for reader in self.readers)
        keys = sorted({held for reader in self.readers for held in reader.files.planned(dataset) or ()})
        return ResultsError(
            f"Reading trained networks failed for {dataset} {key}: expected results of "
            f"{', '.join(map(str, architectures))} trained by {', '.join(recipes)}, got none in {names}, which has "
            f"{', '.join(map(' by '.join, there)) or 'no trained networks'} (of {dataset}: "
            f"{', '.join(keys) or 'no keys'}). Correct the names in the study, or run its sweeps."
        )
