"""Every `Model` differentiates any function of its logits: the plain network, the compiled one, both in buckets."""

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
    """How far the label is ahead of the largest other."""
    own = functional.one_hot(LABELS[rows], N_CLASSES).bool()
    return logits[own] - logits.masked_fill(own, -torch.inf).amax(dim=1)


def ratio(logits, rows):
    """The DLR loss of Croce and Hein (2020), which divides one difference of logits by another."""
    ordered = logits.sort(dim=1, descending=True).values
    return -margin(logits, rows) / (ordered[:, 0] - ordered[:, 2] + 1e-12)


def projected(logits, rows):
    """One projection per image: what an estimate of the Jacobian's norm differentiates."""
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


def answer(model, pixels, objective, *, inference):
    before = torch.is_grad_enabled()
    with torch.inference_mode(inference):
        found = model.value_and_gradient(pixels, objective)
        assert torch.is_inference_mode_enabled() == inference
    assert torch.is_grad_enabled() == before
    assert not any(tensor.requires_grad for tensor in found)
    return found


def assert_close(found, expected, tolerance=1e-5):
    """Equal relative to the largest number of each."""
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@every_network
@every_objective
@every_number
@either_mode
@pytest.mark.each_value
def test_the_plain_network_is_autograd_to_the_bit(network, objective, n_images, inference):
    pixels = pixels_of(n_images)
    found = answer(PLAIN[network], pixels, objective, inference=inference)
    assert_equal(found, by_autograd(PLAIN[network], pixels, objective))
    assert bool(found[2].any()) == (network != "constant")


@every_network
@every_objective
@every_number
@either_mode
@pytest.mark.each_value
def test_the_compiled_network_is_autograd_within_rounding(network, objective, n_images, inference):
    pixels = pixels_of(n_images)
    found = answer(COMPILED[network], pixels, objective, inference=inference)
    assert_close(found, by_autograd(PLAIN[network], pixels, objective))
    assert bool(found[2].any()) == (network != "constant")


@every_network
@every_objective
@every_number
@either_mode
@pytest.mark.parametrize("gradients", [24, 1000])
@pytest.mark.each_value
def test_buckets_give_each_piece_its_rows(network, objective, n_images, inference, gradients):
    pixels = pixels_of(n_images)
    asked = []

    def noted(logits, rows):
        asked.append(rows)
        return objective(logits, rows)

    bucketed = Bucketed(COMPILED[network], Capacity(256, gradients))
    found = answer(bucketed, pixels, noted, inference=inference)
    # An image does not see its batch, so that the pieces leave no trace.
    assert_equal(found, answer(COMPILED[network], pixels, objective, inference=inference))
    assert {row for rows in asked for row in range(rows.start, rows.stop)} == set(range(n_images))
    assert max(rows.stop - rows.start for rows in asked) <= min(gradients, n_images)
    assert bucketed.shown <= gradients


@pytest.mark.parametrize("limit", [1, 3])
def test_the_smallest_buckets(limit):
    pixels = pixels_of(8)
    found = answer(Bucketed(COMPILED["#21"], Capacity(limit, limit)), pixels, margin, inference=True)
    assert_equal(found, answer(COMPILED["#21"], pixels, margin, inference=True))


@every_objective
def test_buckets_of_a_plain_network(objective):
    pixels = pixels_of(65)
    found = answer(Bucketed(PLAIN["#21"], Capacity(16, 16)), pixels, objective, inference=True)
    assert_close(found, by_autograd(PLAIN["#21"], pixels, objective))


@every_network
@every_number
@either_mode
@pytest.mark.each_value
def test_cross_entropy_as_an_objective_is_the_models_own(network, n_images, inference):
    pixels, labels = pixels_of(n_images), LABELS[:n_images]
    for model, compare in (
        (PLAIN[network], assert_equal),
        (COMPILED[network], assert_close),
        (Bucketed(COMPILED[network], Capacity(64, 24)), assert_close),
    ):
        found = answer(model, pixels, cross_entropy, inference=inference)
        with torch.inference_mode(inference):
            compare(found, model.loss_and_gradient(pixels, labels))


@pytest.mark.parametrize("micro_batch", [7, 64])
def test_micro_batches_of_the_plain_network_see_one_objective(micro_batch):
    pixels = pixels_of(65)
    classifier = Classifier(NETWORKS["#21"], NORMALISATION, N_CLASSES, micro_batch=micro_batch)
    found = answer(classifier, pixels, margin, inference=True)
    assert_close(found, by_autograd(PLAIN["#21"], pixels, margin))


@every_objective
def test_an_objective_by_itself(objective):
    logits = torch.randn((5, N_CLASSES), generator=torch.Generator().manual_seed(2))
    leaf = logits.clone().requires_grad_()
    expected = objective(leaf, slice(3, 8))
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    with torch.inference_mode():
        found = differentiate_objective(objective, logits.clone(), slice(3, 8))
    assert_equal(found, (expected.detach(), gradient))
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in found)
