"""Estimate accuracies from outcomes on a stratified sample of the images and from a model's predictions.

The networks of a pilot are evaluated on all N images at S strengths of a key. Images are divided into strata by the
uncertainty of their outcomes, and the sample size of each stratum is proportional to its number of images and to the
standard deviation of a model's residuals (Neyman, 1934). For every other network, the model predicts the outcome for
each image from the pilot's outcomes and from the network's own outcomes under keys that are cheap to evaluate. The
residuals of the sample correct the mean prediction (difference estimator: Särndal, Swensson and Wretman, "Model
Assisted Survey Sampling", 1992). The model is not fitted to the sample, so the estimate is unbiased for any model.

`estimate` handles one sample of one network. For many samples of one network, `sum_strata` does the common work once,
and `estimate_with_sums` uses the result. docs/protocol/statistics.md has the formulas and sources.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_PER_STRATUM = 2
"""Minimum number of sampled images per stratum, because a variance cannot be estimated from fewer."""

PRIOR_DEGREES = 16.0
"""Weight of the model's expected variance, in degrees of freedom (see `_estimate_variance`)."""

MAX_DEGREES = 1e6
"""Degrees of freedom that are treated as infinite."""

INTERVAL_LEVEL = 0.95
"""Nominal coverage of the intervals of estimates."""

_PREDICTION_STEP = 1 / 1024
"""Predictions are rounded to multiples of this number, so that their sums are exact.

Otherwise strata and samples would depend on the processor, because BLAS libraries sum in different orders.
"""

_MIN_PROBABILITY = _PREDICTION_STEP
"""Minimum distance of predictions from 0 and 1 in the model's variance: a small pilot cannot justify certainty."""

_RIDGE = 2.0
"""Weight of the ridge penalty on standardised features."""

_MAX_NEWTON_STEPS = 25

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SampleDesign:
    """H strata of a population of N images, and the number of sampled images per stratum.

    Attributes:
        stratum: (N,) int64, stratum of each image, 0 to H - 1.
        order: (N,) int64, rank of each image in a permutation. A stratum's sample has its images of the lowest ranks.
        sizes: (H,) int64, number of sampled images of each stratum.
    """

    stratum: _Ints
    order: _Ints
    sizes: _Ints

    def __post_init__(self) -> None:
        counts = self.stratum_counts
        if self.stratum.shape != self.order.shape or len(counts) != len(self.sizes):
            raise ValueError(
                f"expected arrays `stratum` and `order` of equal length and one size per stratum, got lengths "
                f"{len(self.stratum)} and {len(self.order)}, and {len(self.sizes)} sizes for {len(counts)} strata"
            )
        if np.any(self.sizes < 0) or np.any(self.sizes > counts):
            raise ValueError(
                f"expected sizes from 0 to the numbers of images {counts.tolist()}, got {self.sizes.tolist()}"
            )

    @property
    def n_images(self) -> int:
        return len(self.stratum)

    @property
    def stratum_counts(self) -> _Ints:
        """(H,) int64, number of images of each stratum in the population."""
        return np.bincount(self.stratum, minlength=len(self.sizes)).astype(np.int64)

    @property
    def positions(self) -> _Ints:
        """(n,) int64, ascending positions of the sampled images in the population."""
        by_stratum = np.lexsort((self.order, self.stratum))
        starts = np.concatenate([[0], np.cumsum(self.stratum_counts)[:-1]])
        rank = np.empty(self.n_images, np.int64)  # within the image's stratum
        rank[by_stratum] = np.arange(self.n_images) - starts[self.stratum[by_stratum]]
        return np.flatnonzero(rank < self.sizes[self.stratum])

    @property
    def inclusion_probabilities(self) -> _Floats:
        """(N,) float64, probability that each image is in the sample."""
        fractions: _Floats = self.sizes / np.maximum(self.stratum_counts, 1)
        return fractions[self.stratum]


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimated accuracies of one network, at each of S strengths.

    Attributes:
        value: (S,) accuracy in [0, 1].
        standard_error: (S,), 0 if every image is in the sample.
        low: (S,) lower ends of the 95% intervals.
        high: (S,) upper ends of the 95% intervals.
        n_seen: number of images in the sample.
    """

    value: _Floats
    standard_error: _Floats
    low: _Floats
    high: _Floats
    n_seen: int


def stratify(
    outcomes: ArrayLike, *, n_strata: int, seed: int, name: str, predicted: ArrayLike | None = None
) -> SampleDesign:
    """Divide images into strata by the uncertainty of their outcomes, and return a design with an empty sample.

    Images are sorted by the expected standard deviation of their outcomes, and divided so that these deviations have
    equal totals in all strata: Wright, "Finite population sampling with multivariate auxiliary information", JASA 78
    (1983).

    Args:
        outcomes: (P, S, N) bool, outcomes of P pilot networks at S strengths of one key.
        n_strata: number of strata H; reduced if there are fewer than two images per stratum.
        seed: seed of the sample.
        name: name of the sample, such as dataset and key; different names give different samples.
        predicted: (P, S, N) probabilities of these outcomes, from `predict_pilots`; if None, the pilot's mean is used.

    Raises:
        ValueError: wrong shapes, fewer than two networks, or no strata.
    """
    correct = _check_pilot_outcomes(outcomes)
    n_images = correct.shape[2]
    if n_strata < 1:
        raise ValueError(f"expected at least 1 stratum, got {n_strata}")
    probability = _smoothed_mean(correct)[None] if predicted is None else _check_predictions(predicted, correct)
    deviation = np.sqrt((probability * (1 - probability)).mean(axis=(0, 1)))
    order = _random_order(n_images, seed, name)
    # Ties keep the order of positions, because strata must not depend on `order`, which chooses the sample.
    ranking = np.argsort(deviation, kind="stable")
    # `cumsum` adds in sequence, whereas the order of `sum` depends on the processor.
    cumulative_deviation = np.cumsum(deviation[ranking] if deviation.any() else np.ones(n_images))
    cumulative_fraction = cumulative_deviation / cumulative_deviation[-1]
    n_strata = min(n_strata, max(1, n_images // MIN_PER_STRATUM))
    # The boundaries are moved so that every stratum has at least MIN_PER_STRATUM images.
    ends = np.searchsorted(cumulative_fraction, np.arange(1, n_strata) / n_strata)
    min_ends = MIN_PER_STRATUM * np.arange(1, n_strata)
    ends = np.minimum(np.maximum.accumulate(np.maximum(ends - min_ends, 0)) + min_ends, n_images - min_ends[::-1])
    stratum = np.empty(n_images, np.int64)
    stratum[ranking] = np.searchsorted(ends, np.arange(n_images), side="right")
    return SampleDesign(stratum, order, np.zeros(n_strata, np.int64))


def allocate(design: SampleDesign, outcomes: ArrayLike, count: int, predicted: ArrayLike | None = None) -> SampleDesign:
    """Return the design with a sample of `count` images.

    Samples are nested, so a larger `count` only adds images.

    The sample sizes of the strata minimise the sum over strengths of the expected variance. They are found by the
    method of equal proportions, whose integers never decrease as `count` grows: Wright, "The equivalence of Neyman
    optimum allocation for sampling and equal proportions for apportioning the U.S. House of Representatives", The
    American Statistician 66 (2012).

    Args:
        design: strata; images already in the sample stay there.
        outcomes: (P, S, N) bool, outcomes of the pilot networks.
        count: number of images in the sample, from two per stratum to N.
        predicted: (P, S, N) probabilities of these outcomes, from `predict_pilots`; if None, the means over the other
            networks are used.

    Raises:
        ValueError: wrong shapes, or `count` is out of range.
    """
    correct = _check_pilot_outcomes(outcomes, design)
    counts = design.stratum_counts
    min_sizes = np.maximum(np.minimum(MIN_PER_STRATUM, counts), design.sizes)
    if not min_sizes.sum() <= count <= design.n_images:
        raise ValueError(
            f"expected a sample of {min_sizes.sum()} images ({len(counts)} strata, {design.sizes.sum()} images in the "
            f"sample already) to {design.n_images} images, got {count}"
        )
    weights = counts * _residual_deviations(design, correct, predicted)
    strata = np.repeat(np.arange(len(counts)), counts - min_sizes)
    starts = np.concatenate([[0], np.cumsum(counts - min_sizes)[:-1]])
    n_before = min_sizes[strata] + np.arange(len(strata)) - starts[strata]  # number of earlier images of the stratum
    priority = weights[strata] / np.sqrt(np.maximum(n_before, 1) * (n_before + 1))
    strata_of_added_images = strata[np.argsort(-priority, kind="stable")[: count - min_sizes.sum()]]
    return replace(design, sizes=min_sizes + np.bincount(strata_of_added_images, minlength=len(counts)))


def features(
    pilot_outcomes: ArrayLike, cheap_outcomes: ArrayLike, pilot_cheap_outcomes: ArrayLike | None = None
) -> _Floats:
    """Return the features (N, F) of all images from which the model predicts the outcomes of one network.

    Args:
        pilot_outcomes: (P, S, N) bool, outcomes of other networks under the key whose accuracies are estimated.
        cheap_outcomes: (C, N) bool, outcomes of the predicted network, one row per cheap key and strength.
        pilot_cheap_outcomes: (P, C, N) bool, outcomes of the other networks under the cheap keys.
    """
    pilot, cheap = np.asarray(pilot_outcomes, bool), np.asarray(cheap_outcomes, bool)
    # The powers allow predictions near 0 and 1 for images on which all networks agree at all strengths.
    balance = 2 * pilot.mean(axis=(0, 1)) - 1
    columns = [_log_odds(_smoothed_mean(pilot)), np.stack([balance**3, balance**9]), cheap.astype(np.float64)]
    if pilot_cheap_outcomes is not None:
        columns.append(_log_odds(_smoothed_mean(np.asarray(pilot_cheap_outcomes, bool))))
    return np.concatenate(columns).T


def pilot_features(pilot_outcomes: ArrayLike, pilot_cheap_outcomes: ArrayLike) -> _Floats:
    """Return the features (P, N, F) of each pilot network, computed from the outcomes of the other pilot networks.

    Args:
        pilot_outcomes: (P, S, N) bool, under the key whose accuracies are estimated.
        pilot_cheap_outcomes: (P, C, N) bool, under the cheap keys.

    Raises:
        ValueError: fewer than two networks.
    """
    outcomes, cheap = _check_pilot_outcomes(pilot_outcomes), np.asarray(pilot_cheap_outcomes, bool)
    masks = [np.arange(len(outcomes)) != network for network in range(len(outcomes))]
    return np.stack(
        [
            features(outcomes[is_other], network_cheap, cheap[is_other])
            for is_other, network_cheap in zip(masks, cheap, strict=True)
        ]
    )


class OutcomeModel:
    """Logistic regressions, one per strength, that predict outcomes from features of image and network.

    They are fitted to pilot networks only, with a small ridge penalty on standardised features.
    """

    def __init__(self) -> None:
        self._mean = np.zeros(0)
        self._scale = np.ones(0)
        self._weights = np.zeros((0, 0))

    def fit(self, inputs: ArrayLike, outcomes: ArrayLike) -> Self:
        """Fit the model.

        Args:
            inputs: (P, N, F) features of the pilot networks (see `pilot_features`).
            outcomes: (P, S, N) bool.

        Raises:
            ValueError: the shapes do not match.
        """
        input_array, correct = np.asarray(inputs, np.float64), np.asarray(outcomes, bool)
        if input_array.ndim != 3 or correct.ndim != 3 or input_array.shape[:2] != (correct.shape[0], correct.shape[2]):
            raise ValueError(
                f"expected (P, N, F) features and (P, S, N) outcomes, got {input_array.shape} and {correct.shape}"
            )
        rows = input_array.reshape(-1, input_array.shape[2])
        self._mean, deviation = rows.mean(axis=0), rows.std(axis=0)
        # Log-odds of equal outcomes differ only by rounding errors, so such features are ignored.
        self._scale = np.where(deviation > 1e-6, deviation, np.inf)
        standardised = self._standardise(rows)
        targets = correct.transpose(1, 0, 2).reshape(correct.shape[1], -1).astype(np.float64)
        self._weights = np.stack([_fit_logistic(standardised, target) for target in targets])
        return self

    def predict(self, image_features: ArrayLike) -> _Floats:
        """Return the probabilities (S, N) of correct outcomes for features (N, F), rounded to multiples of 1/1024."""
        from scipy.special import expit

        rows = np.asarray(image_features, np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(self._mean):
            raise ValueError(f"expected features (N, {len(self._mean)}) like those passed to fit, got {rows.shape}")
        probability: _Floats = expit(self._weights @ self._standardise(rows).T)
        return np.round(probability / _PREDICTION_STEP) * _PREDICTION_STEP

    def _standardise(self, rows: _Floats) -> _Floats:
        return np.concatenate([np.ones((len(rows), 1)), (rows - self._mean) / self._scale], axis=1)


def predict_pilots(model: OutcomeModel, inputs: ArrayLike) -> _Floats:
    """Return the model's predictions (P, S, N) for the pilot networks' features (P, N, F)."""
    return np.stack([model.predict(network_features) for network_features in np.asarray(inputs, np.float64)])


@dataclass(frozen=True, eq=False)
class StratumSums:
    """Sums of the predictions, and means of the expected moments, over all images of each stratum.

    Attributes:
        predicted: (S, H), sums of the predicted probabilities.
        variance: (S, H), mean variances of the outcomes according to the model.
        fourth_moment: (S, H), mean fourth central moments of the outcomes according to the model.
    """

    predicted: _Floats
    variance: _Floats
    fourth_moment: _Floats


def sum_strata(design: SampleDesign, predicted: ArrayLike) -> StratumSums:
    """Sum predictions (S, N) by stratum; the sums are the same for all samples from these strata.

    Raises:
        ValueError: the number of images is wrong, or predictions are outside [0, 1].
    """
    probability = np.asarray(predicted, np.float64)
    if probability.ndim != 2 or probability.shape[1] != design.n_images:
        raise ValueError(f"expected predictions (S, {design.n_images}) of all images, got shape {probability.shape}")
    if not np.all((probability >= 0) & (probability <= 1)):
        raise ValueError("expected predictions between 0 and 1, got a value outside or NaN")
    clipped = np.clip(probability, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    variance = clipped * (1 - clipped)
    moments = np.concatenate([probability, variance, variance * (1 - 3 * variance)])
    predicted_sums, variance_sums, fourth_sums = np.split(
        _sum_by_stratum(moments, design.stratum, len(design.sizes)), 3
    )
    counts = np.maximum(design.stratum_counts, 1)
    return StratumSums(predicted_sums, variance_sums / counts, fourth_sums / counts)


def estimate(design: SampleDesign, sampled_outcomes: ArrayLike, predicted: ArrayLike) -> Estimates:
    """Estimate the accuracies of one network from a sample, by the stratified difference estimator.

    Before clipping, the value is unbiased over samples of the design. It is clipped to the range that the sampled
    outcomes leave possible, which can only bring it nearer to the true accuracy. A full sample gives the exact accuracy
    with standard error 0.

    The variance is a weighted mean of the variance of the sample's residuals and the variance that the model expects.
    Therefore a small sample without prediction errors does not give an interval of width 0. Intervals use Student's t
    distribution with Satterthwaite's degrees of freedom.

    Args:
        design: the sample, with at least two images (or all) of each stratum.
        sampled_outcomes: (S, n) bool, outcomes for the sampled images, in the order of `design.positions`.
        predicted: (S, N) probabilities of a correct outcome for all images, predicted without these outcomes.

    Raises:
        ValueError: wrong shapes, predictions outside [0, 1], or a stratum with too few images.
    """
    sums = sum_strata(design, predicted)
    return estimate_with_sums(design, sampled_outcomes, np.asarray(predicted, np.float64)[:, design.positions], sums)


def estimate_with_sums(
    design: SampleDesign, sampled_outcomes: ArrayLike, predicted: ArrayLike, sums: StratumSums
) -> Estimates:
    """Return the result of `estimate` from predictions (S, n) for the sampled images and from sums over all images."""
    correct, probability = np.asarray(sampled_outcomes, bool), np.asarray(predicted, np.float64)
    positions, counts, n_images = design.positions, design.stratum_counts, design.n_images
    _check_sizes(design)
    if correct.ndim != 2 or correct.shape[1] != len(positions):
        raise ValueError(f"expected outcomes (S, {len(positions)}) of the sample's images, got shape {correct.shape}")
    if not len(correct) == len(probability) == len(sums.predicted):
        raise ValueError(
            f"expected predictions and sums for {len(correct)} strengths, got {len(probability)} and "
            f"{len(sums.predicted)}"
        )
    sampled_strata = design.stratum[positions]
    residual = correct - probability
    mean_residual = _sum_by_stratum(residual, sampled_strata, len(counts)) / np.maximum(design.sizes, 1)
    # In strata whose images are all in the sample, correct images are counted, so that a full sample is exact.
    n_correct = _sum_by_stratum(correct.astype(np.float64), sampled_strata, len(counts))
    totals = np.where(design.sizes == counts, n_correct, sums.predicted + counts * mean_residual)
    n_seen_correct = correct.sum(axis=1)
    min_value = n_seen_correct / n_images
    max_value = (n_images - len(positions) + n_seen_correct) / n_images
    value = np.clip(totals.sum(axis=1) / n_images, min_value, max_value)
    squares = _sum_by_stratum((residual - mean_residual[:, sampled_strata]) ** 2, sampled_strata, len(counts))
    variance, df = _estimate_variance(design, squares, sums)
    standard_error = np.sqrt(variance)
    half_width = _t_quantile(df) * standard_error
    low, high = np.maximum(value - half_width, min_value), np.minimum(value + half_width, max_value)
    return Estimates(value, standard_error, low, high, len(positions))


def expected_half_widths(design: SampleDesign, outcomes: ArrayLike, predicted: ArrayLike) -> _Floats:
    """Return the half-widths (S,) of the intervals of `estimate`, expected over samples of the design.

    Args:
        design: the sample, with at least two images (or all) of each stratum.
        outcomes: (S, N) bool, outcomes of one network on all images.
        predicted: (S, N) probabilities of these outcomes, predicted without them.

    Raises:
        ValueError: wrong shapes, predictions outside [0, 1], or a stratum with too few images.
    """
    _check_sizes(design)
    sums = sum_strata(design, predicted)
    variances = _stratum_variances(design, np.asarray(outcomes, bool) - np.asarray(predicted, np.float64))
    variance, df = _estimate_variance(design, variances * np.maximum(design.sizes - 1, 0), sums)
    half_widths: _Floats = _t_quantile(df) * np.sqrt(variance)
    return half_widths


def design_variance(design: SampleDesign, residual: _Floats) -> _Floats:
    """Return the variance (…) of the estimate over samples of the design, given the residuals (…, N) of all images."""
    variance: _Floats = _stratum_variances(design, residual) @ _variance_weights(design)
    return variance


def _check_pilot_outcomes(outcomes: ArrayLike, design: SampleDesign | None = None) -> _Bools:
    correct = np.asarray(outcomes, bool)
    if correct.ndim != 3 or 0 in correct.shape:
        raise ValueError(f"expected outcomes (networks, strengths, images) of a pilot, got shape {correct.shape}")
    if len(correct) < 2:
        raise ValueError(
            "expected a pilot of at least 2 networks, got 1: one network does not show how networks differ"
        )
    if design is not None and correct.shape[2] != design.n_images:
        raise ValueError(f"expected outcomes of the design's {design.n_images} images, got {correct.shape[2]}")
    return correct


def _check_predictions(predicted: ArrayLike, correct: _Bools) -> _Floats:
    probability = np.asarray(predicted, np.float64)
    if probability.shape != correct.shape:
        raise ValueError(f"expected predictions of the outcomes' shape {correct.shape}, got {probability.shape}")
    return probability


def _check_sizes(design: SampleDesign) -> None:
    undersized_strata = np.flatnonzero(design.sizes < np.minimum(MIN_PER_STRATUM, design.stratum_counts))
    if len(undersized_strata):
        raise ValueError(
            f"expected at least {MIN_PER_STRATUM} sampled images in every stratum (or all of its images), got "
            f"{design.sizes[undersized_strata[0]]} in stratum {undersized_strata[0]}"
        )


def _random_order(n_images: int, seed: int, name: str) -> _Ints:
    """Return each image's rank (N,) in a permutation by SHA-256 hashes, which is the same for all library versions."""
    digests = [hashlib.sha256(f"{seed}/{name}/{image}".encode()).digest() for image in range(n_images)]
    by_digest = sorted(range(n_images), key=digests.__getitem__)
    order = np.empty(n_images, np.int64)
    order[by_digest] = np.arange(n_images)
    return order


def _smoothed_mean(correct: _Bools) -> _Floats:
    """Return the mean over P networks (P, …); half a correct and half a wrong outcome are added to avoid 0 and 1."""
    mean: _Floats = (correct.sum(axis=0) + 0.5) / (len(correct) + 1)
    return mean


def _log_odds(probability: _Floats) -> _Floats:
    log_odds: _Floats = np.log(probability / (1 - probability))
    return log_odds


def _sum_by_stratum(values: _Floats, stratum: _Ints, n_strata: int) -> _Floats:
    """Return the sums (…, H) of values (…, n) by stratum."""
    indicator = (stratum[:, None] == np.arange(n_strata)).astype(np.float64)
    sums: _Floats = values @ indicator
    return sums


def _residual_deviations(design: SampleDesign, correct: _Bools, predicted: ArrayLike | None) -> _Floats:
    """Return the root of the mean variance, over networks and strengths, of the pilot's residuals in each stratum.

    Each result is at least a tenth of the mean over strata, because small residuals of the pilot in a stratum do not
    guarantee small residuals of other networks.
    """
    if predicted is None:
        probability = ((correct.sum(axis=0) - correct) + 0.5) / len(correct)  # mean of the other networks
    else:
        probability = _check_predictions(predicted, correct)
    residual = (correct - probability).reshape(-1, design.n_images)
    counts = np.maximum(design.stratum_counts, 1)
    mean = _sum_by_stratum(residual, design.stratum, len(counts)) / counts
    squares = _sum_by_stratum(residual**2, design.stratum, len(counts)) / counts
    deviation: _Floats = np.sqrt(np.maximum(squares - mean**2, 0).mean(axis=0))
    return np.maximum(deviation, max(0.1 * deviation.mean(), 1e-9))


def _stratum_variances(design: SampleDesign, residual: _Floats) -> _Floats:
    """Return the variances (…, H) of residuals (…, N) in each stratum."""
    counts = design.stratum_counts
    mean = _sum_by_stratum(residual, design.stratum, len(counts)) / np.maximum(counts, 1)
    centred = residual - mean[..., design.stratum]
    variances: _Floats = _sum_by_stratum(centred**2, design.stratum, len(counts)) / np.maximum(counts - 1, 1)
    return variances


def _variance_weights(design: SampleDesign) -> _Floats:
    """Return the weights (H,) of the strata's variances in the variance of the estimate."""
    counts, sizes = design.stratum_counts, design.sizes
    weights: _Floats = (counts / design.n_images) ** 2 * (1 - sizes / counts) / np.maximum(sizes, 1)
    return weights


def _estimate_variance(design: SampleDesign, squares: _Floats, sums: StratumSums) -> tuple[_Floats, _Floats]:
    """Estimate variances (S,) and their degrees of freedom from sums (S, H) of squared residuals, centred by stratum.

    The variance is the mean of the sample's variance and the model's variance, weighted by their degrees of freedom. If
    a few large residuals cause most of the true variance, a small sample may contain none of them and underestimate it.
    Therefore the sample's degrees of freedom are computed from the fourth moment that the model expects.
    """
    weights, expected = _variance_weights(design), sums.variance
    stratum_df = np.maximum(design.sizes - 1, 0)
    variance_of_squares = np.maximum(sums.fourth_moment - expected**2, 1e-12)
    sample_df = _satterthwaite(
        weights * expected, np.minimum(stratum_df, 2 * stratum_df * expected**2 / variance_of_squares)
    )
    observed = (squares / np.maximum(stratum_df, 1)) @ weights
    df = sample_df + PRIOR_DEGREES
    variance: _Floats = (sample_df * observed + PRIOR_DEGREES * (expected @ weights)) / df
    return variance, df


def _satterthwaite(variances: _Floats, stratum_df: _Floats) -> _Floats:
    """Return the degrees of freedom (S,) of sums over strata of independent variances (S, H).

    Variances of 0 are ignored; a positive variance without degrees of freedom gives 0.
    """
    ratios = np.full_like(variances, np.inf)
    np.divide(variances**2, stratum_df, out=ratios, where=stratum_df > 0)
    ratio_sums = np.where(variances > 0, ratios, 0).sum(axis=1)
    df: _Floats = np.full(len(variances), MAX_DEGREES)
    np.divide(variances.sum(axis=1) ** 2, ratio_sums, out=df, where=ratio_sums > 0)
    return np.minimum(df, MAX_DEGREES)


def _t_quantile(df: _Floats) -> _Floats:
    from scipy.special import stdtrit

    return np.asarray(stdtrit(df, 0.5 + INTERVAL_LEVEL / 2), np.float64)


def _fit_logistic(rows: _Floats, target: _Floats) -> _Floats:
    """Fit a logistic regression by Newton's method, with a ridge penalty, which is small for the intercept."""
    penalty = np.full(rows.shape[1], _RIDGE)
    penalty[0] = 0.01  # the first column of `rows` is 1
    weights: _Floats = np.zeros(rows.shape[1])
    rate = (target.sum() + 0.5) / (len(target) + 1)
    weights[0] = np.log(rate / (1 - rate))
    loss, probability = _logistic_loss(rows, target, weights, penalty)
    for _ in range(_MAX_NEWTON_STEPS):
        gradient = rows.T @ (target - probability) - penalty * weights
        hessian = (rows * (probability * (1 - probability))[:, None]).T @ rows + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        step_fraction = 1.0
        new_loss, new_probability = _logistic_loss(rows, target, weights + step, penalty)
        while new_loss > loss and step_fraction > 1e-4:  # far from the optimum, a full step can overshoot
            step_fraction /= 2
            new_loss, new_probability = _logistic_loss(rows, target, weights + step_fraction * step, penalty)
        if new_loss > loss - 1e-4:
            break
        weights, loss, probability = weights + step_fraction * step, new_loss, new_probability
    return weights


def _logistic_loss(rows: _Floats, target: _Floats, weights: _Floats, penalty: _Floats) -> tuple[float, Any]:
    from scipy.special import expit

    score = rows @ weights
    loss = np.logaddexp(0, score).sum() - target @ score + 0.5 * (penalty * weights) @ weights
    return float(loss), expit(score)
