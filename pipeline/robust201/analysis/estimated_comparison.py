"""Comparison of networks of a sweep for a budget, where one accuracy of a pair, or both, is an estimate."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import DatasetResults, choose_results, read_results
from robust201.analysis.estimated import NORMAL_QUANTILE, EstimatedAccuracies, find_estimates
from robust201.analysis.evaluation import LEVEL
from robust201.analysis.leaderboard import nearest_strength
from robust201.analysis.stored_evaluations import split_network
from robust201.analysis.terms import evaluations_named
from robust201.core.errors import ConfigError
from robust201.core.records import ArchitectureId
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.estimates import read_estimates
from robust201.statistics.significance import holm_adjust, normal_p_values


class _Accuracy(NamedTuple):
    value: float
    standard_error: float
    is_estimate: bool


class EstimatedComparison(NamedTuple):
    """Differences of accuracies on all images, of pairs one of which at least is an estimate.

    Attributes:
        table: one row per pair of networks, key and strength: `first`, `second`, `key`, `strength`, `first_accuracy`,
            `second_accuracy`, `first_estimated`, `second_estimated`, `difference` (second - first), `low` and `high`
            (its 95% interval), `p_value`, and `adjusted_p_value` by Holm's correction.
        summary: sentences about each pair, and about what the numbers are.
    """

    table: pd.DataFrame
    summary: str


def compare_estimated(
    networks: Sequence[str], *, keys: Sequence[str] | None = None, data: str | None = None
) -> EstimatedComparison:
    """Compare networks of one dataset folder, each two by their estimates, or an estimate and a count.

    Errors of the two are taken as independent, although the networks share the sample. In the outcomes of
    docs/sampling.md that is nearly true: the variance of a difference is .66 to 1.2 times the sum of the variances, .98
    in the median, since predictions explain what networks have in common. Counts have no error, since accuracies are
    those on all images.

    Args:
        networks: two or more, as ``DATASET:ARCHITECTURE``.
        keys: keys, or keys at a strength; by default those with estimates, at the strength nearest to 1/255.
        data: which of the folder's datasets; may be left out where there is one.

    Raises:
        ConfigError: a text names no network, or the networks are of several folders, or nothing is estimated.
    """
    folder, names = _split(networks)
    reader = RobustnessDataset(folder)
    results = choose_results(read_results(reader), data, folder, "Comparing networks")
    chosen = [_find_network(results, name) for name in names]
    columns = _columns(results, keys)
    estimates = {column: find_estimates(results, [column]) for column in columns}
    accuracies = {
        (network, column): _accuracy(results, estimates[column], network, column)
        for network in chosen
        for column in columns
    }
    rows = [
        {"first": str(first), "second": str(second), "key": column[0], "strength": column[1]}
        | _compare(accuracies[first, column], accuracies[second, column])
        for first, second in combinations(chosen, 2)
        for column in columns
        if accuracies[first, column].is_estimate or accuracies[second, column].is_estimate
    ]
    if not rows:
        raise ConfigError(
            f"Comparing networks failed for {folder}: expected an estimate of one of them, got counts only. Leave "
            "--estimates out, which compares counts by image."
        )
    table = pd.DataFrame(rows)
    table["adjusted_p_value"] = holm_adjust(table["p_value"])
    n_images = max(found.n_images for found in estimates.values() if found is not None)
    return EstimatedComparison(table, _summarise(table, n_images))


def _split(networks: Sequence[str]) -> tuple[Path, list[str]]:
    divided = []
    for text in dict.fromkeys(networks):
        parts = split_network(text)
        if parts is None:
            raise ConfigError(
                f"Comparing networks failed for {text!r}: expected DATASET:ARCHITECTURE with --estimates, got another "
                "form. Correct it."
            )
        divided.append(parts)
    folders = list(dict.fromkeys(folder for folder, _ in divided))
    if len(divided) < 2 or len(folders) > 1:
        raise ConfigError(
            f"Comparing networks failed for {', '.join(networks)}: expected two different networks or more of one "
            f"dataset folder with --estimates, got {len(divided)} of {len(folders)}. Name others."
        )
    return folders[0], [name for _, name in divided]


def _find_network(results: DatasetResults, name: str) -> ArchitectureId:
    selected = choose_results(
        read_results(results.reader.select([name])), results.name, results.reader.path, "Comparing networks"
    )
    known = [network for network in selected.architectures if network in results.architectures]
    if len(known) != 1:
        raise ConfigError(
            f"Comparing networks failed for {name}: expected a network with results of {results.name}, got "
            f"{len(known)}. Name another."
        )
    return known[0]


def _columns(results: DatasetResults, keys: Sequence[str] | None) -> list[tuple[str, float]]:
    if keys is not None:
        return list(dict.fromkeys(column for key in keys for column in evaluations_named(results, key)))
    frame = read_estimates(results.reader.files)
    estimated = dict.fromkeys(frame[frame["dataset"] == results.name]["key"].astype(str))
    return [(key, nearest_strength(key, results.strengths(key))) for key in estimated if results.strengths(key)]


def _accuracy(
    results: DatasetResults, estimates: EstimatedAccuracies | None, network: ArchitectureId, column: tuple[str, float]
) -> _Accuracy:
    counted = float(results.accuracies[column].get(network, np.nan))
    if not np.isnan(counted):
        return _Accuracy(counted, 0.0, False)
    if estimates is None or network not in estimates.value.index:
        key, strength = column
        raise ConfigError(
            f"Comparing networks failed for {network}: expected an accuracy under {key} {strength:g}, counted or "
            "estimated, got none. Choose other --keys, or run the sweep to its end and export it again."
        )
    return _Accuracy(float(estimates.value[network]), float(estimates.standard_error[network]), True)


def _compare(first: _Accuracy, second: _Accuracy) -> dict[str, Any]:
    difference = second.value - first.value
    error = float(np.hypot(first.standard_error, second.standard_error))
    return {
        "first_accuracy": first.value,
        "second_accuracy": second.value,
        "first_estimated": first.is_estimate,
        "second_estimated": second.is_estimate,
        "difference": difference,
        "low": max(-1.0, difference - NORMAL_QUANTILE * error),
        "high": min(1.0, difference + NORMAL_QUANTILE * error),
        "p_value": float(normal_p_values(difference, error)),
    }


def _summarise(table: pd.DataFrame, n_images: int) -> str:
    lines = []
    for (first, second), rows in table.groupby(["first", "second"], sort=False):
        significant = rows[rows["adjusted_p_value"] < LEVEL]
        parts = []
        for name, won in (
            (first, significant[significant["difference"] < 0]),
            (second, significant[significant["difference"] > 0]),
        ):
            if len(won):
                most = won.iloc[int(won["difference"].abs().to_numpy().argmax())]
                parts.append(
                    f"{name} is significantly more accurate in {len(won)}, most at {most['key']} "
                    f"{most['strength']:g} ({100 * abs(most['difference']):.1f} points)"
                )
        count = f"{len(rows)} evaluation{'' if len(rows) == 1 else 's'}"
        words = "; ".join(parts) or f"{first} and {second} do not differ significantly"
        lines.append(f"{words}; of {count} (two normal estimates, Holm's correction, {LEVEL:g}).")
    lines.append(
        f"Accuracies marked ~ are estimates from samples of the images, for all {n_images:,} images; others are counts "
        "on these. Intervals take the errors of two estimates as independent."
    )
    return "\n".join(lines)
