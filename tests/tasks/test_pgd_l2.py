"""PGD in an L2 ball: Foolbox's defaults, starting points, and the best iterate."""

import dataclasses

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from robust201.core.errors import ConfigError
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.context import to_float
from robust201.tasks.constraints import L2
from robust201.tasks.perturbations.contract import checked, perturb
from robust201.tasks.perturbations.foolbox_engine import foolbox
from tests.support.library_parity import fused_images
from tests.support.tiny_networks import (
    SIZE,
    perturb_all,
    request_of,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

ROW = TASKS["pgd_l2"]
SEED = 5
EPSILONS = (0.1, 0.4)
IMAGES = tiny_images()
CLEAN = to_float(torch.from_numpy(IMAGES.images))
LABELS = torch.from_numpy(IMAGES.labels)
CLASSIFIER = tiny_classifier()


def losses(images):
    with torch.no_grad():
        return functional.cross_entropy(CLASSIFIER(images), LABELS, reduction="none")


def fused(**changes):
    """Attack with the library's random numbers and batches: (S, N, 3, H, W)."""
    # Steps as long as the larger radius change iterates strongly, so that the last one is rarely the best.
    parameters = ROW.parameters(epsilons=EPSILONS, **{"step_size": 0.4, "steps": 12} | changes)
    images = torch.from_numpy(IMAGES.images)
    return fused_images("pgd_l2", CLASSIFIER, images, LABELS, EPSILONS, SEED, parameters)


def start_of(epsilon, *, random_start):
    """Return Foolbox's starting points."""
    if not random_start:
        return CLEAN
    model = foolbox.PyTorchModel(CLASSIFIER, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.L2PGD(steps=0, random_start=True)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return attack.run(model, CLEAN, foolbox.criteria.Misclassification(LABELS), epsilon=epsilon)


def best_from_loop(start, epsilon, step_size, steps):
    """Store all iterates, and select the best at the end."""

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
    best = iterate_losses.argmax(axis=0)  # the first of equal ones
    return project(torch.stack([iterates[best[i]][i] for i in range(len(CLEAN))])), best


@pytest.mark.parametrize("random_start", [True, False])
def test_best_iterate_matches_plain_loop(random_start):
    best_iterates = []
    for epsilon, result in zip(EPSILONS, fused(iterate="best", random_start=random_start), strict=True):
        expected, best = best_from_loop(start_of(epsilon, random_start=random_start), epsilon, 0.4, 12)
        assert torch.equal(result, expected)
        best_iterates += best.tolist()
    # The best iterates include the last and others.
    assert len(set(best_iterates)) > 2
    assert 12 in best_iterates


@pytest.mark.parametrize("random_start", [True, False])
def test_best_iterate_is_at_least_as_good_as_start_and_last(random_start):
    better = 0
    results = zip(
        EPSILONS,
        fused(iterate="best", random_start=random_start),
        fused(random_start=random_start),
        strict=True,
    )
    for epsilon, best, last in results:
        start = start_of(epsilon, random_start=random_start)
        # The result is projected once more, and rounded.
        assert (losses(best) >= torch.maximum(losses(last), losses(start)) - 1e-4).all()
        better += int((losses(best) > losses(last) + 1e-3).sum())
    assert better > 3


def test_more_steps_never_worsen_best_iterate():
    before = fused(iterate="best", steps=3)
    for steps in (4, 7, 20):
        after = fused(iterate="best", steps=steps)
        for shorter, longer in zip(before, after, strict=True):
            assert (losses(longer) >= losses(shorter) - 1e-4).all()
        before = after


@pytest.mark.parametrize("iterate", ["last", "best"])
@pytest.mark.parametrize("random_start", [True, False])
def test_images_are_in_ball_and_mostly_on_its_surface(iterate, random_start):
    parameters = ROW.parameters(epsilons=EPSILONS, iterate=iterate, random_start=random_start, steps=10)
    request = request_of(IMAGES, EPSILONS)
    context = dataclasses.replace(tiny_context(ROW.key), engine="fused")
    perturbed = perturb(ROW, context, parameters, request)
    for batch in checked(perturbed, name=ROW.key, request=request, constraint=L2):
        distances = L2.distances(batch.images - CLEAN[batch.positions])
        assert (distances > 0.9 * EPSILONS[batch.strength]).double().mean() > 0.8


def test_random_starts_are_uniform_in_ball():
    """The fraction of the volume of an n-dimensional ball within radius r is r**n."""
    n_images, n_values = 400, 3 * SIZE * SIZE
    grey = tiny_images(n_images, labels=np.zeros(n_images))
    grey.images[:] = 128
    context = dataclasses.replace(tiny_context(ROW.key), engine="fused")
    # A negligible step keeps the starting point.
    parameters = ROW.parameters(epsilons=(0.5,), step_size=1e-30, steps=1, random_start=True)
    start = perturb_all(ROW, parameters, grey, context)[0.5]
    volumes = (L2.distances(start - 128 / 255) / 0.5) ** n_values
    counts = torch.histc(volumes.float(), bins=8, min=0, max=1)
    assert counts.sum() == n_images
    assert ((counts - n_images / 8).abs() < 5 * (n_images / 8) ** 0.5).all()


def test_zero_gradient_keeps_image():
    flat = tiny_classifier()
    with torch.no_grad():
        flat.network.classifier.weight.zero_()
    for iterate in ("last", "best"):
        parameters = ROW.parameters(epsilons=(0.5,), steps=3, iterate=iterate)
        context = dataclasses.replace(tiny_context(ROW.key, flat), engine="fused")
        assert torch.equal(perturb_all(ROW, parameters, IMAGES, context)[0.5], CLEAN)


def test_parameters_have_published_defaults_and_identity():
    parameters = ROW.parameters()
    assert (parameters.strengths, parameters.step_size, parameters.steps) == ((0.25, 0.5), 0.1, 100)
    assert not parameters.random_start
    assert parameters.identity() == {"step_size": 0.1, "steps": 100, "random_start": False, "iterate": "last"}
    # Evaluations from before `label` was a parameter keep their ids.
    assert ROW.parameters(label="predicted").identity() == {**parameters.identity(), "label": "predicted"}
    assert ROW.parameters(epsilons=[2, 0.5]).strengths == (0.5, 2.0)
    for epsilons in ([], [0.0], [-1.0], [float("inf")], [0.5, 0.5], [True]):
        with pytest.raises(ValidationError):
            ROW.parameters(epsilons=epsilons)


def test_reference_engine_rejects_best_iterate():
    assert ROW.parameters(iterate="last").refusal("reference") is None
    assert ROW.parameters(iterate="best").refusal("fused") is None
    assert "iterate: last" in ROW.parameters(iterate="best").refusal("reference")
    # Foolbox would return the last iterate instead.
    with pytest.raises(ConfigError, match="failed for pgd_l2: expected iterate: last with engine: reference"):
        perturb_all(ROW, ROW.parameters(iterate="best", steps=1), IMAGES, tiny_context(ROW.key))
    # Every row accepts its default parameters with each engine that it supports.
    for row in TASKS.values():
        assert all(row.parameters().refusal(engine) is None for engine in row.functions)
