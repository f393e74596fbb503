"""The input gradient: comparison with autograd, and exact zeros of saturated losses."""

import functools

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

measure = functools.partial(measure_network, "input_gradient")


@pytest.mark.parametrize("batch_size", [2, 8])
def test_norm_matches_autograd(batch_size):
    classifier, images = tiny_classifier(TinyNetwork().eval()), tiny_images(6)
    pixels = (torch.from_numpy(images.images) / 255).requires_grad_()
    functional.cross_entropy(classifier(pixels), torch.from_numpy(images.labels), reduction="sum").backward()
    expected = float(pixels.grad.double().flatten(1).norm(dim=1).mean())
    assert measure(images, classifier, batch_size=batch_size) == {
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
    assert measure(correct_images, classifier)["zero_share"] == bright_fraction


@pytest.mark.parametrize("has_gradients", [True, False])
def test_input_gradient_of_constant_networks_is_zero(has_gradients):
    classifier = tiny_classifier(PathlessNetwork([1.0] * N_CLASSES, has_gradients=has_gradients))
    assert measure(tiny_images(5, classifier=classifier), classifier) == {"norm": 0.0, "zero_share": 1.0}
