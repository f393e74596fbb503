"""The classifier normalises images and uses the requested memory format and precision."""

import pytest
import torch
from torch import nn

from robust201.attacks.context import to_float
from robust201.networks.batch_sizes import BatchSizes
from robust201.networks.classifier import Classifier
from tests.support.tiny_networks import (
    N_CLASSES,
    NORMALISATION,
    PathlessNetwork,
    TinyNetwork,
    tiny_classifier,
    tiny_images,
)

IMAGES = tiny_images()


class HeadWithFiveDimensions(nn.Module):
    """Head with a five-dimensional parameter, which does not support channels_last."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 1, 1, 1, 1))

    def forward(self, maps):
        return maps.float().mean(dim=(2, 3)) * self.scale.flatten()


def test_classifier_normalises_images_and_freezes_the_network():
    network = TinyNetwork()
    classifier = Classifier(network, NORMALISATION, N_CLASSES)
    pixels = to_float(torch.from_numpy(IMAGES.images))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (NORMALISATION.mean, NORMALISATION.std))
    assert torch.equal(classifier(pixels), network.eval()((pixels - mean) / std))
    assert not classifier.training
    assert not any(parameter.requires_grad for parameter in classifier.parameters())


@pytest.mark.parametrize("micro_batch", [None, 8])
def test_channels_last_changes_outputs_only_within_rounding(micro_batch):
    pixels, labels = to_float(torch.from_numpy(IMAGES.images)), torch.from_numpy(IMAGES.labels)
    reference = tiny_classifier()
    channels_last = Classifier(
        TinyNetwork(), NORMALISATION, N_CLASSES, channels_last=True, batch_sizes=BatchSizes(limit=micro_batch)
    )
    for layout in (torch.contiguous_format, torch.channels_last):
        outputs = channels_last.loss_and_gradient(pixels.contiguous(memory_format=layout), labels)
        for output, expected in zip(outputs, reference.loss_and_gradient(pixels, labels), strict=True):
            torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(channels_last.logits(pixels), reference.logits(pixels), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_classifier_uses_the_memory_format_for_convolutions(channels_last, precision):
    recorded_inputs = []
    network = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.ReLU(), nn.Conv2d(6, 6, 3, bias=False))
    network = nn.Sequential(network, HeadWithFiveDimensions())
    for module in network[0]:
        module.register_forward_pre_hook(lambda _, inputs: recorded_inputs.append(inputs[0]))
    classifier = Classifier(network, NORMALISATION, 6, channels_last=channels_last, precision=precision)
    classifier.logits(to_float(torch.from_numpy(IMAGES.images)))
    weights = [module.weight for module in classifier.network[0] if isinstance(module, nn.Conv2d)]
    assert len(recorded_inputs) == 3
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    for tensor in (*recorded_inputs, *weights):
        assert tensor.dtype == dtype
        assert tensor.is_contiguous(memory_format=torch.channels_last) == channels_last


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("has_gradients", [True, False])
def test_classifier_gradients_without_a_path_are_zero(has_gradients, precision):
    logits = [0.0, 1.0, -2.0, 3.0, 0.5]
    pixels = to_float(torch.from_numpy(IMAGES.images)).requires_grad_()
    network = PathlessNetwork(logits, has_gradients=has_gradients)
    output = Classifier(network, NORMALISATION, N_CLASSES, precision=precision)(pixels)
    (gradient,) = torch.autograd.grad(output.sum(), pixels)
    assert torch.equal(output, torch.tensor(logits).expand(len(pixels), -1))
    assert gradient.dtype == torch.float32
    assert not gradient.any()
