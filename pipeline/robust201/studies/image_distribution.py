"""Robustness R of trained networks by image distribution and task: tables 1 to 18, tests and published numbers.

R is the area under the curve of a network's accuracy against the attack's strength, divided by the area under a curve
that stays at the clean accuracy (see `statistics.robustness.robustness_r`). It is computed for each network, not
clipped, and then averaged. Source: see `studies.comparisons`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.statistics.groups import Groups, make_groups, summarise_group, welch_test
from robust201.statistics.intervals import accuracy_intervals, mean_intervals
from robust201.statistics.robustness import (
    MIN_POINTS,
    RobustnessCurve,
    fit_psychometric,
    relative_changes,
    robustness_r,
    sensitivity,
)
from robust201.studies.comparisons import compare_groups, iterate_rows, published_tables
from robust201.studies.config import ImageDistributionStudy
from robust201.studies.networks import Exports

EPSILONS = (0.0, 0.0125, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""The paper's strengths, for pixels in [0, 1]; in sweeps, they are in units of 1/255."""


@dataclass(frozen=True)
class ImageDistribution:
    """Results of the study of image distributions.

    Attributes:
        trained_networks: one row per trained network: `network`, `group`, `epoch`, `seed`, `clean` accuracy, `r`, the
            mean relative change `c` (r - 1), `exceeds_one` (whether R is above 1), `rises` (whether any accuracy under
            attack is above the clean accuracy), `r_fitted` (R of a fitted psychometric function, NaN for fewer than
            five strengths) and `at_chance` (whether the clean accuracy is not significantly above chance; R is then
            NaN).
        tables: one row per network, group and epoch: `n` networks with R, `mean` and `sd` of R (ddof 1) with the mean's
            95% interval `low` to `high`, the number `above_one` of networks with R above 1, and the mean `clean`
            accuracy. Published numbers: `table` (the table's number in the paper), `printed_epoch`, `printed_mean`,
            `printed_sd` and `printed_n` (number of networks); the `difference` of the means, and the p-value
            `p_printed` of Welch's test of this difference.
        curves: one row per network, group, epoch and strength (1/255): `n` networks, mean and standard deviation over
            them of the accuracy (`accuracy`, `accuracy_sd`) and of its ratio to the clean accuracy (`normalised`,
            `normalised_sd`).
        comparisons: all tests (see `studies.comparisons.compare_groups`).
        floor: lower bound of R: the R of a network that classifies no attacked image correctly.
        is_comparable: whether R can be compared with published numbers, because it is computed from the accuracy at the
            paper's strengths.
        uses_sensitivity: whether R is computed from the sensitivity d' instead of the accuracy, because groups have
            different numbers of classes.
        chances: accuracy of guessing by group; groups whose number of classes is unknown are left out.
    """

    trained_networks: pd.DataFrame
    tables: pd.DataFrame
    curves: pd.DataFrame
    comparisons: pd.DataFrame
    floor: float
    is_comparable: bool
    uses_sensitivity: bool
    chances: dict[str, float]


def measure_image_distribution(study: ImageDistributionStudy, exports: Exports) -> ImageDistribution:
    """Compute the study's numbers from its exports.

    Raises:
        ResultsError: a network has no results on a group's dataset, or the sensitivity is needed but the exports do not
            contain the numbers of classes and images.
    """
    network_frames, curve_frames, floors, distinct_strengths = [], [], set(), set()
    sizes = {group.dataset: exports.dataset_size(group.dataset) for group in study.groups.values()}
    uses_sensitivity = len({n_classes for n_classes, _ in sizes.values() if n_classes is not None}) > 1
    for label, network in study.networks.items():
        for group, study_group in study.groups.items():
            frame = exports.accuracies(study_group.dataset, study.key, study_group.recipes, [network.architecture])
            for epoch, rows in frame.groupby("length"):
                accuracies = rows.pivot_table(index="seed", columns="strength", values="accuracy").dropna()
                row_key = {"network": label, "group": group, "epoch": int(float(str(epoch)))}
                strengths = accuracies.columns.to_numpy(np.float64)
                n_classes, n_images = sizes[study_group.dataset]
                performances = (
                    _compute_sensitivities(accuracies, n_classes, n_images, study_group.dataset)
                    if uses_sensitivity
                    else accuracies
                )
                curve = robustness_r(strengths, performances.to_numpy())
                is_at_chance = _is_at_chance(accuracies.iloc[:, 0].to_numpy(), n_classes, n_images)
                network_frames.append(_summarise_networks(row_key, accuracies, performances, curve, is_at_chance))
                curve_frames.append(_summarise_curve(row_key, accuracies))
                floors.add(curve.floor)
                distinct_strengths.add(tuple(strengths))
    all_networks = pd.concat(network_frames, ignore_index=True)
    tables = _make_tables(study, all_networks)
    r_by_seed = {
        (str(group_key[0]), str(group_key[1]), int(str(group_key[2]))): rows.set_index("seed")["r"]
        for group_key, rows in all_networks.groupby(["network", "group", "epoch"], sort=False)
    }
    comparisons = compare_groups(tables, r_by_seed)
    has_published_strengths = all(
        len(strengths) == len(EPSILONS) and np.allclose(strengths, 255 * np.array(EPSILONS))
        for strengths in distinct_strengths
    )
    all_curves = pd.concat(curve_frames, ignore_index=True)
    is_comparable = has_published_strengths and not uses_sensitivity
    classes_by_group = {group: sizes[study_group.dataset][0] for group, study_group in study.groups.items()}
    chances = {group: 1 / n_classes for group, n_classes in classes_by_group.items() if n_classes is not None}
    return ImageDistribution(
        all_networks, tables, all_curves, comparisons, max(floors), is_comparable, uses_sensitivity, chances
    )


def _compute_sensitivities(
    accuracies: pd.DataFrame, n_classes: int | None, n_images: int | None, dataset: str
) -> pd.DataFrame:
    if n_classes is None or n_images is None:
        raise ResultsError(
            f"Comparing groups with different numbers of classes failed for {dataset}: its numbers of classes and "
            "images are not recorded. Export it with the measurement cm."
        )
    return pd.DataFrame(sensitivity(accuracies.to_numpy(), n_classes, n_images), accuracies.index, accuracies.columns)


def _is_at_chance(clean: NDArray[np.float64], n_classes: int | None, n_images: int | None) -> NDArray[np.bool_]:
    """Return whether chance is in or above the 95% intervals of clean accuracies; False if a number is unknown."""
    if n_classes is None or n_images is None:
        return np.zeros(len(clean), np.bool_)
    low, _ = accuracy_intervals(clean, n_images)
    return low <= 1 / n_classes


def _summarise_networks(
    row_key: dict[str, Any],
    accuracies: pd.DataFrame,
    performances: pd.DataFrame,
    curve: RobustnessCurve,
    is_at_chance: NDArray[np.bool_],
) -> pd.DataFrame:
    strengths = accuracies.columns.to_numpy(np.float64)
    changes = relative_changes(strengths, performances.to_numpy())
    mean_change = np.trapezoid(changes, strengths, axis=-1) / (strengths[-1] - strengths[0])
    return pd.DataFrame(
        {
            **row_key,
            "seed": accuracies.index,
            "clean": accuracies.iloc[:, 0].to_numpy(),
            "r": np.where(is_at_chance, np.nan, curve.value),
        }
        | {"c": np.where(is_at_chance, np.nan, mean_change), "exceeds_one": curve.exceeds_one & ~is_at_chance}
        | {
            "rises": curve.rises,
            "r_fitted": np.where(is_at_chance, np.nan, _fit_robustness(strengths, performances)),
            "at_chance": is_at_chance,
        }
    )


def _fit_robustness(strengths: NDArray[np.float64], performances: pd.DataFrame) -> NDArray[np.float64]:
    if len(strengths) < MIN_POINTS:
        return np.full(len(performances), np.nan)
    curves = [fit_psychometric(strengths, row) for row in performances.to_numpy()]
    return np.array([curve.robustness(strengths[0], strengths[-1]) for curve in curves])


def _summarise_curve(row_key: dict[str, Any], accuracies: pd.DataFrame) -> pd.DataFrame:
    curves = accuracies.to_numpy()
    relative = 1 + relative_changes(accuracies.columns.to_numpy(np.float64), curves)
    plain, normalised = summarise_group(curves.T), summarise_group(relative.T)
    return pd.DataFrame(
        {**row_key, "strength": accuracies.columns.to_numpy(np.float64), "n": len(accuracies), "accuracy": plain.mean}
        | {"accuracy_sd": plain.deviation, "normalised": normalised.mean, "normalised_sd": normalised.deviation}
    )


def _make_tables(study: ImageDistributionStudy, trained_networks: pd.DataFrame) -> pd.DataFrame:
    published_rows = {(row.network, row.group, row.epoch): row for row in iterate_rows(published_tables())}
    rows = []
    for (network, group, epoch), group_networks in trained_networks.groupby(["network", "group", "epoch"], sort=False):
        r_values = group_networks["r"].to_numpy()
        summary: Groups = summarise_group(r_values)
        _, low, high = mean_intervals(r_values[~np.isnan(r_values)])
        published_epoch = study.networks[str(network)].printed_epoch(int(str(epoch)))
        published = published_rows.get((str(network), str(group), published_epoch))
        rows.append(
            {"network": network, "group": group, "epoch": epoch, "n": int(summary.size), "mean": float(summary.mean)}
            | {"sd": float(summary.deviation), "low": float(low), "high": float(high)}
            | {"above_one": int(group_networks["exceeds_one"].sum()), "clean": float(group_networks["clean"].mean())}
            | {
                "table": None if published is None else published.table,
                "printed_epoch": None if published is None else published_epoch,
            }
            | {"printed_mean": np.nan if published is None else published.mean}
            | {"printed_sd": np.nan if published is None else published.sd}
            | {"printed_n": np.nan if published is None else published.n}
        )
    frame = pd.DataFrame(rows)
    ours = make_groups(frame["mean"], frame["sd"], frame["n"])
    difference_from_published = welch_test(
        ours, make_groups(frame["printed_mean"], frame["printed_sd"], frame["printed_n"])
    )
    return frame.assign(difference=difference_from_published.difference, p_printed=difference_from_published.p_value)


def attach_published_decisions(
    study: ImageDistributionStudy, comparisons: pd.DataFrame, published: pd.DataFrame
) -> pd.DataFrame:
    """Add the column `printed`: the side with the published marker, ``""`` for no marker, or None if unpublished."""
    published_decisions = {
        (row.first, row.second, row.network, row.epoch): row.printed for row in iterate_rows(published)
    }
    decisions = [
        published_decisions.get(
            (row.first, row.second, row.network, study.networks[row.network].printed_epoch(row.epoch))
        )
        for row in iterate_rows(comparisons)
    ]
    return comparisons.assign(printed=pd.Series(decisions, comparisons.index, dtype=object))
