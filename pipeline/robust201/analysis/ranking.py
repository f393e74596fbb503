"""Ranking of a dataset's networks by accuracy, with intervals and ties, as in figures and on pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.comparison import LEVEL
from robust201.analysis.dataset_results import CORRUPTION, SCORES, DatasetResults
from robust201.analysis.labels import key_label
from robust201.analysis.tables import Cell, format_percent, format_range, latex_table, text_table
from robust201.analysis.terms import mean_accuracy, require_evaluations
from robust201.core.records import ArchitectureId
from robust201.dataset.layout import CLEAN, kind_of
from robust201.dataset.outcomes import Outcomes, read_checked_outcomes
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import unpack_outcomes
from robust201.statistics.significance import Ties, mean_accuracy_intervals, mean_accuracy_ties, ties_with_best
from robust201.tasks.constraints import LINF

REFERENCE_EPSILON = 1.0
REFERENCE_SEVERITY = 3.0
"""Default strengths: epsilon in the key's unit (1/255 in a Linf ball), and severity (see `nearest_strength`)."""

_MAX_TIES = 3
"""Maximum number of tied networks that a sentence names."""

_NETWORKS_PER_BLOCK = 256
"""Number of networks whose outcomes are unpacked at a time."""


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Networks ranked by several accuracies.

    Attributes:
        table: one row per network and evaluation: `network`, `evaluation` (its name, such as ``pgd:1/255`` or
            ``corruption``), `rank` (one more than the number of networks with a higher accuracy), `accuracy`, `low` and
            `high` (its 95% interval over images), `p_value` (of the difference from the best network, adjusted with
            Holm's method), `tied` (best or not significantly worse; false for a single network) and `n_images`. If it
            is unknown or differs for averaged accuracies, the interval is NaN, and so are the evaluation's p-values.
        labels: label of each evaluation.
        order: name of the evaluation that orders the networks; empty if there are no accuracies.
        networks: label of each network in the table, by id, in the order of the ranking.
        summary: sentence on the best network by the evaluation `order`, and on the networks tied with it.
        basis: note on the number of networks that are left out, the number of images and the tests.
    """

    table: pd.DataFrame
    labels: Mapping[str, str]
    order: str
    networks: Mapping[ArchitectureId, str]
    summary: str
    basis: str

    def latex(self) -> str:
        """Return a LaTeX table in percent with 95% intervals; the best network and networks tied with it are bold."""
        bold = "; the best and tied networks are bold" if self.table["tied"].any() else ""
        header, rows = self._cells("")
        return latex_table(header, rows, n_left=1, caption=f"Accuracy in percent{bold}. {self.basis}")

    def __str__(self) -> str:
        """Return the summary, the note and the table as text."""
        header, rows = self._cells(", %")
        legend = ["* best or tied with the best"] if self.table["tied"].any() else []
        return "\n".join(filter(None, [self.summary, self.basis, text_table(header, rows, n_left=1), *legend]))

    __repr__ = __str__

    def _cells(self, unit: str) -> tuple[list[str], list[list[str | Cell]]]:
        cells = {
            (row["network"], row["evaluation"]): Cell(
                format_percent(row["accuracy"], row["low"], row["high"]), is_best=row["tied"]
            )
            for row in self.table.to_dict("records")
        }
        rows: list[list[str | Cell]] = [
            [label, *(cells.get((network, name), "-") for name in self.labels)]
            for network, label in self.networks.items()
        ]
        return ["network", *(f"{label}{unit}" for label in self.labels.values())], rows


def rank_networks(
    results: DatasetResults, names: Sequence[str] | None = None, *, max_networks: int | None = None
) -> Ranking:
    """Rank networks by several accuracies, in the order of the first evaluation other than clean.

    By default, the order is that of the strongest attack (see `_attacks_on_most_networks`), if there are attacks.

    Args:
        results: results of the networks.
        names: scores, keys and keys at a strength, such as ``clean``, ``pgd:8/255``, ``corruption``; by default those
            of `default_names`.
        max_networks: maximum number of networks in the table, the best first; None for all.

    Raises:
        ConfigError: a name does not match any evaluation.
    """
    standings = [_rank_by(results, name) for name in (default_names(results) if names is None else names)]
    standings = [standing for standing in standings if len(standing)]
    if not standings:
        networks = {network: results.network_label(network) for network in results.architectures}
        return Ranking(pd.DataFrame(columns=_COLUMNS), {}, "", networks, "", "")
    perturbed = [standing for standing in standings if standing["evaluation"].iloc[0] != CLEAN]
    attacks = [] if names is not None else _attacks_on_most_networks(results, standings)
    # The strongest attack has the lowest mean accuracy.
    first = min(attacks, key=lambda standing: float(standing["accuracy"].mean()), default=(perturbed or standings)[0])
    # Networks without results under the first evaluation come last.
    ranked = list(dict.fromkeys(network for standing in (first, *standings) for network in standing["network"]))
    shown = ranked[:max_networks]
    note = f"The best {len(shown):,} of {len(ranked):,} networks. " if len(shown) < len(ranked) else ""
    tables = [
        standing.set_index("network").loc[[name for name in shown if name in standing["network"].array]].reset_index()
        for standing in standings
    ]
    return Ranking(
        pd.concat(tables, ignore_index=True)[_COLUMNS],
        {standing["evaluation"].iloc[0]: standing["label"].iloc[0] for standing in standings},
        str(first["evaluation"].iloc[0]),
        {network: results.network_label(network) for network in shown},
        _describe_best(results, first),
        note + _describe_basis(standings),
    )


def _attacks_on_most_networks(results: DatasetResults, standings: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return the rankings under those attacks in one norm ball that have results for the most networks.

    The ball is L-infinity or, if no attack is in it, the ball of the first attack. All returned rankings have the same
    networks, because means over different networks are not comparable.
    """
    balls = [
        results.reader.norm_ball_of(require_evaluations(results, standing["evaluation"].iloc[0])[0][0])
        for standing in standings
    ]
    common_ball = LINF if LINF in balls else next((ball for ball in balls if ball is not None), None)
    attacks = [table for table, ball in zip(standings, balls, strict=True) if ball is not None and ball == common_ball]
    largest_set = {*max(attacks, key=len)["network"]} if attacks else set()
    return [table for table in attacks if {*table["network"]} == largest_set]


_COLUMNS = ["network", "evaluation", "rank", "accuracy", "low", "high", "p_value", "tied", "n_images"]


class RankedNetwork(NamedTuple):
    """A network's position in a ranking by one accuracy.

    Attributes:
        network: id of the network.
        accuracy: the accuracy.
        rank: one more than the number of networks with a higher accuracy.
        n_equal: number of networks with this accuracy, including this one.
    """

    network: ArchitectureId
    accuracy: float
    rank: int
    n_equal: int


def order_networks(results: DatasetResults, accuracies: "pd.Series[float]") -> list[RankedNetwork]:
    """Order networks by an accuracy, the best first; networks that lack the accuracy are left out.

    Networks with equal accuracy are ordered by the results' scores, in the order of `SCORES`, then by ascending id.
    """
    frame = results.scores.assign(accuracy=accuracies).dropna(subset="accuracy").sort_index()
    order = ["accuracy", *results.scores.columns]
    values = frame.sort_values(order, ascending=False, kind="stable", na_position="last")["accuracy"]
    ranks = values.rank(method="min", ascending=False).astype(int)
    n_equal = values.groupby(values).transform("size")
    columns = (values.index.tolist(), values.tolist(), ranks.tolist(), n_equal.tolist())
    return [RankedNetwork(*fields) for fields in zip(*columns, strict=True)]


def default_names(results: DatasetResults) -> list[str]:
    """Return the default names: clean, attacks and unknown keys at `nearest_strength`, and the mean of corruptions."""
    attacks = [*results.keys("attack"), *results.keys("other")]
    names = [results.term(key, nearest_strength(key, results.strengths(key))) for key in attacks]
    return [*results.keys(CLEAN), *names, *([CORRUPTION] if CORRUPTION in results.scores else [])]


def nearest_strength(key: str, strengths: Sequence[float]) -> float:
    """Return the strength nearest to epsilon 1 (in the key's units) or, for a corruption, to severity 3.

    Of two equally near strengths, the lower one is returned.
    """
    target = REFERENCE_SEVERITY if kind_of(key) == "corruption" else REFERENCE_EPSILON
    return min(strengths, key=lambda strength: (abs(strength - target), strength))


def _rank_by(results: DatasetResults, name: str) -> pd.DataFrame:
    """Return the ranking of all networks by one accuracy: `Ranking.table` with the columns `label` and `is_paired`."""
    evaluations = require_evaluations(results, name)
    ordered = order_networks(results, mean_accuracy(results, name))
    frame = pd.DataFrame(ordered, columns=list(RankedNetwork._fields))
    frame = frame.sort_values(["rank", "network"], ignore_index=True)  # of equally good ones, tests use the first
    accuracies, networks = frame["accuracy"].to_numpy(np.float64), frame["network"].tolist()
    counts = results.image_counts.loc[networks, evaluations]
    n_images = counts.iloc[:, 0].where(counts.nunique(axis=1, dropna=False) == 1).to_numpy(np.float64)
    low, high = accuracy_intervals(accuracies, n_images)
    ties = Ties(0, np.full(len(frame), np.nan), np.arange(len(frame)) == 0, is_paired=False)
    if len(frame) and not np.isnan(n_images).any():
        outcomes = _stored_outcomes(results, evaluations, networks)
        if len(evaluations) > 1 and outcomes is not None:
            n_correct = _count_correct_evaluations(outcomes)
            ties = mean_accuracy_ties(n_correct, len(evaluations), level=LEVEL)
            low, high = mean_accuracy_intervals(n_correct, len(evaluations))
        else:
            packed = None if outcomes is None or len(evaluations) > 1 else outcomes[0].packed
            ties = ties_with_best(accuracies, n_images, outcomes=packed, level=LEVEL)
    return frame.assign(
        evaluation=name,
        label=_label(results, name, evaluations),
        low=low,
        high=high,
        p_value=ties.p_values,
        tied=ties.tied if len(frame) > 1 else False,
        n_images=n_images,
        is_paired=ties.is_paired,
    )


def _label(results: DatasetResults, name: str, evaluations: Sequence[tuple[str, float]]) -> str:
    if len(evaluations) == 1:
        ((key, strength),) = evaluations
        return results.column_label(key, strength)
    return SCORES[name] if name in SCORES else f"mean {key_label(name)}"


def _stored_outcomes(
    results: DatasetResults, evaluations: Sequence[tuple[str, float]], networks: Sequence[ArchitectureId]
) -> list[Outcomes] | None:
    """Return the outcomes of each evaluation, in the networks' order; None if any network lacks outcomes."""
    all_outcomes = []
    for key, strength in evaluations:
        outcomes = read_checked_outcomes(results.reader, results.name, key, strength)
        if outcomes is None or not {*networks} <= {*outcomes.architectures}:
            return None
        all_outcomes.append(outcomes.of(networks))
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


def _describe_best(results: DatasetResults, standing: pd.DataFrame) -> str:
    """Return a sentence on the best network of a ranking, and the networks tied with it."""
    best, label = standing.iloc[0], standing["label"].iloc[0]
    network, n_networks = results.network_label(best["network"]), len(results.architectures)
    if len(standing) < n_networks:
        label += f", {len(standing):,} of {n_networks:,} networks"
    accuracy = format_percent(best["accuracy"], best["low"], best["high"], unit="%")
    if len(standing) == 1:
        only = "the only network" if n_networks == 1 else "the only network ranked"
        return f"On {results.label}, the accuracy of {network}, {only}, is {accuracy} ({label})."
    if results.chance_level is not None and best["low"] <= results.chance_level:
        return f"On {results.label}, no network is clearly above chance ({label})."
    ties = "" if standing["n_images"].isna().any() else f", {_describe_ties(results, standing)}"
    adjective = "accurate" if best["evaluation"] == CLEAN else "robust"
    return f"On {results.label}, the most {adjective} network is {network} ({label}: {accuracy}){ties}."


def _describe_ties(results: DatasetResults, standing: pd.DataFrame) -> str:
    names = [results.network_label(network) for network in standing["network"][1:][standing["tied"][1:]]]
    if not names:
        return "ahead of all others"
    if len(names) == len(standing) - 1 > 1:
        return "tied with all others"
    shown = names[:_MAX_TIES] + ([f"{len(names) - _MAX_TIES:,} more"] if len(names) > _MAX_TIES else [])
    return f"tied with {', '.join([*shown[:-2], ' and '.join(shown[-2:])])}"


def _describe_basis(standings: Sequence[pd.DataFrame]) -> str:
    """Return a note on the number of images, and on the tests that ties and intervals are based on."""
    counts = pd.concat([standing["n_images"] for standing in standings])
    if counts.isna().all():
        return "The folder does not record the number of images, so intervals and ties are unknown."
    images = format_range(counts)
    exceptions = ""
    if counts.isna().any():
        exceptions = " If the number of images is unknown or varies, accuracies have no intervals and columns no ties."
    if all(len(standing) == 1 for standing in standings):
        return f"Intervals are 95% intervals over {images} images.{exceptions}"
    paired = {bool(standing["is_paired"].iloc[0]) for standing in standings}
    tests = "paired tests" if paired == {True} else "unpaired tests of accuracies, which detect fewer differences"
    tests = "paired tests where outcomes are stored" if len(paired) == 2 else tests
    return (
        f"Tied networks do not differ significantly from the best on these {images} images ({tests}, Holm's "
        f"correction within each column, level {LEVEL:.0%}). Intervals are 95% intervals over images.{exceptions}"
    )
