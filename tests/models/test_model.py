"""Gradients of objectives with every `Model`: plain, compiled and bucketed networks."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from robust201.models.buckets import Bucketed
from robust201.models.capacity import Capacity
from robust201.models.classifier import Classifier
from robust201.models.model import differentiate_objective
from robust201.spaces.nasbench201.cells import format_spec, specs
from robust201.spaces.nasbench201.compiled import compile_network
from tests.spaces.test_inference import N_CLASSES, NORMALISATION, SPECIAL_CELLS, images_of, network_of

SIZE = 8
SPECS = {
    "#21": specs()[21],
    "constant": format_spec(SPECIAL_CELLS["no path, constant"]),
}
NETWORKS = {name: network_of(spec, channels=8) for name, spec in SPECS.items()}
PLAIN = {name: Classifier(network, NORMALISATION, N_CLASSES) for name, network in NETWORKS.items()}
COMPILED = {
    name: compile_network(network, SPECS[name], NORMALISATION, n_classes=N_CLASSES)
    for name, network in NETWORKS.items()
}
N_IMAGES = (1, 7, 8, 65, 200)
LABELS = torch.from_numpy(np.random.default_rng(0).integers(0, N_CLASSES, max(N_IMAGES)))
DIRECTIONS = torch.randn((max(N_IMAGES), N_CLASSES), generator=torch.Generator().manual_seed(1))


def cross_entropy(logits, rows):
    return functional.cross_entropy(logits, LABELS[rows], reduction="none")


def margin(logits, rows):
    """Return the margin of the label's logit over the largest other logit."""
    is_label = functional.one_hot(LABELS[rows], N_CLASSES).bool()
    return logits[is_label] - logits.masked_fill(is_label, -torch.inf).amax(dim=1)


def ratio(logits, rows):
    """Return the DLR loss of Croce and Hein (2020), a ratio of two differences of logits."""
    ordered = logits.sort(dim=1, descending=True).values
    return -margin(logits, rows) / (ordered[:, 0] - ordered[:, 2] + 1e-12)


def projected(logits, rows):
    """Return one projection per image, as in an estimate of the Jacobian's norm."""
    return (logits * DIRECTIONS[rows]).sum(dim=1)


OBJECTIVES = (cross_entropy, margin, ratio, projected)
every_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.__name__)
every_network = pytest.mark.parametrize("network", list(NETWORKS))
every_number = pytest.mark.parametrize("n_images", N_IMAGES)
either_mode = pytest.mark.parametrize("inference", [True, False], ids=["inference", "autograd"])


def pixels_of(n_images):
    return images_of(SIZE, n_images=n_images)[0]


def by_autograd(classifier, pixels, objective):
    x = pixels.clone().requires_grad_()
    logits = classifier(x)
    values = objective(logits, slice(0, len(pixels)))
    (gradient,) = torch.autograd.grad(values.sum(), x)
    return logits.detach(), values.detach(), gradient


def evaluate(model, pixels, objective, *, inference):
    before = torch.is_grad_enabled()
    with torch.inference_mode(inference):
        results = model.value_and_gradient(pixels, objective)
        assert torch.is_inference_mode_enabled() == inference
    assert torch.is_grad_enabled() == before
    assert not any(tensor.requires_grad for tensor in results)
    return results


def assert_close(results, expected, tolerance=1e-5):
    """Assert equality relative to the largest number of each tensor."""
    for result, reference in zip(results, expected, strict=True):
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
        scale = max(1.0, float(reference.abs().max()))
        torch.testing.assert_close(result, reference, rtol=0, atol=tolerance * scale)


def assert_equal(results, expected):
    for result, reference in zip(results, expected, strict=True):
        assert torch.equal(result, reference)


@every_network
@every_objective
@every_number
@either_mode
@pytest.mark.each_value
def test_classifier_is_bit_identical_to_autograd(network, objective, n_images, inference):
    pixels = pixels_of(n_images)
    results = evaluate(PLAIN[network], pixels, objective, inference=inference)
    assert_equal(results, by_autograd(PLAIN[network], pixels, objective))
    assert bool(results[2].any()) == (network != "constant")


@every_network
@every_objective
@every_number
@either_mode
@pytest.mark.each_value
def test_compiled_network_equals_autograd_within_rounding(network, objective, n_images, inference):
    pixels = pixels_of(n_images)
    results = evaluate(COMPILED[network], pixels, objective, inference=inference)
    assert_close(results, by_autograd(PLAIN[network], pixels, objective))
    assert bool(results[2].any()) == (network != "constant")


@every_network
@every_objective
@every_number
@either_mode
@pytest.mark.parametrize("gradients", [24, 1000])
@pytest.mark.each_value
def test_bucketed_passes_the_rows_of_each_piece(network, objective, n_images, inference, gradients):
    pixels = pixels_of(n_images)
    requests = []

    def recording_objective(logits, rows):
        requests.append(rows)
        return objective(logits, rows)

    bucketed = Bucketed(COMPILED[network], Capacity(256, gradients))
    results = evaluate(bucketed, pixels, recording_objective, inference=inference)
    # Images do not affect each other, so the result does not depend on the pieces.
    assert_equal(results, evaluate(COMPILED[network], pixels, objective, inference=inference))
    assert {row for rows in requests for row in range(rows.start, rows.stop)} == set(range(n_images))
    assert max(rows.stop - rows.start for rows in requests) <= min(gradients, n_images)
    assert bucketed.shown <= gradients


@pytest.mark.parametrize("limit", [1, 3])
def test_bucketed_works_with_the_smallest_buckets(limit):
    pixels = pixels_of(8)
    results = evaluate(Bucketed(COMPILED["#21"], Capacity(limit, limit)), pixels, margin, inference=True)
    assert_equal(results, evaluate(COMPILED["#21"], pixels, margin, inference=True))


@every_objective
def test_bucketed_works_with_a_plain_network(objective):
    pixels = pixels_of(65)
    results = evaluate(Bucketed(PLAIN["#21"], Capacity(16, 16)), pixels, objective, inference=True)
    assert_close(results, by_autograd(PLAIN["#21"], pixels, objective))


@every_network
@every_number
@either_mode
@pytest.mark.each_value
def test_cross_entropy_objective_equals_loss_and_gradient(network, n_images, inference):
    pixels, labels = pixels_of(n_images), LABELS[:n_images]
    for model, compare in (
        (PLAIN[network], assert_equal),
        (COMPILED[network], assert_close),
        (Bucketed(COMPILED[network], Capacity(64, 24)), assert_close),
    ):
        results = evaluate(model, pixels, cross_entropy, inference=inference)
        with torch.inference_mode(inference):
            compare(results, model.loss_and_gradient(pixels, labels))


@pytest.mark.parametrize("micro_batch", [7, 64])
def test_value_and_gradient_does_not_depend_on_the_micro_batch(micro_batch):
    pixels = pixels_of(65)
    classifier = Classifier(NETWORKS["#21"], NORMALISATION, N_CLASSES, micro_batch=micro_batch)
    results = evaluate(classifier, pixels, margin, inference=True)
    assert_close(results, by_autograd(PLAIN["#21"], pixels, margin))


@every_objective
def test_differentiate_objective_equals_autograd(objective):
    logits = torch.randn((5, N_CLASSES), generator=torch.Generator().manual_seed(2))
    leaf = logits.clone().requires_grad_()
    expected = objective(leaf, slice(3, 8))
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    with torch.inference_mode():
        results = differentiate_objective(objective, logits.clone(), slice(3, 8))
    assert_equal(results, (expected.detach(), gradient))
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in results)
