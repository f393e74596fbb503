"""Largest eigenvalues of Hessians: comparison with dense matrices, independence from batches and starting vectors."""

import functools

import numpy as np
import pytest
import torch

from robust201.core.errors import EvaluationError
from robust201.measures.lanczos import largest_eigenvalues
from tests.measures.test_measure_modes import BatchNormNetwork
from tests.support.tiny_networks import (
    PathlessNetwork,
    measure_network,
    tiny_classifier,
    tiny_images,
)

measure = functools.partial(measure_network, seed=0, tolerance=1e-4)


@pytest.mark.parametrize("key", ["hessian_weights", "hessian_input"])
def test_result_does_not_depend_on_batches_or_starting_vectors(key):
    images, classifier = tiny_images(4), tiny_classifier(BatchNormNetwork())
    expected = measure(key, images, classifier)
    assert measure(key, images, tiny_classifier(BatchNormNetwork(), micro_batch=3)) == pytest.approx(expected, rel=1e-4)
    other_start_result = measure(key, images, classifier, seed=1)
    assert other_start_result == pytest.approx(expected, rel=1e-4)
    assert other_start_result != expected
    assert measure(key, images, classifier) == expected


@pytest.mark.parametrize("has_gradients", [True, False])
def test_hessian_eigenvalues_match_formula_for_constant_networks(has_gradients):
    """The Hessian of the loss with respect to constant logits is diag(p) - pp'."""
    classifier = tiny_classifier(PathlessNetwork([1.0, 0.0, 0.5, 0.0, -1.0], has_gradients=has_gradients))
    images = tiny_images(5, classifier=classifier)
    assert measure("hessian_input", images, classifier) == {"largest": 0.0, "largest_sd": 0.0}
    probabilities = classifier.network.logits.double().softmax(dim=0)
    expected = torch.linalg.eigvalsh(probabilities.diag() - torch.outer(probabilities, probabilities))[-1]
    result = measure("hessian_weights", images, classifier)
    assert result["largest"] == result["largest_summed"] == pytest.approx(float(expected), rel=1e-5)


def operator_of(*matrices):
    stacked = torch.stack([torch.as_tensor(matrix) for matrix in matrices])
    return lambda vectors: torch.einsum("bij,bj->bi", stacked.float(), vectors)


def eigenvalues_of(*matrices, steps=50, tolerance=1e-6, seed=0):
    start = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(matrices), len(matrices[0]))))
    return largest_eigenvalues(operator_of(*matrices), start, steps=steps, tolerance=tolerance, name="matrices")


def test_lanczos_supports_operators_of_different_rank():
    """Operators that are zero, negative or of low rank do not affect the results of other operators."""
    matrix = np.random.default_rng(1).normal(size=(30, 30))
    symmetric = matrix + matrix.T
    rank_one = np.zeros((30, 30))
    rank_one[2, 2] = 5.0
    result = eigenvalues_of(symmetric, rank_one, -np.eye(30) - rank_one, np.zeros((30, 30)), -np.eye(30))
    expected = [np.linalg.eigvalsh(symmetric)[-1], 5.0, -1.0, 0.0, -1.0]
    assert result == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_lanczos_raises_error_if_it_does_not_converge():
    with pytest.raises(EvaluationError, match=r"1e-06 or less within 4 steps, got .* Raise `tolerance` or `steps`"):
        eigenvalues_of(np.diag(np.linspace(-1, 1, 60)), steps=4)


def test_lanczos_rejects_nan():
    with pytest.raises(EvaluationError, match="expected finite Hessian-vector products, got NaN"):
        eigenvalues_of(np.full((6, 6), np.nan))
