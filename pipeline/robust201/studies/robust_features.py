"""Robust features, spatial against Lp robustness, equivariant networks: three questions, with the printed numbers.

Printed numbers are of single runs, as fractions here. Every mean of ours is over training seeds, with Student's
interval over them.

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
"""What the name of a curve of attack success begins with; others are accuracies."""


@cache
def printed_numbers() -> dict[str, Any]:
    """Content of the file of printed numbers, in percent."""
    content: dict[str, Any] = json.loads(_PUBLISHED.read_text())
    return content


def curve_name(key: str, strength: float) -> str:
    """Name what is evaluated, as ``clean``, ``rot30`` or ``pgd_l2:0.25``."""
    return key if strength == CLEAN_STRENGTH else f"{key}:{strength:g}"


def summarise_runs(values: Sequence[float] | NDArray[np.float64]) -> dict[str, Any]:
    """Mean over seeds with its 95% interval and the range of the seeds: `n`, `mean`, `low`, `high`, `min`, `max`."""
    mean, low, high = mean_intervals(values)
    summary = {"n": len(values), "mean": float(mean), "low": float(low), "high": float(high)}
    return summary | {"min": float(np.min(values)), "max": float(np.max(values))}


def _beside(frame: pd.DataFrame) -> pd.DataFrame:
    printed = frame["printed"].astype(float)
    return frame.assign(printed=printed, difference=frame["mean"] - printed)


@dataclass(frozen=True)
class Dynamics:
    """Question 1.

    Attributes:
        curves: one row per `run`, `curve` and `iteration`: `n` seeds, their `mean`, its interval `low` to `high`, their
            range `min` to `max`, the `printed` number at `printed_iteration`, which is the same or at the same share of
            the training, and the `difference`.
        trends: one row per run and curve: `first`, `last`, `lowest` and `highest` mean over the snapshots, and
            Kendall's `tau` between the mean and the iteration, of ours and of the whole printed curve (`printed_…`).
        n_images: images attacked.
    """

    curves: pd.DataFrame
    trends: pd.DataFrame
    n_images: int


def measure_dynamics(study: DynamicsStudy, exports: Exports) -> Dynamics:
    """Compute natural accuracy and attack success over the snapshots of each run.

    Attack success is the number of originally correct images that become wrong over that of originally correct images,
    both summed over all images before they are divided.

    Raises:
        ResultsError: a run has no results, or outcomes by image are missing.
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
                place = (run, curve, round(iteration * study.iterations_per_printed))
                by_iteration[place], printed_at[place] = value / 100, iteration
    frame = pd.DataFrame(rows)
    places = list(zip(frame["run"], frame["curve"], frame["iteration"], strict=True))
    frame = frame.assign(
        printed_iteration=pd.array([printed_at.get(place) for place in places], dtype="Int64"),
        printed=[by_iteration.get(place, math.nan) for place in places],
    )
    return Dynamics(_beside(frame), _dynamic_trends(frame, by_iteration), n_images)


def _over_seeds(frame: pd.DataFrame, run: str, curve: str) -> list[dict[str, Any]]:
    return [
        {"run": run, "curve": curve, "iteration": int(float(str(length)))} | summarise_runs(rows["value"].to_numpy())
        for length, rows in frame.groupby("length", sort=True)
    ]


def _dynamic_trends(frame: pd.DataFrame, printed: Mapping[tuple[str, str, int], float]) -> pd.DataFrame:
    rows = []
    for (run, curve), held in frame.groupby(["run", "curve"], sort=False):
        theirs = {place[2]: value for place, value in printed.items() if place[:2] == (run, curve)}
        rows.append(
            {"run": run, "curve": curve}
            | _trend(held["iteration"].to_numpy(), held["mean"].to_numpy())
            | {f"printed_{name}": value for name, value in _trend(list(theirs), list(theirs.values())).items()}
        )
    return pd.DataFrame(rows)


def _trend(places: Any, values: Any) -> dict[str, float]:
    from scipy.stats import kendalltau

    held = np.asarray(values, np.float64)
    if not len(held):
        return dict.fromkeys(("first", "last", "lowest", "highest", "tau"), math.nan)
    tau = float(kendalltau(places, held).statistic) if len(set(held)) > 1 and len(held) > 2 else math.nan
    return {"first": held[0], "last": held[-1], "lowest": held.min(), "highest": held.max(), "tau": tau}


@dataclass(frozen=True)
class Mixing:
    """Question 2.

    Attributes:
        curves: one row per `network`, `curve` and `alpha`: `n` seeds, `mean`, `low`, `high`, `min`, `max`,
            `printed`, `difference`.
        trends: one row per network and curve: the mean over seeds of the least-squares `slope` of accuracy over alpha,
            with its interval `low` to `high`, the number of `steps` between neighbouring alphas and how many of them
            `fall`; and `printed_slope`, `printed_steps` and `printed_fall` of the printed curve.
    """

    curves: pd.DataFrame
    trends: pd.DataFrame


def measure_mixing(study: MixingStudy, exports: Exports) -> Mixing:
    """Compute accuracy over the share of robust images, by network, attack and strength.

    Raises:
        ResultsError: a network has no results.
    """
    by_recipe = {recipe: alpha for alpha, recipe in study.alphas.items()}
    printed = printed_numbers()["mixing"]
    curves: list[dict[str, Any]] = []
    trends: list[dict[str, Any]] = []
    for label, architecture in study.networks.items():
        theirs = printed["networks"].get(label, {})
        for key in dict.fromkeys([CLEAN, *itertools.chain(*study.panels.values())]):
            frame = exports.accuracies(study.dataset, key, list(by_recipe), [architecture])
            frame = frame[frame["length"] == study.epochs].assign(alpha=frame["recipe"].map(by_recipe))
            for strength, rows in frame.groupby("strength", sort=True):
                if (key != CLEAN) and strength == CLEAN_STRENGTH and exports.strengths(study.dataset, key) != (0.0,):
                    continue  # an attack's curve begins with the clean accuracy, which has a curve of its own
                curve = curve_name(key, float(str(strength)))
                names = {"network": label, "curve": curve}
                beside = {
                    round(alpha, 6): value / 100
                    for alpha, value in zip(printed["alphas"], theirs.get(curve, ()), strict=False)
                }
                wide = rows.pivot_table(index="seed", columns="alpha", values="accuracy")
                curves += [
                    {**names, "alpha": alpha, **summarise_runs(wide[alpha].dropna().to_numpy())}
                    | {"printed": beside.get(round(float(str(alpha)), 6), math.nan)}
                    for alpha in wide.columns
                ]
                trends.append(names | _mixing_trend(wide.dropna()) | _printed_trend(beside))
    return Mixing(_beside(pd.DataFrame(curves)), pd.DataFrame(trends))


def _mixing_trend(wide: pd.DataFrame) -> dict[str, float]:
    alphas = wide.columns.to_numpy(np.float64)
    slope, low, high = trend_estimate(alphas, wide.to_numpy()) if len(wide) else (math.nan,) * 3
    return {"slope": slope, "low": low, "high": high} | _count_falls(wide.mean().to_numpy())


def _printed_trend(beside: Mapping[float, float]) -> dict[str, float]:
    alphas, values = np.array(list(beside)), np.array(list(beside.values()))
    slope = trend_estimate(alphas, values[None])[0] if len(beside) > 1 else math.nan
    counts = _count_falls(values)
    return {"printed_slope": slope, "printed_steps": counts["steps"], "printed_fall": counts["fall"]}


def _count_falls(values: NDArray[np.float64]) -> dict[str, float]:
    changes = np.diff(values)
    return {"steps": len(changes), "fall": int((changes < 0).sum())}


@dataclass(frozen=True)
class Equivariance:
    """Question 3.

    Attributes:
        best: Table 1: one row per `attack`, `network` and `setting`. Of the candidates (depths and learning rates) the
            one is taken that is best on the validation images; `mean`, `low` and `high` are its accuracy on the test
            images. `on_test` is the accuracy of the candidate that is best on the test images themselves, as in the
            original, and `selection` by how much that is higher. `chosen` and `chosen_on_test` name the candidates
            (architecture, recipe); `candidates` counts them. With `printed` and `difference` (of `on_test`, which is
            chosen as the printed numbers were).
        depths: the same by architecture, candidates being learning rates alone; printed in the appendix.
        candidates: every candidate's accuracy on all images, mean over seeds with its interval.
        n_validation: images that choose; the others are the test images.
        n_images: all.
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
    """Compute the accuracy of each network and setting, and what choosing the best candidate adds to it.

    The images are divided at random: half of them choose, half are the test images.

    Raises:
        ResultsError: a candidate has no results, or outcomes by image are missing.
    """
    printed = printed_numbers()["equivariance"]
    best: list[dict[str, Any]] = []
    depths: list[dict[str, Any]] = []
    every: list[dict[str, Any]] = []
    validation: NDArray[np.bool_] = np.zeros(0, bool)
    for attack in dict.fromkeys([CLEAN, *study.attacks]):
        for setting, recipes in study.settings.items():
            place = printed["settings"].index(setting) if setting in printed["settings"] else None
            for network, architectures in study.networks.items():
                names = {"attack": attack, "network": network, "setting": setting}
                found = [
                    _candidate(study, exports, attack, label, architectures[label], recipe)
                    for label in architectures
                    for recipe in recipes
                ]
                n_images = found[0].right.shape[1]
                if len(validation) != n_images:
                    validation = _choose_half(n_images, study.selection_seed)
                best.append(names | _select(found, validation) | _printed(printed["best"], network, attack, place))
                for label in architectures:
                    own = [one for one in found if one.name == label]
                    beside = _printed(printed["by_depth"], label, attack, place)
                    depths.append(names | {"architecture": label} | _select(own, validation) | beside)
                every += [
                    names | {"architecture": one.name, "recipe": one.recipe} | summarise_runs(one.right.mean(axis=1))
                    for one in found
                ]
    frames = []
    for rows in (best, depths):
        frame = pd.DataFrame(rows)
        frames.append(frame.assign(difference=frame["on_test"] - frame["printed"]))
    return Equivariance(frames[0], frames[1], pd.DataFrame(every), int(validation.sum()), len(validation))


def _candidate(
    study: EquivarianceStudy, exports: Exports, attack: str, name: str, architecture: Any, recipe: str
) -> _Candidate:
    strengths = exports.strengths(study.dataset, attack) or (CLEAN_STRENGTH,)
    found = exports.outcomes(study.dataset, attack, strengths[0], [recipe], architecture)
    chosen = (found.networks["length"] == study.epochs).to_numpy()
    right = unpack_outcomes(found.packed[chosen], found.n_images)
    if not len(right):
        raise exports.absence(study.dataset, attack, [f"{recipe} for {study.epochs} epochs"], [architecture])
    return _Candidate(name, str(architecture), recipe, right)


def _choose_half(n_images: int, seed: int) -> NDArray[np.bool_]:
    chosen = np.zeros(n_images, bool)
    chosen[np.random.default_rng(seed).permutation(n_images)[: n_images // 2]] = True
    return chosen


def _select(found: Sequence[_Candidate], validation: NDArray[np.bool_]) -> dict[str, Any]:
    """Choose by the mean over seeds on either half of the images, the first of equal ones."""
    chosen = max(found, key=lambda one: one.right[:, validation].mean())
    on_test = max(found, key=lambda one: one.right[:, ~validation].mean())
    held = summarise_runs(chosen.right[:, ~validation].mean(axis=1))
    highest = float(on_test.right[:, ~validation].mean())
    return held | {
        "on_test": highest,
        "selection": highest - held["mean"],
        "chosen": f"{chosen.name} {chosen.recipe}",
        "chosen_on_test": f"{on_test.name} {on_test.recipe}",
        "candidates": len(found),
    }


def _printed(table: Mapping[str, Any], name: str, attack: str, place: int | None) -> dict[str, float]:
    values = table.get(name, {}).get(attack)
    return {"printed": math.nan if values is None or place is None else values[place] / 100}
