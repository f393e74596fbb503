"""The ensemble: gradients against finite differences, the same numbers alone and in a stack, and that it learns."""

import numpy as np
import pytest

from robust201.search import ensemble
from robust201.search.ensemble import fit_and_predict


def data(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = (rng.random((n, 30)) < 0.15).astype(np.float32)
    return features, 10 + 20 * features[:, :5].sum(axis=1) + 3 * features[:, 5:].sum(axis=1)


def test_gradients_equal_finite_differences() -> None:
    networks = ensemble._Networks([np.random.default_rng(0)], 1, 3)
    rng = np.random.default_rng(1)
    inputs = np.ones((1, 8, 4), dtype=np.float32)
    inputs[:, :, :3] = rng.random((1, 8, 3))
    expected = rng.random((1, 8, 1)).astype(np.float32)
    start = networks.parameters.copy()

    def loss(parameters: np.ndarray) -> float:
        networks.parameters[:] = parameters
        return float(np.abs(networks.predict(inputs[0, :, :3], 0, 1)[0] - expected[0, :, 0]).mean())

    networks.step(inputs, expected)
    gradients = networks.gradients.copy()
    movable = np.flatnonzero(np.abs(gradients) > 1e-3)
    assert len(movable) > 50
    for place in rng.choice(movable, 20, replace=False):
        step = np.zeros_like(start)
        step[place] = 1e-3
        slope = (loss(start + step) - loss(start - step)) / 2e-3
        assert slope == pytest.approx(gradients[place], rel=0.1, abs=2e-3)


def test_the_unit_that_is_one_stays_one() -> None:
    networks = ensemble._Networks([np.random.default_rng(0)], 2, 3)
    inputs = np.ones((2, 8, 4), dtype=np.float32)
    for _ in range(5):
        networks.step(inputs, np.zeros((2, 8, 1), dtype=np.float32))
    for layer in networks.weights[:-1]:
        assert (layer[:, -1, -1] == 1).all()
        assert (layer[:, :-1, -1] == 0).all()


def test_numbers_do_not_depend_on_the_stack() -> None:
    several = [data(seed, 40) for seed in range(3)]
    wanted = [data(9 + seed, 20 + seed)[0] for seed in range(3)]

    def fit(places: list[int]) -> list[np.ndarray]:
        return fit_and_predict(
            [several[place][0] for place in places],
            [several[place][1] for place in places],
            [wanted[place] for place in places],
            [np.random.default_rng(place) for place in places],
            size=2,
            epochs=3,
        )

    together = fit([0, 1, 2])
    for place in range(3):
        np.testing.assert_array_equal(fit([place])[0], together[place])


def test_no_moment_becomes_subnormal() -> None:
    features, targets = data(0, 32)
    networks = ensemble._Networks([np.random.default_rng(0)], 2, 30)
    inputs = np.ones((2, 32, 31), dtype=np.float32)
    inputs[:, :, :30] = features
    expected = np.broadcast_to(targets.astype(np.float32)[None, :, None], (2, 32, 1))
    for _ in range(1000):
        networks.step(inputs, expected)
    moments = np.abs(networks.first)
    assert (networks.gradients == 0).mean() > 0.1  # units that are never active
    assert moments[moments > 0].min() > np.finfo(np.float32).tiny


def test_it_learns() -> None:
    features, targets = data(0, 150)
    wanted, truth = data(1, 100)
    (predicted,) = fit_and_predict([features], [targets], [wanted], [np.random.default_rng(0)], size=2, epochs=60)
    assert np.corrcoef(predicted.mean(axis=0), truth)[0, 1] > 0.95
