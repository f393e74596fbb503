"""Largest eigenvalues of Hessians: what brute force finds, whatever the images are cut into."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional

from robust201.core.errors import EvaluationError
from robust201.tasks import find_task
from robust201.tasks.measures.lanczos import largest_eigenvalues
from robust201.tasks.measures.parameters import HessianWeightsParameters
from tests.support.tiny_networks import (
    N_CLASSES,
    PathlessNetwork,
    request_of,
    tiny_classifier,
    tiny_context,
    tiny_images,
)


class SmoothNetwork(nn.Module):
    """Second derivatives of its own, not only those of the loss: what a piecewise linear network does not have."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, stride=3), nn.BatchNorm2d(4), nn.Tanh())
            self.classifier = nn.Linear(16, N_CLASSES)
            self.stem[1].running_mean.uniform_(-0.2, 0.2)
            self.stem[1].running_var.uniform_(0.5, 2.0)
        for weight in self.parameters():
            weight.data *= 2

    def forward(self, pixels):
        return self.classifier(self.stem(pixels).flatten(1))


def measured(key, shown, classifier=None, *, seed=0, **parameters):
    row = find_task(key)
    parameters = {"tolerance": 1e-4} | parameters
    context = dataclasses.replace(tiny_context(key, classifier), seed=seed)
    found = row.load("fused")(context, row.parameters(**parameters), request_of(shown, (0.0,)))
    return {name: float(value) for name, value in found.items()}


def exact_weights(network, images, classifier):
    """Largest eigenvalue of the whole matrix, in float64."""
    network = network.double().eval()
    pixels = ((torch.from_numpy(images.images) / 255 - classifier.mean) / classifier.std).double()
    labels = torch.from_numpy(images.labels)
    names, weights = zip(*((name, weight.detach()) for name, weight in network.named_parameters()), strict=True)

    def loss(*given):
        logits = torch.func.functional_call(network, dict(zip(names, given, strict=True)), (pixels,))
        return functional.cross_entropy(logits, labels)

    blocks = torch.autograd.functional.hessian(loss, weights)
    sizes = [weight.numel() for weight in weights]
    rows = [torch.cat([block.reshape(n, -1) for block in row], dim=1) for n, row in zip(sizes, blocks, strict=True)]
    return float(torch.linalg.eigvalsh(torch.cat(rows))[-1])


def test_weights_as_the_whole_matrix_has_it():
    images, network = tiny_images(12), SmoothNetwork()
    found = measured("hessian_weights", images, tiny_classifier(network), images=12, batch=4)
    expected = exact_weights(SmoothNetwork(), images, tiny_classifier(network))
    assert expected > 0.1
    assert found["largest"] == pytest.approx(expected, rel=1e-4)
    assert found["largest_summed"] == 3 * found["largest"]


@pytest.mark.parametrize("shown", ["normalised", "pixels"])
def test_input_as_the_whole_matrices_have_it(shown):
    images, network = tiny_images(3), SmoothNetwork()
    classifier = tiny_classifier(network)
    pixels, labels = torch.from_numpy(images.images) / 255, torch.from_numpy(images.labels)
    given = pixels if shown == "pixels" else (pixels - classifier.mean) / classifier.std
    model = classifier if shown == "pixels" else network

    matrices = [
        torch.autograd.functional.hessian(lambda x, n=n: functional.cross_entropy(model(x[None]), labels[n : n + 1]), x)
        for n, x in enumerate(given)
    ]
    expected = torch.linalg.eigvalsh(torch.stack(matrices).reshape(-1, 192, 192).double())[:, -1]
    found = measured("hessian_input", images, classifier, input=shown)
    assert found["largest"] == pytest.approx(float(expected.mean()), rel=1e-4)
    assert found["largest_sd"] == pytest.approx(float(expected.std(correction=0)), rel=1e-4)


@pytest.mark.parametrize("key", ["hessian_weights", "hessian_input"])
def test_pieces_and_starts_leave_no_trace(key):
    images, classifier = tiny_images(4), tiny_classifier(SmoothNetwork())
    whole = measured(key, images, classifier)
    assert measured(key, images, tiny_classifier(SmoothNetwork(), micro_batch=3)) == pytest.approx(whole, rel=1e-4)
    other = measured(key, images, classifier, seed=1)
    assert other == pytest.approx(whole, rel=1e-4)
    assert other != whole
    assert measured(key, images, classifier) == whole


@pytest.mark.parametrize("in_graph", [True, False])
def test_constant_networks(in_graph):
    """The loss of constant logits curves with these alone: by diag(p) - pp'."""
    classifier = tiny_classifier(PathlessNetwork([1.0, 0.0, 0.5, 0.0, -1.0], in_graph=in_graph))
    images = tiny_images(5, classifier=classifier)
    assert measured("hessian_input", images, classifier) == {"largest": 0.0, "largest_sd": 0.0}
    shares = classifier.network.logits.double().softmax(dim=0)
    expected = torch.linalg.eigvalsh(shares.diag() - torch.outer(shares, shares))[-1]
    found = measured("hessian_weights", images, classifier)
    assert found["largest"] == found["largest_summed"] == pytest.approx(float(expected), rel=1e-5)


def by_matrices(*matrices):
    stacked = torch.stack([torch.as_tensor(matrix) for matrix in matrices])
    return lambda vectors: torch.einsum("bij,bj->bi", stacked.float(), vectors)


def eigenvalues_of(*matrices, steps=50, tolerance=1e-6, seed=0):
    start = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(matrices), len(matrices[0]))))
    return largest_eigenvalues(by_matrices(*matrices), start, steps=steps, tolerance=tolerance, name="matrices")


def test_lanczos_on_operators_that_end_early_and_late():
    """Those of low rank, which are negative, and which are zero, do not disturb the others."""
    random = np.random.default_rng(1).normal(size=(30, 30))
    symmetric = random + random.T
    rank_one = np.zeros((30, 30))
    rank_one[2, 2] = 5.0
    found = eigenvalues_of(symmetric, rank_one, -np.eye(30) - rank_one, np.zeros((30, 30)), -np.eye(30))
    expected = [np.linalg.eigvalsh(symmetric)[-1], 5.0, -1.0, 0.0, -1.0]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_lanczos_that_does_not_converge_says_so():
    with pytest.raises(EvaluationError, match=r"1e-06 or less within 4 steps, got .* Raise tolerance or steps"):
        eigenvalues_of(np.diag(np.linspace(-1, 1, 60)), steps=4)


def test_lanczos_meets_nan():
    with pytest.raises(EvaluationError, match="expected finite Hessian-vector products, got NaN"):
        eigenvalues_of(np.full((6, 6), np.nan))


def test_weights_that_are_not_finite():
    network = SmoothNetwork()
    network.classifier.weight.data[0, 0] = torch.nan
    for key in ("hessian_weights", "hessian_input"):
        with pytest.raises(EvaluationError, match=f"failed for {key}: expected finite"):
            measured(key, tiny_images(4, labels=[0] * 4), tiny_classifier(network))


def test_batches_are_equal():
    with pytest.raises(ValidationError, match=r"a multiple of batch \(256\), or fewer, got 300. Set images: 256"):
        HessianWeightsParameters(images=300)
    assert HessianWeightsParameters(images=200).images == 200


# --- independent libraries, skipped where they are not installed ------------------------------------------------------


def largest_by_curvlinops(network, data):
    curvlinops = pytest.importorskip("curvlinops")
    operator = curvlinops.HessianLinearOperator(network, nn.CrossEntropyLoss(), list(network.parameters()), data)
    return float(scipy.sparse.linalg.eigsh(operator.to_scipy(), k=1, which="LA", return_eigenvectors=False)[0])


def largest_by_hessian_eigenthings(network, data):
    library = pytest.importorskip("hessian_eigenthings")
    operator = library.HessianOperator(network, data, library.supervised_loss(nn.CrossEntropyLoss()))
    return float(library.lanczos(operator, k=1, which="LA", seed=0, max_iter=50).eigenvalues[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("largest", [largest_by_curvlinops, largest_by_hessian_eigenthings])
def test_libraries_have_the_same(largest):
    images, network = tiny_images(12), SmoothNetwork()
    found = measured("hessian_weights", images, tiny_classifier(network), images=12)["largest"]
    classifier = tiny_classifier()
    shown = (torch.from_numpy(images.images) / 255 - classifier.mean) / classifier.std
    expected = largest(SmoothNetwork().eval(), [(shown, torch.from_numpy(images.labels))])
    assert found == pytest.approx(expected, rel=1e-4)
