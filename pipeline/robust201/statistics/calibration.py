"""How well confidences agree with accuracies.

Most of these need the softmax of every image, which a dataset does not store. `stored_calibration` gives what follows
from the means and counts that it does store, `binned_calibration` what follows from confidences in bins, if measured.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError

_Floats = NDArray[np.float64]

N_BINS = 15
"""Of Guo et al., "On calibration of modern neural networks", ICML 2017."""

_CONFIDENCE_BITS = 32
"""Fractional bits of a stored sum of confidences."""

NEEDS = (
    "the softmax of every image (N x C), which no dataset stores: compute it with your network, and pass it to "
    "robust201.statistics.calibration"
)
"""What metrics other than those of `stored_calibration` and `binned_calibration` need."""

BINS_NEED = "the measurement `calibration`"
"""What the errors of `binned_calibration` need."""


class CalibrationErrors(NamedTuple):
    """Calibration of a network on some images.

    Attributes:
        ece: expected calibration error, bins of equal width.
        ece_equal_mass: the same, bins of equally many images.
        maximum: the largest gap of a bin of equal width that holds an image.
        class_wise: mean over classes of the error of that class's probability, bins of equal width.
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
        n_bins: bins of the confidence.

    Raises:
        ConfigError: shapes do not fit, there are no images, or rows are no probabilities.

    Sources: ECE and maximum: Naeini, Cooper and Hauskrecht, AAAI 2015; Guo et al., ICML 2017. Equal mass: Nguyen and
    O'Connor, EMNLP 2015. Class-wise: Nixon et al., "Measuring calibration in deep learning", CVPR workshops 2019
    (static calibration error). Brier, Monthly Weather Review 78 (1950). AURC: Geifman, Uziel and El-Yaniv, ICLR 2019.
    """
    probabilities, classes = _checked(softmax, labels)
    predicted = probabilities.argmax(axis=1)
    confidence, correct = probabilities.max(axis=1), (predicted == classes).astype(np.float64)
    gaps, shares = _bin_gaps(confidence, correct, _width_bins(confidence, n_bins), n_bins)
    mass_gaps, mass_shares = _bin_gaps(confidence, correct, _mass_bins(confidence, n_bins), n_bins)
    truth = np.eye(probabilities.shape[1])[classes]
    by_class = [
        np.dot(*_bin_gaps(column, is_class, _width_bins(column, n_bins), n_bins))
        for column, is_class in zip(probabilities.T, truth.T, strict=True)
    ]
    return CalibrationErrors(
        ece=float(gaps @ shares),
        ece_equal_mass=float(mass_gaps @ mass_shares),
        maximum=float(gaps.max()),
        class_wise=float(np.mean(by_class)),
        brier=float(((probabilities - truth) ** 2).sum(axis=1).mean()),
        aurc=area_under_risk_coverage(confidence, correct),
    )


def area_under_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Average the error of the k most confident of N images over k = 1 … N; equal confidences have no order.

    Args:
        confidence: (N,), higher is surer.
        correct: (N,) 1 or 0.
    """
    scores, wrong = np.asarray(confidence, np.float64), 1 - np.asarray(correct, np.float64)
    _, groups = np.unique(-scores, return_inverse=True)
    sizes = np.bincount(groups)
    # Within a group of equal confidences, errors are expected evenly: the mean over all orders.
    even = (np.bincount(groups, weights=wrong) / sizes)[np.sort(groups)]
    errors = np.cumsum(even)
    return float(np.mean(errors / np.arange(1, len(scores) + 1)))


class StoredCalibration(NamedTuple):
    """What stored means and counts say of calibration.

    Attributes:
        confidence: mean confidence in the predicted class.
        accuracy: share of correct images.
        overconfidence: confidence - accuracy; its size is ECE of a single bin, which ECE of more bins is never below.
        class_gap: mean over images of the gap of their predicted class between mean confidence and accuracy in it:
            ECE with predicted classes for bins. NaN without the matrix of confidences.
        largest_class_gap: the largest of these gaps.
    """

    confidence: float
    accuracy: float
    overconfidence: float
    class_gap: float
    largest_class_gap: float


def stored_calibration(
    cm: ArrayLike, confidence_prediction: ArrayLike, confidence_argmax: ArrayLike | None = None
) -> StoredCalibration:
    """Compute what follows from the stored columns of an evaluation.

    Args:
        cm: (C, C) counts, rows true classes.
        confidence_prediction: (2,) mean confidence in the predicted class of right and of wrong images; NaN of none.
        confidence_argmax: (C, C) mean softmax by predicted class; rows without images are NaN.
    """
    counts = np.asarray(cm, np.float64)
    total, right = counts.sum(), np.trace(counts)
    means = np.nan_to_num(np.asarray(confidence_prediction, np.float64))
    confidence = float((right * means[0] + (total - right) * means[1]) / total)
    accuracy = float(right / total)
    class_gap = largest = np.nan
    if confidence_argmax is not None:
        predicted = counts.sum(axis=0)
        own = np.diagonal(np.asarray(confidence_argmax, np.float64))
        there = predicted > 0
        gaps = np.abs(own[there] - np.diagonal(counts)[there] / predicted[there])
        class_gap, largest = float(gaps @ predicted[there] / total), float(gaps.max())
    return StoredCalibration(confidence, accuracy, confidence - accuracy, class_gap, largest)


class BinnedCalibration(NamedTuple):
    """Calibration by confidences in bins of equal width.

    Attributes:
        ece: expected calibration error (see `CalibrationErrors`).
        maximum: the largest gap of a bin that holds an image.
    """

    ece: float
    maximum: float


def binned_calibration(counts: ArrayLike, confidence_sums: ArrayLike) -> BinnedCalibration:
    """Compute calibration from the stored bins of an evaluation, whose images need no stored softmax.

    Args:
        counts: (M, 2) images of each bin, and right images.
        confidence_sums: (M,) sums of their confidences in the predicted class, in units of 2**-32.
    """
    images, right = np.asarray(counts, np.int64).T
    # Differences of whole numbers: a bin that is calibrated exactly has no gap.
    gaps = np.abs(np.asarray(confidence_sums, np.int64) - (right << _CONFIDENCE_BITS)) / 2.0**_CONFIDENCE_BITS
    filled = images > 0
    return BinnedCalibration(float(gaps.sum() / images.sum()), float((gaps[filled] / images[filled]).max()))


def _checked(softmax: ArrayLike, labels: ArrayLike) -> tuple[_Floats, NDArray[np.int64]]:
    probabilities, classes = np.asarray(softmax, np.float64), np.asarray(labels)
    got = None
    if probabilities.ndim != 2 or classes.shape != probabilities.shape[:1] or not len(classes):
        got = f"shapes {probabilities.shape} and {classes.shape}"
    elif not (probabilities.min() >= 0 and np.abs(probabilities.sum(axis=1) - 1).max() <= 1e-3):
        got = "rows that are none"
    elif classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= probabilities.shape[1]:
        got = f"labels of {classes.dtype} from {classes.min()} to {classes.max()}"
    if got is not None:
        raise ConfigError(
            "Computing calibration failed for a network: expected probabilities (N, C) that add up to 1 and labels "
            f"(N,) below C, got {got}. Pass the softmax of every image."
        )
    return probabilities, classes.astype(np.int64)


def _width_bins(confidence: _Floats, n_bins: int) -> NDArray[np.int64]:
    """Bins ((m - 1) / M, m / M], the first with 0."""
    return np.clip(np.ceil(confidence * n_bins).astype(np.int64) - 1, 0, n_bins - 1)


def _mass_bins(confidence: _Floats, n_bins: int) -> NDArray[np.int64]:
    """Bins of equally many images in the order of confidence, sizes differing by one at most."""
    bins = np.empty(len(confidence), np.int64)
    bins[np.argsort(confidence, kind="stable")] = np.arange(len(confidence)) * n_bins // len(confidence)
    return bins


def _bin_gaps(confidence: _Floats, correct: _Floats, bins: NDArray[np.int64], n_bins: int) -> tuple[_Floats, _Floats]:
    """Return the gap of each bin between mean confidence and share of correct images, and its share of images."""
    counts = np.bincount(bins, minlength=n_bins)
    sums = np.bincount(bins, weights=confidence - correct, minlength=n_bins)
    gaps: _Floats = np.abs(sums) / np.maximum(counts, 1)
    return gaps, counts / len(confidence)
