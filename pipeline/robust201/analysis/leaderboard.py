"""Leaderboard: the best networks under each evaluation, with intervals and ties, as a table and as sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import ADVERSARIAL, CORRUPTION, OVER_EVALUATIONS, SCORES, DatasetResults
from robust201.analysis.estimated import EstimatedAccuracies, EstimateTable, describe_estimates
from robust201.analysis.evaluation import LEVEL
from robust201.analysis.labels import column_label, dataset_label, key_label, strength_label
from robust201.analysis.latex_tables import leaderboard_latex
from robust201.analysis.terms import evaluations_named
from robust201.core.records import ArchitectureId
from robust201.reader.error_bars import evaluated_image_count, find_ties
from robust201.reader.outcomes import Outcomes
from robust201.reader.rankings import StoredResults
from robust201.reader.result_files import kind_of
from robust201.reader.value_checks import CLEAN
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import unpack_outcomes
from robust201.statistics.significance import (
    holm_adjust,
    image_mean_intervals,
    mean_ties_with_best,
    normal_p_values,
)

REFERENCE_EPSILON_255 = 1.0
REFERENCE_SEVERITY = 3.0

_MOST_NAMED = 3
"""Maximum number of tied networks in a sentence."""

_ROWS_AT_ONCE = 256


class Standing(NamedTuple):
    """Ranking of the networks in one evaluation, or by the mean over several.

    Attributes:
        name: the evaluation as the user wrote it, such as ``pgd:1`` or ``corruption``.
        label: its label in tables.
        accuracies: fractions by network, the highest first.
        low: lower end of each 95% interval over images; NaN if the number of images is unknown.
        high: upper end.
        p_values: of the difference from the best, adjusted with Holm's method; NaN if the number of images is unknown.
        paired: whether per-image outcomes were compared; otherwise only accuracies.
        n_images: number of images; None if unknown.
        estimated: networks whose accuracies are estimates from samples of the images.
    """

    name: str
    label: str
    accuracies: "pd.Series[float]"
    low: "pd.Series[float]"
    high: "pd.Series[float]"
    p_values: "pd.Series[float]"
    paired: bool
    n_images: int | None
    estimated: frozenset[ArchitectureId] = frozenset()

    @property
    def is_compared(self) -> bool:
        """Whether there is more than one network to compare."""
        return len(self.accuracies) > 1

    @property
    def best(self) -> ArchitectureId:
        best: ArchitectureId = self.accuracies.index[0]
        return best

    @property
    def tied(self) -> list[ArchitectureId]:
        """The networks that do not differ significantly from the best, without the best itself."""
        return [network for network in self.accuracies.index[1:] if self.p_values[network] > LEVEL]


@dataclass(frozen=True)
class Leaderboard:
    """Networks ranked by several evaluations.

    Attributes:
        results: results of the networks.
        networks: the networks to show, the best first.
        standings: one ranking of all networks per evaluation.
    """

    results: DatasetResults
    networks: Sequence[ArchitectureId]
    standings: Sequence[Standing]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per network and evaluation.

        Returns:
            `network`, `evaluation` (as the user wrote it), `rank`, `accuracy`, `low` and `high` (its 95% interval),
            `p_value` (of the difference from the best, adjusted with Holm's method) and `tied` (with the best; true for
            the best itself, unless there is only one network); if some accuracies are estimates, `estimated`.
        """
        parts = []
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
                    standing.is_compared and network in (standing.best, *standing.tied)
                    for network in standing.accuracies.index
                ],
            }
            if any(ranking.estimated for ranking in self.standings):
                columns["estimated"] = [network in standing.estimated for network in standing.accuracies.index]
            frame = pd.DataFrame(columns, index=standing.accuracies.index)
            parts.append(frame.loc[[network for network in self.networks if network in frame.index]])
        return pd.concat(parts, ignore_index=True)

    @property
    def latex(self) -> str:
        """A LaTeX table in percent with 95% intervals; the best and those tied with it are bold."""
        labels = {standing.name: standing.label for standing in self.standings}
        names = {network: self.results.network_label(network) for network in self.networks}
        return leaderboard_latex(self.to_frame().replace({"network": names}), labels)

    @property
    def answer(self) -> str:
        """Two sentences: the best network under each attack and under corruptions, with the networks tied with it.

        For a single network, its accuracies.
        """
        if len(self.results.accuracies) == 1:
            return _describe_single(self.standings, self.results)
        attacked = [standing for standing in self.standings if standing.name not in (CLEAN, CORRUPTION)]
        corrupted = [standing for standing in self.standings if standing.name == CORRUPTION]
        sentences = [_describe_attacks(attacked, self.results)] if attacked else []
        for standing in corrupted:
            where = f"corruptions (mean over {len(self.results.averaged_keys(CORRUPTION))} and their severities)"
            sentences.append(f"Under {where}, it is {_describe_best(standing, self.results)}.")
        if not attacked and corrupted:
            sentences[0] = sentences[0].replace("it is", "the most accurate network is")
        return " ".join(sentences)

    @property
    def basis(self) -> str:
        """A note on the number of images and the tests behind ties and intervals."""
        if not self.standings:
            return ""
        first = self.standings[0]
        if first.n_images is None:
            return "The folder does not record the number of images, so intervals and ties are unknown."
        if not any(standing.is_compared for standing in self.standings) and not any(
            standing.estimated for standing in self.standings
        ):
            return f"Intervals are 95% intervals over {first.n_images:,} images."
        counted = [standing for standing in self.standings if not standing.estimated]
        if len(counted) < len(self.standings):
            sampled = [standing for standing in self.standings if standing.estimated]
            n_counted = [len(standing.accuracies) - len(standing.estimated) for standing in sampled]
            note = describe_estimates(self.results, [standing.label for standing in sampled], n_counted)
            return f"{note} {self._describe_counts(counted)}" if counted else note
        return self._describe_counts(self.standings)

    def _describe_counts(self, standings: Sequence[Standing]) -> str:
        first = standings[0]
        paired = {standing.paired for standing in standings}
        tests = "tests of the same images" if paired == {True} else "tests of accuracies alone, which find less"
        if paired == {True, False}:
            tests = "tests of the same images where their outcomes are stored"
        return (
            f"Tied: these {first.n_images:,} images do not tell two networks apart ({tests}, Holm's correction within "
            f"each column, {LEVEL:.0%}). Intervals are 95% intervals over images."
        )


def make_leaderboard(
    results: DatasetResults,
    names: Sequence[str] | None = None,
    *,
    epsilon: float = REFERENCE_EPSILON_255,
    by: str | None = None,
    most: int | None = None,
) -> Leaderboard:
    """Rank networks under several evaluations.

    Args:
        results: results of the networks.
        names: scores, keys and keys at a strength, such as ``clean``, ``pgd:8``, ``corruption``; by default clean
            images, every attack at the strength nearest to `epsilon`, and the mean over corruptions.
        epsilon: in units of 1/255 for Linf balls, in pixel units for others.
        by: evaluation to sort the networks by; by default the first one that is not clean.
        most: maximum number of networks to show; None shows all.

    Raises:
        ConfigError: a name does not match any evaluation.
    """
    chosen_names = list(names) if names is not None else default_names(results, epsilon)
    stored = StoredResults(results.reader.files, results.name, {})
    standings = [
        standing for name in chosen_names if len((standing := _rank_networks(results, stored, name)).accuracies)
    ]
    first: Standing | None
    if by is not None:
        matches = (standing for standing in standings if standing.name == by)
        first = next(matches, None) or _rank_networks(results, stored, by)
    else:
        attacked = (standing for standing in standings if standing.name != CLEAN)
        first = next(attacked, standings[0] if standings else None)
    networks = list(results.architectures) if first is None else list(first.accuracies.index)
    return Leaderboard(results, networks if most is None else networks[:most], standings)


def default_names(results: DatasetResults, epsilon: float = REFERENCE_EPSILON_255) -> list[str]:
    """Return the names of a leaderboard's default evaluations (see `make_leaderboard`)."""
    names = [CLEAN] if results.keys(CLEAN) else []
    for key in (*results.keys("attack"), *results.keys("other")):
        strength = nearest_strength(key, results.strengths(key), epsilon)
        names.append(f"{key}:{strength:g}")
    return names + ([CORRUPTION] if CORRUPTION in results.scores else [])


def nearest_strength(key: str, strengths: Sequence[float], epsilon: float = REFERENCE_EPSILON_255) -> float:
    """Return the strength nearest to an epsilon in the key's units, or to severity 3; the lower one if tied."""
    target = REFERENCE_SEVERITY if kind_of(key) == "corruption" else epsilon
    return min(strengths, key=lambda strength: (abs(strength - target), strength))


def _rank_networks(results: DatasetResults, stored: StoredResults, name: str) -> Standing:
    evaluations = evaluations_named(results, name)
    single = evaluations[0] if len(evaluations) == 1 else None
    if single is not None:
        accuracies = results.column(*single)
        label = column_label(*single, results.strengths(single[0]))
    elif name in results.scores:
        accuracies, label = results.scores[name], SCORES[name]
    else:
        accuracies, label = results.accuracies[evaluations].mean(axis=1, skipna=False), f"mean {key_label(name)}"
    if (sampled := EstimateTable(results).find(evaluations)) is not None:
        return _estimated_standing(name, label, accuracies, sampled)
    accuracies = accuracies.dropna().sort_values(ascending=False, kind="stable")
    counts = {evaluated_image_count(results.reader.files, results.name, key) for key, _ in evaluations}
    n_images = counts.pop() if len(counts) == 1 else None
    outcomes = _stored_outcomes(stored, evaluations, accuracies)
    if n_images is None:
        unknown = pd.Series(np.nan, accuracies.index)
        return Standing(name, label, accuracies, unknown, unknown, unknown, False, None)
    weights_evaluations = results.mean == OVER_EVALUATIONS or name not in (ADVERSARIAL, CORRUPTION)
    if single is None and outcomes is not None and weights_evaluations:
        n_correct = _count_by_image(outcomes)
        ties = mean_ties_with_best(n_correct, len(evaluations), level=LEVEL)
        low, high = image_mean_intervals(n_correct, len(evaluations))
    else:
        single_outcomes = outcomes[0] if single is not None and outcomes is not None else None
        ties, _ = find_ties(accuracies, n_images, single_outcomes, level=LEVEL, what=f"{results.name} {name}")
        low, high = accuracy_intervals(accuracies, n_images)
    lows, highs, p_values = (pd.Series(np.asarray(part), accuracies.index) for part in (low, high, ties.p_values))
    return Standing(name, label, accuracies, lows, highs, p_values, ties.paired, n_images)


def _estimated_standing(name: str, label: str, counted: "pd.Series[float]", sampled: EstimatedAccuracies) -> Standing:
    """Rank counts and estimates together by the accuracy on all images.

    Each accuracy is compared with the best by a test of two normal estimates, as if their errors were independent. In
    fact they share images: in replays on `benchmark_data/cells-cifar10`, variances of differences were 0.66 to 1.2
    times the sum of both variances, with a median near 1.
    """
    value = pd.concat([counted.dropna(), sampled.value[~sampled.value.index.isin(counted.dropna().index)]])
    value = value.sort_values(ascending=False, kind="stable")
    is_estimate = value.index.isin(sampled.value.index) & ~value.index.isin(counted.dropna().index)
    names = frozenset(value.index[is_estimate])
    error = sampled.standard_error.reindex(value.index).where(is_estimate, 0.0).to_numpy(np.float64)
    low = sampled.low.reindex(value.index).where(is_estimate, value)
    high = sampled.high.reindex(value.index).where(is_estimate, value)
    p_values = np.ones(len(value))
    p_values[1:] = holm_adjust(normal_p_values(value.iloc[0] - value.to_numpy()[1:], np.hypot(error[0], error[1:])))
    return Standing(
        name, label, value, low, high, pd.Series(p_values, value.index), False, sampled.n_images, estimated=names
    )


def _stored_outcomes(
    stored: StoredResults, evaluations: Sequence[tuple[str, float]], accuracies: "pd.Series[float]"
) -> list[Outcomes] | None:
    """Return the networks' outcomes of each evaluation, in the networks' order; None if any of them are missing."""
    all_outcomes = []
    for key, strength in evaluations:
        outcomes = stored.outcomes(key, strength)
        if outcomes is None or not accuracies.index.isin(outcomes.architectures).all():
            return None
        all_outcomes.append(outcomes.of(accuracies.index))
    return all_outcomes


def _count_by_image(all_outcomes: Sequence[Outcomes]) -> NDArray[np.uint16]:
    """Return, for each network and image, the number of evaluations with a correct classification: (A, N)."""
    first = all_outcomes[0]
    counts = np.zeros((len(first.architectures), first.n_images), np.uint16)
    for outcomes in all_outcomes:
        for start in range(0, len(counts), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            counts[rows] += unpack_outcomes(outcomes.packed[rows], first.n_images)
    return counts


def _describe_attacks(standings: Sequence[Standing], results: DatasetResults) -> str:
    """Describe the most accurate network under each attack in one sentence, grouped by network."""
    attacks = [_label_parts(standing, results) for standing in standings]
    strengths = {strength for _, strength in attacks}
    shared = strengths.pop() if len(strengths) == 1 else ""
    groups: dict[str, list[str]] = {}
    for standing, (key, strength) in zip(standings, attacks, strict=True):
        where = key if shared or not strength else f"{key} at {strength}"
        best = "" if _is_near_chance(standing, results) else results.network_label(standing.best)
        groups.setdefault(best, []).append(f"{where} ({_describe_numbers(standing, results)})" if best else where)
    parts = [f"{best} under {_join(where)}" for best, where in groups.items() if best]
    at = f" at {shared}" if shared else ""
    text = f"On {dataset_label(results.name)}{at}, the most accurate network is {_join(parts, '; ')}" if parts else ""
    if "" not in groups:
        return f"{text}."
    none = f"no network is clearly above chance under {_join(groups[''])}"
    return f"{text}; {none}." if text else f"On {dataset_label(results.name)}{at}, {none}."


def _describe_single(standings: Sequence[Standing], results: DatasetResults) -> str:
    """Describe the only network's accuracies in one sentence."""
    if not standings:
        return ""
    parts = [f"{_describe_numbers(standing, results)} ({standing.label})" for standing in standings]
    network = results.network_label(standings[0].best)
    return (
        f"On {dataset_label(results.name)}, the accuracy of {network} is {_join(parts, '; ')}. It is the only network."
    )


def _label_parts(standing: Standing, results: DatasetResults) -> tuple[str, str]:
    """Return the labels of a standing's key and strength; the strength's is empty for several evaluations."""
    evaluations = evaluations_named(results, standing.name)
    if len(evaluations) > 1:
        return standing.label, ""
    ((key, strength),) = evaluations
    return key_label(key), strength_label(key, strength, results.strengths(key))


def _is_near_chance(standing: Standing, results: DatasetResults) -> bool:
    return results.chance is not None and float(standing.low.iloc[0]) <= results.chance


def _describe_best(standing: Standing, results: DatasetResults) -> str:
    if _is_near_chance(standing, results):
        return "no network: none is clearly above chance"
    return f"{results.network_label(standing.best)} ({_describe_numbers(standing, results)})"


def _describe_numbers(standing: Standing, results: DatasetResults) -> str:
    accuracy, low, high = (float(part.iloc[0]) for part in (standing.accuracies, standing.low, standing.high))
    if standing.n_images is None:
        return f"{accuracy:.1%}"
    numbers = f"{accuracy:.1%}, 95% interval {100 * low:.1f} to {100 * high:.1f}"
    if standing.estimated:
        kind = "an estimate" if standing.best in standing.estimated else "a count among estimates"
        n_tied, n_others = len(standing.tied), len(standing.accuracies) - 1
        return f"{numbers}, {kind}; {n_tied:,} of {n_others:,} others are tied with it"
    return numbers if len(standing.accuracies) == 1 else f"{numbers}, {_describe_ties(standing, results)}"


def _join(parts: Sequence[str], comma: str = ", ") -> str:
    return comma.join([*parts[:-2], f"{comma if comma != ', ' else ' '}and ".join(parts[-2:])])


def _describe_ties(standing: Standing, results: DatasetResults) -> str:
    names = [results.network_label(network) for network in standing.tied]
    n_others = len(standing.accuracies) - 1
    if not names:
        return "ahead of the other" if n_others == 1 else "ahead of all others"
    if len(names) == n_others > 1:
        return "tied with all others"
    more = len(names) - _MOST_NAMED
    return f"tied with {_join(names[:_MOST_NAMED] + ([f'{more:,} more'] if more > 0 else []))}"
