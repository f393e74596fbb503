"""Leaderboards: the best networks under each evaluation, with intervals and ties, as tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.comparison import LEVEL
from robust201.analysis.dataset_results import CORRUPTION, SCORES, DatasetResults
from robust201.analysis.labels import column_label, dataset_label, key_label
from robust201.analysis.latex_tables import leaderboard_latex
from robust201.analysis.terms import require_evaluations
from robust201.core.records import ArchitectureId
from robust201.dataset.layout import CLEAN, kind_of
from robust201.dataset.outcomes import Outcomes, checked_outcomes
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import unpack_outcomes
from robust201.statistics.significance import (
    image_mean_intervals,
    mean_ties_with_best,
    ties_with_best,
)

REFERENCE_EPSILON_255 = 1.0
REFERENCE_SEVERITY = 3.0
"""Strengths that rankings prefer by default: epsilon in units of 1/255 for Linf balls, and severity of corruptions."""

_MAX_NAMED = 3
"""Maximum number of tied networks that a sentence names."""

_NETWORKS_PER_BLOCK = 256
"""Number of networks whose outcomes are unpacked at a time."""


class Standing(NamedTuple):
    """Ranking of the networks in one evaluation, or by the mean over several evaluations.

    Attributes:
        name: name of the evaluation or mean, such as ``pgd:1`` or ``corruption``.
        label: the evaluation's label in tables.
        accuracies: fractions by network, the highest first.
        low: lower end of each accuracy's 95% interval over images; NaN if the number of images is unknown.
        high: upper end of each interval.
        p_values: p-values of the differences from the best network, adjusted with Holm's method; NaN if the number of
            images is unknown.
        is_paired: whether per-image outcomes were compared; otherwise, only accuracies were compared.
        n_images: number of images of each accuracy, by network; NaN if unknown.
    """

    name: str
    label: str
    accuracies: "pd.Series[float]"
    low: "pd.Series[float]"
    high: "pd.Series[float]"
    p_values: "pd.Series[float]"
    is_paired: bool
    n_images: "pd.Series[float]"

    @property
    def has_counts(self) -> bool:
        """Whether the number of images is known for all accuracies."""
        return bool(self.n_images.notna().all())

    @property
    def images_text(self) -> str:
        """Number of images, or their range: ``10,000``, or ``500 to 10,000``."""
        return " to ".join(f"{count:,.0f}" for count in sorted({self.n_images.min(), self.n_images.max()}))

    @property
    def has_several_networks(self) -> bool:
        """Whether there is more than one network to compare."""
        return len(self.accuracies) > 1

    @property
    def best(self) -> ArchitectureId:
        best: ArchitectureId = self.accuracies.index[0]
        return best

    @property
    def tied(self) -> list[ArchitectureId]:
        """Networks that do not differ significantly from the best; the best network is not included."""
        return [network for network in self.accuracies.index[1:] if self.p_values[network] > LEVEL]


@dataclass(frozen=True)
class Leaderboard:
    """Networks ranked by several evaluations.

    Attributes:
        results: results of the networks.
        networks: networks that the leaderboard shows, the best first.
        standings: one ranking of all networks per evaluation.
        sort_standing: the ranking by which the networks are sorted; None if there are no results.
    """

    results: DatasetResults
    networks: Sequence[ArchitectureId]
    standings: Sequence[Standing]
    sort_standing: Standing | None

    def to_frame(self) -> pd.DataFrame:
        """Return one row per network and evaluation.

        Returns:
            `network`, `evaluation` (its name), `rank`, `accuracy`, `low` and `high` (its 95% interval),
            `p_value` (of the difference from the best network, adjusted with Holm's method) and `tied` (whether the
            network is the best or tied with it; False for a single network).
        """
        frames = []
        for standing in self.standings:
            columns = {
                "network": standing.accuracies.index,
                "evaluation": standing.name,
                "rank": standing.accuracies.rank(ascending=False, method="min").astype(int),
                "accuracy": standing.accuracies,
                "low": standing.low,
                "high": standing.high,
                "p_value": standing.p_values,
                "tied": [
                    standing.has_several_networks and network in (standing.best, *standing.tied)
                    for network in standing.accuracies.index
                ],
            }
            frame = pd.DataFrame(columns, index=standing.accuracies.index)
            frames.append(frame.loc[[network for network in self.networks if network in frame.index]])
        return pd.concat(frames, ignore_index=True)

    @property
    def latex(self) -> str:
        """LaTeX table in percent with 95% intervals; the best network and networks tied with it are bold."""
        labels = {standing.name: standing.label for standing in self.standings}
        names = {network: self.results.network_label(network) for network in self.networks}
        return leaderboard_latex(self.to_frame().replace({"network": names}), labels)

    @property
    def answer(self) -> str:
        """Sentence about the best network, by which the networks are sorted, and the networks tied with it."""
        standing = self.sort_standing
        if standing is None or not len(standing.accuracies):
            return ""
        dataset, best = dataset_label(self.results.name), self.results.network_label(standing.best)
        low, high = float(standing.low.iloc[0]), float(standing.high.iloc[0])
        accuracy = f"{standing.accuracies.iloc[0]:.1%}"
        if standing.has_counts:
            accuracy += f", 95% interval {100 * low:.1f} to {100 * high:.1f}"
        if not standing.has_several_networks:
            return f"On {dataset}, the accuracy of {best}, the only network, is {accuracy} ({standing.label})."
        if self.results.chance_level is not None and low <= self.results.chance_level:
            return f"On {dataset}, no network is clearly above chance ({standing.label})."
        ties = "" if not standing.has_counts else f", {_describe_ties(standing, self.results)}"
        return f"On {dataset}, the most accurate network is {best} ({standing.label}: {accuracy}){ties}."

    @property
    def basis(self) -> str:
        """Note on the number of images, and on the tests that ties and intervals are based on."""
        if not self.standings:
            return ""
        first_standing = self.standings[0]
        if not first_standing.has_counts:
            return "The folder does not record the number of images, so intervals and ties are unknown."
        if not any(standing.has_several_networks for standing in self.standings):
            return f"Intervals are 95% intervals over {first_standing.images_text} images."
        paired_values = {standing.is_paired for standing in self.standings}
        tests = (
            "paired tests"
            if paired_values == {True}
            else "unpaired tests of accuracies, which detect fewer differences"
        )
        if paired_values == {True, False}:
            tests = "paired tests where outcomes are stored"
        return (
            f"Tied networks do not differ significantly from the best on these {first_standing.images_text} images "
            f"({tests}, Holm's correction within each column, level {LEVEL:.0%}). Intervals are 95% intervals over "
            "images."
        )


def make_leaderboard(
    results: DatasetResults,
    names: Sequence[str] | None = None,
    *,
    max_networks: int | None = None,
) -> Leaderboard:
    """Rank networks under several evaluations.

    Args:
        results: results of the networks.
        names: scores, keys and keys at a strength, such as ``clean``, ``pgd:8``, ``corruption``. The default is clean
            images, every attack at the strength nearest to `REFERENCE_EPSILON_255`, and the mean over corruptions.
        max_networks: maximum number of networks to show, sorted by the first evaluation other than clean; None for all
            networks.

    Raises:
        ConfigError: a name does not match any evaluation.
    """
    chosen_names = list(names) if names is not None else default_names(results)
    all_standings = (_rank_networks(results, name) for name in chosen_names)
    standings = [standing for standing in all_standings if len(standing.accuracies)]
    standings_except_clean = (standing for standing in standings if standing.name != CLEAN)
    sort_standing = next(standings_except_clean, standings[0] if standings else None)
    networks = list(results.architectures) if sort_standing is None else list(sort_standing.accuracies.index)
    return Leaderboard(results, networks if max_networks is None else networks[:max_networks], standings, sort_standing)


def default_names(results: DatasetResults) -> list[str]:
    """Return the names of a leaderboard's default evaluations (see `make_leaderboard`)."""
    names = [CLEAN] if results.keys(CLEAN) else []
    for key in (*results.keys("attack"), *results.keys("other")):
        strength = nearest_strength(key, results.strengths(key))
        names.append(f"{key}:{strength:g}")
    return names + ([CORRUPTION] if CORRUPTION in results.scores else [])


def nearest_strength(key: str, strengths: Sequence[float], epsilon: float = REFERENCE_EPSILON_255) -> float:
    """Return the strength nearest to `epsilon` (in the key's units) or, for a corruption, to severity 3.

    Of two equally near strengths, the lower one is returned.
    """
    target = REFERENCE_SEVERITY if kind_of(key) == "corruption" else epsilon
    return min(strengths, key=lambda strength: (abs(strength - target), strength))


def _rank_networks(results: DatasetResults, name: str) -> Standing:
    evaluations = require_evaluations(results, name)
    single_evaluation = evaluations[0] if len(evaluations) == 1 else None
    if single_evaluation is not None:
        accuracies = results.column(*single_evaluation)
        label = column_label(*single_evaluation, results.strengths(single_evaluation[0]))
    elif name in results.scores:
        accuracies, label = results.scores[name], SCORES[name]
    else:
        accuracies, label = results.accuracies[evaluations].mean(axis=1, skipna=False), f"mean {key_label(name)}"
    accuracies = accuracies.dropna().sort_values(ascending=False, kind="stable")
    counts = results.image_counts.loc[accuracies.index, evaluations]
    n_images = counts.iloc[:, 0].where(counts.nunique(axis=1, dropna=False) == 1)
    if n_images.isna().any():
        low_ends, high_ends = (
            pd.Series(np.asarray(ends), accuracies.index) for ends in accuracy_intervals(accuracies, n_images)
        )
        unknown = pd.Series(np.nan, accuracies.index)
        return Standing(name, label, accuracies, low_ends, high_ends, unknown, False, n_images)
    outcomes = _stored_outcomes(results, evaluations, accuracies)
    if single_evaluation is None and outcomes is not None:
        n_correct = _count_correct_evaluations(outcomes)
        ties = mean_ties_with_best(n_correct, len(evaluations), level=LEVEL)
        low, high = image_mean_intervals(n_correct, len(evaluations))
    else:
        single_outcomes = outcomes[0] if single_evaluation is not None and outcomes is not None else None
        packed = None if single_outcomes is None else single_outcomes.packed
        ties = ties_with_best(accuracies, n_images, outcomes=packed, level=LEVEL)
        low, high = accuracy_intervals(accuracies, n_images)
    low_ends, high_ends, p_values = (
        pd.Series(np.asarray(numbers), accuracies.index) for numbers in (low, high, ties.p_values)
    )
    return Standing(name, label, accuracies, low_ends, high_ends, p_values, ties.is_paired, n_images)


def _stored_outcomes(
    results: DatasetResults, evaluations: Sequence[tuple[str, float]], accuracies: "pd.Series[float]"
) -> list[Outcomes] | None:
    """Return the outcomes of each evaluation, in the networks' order; None if any network lacks outcomes."""
    all_outcomes = []
    for key, strength in evaluations:
        outcomes = checked_outcomes(results.reader, results.name, key, strength)
        if outcomes is None or not accuracies.index.isin(outcomes.architectures).all():
            return None
        all_outcomes.append(outcomes.of(accuracies.index))
    return all_outcomes


def _count_correct_evaluations(all_outcomes: Sequence[Outcomes]) -> NDArray[np.uint16]:
    """Return the number of evaluations in which each network classifies each image correctly, (A, N)."""
    first_outcomes = all_outcomes[0]
    n_correct = np.zeros((len(first_outcomes.architectures), first_outcomes.n_images), np.uint16)
    for outcomes in all_outcomes:
        for first_network in range(0, len(n_correct), _NETWORKS_PER_BLOCK):
            block = slice(first_network, first_network + _NETWORKS_PER_BLOCK)
            n_correct[block] += unpack_outcomes(outcomes.packed[block], first_outcomes.n_images)
    return n_correct


def _join_with_and(items: Sequence[str]) -> str:
    return ", ".join([*items[:-2], " and ".join(items[-2:])])


def _describe_ties(standing: Standing, results: DatasetResults) -> str:
    names = [results.network_label(network) for network in standing.tied]
    n_others = len(standing.accuracies) - 1
    if not names:
        return "ahead of the other" if n_others == 1 else "ahead of all others"
    if len(names) == n_others > 1:
        return "tied with all others"
    n_more = len(names) - _MAX_NAMED
    return f"tied with {_join_with_and(names[:_MAX_NAMED] + ([f'{n_more:,} more'] if n_more > 0 else []))}"
