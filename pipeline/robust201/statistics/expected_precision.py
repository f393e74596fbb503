"""Expected precision of estimates from a sample of images, computed before sampling.

The computation needs some networks whose outcomes on all images are known. These networks are divided into groups, and
each group is left out in turn. The model, the strata and the sample sizes (see `statistics.sampling`) are computed from
the other networks alone, which serve as the pilot: the networks that a sweep evaluates on all images. The residuals of
the predictions for the left-out networks then give the precision.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from robust201.statistics.intervals import NORMAL_QUANTILE
from robust201.statistics.sampling import (
    OutcomeModel,
    SampleDesign,
    allocate,
    design_variance,
    expected_half_widths,
    features,
    pilot_features,
    predict_pilots,
    stratify,
)

MIN_NETWORKS = 3
"""Minimum number of networks: two in the pilot and one left out. Kendall's tau needs four, with two left out."""

_N_FOLDS = 4
_EXTREME_MARGIN = 0.02
"""Accuracies within this distance of 0 or 1 are called extreme; they are ignored if there are other accuracies."""

_Floats = NDArray[np.float64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Fold:
    """T left-out networks, and predictions of their outcomes from a pilot of P other networks.

    Attributes:
        pilot: (P, S, N) outcomes of the pilot.
        pilot_predicted: (P, S, N) predictions of the pilot's outcomes, for strata and sample sizes.
        outcomes: (T, S, N) outcomes of the left-out networks.
        predicted: (T, S, N) predictions of these outcomes by a model fitted to the pilot.
    """

    pilot: _Bools
    pilot_predicted: _Floats
    outcomes: _Bools
    predicted: _Floats


def leave_out_folds(outcomes: ArrayLike, cheap_outcomes: ArrayLike) -> list[Fold]:
    """Leave each network out once, in up to four groups, and predict its outcomes.

    Args:
        outcomes: (A, S, N) bool, outcomes under one key (attack or corruption) at S strengths.
        cheap_outcomes: (A, C, N) bool, outcomes under keys that are cheap to evaluate and therefore known for every
            network, one row per key and strength; C may be 0.

    Raises:
        ValueError: there are fewer than three networks.
    """
    correct, cheap = np.asarray(outcomes, bool), np.asarray(cheap_outcomes, bool)
    n_networks = len(correct)
    if n_networks < MIN_NETWORKS:
        raise ValueError(f"expected at least {MIN_NETWORKS} networks, got {n_networks}")
    # Groups have at least two networks if possible, so that tau can compare pairs within a group.
    n_folds = n_networks if n_networks == MIN_NETWORKS else min(_N_FOLDS, n_networks // 2)
    fold_of_network = np.arange(n_networks) % n_folds
    return [_make_fold(correct, cheap, fold_of_network == fold_index) for fold_index in range(n_folds)]


def _make_fold(correct: _Bools, cheap: _Bools, is_left_out: _Bools) -> Fold:
    pilot, pilot_cheap = correct[~is_left_out], cheap[~is_left_out]
    network_features = pilot_features(pilot, pilot_cheap)
    model = OutcomeModel().fit(network_features, pilot)
    predicted = [model.predict(features(pilot, network_cheap, pilot_cheap)) for network_cheap in cheap[is_left_out]]
    return Fold(pilot, predict_pilots(model, network_features), correct[is_left_out], np.stack(predicted))


def sampled_precision(
    folds: Sequence[Fold], count: int, n_images: int, *, n_strata: int, name: str
) -> tuple[float, float]:
    """Return the median half-width of the 95% interval and the expected Kendall tau with the true ranking.

    Tau is the probability that the estimates of two networks are in the correct order, minus the probability that they
    are not, averaged over strengths and over pairs of networks that are left out together. Pairs of equal accuracies
    are ignored.

    Args:
        folds: see `leave_out_folds`.
        count: number of sampled images.
        n_images: number of images in the population; the N known images represent it, repeated or thinned out.
        n_strata: number of strata.
        name: name of the sample, such as dataset and key (see `stratify`).

    Returns:
        Half-width and tau; tau is NaN if no two networks can be compared.

    Raises:
        ValueError: the sample is too small for its strata, or larger than the population.
    """
    n_known = folds[0].outcomes.shape[2]
    known_images = np.arange(n_images) % n_known if n_images > n_known else np.arange(n_images) * n_known // n_images
    half_widths, accuracies, certainties = [], [], []
    for fold in folds:
        pilot, pilot_predicted, outcomes, predicted = (
            array[..., known_images] for array in (fold.pilot, fold.pilot_predicted, fold.outcomes, fold.predicted)
        )
        strata = stratify(pilot, n_strata=n_strata, seed=0, name=name, predicted=pilot_predicted)
        design = allocate(strata, pilot, count, pilot_predicted)
        half_widths += [
            expected_half_widths(design, correct, probability)
            for correct, probability in zip(outcomes, predicted, strict=True)
        ]
        accuracy = outcomes.mean(axis=2)
        accuracies.append(accuracy)
        certainties.append(_order_certainties(design, accuracy, outcomes - predicted))
    return _median_without_extremes(np.stack(half_widths), np.concatenate(accuracies)), _mean_or_nan(
        np.concatenate(certainties)
    )


def simple_precision(outcomes: ArrayLike, count: int, n_images: int) -> tuple[float, float]:
    """Return the median half-width and tau like `sampled_precision`, but for a simple random sample of `count` images.

    Args:
        outcomes: (A, S, N) bool, on images that represent the population.
        count: number of sampled images.
        n_images: size of the population.
    """
    correct = np.asarray(outcomes, bool)
    accuracy = correct.mean(axis=2)
    variance_factor = max(0.0, 1 - count / n_images) / count
    half_width = NORMAL_QUANTILE * np.sqrt(accuracy * (1 - accuracy) * variance_factor)
    first, second = np.triu_indices(len(correct), 1)
    certainties = []
    for i, j in zip(first, second, strict=True):
        variance = (correct[i].astype(np.int8) - correct[j]).var(axis=1) * variance_factor
        certainties.append(_order_certainty(accuracy[[i]], accuracy[[j]], variance[None]))
    return _median_without_extremes(half_width, accuracy), _mean_or_nan(np.concatenate([np.zeros(0), *certainties]))


def _order_certainties(design: SampleDesign, accuracy: _Floats, residual: _Floats) -> _Floats:
    first, second = np.triu_indices(len(accuracy), 1)
    if not len(first):
        return np.zeros(0)
    return _order_certainty(
        accuracy[first], accuracy[second], design_variance(design, residual[first] - residual[second])
    )


def _order_certainty(first: _Floats, second: _Floats, variance: _Floats) -> _Floats:
    """Return the probability of the correct order minus the probability of the wrong order for each pair of networks.

    `first`, `second` (accuracies) and `variance` (of their difference) have shape (M, S). Pairs of equal or extreme
    accuracies are omitted, so the result (K,) may have fewer than M * S numbers.
    """
    difference, standard_error = np.abs(first - second), np.sqrt(variance)
    z_scores = np.full(difference.shape, np.inf)
    np.divide(difference, standard_error, out=z_scores, where=standard_error > 0)
    is_included = (difference > 0) & _is_not_extreme(first) & _is_not_extreme(second)
    certainty: _Floats = 2 * ndtr(z_scores[is_included]) - 1
    return certainty


def _is_not_extreme(accuracy: _Floats) -> _Bools:
    return (accuracy > _EXTREME_MARGIN) & (accuracy < 1 - _EXTREME_MARGIN)


def _median_without_extremes(half_width: _Floats, accuracy: _Floats) -> float:
    """Return the median over networks and strengths.

    Strengths whose accuracies are mostly extreme are ignored, unless this applies to all strengths.
    """
    is_included = _is_not_extreme(accuracy).mean(axis=0) > 0.5
    return float(np.median(half_width[:, is_included] if is_included.any() else half_width))


def _mean_or_nan(values: _Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")
