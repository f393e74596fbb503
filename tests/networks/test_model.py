"""Gradients of objectives are correct for every `Model`: reference and compiled networks, with and without padding."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.nn import functional

from robust201.networks.batch_sizes import BatchSizes, Maxima
from robust201.networks.classifier import Classifier
from robust201.networks.nb201.cells import format_spec, specs
from robust201.networks.nb201.compiled import MIN_BATCH, compile_network
from tests.networks.test_inference import N_CLASSES, NORMALISATION, SPECIAL_CELLS, images_of, network_of

SIZE = 8
SPECS = {
    "#21": specs()[21],
    "constant": format_spec(SPECIAL_CELLS["no path, constant"]),
}
NETWORKS = {name: network_of(spec, channels=8) for name, spec in SPECS.items()}
REFERENCE_CLASSIFIERS = {name: Classifier(network, NORMALISATION, N_CLASSES) for name, network in NETWORKS.items()}
COMPILED_NETWORKS = {name: compile_network(network, SPECS[name], NORMALISATION) for name, network in NETWORKS.items()}
IMAGE_COUNTS = (1, 7, 8, 65, 200)
LABELS = torch.from_numpy(np.random.default_rng(0).integers(0, N_CLASSES, max(IMAGE_COUNTS)))
DIRECTIONS = torch.randn((max(IMAGE_COUNTS), N_CLASSES), generator=torch.Generator().manual_seed(1))


def cross_entropy(logits, rows):
    return functional.cross_entropy(logits, LABELS[rows], reduction="none")


def margin(logits, rows):
    """Return the difference between the label's logit and the largest other logit."""
    is_label = functional.one_hot(LABELS[rows], N_CLASSES).bool()
    return logits[is_label] - logits.masked_fill(is_label, -torch.inf).amax(dim=1)


def dlr_loss(logits, rows):
    """Return the DLR loss of Croce and Hein (2020), a ratio of two differences of logits."""
    ordered = logits.sort(dim=1, descending=True).values
    return -margin(logits, rows) / (ordered[:, 0] - ordered[:, 2] + 1e-12)


def random_projection(logits, rows):
    """Return a random projection of each image's logits, as in an estimate of the Jacobian's norm."""
    return (logits * DIRECTIONS[rows]).sum(dim=1)


OBJECTIVES = (cross_entropy, margin, dlr_loss, random_projection)
all_objectives = pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.__name__)
all_networks = pytest.mark.parametrize("network", list(NETWORKS))
all_image_counts = pytest.mark.parametrize("n_images", IMAGE_COUNTS)
both_modes = pytest.mark.parametrize("is_inference", [True, False], ids=["inference", "autograd"])


def pixels_of(n_images):
    return images_of(SIZE, n_images=n_images)[0]


def differentiate_by_autograd(classifier, pixels, objective):
    x = pixels.clone().requires_grad_()
    logits = classifier(x)
    values = objective(logits, slice(0, len(pixels)))
    (gradient,) = torch.autograd.grad(values.sum(), x)
    return logits.detach(), values.detach(), gradient


def evaluate(model, pixels, objective, *, is_inference):
    """Return the outputs of `value_and_gradient`, after checking that it leaves torch's modes unchanged."""
    had_grad_enabled = torch.is_grad_enabled()
    with torch.inference_mode(is_inference):
        outputs = model.value_and_gradient(pixels, objective)
        assert torch.is_inference_mode_enabled() == is_inference
    assert torch.is_grad_enabled() == had_grad_enabled
    assert not any(tensor.requires_grad for tensor in outputs)
    return outputs


def assert_close(outputs, expected, tolerance=1e-5):
    """Check that tensors are equal within a tolerance relative to the largest number of each tensor."""
    for output, reference in zip(outputs, expected, strict=True):
        assert (output.shape, output.dtype) == (reference.shape, reference.dtype)
        scale = max(1.0, float(reference.abs().max()))
        torch.testing.assert_close(output, reference, rtol=0, atol=tolerance * scale)


def assert_equal(outputs, expected):
    for output, reference in zip(outputs, expected, strict=True):
        assert torch.equal(output, reference)


@all_networks
@all_objectives
@all_image_counts
@both_modes
@pytest.mark.slow_combinations
def test_classifier_is_bit_identical_to_autograd_and_compiled_network_equals_it_within_rounding(
    network, objective, n_images, is_inference
):
    pixels = pixels_of(n_images)
    expected = differentiate_by_autograd(REFERENCE_CLASSIFIERS[network], pixels, objective)
    for models, compare in ((REFERENCE_CLASSIFIERS, assert_equal), (COMPILED_NETWORKS, assert_close)):
        outputs = evaluate(models[network], pixels, objective, is_inference=is_inference)
        compare(outputs, expected)
        assert bool(outputs[2].any()) == (network != "constant")
        outputs = evaluate(models[network], pixels, cross_entropy, is_inference=is_inference)
        with torch.inference_mode(is_inference):
            compare(outputs, models[network].loss_and_gradient(pixels, LABELS[:n_images]))


@contextmanager
def padded_network(network, max_logits, max_gradients):
    """Yield a compiled network that pads its batches as on a GPU."""
    model = COMPILED_NETWORKS[network]
    original = model.batch_sizes
    model.batch_sizes = BatchSizes(Maxima(max_logits, max_gradients), minimum=MIN_BATCH, is_padded=True)
    try:
        yield model
    finally:
        model.batch_sizes = original


@all_networks
@all_objectives
@all_image_counts
@both_modes
@pytest.mark.parametrize("max_gradients", [24, 1000])
@pytest.mark.slow_combinations
def test_padded_network_calls_the_objective_with_the_rows_of_each_batch(
    network, objective, n_images, is_inference, max_gradients
):
    pixels = pixels_of(n_images)
    requested_rows = []

    def recording_objective(logits, rows):
        requested_rows.append(rows)
        return objective(logits, rows)

    with padded_network(network, 256, max_gradients) as model:
        outputs = evaluate(model, pixels, recording_objective, is_inference=is_inference)
        assert model.batch_sizes.largest_batch <= max_gradients
    # Images do not affect each other, so the outputs do not depend on the batches.
    assert_equal(outputs, evaluate(COMPILED_NETWORKS[network], pixels, objective, is_inference=is_inference))
    assert {row for rows in requested_rows for row in range(rows.start, rows.stop)} == set(range(n_images))
    assert max(rows.stop - rows.start for rows in requested_rows) <= min(max_gradients, n_images)


@all_objectives
def test_reference_network_can_be_padded(objective):
    pixels = pixels_of(65)
    batch_sizes = BatchSizes(Maxima(16, 16), is_padded=True)
    classifier = Classifier(NETWORKS["#21"], NORMALISATION, N_CLASSES, batch_sizes=batch_sizes)
    outputs = evaluate(classifier, pixels, objective, is_inference=True)
    assert_close(outputs, differentiate_by_autograd(REFERENCE_CLASSIFIERS["#21"], pixels, objective))
