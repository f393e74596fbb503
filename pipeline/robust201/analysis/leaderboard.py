"""Which networks are best under some evaluations, with intervals and ties: a table, and the answer in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import ADVERSARIAL, CORRUPTION, OVER_EVALUATIONS, SCORES, DatasetResults
from robust201.analysis.estimated import EstimatedAccuracies, describe_estimates, find_estimates
from robust201.analysis.evaluation import LEVEL
from robust201.analysis.labels import column_label, dataset_label, key_label, strength_label
from robust201.analysis.latex_tables import leaderboard_latex
from robust201.analysis.terms import evaluations_named
from robust201.core.records import ArchitectureId
from robust201.reader.error_bars import find_ties, images_behind
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
"""Tied networks that a sentence names."""

_ROWS_AT_ONCE = 256


class Standing(NamedTuple):
    """How networks stand in one evaluation, or by the mean over several.

    Attributes:
        name: what was asked for, such as ``pgd:1`` or ``corruption``.
        label: the same for people.
        accuracies: by network, the highest first; fractions.
        low: lower end of each 95% interval over images; NaN where the number of images is unknown.
        high: upper end.
        p_values: of the difference from the best, adjusted by Holm; NaN where the number of images is unknown.
        paired: whether outcomes of the same images were compared, not accuracies alone.
        n_images: number of images; None where it is unknown.
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
        """Whether there is more than one network."""
        return len(self.accuracies) > 1

    @property
    def best(self) -> ArchitectureId:
        best: ArchitectureId = self.accuracies.index[0]
        return best

    @property
    def tied(self) -> list[ArchitectureId]:
        """The networks that these images do not tell from the best, without the best itself."""
        return [one for one in self.accuracies.index[1:] if self.p_values[one] > LEVEL]


@dataclass(frozen=True)
class Leaderboard:
    """Networks by some evaluations.

    Attributes:
        results: of the networks.
        networks: those shown, the best first.
        standings: of all networks, one per evaluation.
    """

    results: DatasetResults
    networks: Sequence[ArchitectureId]
    standings: Sequence[Standing]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per network and evaluation.

        Returns:
            `network`, `evaluation` (as it was asked for), `rank`, `accuracy`, `low` and `high` (its 95% interval),
            `p_value` (of the difference from the best, adjusted by Holm) and `tied` (with the best, the best itself
            included; never of a single network); where some accuracies are estimates, `estimated`.
        """
        parts = []
        for one in self.standings:
            columns = {
                "network": one.accuracies.index,
                "evaluation": one.name,
                "rank": one.accuracies.rank(ascending=False, method="min").astype(int),
                "accuracy": one.accuracies,
                "low": one.low,
                "high": one.high,
                "p_value": one.p_values,
                "tied": [one.is_compared and network in (one.best, *one.tied) for network in one.accuracies.index],
            }
            if any(standing.estimated for standing in self.standings):
                columns["estimated"] = [network in one.estimated for network in one.accuracies.index]
            frame = pd.DataFrame(columns, index=one.accuracies.index)
            parts.append(frame.loc[[network for network in self.networks if network in frame.index]])
        return pd.concat(parts, ignore_index=True)

    @property
    def latex(self) -> str:
        """A LaTeX table in percent with 95% intervals; what is best, or tied with the best, is bold."""
        labels = {one.name: one.label for one in self.standings}
        names = {network: self.results.network_label(network) for network in self.networks}
        return leaderboard_latex(self.to_frame().replace({"network": names}), labels)

    @property
    def answer(self) -> str:
        """Which network is best under each attack and under corruptions, and what is tied with it, in two sentences.

        Of a single network its accuracies.
        """
        if len(self.results.accuracies) == 1:
            return _describe_one(self.standings, self.results)
        attacked = [one for one in self.standings if one.name not in (CLEAN, CORRUPTION)]
        corrupted = [one for one in self.standings if one.name == CORRUPTION]
        sentences = [_describe_attacks(attacked, self.results)] if attacked else []
        for standing in corrupted:
            where = f"corruptions (mean over {len(self.results.averaged_keys(CORRUPTION))} and their severities)"
            sentences.append(f"Under {where}, it is {_describe_best(standing, self.results)}.")
        if not attacked and corrupted:
            sentences[0] = sentences[0].replace("it is", "the most accurate network is")
        return " ".join(sentences)

    @property
    def basis(self) -> str:
        """What ties and intervals rest on."""
        if not self.standings:
            return ""
        first = self.standings[0]
        if first.n_images is None:
            return "The folder does not tell how many images there were, so intervals and ties are unknown."
        if not any(one.is_compared for one in self.standings) and not any(one.estimated for one in self.standings):
            return f"Intervals are 95% intervals over {first.n_images:,} images."
        counted = [one for one in self.standings if not one.estimated]
        if len(counted) < len(self.standings):
            sampled = [one for one in self.standings if one.estimated]
            n_counted = [len(one.accuracies) - len(one.estimated) for one in sampled]
            note = describe_estimates(self.results, [one.label for one in sampled], n_counted)
            return f"{note} {self._describe_counts(counted)}" if counted else note
        return self._describe_counts(self.standings)

    def _describe_counts(self, standings: Sequence[Standing]) -> str:
        first = standings[0]
        paired = {one.paired for one in standings}
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
    """Compare networks under some evaluations.

    Args:
        results: of the networks.
        names: scores, keys and keys at a strength, such as ``clean``, ``pgd:8``, ``corruption``; by default clean
            images, every attack at the strength nearest to `epsilon`, and the mean over corruptions.
        epsilon: in units of 1/255 in an Linf ball, in pixels in others.
        by: what networks are sorted by; by default the first evaluation that is not of clean images.
        most: networks shown; all if None.

    Raises:
        ConfigError: a name stands for no evaluation.
    """
    chosen = list(names) if names is not None else default_names(results, epsilon)
    held = StoredResults(results.reader.files, results.name, {})
    standings = [standing for name in chosen if len((standing := _find_standing(results, held, name)).accuracies)]
    first: Standing | None
    if by is not None:
        first = next((one for one in standings if one.name == by), None) or _find_standing(results, held, by)
    else:
        first = next((one for one in standings if one.name != CLEAN), standings[0] if standings else None)
    networks = list(results.architectures) if first is None else list(first.accuracies.index)
    return Leaderboard(results, networks if most is None else networks[:most], standings)


def default_names(results: DatasetResults, epsilon: float = REFERENCE_EPSILON_255) -> list[str]:
    """Name what a leaderboard shows by default (see `make_leaderboard`)."""
    names = [CLEAN] if results.keys(CLEAN) else []
    for key in (*results.keys("attack"), *results.keys("other")):
        strength = nearest_strength(key, results.strengths(key), epsilon)
        names.append(f"{key}:{strength:g}")
    return names + ([CORRUPTION] if CORRUPTION in results.scores else [])


def nearest_strength(key: str, strengths: Sequence[float], epsilon: float = REFERENCE_EPSILON_255) -> float:
    """Return the strength nearest to an epsilon in its units, or to severity 3; the lower of two."""
    wanted = REFERENCE_SEVERITY if kind_of(key) == "corruption" else epsilon
    return min(strengths, key=lambda strength: (abs(strength - wanted), strength))


def _find_standing(results: DatasetResults, held: StoredResults, name: str) -> Standing:
    evaluations = evaluations_named(results, name)
    single = evaluations[0] if len(evaluations) == 1 else None
    if single is not None:
        accuracies = results.column(*single)
        label = column_label(*single, results.strengths(single[0]))
    elif name in results.scores:
        accuracies, label = results.scores[name], SCORES[name]
    else:
        accuracies, label = results.accuracies[evaluations].mean(axis=1, skipna=False), f"mean {key_label(name)}"
    if (sampled := find_estimates(results, evaluations)) is not None:
        return _estimated_standing(name, label, accuracies, sampled)
    accuracies = accuracies.dropna().sort_values(ascending=False, kind="stable")
    counts = {images_behind(results.reader.files, results.name, key) for key, _ in evaluations}
    n_images = counts.pop() if len(counts) == 1 else None
    outcomes = _stored_outcomes(held, evaluations, accuracies)
    if n_images is None:
        unknown = pd.Series(np.nan, accuracies.index)
        return Standing(name, label, accuracies, unknown, unknown, unknown, False, None)
    weighs_evaluations = results.mean == OVER_EVALUATIONS or name not in (ADVERSARIAL, CORRUPTION)
    if single is None and outcomes is not None and weighs_evaluations:
        counted = _count_by_image(outcomes)
        ties = mean_ties_with_best(counted, len(evaluations), level=LEVEL)
        low, high = image_mean_intervals(counted, len(evaluations))
    else:
        only = outcomes[0] if single is not None and outcomes is not None else None
        ties, _ = find_ties(accuracies, n_images, only, level=LEVEL, what=f"{results.name} {name}")
        low, high = accuracy_intervals(accuracies, n_images)
    lows, highs, p_values = (pd.Series(np.asarray(part), accuracies.index) for part in (low, high, ties.p_values))
    return Standing(name, label, accuracies, lows, highs, p_values, ties.paired, n_images)


def _estimated_standing(name: str, label: str, counted: "pd.Series[float]", sampled: EstimatedAccuracies) -> Standing:
    """Rank counts and estimates together, by what both say of accuracies on all images.

    Each is compared with the best by a test of two normal estimates, as if their errors were independent. They share
    their images: in replays on `benchmark_data/cells-cifar10`, variances of differences were .66 to 1.2 times the sum
    of both variances, near 1 in the median.
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
    held: StoredResults, evaluations: Sequence[tuple[str, float]], accuracies: "pd.Series[float]"
) -> list[Outcomes] | None:
    """Read the outcomes of evaluations, of the networks in their order; None unless all have them."""
    several = []
    for key, strength in evaluations:
        outcomes = held.outcomes(key, strength)
        if outcomes is None or not accuracies.index.isin(outcomes.architectures).all():
            return None
        several.append(outcomes.of(accuracies.index))
    return several


def _count_by_image(several: Sequence[Outcomes]) -> NDArray[np.uint16]:
    """Count, for each network and image, the evaluations in which it was classified correctly: (A, N)."""
    first = several[0]
    counts = np.zeros((len(first.architectures), first.n_images), np.uint16)
    for outcomes in several:
        for start in range(0, len(counts), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            counts[rows] += unpack_outcomes(outcomes.packed[rows], first.n_images)
    return counts


def _describe_attacks(standings: Sequence[Standing], results: DatasetResults) -> str:
    """Say which network is the most accurate under each attack, grouped by network; one sentence."""
    attacks = [_label_parts(one, results) for one in standings]
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


def _describe_one(standings: Sequence[Standing], results: DatasetResults) -> str:
    """Say how accurate the only network is, in one sentence."""
    if not standings:
        return ""
    parts = [f"{_describe_numbers(one, results)} ({one.label})" for one in standings]
    network = results.network_label(standings[0].best)
    return (
        f"On {dataset_label(results.name)}, the accuracy of {network} is {_join(parts, '; ')}. It is the only network."
    )


def _label_parts(standing: Standing, results: DatasetResults) -> tuple[str, str]:
    """Return the words for the key of a standing, and for its strength if it is of one evaluation."""
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
    names = [results.network_label(one) for one in standing.tied]
    n_others = len(standing.accuracies) - 1
    if not names:
        return "ahead of the other" if n_others == 1 else "ahead of all others"
    if len(names) == n_others > 1:
        return "tied with all others"
    more = len(names) - _MOST_NAMED
    return f"tied with {_join(names[:_MOST_NAMED] + ([f'{more:,} more'] if more > 0 else []))}"
