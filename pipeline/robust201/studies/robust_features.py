"""Studies of robust features, spatial and Lp robustness, and equivariant networks, compared with published numbers.

Question 1: how do accuracy and attack success change during training (`measure_dynamics`)? Question 2: how much more
robust are networks trained with some robust images (`measure_mixing`)? Question 3: do equivariant networks or robust
images help against spatial attacks (`measure_equivariance`)? Robust images are generated with an adversarially trained
network, so that they contain only features that this network uses.

Published numbers come from single runs; they are converted to fractions. Our numbers are means over training seeds,
with 95% intervals (Student's t).

Source: Wang and Horne, "Understanding (Non-)Robust Feature Disentanglement and the Relationship Between Low- and
High-Dimensional Adversarial Attacks" (ETH Zurich, 2020), figures 1 to 3, tables 1 to 4.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.value_checks import CLEAN
from robust201.statistics.groups import trend_estimate
from robust201.statistics.intervals import mean_intervals
from robust201.statistics.outcomes import attack_success_rates, unpack_outcomes
from robust201.studies.config import DynamicsStudy, EquivarianceStudy, MixingStudy
from robust201.studies.networks import Exports

_PUBLISHED = Path(__file__).parent / "published" / "robust_features.json"

SUCCESS_PREFIX = "asr "
"""Prefix of the names of attack success curves; other curves are accuracies."""


@cache
def published_numbers() -> dict[str, Any]:
    """Return the published numbers, in percent."""
    content: dict[str, Any] = json.loads(_PUBLISHED.read_text())
    return content


def curve_name(key: str, strength: float) -> str:
    """Return the curve name of a key and strength, such as ``clean``, ``rot30`` or ``pgd_l2:0.25``."""
    return key if strength == CLEAN_STRENGTH else f"{key}:{strength:g}"


def summarise_runs(values: Sequence[float] | NDArray[np.float64]) -> dict[str, Any]:
    """Summarise values over seeds: number `n`, `mean` with its 95% interval `low` to `high`, range `min` to `max`."""
    mean, low, high = mean_intervals(values)
    summary = {"n": len(values), "mean": float(mean), "low": float(low), "high": float(high)}
    return summary | {"min": float(np.min(values)), "max": float(np.max(values))}


def _add_differences(frame: pd.DataFrame) -> pd.DataFrame:
    published = frame["printed"].astype(float)
    return frame.assign(printed=published, difference=frame["mean"] - published)


@dataclass(frozen=True)
class Dynamics:
    """Results of question 1: accuracy and attack success during training.

    Attributes:
        curves: one row per `run`, `curve` and `iteration`: `n` seeds, their `mean`, its interval `low` to `high`, their
            range `min` to `max`, the published number `printed` at `printed_iteration` (the same iteration, or the same
            fraction of training), and the `difference` `mean` - `printed`.
        trends: one row per run and curve: the `first`, `last`, `lowest` and `highest` of the snapshots' means, and
            Kendall's `tau` between mean and iteration, for our curve and for the whole published curve (`printed_…`).
        n_images: number of attacked images.
    """

    curves: pd.DataFrame
    trends: pd.DataFrame
    n_images: int


def measure_dynamics(study: DynamicsStudy, exports: Exports) -> Dynamics:
    """Compute clean accuracy and attack success at the snapshots of each run.

    Of the images that are classified correctly without an attack, attack success is the fraction that is
    misclassified under the attack.

    Raises:
        ResultsError: a run has no results, or per-image outcomes are missing.
    """
    rows: list[dict[str, Any]] = []
    n_images = 0
    for run, recipe in study.runs.items():
        clean = exports.outcomes(study.dataset, CLEAN, CLEAN_STRENGTH, [recipe], study.architecture)
        n_images = clean.n_images
        accuracy = unpack_outcomes(clean.packed, n_images).mean(axis=1)
        rows += _summarise_seeds(clean.networks.assign(value=accuracy), run, CLEAN)
        for key in study.attacks:
            for strength in exports.strengths(study.dataset, key):
                attacked = exports.outcomes(study.dataset, key, strength, [recipe], study.architecture)
                matched = clean.networks.reset_index().merge(
                    attacked.networks.reset_index(), on=["recipe", "length", "seed"], suffixes=("", "_attacked")
                )
                rates = attack_success_rates(clean.packed[matched["index"]], attacked.packed[matched["index_attacked"]])
                rows += _summarise_seeds(matched.assign(value=rates), run, SUCCESS_PREFIX + curve_name(key, strength))
    published_content = published_numbers()["dynamics"]
    published_by_point: dict[tuple[str, str, int], float] = {}
    published_iterations: dict[tuple[str, str, int], int] = {}
    for run, curves in published_content["runs"].items():
        for curve, values in curves.items():
            for iteration, value in zip(published_content["iterations"], values, strict=True):
                point = (run, curve, round(iteration * study.iterations_per_printed))
                published_by_point[point], published_iterations[point] = value / 100, iteration
    frame = pd.DataFrame(rows)
    points = list(zip(frame["run"], frame["curve"], frame["iteration"], strict=True))
    frame = frame.assign(
        printed_iteration=pd.array([published_iterations.get(point) for point in points], dtype="Int64"),
        printed=[published_by_point.get(point, math.nan) for point in points],
    )
    return Dynamics(_add_differences(frame), _summarise_trends(frame, published_by_point), n_images)


def _summarise_seeds(frame: pd.DataFrame, run: str, curve: str) -> list[dict[str, Any]]:
    return [
        {"run": run, "curve": curve, "iteration": int(float(str(length)))} | summarise_runs(rows["value"].to_numpy())
        for length, rows in frame.groupby("length", sort=True)
    ]


def _summarise_trends(frame: pd.DataFrame, published_by_point: Mapping[tuple[str, str, int], float]) -> pd.DataFrame:
    rows = []
    for (run, curve), curve_rows in frame.groupby(["run", "curve"], sort=False):
        published = {point[2]: value for point, value in published_by_point.items() if point[:2] == (run, curve)}
        rows.append(
            {"run": run, "curve": curve}
            | _summarise_trend(curve_rows["iteration"].to_numpy(), curve_rows["mean"].to_numpy())
            | {
                f"printed_{name}": value
                for name, value in _summarise_trend(list(published), list(published.values())).items()
            }
        )
    return pd.DataFrame(rows)


def _summarise_trend(positions: Any, values: Any) -> dict[str, float]:
    from scipy.stats import kendalltau

    means = np.asarray(values, np.float64)
    if not len(means):
        return dict.fromkeys(("first", "last", "lowest", "highest", "tau"), math.nan)
    tau = float(kendalltau(positions, means).statistic) if len(set(means)) > 1 and len(means) > 2 else math.nan
    return {"first": means[0], "last": means[-1], "lowest": means.min(), "highest": means.max(), "tau": tau}


@dataclass(frozen=True)
class Mixing:
    """Results of question 2: accuracy as a function of the fraction of robust images.

    Attributes:
        curves: one row per `network`, `curve` and `alpha`: `n` seeds, `mean`, `low`, `high`, `min`, `max`,
            `printed`, `difference`.
        trends: one row per network and curve: the least-squares `slope` of accuracy over alpha, as a mean over seeds
            with its interval `low` to `high`; the number `steps` of steps between neighbouring alphas, and the number
            `fall` of steps where the accuracy decreases; and the same numbers for the published curve
            (`printed_slope`, `printed_steps`, `printed_fall`).
    """

    curves: pd.DataFrame
    trends: pd.DataFrame


def measure_mixing(study: MixingStudy, exports: Exports) -> Mixing:
    """Compute accuracy for each fraction of robust images, for each network, attack and strength.

    Raises:
        ResultsError: a network has no results.
    """
    alpha_by_recipe = {recipe: alpha for alpha, recipe in study.alphas.items()}
    published_content = published_numbers()["mixing"]
    curves: list[dict[str, Any]] = []
    trends: list[dict[str, Any]] = []
    for label, architecture in study.networks.items():
        published_curves = published_content["networks"].get(label, {})
        for key in dict.fromkeys([CLEAN, *itertools.chain(*study.panels.values())]):
            frame = exports.accuracies(study.dataset, key, list(alpha_by_recipe), [architecture])
            frame = frame[frame["length"] == study.epochs].assign(alpha=frame["recipe"].map(alpha_by_recipe))
            for strength, rows in frame.groupby("strength", sort=True):
                if (key != CLEAN) and strength == CLEAN_STRENGTH and exports.strengths(study.dataset, key) != (0.0,):
                    continue  # skip strength 0 of attacks, because clean accuracy has its own curve
                curve = curve_name(key, float(str(strength)))
                row_key = {"network": label, "curve": curve}
                published_by_alpha = {
                    round(alpha, 6): value / 100
                    for alpha, value in zip(published_content["alphas"], published_curves.get(curve, ()), strict=False)
                }
                accuracies_by_seed = rows.pivot_table(index="seed", columns="alpha", values="accuracy")
                curves += [
                    {**row_key, "alpha": alpha, **summarise_runs(accuracies_by_seed[alpha].dropna().to_numpy())}
                    | {"printed": published_by_alpha.get(round(float(str(alpha)), 6), math.nan)}
                    for alpha in accuracies_by_seed.columns
                ]
                trends.append(
                    row_key | _mixing_trend(accuracies_by_seed.dropna()) | _published_trend(published_by_alpha)
                )
    return Mixing(_add_differences(pd.DataFrame(curves)), pd.DataFrame(trends))


def _mixing_trend(accuracies_by_seed: pd.DataFrame) -> dict[str, float]:
    alphas = accuracies_by_seed.columns.to_numpy(np.float64)
    slope, low, high = (
        trend_estimate(alphas, accuracies_by_seed.to_numpy()) if len(accuracies_by_seed) else (math.nan,) * 3
    )
    return {"slope": slope, "low": low, "high": high} | _count_decreases(accuracies_by_seed.mean().to_numpy())


def _published_trend(published_by_alpha: Mapping[float, float]) -> dict[str, float]:
    alphas, values = np.array(list(published_by_alpha)), np.array(list(published_by_alpha.values()))
    slope = trend_estimate(alphas, values[None])[0] if len(published_by_alpha) > 1 else math.nan
    decreases = _count_decreases(values)
    return {"printed_slope": slope, "printed_steps": decreases["steps"], "printed_fall": decreases["fall"]}


def _count_decreases(values: NDArray[np.float64]) -> dict[str, float]:
    changes = np.diff(values)
    return {"steps": len(changes), "fall": int((changes < 0).sum())}


@dataclass(frozen=True)
class Equivariance:
    """Results of question 3: accuracy of equivariant networks under spatial attacks.

    Attributes:
        best: Table 1, one row per `attack`, `network` and `setting`. A candidate is a depth and a learning rate. The
            candidate that is best on the validation images has the accuracy `mean` on the test images, with its
            interval `low` to `high`. The candidate that is best on the test images themselves, as the paper selected
            it, has the accuracy `on_test`; `selection` is `on_test` minus `mean`. `chosen` and `chosen_on_test` name
            the two candidates (architecture, recipe); `candidates` is the number of candidates. `difference` is
            `on_test` minus the published number `printed`.
        depths: the columns of `best` for each architecture, with only learning rates as candidates, as in the paper's
            appendix.
        candidates: accuracy of every candidate on all images: mean over seeds and its interval.
        n_validation: number of validation images.
        n_images: number of validation and test images together.
    """

    best: pd.DataFrame
    depths: pd.DataFrame
    candidates: pd.DataFrame
    n_validation: int
    n_images: int


class _Candidate(NamedTuple):
    """Outcomes of one architecture and recipe; `is_correct` is (seeds, images)."""

    name: str
    architecture: str
    recipe: str
    is_correct: NDArray[np.bool_]


def published_equivariance() -> pd.DataFrame:
    """Return the published Table 1 as fractions: columns `attack`, `network`, `setting` and `on_test`."""
    content = published_numbers()["equivariance"]
    return pd.DataFrame(
        {"attack": attack, "network": network, "setting": setting, "on_test": value / 100}
        for network, by_attack in content["best"].items()
        for attack, values in by_attack.items()
        for setting, value in zip(content["settings"], values, strict=True)
    )


def count_directions(best: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Count the comparisons that have the direction of the paper's findings.

    Equal accuracies do not count as having this direction. Settings are D (training on the original images) and D_R
    (training on robust images), both without rotations, and D* and D_R* (with rotations).

    Args:
        best: columns `attack`, `network`, `setting` and `on_test`, as in `Equivariance.best`.

    Returns:
        (comparisons with this direction, all comparisons) for three findings: `robust`, D_R below D and D_R* below D*;
        `rotations`, D* above D and D_R* above D_R under attack; `equivariant`, a network other than a plain ResNet
        above each plain ResNet under attack, in the same setting.
    """
    rows = best.dropna(subset=["on_test"]).to_dict("records")
    accuracies = {(row["attack"], row["network"], row["setting"]): float(row["on_test"]) for row in rows}
    under_attack = [cell for cell in accuracies if cell[0] != CLEAN]
    resnets = sorted({network for _, network, _ in accuracies if network.startswith("ResNet")})
    natural_setting, rotated_setting = {"D_R": "D", "D_R*": "D*"}, {"D": "D*", "D_R": "D_R*"}
    # For each finding: pairs of table cells. According to the finding, the first cell is lower than the second.
    expected_orders = {
        "robust": [
            ((attack, network, setting), (attack, network, natural_setting[setting]))
            for attack, network, setting in accuracies
            if setting in natural_setting
        ],
        "rotations": [
            ((attack, network, setting), (attack, network, rotated_setting[setting]))
            for attack, network, setting in under_attack
            if setting in rotated_setting
        ],
        "equivariant": [
            ((attack, resnet, setting), (attack, network, setting))
            for attack, network, setting in under_attack
            if network not in resnets
            for resnet in resnets
        ],
    }
    counts = {}
    for finding, pairs in expected_orders.items():
        is_lower = [accuracies[low] < accuracies[high] for low, high in pairs if {low, high} <= accuracies.keys()]
        counts[finding] = sum(is_lower), len(is_lower)
    return counts


def measure_equivariance(study: EquivarianceStudy, exports: Exports) -> Equivariance:
    """Compute the accuracy of each network and setting, and the effect of selecting the best candidate.

    The images are split in half at random, into validation and test images.

    Raises:
        ResultsError: a candidate has no results, or per-image outcomes are missing.
    """
    published_content = published_numbers()["equivariance"]
    best: list[dict[str, Any]] = []
    depths: list[dict[str, Any]] = []
    all_candidates: list[dict[str, Any]] = []
    is_validation: NDArray[np.bool_] = np.zeros(0, bool)
    for attack in dict.fromkeys([CLEAN, *study.attacks]):
        for setting, recipes in study.settings.items():
            published_index = (
                published_content["settings"].index(setting) if setting in published_content["settings"] else None
            )
            for network, architectures in study.networks.items():
                row_key = {"attack": attack, "network": network, "setting": setting}
                candidates = [
                    _read_candidate(study, exports, attack, label, architectures[label], recipe)
                    for label in architectures
                    for recipe in recipes
                ]
                n_images = candidates[0].is_correct.shape[1]
                if len(is_validation) != n_images:
                    is_validation = _choose_half(n_images, study.selection_seed)
                best.append(
                    row_key
                    | _select_candidates(candidates, is_validation)
                    | _published_accuracy(published_content["best"], network, attack, published_index)
                )
                for label in architectures:
                    same_depth = [candidate for candidate in candidates if candidate.name == label]
                    published = _published_accuracy(published_content["by_depth"], label, attack, published_index)
                    depths.append(
                        row_key | {"architecture": label} | _select_candidates(same_depth, is_validation) | published
                    )
                all_candidates += [
                    row_key
                    | {"architecture": candidate.name, "recipe": candidate.recipe}
                    | summarise_runs(candidate.is_correct.mean(axis=1))
                    for candidate in candidates
                ]
    frames = []
    for rows in (best, depths):
        frame = pd.DataFrame(rows)
        frames.append(frame.assign(difference=frame["on_test"] - frame["printed"]))
    return Equivariance(
        frames[0], frames[1], pd.DataFrame(all_candidates), int(is_validation.sum()), len(is_validation)
    )


def _read_candidate(
    study: EquivarianceStudy, exports: Exports, attack: str, name: str, architecture: Any, recipe: str
) -> _Candidate:
    """Read a candidate's outcomes after the last epoch, at the attack's first strength."""
    strengths = exports.strengths(study.dataset, attack) or (CLEAN_STRENGTH,)
    outcomes = exports.outcomes(study.dataset, attack, strengths[0], [recipe], architecture)
    is_final = (outcomes.networks["length"] == study.epochs).to_numpy()
    is_correct = unpack_outcomes(outcomes.packed[is_final], outcomes.n_images)
    if not len(is_correct):
        raise exports.missing_results_error(
            study.dataset, attack, [f"{recipe} for {study.epochs} epochs"], [architecture]
        )
    return _Candidate(name, str(architecture), recipe, is_correct)


def _choose_half(n_images: int, seed: int) -> NDArray[np.bool_]:
    """Return a mask (N,) that is true for a random half of the images."""
    is_validation = np.zeros(n_images, bool)
    is_validation[np.random.default_rng(seed).permutation(n_images)[: n_images // 2]] = True
    return is_validation


def _select_candidates(candidates: Sequence[_Candidate], is_validation: NDArray[np.bool_]) -> dict[str, Any]:
    """Select the candidate with the best mean on each half of the images; in ties, the first candidate."""
    best_on_validation = max(candidates, key=lambda candidate: candidate.is_correct[:, is_validation].mean())
    best_on_test = max(candidates, key=lambda candidate: candidate.is_correct[:, ~is_validation].mean())
    summary = summarise_runs(best_on_validation.is_correct[:, ~is_validation].mean(axis=1))
    test_accuracy = float(best_on_test.is_correct[:, ~is_validation].mean())
    return summary | {
        "on_test": test_accuracy,
        "selection": test_accuracy - summary["mean"],
        "chosen": f"{best_on_validation.name} {best_on_validation.recipe}",
        "chosen_on_test": f"{best_on_test.name} {best_on_test.recipe}",
        "candidates": len(candidates),
    }


def _published_accuracy(table: Mapping[str, Any], name: str, attack: str, index: int | None) -> dict[str, float]:
    values = table.get(name, {}).get(attack)
    return {"printed": math.nan if values is None or index is None else values[index] / 100}
