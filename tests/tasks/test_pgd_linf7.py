"""PGD in an Linf ball (by default, seven steps): its variants match a simple loop that stores all iterates."""

import pytest
import torch
from torch.nn import functional

from robust201.core.errors import ConfigError
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.context import to_float
from tests.support.library_parity import fused_images
from tests.support.tiny_networks import perturb_all, tiny_classifier, tiny_context, tiny_images

TASK = TASKS["pgd_linf7"]
SEED = 5
EPSILONS = (4 / 255, 16 / 255)
IMAGES = tiny_images()
CLEAN = to_float(torch.from_numpy(IMAGES.images))
LABELS = torch.from_numpy(IMAGES.labels)
CLASSIFIER = tiny_classifier()


def iterates_from_loop(epsilon, *, random_start, iterate, label, steps):
    """Run a simple PGD loop that stores all iterates; return the selected iterate of each image, and its index."""
    start = CLEAN
    if random_start:
        # The library's random numbers: uniform in [-epsilon, epsilon), from torch's global generator.
        noise = torch.rand(CLEAN.shape, generator=torch.Generator().manual_seed(SEED))
        start = (CLEAN + (noise * (2 * epsilon) - epsilon)).clamp(0, 1)
    labels = LABELS
    if label == "predicted":
        with torch.no_grad():
            labels = CLASSIFIER(start).argmax(dim=1)
    iterates = [start]
    for _ in range(steps):
        x = iterates[-1].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(CLASSIFIER(x), labels, reduction="sum"), x)
        stepped = iterates[-1] + 0.25 * epsilon * gradient.sign()
        iterates.append((CLEAN + (stepped - CLEAN).clamp(-epsilon, epsilon)).clamp(0, 1))
    with torch.no_grad():
        losses = [functional.cross_entropy(CLASSIFIER(x), labels, reduction="none") for x in iterates]
    selected_indices = torch.stack(losses).argmax(dim=0) if iterate == "best" else torch.full((len(CLEAN),), steps)
    result = torch.stack([iterates[selected_indices[i]][i] for i in range(len(CLEAN))])
    return result, selected_indices


@pytest.mark.parametrize("label", ["given", "predicted"])
@pytest.mark.parametrize("iterate", ["last", "best"])
@pytest.mark.parametrize("random_start", [True, False])
def test_variants_match_simple_loop(random_start, iterate, label):
    variant = {"random_start": random_start, "iterate": iterate, "label": label, "steps": 9}
    parameters = TASK.parameters(epsilons=EPSILONS, **variant)
    images = torch.from_numpy(IMAGES.images)
    perturbed = fused_images(TASK.key, CLASSIFIER, images, LABELS, EPSILONS, SEED, parameters)
    indices_at_all_epsilons = set()
    for epsilon, result in zip(EPSILONS, perturbed, strict=True):
        expected, selected_indices = iterates_from_loop(epsilon, **variant)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
        indices_at_all_epsilons |= set(selected_indices.tolist())
    assert len(indices_at_all_epsilons) > 1 or iterate == "last"


def test_parameters_have_published_defaults_and_identity():
    parameters = TASK.parameters()
    assert parameters.strengths == (1.0, 2.0, 4.0, 8.0)
    assert parameters.identity() == {
        "steps": 7,
        "rel_stepsize": 0.25,
        "random_start": False,
        "iterate": "last",
        "label": "given",
    }
    assert TASK.parameters(epsilons=["0.5/255", "8/255"]).strengths == (0.5, 8.0)


@pytest.mark.parametrize("key", ["pgd_linf7", "pgd_l2"])
def test_reference_engine_rejects_predicted_label_with_random_start(key):
    task = TASKS[key]
    parameters = task.parameters(label="predicted", random_start=True)
    assert parameters.unsupported_engine_reason("fused") is None
    assert task.parameters(label="predicted").unsupported_engine_reason("reference") is None
    with pytest.raises(ConfigError, match="expected label: given with engine: reference and random_start: true"):
        perturb_all(task, parameters, IMAGES, tiny_context(key))
