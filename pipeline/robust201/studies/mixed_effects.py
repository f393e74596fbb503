"""Effects of images, task, pretraining and architecture on the robustness score R, from mixed models.

`studies.image_distribution` computes R.

Training runs with the same architecture and seed start from the same weights in all groups. R is therefore modelled as
the mean of the group, plus a random intercept per set of initial weights, plus a residual. There is one model per
network and epoch, because architectures differ in their weights and variances. To average an effect over architectures,
or to compare architectures, the estimates of these independent models are combined.
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
from robust201.studies.comparisons import COMPARISONS, Comparison

FACTORS = {
    "E1": "images and task",
    "E2a": "task",
    "E2b": "images",
    "E3a": "pretraining",
    "E3b": "pretraining",
    "E3c": "images and task",
}
"""For each experiment, the factor in which its two groups differ."""

ALL_NETWORKS = "mean of all"
"""Value of the column `network` for the mean of an effect over architectures."""


@dataclass(frozen=True)
class MixedEffects:
    """Mixed models of R.

    Attributes:
        variances: one row per model: `network`, `epoch`, number `n` of training runs, `n_seeds`, the standard
            deviations `seed_sd` (initial weights) and `residual_sd`, and the fraction `seed_share` of the variance that
            is due to initial weights, with its interval `share_low` to `share_high`.
        effects: one row per effect: `factor`, `experiment` and `claim` (see `studies.comparisons`), `network`, `epoch`
            (NaN for means and differences over architectures, which use the last epoch of each architecture),
            `estimate`, its standard `error`, `degrees` (of freedom), its 95% interval `low` to `high`, `p`, and
            `p_holm` (corrected over all rows). Numbers are NaN if there are too few training runs for a model.
    """

    variances: pd.DataFrame
    effects: pd.DataFrame


class _Model(NamedTuple):
    """The model of one network at one epoch; its coefficients are the means of the groups."""

    groups: tuple[str, ...]
    random_intercept: RandomIntercept

    def mean_weights(self, groups: Sequence[str]) -> NDArray[np.float64]:
        """Return the weight of each coefficient in the mean over `groups`."""
        return np.array([(group in groups) / len(groups) for group in self.groups])

    def compare(self, comparison: Comparison) -> ContrastEstimate:
        return self.random_intercept.estimate(
            self.mean_weights([comparison.first]) - self.mean_weights([comparison.second])
        )


def fit_mixed_effects(trained_networks: pd.DataFrame) -> MixedEffects:
    """Fit one model per network and epoch, and estimate all effects between groups that the model contains.

    Args:
        trained_networks: one row per trained network: `network`, `group`, `epoch`, `seed` and `r`. Rows without R are
            ignored.
    """
    fitted_models: dict[tuple[str, int], _Model] = {}
    for network_and_epoch, rows in trained_networks[trained_networks["r"].notna()].groupby(
        ["network", "epoch"], sort=False
    ):
        fitted_models[str(network_and_epoch[0]), int(str(network_and_epoch[1]))] = _fit_model(rows)
    effects = [
        _effect_row(FACTORS[comparison.experiment], comparison, network, epoch, model.compare(comparison))
        for (network, epoch), model in fitted_models.items()
        for comparison in _shared_comparisons([model])
    ]
    last_models = {
        network: fitted_models[network, max(epoch for name, epoch in fitted_models if name == network)]
        for network, _ in fitted_models
    }
    effects += _effects_over_architectures(last_models) if len(last_models) > 1 else []
    columns = ["factor", "experiment", "claim", "network", "epoch", *_ESTIMATE_COLUMNS.values()]
    frame = pd.DataFrame(effects, columns=columns)
    has_p_value = frame["p"].notna()
    frame["p_holm"] = np.where(has_p_value, holm_adjust(frame["p"].where(has_p_value, 1.0)), np.nan)
    variances = [
        _variance_row(network, epoch, model.random_intercept) for (network, epoch), model in fitted_models.items()
    ]
    return MixedEffects(pd.DataFrame(variances), frame)


def _fit_model(rows: pd.DataFrame) -> _Model:
    groups = tuple(dict.fromkeys(rows["group"]))
    design = rows["group"].to_numpy()[:, None] == np.array(groups)
    return _Model(groups, fit_random_intercept(design, rows["r"], rows["seed"]))


def _shared_comparisons(models: Sequence[_Model]) -> list[Comparison]:
    """Return the comparisons whose two groups occur in all models."""
    shared_groups = set.intersection(*(set(model.groups) for model in models))
    return [comparison for comparison in COMPARISONS if {comparison.first, comparison.second} <= shared_groups]


def _effects_over_architectures(models: Mapping[str, _Model]) -> list[dict[str, Any]]:
    """Estimate the mean of each effect over architectures, and the differences between architectures."""
    all_models = list(models.values())
    rows = []
    for comparison in _shared_comparisons(all_models):
        mean = combine_estimates(
            [model.compare(comparison) for model in all_models], np.full(len(all_models), 1 / len(all_models))
        )
        rows.append(_effect_row(FACTORS[comparison.experiment], comparison, ALL_NETWORKS, np.nan, mean))
    shared_groups = [group for group in all_models[0].groups if all(group in model.groups for model in all_models)]
    for first, second in itertools.combinations(models, 2) if shared_groups else ():
        means = [
            model.random_intercept.estimate(model.mean_weights(shared_groups))
            for model in (models[first], models[second])
        ]
        network = f"{first} against {second}"
        rows.append(_effect_row("architecture", None, network, np.nan, combine_estimates(means, [1, -1])))
    return rows


_ESTIMATE_COLUMNS = {
    "value": "estimate",
    "standard_error": "error",
    "df": "degrees",
    "low": "low",
    "high": "high",
    "p_value": "p",
}
"""Column of `MixedEffects.effects` for each field of `ContrastEstimate`."""


def _effect_row(
    factor: str, comparison: Comparison | None, network: str, epoch: float, estimate: ContrastEstimate
) -> dict[str, Any]:
    experiment, claim = ("", "mean of groups") if comparison is None else (comparison.experiment, comparison.claim)
    row_key = {"factor": factor, "experiment": experiment, "claim": claim, "network": network, "epoch": epoch}
    return row_key | {column: getattr(estimate, field) for field, column in _ESTIMATE_COLUMNS.items()}


def _variance_row(network: str, epoch: int, fitted: RandomIntercept) -> dict[str, Any]:
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
