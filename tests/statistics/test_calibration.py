"""Calibration metrics match their definitions, computed image by image."""

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


def binned(confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> tuple[float, float]:
    """Return the expected and the largest gap over bins (low, high], where the first includes 0."""
    gaps, fractions = [], []
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high) | ((low == 0) & (confidence == 0))
        if inside.any():
            gaps.append(abs(confidence[inside].mean() - correct[inside].mean()))
            fractions.append(inside.mean())
    return float(np.dot(gaps, fractions)), max(gaps)


def test_calibration_errors_match_their_definitions(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    softmax, labels = predictions
    result = calibration_errors(softmax, labels, n_bins=10)
    confidence, correct = softmax.max(axis=1), softmax.argmax(axis=1) == labels
    edges = np.linspace(0, 1, 11)
    assert (result.ece, result.maximum) == pytest.approx(binned(confidence, correct, edges))
    by_class = [binned(softmax[:, c], labels == c, edges)[0] for c in range(4)]
    assert result.class_wise == pytest.approx(np.mean(by_class))
    order = np.argsort(confidence)
    parts = np.array_split(order, 10)
    gaps = [abs(confidence[part].mean() - correct[part].mean()) * len(part) / 403 for part in parts]
    assert result.ece_equal_mass == pytest.approx(sum(gaps), abs=0.01)  # the larger parts are different ones
    assert result.brier == pytest.approx(((softmax - np.eye(4)[labels]) ** 2).sum() / 403)
    wrong = ~correct[np.argsort(-confidence)]
    assert result.aurc == pytest.approx(np.mean([wrong[:k].mean() for k in range(1, 404)]))


def test_binned_calibration_matches_errors_from_softmax(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    softmax, labels = predictions
    # Add an image at the upper end of the last bin, with confidence 1.
    softmax = np.concatenate([softmax, np.eye(4)[:1]])
    labels = np.concatenate([labels, [0]])
    parts = []
    for rows in (slice(0, 150), slice(150, 404)):
        accumulator = Accumulator(["calibration"], 4, "cpu", rows.stop - rows.start)
        logits = torch.from_numpy(np.log(softmax[rows].clip(1e-30))).float()
        accumulator.update(torch.arange(len(logits)), logits, torch.from_numpy(labels[rows]))
        parts.append(accumulator.finalise())
    stored = merge_values(parts)
    result = binned_calibration(stored["calibration_counts"], stored["calibration_confidence"])
    expected = calibration_errors(softmax, labels)
    assert result == pytest.approx((expected.ece, expected.maximum), abs=1e-6)
    assert stored["calibration_counts"][:, 0].sum() == 404
    assert stored["calibration_counts"][-1, 1] > 0


def test_binned_calibration_matches_hand_calculation() -> None:
    counts = np.zeros((15, 2), np.int32)
    sums = np.zeros(15, np.int64)
    counts[7], sums[7] = (4, 1), round(4 * 0.5 * 2**32)  # mean confidence 0.5, a quarter right
    counts[14], sums[14] = (6, 6), round(6 * 0.95 * 2**32)  # mean confidence 0.95, all right
    result = binned_calibration(counts, sums)
    assert result == pytest.approx((0.4 * 0.25 + 0.6 * 0.05, 0.25))


def test_area_under_risk_coverage_averages_ties() -> None:
    confidence, correct = np.array([0.9, 0.5, 0.5, 0.5]), np.array([1, 0, 1, 1])
    orders = [[1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
    expected = np.mean([np.mean([1 - np.mean(order[:k]) for k in range(1, 5)]) for order in orders])
    assert area_under_risk_coverage(confidence, correct) == pytest.approx(expected)
    assert area_under_risk_coverage(confidence[::-1], correct[::-1]) == pytest.approx(expected)


def test_stored_calibration_matches_per_image_values(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    softmax, labels = predictions
    predicted, confidence = softmax.argmax(axis=1), softmax.max(axis=1)
    correct = predicted == labels
    cm = np.zeros((4, 4), int)
    np.add.at(cm, (labels, predicted), 1)
    argmax = np.array([softmax[predicted == c].mean(axis=0) for c in range(4)])
    stored = stored_calibration(cm, [confidence[correct].mean(), confidence[~correct].mean()], argmax)
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
