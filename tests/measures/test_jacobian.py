"""The norm of the Jacobian: comparison with autograd, unbiased projections, and zero for constant networks."""

import dataclasses
import functools

import numpy as np
import pytest
import torch

from tests.support.tiny_networks import (
    N_CLASSES,
    PathlessNetwork,
    TinyNetwork,
    measure_network,
    tiny_classifier,
    tiny_images,
)

measure = functools.partial(measure_network, "jacobian", seed=0)


@pytest.mark.parametrize("input_space", ["pixels", "normalised"])
def test_exact_norm_matches_autograd(input_space):
    network = TinyNetwork().eval()
    images = tiny_images(6)
    classifier = tiny_classifier(network)
    pixels = torch.from_numpy(images.images) / 255
    classifier.loss_and_gradient(pixels, torch.zeros(6, dtype=torch.int64))  # `torch.func` skips its gradient check
    if input_space == "pixels":
        jacobian = torch.func.vmap(torch.func.jacrev(lambda x: classifier(x[None])[0]))(pixels)
    else:
        normalised = (pixels - classifier.mean) / classifier.std
        jacobian = torch.func.vmap(torch.func.jacrev(lambda x: network(x[None])[0]))(normalised)
    expected = jacobian.double().flatten(1).square().sum(dim=1)
    result = measure(images, classifier, projections="exact", input=input_space)
    assert result["squared_norm"] == pytest.approx(float(expected.mean()), rel=1e-5)
    assert result["squared_norm_sd"] == pytest.approx(float(expected.std(correction=0)), rel=1e-5)


def test_projections_are_unbiased():
    images, classifier = tiny_images(4), tiny_classifier()
    exact = measure(images, classifier, projections="exact")["squared_norm"]
    estimates = np.array([measure(images, classifier, seed=seed)["squared_norm"] for seed in range(150)])
    standard_error = estimates.std() / np.sqrt(len(estimates))
    assert 0 < standard_error < 0.2 * exact
    assert abs(estimates.mean() - exact) < 4 * standard_error
    # With many projections, even one estimate is close to the exact norm.
    precise_estimate = measure(images, classifier, projections=200)["squared_norm"]
    assert precise_estimate == pytest.approx(exact, rel=0.2)


@pytest.mark.parametrize("has_gradients", [True, False])
@pytest.mark.parametrize("projections", ["exact", 2])
def test_jacobian_of_constant_networks_is_zero(projections, has_gradients):
    classifier = tiny_classifier(PathlessNetwork([1.0] * N_CLASSES, has_gradients=has_gradients))
    result = measure(tiny_images(5, classifier=classifier), classifier, projections=projections)
    assert result == {"squared_norm": 0.0, "squared_norm_sd": 0.0}


def test_directions_do_not_depend_on_other_images():
    """The mean over two halves of the images equals the result for all images."""
    images, classifier = tiny_images(8), tiny_classifier()
    all_images_squared_norm = measure(images, classifier)["squared_norm"]
    halves = [
        dataclasses.replace(
            images, images=images.images[rows], labels=images.labels[rows], indices=images.indices[rows]
        )
        for rows in (slice(0, 4), slice(4, 8))
    ]
    assert all_images_squared_norm == pytest.approx(
        np.mean([measure(half_of_images, classifier)["squared_norm"] for half_of_images in halves]), rel=1e-5
    )
