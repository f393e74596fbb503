"""PGD in an L2 ball: the best iterate, starting points, and the published defaults."""

import dataclasses

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from robust201.core.errors import ConfigError
from robust201.tasks import ENGINES, TASKS
from robust201.tasks.attack_kit.context import to_float
from robust201.tasks.constraints import L2
from robust201.tasks.perturbations.contract import perturb
from robust201.tasks.perturbations.reference import foolbox
from tests.support.library_parity import fused_images
from tests.support.tiny_networks import (
    SIZE,
    perturb_all,
    request_of,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

TASK = TASKS["pgd_l2"]
SEED = 5
EPSILONS = (0.1, 0.4)
IMAGES = tiny_images()
CLEAN = to_float(torch.from_numpy(IMAGES.images))
LABELS = torch.from_numpy(IMAGES.labels)
CLASSIFIER = tiny_classifier()


def losses(images):
    with torch.no_grad():
        return functional.cross_entropy(CLASSIFIER(images), LABELS, reduction="none")


def attack_fused(**changes):
    """Attack with the fused engine and Foolbox's random numbers and batches; return images (S, N, 3, H, W)."""
    # With a step size equal to the larger radius, iterates change so much that the last one is rarely the best.
    parameters = TASK.parameters(epsilons=EPSILONS, **{"step_size": 0.4, "steps": 12} | changes)
    images = torch.from_numpy(IMAGES.images)
    return fused_images("pgd_l2", CLASSIFIER, images, LABELS, EPSILONS, SEED, parameters)


def starting_points_of(epsilon, *, random_start):
    """Return Foolbox's starting points."""
    if not random_start:
        return CLEAN
    model = foolbox.PyTorchModel(CLASSIFIER, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.L2PGD(steps=0, random_start=True)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return attack.run(model, CLEAN, foolbox.criteria.Misclassification(LABELS), epsilon=epsilon)


def best_iterate_from_loop(start, epsilon, step_size, steps):
    """Return the best iterate of each image, and its index, from a loop that stores all iterates."""

    def lengths(images):
        return images.flatten(1).square().sum(dim=1).sqrt().clamp(min=1e-12).view(-1, 1, 1, 1)

    def project(images):
        return CLEAN + (images - CLEAN) * (epsilon / lengths(images - CLEAN)).clamp(max=1)

    iterates = [start]
    for _ in range(steps):
        x = iterates[-1].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(CLASSIFIER(x), LABELS, reduction="sum"), x)
        iterates.append(project(iterates[-1] + step_size * (gradient * (1 / lengths(gradient)))).clamp(0, 1))
    iterate_losses = torch.stack([losses(x) for x in iterates]).numpy()
    best_indices = iterate_losses.argmax(axis=0)  # of equal losses, the first
    return project(torch.stack([iterates[best_indices[i]][i] for i in range(len(CLEAN))])), best_indices


@pytest.mark.parametrize("random_start", [True, False])
def test_best_iterate_matches_simple_loop(random_start):
    best_indices = []
    for epsilon, result in zip(EPSILONS, attack_fused(iterate="best", random_start=random_start), strict=True):
        expected, indices = best_iterate_from_loop(
            starting_points_of(epsilon, random_start=random_start), epsilon, 0.4, 12
        )
        assert torch.equal(result, expected)
        best_indices += indices.tolist()
    # For some images the last iterate is the best, and for other images an earlier one is.
    assert len(set(best_indices)) > 2
    assert 12 in best_indices


@pytest.mark.parametrize("random_start", [True, False])
def test_loss_of_best_iterate_is_no_lower_than_at_start_and_last_iterate(random_start):
    n_better = 0
    images_by_epsilon = zip(
        EPSILONS,
        attack_fused(iterate="best", random_start=random_start),
        attack_fused(random_start=random_start),
        strict=True,
    )
    for epsilon, best_images, last_images in images_by_epsilon:
        start_images = starting_points_of(epsilon, random_start=random_start)
        # The result is projected once more, which adds rounding errors.
        assert (losses(best_images) >= torch.maximum(losses(last_images), losses(start_images)) - 1e-4).all()
        n_better += int((losses(best_images) > losses(last_images) + 1e-3).sum())
    assert n_better > 3


def test_more_steps_never_lower_loss_of_best_iterate():
    images_of_fewer_steps = attack_fused(iterate="best", steps=3)
    for steps in (4, 7, 20):
        images_of_more_steps = attack_fused(iterate="best", steps=steps)
        for shorter, longer in zip(images_of_fewer_steps, images_of_more_steps, strict=True):
            assert (losses(longer) >= losses(shorter) - 1e-4).all()
        images_of_fewer_steps = images_of_more_steps


@pytest.mark.parametrize("iterate", ["last", "best"])
@pytest.mark.parametrize("random_start", [True, False])
def test_images_are_in_ball_and_mostly_on_its_surface(iterate, random_start):
    parameters = TASK.parameters(epsilons=EPSILONS, iterate=iterate, random_start=random_start, steps=10)
    request = request_of(IMAGES, EPSILONS)
    context = dataclasses.replace(tiny_context(TASK.key), engine="fused")
    for batch in perturb(TASK, context, parameters, request):
        distances = L2.distances(batch.images - CLEAN[batch.positions])
        assert (distances > 0.9 * EPSILONS[batch.strength_index]).double().mean() > 0.8


def test_random_starts_are_uniform_in_ball():
    """The fraction of the volume of an n-dimensional ball within radius r is r**n."""
    n_images, n_values = 400, 3 * SIZE * SIZE
    grey = tiny_images(n_images, labels=np.zeros(n_images))
    grey.images[:] = 128
    context = dataclasses.replace(tiny_context(TASK.key), engine="fused")
    # A negligible step keeps the starting point.
    parameters = TASK.parameters(epsilons=(0.5,), step_size=1e-30, steps=1, random_start=True)
    start = perturb_all(TASK, parameters, grey, context)[0.5]
    volumes = (L2.distances(start - 128 / 255) / 0.5) ** n_values
    bin_counts = torch.histc(volumes.float(), bins=8, min=0, max=1)
    assert bin_counts.sum() == n_images
    assert ((bin_counts - n_images / 8).abs() < 5 * (n_images / 8) ** 0.5).all()


def test_zero_gradient_keeps_image():
    constant_classifier = tiny_classifier()
    with torch.no_grad():
        constant_classifier.network.classifier.weight.zero_()
    for iterate in ("last", "best"):
        parameters = TASK.parameters(epsilons=(0.5,), steps=3, iterate=iterate)
        context = dataclasses.replace(tiny_context(TASK.key, constant_classifier), engine="fused")
        assert torch.equal(perturb_all(TASK, parameters, IMAGES, context)[0.5], CLEAN)


def test_parameters_have_published_defaults_and_identity():
    parameters = TASK.parameters()
    assert (parameters.strengths, parameters.step_size, parameters.steps) == ((0.25, 0.5), 0.1, 100)
    assert not parameters.random_start
    fields = {"step_size": 0.1, "steps": 100, "random_start": False, "iterate": "last", "label": "given"}
    assert parameters.identity() == fields
    # Older evaluations, which do not have the parameter `label`, keep their ids.
    assert TASK.parameters(label="predicted").identity() == {**parameters.identity(), "label": "predicted"}
    assert TASK.parameters(epsilons=[2, 0.5]).strengths == (0.5, 2.0)
    for epsilons in ([], [0.0], [-1.0], [float("inf")], [0.5, 0.5], [True]):
        with pytest.raises(ValidationError):
            TASK.parameters(epsilons=epsilons)


def test_reference_engine_rejects_best_iterate():
    assert TASK.parameters(iterate="last").unsupported_engine_reason("reference") is None
    assert TASK.parameters(iterate="best").unsupported_engine_reason("fused") is None
    assert "iterate: last" in TASK.parameters(iterate="best").unsupported_engine_reason("reference")
    # Foolbox would return the last iterate instead.
    with pytest.raises(ConfigError, match="failed for pgd_l2: expected iterate: last with engine: reference"):
        perturb_all(TASK, TASK.parameters(iterate="best", steps=1), IMAGES, tiny_context(TASK.key))
    # Every task accepts its default parameters with each engine that it supports.
    for task in TASKS.values():
        assert all(task.parameters().unsupported_engine_reason(engine) is None for engine in ENGINES)
