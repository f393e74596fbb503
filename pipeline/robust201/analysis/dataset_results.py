"""What the figures are computed from: the results of one dataset, one row per architecture."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.class_summaries import confidence_quartiles, summarise_classes
from robust201.analysis.labels import dataset_label
from robust201.core.errors import ConfigError, closest
from robust201.core.records import CLEAN_STRENGTH, ArchitectureId
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.frames import MEAN_DECIMALS, read_accuracies
from robust201.reader.overlay import OverlaidFiles
from robust201.reader.result_files import in_table_order, paper_key
from robust201.reader.value_checks import CLEAN, architecture_of
from robust201.spaces.cell_space import CellSpace
from robust201.tasks.columns import MEASUREMENTS

ADVERSARIAL = "adversarial"
CORRUPTION = "corruption"

SCORES = {CLEAN: "clean", ADVERSARIAL: "mean adversarial", CORRUPTION: "mean corruption"}
"""What architectures are ranked by, with the words for it."""

SCORE_KINDS = {ADVERSARIAL: "attack", CORRUPTION: "corruption"}
"""The kind of the keys that a mean is over (see `DatasetResults.averaged_keys`)."""

OVER_EVALUATIONS = "over-evaluations"
OVER_KEYS = "over-keys"

_IN_BALLS = " Attacks without an epsilon (rotations, translations) and transfers do not count."

MEANS = {
    OVER_EVALUATIONS: "Mean adversarial accuracy is over all pairs of attack and epsilon, mean corruption accuracy "
    "over all pairs of corruption and severity, each pair with the same weight." + _IN_BALLS,
    OVER_KEYS: "Mean adversarial and mean corruption accuracy are over attacks and over corruptions, each of which "
    "counts once with its mean over epsilons or severities." + _IN_BALLS,
}
"""How means are weighted, by name: the first as the caption of the paper's Fig. 26 reads, and the default."""


ROUNDED_BY = 5e-5
"""Accuracies of four decimals differ from shares by at most this."""


class Ranked(NamedTuple):
    """An architecture's place by an accuracy.

    Attributes:
        architecture: its id.
        accuracy: the accuracy, a fraction.
        rank: one more than the number of architectures with a higher accuracy.
        tied: how many architectures have this accuracy, itself among them.
    """

    architecture: ArchitectureId
    accuracy: float
    rank: int
    tied: int


@dataclass(frozen=True, eq=False)
class DatasetResults:
    """The results of one dataset.

    Attributes:
        name: the dataset.
        reader: the folder they come from.
        accuracies: fractions by architecture (index, ascending) and (key, strength), keys in the paper's style and in
            the order of the table of tasks, clean as ``("clean", 0.0)``; NaN where an evaluation is missing.
        mean: how `scores` weigh keys and strengths, a name of `MEANS`.
        folder: the results of all datasets of the folder, these among them, for figures across datasets.
        measure_weights: name of the weights that `measures` are of; None for those that the accuracies are of.
        measure_folders: folders whose measures are correlated with the accuracies, beside those of `reader`.
        shown_class: number of the class whose confidences a figure of one class shows.
    """

    name: str
    reader: RobustnessDataset
    accuracies: pd.DataFrame
    mean: str = OVER_EVALUATIONS
    folder: "Sequence[DatasetResults]" = field(default=(), repr=False)
    measure_weights: str | None = None
    measure_folders: Sequence[RobustnessDataset] = ()
    shown_class: int = 0

    @property
    def label(self) -> str:
        return dataset_label(self.name)

    @cached_property
    def n_images(self) -> int | None:
        """Number of images behind an accuracy; None if the folder does not record it, or contradicts it."""
        if isinstance(self.reader.files, OverlaidFiles):  # each folder may have images of its own
            return None
        chosen: Any = {} if self.reader.sweep is None else self.reader.sweep.get("sweep", {}).get("images")
        if chosen is None:  # an import has none
            return None
        n = chosen.get("count") or (DATASETS[self.name].n_test if self.name in DATASETS else 0)
        counts = n * self.accuracies.to_numpy(np.float64)
        # Shares of n images, maybe rounded to four decimals.
        whole = np.nanmax(np.abs(counts - np.round(counts)), initial=0.0) <= ROUNDED_BY * n
        return n if n and whole else None

    @cached_property
    def n_classes(self) -> int | None:
        """Number of classes, where the dataset is known or has a confusion matrix or confidence to count them in."""
        return DATASETS[self.name].n_classes if self.name in DATASETS else self.reader.files.count_classes(self.name)

    @property
    def space(self) -> CellSpace | None:
        """What the space of the architectures offers; None where they are no cells."""
        return self.reader.files.space

    @property
    def cells(self) -> CellSpace:
        """The space of the architectures, of figures that only cells have."""
        return cast("CellSpace", self.space)

    @property
    def chance(self) -> float | None:
        """Accuracy of guessing, where the number of classes is known."""
        return None if self.n_classes is None else 1 / self.n_classes

    def class_names(self, n_classes: int) -> list[str]:
        """Name the classes of the dataset, by their numbers where the names are unknown."""
        known = DATASETS[self.name].class_names if self.name in DATASETS else ()
        return list(known) if len(known) == n_classes else [str(label) for label in range(n_classes)]

    @property
    def extent(self) -> str:
        """How many of the architectures that stand for a class there are, such as ``16 of 20 architectures``."""
        return f"{len(self.accuracies):,} of {len(self.reader.non_isomorph_ids):,} architectures"

    @cached_property
    def architectures(self) -> list[ArchitectureId]:
        """Evaluated architectures, ascending."""
        return [architecture_of(str(name)) for name in self.accuracies.index]

    @property
    def columns(self) -> list[tuple[str, float]]:
        columns: list[tuple[str, float]] = list(self.accuracies.columns)  # type: ignore[arg-type]
        return columns

    def keys(self, kind: str) -> list[str]:
        """List the keys of a kind (see `ResultFiles.kind_of`) that have accuracies, in the order of the table."""
        return [key for key in dict.fromkeys(key for key, _ in self.columns) if self.reader.files.kind_of(key) == kind]

    def averaged_keys(self, score: str) -> list[str]:
        """List the keys that a mean is over: all corruptions, or attacks in norm balls on the networks themselves."""
        keys = self.keys(SCORE_KINDS[score])
        return [key for key in keys if score != ADVERSARIAL or self.reader.files.ball_of(key) is not None]

    def strengths(self, key: str) -> list[float]:
        """List the strengths that a key has accuracies at, ascending."""
        return [strength for name, strength in self.columns if name == key]

    def begins_clean(self, key: str) -> bool:
        """Whether a figure of a key has the clean images at strength 0: not where the key was evaluated at 0."""
        return key == CLEAN or CLEAN_STRENGTH not in self.reader.files.strengths(self.name, key)

    def column(self, key: str, strength: float = CLEAN_STRENGTH) -> pd.Series:
        return self.accuracies[key, strength]

    def network_label(self, architecture: ArchitectureId) -> str:
        """Name a network for people: a cell by the sign # and its index, others by their names."""
        return f"#{architecture}" if self.space is not None else str(architecture)

    def spec(self, architecture: ArchitectureId) -> str:
        return self.reader.id_to_string(architecture)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Accuracies to rank by: those of `SCORES` that the results are enough for, by architecture.

        Means are weighted as `mean` says; one is NaN where an architecture lacks one of its numbers.
        """
        columns: dict[str, Any] = {}
        if (CLEAN, CLEAN_STRENGTH) in self.columns:
            columns[CLEAN] = self.column(CLEAN)
        for score in SCORE_KINDS:
            keys = self.averaged_keys(score)
            if keys and self.mean == OVER_KEYS:
                parts = pd.concat([self.key_mean(key) for key in keys], axis=1)
            elif keys:
                parts = self.accuracies[[column for column in self.columns if column[0] in keys]]
            else:
                continue
            columns[score] = parts.mean(axis=1, skipna=False).round(MEAN_DECIMALS)
        return pd.DataFrame(columns, index=self.accuracies.index)

    def ranked(self, accuracies: pd.Series) -> list[Ranked]:
        """Rank architectures by an accuracy, the best first; those without one are left out.

        Of equally accurate ones the one stands first that is better by the results' scores, in the order of `SCORES`,
        and of those equal by all of them the one of the lowest id.
        """
        frame = self.scores.assign(accuracy=accuracies).dropna(subset="accuracy").sort_index()
        order = ["accuracy", *self.scores.columns]
        frame = frame.sort_values(order, ascending=False, kind="stable", na_position="last")
        held = frame["accuracy"]
        ranks, tied = held.rank(method="min", ascending=False), held.groupby(held).transform("size")
        columns = (frame.index.tolist(), held.tolist(), ranks.astype(int).tolist(), tied.tolist())
        return [Ranked(*row) for row in zip(*columns, strict=True)]

    @property
    def best_architecture(self) -> ArchitectureId:
        """The one that an explorer opens at: the best by mean adversarial accuracy, or by another score."""
        for score in (ADVERSARIAL, *self.scores.columns):
            if score in self.scores and (ranked := self.ranked(self.scores[score])):
                return ranked[0].architecture
        return self.architectures[0]

    @cached_property
    def measures(self) -> pd.DataFrame:
        """Numbers of measures and of unknown keys, accuracies aside.

        Returns:
            float64 by architecture and (key, measurement, strength); NaN where there is none. Lists are left out.
        """
        return read_measures(self.reader, self.name, self.measure_weights)

    def key_mean(self, key: str) -> pd.Series:
        """Average a key's accuracies over its strengths, by architecture; NaN where one is missing."""
        columns = [(key, strength) for strength in self.strengths(key)]
        return self.accuracies[columns].mean(axis=1, skipna=False).round(MEAN_DECIMALS)

    def confusion_sums(self) -> dict[tuple[str, float], NDArray[np.float64]]:
        """Add up confusion matrices (see `class_summaries.iter_class_summaries`), keys in the paper's style."""
        keys = in_table_order(self.reader.keys_all)
        sums = summarise_classes(self.reader.files, self.name, keys, "cm")
        return {(paper_key(key), strength): array for (key, strength), array in sums.items()}

    @cached_property
    def confidences(self) -> pd.DataFrame:
        """Quartiles of confidences (see `class_summaries.confidence_quartiles`), keys in the paper's style."""
        rows = confidence_quartiles(self.reader.files, self.name, in_table_order(self.reader.keys_all))
        return rows.assign(key=rows["key"].map(paper_key))


def read_measures(reader: RobustnessDataset, name: str, weights: str | None) -> pd.DataFrame:
    """Read the measures of a dataset and of one choice of weights (see `DatasetResults.measures`)."""
    columns: dict[tuple[str, str, float], pd.Series] = {}
    files = reader.files.choosing(weights)
    for key in sorted(files.keys, key=lambda key: files.kind_of(key) == "other"):
        for measure in files.measurements_of(name, key) if files.kind_of(key) in ("measure", "other") else ():
            if measure in MEASUREMENTS or files.find(name, key, measure) is None:
                continue
            frame = reader.to_frame(name, key, measure, weights=weights)
            if frame["value"].dtype.kind == "f":
                for strength, rows in frame.groupby("strength"):
                    columns[key, measure, float(str(strength))] = rows.set_index("architecture")["value"]
    return pd.DataFrame(columns).sort_index()


def read_results(
    reader: RobustnessDataset, *, mean: str = OVER_EVALUATIONS, measure_weights: str | None = None
) -> list[DatasetResults]:
    """Read the results of a folder's datasets; those without accuracies are left out."""
    if mean not in MEANS:
        raise ConfigError(
            f"Averaging accuracies failed for the mean: expected {' or '.join(MEANS)}, got {mean!r}."
            f"{closest(mean, MEANS)}"
        )
    folder: list[DatasetResults] = []
    for name in reader.files.datasets:
        accuracies = read_accuracies(reader.files, name)
        if accuracies.notna().to_numpy().any():
            folder.append(DatasetResults(name, reader, accuracies, mean, folder, measure_weights))
    return folder


def choose_results(
    several: Sequence[DatasetResults], data: str | None, path: Path, what: str = "Drawing"
) -> DatasetResults:
    """Return the results of one of a folder's datasets, by its name, which may be left out where there is one."""
    names = [results.name for results in several]
    if data is None and len(several) == 1:
        return several[0]
    if data is None:
        every = ", or draw all figures of all by `plot all`" if what == "Drawing" else ""
        raise ConfigError(
            f"{what} failed for {path}: expected the name of one dataset, got none and a folder with "
            f"{', '.join(names) or 'no results'}. Give --dataset{every}."
        )
    if data not in names:
        raise ConfigError(
            f"{what} failed for {path}: expected one of its datasets, got {data!r}.{closest(data, names)}"
        )
    return several[names.index(data)]


def quartiles(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Compute the three quartiles of numbers, by linear interpolation."""
    first, second, third = np.quantile(values, (0.25, 0.5, 0.75))
    return float(first), float(second), float(third)
