"""Uncertainty of rankings: intervals of accuracies, ties with the best architecture, and bootstrapped ranks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.records import CLEAN_STRENGTH, ArchitectureId
from robust201.reader.error_bars import check_outcomes, count_evaluated_images, find_ties
from robust201.reader.frames import read_frame
from robust201.reader.outcomes import Outcomes, has_outcomes_of, read_outcomes
from robust201.reader.result_files import ResultFiles
from robust201.statistics.bootstrap import (
    Estimate,
    ResampledCounts,
    binomial_counts,
    kendall_estimate,
    median_estimate,
    rank_intervals,
    resampled_counts,
)
from robust201.statistics.intervals import accuracy_intervals


@dataclass(frozen=True)
class Ranking:
    """Ranking of architectures under a key at a strength, with its uncertainty.

    Attributes:
        dataset: name of the dataset.
        key: the key.
        strength: the strength.
        accuracies: accuracies by architecture, the highest first.
        low: lower bounds of the accuracies' 95% intervals.
        high: upper bounds of these intervals.
        n_images: number of images.
        tied: the best architecture, and the architectures that are tied with it.
        paired: whether architectures were compared on the same images (McNemar's test).
        bootstrap: estimates of ``median`` (the median accuracy) and, except for clean images, of
            ``kendall_tau_to_clean``; empty without bootstrap.
        ranks: the interval of each architecture's rank, and the fraction of bootstrap resamples in which it was best;
            None without bootstrap.
    """

    dataset: str
    key: str
    strength: float
    accuracies: "pd.Series[float]"
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n_images: int
    tied: tuple[ArchitectureId, ...]
    paired: bool
    bootstrap: Mapping[str, Estimate] = field(default_factory=dict)
    ranks: pd.DataFrame | None = None

    @property
    def best(self) -> ArchitectureId:
        """The architecture with the highest accuracy; if there are several, the first."""
        best: ArchitectureId = to_plain_number(self.accuracies.index[0])
        return best

    def to_payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "dataset": self.dataset,
            "key": self.key,
            "strength": self.strength,
            "images": self.n_images,
            "best": self.best,
            "accuracy": float(self.accuracies.iloc[0]),
            "low": float(self.low[0]),
            "high": float(self.high[0]),
            "tied_with_best": [to_plain_number(architecture) for architecture in self.tied],
            "paired": self.paired,
        }
        for name, estimate in self.bootstrap.items():
            payload[name] = {field_name: to_plain_number(number) for field_name, number in estimate._asdict().items()}
        if self.ranks is not None:
            ranks_by_architecture = self.ranks.to_dict(orient="index")
            payload["ranks"] = {
                str(architecture): {field_name: to_plain_number(number) for field_name, number in rank_fields.items()}
                for architecture, rank_fields in ranks_by_architecture.items()
            }
        return payload


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


def rank_evaluations(results: StoredResults, level: float, n_draws: int, seed: int) -> Iterator[Ranking]:
    """Yield the ranking of a dataset's architectures under each key at each strength (see `derive_metrics`)."""
    clean_resamples: tuple[pd.Series[float], ResampledCounts] | None = None
    for key, strength in results.evaluations():
        n_images = count_evaluated_images(results.files, results.name, key)
        accuracies = results.accuracies[key][strength].dropna().sort_values(ascending=False, kind="stable")
        if n_images is None or accuracies.empty:
            continue
        label = f"{results.name} {key}"
        ties, packed = find_ties(accuracies, n_images, results.outcomes(key, strength), level=level, label=label)
        estimates: dict[str, Estimate] = {}
        ranks = None
        if n_draws:
            # With outcomes, equal seeds resample the same images under every key. Binomial resamples are independent,
            # so they need a different seed under every key.
            resamples = (
                resampled_counts(packed, n_images, n_draws=n_draws, seed=seed)
                if packed is not None
                else binomial_counts(accuracies, n_images, n_draws=n_draws, seed=[seed, *f"{key} {strength}".encode()])
            )
            estimates["median"] = median_estimate(accuracies, resamples, n_images)
            ranks = pd.DataFrame(rank_intervals(resamples)._asdict(), index=accuracies.index)
            if results.files.kind_of(key) == "clean":
                clean_resamples = accuracies, resamples
            elif (
                clean_resamples is not None
                and len(common_architectures := accuracies.index.intersection(clean_resamples[0].index)) > 1
            ):
                column_indices = [
                    series.index.get_indexer(common_architectures) for series in (accuracies, clean_resamples[0])
                ]
                estimates["kendall_tau_to_clean"] = kendall_estimate(
                    accuracies.iloc[column_indices[0]],
                    clean_resamples[0].iloc[column_indices[1]],
                    resamples[:, column_indices[0]],
                    clean_resamples[1][:, column_indices[1]],
                )
        low, high = accuracy_intervals(accuracies, n_images)
        tied = tuple(accuracies.index[ties.tied])
        yield Ranking(
            results.name, key, strength, accuracies, low, high, n_images, tied, ties.is_paired, estimates, ranks
        )


def to_plain_number(value: Any) -> Any:
    """Convert a NumPy number to a JSON value; NaN becomes None."""
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and math.isnan(number) else number
