"""Calibration from stored means: how well a network's mean confidences agree with its accuracies."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


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
