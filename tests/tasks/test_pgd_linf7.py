"""Seven steps of PGD in an Linf ball: the variants against iterates that are kept and chosen by hand."""

import pytest
import torch
from torch.nn import functional

from robust201.core.errors import ConfigError
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.context import to_float
from tests.support.library_parity import fused_images
from tests.support.tiny_networks import perturb_all, tiny_classifier, tiny_context, tiny_images

ROW = TASKS["pgd_linf7"]
SEED = 5
EPSILONS = (4 / 255, 16 / 255)
IMAGES = tiny_images()
CLEAN = to_float(torch.from_numpy(IMAGES.images))
LABELS = torch.from_numpy(IMAGES.labels)
CLASSIFIER = tiny_classifier()


def by_hand(epsilon, *, random_start, iterate, label, steps):
    """Keep all iterates, and choose among them at the end."""
    start = CLEAN
    if random_start:
        # The library's draw: uniform in [-epsilon, epsilon) by torch's global generator.
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
        moved = iterates[-1] + 0.25 * epsilon * gradient.sign()
        iterates.append((CLEAN + (moved - CLEAN).clamp(-epsilon, epsilon)).clamp(0, 1))
    with torch.no_grad():
        losses = [functional.cross_entropy(CLASSIFIER(x), labels, reduction="none") for x in iterates]
    chosen = torch.stack(losses).argmax(dim=0) if iterate == "best" else torch.full((len(CLEAN),), steps)
    found = torch.stack([iterates[chosen[i]][i] for i in range(len(CLEAN))])
    return found, chosen


@pytest.mark.parametrize("label", ["given", "predicted"])
@pytest.mark.parametrize("iterate", ["last", "best"])
@pytest.mark.parametrize("random_start", [True, False])
def test_variants_are_what_is_chosen_by_hand(random_start, iterate, label):
    variant = {"random_start": random_start, "iterate": iterate, "label": label, "steps": 9}
    parameters = ROW.parameters(epsilons_255=[255 * epsilon for epsilon in EPSILONS], **variant)
    images = torch.from_numpy(IMAGES.images)
    found = fused_images(ROW.key, CLASSIFIER, images, LABELS, EPSILONS, SEED, parameters)
    choices = set()
    for epsilon, attacked in zip(EPSILONS, found, strict=True):
        expected, chosen = by_hand(epsilon, **variant)
        torch.testing.assert_close(attacked, expected, rtol=0, atol=1e-6)
        choices |= set(chosen.tolist())
    assert len(choices) > 1 or iterate == "last"


def test_parameters():
    parameters = ROW.parameters()
    assert parameters.strengths == (1.0, 2.0, 4.0, 8.0)
    assert parameters.identity() == {
        "steps": 7,
        "rel_stepsize": 0.25,
        "random_start": False,
        "iterate": "last",
        "label": "given",
    }
    assert ROW.parameters(epsilons=["0.5/255", "8/255"]).strengths == (0.5, 8.0)


@pytest.mark.parametrize("key", ["pgd_linf7", "pgd_l2"])
def test_foolbox_has_no_prediction_at_a_start_that_it_draws(key):
    row = TASKS[key]
    parameters = row.parameters(label="predicted", random_start=True)
    assert parameters.refusal("fused") is None
    assert row.parameters(label="predicted").refusal("reference") is None
    with pytest.raises(ConfigError, match="expected label: given with engine: reference and random_start: true"):
        perturb_all(row, parameters, IMAGES, tiny_context(key))
