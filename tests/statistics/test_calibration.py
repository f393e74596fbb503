"""Calibration metrics equal their definitions, computed image by image."""

import itertools

import numpy as np
import pytest
import torch

from robust201.core.errors import ConfigError
from robust201.statistics.calibration import (
    area_under_risk_coverage,
    binned_calibration,
    calibration_errors,
    stored_calibration,
)
from robust201.tasks.measurements import Accumulator, merge_values


@pytest.fixture(scope="module")
def predictions() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(403, 4))
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.where(rng.random(403) < 0.6, softmax.argmax(axis=1), rng.integers(0, 4, 403))
    return softmax, labels


def expected_and_maximum_gap(confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> tuple[float, float]:
    """Return the mean gap over images and the largest gap, for bins (low, high]; the first bin includes 0."""
    gaps, fractions = [], []
    for low, high in itertools.pairwise(edges):
        is_in_bin = (confidence > low) & (confidence <= high) | ((low == 0) & (confidence == 0))
        if is_in_bin.any():
            gaps.append(abs(confidence[is_in_bin].mean() - correct[is_in_bin].mean()))
            fractions.append(is_in_bin.mean())
    return float(np.dot(gaps, fractions)), max(gaps)


def test_calibration_errors_match_their_definitions(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    softmax, labels = predictions
    result = calibration_errors(softmax, labels, n_bins=10)
    confidence, correct = softmax.max(axis=1), softmax.argmax(axis=1) == labels
    edges = np.linspace(0, 1, 11)
    assert (result.ece, result.maximum) == pytest.approx(expected_and_maximum_gap(confidence, correct, edges))
    class_errors = [expected_and_maximum_gap(softmax[:, c], labels == c, edges)[0] for c in range(4)]
    assert result.class_wise == pytest.approx(np.mean(class_errors))
    bins = np.array_split(np.argsort(confidence), 10)
    gaps = [abs(confidence[images].mean() - correct[images].mean()) * len(images) / 403 for images in bins]
    # If bins cannot be equal, NumPy chooses different bins to have one more image, so the results differ slightly.
    assert result.ece_equal_mass == pytest.approx(sum(gaps), abs=0.01)
    assert result.brier == pytest.approx(((softmax - np.eye(4)[labels]) ** 2).sum() / 403)
    is_wrong = ~correct[np.argsort(-confidence)]
    assert result.aurc == pytest.approx(np.mean([is_wrong[:k].mean() for k in range(1, 404)]))


def test_binned_calibration_matches_errors_from_softmax(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    softmax, labels = predictions
    # An added image has confidence 1, which is the upper end of the last bin.
    softmax = np.concatenate([softmax, np.eye(4)[:1]])
    labels = np.concatenate([labels, [0]])
    stored_values = []
    for batch in (slice(0, 150), slice(150, 404)):
        accumulator = Accumulator(["calibration"], 4, "cpu", batch.stop - batch.start)
        logits = torch.from_numpy(np.log(softmax[batch].clip(1e-30))).float()
        accumulator.update(torch.arange(len(logits)), logits, torch.from_numpy(labels[batch]))
        stored_values.append(accumulator.finalise())
    stored = merge_values(stored_values)
    result = binned_calibration(stored["calibration_counts"], stored["calibration_confidence"])
    expected = calibration_errors(softmax, labels)
    assert result == pytest.approx((expected.ece, expected.maximum), abs=1e-6)
    assert stored["calibration_counts"][:, 0].sum() == 404
    assert stored["calibration_counts"][-1, 1] > 0


def test_binned_calibration_matches_hand_calculation() -> None:
    bin_counts = np.zeros((15, 2), np.int32)
    confidence_sums = np.zeros(15, np.int64)
    bin_counts[7], confidence_sums[7] = (4, 1), round(4 * 0.5 * 2**32)  # mean confidence 0.5, accuracy 0.25
    bin_counts[14], confidence_sums[14] = (6, 6), round(6 * 0.95 * 2**32)  # mean confidence 0.95, accuracy 1
    result = binned_calibration(bin_counts, confidence_sums)
    assert result == pytest.approx((0.4 * 0.25 + 0.6 * 0.05, 0.25))


def test_area_under_risk_coverage_averages_ties() -> None:
    confidence, correct = np.array([0.9, 0.5, 0.5, 0.5]), np.array([1, 0, 1, 1])
    orders = [[1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
    expected = np.mean([np.mean([1 - np.mean(order[:k]) for k in range(1, 5)]) for order in orders])
    assert area_under_risk_coverage(confidence, correct) == pytest.approx(expected)
    assert area_under_risk_coverage(confidence[::-1], correct[::-1]) == pytest.approx(expected)


def test_stored_calibration_matches_calibration_from_softmax(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    softmax, labels = predictions
    predicted, confidence = softmax.argmax(axis=1), softmax.max(axis=1)
    correct = predicted == labels
    cm = np.zeros((4, 4), int)
    np.add.at(cm, (labels, predicted), 1)
    confidence_argmax = np.array([softmax[predicted == c].mean(axis=0) for c in range(4)])
    stored = stored_calibration(cm, [confidence[correct].mean(), confidence[~correct].mean()], confidence_argmax)
    assert stored.confidence == pytest.approx(confidence.mean())
    assert stored.overconfidence == pytest.approx(confidence.mean() - correct.mean())
    gaps = [abs(confidence[predicted == c].mean() - correct[predicted == c].mean()) for c in range(4)]
    assert stored.class_gap == pytest.approx(np.dot(gaps, np.bincount(predicted) / 403))
    assert stored.largest_class_gap == pytest.approx(max(gaps))
    assert abs(stored.overconfidence) <= calibration_errors(softmax, labels).ece + 1e-12
    assert np.isnan(stored_calibration(cm, [0.9, 0.5]).class_gap)


@pytest.mark.parametrize(
    ("softmax", "labels"),
    [
        (np.ones((2, 2)), np.array([0, 1])),
        (np.eye(2), np.array([0, 2])),
        (np.eye(2), np.array([0])),
        (np.empty((0, 2)), np.empty(0, int)),
        (np.array([[1.5, -0.5]]), np.array([0])),
        (np.array([[np.nan, 1.0]]), np.array([0])),
    ],
)
def test_calibration_errors_reject_invalid_softmax(softmax: np.ndarray, labels: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"expected probabilities \(N, C\)"):
        calibration_errors(softmax, labels)
