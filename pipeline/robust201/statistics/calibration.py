"""Calibration: how well a network's confidences agree with its accuracies.

Most metrics need the softmax of every image, which a dataset does not store. `stored_calibration` computes those that
follow from stored means and counts, and `binned_calibration` those that follow from binned confidences, if measured.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError

_Floats = NDArray[np.float64]

N_BINS = 15
"""Number of bins in Guo et al., "On calibration of modern neural networks", ICML 2017."""

FRACTION_BITS = 32
"""Fractional bits of a stored sum of confidences."""

NEEDS = (
    "the softmax of every image (N x C), which no dataset stores: compute it with your network, and pass it to "
    "robust201.statistics.calibration"
)
"""Input of all metrics except those of `stored_calibration` and `binned_calibration`."""

BINS_NEED = "the measurement `calibration`"
"""Input of `binned_calibration`."""


class CalibrationErrors(NamedTuple):
    """Calibration of a network on some images.

    Attributes:
        ece: expected calibration error, with bins of equal width.
        ece_equal_mass: expected calibration error, with bins of equally many images.
        maximum: largest gap of a non-empty bin of equal width.
        class_wise: mean over classes of the calibration error of the class's probability, with bins of equal width.
        brier: mean over images of the squared distance from softmax to the true class's unit vector, in [0, 2].
        aurc: area under the risk-coverage curve: the mean error of the most confident k images, averaged over k.
    """

    ece: float
    ece_equal_mass: float
    maximum: float
    class_wise: float
    brier: float
    aurc: float


def calibration_errors(softmax: ArrayLike, labels: ArrayLike, n_bins: int = N_BINS) -> CalibrationErrors:
    """Compute all calibration metrics from the softmax of every image.

    Args:
        softmax: (N, C) probabilities.
        labels: (N,) true classes.
        n_bins: number of confidence bins.

    Raises:
        ConfigError: shapes do not match, there are no images, or rows are not probabilities.

    Sources: ECE and maximum: Naeini, Cooper and Hauskrecht, AAAI 2015; Guo et al., ICML 2017. Equal mass: Nguyen and
    O'Connor, EMNLP 2015. Class-wise: Nixon et al., "Measuring calibration in deep learning", CVPR workshops 2019
    (static calibration error). Brier, Monthly Weather Review 78 (1950). AURC: Geifman, Uziel and El-Yaniv, ICLR 2019.
    """
    probabilities, classes = _check_probabilities(softmax, labels)
    predicted = probabilities.argmax(axis=1)
    confidence, correct = probabilities.max(axis=1), (predicted == classes).astype(np.float64)
    gaps, fractions = _bin_gaps(confidence, correct, _width_bins(confidence, n_bins), n_bins)
    mass_gaps, mass_fractions = _bin_gaps(confidence, correct, _mass_bins(confidence, n_bins), n_bins)
    truth = np.eye(probabilities.shape[1])[classes]
    class_errors = [
        np.dot(*_bin_gaps(column, is_class, _width_bins(column, n_bins), n_bins))
        for column, is_class in zip(probabilities.T, truth.T, strict=True)
    ]
    return CalibrationErrors(
        ece=float(gaps @ fractions),
        ece_equal_mass=float(mass_gaps @ mass_fractions),
        maximum=float(gaps.max()),
        class_wise=float(np.mean(class_errors)),
        brier=float(((probabilities - truth) ** 2).sum(axis=1).mean()),
        aurc=area_under_risk_coverage(confidence, correct),
    )


def area_under_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the error of the k most confident of N images, averaged over k = 1 … N, with ties in any order.

    Args:
        confidence: (N,) scores; higher is more confident.
        correct: (N,) 1 or 0.
    """
    scores, wrong = np.asarray(confidence, np.float64), 1 - np.asarray(correct, np.float64)
    _, groups = np.unique(-scores, return_inverse=True)
    sizes = np.bincount(groups)
    # Within a group of equal confidences, spread the errors evenly: this is the mean over all orders.
    expected_errors = (np.bincount(groups, weights=wrong) / sizes)[np.sort(groups)]
    cumulative_errors = np.cumsum(expected_errors)
    return float(np.mean(cumulative_errors / np.arange(1, len(scores) + 1)))


class StoredCalibration(NamedTuple):
    """Calibration that follows from stored means and counts.

    Attributes:
        confidence: mean confidence in the predicted class.
        accuracy: fraction of correct images.
        overconfidence: confidence - accuracy; its absolute value is the ECE with a single bin, a lower bound of the ECE
            with more bins.
        class_gap: mean over images of the gap between mean confidence and accuracy in the image's predicted class: the
            ECE with predicted classes as bins. NaN without the matrix of confidences.
        largest_class_gap: largest of these gaps.
    """

    confidence: float
    accuracy: float
    overconfidence: float
    class_gap: float
    largest_class_gap: float


def stored_calibration(
    cm: ArrayLike, confidence_prediction: ArrayLike, confidence_argmax: ArrayLike | None = None
) -> StoredCalibration:
    """Compute the calibration that follows from an evaluation's stored columns.

    Args:
        cm: (C, C) counts, rows true classes.
        confidence_prediction: (2,) mean confidence in the predicted class, over right and over wrong images; NaN for
            the mean over no image.
        confidence_argmax: (C, C) mean softmax by predicted class; rows without images are NaN.
    """
    counts = np.asarray(cm, np.float64)
    total, right = counts.sum(), np.trace(counts)
    means = np.nan_to_num(np.asarray(confidence_prediction, np.float64))
    confidence = float((right * means[0] + (total - right) * means[1]) / total)
    accuracy = float(right / total)
    class_gap = largest_gap = np.nan
    if confidence_argmax is not None:
        predicted = counts.sum(axis=0)
        class_confidences = np.diagonal(np.asarray(confidence_argmax, np.float64))
        has_images = predicted > 0
        gaps = np.abs(class_confidences[has_images] - np.diagonal(counts)[has_images] / predicted[has_images])
        class_gap, largest_gap = float(gaps @ predicted[has_images] / total), float(gaps.max())
    return StoredCalibration(confidence, accuracy, confidence - accuracy, class_gap, largest_gap)


class BinnedCalibration(NamedTuple):
    """Calibration from confidences in bins of equal width.

    Attributes:
        ece: expected calibration error (see `CalibrationErrors`).
        maximum: largest gap of a non-empty bin.
    """

    ece: float
    maximum: float


def binned_calibration(counts: ArrayLike, confidence_sums: ArrayLike) -> BinnedCalibration:
    """Compute calibration from an evaluation's stored bins, without the softmax of its images.

    Args:
        counts: (M, 2) images, and right images, in each bin.
        confidence_sums: (M,) sums of confidences in the predicted class, in units of 2**-32.
    """
    images, right = np.asarray(counts, np.int64).T
    # Subtract integers, so that a perfectly calibrated bin has a gap of exactly 0.
    gaps = np.abs(np.asarray(confidence_sums, np.int64) - (right << FRACTION_BITS)) / 2.0**FRACTION_BITS
    filled = images > 0
    return BinnedCalibration(float(gaps.sum() / images.sum()), float((gaps[filled] / images[filled]).max()))


def _check_probabilities(softmax: ArrayLike, labels: ArrayLike) -> tuple[_Floats, NDArray[np.int64]]:
    probabilities, classes = np.asarray(softmax, np.float64), np.asarray(labels)
    problem = None
    if probabilities.ndim != 2 or classes.shape != probabilities.shape[:1] or not len(classes):
        problem = f"the shapes are {probabilities.shape} and {classes.shape}"
    elif not (probabilities.min() >= 0 and np.abs(probabilities.sum(axis=1) - 1).max() <= 1e-3):
        problem = "some rows are not"
    elif classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= probabilities.shape[1]:
        problem = f"labels of {classes.dtype} are from {classes.min()} to {classes.max()}"
    if problem is not None:
        raise ConfigError(
            "Computing calibration failed for a network: expected probabilities (N, C) that add up to 1 and labels "
            f"(N,) below C, but {problem}. Pass the softmax of every image."
        )
    return probabilities, classes.astype(np.int64)


def _width_bins(confidence: _Floats, n_bins: int) -> NDArray[np.int64]:
    """Return the bins of confidences: ((m - 1) / M, m / M], where the first also contains 0."""
    return np.clip(np.ceil(confidence * n_bins).astype(np.int64) - 1, 0, n_bins - 1)


def _mass_bins(confidence: _Floats, n_bins: int) -> NDArray[np.int64]:
    """Return bins of equally many images in the order of confidence; sizes differ by at most one."""
    bins = np.empty(len(confidence), np.int64)
    bins[np.argsort(confidence, kind="stable")] = np.arange(len(confidence)) * n_bins // len(confidence)
    return bins


def _bin_gaps(confidence: _Floats, correct: _Floats, bins: NDArray[np.int64], n_bins: int) -> tuple[_Floats, _Floats]:
    """Return each bin's gap between mean confidence and accuracy, and its fraction of the images."""
    counts = np.bincount(bins, minlength=n_bins)
    sums = np.bincount(bins, weights=confidence - correct, minlength=n_bins)
    gaps: _Floats = np.abs(sums) / np.maximum(counts, 1)
    return gaps, counts / len(confidence)
