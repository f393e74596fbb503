"""Studies of robust features, of spatial against Lp robustness, and of equivariant networks, with published numbers.

Published numbers come from single runs and are fractions here. Our means are over training seeds, with Student's
intervals over seeds.

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

SUCCESS = "asr "
"""Prefix of the names of attack success curves; other curves are accuracies."""


@cache
def printed_numbers() -> dict[str, Any]:
    """Return the published numbers, in percent."""
    content: dict[str, Any] = json.loads(_PUBLISHED.read_text())
    return content


def curve_name(key: str, strength: float) -> str:
    """Return a name for a key and strength, such as ``clean``, ``rot30`` or ``pgd_l2:0.25``."""
    return key if strength == CLEAN_STRENGTH else f"{key}:{strength:g}"


def summarise_runs(values: Sequence[float] | NDArray[np.float64]) -> dict[str, Any]:
    """Return the mean over seeds with its 95% interval and range: `n`, `mean`, `low`, `high`, `min`, `max`."""
    mean, low, high = mean_intervals(values)
    summary = {"n": len(values), "mean": float(mean), "low": float(low), "high": float(high)}
    return summary | {"min": float(np.min(values)), "max": float(np.max(values))}


def _with_differences(frame: pd.DataFrame) -> pd.DataFrame:
    printed = frame["printed"].astype(float)
    return frame.assign(printed=printed, difference=frame["mean"] - printed)


@dataclass(frozen=True)
class Dynamics:
    """Results of question 1.

    Attributes:
        curves: one row per `run`, `curve` and `iteration`: `n` seeds, their `mean`, its interval `low` to `high`, their
            range `min` to `max`, the published number `printed` at `printed_iteration` (the same iteration, or the same
            fraction of the training), and the `difference`.
        trends: one row per run and curve: `first`, `last`, `lowest` and `highest` mean over the snapshots, and
            Kendall's `tau` between mean and iteration, for our curve and for the whole published curve (`printed_…`).
        n_images: number of attacked images.
    """

    curves: pd.DataFrame
    trends: pd.DataFrame
    n_images: int


def measure_dynamics(study: DynamicsStudy, exports: Exports) -> Dynamics:
    """Compute natural accuracy and attack success over the snapshots of each run.

    Attack success is the fraction of originally correct images that become wrong; both counts are sums over all images
    before the division.

    Raises:
        ResultsError: a run has no results, or per-image outcomes are missing.
    """
    rows: list[dict[str, Any]] = []
    n_images = 0
    for run, recipe in study.runs.items():
        clean = exports.outcomes(study.dataset, CLEAN, CLEAN_STRENGTH, [recipe], study.architecture)
        n_images = clean.n_images
        accuracy = unpack_outcomes(clean.packed, n_images).mean(axis=1)
        rows += _over_seeds(clean.networks.assign(value=accuracy), run, CLEAN)
        for key in study.attacks:
            for strength in exports.strengths(study.dataset, key):
                attacked = exports.outcomes(study.dataset, key, strength, [recipe], study.architecture)
                both = clean.networks.reset_index().merge(
                    attacked.networks.reset_index(), on=["recipe", "length", "seed"], suffixes=("", "_attacked")
                )
                rates = attack_success_rates(clean.packed[both["index"]], attacked.packed[both["index_attacked"]])
                rows += _over_seeds(both.assign(value=rates), run, SUCCESS + curve_name(key, strength))
    printed = printed_numbers()["dynamics"]
    by_iteration: dict[tuple[str, str, int], float] = {}
    printed_at: dict[tuple[str, str, int], int] = {}
    for run, curves in printed["runs"].items():
        for curve, values in curves.items():
            for iteration, value in zip(printed["iterations"], values, strict=True):
                point = (run, curve, round(iteration * study.iterations_per_printed))
                by_iteration[point], printed_at[point] = value / 100, iteration
    frame = pd.DataFrame(rows)
    points = list(zip(frame["run"], frame["curve"], frame["iteration"], strict=True))
    frame = frame.assign(
        printed_iteration=pd.array([printed_at.get(point) for point in points], dtype="Int64"),
        printed=[by_iteration.get(point, math.nan) for point in points],
    )
    return Dynamics(_with_differences(frame), _dynamic_trends(frame, by_iteration), n_images)


def _over_seeds(frame: pd.DataFrame, run: str, curve: str) -> list[dict[str, Any]]:
    return [
        {"run": run, "curve": curve, "iteration": int(float(str(length)))} | summarise_runs(rows["value"].to_numpy())
        for length, rows in frame.groupby("length", sort=True)
    ]


def _dynamic_trends(frame: pd.DataFrame, printed: Mapping[tuple[str, str, int], float]) -> pd.DataFrame:
    rows = []
    for (run, curve), curve_rows in frame.groupby(["run", "curve"], sort=False):
        published = {point[2]: value for point, value in printed.items() if point[:2] == (run, curve)}
        rows.append(
            {"run": run, "curve": curve}
            | _trend(curve_rows["iteration"].to_numpy(), curve_rows["mean"].to_numpy())
            | {f"printed_{name}": value for name, value in _trend(list(published), list(published.values())).items()}
        )
    return pd.DataFrame(rows)


def _trend(positions: Any, values: Any) -> dict[str, float]:
    from scipy.stats import kendalltau

    numbers = np.asarray(values, np.float64)
    if not len(numbers):
        return dict.fromkeys(("first", "last", "lowest", "highest", "tau"), math.nan)
    tau = float(kendalltau(positions, numbers).statistic) if len(set(numbers)) > 1 and len(numbers) > 2 else math.nan
    return {"first": numbers[0], "last": numbers[-1], "lowest": numbers.min(), "highest": numbers.max(), "tau": tau}


@dataclass(frozen=True)
class Mixing:
    """Results of question 2.

    Attributes:
        curves: one row per `network`, `curve` and `alpha`: `n` seeds, `mean`, `low`, `high`, `min`, `max`,
            `printed`, `difference`.
        trends: one row per network and curve: the mean over seeds of the least-squares `slope` of accuracy over alpha,
            with its interval `low` to `high`, the number of `steps` between neighbouring alphas, and the number of them
            that `fall`; and `printed_slope`, `printed_steps` and `printed_fall` of the published curve.
    """

    curves: pd.DataFrame
    trends: pd.DataFrame


def measure_mixing(study: MixingStudy, exports: Exports) -> Mixing:
    """Compute accuracy over the fraction of robust images, by network, attack and strength.

    Raises:
        ResultsError: a network has no results.
    """
    by_recipe = {recipe: alpha for alpha, recipe in study.alphas.items()}
    printed = printed_numbers()["mixing"]
    curves: list[dict[str, Any]] = []
    trends: list[dict[str, Any]] = []
    for label, architecture in study.networks.items():
        published_curves = printed["networks"].get(label, {})
        for key in dict.fromkeys([CLEAN, *itertools.chain(*study.panels.values())]):
            frame = exports.accuracies(study.dataset, key, list(by_recipe), [architecture])
            frame = frame[frame["length"] == study.epochs].assign(alpha=frame["recipe"].map(by_recipe))
            for strength, rows in frame.groupby("strength", sort=True):
                if (key != CLEAN) and strength == CLEAN_STRENGTH and exports.strengths(study.dataset, key) != (0.0,):
                    continue  # skip the clean accuracy at the start of an attack's curve, which has its own curve
                curve = curve_name(key, float(str(strength)))
                names = {"network": label, "curve": curve}
                published = {
                    round(alpha, 6): value / 100
                    for alpha, value in zip(printed["alphas"], published_curves.get(curve, ()), strict=False)
                }
                wide = rows.pivot_table(index="seed", columns="alpha", values="accuracy")
                curves += [
                    {**names, "alpha": alpha, **summarise_runs(wide[alpha].dropna().to_numpy())}
                    | {"printed": published.get(round(float(str(alpha)), 6), math.nan)}
                    for alpha in wide.columns
                ]
                trends.append(names | _mixing_trend(wide.dropna()) | _printed_trend(published))
    return Mixing(_with_differences(pd.DataFrame(curves)), pd.DataFrame(trends))


def _mixing_trend(wide: pd.DataFrame) -> dict[str, float]:
    alphas = wide.columns.to_numpy(np.float64)
    slope, low, high = trend_estimate(alphas, wide.to_numpy()) if len(wide) else (math.nan,) * 3
    return {"slope": slope, "low": low, "high": high} | _count_falls(wide.mean().to_numpy())


def _printed_trend(published: Mapping[float, float]) -> dict[str, float]:
    alphas, values = np.array(list(published)), np.array(list(published.values()))
    slope = trend_estimate(alphas, values[None])[0] if len(published) > 1 else math.nan
    counts = _count_falls(values)
    return {"printed_slope": slope, "printed_steps": counts["steps"], "printed_fall": counts["fall"]}


def _count_falls(values: NDArray[np.float64]) -> dict[str, float]:
    changes = np.diff(values)
    return {"steps": len(changes), "fall": int((changes < 0).sum())}


@dataclass(frozen=True)
class Equivariance:
    """Results of question 3.

    Attributes:
        best: Table 1, one row per `attack`, `network` and `setting`. Among the candidates (depths and learning rates),
            the best on the validation images is selected; `mean`, `low` and `high` are its accuracy on the test images.
            `on_test` is the accuracy of the candidate that is best on the test images themselves, as selected in the
            original, and `selection` is the difference between the two. `chosen` and `chosen_on_test` name the
            candidates (architecture, recipe), and `candidates` is their number. `difference` is `on_test` minus the
            published number `printed`, since both are selected in the same way.
        depths: the same by architecture, with only learning rates as candidates; published in the appendix.
        candidates: every candidate's accuracy on all images, as a mean over seeds with its interval.
        n_validation: number of validation images; the others are the test images.
        n_images: number of all images.
    """

    best: pd.DataFrame
    depths: pd.DataFrame
    candidates: pd.DataFrame
    n_validation: int
    n_images: int


class _Candidate(NamedTuple):
    name: str
    architecture: str
    recipe: str
    right: NDArray[np.bool_]


def measure_equivariance(study: EquivarianceStudy, exports: Exports) -> Equivariance:
    """Compute the accuracy of each network and setting, and the effect of selecting the best candidate.

    The images are split in half at random, into validation and test images.

    Raises:
        ResultsError: a candidate has no results, or per-image outcomes are missing.
    """
    printed = printed_numbers()["equivariance"]
    best: list[dict[str, Any]] = []
    depths: list[dict[str, Any]] = []
    all_candidates: list[dict[str, Any]] = []
    validation: NDArray[np.bool_] = np.zeros(0, bool)
    for attack in dict.fromkeys([CLEAN, *study.attacks]):
        for setting, recipes in study.settings.items():
            index = printed["settings"].index(setting) if setting in printed["settings"] else None
            for network, architectures in study.networks.items():
                names = {"attack": attack, "network": network, "setting": setting}
                candidates = [
                    _candidate(study, exports, attack, label, architectures[label], recipe)
                    for label in architectures
                    for recipe in recipes
                ]
                n_images = candidates[0].right.shape[1]
                if len(validation) != n_images:
                    validation = _choose_half(n_images, study.selection_seed)
                best.append(names | _select(candidates, validation) | _printed(printed["best"], network, attack, index))
                for label in architectures:
                    same_depth = [candidate for candidate in candidates if candidate.name == label]
                    published = _printed(printed["by_depth"], label, attack, index)
                    depths.append(names | {"architecture": label} | _select(same_depth, validation) | published)
                all_candidates += [
                    names
                    | {"architecture": candidate.name, "recipe": candidate.recipe}
                    | summarise_runs(candidate.right.mean(axis=1))
                    for candidate in candidates
                ]
    frames = []
    for rows in (best, depths):
        frame = pd.DataFrame(rows)
        frames.append(frame.assign(difference=frame["on_test"] - frame["printed"]))
    return Equivariance(frames[0], frames[1], pd.DataFrame(all_candidates), int(validation.sum()), len(validation))


def _candidate(
    study: EquivarianceStudy, exports: Exports, attack: str, name: str, architecture: Any, recipe: str
) -> _Candidate:
    strengths = exports.strengths(study.dataset, attack) or (CLEAN_STRENGTH,)
    outcomes = exports.outcomes(study.dataset, attack, strengths[0], [recipe], architecture)
    is_final = (outcomes.networks["length"] == study.epochs).to_numpy()
    right = unpack_outcomes(outcomes.packed[is_final], outcomes.n_images)
    if not len(right):
        raise exports.absence(study.dataset, attack, [f"{recipe} for {study.epochs} epochs"], [architecture])
    return _Candidate(name, str(architecture), recipe, right)


def _choose_half(n_images: int, seed: int) -> NDArray[np.bool_]:
    is_validation = np.zeros(n_images, bool)
    is_validation[np.random.default_rng(seed).permutation(n_images)[: n_images // 2]] = True
    return is_validation


def _select(candidates: Sequence[_Candidate], validation: NDArray[np.bool_]) -> dict[str, Any]:
    """Select the best mean over seeds on either half of the images; ties go to the first candidate."""
    chosen = max(candidates, key=lambda candidate: candidate.right[:, validation].mean())
    on_test = max(candidates, key=lambda candidate: candidate.right[:, ~validation].mean())
    summary = summarise_runs(chosen.right[:, ~validation].mean(axis=1))
    highest = float(on_test.right[:, ~validation].mean())
    return summary | {
        "on_test": highest,
        "selection": highest - summary["mean"],
        "chosen": f"{chosen.name} {chosen.recipe}",
        "chosen_on_test": f"{on_test.name} {on_test.recipe}",
        "candidates": len(candidates),
    }


def _printed(table: Mapping[str, Any], name: str, attack: str, index: int | None) -> dict[str, float]:
    values = table.get(name, {}).get(attack)
    return {"printed": math.nan if values is None or index is None else values[index] / 100}
