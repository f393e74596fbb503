"""Ensembles have correct gradients and Adam steps, and learn."""

import numpy as np
import pytest

from robust201.search import ensemble
from robust201.search.ensemble import fit_and_predict


def make_problem(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n random inputs with 30 binary features, and targets that are linear in the features."""
    rng = np.random.default_rng(seed)
    features = (rng.random((n, 30)) < 0.15).astype(np.float32)
    return features, 10 + 20 * features[:, :5].sum(axis=1) + 3 * features[:, 5:].sum(axis=1)


def make_batch(seed: int, n: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (n, count, 4) for n networks, with three features and a constant 1, and outputs (n, count)."""
    rng = np.random.default_rng(seed)
    inputs = np.ones((n, count, 4), dtype=np.float32)
    inputs[:, :, :3] = rng.random((n, count, 3))
    return inputs, rng.random((n, count)).astype(np.float32)


def test_gradients_match_finite_differences_in_float64():
    networks = ensemble._Networks(np.random.default_rng(0), 1, 3)
    inputs, expected = make_batch(1, 1, 8)
    layers = [layer[0].astype(np.float64) for layer in networks.weights]

    def loss() -> float:
        activations = inputs[0].T.astype(np.float64)
        for layer in layers[:-1]:
            activations = np.concatenate([np.maximum(layer @ activations, 0), np.ones((1, 8))])
        return float(np.abs(layers[-1] @ activations - expected[0]).mean())

    networks.step(inputs, expected)
    rng = np.random.default_rng(2)
    for layer, gradients in zip(layers, networks.weight_gradients, strict=True):
        assert np.abs(gradients).max() > 1e-3
        for index in rng.choice(layer.size, 20, replace=False):
            original = layer.flat[index]
            losses = []
            for offset in (1e-6, -1e-6):
                layer.flat[index] = original + offset
                losses.append(loss())
            layer.flat[index] = original
            assert gradients[0].flat[index] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-3, abs=1e-6)


def test_steps_match_adam():
    """The expected update follows Kingma and Ba, ICLR 2015; one batch has a different size."""
    networks = ensemble._Networks(np.random.default_rng(0), 2, 3)
    first_moment = second_moment = np.zeros(len(networks.parameters))
    for step, count in enumerate((8, 8, 3, 8), start=1):
        previous_parameters = networks.parameters.astype(np.float64)
        networks.step(*make_batch(step, 2, count))
        first_moment = 0.9 * first_moment + 0.1 * networks.gradients
        second_moment = 0.99 * second_moment + 0.01 * networks.gradients.astype(np.float64) ** 2
        mean, variance = first_moment / (1 - 0.9**step), second_moment / (1 - 0.99**step)
        expected = previous_parameters - 0.01 * mean / (np.sqrt(variance) + 1e-7)
        np.testing.assert_allclose(networks.parameters, expected, atol=1e-6)


def test_fit_and_predict_learns_linear_targets():
    features, targets = make_problem(0, 150)
    points, expected = make_problem(1, 100)
    predicted = fit_and_predict(features, targets, points, np.random.default_rng(0), size=2, epochs=60)
    assert np.corrcoef(predicted.mean(axis=0), expected)[0, 1] > 0.95
