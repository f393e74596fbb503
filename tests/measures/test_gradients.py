"""Input gradient and Jacobian: comparison with autograd, unbiased projections, and zero for constant networks."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.tiny_networks import (
    N_CLASSES,
    PathlessNetwork,
    TinyNetwork,
    measure_network,
    tiny_classifier,
    tiny_images,
)

measure_gradient = functools.partial(measure_network, "input_gradient")
measure_jacobian = functools.partial(measure_network, "jacobian", seed=0)


@pytest.mark.parametrize("batch_size", [2, 8])
def test_gradient_norm_matches_autograd(batch_size):
    classifier, images = tiny_classifier(TinyNetwork().eval()), tiny_images(6)
    pixels = (torch.from_numpy(images.images) / 255).requires_grad_()
    functional.cross_entropy(classifier(pixels), torch.from_numpy(images.labels), reduction="sum").backward()
    expected = float(pixels.grad.double().flatten(1).norm(dim=1).mean())
    assert measure_gradient(images, classifier, batch_size=batch_size) == {
        "norm": pytest.approx(expected, rel=1e-6),
        "zero_share": 0.0,
    }


class _SaturatedNetwork(nn.Module):
    """A tiny network whose logits are so large on bright images that their softmax is 1 and 0 in float32."""

    def __init__(self):
        super().__init__()
        self.network = TinyNetwork().eval()

    def forward(self, pixels):
        logits = self.network(pixels)
        return torch.where(pixels.mean(dim=(1, 2, 3), keepdim=True).flatten(1) > 0, logits * 1e6, logits)


def test_zero_share_counts_saturated_images():
    classifier, images = tiny_classifier(_SaturatedNetwork()), tiny_images(8)
    labels = classifier.logits(torch.from_numpy(images.images) / 255).argmax(dim=1)
    assert 0 <= float(classifier.mean.mean()) <= 1
    correct_images = tiny_images(8, labels=labels.tolist())
    inputs = (torch.from_numpy(correct_images.images) / 255 - classifier.mean) / classifier.std
    bright_fraction = float((inputs.mean(dim=(1, 2, 3)) > 0).double().mean())
    assert 0 < bright_fraction < 1
    assert measure_gradient(correct_images, classifier)["zero_share"] == bright_fraction


@pytest.mark.parametrize("has_gradients", [True, False])
def test_input_gradient_of_constant_networks_is_zero(has_gradients):
    classifier = tiny_classifier(PathlessNetwork([1.0] * N_CLASSES, has_gradients=has_gradients))
    assert measure_gradient(tiny_images(5, classifier=classifier), classifier) == {"norm": 0.0, "zero_share": 1.0}


@pytest.mark.parametrize("input_space", ["pixels", "normalised"])
def test_exact_jacobian_norm_matches_autograd(input_space):
    network = TinyNetwork().eval()
    images = tiny_images(6)
    classifier = tiny_classifier(network)
    pixels = torch.from_numpy(images.images) / 255
    classifier.loss_and_gradient(
        pixels, torch.zeros(6, dtype=torch.int64)
    )  # the first pass checks the logits, which `torch.func` cannot
    if input_space == "pixels":
        jacobian = torch.func.vmap(torch.func.jacrev(lambda x: classifier(x[None])[0]))(pixels)
    else:
        normalised = (pixels - classifier.mean) / classifier.std
        jacobian = torch.func.vmap(torch.func.jacrev(lambda x: network(x[None])[0]))(normalised)
    expected = jacobian.double().flatten(1).square().sum(dim=1)
    result = measure_jacobian(images, classifier, projections="exact", input=input_space)
    assert result["squared_norm"] == pytest.approx(float(expected.mean()), rel=1e-5)
    assert result["squared_norm_sd"] == pytest.approx(float(expected.std(correction=0)), rel=1e-5)


def test_projections_are_unbiased():
    images, classifier = tiny_images(4), tiny_classifier()
    exact = measure_jacobian(images, classifier, projections="exact")["squared_norm"]
    estimates = np.array([measure_jacobian(images, classifier, seed=seed)["squared_norm"] for seed in range(150)])
    standard_error = estimates.std() / np.sqrt(len(estimates))
    assert 0 < standard_error < 0.2 * exact
    assert abs(estimates.mean() - exact) < 4 * standard_error
    # With many projections, even one estimate is close to the exact norm.
    precise_estimate = measure_jacobian(images, classifier, projections=200)["squared_norm"]
    assert precise_estimate == pytest.approx(exact, rel=0.2)


@pytest.mark.parametrize("has_gradients", [True, False])
@pytest.mark.parametrize("projections", ["exact", 2])
def test_jacobian_of_constant_networks_is_zero(projections, has_gradients):
    classifier = tiny_classifier(PathlessNetwork([1.0] * N_CLASSES, has_gradients=has_gradients))
    result = measure_jacobian(tiny_images(5, classifier=classifier), classifier, projections=projections)
    assert result == {"squared_norm": 0.0, "squared_norm_sd": 0.0}


def test_directions_do_not_depend_on_other_images():
    """The mean over two halves of the images equals the result for all images."""
    images, classifier = tiny_images(8), tiny_classifier()
    all_images_squared_norm = measure_jacobian(images, classifier)["squared_norm"]
    halves = [
        dataclasses.replace(
            images, images=images.images[rows], labels=images.labels[rows], indices=images.indices[rows]
        )
        for rows in (slice(0, 4), slice(4, 8))
    ]
    assert all_images_squared_norm == pytest.approx(
        np.mean([measure_jacobian(half_of_images, classifier)["squared_norm"] for half_of_images in halves]), rel=1e-5
    )
