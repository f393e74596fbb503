"""Variants of PGD: starting points, published defaults, and parity with a simple loop that stores all iterates."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from robust201.attacks.context import to_float
from robust201.attacks.reference import foolbox
from robust201.core.errors import ConfigError
from robust201.tasks import ENGINES, TASKS
from robust201.tasks.constraints import L2
from tests.support.library_parity import fused_images
from tests.support.tiny_networks import SIZE, perturb_all, tiny_classifier, tiny_context, tiny_images

SEED = 5
STEPS = 9
IMAGES = tiny_images()
CLEAN = to_float(torch.from_numpy(IMAGES.images))
LABELS = torch.from_numpy(IMAGES.labels)
CLASSIFIER = tiny_classifier()
CASES = {
    "pgd_linf7": ((4 / 255, 16 / 255), {}),
    # With a step size equal to the larger radius, iterates change so much that the last one is rarely the best.
    "pgd_l2": ((0.1, 0.4), {"step_size": 0.4}),
}
"""Epsilons and parameters by key."""
every_key = pytest.mark.parametrize("key", list(CASES))


def starting_points(key, epsilon):
    """Return Foolbox's random starting points."""
    attack_class = foolbox.attacks.L2PGD if key == "pgd_l2" else foolbox.attacks.LinfPGD
    model = foolbox.PyTorchModel(CLASSIFIER, bounds=(0, 1), device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        attack = attack_class(steps=0, random_start=True)
        return attack.run(model, CLEAN, foolbox.criteria.Misclassification(LABELS), epsilon=epsilon)


def lengths(images):
    return images.flatten(1).square().sum(dim=1).sqrt().clamp(min=1e-12).view(-1, 1, 1, 1)


def project(key, images, epsilon):
    difference = images - CLEAN
    if key == "pgd_l2":
        return CLEAN + difference * (epsilon / lengths(difference)).clamp(max=1)
    return CLEAN + difference.clamp(-epsilon, epsilon)


def iterates_from_loop(key, epsilon, start, labels):
    """Return the starting point, and the iterate after each step of a simple loop."""
    iterates = [start]
    for _ in range(STEPS):
        x = iterates[-1].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(CLASSIFIER(x), labels, reduction="sum"), x)
        step = 0.4 * (gradient * (1 / lengths(gradient))) if key == "pgd_l2" else 0.25 * epsilon * gradient.sign()
        iterates.append(project(key, iterates[-1] + step, epsilon).clamp(0, 1))
    return iterates


@every_key
@pytest.mark.parametrize("label", ["given", "predicted"])
@pytest.mark.parametrize("iterate", ["last", "best"])
@pytest.mark.parametrize("random_start", [True, False])
def test_variants_match_simple_loop(key, random_start, iterate, label):
    epsilons, changes = CASES[key]
    variant = {"random_start": random_start, "iterate": iterate, "label": label, "steps": STEPS}
    parameters = TASKS[key].parameters(epsilons=epsilons, **variant, **changes)
    images = torch.from_numpy(IMAGES.images)
    perturbed = fused_images(key, CLASSIFIER, images, LABELS, epsilons, SEED, parameters)
    all_selected_indices = set()
    for epsilon, result in zip(epsilons, perturbed, strict=True):
        start = starting_points(key, epsilon) if random_start else CLEAN
        with torch.no_grad():
            labels = CLASSIFIER(start).argmax(dim=1) if label == "predicted" else LABELS
        iterates = iterates_from_loop(key, epsilon, start, labels)
        with torch.no_grad():
            losses = [functional.cross_entropy(CLASSIFIER(x), labels, reduction="none") for x in iterates]
        # If losses are equal, the first iterate is the best.
        selected_indices = torch.stack(losses).argmax(dim=0) if iterate == "best" else torch.full((len(CLEAN),), STEPS)
        expected = torch.stack([iterates[index][image] for image, index in enumerate(selected_indices.tolist())])
        torch.testing.assert_close(result, project(key, expected, epsilon), rtol=0, atol=1e-6)
        all_selected_indices |= set(selected_indices.tolist())
    assert len(all_selected_indices) > 1 or iterate == "last"


def test_random_starts_are_uniform_in_l2_ball():
    """The fraction of the volume of an n-dimensional ball within radius r is r**n."""
    n_images, n_values = 400, 3 * SIZE * SIZE
    grey_images = tiny_images(n_images, labels=np.zeros(n_images))
    grey_images.images[:] = 128
    context = dataclasses.replace(tiny_context("pgd_l2"), engine="fused")
    # A negligible step keeps the starting point.
    parameters = TASKS["pgd_l2"].parameters(epsilons=(0.5,), step_size=1e-30, steps=1, random_start=True)
    start = perturb_all(TASKS["pgd_l2"], parameters, grey_images, context)[0.5]
    volumes = (L2.distances(start - 128 / 255) / 0.5) ** n_values
    bin_counts = torch.histc(volumes.float(), bins=8, min=0, max=1)
    assert bin_counts.sum() == n_images
    assert ((bin_counts - n_images / 8).abs() < 5 * (n_images / 8) ** 0.5).all()


@every_key
@pytest.mark.parametrize("iterate", ["last", "best"])
def test_zero_gradient_keeps_image(key, iterate):
    constant_classifier = tiny_classifier()
    with torch.no_grad():
        constant_classifier.network.classifier.weight.zero_()
    parameters = TASKS[key].parameters(epsilons=(0.5,), steps=3, iterate=iterate)
    context = dataclasses.replace(tiny_context(key, constant_classifier), engine="fused")
    (perturbed,) = perturb_all(TASKS[key], parameters, IMAGES, context).values()
    assert torch.equal(perturbed, CLEAN)


def test_parameters_have_published_defaults():
    variant = {"random_start": False, "iterate": "last", "label": "given"}
    linf, l2 = (TASKS[key].parameters() for key in CASES)
    assert (linf.strengths, l2.strengths) == ((1.0, 2.0, 4.0, 8.0), (0.25, 0.5))
    assert linf.identity() == {"steps": 7, "rel_stepsize": 0.25, **variant}
    assert l2.identity() == {"steps": 100, "step_size": 0.1, **variant}


@every_key
@pytest.mark.parametrize("variant", [{"iterate": "best"}, {"label": "predicted", "random_start": True}])
def test_reference_engine_rejects_variants_that_foolbox_lacks(key, variant):
    parameters = TASKS[key].parameters(**variant, steps=1)
    assert parameters.unsupported_engine_reason("fused") is None
    with pytest.raises(ConfigError, match=key):
        perturb_all(TASKS[key], parameters, IMAGES, tiny_context(key))


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_support_default_parameters(engine):
    assert {task.parameters().unsupported_engine_reason(engine) for task in TASKS.values()} == {None}
