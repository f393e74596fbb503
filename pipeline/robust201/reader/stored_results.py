"""Accuracies and per-image outcomes of one dataset, which derived metrics, leaderboards and galleries use."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.error_bars import check_outcomes
from robust201.reader.frames import read_frame
from robust201.reader.outcomes import Outcomes, has_outcomes_of, read_outcomes
from robust201.reader.result_files import ResultFiles


class StoredResults:
    """Accuracies and per-image outcomes of one dataset.

    Attributes:
        files: reader of the dataset's files.
        name: name of the dataset.
        accuracies: by key, a DataFrame with one row per architecture and one column per strength.
    """

    def __init__(self, files: ResultFiles, name: str, accuracies: Mapping[str, pd.DataFrame]) -> None:
        self.files, self.name, self.accuracies = files, name, accuracies
        self._outcomes: dict[tuple[str, float], Outcomes | None] = {}

    @classmethod
    def read(cls, files: ResultFiles, name: str, keys: Sequence[str] | None) -> "StoredResults":
        """Read a dataset's accuracies under all keys or some keys; measures are left out."""
        accuracies = {
            str(key): frame.set_index(["architecture", "strength"])["value"].unstack("strength").sort_index()
            for key, frame in read_frame(files, [name], keys).groupby("key", observed=True)
            if files.kind_of(str(key)) != "measure"
        }
        return cls(files, name, accuracies)

    def keys(self, kind: str) -> list[str]:
        return [key for key in self.accuracies if self.files.kind_of(key) == kind]

    def evaluations(self) -> Iterator[tuple[str, float]]:
        """Yield keys and strengths, clean images first.

        Strength 0 of an attack is left out if it stands for clean images.
        """
        for key in sorted(self.accuracies, key=lambda key: self.files.kind_of(key) != "clean"):
            uses_clean_at_zero = self.files.uses_clean_at_zero(self.name, key)
            strengths = (float(str(strength)) for strength in self.accuracies[key].columns)
            yield from (
                (key, strength_value)
                for strength_value in strengths
                if not (uses_clean_at_zero and strength_value == CLEAN_STRENGTH)
            )

    def outcomes(self, key: str, strength: float) -> Outcomes | None:
        """Return per-image outcomes, checked against the accuracies; None if outcomes are not stored."""
        evaluation = (key, strength)
        if evaluation not in self._outcomes:
            has_outcomes = has_outcomes_of(self.files, self.name, key)
            outcomes = read_outcomes(self.files, self.name, key, strength) if has_outcomes else None
            if outcomes is not None and key in self.accuracies:
                check_outcomes(outcomes, self.accuracies[key][strength].dropna(), f"{self.name} {key}")
            self._outcomes[evaluation] = outcomes
        return self._outcomes[evaluation]
