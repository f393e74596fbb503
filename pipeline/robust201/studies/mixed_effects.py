"""Effects of images, task, pretraining and architecture on robustness R, by mixed models over initial weights.

Trainings of one architecture and seed start from the same weights in every group. So R is modelled as the mean of its
group, plus an intercept of the initial weights, plus a residual: by network and epoch, since other architectures have
other weights and other variances. An effect over architectures combines their independent models.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.statistics.mixed_model import ContrastEstimate, RandomIntercept, combine_estimates, fit_random_intercept
from robust201.statistics.significance import holm_adjust
from robust201.studies.comparisons import FAMILIES, Family

FACTORS = {
    "E1": "images and task",
    "E2a": "task",
    "E2b": "images",
    "E3a": "pretraining",
    "E3b": "pretraining",
    "E3c": "images and task",
}
"""What differs between the groups of a comparison, by experiment."""

ALL_NETWORKS = "mean of all"
"""In the place of a network: the mean of an effect over architectures."""


@dataclass(frozen=True)
class MixedEffects:
    """Mixed models of R.

    Attributes:
        variances: one row per model: `network`, `epoch`, `n` trainings, `n_seeds`, standard deviations `seed_sd` of the
            initial weights and `residual_sd`, and `seed_share`, the share of the variance that is due to initial
            weights, with its interval `share_low` to `share_high`.
        effects: one row per effect: `factor`, `experiment` and `claim` (see `studies.comparisons`), `network`, `epoch`
            (NaN for effects over architectures, which are of the last epoch of each), `estimate`, `error`, `degrees`,
            `low`, `high`, `p` and `p_holm` (over all rows). NaN where the trainings do not suffice for a model.
    """

    variances: pd.DataFrame
    effects: pd.DataFrame


class _Model(NamedTuple):
    """The model of one network at one epoch; coefficients are the means of its groups."""

    groups: tuple[str, ...]
    fitted: RandomIntercept

    def mean_of(self, groups: Sequence[str]) -> NDArray[np.float64]:
        """Weights of the coefficients that give the mean of some groups."""
        return np.array([(group in groups) / len(groups) for group in self.groups])

    def compare(self, family: Family) -> ContrastEstimate:
        return self.fitted.estimate(self.mean_of([family.first]) - self.mean_of([family.second]))


def fit_mixed_effects(models: pd.DataFrame) -> MixedEffects:
    """Fit a model per network and epoch, and estimate every effect that its groups allow.

    Args:
        models: one row per trained network: `network`, `group`, `epoch`, `seed` and `r`; without R, it is left out.
    """
    fitted: dict[tuple[str, int], _Model] = {}
    for names, rows in models[models["r"].notna()].groupby(["network", "epoch"], sort=False):
        fitted[str(names[0]), int(str(names[1]))] = _fit(rows)
    effects = [
        _record(FACTORS[family.experiment], family, network, epoch, model.compare(family))
        for (network, epoch), model in fitted.items()
        for family in _families([model])
    ]
    last = {network: fitted[network, max(e for name, e in fitted if name == network)] for network, _ in fitted}
    effects += _across_architectures(last) if len(last) > 1 else []
    columns = ["factor", "experiment", "claim", "network", "epoch", *_ESTIMATED.values()]
    frame = pd.DataFrame(effects, columns=columns)
    known = frame["p"].notna()
    frame["p_holm"] = np.where(known, holm_adjust(frame["p"].where(known, 1.0)), np.nan)
    variances = [_describe(network, epoch, model.fitted) for (network, epoch), model in fitted.items()]
    return MixedEffects(pd.DataFrame(variances), frame)


def _fit(rows: pd.DataFrame) -> _Model:
    groups = tuple(dict.fromkeys(rows["group"]))
    design = rows["group"].to_numpy()[:, None] == np.array(groups)
    return _Model(groups, fit_random_intercept(design, rows["r"], rows["seed"]))


def _families(models: Sequence[_Model]) -> list[Family]:
    """List the comparisons whose groups all models have."""
    shared = set.intersection(*(set(model.groups) for model in models))
    return [family for family in FAMILIES if {family.first, family.second} <= shared]


def _across_architectures(models: Mapping[str, _Model]) -> list[dict[str, Any]]:
    """Estimate the mean of each effect over architectures, and how these differ in the mean of their groups."""
    several = list(models.values())
    rows = []
    for family in _families(several):
        mean = combine_estimates([model.compare(family) for model in several], np.full(len(several), 1 / len(several)))
        rows.append(_record(FACTORS[family.experiment], family, ALL_NETWORKS, np.nan, mean))
    shared = [group for group in several[0].groups if all(group in model.groups for model in several)]
    for first, second in itertools.combinations(models, 2) if shared else ():
        means = [models[name].fitted.estimate(models[name].mean_of(shared)) for name in (first, second)]
        network = f"{first} against {second}"
        rows.append(_record("architecture", None, network, np.nan, combine_estimates(means, [1, -1])))
    return rows


_ESTIMATED = {
    "value": "estimate",
    "error": "error",
    "degrees": "degrees",
    "low": "low",
    "high": "high",
    "p_value": "p",
}
"""Columns by the fields of `ContrastEstimate`."""


def _record(factor: str, family: Family | None, network: str, epoch: float, found: ContrastEstimate) -> dict[str, Any]:
    experiment, claim = ("", "mean of groups") if family is None else (family.experiment, family.claim)
    names = {"factor": factor, "experiment": experiment, "claim": claim, "network": network, "epoch": epoch}
    return names | {column: getattr(found, field) for field, column in _ESTIMATED.items()}


def _describe(network: str, epoch: int, fitted: RandomIntercept) -> dict[str, Any]:
    return {
        "network": network,
        "epoch": epoch,
        "n": fitted.n,
        "n_seeds": fitted.n_clusters,
        "seed_sd": np.sqrt(fitted.cluster_variance),
        "residual_sd": np.sqrt(fitted.residual_variance),
        "seed_share": fitted.share,
        "share_low": fitted.share_low,
        "share_high": fitted.share_high,
    }
