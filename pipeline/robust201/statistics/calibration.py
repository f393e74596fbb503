"""Calibration metrics, which measure how well a network's confidences agree with its accuracies.

Most metrics need the softmax of every image, which a dataset does not store. `stored_calibration` needs only stored
means and counts. `binned_calibration` needs binned confidences, which the measurement `calibration` stores.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError

_Floats = NDArray[np.float64]

N_BINS = 15
"""Default number of bins, as in Guo et al., "On calibration of modern neural networks", ICML 2017."""

FRACTION_BITS = 32
"""Fractional bits of a stored sum of confidences."""

SOFTMAX_REQUIREMENT = (
    "the softmax of every image (N x C), which no dataset stores: compute it with your network, and pass it to "
    "robust201.statistics.calibration"
)
"""Description of the input of `calibration_errors`, for messages."""

BINS_REQUIREMENT = "the measurement `calibration`"
"""Description of the input of `binned_calibration`, for messages."""


class CalibrationErrors(NamedTuple):
    """Calibration of a network on some images.

    Attributes:
        ece: expected calibration error, with bins of equal width.
        ece_equal_mass: expected calibration error, with bins of equally many images.
        maximum: largest gap between mean confidence and accuracy in a non-empty bin, with bins of equal width.
        class_wise: calibration error of each class's probability, with bins of equal width, averaged over classes.
        brier: mean over images of the squared distance between the softmax and the one-hot label, in [0, 2].
        aurc: area under the risk-coverage curve, that is, the error of the k most confident images, averaged over k.
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
        ConfigError: the shapes do not match, there are no images, or rows of `softmax` are not probabilities.

    Sources: ECE and maximum: Naeini, Cooper and Hauskrecht, AAAI 2015; Guo et al., ICML 2017. Equal mass: Nguyen and
    O'Connor, EMNLP 2015. Class-wise: Nixon et al., "Measuring calibration in deep learning", CVPR workshops 2019
    (static calibration error). Brier, Monthly Weather Review 78 (1950). AURC: Geifman, Uziel and El-Yaniv, ICLR 2019.
    """
    probabilities, classes = _check_probabilities(softmax, labels)
    predicted_classes = probabilities.argmax(axis=1)
    confidence, correct = probabilities.max(axis=1), (predicted_classes == classes).astype(np.float64)
    gaps, fractions = _bin_gaps(confidence, correct, _equal_width_bins(confidence, n_bins), n_bins)
    mass_gaps, mass_fractions = _bin_gaps(confidence, correct, _equal_mass_bins(confidence, n_bins), n_bins)
    one_hot_labels = np.eye(probabilities.shape[1])[classes]
    class_errors = [
        np.dot(*_bin_gaps(class_probabilities, is_class, _equal_width_bins(class_probabilities, n_bins), n_bins))
        for class_probabilities, is_class in zip(probabilities.T, one_hot_labels.T, strict=True)
    ]
    return CalibrationErrors(
        ece=float(gaps @ fractions),
        ece_equal_mass=float(mass_gaps @ mass_fractions),
        maximum=float(gaps.max()),
        class_wise=float(np.mean(class_errors)),
        brier=float(((probabilities - one_hot_labels) ** 2).sum(axis=1).mean()),
        aurc=area_under_risk_coverage(confidence, correct),
    )


def area_under_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the error of the k most confident of N images, averaged over k = 1 … N and over orders of ties.

    Args:
        confidence: (N,) scores; higher is more confident.
        correct: (N,) 1 for correctly classified images, 0 for misclassified images.
    """
    scores, errors = np.asarray(confidence, np.float64), 1 - np.asarray(correct, np.float64)
    _, groups = np.unique(-scores, return_inverse=True)
    sizes = np.bincount(groups)
    # Spreading the errors evenly within a group of equal confidences gives the mean over all orders.
    expected_errors = (np.bincount(groups, weights=errors) / sizes)[np.sort(groups)]
    cumulative_errors = np.cumsum(expected_errors)
    return float(np.mean(cumulative_errors / np.arange(1, len(scores) + 1)))


class StoredCalibration(NamedTuple):
    """Calibration metrics that can be computed from stored means and counts.

    Attributes:
        confidence: mean confidence in the predicted class.
        accuracy: fraction of correct images.
        overconfidence: confidence - accuracy; its absolute value is the ECE with a single bin, a lower bound of the ECE
            with more bins.
        class_gap: ECE with predicted classes as bins: the gap between mean confidence and accuracy in the predicted
            class, averaged over images. NaN without `confidence_argmax`.
        largest_class_gap: largest gap of a predicted class.
    """

    confidence: float
    accuracy: float
    overconfidence: float
    class_gap: float
    largest_class_gap: float


def stored_calibration(
    cm: ArrayLike, confidence_prediction: ArrayLike, confidence_argmax: ArrayLike | None = None
) -> StoredCalibration:
    """Compute calibration metrics from the stored columns of an evaluation.

    Args:
        cm: (C, C) confusion matrix of counts, with one row per true class.
        confidence_prediction: (2,) mean confidence in the predicted class, over correct and over misclassified images;
            NaN if there are no such images.
        confidence_argmax: (C, C) mean softmax by predicted class; rows without images are NaN.
    """
    confusion = np.asarray(cm, np.float64)
    n_images, n_correct = confusion.sum(), np.trace(confusion)
    mean_confidences = np.nan_to_num(np.asarray(confidence_prediction, np.float64))
    confidence = float((n_correct * mean_confidences[0] + (n_images - n_correct) * mean_confidences[1]) / n_images)
    accuracy = float(n_correct / n_images)
    class_gap = largest_gap = np.nan
    if confidence_argmax is not None:
        predicted_counts = confusion.sum(axis=0)
        class_confidences = np.diagonal(np.asarray(confidence_argmax, np.float64))
        has_images = predicted_counts > 0
        gaps = np.abs(class_confidences[has_images] - np.diagonal(confusion)[has_images] / predicted_counts[has_images])
        class_gap, largest_gap = float(gaps @ predicted_counts[has_images] / n_images), float(gaps.max())
    return StoredCalibration(confidence, accuracy, confidence - accuracy, class_gap, largest_gap)


class BinnedCalibration(NamedTuple):
    """Calibration metrics from confidences in bins of equal width.

    Attributes:
        ece: expected calibration error (see `CalibrationErrors`).
        maximum: largest gap between mean confidence and accuracy in a non-empty bin.
    """

    ece: float
    maximum: float


def binned_calibration(counts: ArrayLike, confidence_sums: ArrayLike) -> BinnedCalibration:
    """Compute calibration metrics from the stored bins of an evaluation.

    Args:
        counts: (M, 2) number of images, and number of correct images, in each bin.
        confidence_sums: (M,) sums of confidences in the predicted class, in units of 2**-32.
    """
    n_images, n_correct = np.asarray(counts, np.int64).T
    # The subtraction is on integers, so that a perfectly calibrated bin has a gap of exactly 0.
    gaps = np.abs(np.asarray(confidence_sums, np.int64) - (n_correct << FRACTION_BITS)) / 2.0**FRACTION_BITS
    has_images = n_images > 0
    return BinnedCalibration(float(gaps.sum() / n_images.sum()), float((gaps[has_images] / n_images[has_images]).max()))


def _check_probabilities(softmax: ArrayLike, labels: ArrayLike) -> tuple[_Floats, NDArray[np.int64]]:
    probabilities, classes = np.asarray(softmax, np.float64), np.asarray(labels)
    problem = None
    if probabilities.ndim != 2 or classes.shape != probabilities.shape[:1] or not len(classes):
        problem = f"the shapes are {probabilities.shape} and {classes.shape}"
    elif not (probabilities.min() >= 0 and np.abs(probabilities.sum(axis=1) - 1).max() <= 1e-3):
        problem = "some rows do not add up to 1 or have negative numbers"
    elif classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= probabilities.shape[1]:
        problem = f"the labels ({classes.dtype}) are from {classes.min()} to {classes.max()}"
    if problem is not None:
        raise ConfigError(
            "Computing calibration failed for a network: expected probabilities (N, C) that add up to 1 and labels "
            f"(N,) below C, but {problem}. Pass the softmax of every image."
        )
    return probabilities, classes.astype(np.int64)


def _equal_width_bins(confidence: _Floats, n_bins: int) -> NDArray[np.int64]:
    """Return the bin index m of each confidence; bin m of M is (m / M, (m + 1) / M], and bin 0 also contains 0."""
    return np.clip(np.ceil(confidence * n_bins).astype(np.int64) - 1, 0, n_bins - 1)


def _equal_mass_bins(confidence: _Floats, n_bins: int) -> NDArray[np.int64]:
    """Return the bin index of each confidence, for bins whose numbers of images differ by at most one."""
    bins = np.empty(len(confidence), np.int64)
    bins[np.argsort(confidence, kind="stable")] = np.arange(len(confidence)) * n_bins // len(confidence)
    return bins


def _bin_gaps(confidence: _Floats, correct: _Floats, bins: NDArray[np.int64], n_bins: int) -> tuple[_Floats, _Floats]:
    """Return the gap between mean confidence and accuracy in each bin, and the bin's fraction of the images."""
    bin_sizes = np.bincount(bins, minlength=n_bins)
    gap_sums = np.bincount(bins, weights=confidence - correct, minlength=n_bins)
    gaps: _Floats = np.abs(gap_sums) / np.maximum(bin_sizes, 1)
    return gaps, bin_sizes / len(confidence)
