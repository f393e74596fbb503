"""The results of one dataset, one row per architecture: the input of figures and analyses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.class_summaries import confidence_quartiles, summarise_classes
from robust201.analysis.labels import dataset_label, key_label, strength_label
from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import CLEAN_STRENGTH, ArchitectureId
from robust201.dataset.layout import CLEAN, paper_key, parse_architecture_id, sort_by_task_order
from robust201.dataset.reader import MEAN_DECIMALS, Dataset
from robust201.images import DATASETS
from robust201.networks.spaces import CellSpace
from robust201.tasks.columns import MEASUREMENTS
from robust201.tasks.strengths import format_term

ADVERSARIAL = "adversarial"
CORRUPTION = "corruption"

SCORES = {CLEAN: "clean", ADVERSARIAL: "mean adversarial", CORRUPTION: "mean corruption"}
"""Scores that architectures are ranked by, with their labels."""

SCORE_KINDS = {ADVERSARIAL: "attack", CORRUPTION: "corruption"}
"""Kind of the keys that each mean averages (see `DatasetResults.averaged_keys`)."""

MEAN_NOTE = (
    "Mean adversarial accuracy is over all pairs of attack and epsilon, mean corruption accuracy over all pairs of "
    "corruption and severity, each pair with the same weight. Attacks without an epsilon (rotations, translations) do "
    "not count."
)
"""Note on the weighting of means, which follows the caption of the paper's Fig. 26."""


@dataclass(frozen=True, eq=False)
class DatasetResults:
    """The results of one dataset.

    Attributes:
        name: the dataset.
        reader: reader of the folder that contains the results.
        accuracies: fractions by architecture (index, ascending) and (key, strength), with keys in the paper's style
            (``pgd``, not ``pgd@Linf``) and in the order of the task table. Clean accuracy is ``("clean", 0.0)``; a
            missing evaluation is NaN.
        folder: results of all datasets in the folder, including this dataset, for figures across datasets.
        measure_folders: readers of further folders, whose measures are correlated with the accuracies.
    """

    name: str
    reader: Dataset
    accuracies: pd.DataFrame
    folder: "Sequence[DatasetResults]" = field(default=(), repr=False)
    measure_folders: Sequence[Dataset] = ()

    @property
    def label(self) -> str:
        return dataset_label(self.name)

    @cached_property
    def image_counts(self) -> pd.DataFrame:
        """Number of images from which each accuracy was computed, in the shape of `accuracies`; NaN if unknown."""
        return self.reader.accuracies(self.name, "n_images").reindex_like(self.accuracies)

    @cached_property
    def n_classes(self) -> int | None:
        """Number of classes; None if the dataset is unknown and has neither confusion matrices nor confidences."""
        return DATASETS[self.name].n_classes if self.name in DATASETS else self.reader.count_classes(self.name)

    @property
    def space(self) -> CellSpace | None:
        """Cell space; None if architectures are not cells, or if each set of weights is a separate network."""
        return self.reader.space

    @property
    def cell_space(self) -> CellSpace:
        """Cell space of the architectures, for figures that exist only for cells."""
        return cast("CellSpace", self.space)

    @property
    def chance_level(self) -> float | None:
        """Accuracy of random guessing; None if the number of classes is unknown."""
        return None if self.n_classes is None else 1 / self.n_classes

    def class_names(self, n_classes: int) -> list[str]:
        """Return the names of the classes, or their numbers if the names are unknown."""
        names = DATASETS[self.name].class_names if self.name in DATASETS else ()
        return list(names) if len(names) == n_classes else [str(label) for label in range(n_classes)]

    @cached_property
    def architectures(self) -> list[ArchitectureId]:
        """Evaluated architectures, ascending."""
        return [parse_architecture_id(str(name)) for name in self.accuracies.index]

    @property
    def columns(self) -> list[tuple[str, float]]:
        columns: list[tuple[str, float]] = list(self.accuracies.columns)  # type: ignore[arg-type]
        return columns

    def keys(self, kind: str) -> list[str]:
        """Return the keys of a kind that have accuracies, in the order of `columns`."""
        return [key for key in dict.fromkeys(key for key, _ in self.columns) if self.reader.kind_of(key) == kind]

    def averaged_keys(self, score: str) -> list[str]:
        """Return the keys that a mean averages: all corruptions, or attacks in norm balls."""
        keys = self.keys(SCORE_KINDS[score])
        return [key for key in keys if score != ADVERSARIAL or self.reader.norm_ball_of(key) is not None]

    def strengths(self, key: str) -> list[float]:
        """Return the strengths at which a key has accuracies, ascending."""
        return [strength for name, strength in self.columns if name == key]

    def starts_with_clean(self, key: str) -> bool:
        """Return whether figures show the clean accuracy as the key's accuracy at strength 0.

        They do so for the key `clean`, and for keys that were not evaluated at strength 0.
        """
        return key == CLEAN or CLEAN_STRENGTH not in self.reader.strengths(self.name, key)

    def column(self, key: str, strength: float = CLEAN_STRENGTH) -> pd.Series:
        return self.accuracies[key, strength]

    def network_label(self, architecture: ArchitectureId) -> str:
        """Return a network's label: a cell's index with the sign #, or the network's name."""
        return f"#{architecture}" if self.space is not None else str(architecture)

    def term(self, key: str, strength: float) -> str:
        """Return a key at a strength, such as ``pgd:8/255``; keys without strengths have no suffix."""
        return format_term(key, strength, self.reader.unit_of(key))

    def column_label(self, key: str, strength: float) -> str:
        """Return the label of a key and strength, such as ``PGD, ε = 8/255``."""
        return ", ".join(filter(None, (key_label(key), strength_label(strength, self.reader.unit_of(key)))))

    def spec(self, architecture: ArchitectureId) -> str:
        return self.reader.id_to_string(architecture)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The scores in `SCORES` for which the results suffice, by architecture.

        A mean is NaN if the architecture lacks any of the averaged accuracies.
        """
        columns: dict[str, Any] = {}
        if (CLEAN, CLEAN_STRENGTH) in self.columns:
            columns[CLEAN] = self.column(CLEAN)
        for score in SCORE_KINDS:
            keys = self.averaged_keys(score)
            if keys:
                averaged_accuracies = self.accuracies[[column for column in self.columns if column[0] in keys]]
                columns[score] = averaged_accuracies.mean(axis=1, skipna=False).round(MEAN_DECIMALS)
        return pd.DataFrame(columns, index=self.accuracies.index)

    @cached_property
    def measures(self) -> pd.DataFrame:
        """The values of measures and of unknown keys; accuracies are not included.

        Returns:
            float64 by architecture and (key, measurement, strength); NaN for missing values. Lists are left out.
        """
        return read_measures(self.reader, self.name)

    def key_mean(self, key: str) -> pd.Series:
        """Return the mean of a key's accuracies over its strengths, by architecture; NaN if one is missing."""
        columns = [(key, strength) for strength in self.strengths(key)]
        return self.accuracies[columns].mean(axis=1, skipna=False).round(MEAN_DECIMALS)

    def confusion_sums(self) -> dict[tuple[str, float], NDArray[np.float64]]:
        """Return the summed confusion matrices (see `iter_class_summaries`), with keys in the paper's style."""
        keys = sort_by_task_order(self.reader.keys_all)
        sums = summarise_classes(self.reader, self.name, keys, "cm")
        return {(paper_key(key), strength): array for (key, strength), array in sums.items()}

    @cached_property
    def confidences(self) -> pd.DataFrame:
        """Quartiles of confidences (see `class_summaries.confidence_quartiles`), with keys in the paper's style."""
        quartiles_by_key = confidence_quartiles(self.reader, self.name, sort_by_task_order(self.reader.keys_all))
        return quartiles_by_key.assign(key=quartiles_by_key["key"].map(paper_key))


def read_measures(reader: Dataset, name: str, weights: str | None = None) -> pd.DataFrame:
    """Read a dataset's measures for the weights with this name (see `DatasetResults.measures`)."""
    columns: dict[tuple[str, str, float], pd.Series] = {}
    reader_of_weights = reader.with_weights(weights)
    for key in reader_of_weights.keys_measure + reader_of_weights.keys_other:
        for measure in reader_of_weights.measurements(name, key):
            if measure in MEASUREMENTS or not reader_of_weights.has(name, key, measure):
                continue
            frame = reader_of_weights.read_table(name, key, measure)
            if frame["value"].dtype.kind == "f":
                for strength, values_at_strength in frame.groupby("strength"):
                    columns[key, measure, float(str(strength))] = values_at_strength.set_index("architecture")["value"]
    return pd.DataFrame(columns).sort_index()


def read_results(reader: Dataset) -> list[DatasetResults]:
    """Read the results of each dataset in a folder; datasets without accuracies are left out."""
    folder: list[DatasetResults] = []
    for name in reader.data:
        accuracies = reader.accuracies(name)
        if accuracies.notna().to_numpy().any():
            folder.append(DatasetResults(name, reader, accuracies, folder))
    return folder


def choose_results(
    all_results: Sequence[DatasetResults], dataset_name: str | None, path: Path, activity: str = "Drawing"
) -> DatasetResults:
    """Return the results on the dataset `dataset_name`; None selects the only dataset.

    Args:
        all_results: results on all datasets of the folder.
        dataset_name: name of a dataset, or None.
        path: the folder.
        activity: beginning of error messages, such as ``Ranking``.

    Raises:
        ConfigError: the folder has no results on this dataset, or it has several datasets and none is named.
    """
    names = [results.name for results in all_results]
    if dataset_name is None and len(all_results) == 1:
        return all_results[0]
    if dataset_name is None:
        remedy = "Select one with --data"
        remedy += ", or draw all figures of all datasets with `plot all`." if activity == "Drawing" else "."
        raise ConfigError(
            f"{activity} failed for {path}: no dataset was selected, and the folder has results on "
            f"{', '.join(names) or 'no dataset'}. {remedy}"
        )
    if dataset_name not in names:
        raise ConfigError(
            f"{activity} failed for {path}: it has no results on {dataset_name!r}.{did_you_mean(dataset_name, names)}"
        )
    return all_results[names.index(dataset_name)]


def quartiles(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the three quartiles of numbers, by linear interpolation."""
    q1, median, q3 = np.quantile(values, (0.25, 0.5, 0.75))
    return float(q1), float(median), float(q3)
