"""Choice of images by the outcomes of pilot networks, and estimates of accuracies from the chosen images.

The networks of the pilot are evaluated on all N images. Images are divided into strata by how uncertain their outcomes
are, and uncertain images are chosen with higher probability (Neyman, 1934). A logistic regression, fitted to the pilot,
predicts the outcomes of every other network on all images; the residuals on the chosen images correct the mean
prediction (difference estimator: Särndal, Swensson and Wretman, "Model Assisted Survey Sampling", 1992). The model is
not fitted to these residuals, so the estimate is unbiased for any model. docs/sampling.md describes its use.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError
from robust201.core.noise import generator

MIN_PER_STRATUM = 2
"""Minimum number of chosen images per stratum, because a variance cannot be estimated from fewer."""

_MAX_STRATA = 10

_PRIOR_DEGREES = 16.0
"""Weight of the variance that the model expects, in degrees of freedom (see `_estimate_error`)."""

_PRIOR_ERRORS = 4.0
"""Constant added to the pilot's sum of squared residuals and to the expected sum (see `Pilot.variance_factors`)."""

_CONTRADICTION_LEVEL = 1e-3
"""Level of the test for a sample variance above the model's; if the test is significant, the model is ignored."""

_STEP = 1 / 1024
"""Predictions are rounded to multiples of this number, so that strata do not depend on the processor's rounding.

In the expected variance, predictions are at least this far from 0 and 1, since a small pilot cannot justify certainty.
"""

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Pilot:
    """Outcomes of P networks on all N images.

    Attributes:
        outcomes: (P, S, N) bool, at S strengths of the key whose accuracies are estimated.
        cheap: (P, C, N) bool, at C ≥ 0 strengths of other keys, under which every network is evaluated on all images.

    Raises:
        ConfigError: there are fewer than two networks.
    """

    outcomes: _Bools
    cheap: _Bools

    def __post_init__(self) -> None:
        if len(self.outcomes) < 2:
            raise ConfigError(
                "Reading the pilot failed: expected two networks or more, since one network does not show how networks "
                f"differ, got {len(self.outcomes)}. Evaluate more networks on all images."
            )

    def predict(self, cheap: _Bools) -> _Floats:
        """Return the probabilities (S, N) that a network outside the pilot classifies the images correctly.

        `cheap` (C, N) has the network's outcomes under the cheap keys.
        """
        return self._model.predict(_features(self.outcomes, self.cheap, cheap))

    @cached_property
    def fitted(self) -> _Floats:
        """(P, S, N) predictions for the networks of the pilot."""
        return np.stack([self._model.predict(rows) for rows in self._inputs])

    @cached_property
    def variance_factors(self) -> _Floats:
        """(S,) variance of the pilot's residuals, relative to the variance that the model expects; at most 1.

        The model expects too large a variance, because the regression's penalty keeps predictions away from 0 and 1.
        """
        observed_sum = ((self.outcomes - self.fitted) ** 2).sum(axis=(0, 2))
        expected_sum = (self.fitted * (1 - self.fitted)).sum(axis=(0, 2))
        factors: _Floats = np.minimum((observed_sum + _PRIOR_ERRORS) / (expected_sum + _PRIOR_ERRORS), 1.0)
        return factors

    @cached_property
    def _inputs(self) -> _Floats:
        """(P, N, F) features of each network of the pilot, from the outcomes of the other networks."""
        others = [np.arange(len(self.outcomes)) != network for network in range(len(self.outcomes))]
        return np.stack(
            [
                _features(self.outcomes[is_other], self.cheap[is_other], cheap)
                for is_other, cheap in zip(others, self.cheap, strict=True)
            ]
        )

    @cached_property
    def _model(self) -> "_OutcomeModel":
        return _OutcomeModel(self._inputs, self.outcomes)


def _features(outcomes: _Bools, cheap_of_others: _Bools, cheap: _Bools) -> _Floats:
    """Return the features (N, F) of the images for one network, from other networks and its own cheap outcomes."""
    # The powers allow predictions near 0 and 1 for images on which all networks agree at all strengths.
    balance = 2 * outcomes.mean(axis=(0, 1)) - 1
    return np.concatenate(
        [_log_odds(outcomes), np.stack([balance**3, balance**9]), cheap.astype(np.float64), _log_odds(cheap_of_others)]
    ).T


def _log_odds(outcomes: _Bools) -> _Floats:
    """Return the log-odds (…) over networks (P, …), after adding half a correct and half a wrong outcome."""
    n_correct = outcomes.sum(axis=0)
    log_odds: _Floats = np.log((n_correct + 0.5) / (len(outcomes) - n_correct + 0.5))
    return log_odds


class _OutcomeModel:
    """Logistic regressions, one per strength, with a small ridge penalty on standardised features."""

    def __init__(self, inputs: _Floats, outcomes: _Bools) -> None:
        """Fit to features (P, N, F) and outcomes (P, S, N)."""
        rows = inputs.reshape(-1, inputs.shape[2])
        self._mean, deviation = rows.mean(axis=0), rows.std(axis=0)
        self._scale = np.where(deviation > 1e-6, deviation, np.inf)  # constant features are ignored
        targets = outcomes.transpose(1, 0, 2).reshape(outcomes.shape[1], -1)
        self._weights = np.stack([_fit_logistic((rows - self._mean) / self._scale, target) for target in targets])

    def predict(self, rows: _Floats) -> _Floats:
        """Return the probabilities (S, N) of correct outcomes for features (N, F)."""
        from scipy.special import expit

        score = self._weights[:, :1] + self._weights[:, 1:] @ ((rows - self._mean) / self._scale).T
        probabilities: _Floats = np.round(expit(score) / _STEP) * _STEP
        return probabilities


def _fit_logistic(rows: _Floats, target: _Bools) -> _Floats:
    """Return the intercept and weights (1 + F,) of a logistic regression."""
    if target.all() or not target.any():
        odds = (target.sum() + 0.5) / (len(target) - target.sum() + 0.5)
        return np.concatenate([[np.log(odds)], np.zeros(rows.shape[1])])
    from sklearn.linear_model import LogisticRegression

    model: Any = LogisticRegression(C=0.5, max_iter=1000).fit(rows, target)
    return np.concatenate([model.intercept_, model.coef_[0]])


@dataclass(frozen=True, eq=False)
class ImageSample:
    """A stratified random sample of N images.

    Attributes:
        strata: (N,) int64, stratum of each image, from 0.
        chosen: (n,) int64, ascending positions of the chosen images among the N images.
    """

    strata: _Ints
    chosen: _Ints

    @property
    def counts(self) -> _Ints:
        """(H,) number of images of each stratum."""
        return np.bincount(self.strata).astype(np.int64)

    @property
    def sizes(self) -> _Ints:
        """(H,) number of chosen images of each stratum."""
        return np.bincount(self.strata[self.chosen], minlength=len(self.counts)).astype(np.int64)


def choose_sample(outcomes: _Bools, predicted: _Floats, n: int, seed: int) -> ImageSample:
    """Choose `n` of N images, so that the expected variance of estimates is small.

    `outcomes` (P, S, N) are the pilot's, and `predicted` (P, S, N) is `Pilot.fitted`.

    Raises:
        ConfigError: `n` is below 4 or above N.
    """
    n_images = outcomes.shape[2]
    if not 2 * MIN_PER_STRATUM <= n <= n_images:
        raise ConfigError(
            f"Choosing images failed for n={n:,}: expected a number from {2 * MIN_PER_STRATUM} to {n_images:,}, the "
            "number of the pilot's images. Correct n."
        )
    strata = _stratify(predicted, max(1, min(_MAX_STRATA, n // _MAX_STRATA)))
    sizes = _allocate(outcomes - predicted, strata, n)
    order = np.argsort(generator(seed, "chosen images").bit_generator.random_raw(n_images), kind="stable")
    chosen = [order[strata[order] == stratum][:size] for stratum, size in enumerate(sizes)]
    return ImageSample(strata, np.sort(np.concatenate(chosen)).astype(np.int64))


def _stratify(probabilities: _Floats, n_strata: int) -> _Ints:
    """Divide images into strata by the standard deviation of their outcomes; its sum is about equal in all strata.

    Wright, "Finite population sampling with multivariate auxiliary information", JASA 78 (1983).
    """
    deviation = np.sqrt((probabilities * (1 - probabilities)).mean(axis=(0, 1))) + 1e-9
    ranking = np.argsort(deviation, kind="stable")
    totals = np.cumsum(deviation[ranking])
    starts: list[int] = [0]
    for start in np.searchsorted(totals, totals[-1] * np.arange(1, n_strata) / n_strata).tolist():
        if start - starts[-1] >= MIN_PER_STRATUM and len(totals) - start >= MIN_PER_STRATUM:
            starts.append(start)
    strata = np.empty(len(totals), np.int64)
    strata[ranking] = np.searchsorted(starts, np.arange(len(totals)), side="right") - 1
    return strata


def _allocate(residual: _Floats, strata: _Ints, n: int) -> list[int]:
    """Return the number of images to choose from each stratum: proportional to its size times its residuals' deviation.

    The method of equal proportions rounds the numbers (Wright, The American Statistician 66, 2012).
    """
    counts = np.bincount(strata)
    deviation = np.sqrt(_stratum_variances(residual.reshape(-1, len(strata)), strata).mean(axis=0))
    # Small residuals of the pilot do not guarantee small residuals of other networks.
    weights = counts * np.maximum(deviation, max(0.1 * deviation.mean(), 1e-9))
    sizes = np.full(len(counts), MIN_PER_STRATUM)
    for _ in range(n - sizes.sum()):
        priority = np.where(sizes < counts, weights / np.sqrt(sizes * (sizes + 1.0)), -1.0)
        sizes[priority.argmax()] += 1
    return [int(size) for size in sizes]


class Estimate(NamedTuple):
    """Estimated accuracies of a network, each (S,), with standard errors and 95% intervals."""

    accuracy: _Floats
    standard_error: _Floats
    low: _Floats
    high: _Floats


def estimate_accuracies(
    sample: ImageSample, outcomes: _Bools, predicted: _Floats, variance_factors: _Floats
) -> Estimate:
    """Estimate the accuracies of a network on all N images from its outcomes on the chosen images.

    If all images are chosen, the accuracies are exact and the standard error is 0.

    Args:
        sample: the sample.
        outcomes: (S, n) bool, outcomes on the chosen images, in ascending order of the images.
        predicted: (S, N) probabilities of correct outcomes, predicted without `outcomes` (see `Pilot.predict`).
        variance_factors: (S,) from `Pilot.variance_factors`.
    """
    n_images, n_chosen = len(sample.strata), len(sample.chosen)
    counts, sizes = sample.counts, sample.sizes
    strata = sample.strata[sample.chosen]
    residual = outcomes - predicted[:, sample.chosen]
    corrections = counts * _sum_strata(residual, strata, len(counts)) / sizes
    n_correct = _sum_strata(outcomes.astype(np.float64), strata, len(counts))
    totals = np.where(sizes == counts, n_correct, _sum_strata(predicted, sample.strata, len(counts)) + corrections)
    # The outcomes on the chosen images bound the accuracy.
    lowest = outcomes.sum(axis=1) / n_images
    highest = lowest + (n_images - n_chosen) / n_images
    accuracy = np.clip(totals.sum(axis=1) / n_images, lowest, highest)
    variances = _stratum_variances(residual, strata)
    standard_error, quantile = _estimate_error(sample, variances, predicted, variance_factors)
    low, high = accuracy - quantile * standard_error, accuracy + quantile * standard_error
    return Estimate(accuracy, standard_error, np.maximum(low, lowest), np.minimum(high, highest))


def _estimate_error(
    sample: ImageSample, variances: _Floats, predicted: _Floats, variance_factors: _Floats
) -> tuple[_Floats, _Floats]:
    """Return the standard errors (S,) and the quantiles of Student's t, from the residuals' variances (S, H).

    The variance is the mean of the sample's variance and of the variance that the model expects, weighted by degrees of
    freedom, so that intervals have a positive width even if a small sample has no wrong predictions. The sample's
    degrees of freedom (Satterthwaite) follow from the fourth moment that the model expects, because a small sample may
    contain none of the few large residuals that cause most of the variance. If a network's residuals are significantly
    larger than the model expects, the network is unlike the pilot, and the model is ignored.
    """
    from scipy.special import chdtri, stdtrit

    counts, sizes = sample.counts, sample.sizes
    weights = (counts / len(sample.strata)) ** 2 * (1 - sizes / counts) / sizes
    clipped = np.clip(predicted, _STEP, 1 - _STEP)
    spread = clipped * (1 - clipped)
    expected = _sum_strata(spread, sample.strata, len(counts)) / counts
    fourth_moment = _sum_strata(spread * (1 - 3 * spread), sample.strata, len(counts)) / counts
    spread_of_squares = np.maximum(fourth_moment - expected**2, 1e-12)
    degrees_of_strata = np.maximum(np.minimum(sizes - 1, 2 * (sizes - 1) * expected**2 / spread_of_squares), 1e-9)
    degrees = _satterthwaite(weights * expected, degrees_of_strata)
    # The factors are applied before the lower bound, so that the result cannot be below it.
    calibrated = np.maximum(predicted * (1 - predicted) * variance_factors[:, None], _STEP * (1 - _STEP))
    observed = variances @ weights
    expected_variance = (weights * _sum_strata(calibrated, sample.strata, len(counts)) / counts).sum(axis=1)
    limit = chdtri(np.maximum(degrees, 1e-6), _CONTRADICTION_LEVEL) * expected_variance
    is_unlike_pilot = degrees * observed > limit
    degrees_of_sample = _satterthwaite(variances * weights, np.maximum(sizes - 1.0, 1.0))
    degrees = np.where(is_unlike_pilot, degrees_of_sample, degrees)
    prior_degrees = np.where(is_unlike_pilot, 0.0, _PRIOR_DEGREES)
    total = degrees + prior_degrees
    variance = (degrees * observed + prior_degrees * expected_variance) / total
    return np.sqrt(variance), np.asarray(stdtrit(total, 0.975), np.float64)


def _satterthwaite(variances: _Floats, degrees: _Floats) -> _Floats:
    """Return the degrees of freedom (S,) of a sum over strata of independent variances (S, H)."""
    total: _Floats = variances.sum(axis=1) ** 2 / np.maximum((variances**2 / degrees).sum(axis=1), 1e-300)
    return total


def _sum_strata(values: _Floats, strata: _Ints, n_strata: int) -> _Floats:
    """Return the sums (…, H) of values (…, n) by stratum."""
    sums: _Floats = values @ (strata[:, None] == np.arange(n_strata)).astype(np.float64)
    return sums


def _stratum_variances(residual: _Floats, strata: _Ints) -> _Floats:
    """Return the unbiased variances (…, H) of residuals (…, n) by stratum; 0 for a stratum with one image."""
    sizes = np.bincount(strata)
    means = _sum_strata(residual, strata, len(sizes)) / sizes
    squares = _sum_strata((residual - means[..., strata]) ** 2, strata, len(sizes))
    return squares / np.maximum(sizes - 1, 1)
