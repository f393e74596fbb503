"""What the figures are computed from: the results of one dataset, one row an architecture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipeline.analysis.reader import RobustnessDataset
from pipeline.analysis.result_files import in_table_order, kind_of, row_of, values_by_strength
from pipeline.analysis.value_checks import count_classes
from pipeline.datasets import DATASETS
from pipeline.errors import ResultsError
from pipeline.records import CLEAN_STRENGTH

CLEAN = "clean"
ADVERSARIAL = "adversarial"
CORRUPTION = "corruption"

SCORES = {CLEAN: "clean", ADVERSARIAL: "mean adversarial", CORRUPTION: "mean corruption"}
"""What architectures are ranked by, with the words for it."""


class NestedRow(NamedTuple):
    """One measurement of one architecture under one key at one strength.

    Attributes:
        key: the key in the paper's style.
        strength: epsilon in units of 1/255, severity, or 0 for clean images.
        value: as in the file, nested lists and dicts.
    """

    key: str
    strength: float
    value: Any


@dataclass(frozen=True, eq=False)
class DatasetResults:
    """The results of one dataset.

    Attributes:
        name: the dataset.
        reader: the folder they come from.
        accuracies: fractions by architecture (index, ascending) and (key, strength), keys in the paper's style and in
            the order of the table of perturbations, clean as ``("clean", 0.0)``; NaN where an evaluation is missing.
    """

    name: str
    reader: RobustnessDataset
    accuracies: pd.DataFrame

    @classmethod
    def of(cls, reader: RobustnessDataset, frame: pd.DataFrame, name: str) -> "DatasetResults":
        """Take a dataset out of a tidy frame.

        Args:
            reader: where the frame is from.
            frame: accuracies (see `RobustnessDataset.to_frame`).
            name: the dataset.
        """
        own = frame[(frame["dataset"] == name) & ((frame["strength"] > CLEAN_STRENGTH) | (frame["key"] == CLEAN))]
        keys = in_table_order({str(key) for key in own["key"].unique()})
        order = {key: place for place, key in enumerate(keys)}
        wide = own.set_index(["architecture", "key", "strength"])["value"].unstack(["key", "strength"]).sort_index()
        found: list[tuple[str, float]] = list(wide.columns)  # type: ignore[arg-type]
        found.sort(key=lambda column: (order[column[0]], column[1]))
        named = [(paper_key(key), float(strength)) for key, strength in found]
        wide = wide[found].set_axis(pd.MultiIndex.from_tuples(named, names=["key", "strength"]), axis=1)
        return cls(name, reader, wide)

    @property
    def n_classes(self) -> int | None:
        """Number of classes, where the dataset is known."""
        return DATASETS[self.name].n_classes if self.name in DATASETS else None

    @property
    def chance(self) -> float | None:
        """Accuracy of guessing, where the number of classes is known."""
        return None if self.n_classes is None else 1 / self.n_classes

    def class_names(self, n_classes: int) -> list[str]:
        """Name the classes of the dataset, by their numbers where the names are unknown."""
        known = DATASETS[self.name].class_names if self.name in DATASETS else ()
        return list(known) if len(known) == n_classes else [str(label) for label in range(n_classes)]

    @property
    def architectures(self) -> list[int]:
        """Evaluated architectures, ascending."""
        return [int(index) for index in self.accuracies.index]

    @property
    def columns(self) -> list[tuple[str, float]]:
        """Keys and strengths that there are accuracies of, in order."""
        columns: list[tuple[str, float]] = list(self.accuracies.columns)  # type: ignore[arg-type]
        return columns

    def keys(self, kind: str) -> list[str]:
        """List the keys of a kind (see `pipeline.analysis.result_files.kind_of`) in the order of the table."""
        return [key for key in dict.fromkeys(key for key, _ in self.columns) if kind_of(key) == kind]

    def strengths(self, key: str) -> list[float]:
        """List the strengths that a key has accuracies at, ascending."""
        return [strength for name, strength in self.columns if name == key]

    def column(self, key: str, strength: float = CLEAN_STRENGTH) -> pd.Series:
        """Give the accuracies of a key at a strength, by architecture."""
        return self.accuracies[key, strength]

    def spec(self, architecture: int) -> str:
        """Give the cell string of an architecture."""
        return self.reader.id_to_string(architecture)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Accuracies to rank by: those of `SCORES` that the results are enough for, by architecture.

        A mean counts every key once, whatever its number of strengths, and takes its strengths' mean; it is NaN where
        an architecture lacks one of them.
        """
        columns: dict[str, Any] = {}
        if (CLEAN, CLEAN_STRENGTH) in self.columns:
            columns[CLEAN] = self.column(CLEAN)
        for score, kind in ((ADVERSARIAL, "attack"), (CORRUPTION, "corruption")):
            means = [self.key_mean(key) for key in self.keys(kind)]
            if means:
                columns[score] = pd.concat(means, axis=1).mean(axis=1, skipna=False)
        return pd.DataFrame(columns, index=self.accuracies.index)

    def key_mean(self, key: str) -> pd.Series:
        """Average a key's accuracies over its strengths, by architecture; NaN where one is missing."""
        return self.accuracies[[(key, strength) for strength in self.strengths(key)]].mean(axis=1, skipna=False)

    def nested(self, measure: str) -> Iterator[NestedRow]:
        """Go through another measurement, one architecture in memory at a time.

        Args:
            measure: such as ``"confidence"`` or ``"cm"``.

        Yields:
            Rows by key, architecture and strength; nothing for keys without such a file.

        Raises:
            ResultsError: a file is damaged, lacks a strength, or has values of other numbers of classes.
        """
        n_classes: int | None = None
        for name in in_table_order(self.reader.keys_all):
            if self.reader.files.find(self.name, name, measure) is None:
                continue
            strengths: Sequence[float] = self.reader.strengths(self.name, name)
            for index, row in self.reader.files.iter_rows(self.name, name, measure):
                what = f"#{index} {self.name} {name} {measure}"
                values = [row] if kind_of(name) == "clean" else values_by_strength(row, strengths, what)
                for strength, value in zip(strengths, values, strict=True):
                    n_here = count_classes(measure, value)
                    n_classes = n_here if n_classes is None else n_classes
                    if n_here != n_classes:
                        file = self.reader.files.find(self.name, name, measure)
                        raise ResultsError(
                            f"Reading #{index} {name} {measure} failed for {file}: expected {n_classes} classes, as "
                            f"those before, got {n_here}. Export or download it again."
                        )
                    yield NestedRow(paper_key(name), float(strength), value)


def paper_key(key: str) -> str:
    """Spell a key in the paper's style; unknown ones stay as they are."""
    row = row_of(key)
    return key if row is None else row.key


def strength_label(key: str, strength: float) -> str:
    """Write a strength with its unit, such as ``ε = 8/255`` or ``severity 3``; empty for clean images."""
    if strength == CLEAN_STRENGTH:
        return ""
    return f"severity {strength:g}" if kind_of(key) == "corruption" else f"ε = {strength:g}/255"


def column_label(key: str, strength: float) -> str:
    """Name a key and strength, such as ``pgd, ε = 8/255``."""
    return ", ".join(filter(None, (key, strength_label(key, strength))))


def nearest(strengths: Sequence[float], wanted: float) -> float:
    """Choose the strength nearest to a wanted one, the lower of two."""
    return min(strengths, key=lambda strength: (abs(strength - wanted), strength))


def read_results(reader: RobustnessDataset) -> list[DatasetResults]:
    """Read the accuracies of every dataset that a folder holds.

    Args:
        reader: the folder.

    Returns:
        Datasets with at least one accuracy, in the folder's order.

    Raises:
        ResultsError: a file is damaged.
    """
    return datasets_of(reader, reader.to_frame())


def datasets_of(reader: RobustnessDataset, frame: pd.DataFrame) -> list[DatasetResults]:
    """Divide a tidy frame of accuracies by dataset (see `read_results`)."""
    held = set(frame["dataset"][frame["value"].notna()])
    return [DatasetResults.of(reader, frame, str(name)) for name in frame["dataset"].cat.categories if name in held]


def quartiles(values: "np.ndarray[Any, np.dtype[np.float64]]") -> tuple[float, float, float]:
    """Compute the three quartiles of numbers, by linear interpolation."""
    first, second, third = np.quantile(values, (0.25, 0.5, 0.75))
    return float(first), float(second), float(third)
