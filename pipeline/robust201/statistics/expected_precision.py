"""Expected precision of estimates from a sample of images, computed before sampling from networks with all outcomes.

Groups of networks are left out in turn. The other networks serve as the pilot: the model, the strata and the sample
sizes come only from them. The residuals of the predictions for the networks left out then give their precision.
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
"""Minimum number of networks: one left out, and two as the pilot. Kendall's tau needs four, to compare two left out."""

_N_FOLDS = 4
_EXTREME = 0.02
"""Accuracies within this distance of 0 or 1 are extreme and are ignored."""

_Floats = NDArray[np.float64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Fold:
    """T networks that are left out, with predictions from a pilot of P other networks.

    Attributes:
        pilot: (P, S, N) outcomes of the pilot.
        pilot_predicted: (P, S, N) predictions of the pilot's outcomes, for strata and sample sizes.
        outcomes: (T, S, N) outcomes of the networks left out.
        predicted: (T, S, N) predictions of these outcomes by a model fitted on the pilot.
    """

    pilot: _Bools
    pilot_predicted: _Floats
    outcomes: _Bools
    predicted: _Floats


def leave_out_folds(outcomes: ArrayLike, cheap_outcomes: ArrayLike) -> list[Fold]:
    """Leave each network out once, in up to four groups, and predict it from the pilot and its cheap outcomes.

    Args:
        outcomes: (A, S, N) bool, outcomes under the key.
        cheap_outcomes: (A, C, N) bool, outcomes under cheap keys; C may be 0.

    Raises:
        ValueError: fewer than three networks.
    """
    correct, cheap = np.asarray(outcomes, bool), np.asarray(cheap_outcomes, bool)
    n_networks = len(correct)
    if n_networks < MIN_NETWORKS:
        raise ValueError(f"expected at least {MIN_NETWORKS} networks, got {n_networks}")
    # Use groups of at least two if possible, so that tau can compare pairs.
    n_folds = n_networks if n_networks == MIN_NETWORKS else min(_N_FOLDS, n_networks // 2)
    fold = np.arange(n_networks) % n_folds
    return [_make_fold(correct, cheap, fold == number) for number in range(n_folds)]


def _make_fold(correct: _Bools, cheap: _Bools, is_left_out: _Bools) -> Fold:
    pilot, pilot_cheap = correct[~is_left_out], cheap[~is_left_out]
    values = pilot_features(pilot, pilot_cheap)
    model = OutcomeModel().fit(values, pilot)
    predicted = [model.predict(features(pilot, network_cheap, pilot_cheap)) for network_cheap in cheap[is_left_out]]
    return Fold(pilot, predict_pilots(model, values), correct[is_left_out], np.stack(predicted))


def sampled_precision(
    folds: Sequence[Fold], count: int, n_images: int, *, n_strata: int, name: str
) -> tuple[float, float]:
    """Return the median half-width of the 95% interval and the expected Kendall tau with the full ranking.

    Tau is a mean over strengths and over pairs of networks that are left out together: of the probability that their
    estimates are in the right order, minus the probability that they are not. Pairs of equal accuracies are ignored.

    Args:
        folds: see `leave_out_folds`.
        count: number of sampled images.
        n_images: number of all images, which the N known images represent: some are repeated or left out.
        n_strata: number of strata.
        name: name of the sampled quantity (see `stratify`).

    Returns:
        Half-width and tau; tau is NaN if no two networks can be compared.

    Raises:
        ValueError: the sample is too small for its strata, or larger than the population.
    """
    n_known = folds[0].outcomes.shape[2]
    images = np.arange(n_images) % n_known if n_images > n_known else np.arange(n_images) * n_known // n_images
    widths, accuracies, orders = [], [], []
    for fold in folds:
        pilot, expected, outcomes, predicted = (
            numbers[..., images] for numbers in (fold.pilot, fold.pilot_predicted, fold.outcomes, fold.predicted)
        )
        strata = stratify(pilot, n_strata=n_strata, seed=0, name=name, predicted=expected)
        design = allocate(strata, pilot, count, expected)
        widths += [
            expected_half_widths(design, correct, probability)
            for correct, probability in zip(outcomes, predicted, strict=True)
        ]
        accuracy = outcomes.mean(axis=2)
        accuracies.append(accuracy)
        orders.append(_order_probabilities(design, accuracy, outcomes - predicted))
    return _median_inside(np.stack(widths), np.concatenate(accuracies)), _mean(np.concatenate(orders))


def simple_precision(outcomes: ArrayLike, count: int, n_images: int) -> tuple[float, float]:
    """Return the results of `sampled_precision` for accuracies on a simple random sample of `count` images.

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
    orders = []
    for i, j in zip(first, second, strict=True):
        variance = (correct[i].astype(np.int8) - correct[j]).var(axis=1) * variance_factor
        orders.append(_certainty(accuracy[[i]], accuracy[[j]], variance[None]))
    return _median_inside(half_width, accuracy), _mean(np.concatenate([np.zeros(0), *orders]))


def _order_probabilities(design: SampleDesign, accuracy: _Floats, residual: _Floats) -> _Floats:
    first, second = np.triu_indices(len(accuracy), 1)
    if not len(first):
        return np.zeros(0)
    return _certainty(accuracy[first], accuracy[second], design_variance(design, residual[first] - residual[second]))


def _certainty(first: _Floats, second: _Floats, variance: _Floats) -> _Floats:
    """Return the probability of the right sign minus that of the wrong sign, for the pairs (M, S) that count: (K,)."""
    difference, error = np.abs(first - second), np.sqrt(variance)
    z_scores = np.full(difference.shape, np.inf)
    np.divide(difference, error, out=z_scores, where=error > 0)
    counted = (difference > 0) & _is_inside(first) & _is_inside(second)
    certainty: _Floats = 2 * ndtr(z_scores[counted]) - 1
    return certainty


def _is_inside(accuracy: _Floats) -> _Bools:
    return (accuracy > _EXTREME) & (accuracy < 1 - _EXTREME)


def _median_inside(half_width: _Floats, accuracy: _Floats) -> float:
    """Return the median over networks and strengths with mostly non-extreme accuracies (if none, all strengths)."""
    counted = _is_inside(accuracy).mean(axis=0) > 0.5
    return float(np.median(half_width[:, counted] if counted.any() else half_width))


def _mean(values: _Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")
