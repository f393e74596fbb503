"""Calibration metrics equal their definitions, written out image by image."""

import itertools

import numpy as np
import pytest

from robust201.core.errors import ConfigError
from robust201.statistics.calibration import area_under_risk_coverage, calibration_errors, stored_calibration


@pytest.fixture(scope="module")
def answers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(403, 4))
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.where(rng.random(403) < 0.6, softmax.argmax(axis=1), rng.integers(0, 4, 403))
    return softmax, labels


def binned(confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> tuple[float, float]:
    """Expected and largest gap of bins (low, high], the first with its lower edge."""
    gaps, shares = [], []
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high) | ((low == 0) & (confidence == 0))
        if inside.any():
            gaps.append(abs(confidence[inside].mean() - correct[inside].mean()))
            shares.append(inside.mean())
    return float(np.dot(gaps, shares)), max(gaps)


def test_metrics_are_their_definitions(answers: tuple[np.ndarray, np.ndarray]) -> None:
    softmax, labels = answers
    found = calibration_errors(softmax, labels, n_bins=10)
    confidence, correct = softmax.max(axis=1), softmax.argmax(axis=1) == labels
    edges = np.linspace(0, 1, 11)
    assert (found.ece, found.maximum) == pytest.approx(binned(confidence, correct, edges))
    by_class = [binned(softmax[:, c], labels == c, edges)[0] for c in range(4)]
    assert found.class_wise == pytest.approx(np.mean(by_class))
    order = np.argsort(confidence)
    parts = np.array_split(order, 10)
    gaps = [abs(confidence[part].mean() - correct[part].mean()) * len(part) / 403 for part in parts]
    assert found.ece_equal_mass == pytest.approx(sum(gaps), abs=0.01)  # parts differ in which is one larger
    assert found.brier == pytest.approx(((softmax - np.eye(4)[labels]) ** 2).sum() / 403)
    wrong = ~correct[np.argsort(-confidence)]
    assert found.aurc == pytest.approx(np.mean([wrong[:k].mean() for k in range(1, 404)]))


def test_equal_confidences_have_no_order() -> None:
    confidence, correct = np.array([0.9, 0.5, 0.5, 0.5]), np.array([1, 0, 1, 1])
    orders = [[1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
    expected = np.mean([np.mean([1 - np.mean(order[:k]) for k in range(1, 5)]) for order in orders])
    assert area_under_risk_coverage(confidence, correct) == pytest.approx(expected)
    assert area_under_risk_coverage(confidence[::-1], correct[::-1]) == pytest.approx(expected)


def test_stored_means_say_as_much_as_they_can(answers: tuple[np.ndarray, np.ndarray]) -> None:
    softmax, labels = answers
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
def test_what_is_no_softmax_is_refused(softmax: np.ndarray, labels: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"expected probabilities \(N, C\)"):
        calibration_errors(softmax, labels)
