"""Effects of images, task, pretraining and architecture on robustness R, from mixed models over initial weights.

Training runs of one architecture and seed start from the same weights in every group. R is therefore modelled as the
group's mean, plus an intercept of the initial weights, plus a residual. There is one model per network and epoch, since
architectures differ in their weights and variances. An effect over architectures combines their independent models.
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
"""Factor that differs between the groups of a comparison, by experiment."""

ALL_NETWORKS = "mean of all"
"""Name in the column `network` of an effect's mean over architectures."""


@dataclass(frozen=True)
class MixedEffects:
    """Mixed models of R.

    Attributes:
        variances: one row per model: `network`, `epoch`, `n` training runs, `n_seeds`, standard deviations `seed_sd` of
            the initial weights and `residual_sd`, and `seed_share`, the initial weights' fraction of the variance, with
            its interval `share_low` to `share_high`.
        effects: one row per effect: `factor`, `experiment` and `claim` (see `studies.comparisons`), `network`, `epoch`
            (NaN for effects over architectures, which use the last epoch of each), `estimate`, `error`, `degrees`,
            `low`, `high`, `p` and `p_holm` (over all rows). NaN if there are too few training runs for a model.
    """

    variances: pd.DataFrame
    effects: pd.DataFrame


class _Model(NamedTuple):
    """The model of one network at one epoch; coefficients are the means of its groups."""

    groups: tuple[str, ...]
    fitted: RandomIntercept

    def mean_of(self, groups: Sequence[str]) -> NDArray[np.float64]:
        """Return weights of the coefficients that give the mean over `groups`."""
        return np.array([(group in groups) / len(groups) for group in self.groups])

    def compare(self, family: Family) -> ContrastEstimate:
        return self.fitted.estimate(self.mean_of([family.first]) - self.mean_of([family.second]))


def fit_mixed_effects(models: pd.DataFrame) -> MixedEffects:
    """Fit a model per network and epoch, and estimate every effect that its groups allow.

    Args:
        models: one row per trained network: `network`, `group`, `epoch`, `seed` and `r`; rows without R are left out.
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
    columns = ["factor", "experiment", "claim", "network", "epoch", *_ESTIMATE_COLUMNS.values()]
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
    """Return the comparisons whose groups all models have."""
    shared = set.intersection(*(set(model.groups) for model in models))
    return [family for family in FAMILIES if {family.first, family.second} <= shared]


def _across_architectures(models: Mapping[str, _Model]) -> list[dict[str, Any]]:
    """Estimate each effect's mean over architectures, and differences between architectures in their groups' mean."""
    all_models = list(models.values())
    rows = []
    for family in _families(all_models):
        mean = combine_estimates(
            [model.compare(family) for model in all_models], np.full(len(all_models), 1 / len(all_models))
        )
        rows.append(_record(FACTORS[family.experiment], family, ALL_NETWORKS, np.nan, mean))
    shared = [group for group in all_models[0].groups if all(group in model.groups for model in all_models)]
    for first, second in itertools.combinations(models, 2) if shared else ():
        means = [models[name].fitted.estimate(models[name].mean_of(shared)) for name in (first, second)]
        network = f"{first} against {second}"
        rows.append(_record("architecture", None, network, np.nan, combine_estimates(means, [1, -1])))
    return rows


_ESTIMATE_COLUMNS = {
    "value": "estimate",
    "error": "error",
    "degrees": "degrees",
    "low": "low",
    "high": "high",
    "p_value": "p",
}
"""Columns of effects by the fields of `ContrastEstimate`."""


def _record(
    factor: str, family: Family | None, network: str, epoch: float, estimate: ContrastEstimate
) -> dict[str, Any]:
    experiment, claim = ("", "mean of groups") if family is None else (family.experiment, family.claim)
    names = {"factor": factor, "experiment": experiment, "claim": claim, "network": network, "epoch": epoch}
    return names | {column: getattr(estimate, field) for field, column in _ESTIMATE_COLUMNS.items()}


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
