"""Comparison of a sampled sweep's networks, for pairs in which at least one accuracy is an estimate."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import DatasetResults, choose_results, read_results
from robust201.analysis.estimated import EstimatedAccuracies, EstimateTable
from robust201.analysis.evaluation import LEVEL
from robust201.analysis.leaderboard import nearest_strength
from robust201.analysis.stored_evaluations import split_network
from robust201.analysis.terms import require_evaluations
from robust201.core.errors import ConfigError
from robust201.core.records import ArchitectureId
from robust201.reader.dataset import RobustnessDataset
from robust201.statistics.intervals import NORMAL_QUANTILE
from robust201.statistics.significance import holm_adjust, normal_p_values


class _Accuracy(NamedTuple):
    value: float
    standard_error: float
    is_estimate: bool


class EstimatedComparison(NamedTuple):
    """Differences of accuracies on all images, for pairs with at least one estimate.

    Attributes:
        table: one row per pair of networks, key and strength: `first`, `second`, `key`, `strength`, `first_accuracy`,
            `second_accuracy`, `first_estimated`, `second_estimated`, `difference` (second - first), `low` and `high`
            (its 95% interval), `p_value`, and `adjusted_p_value` (Holm's correction).
        summary: one sentence per pair, and a note on which accuracies are estimates.
    """

    table: pd.DataFrame
    summary: str


def compare_estimated(
    networks: Sequence[str], *, keys: Sequence[str] | None = None, data: str | None = None
) -> EstimatedComparison:
    """Compare every two networks of a dataset folder if the accuracy of at least one of them is an estimate.

    The errors of two estimates are treated as independent, although both networks are evaluated on the same sample.
    For the outcomes in docs/sampling.md, this is nearly true, because estimates start from a model's predictions
    (`statistics.sampling`), which already explain what networks have in common: the variance of a difference is 0.66 to
    1.2 times the sum of the variances (median 0.98). Accuracies that were measured on all images have no error, because
    the comparison refers to the accuracy on all images.

    Args:
        networks: two or more, as ``DATASET:ARCHITECTURE``.
        keys: keys, or keys at a strength; by default, all keys with estimates, at the strength nearest to 1/255.
        data: name of the image dataset; None if the folder has only one.

    Raises:
        ConfigError: an entry of `networks` is not DATASET:ARCHITECTURE, the networks are in several folders, or
            no accuracy is an estimate.
    """
    folder, names = _split_networks(networks)
    reader = RobustnessDataset(folder)
    results = choose_results(read_results(reader), data, folder, "Comparing networks")
    architectures = [_find_network(results, name) for name in names]
    estimate_table = EstimateTable(results)
    columns = _choose_columns(results, estimate_table, keys)
    estimates = {column: estimate_table.find([column]) for column in columns}
    accuracies = {
        (network, column): _find_accuracy(results, estimates[column], network, column)
        for network in architectures
        for column in columns
    }
    rows = [
        {"first": str(first), "second": str(second), "key": column[0], "strength": column[1]}
        | _compare(accuracies[first, column], accuracies[second, column])
        for first, second in combinations(architectures, 2)
        for column in columns
        if accuracies[first, column].is_estimate or accuracies[second, column].is_estimate
    ]
    if not rows:
        raise ConfigError(
            f"Comparing networks failed for {folder}: all accuracies were measured on all images, but --estimates "
            "compares estimates. Leave --estimates out to compare the outcomes of single images."
        )
    table = pd.DataFrame(rows)
    table["adjusted_p_value"] = holm_adjust(table["p_value"])
    n_images = max(column_estimates.n_images for column_estimates in estimates.values() if column_estimates is not None)
    return EstimatedComparison(table, _summarise(table, n_images))


def _split_networks(networks: Sequence[str]) -> tuple[Path, list[str]]:
    folders_and_names = []
    for text in dict.fromkeys(networks):
        folder_and_name = split_network(text)
        if folder_and_name is None:
            raise ConfigError(
                f"Comparing networks failed for {text!r}: --estimates needs networks of a dataset. Write them as "
                "DATASET:ARCHITECTURE."
            )
        folders_and_names.append(folder_and_name)
    folders = list(dict.fromkeys(folder for folder, _ in folders_and_names))
    if len(folders_and_names) < 2 or len(folders) > 1:
        raise ConfigError(
            f"Comparing networks failed for {', '.join(networks)}: --estimates needs at least two different networks "
            f"of one dataset folder, got {len(folders_and_names)} networks of {len(folders)} folders. Write "
            "them as DATASET:ARCHITECTURE."
        )
    return folders[0], [name for _, name in folders_and_names]


def _find_network(results: DatasetResults, name: str) -> ArchitectureId:
    selected = choose_results(
        read_results(results.reader.select([name])), results.name, results.reader.path, "Comparing networks"
    )
    matches = [network for network in selected.architectures if network in results.architectures]
    if len(matches) != 1:
        raise ConfigError(
            f"Comparing networks failed for {name}: it matches {len(matches)} networks that have results on "
            f"{results.name}; exactly one is needed. Give another name."
        )
    return matches[0]


def _choose_columns(
    results: DatasetResults, estimate_table: EstimateTable, keys: Sequence[str] | None
) -> list[tuple[str, float]]:
    if keys is not None:
        return list(dict.fromkeys(column for key in keys for column in require_evaluations(results, key)))
    estimated_keys = dict.fromkeys(estimate_table.rows["key"])
    return [(key, nearest_strength(key, results.strengths(key))) for key in estimated_keys if results.strengths(key)]


def _find_accuracy(
    results: DatasetResults, estimates: EstimatedAccuracies | None, network: ArchitectureId, column: tuple[str, float]
) -> _Accuracy:
    measured_accuracy = float(results.accuracies[column].get(network, np.nan))
    if not np.isnan(measured_accuracy):
        return _Accuracy(measured_accuracy, 0.0, False)
    if estimates is None or network not in estimates.value.index:
        key, strength = column
        raise ConfigError(
            f"Comparing networks failed for {network}: it has neither a measured nor an estimated accuracy under "
            f"{key} {strength:g}. Choose other --keys, or finish the sweep and export it again."
        )
    return _Accuracy(float(estimates.value[network]), float(estimates.standard_error[network]), True)


def _compare(first: _Accuracy, second: _Accuracy) -> dict[str, Any]:
    difference = second.value - first.value
    standard_error = float(np.hypot(first.standard_error, second.standard_error))
    return {
        "first_accuracy": first.value,
        "second_accuracy": second.value,
        "first_estimated": first.is_estimate,
        "second_estimated": second.is_estimate,
        "difference": difference,
        "low": max(-1.0, difference - NORMAL_QUANTILE * standard_error),
        "high": min(1.0, difference + NORMAL_QUANTILE * standard_error),
        "p_value": float(normal_p_values(difference, standard_error)),
    }


def _summarise(table: pd.DataFrame, n_images: int) -> str:
    lines = []
    for (first, second), rows in table.groupby(["first", "second"], sort=False):
        significant = rows[rows["adjusted_p_value"] < LEVEL]
        wins_of_first = significant[significant["difference"] < 0]
        wins_of_second = significant[significant["difference"] > 0]
        clauses = [
            _describe_wins(str(network), wins)
            for network, wins in ((first, wins_of_first), (second, wins_of_second))
            if len(wins)
        ]
        finding = "; ".join(clauses) or f"{first} and {second} do not differ significantly"
        evaluations_text = f"{len(rows)} evaluation{'' if len(rows) == 1 else 's'}"
        lines.append(f"In {evaluations_text}, {finding} (normal approximation, Holm's correction, level {LEVEL:g}).")
    lines.append(
        f"Accuracies marked ~ are estimates for all {n_images:,} images from samples of them; the others were measured "
        "on all images. Intervals treat the errors of two estimates as independent."
    )
    return "\n".join(lines)


def _describe_wins(network: str, wins: pd.DataFrame) -> str:
    largest = wins.iloc[int(wins["difference"].abs().to_numpy().argmax())]
    return (
        f"{network} is significantly more accurate in {len(wins)} of them, by up to "
        f"{100 * abs(largest['difference']):.1f} points ({largest['key']} {largest['strength']:g})"
    )
