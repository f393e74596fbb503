"""Minimum-norm attacks: parity with Foolbox, distances, and warnings about few steps."""

import dataclasses
import math
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import eagerpy
import numpy as np
import pytest
import torch

from robust201.core.errors import ConfigError
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.attack_job import AttackJob
from robust201.tasks.attack_kit.context import to_float
from robust201.tasks.attack_kit.replay import ReplayedRandomNumbers
from robust201.tasks.columns import distances_of as convert_stored_distances
from robust201.tasks.constraints import L0, LINF
from robust201.tasks.evaluate import evaluate_part
from robust201.tasks.measurements import merge_values
from robust201.tasks.perturbations.contract import check_batches, perturb
from robust201.tasks.perturbations.foolbox_engine import foolbox
from robust201.tasks.perturbations.minimum_norm import replace_outside_ball
from tests.support.library_parity import LIBRARY_BATCHES, count_differing_bits
from tests.support.tiny_networks import (
    SIZE,
    Float64Network,
    PathlessNetwork,
    part_of,
    perturb_all,
    request_of,
    small_parameters,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

IMAGES = tiny_images()
CLEAN = to_float(torch.from_numpy(IMAGES.images))
LABELS = torch.from_numpy(IMAGES.labels)
CLASSIFIER = tiny_classifier()
FUSED_TASKS = [task for task in TASKS.values() if task.key.split("_l")[0] in ("fmn", "ddn", "sigma_zero")]


class ProjectedL2Fmn(foolbox.attacks.L2FMNAttack):
    """Foolbox's attack with the projection of Pintor et al. (2021) onto the epsilon ball, which Foolbox omits."""

    def project(self, x, x0, epsilon):
        norms = eagerpy.maximum((x - x0).flatten(start=1).norms.l2(axis=-1), 1e-12)
        return x0 + (x - x0) * eagerpy.minimum(1, epsilon / norms).reshape((len(x), 1, 1, 1))


LIBRARY_ATTACKS = {
    "fmn": foolbox.attacks.LInfFMNAttack,
    "fmn_l2": ProjectedL2Fmn,
    "fmn_l1": foolbox.attacks.L1FMNAttack,
    "fmn_l0": foolbox.attacks.L0FMNAttack,
    "ddn_l2": foolbox.attacks.DDNAttack,
}


def library_minima(attack, classifier=CLASSIFIER, labels=LABELS):
    """Return the nearest misclassified images that Foolbox's attack finds, at any distance."""
    model = foolbox.PyTorchModel(classifier, bounds=(0, 1), device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return attack.run(model, CLEAN, foolbox.criteria.Misclassification(labels)).detach()


def fused_minima(key, parameters, classifier=CLASSIFIER, labels=LABELS):
    """Return the nearest misclassified images that the fused attack finds, at any distance."""
    job = AttackJob(
        *(classifier, LIBRARY_BATCHES, ReplayedRandomNumbers(5, "cpu"), torch.from_numpy(IMAGES.images), labels),
        indices=np.arange(len(IMAGES)),
        epsilons=(math.inf,),
    )
    nearest = torch.full_like(CLEAN, torch.nan)
    for batch in TASKS[key].load("fused")(job, parameters):
        nearest[batch.positions] = batch.images
    return nearest


def distances_of(key, images):
    return TASKS[key].constraint.distances(images - CLEAN).double()


@pytest.mark.parametrize("steps", [1, 7, 60])
@pytest.mark.parametrize("key", LIBRARY_ATTACKS)
def test_fused_attack_matches_foolbox_bitwise(key, steps):
    nearest = fused_minima(key, TASKS[key].parameters(steps=steps))
    expected = library_minima(LIBRARY_ATTACKS[key](steps=steps))
    assert count_differing_bits(nearest, expected) == 0
    if steps == 60:
        misclassified = CLASSIFIER(expected).argmax(dim=1) != LABELS
        # Some images are misclassified without an attack, and the attack fools most other images.
        fooled_by_attack = misclassified & (distances_of(key, expected) > 0)
        assert int(fooled_by_attack.sum()) < len(LABELS)
        assert fooled_by_attack.double().mean() > 0.5


@pytest.mark.parametrize("changes", [{"max_stepsize": 0.3, "gamma": 0.2}, {"max_stepsize": 10.0}])
@pytest.mark.parametrize("key", ["fmn", "fmn_l1"])
def test_fmn_with_other_parameters_matches_foolbox(key, changes):
    nearest = fused_minima(key, TASKS[key].parameters(steps=12, **changes))
    assert count_differing_bits(nearest, library_minima(LIBRARY_ATTACKS[key](steps=12, **changes))) == 0


def test_fmn_l2_without_projection_matches_foolbox():
    nearest = fused_minima("fmn_l2", TASKS["fmn_l2"].parameters(steps=30, projection="none"))
    assert count_differing_bits(nearest, library_minima(foolbox.attacks.L2FMNAttack(steps=30))) == 0
    projected = fused_minima("fmn_l2", TASKS["fmn_l2"].parameters(steps=30))
    assert distances_of("fmn_l2", projected).median() < 0.9 * distances_of("fmn_l2", nearest).median()


@pytest.mark.parametrize("projection", ["ball", "none"])
def test_reference_fmn_l2_supports_both_projections(projection):
    task, largest_radius = TASKS["fmn_l2"], 3.0**0.5 * SIZE
    parameters = task.parameters(steps=20, projection=projection, epsilons=(largest_radius,))
    context = tiny_context(task.key, batch_size=len(IMAGES))
    library = {"ball": ProjectedL2Fmn, "none": foolbox.attacks.L2FMNAttack}[projection]
    assert torch.equal(
        perturb_all(task, parameters, IMAGES, context)[largest_radius], library_minima(library(steps=20))
    )


def test_fmn_l0_supports_epsilon_equal_to_number_of_values():
    constant_classifier = tiny_classifier(PathlessNetwork([0.0, 3.0, 1.0, -2.0, 0.5]))
    labels = torch.ones_like(LABELS)
    with pytest.raises(IndexError):
        library_minima(foolbox.attacks.L0FMNAttack(steps=300), constant_classifier, labels)
    task = TASKS["fmn_l0"]
    parameters = task.parameters(steps=300, epsilons=(3.0 * SIZE**2,))
    assert torch.equal(fused_minima("fmn_l0", parameters, constant_classifier, labels), CLEAN)
    images = tiny_images(labels=labels.numpy())
    assert torch.equal(
        perturb_all(task, parameters, images, tiny_context(task.key, constant_classifier))[3.0 * SIZE**2], CLEAN
    )


def sigma_zero_from_pseudocode(model, inputs, labels, steps):
    """Run the pseudo-code of Cinà et al. (algorithm 1) with Adam in its published form, as in adv-lib 0.2.8."""
    shape = (len(inputs), 1, 1, 1)
    delta = torch.zeros_like(inputs, requires_grad=True)
    first_moment, second_moment = torch.zeros_like(inputs), torch.zeros_like(inputs)
    best_count, best_images = inputs.new_full((len(inputs),), inputs[0].numel()), inputs.clone()
    threshold, stepsize = torch.full_like(best_count, 0.3), 1.0
    for i in range(steps):
        logits = model(inputs + delta)
        label_logit = logits.gather(1, labels[:, None])[:, 0]
        other_logit = (logits - torch.zeros_like(logits).scatter_(1, labels[:, None], float("inf"))).amax(dim=1)
        count_term = (delta.square() / (delta.square() + 0.001)).flatten(1).mean(dim=1)
        (gradient,) = torch.autograd.grad(((label_logit - other_logit).clamp(min=0) + count_term).sum(), delta)
        adversarial = logits.argmax(dim=1) != labels
        n_changed = (delta.detach() != 0).flatten(1).sum(dim=1).float()
        is_better = adversarial & (n_changed < best_count)
        best_count = torch.where(is_better, n_changed, best_count)
        best_images = torch.where(is_better.view(shape), (inputs + delta).detach(), best_images)
        gradient = gradient / gradient.flatten(1).abs().amax(dim=1).clamp(min=1e-12).view(shape)
        first_moment = 0.9 * first_moment + 0.1 * gradient
        second_moment = 0.999 * second_moment + 0.001 * gradient**2
        step = (first_moment / (1 - 0.9 ** (i + 1))) / ((second_moment / (1 - 0.999 ** (i + 1))).sqrt() + 1e-8)
        next_delta = (inputs + delta.detach() - stepsize * step).clamp(0, 1) - inputs
        stepsize = 0.1 + 0.9 * (1 + math.cos(math.pi * i / steps)) / 2
        threshold = (threshold + 0.01 * stepsize * (2 * adversarial.float() - 1)).clamp(0, 1)
        delta = torch.where(next_delta.abs() < threshold.view(shape), 0.0, next_delta).requires_grad_()
    return best_images, best_count


def test_sigma_zero_matches_published_algorithm():
    """In a float64 network, the two forms of Adam differ only by rounding: they change the same values."""
    classifier = tiny_classifier(Float64Network())
    nearest = fused_minima("sigma_zero_l0", TASKS["sigma_zero_l0"].parameters(steps=40), classifier)
    expected, n_changed = sigma_zero_from_pseudocode(classifier, CLEAN, LABELS, 40)
    assert torch.equal(distances_of("sigma_zero_l0", nearest).float(), n_changed)
    # The steps amplify the rounding differences between the two forms of Adam.
    torch.testing.assert_close(nearest, expected, atol=3e-3, rtol=0)
    assert 0 < n_changed.max() < 3 * SIZE**2 / 4


def library_sigma_zero():
    """Return adv-lib's attack, loaded from its file because its package imports torchvision without need."""
    package = find_spec("adv_lib")
    if package is None or package.origin is None:
        pytest.skip("adv-lib is not installed")
    file = Path(package.origin).parent / "attacks" / "sigma_zero.py"
    spec = spec_from_file_location("adv_lib_sigma_zero", file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sigma_zero


@pytest.mark.parametrize("steps", [1, 7, 60])
@pytest.mark.parametrize("changes", [{}, {"stepsize": 0.5, "sigma": 0.01, "threshold": 0.1, "threshold_factor": 0.05}])
def test_sigma_zero_matches_adv_lib_bitwise(steps, changes):
    attack = library_sigma_zero()
    library_names = {"stepsize": "η_0", "sigma": "σ", "threshold": "τ_0", "threshold_factor": "τ_factor"}
    expected = attack(
        CLASSIFIER, CLEAN, LABELS, num_steps=steps, **{library_names[name]: value for name, value in changes.items()}
    )
    nearest = fused_minima("sigma_zero_l0", TASKS["sigma_zero_l0"].parameters(steps=steps, **changes))
    assert count_differing_bits(nearest, expected) == 0
    if steps == 60:
        fooled_by_attack = (CLASSIFIER(expected).argmax(dim=1) != LABELS) & (
            distances_of("sigma_zero_l0", expected) > 0
        )
        assert fooled_by_attack.double().mean() > 0.5


@pytest.mark.parametrize("task", FUSED_TASKS, ids=lambda task: task.key)
def test_image_is_correct_at_epsilons_below_its_distance(task):
    # Rounding in this network does not depend on the batch.
    classifier = tiny_classifier(Float64Network())
    nearest = fused_minima(task.key, task.parameters(steps=40), classifier)
    distances = distances_of(task.key, nearest)
    misclassified = classifier(nearest).argmax(dim=1) != LABELS
    positive_distances = sorted(set(distances[misclassified].tolist()) - {0.0})
    # Use slightly more than a distance, since radii and sums over other batches are rounded.
    epsilons = [1.0001 * positive_distances[len(positive_distances) // 4], 1.0001 * positive_distances[-1]]
    field, factor = ("epsilons_255", 255.0) if task.constraint.divisor == 255 else ("epsilons", 1.0)
    parameters = task.parameters(steps=40, **{field: [epsilon * factor for epsilon in epsilons]})
    context = dataclasses.replace(tiny_context(task.key, classifier), engine="fused")
    request = request_of(IMAGES, parameters.strengths)
    is_correct = torch.zeros(2, len(IMAGES), dtype=torch.bool)
    for batch in check_batches(
        perturb(task, context, parameters, request), name="", request=request, constraint=task.constraint
    ):
        is_correct[batch.strength_index, batch.positions] = (
            classifier(batch.images).argmax(dim=1) == LABELS[batch.positions]
        )
    expected = ~misclassified | (distances > torch.tensor(epsilons)[:, None])
    assert torch.equal(is_correct, expected)
    assert int(is_correct[1].sum()) + int((~is_correct[0]).sum()) > 0


@pytest.mark.parametrize("key", ["fmn", "fmn_l0", "pgd", "clean"])
def test_stored_distances_match_images_and_merge_exactly(key):
    task = TASKS[key]
    parameters = small_parameters(task)
    context = dataclasses.replace(tiny_context(key, tiny_classifier(Float64Network())), engine="fused")

    def evaluate_slice(start, stop):
        part = part_of(task, parameters, IMAGES, start, stop)
        results = evaluate_part(context, task, parameters, part, IMAGES, ("distances",), provenance={})
        return {result.strength: result.values for result in results}

    values_of_all_images, parts = evaluate_slice(0, 21), (evaluate_slice(0, 8), evaluate_slice(8, 21))
    for strength, images in perturb_all(task, parameters, IMAGES, context).items():
        values = values_of_all_images[strength]
        merged = merge_values([part[strength] for part in parts])
        assert {name: array.tobytes() for name, array in merged.items()} == {
            name: array.tobytes() for name, array in values.items()
        }
        misclassified = context.classifier(images).argmax(dim=1) != LABELS
        lengths = torch.zeros(len(images)) if task.constraint is None else distances_of(key, images)
        expected = np.where(misclassified, lengths, np.inf)
        np.testing.assert_allclose(convert_stored_distances(values["distances"]), expected, atol=1e-9)
        assert int(misclassified.sum()) > 0


def test_cautions_warn_about_few_steps():
    for task in FUSED_TASKS:
        assert task.parameters().cautions == ()
        (caution, *_) = task.parameters(steps=10).cautions
        assert caution.field == "steps"
        assert "10 steps are few" in caution.problem
    (_, unreachable_caution) = TASKS["ddn_l2"].parameters(steps=10, epsilons=(0.25,)).cautions
    assert "init_epsilon × (1 - gamma)^steps = 0.5987" in unreachable_caution.problem
    assert TASKS["ddn_l2"].parameters(steps=60, epsilons=(0.25,)).cautions == ()


def test_brendel_bethge_rejects_fused_engine_and_missing_library(monkeypatch):
    task = TASKS["bb_l2"]
    with pytest.raises(ConfigError, match="expected one of reference"):
        task.load("fused")
    monkeypatch.setattr("robust201.tasks.perturbations.bb.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs numba.*robust201\[bb\]"):
        perturb_all(task, task.parameters(), IMAGES, tiny_context(task.key))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
@pytest.mark.parametrize(
    ("key", "largest_epsilon"), [("bb", 255.0), ("bb_l2", 3.0**0.5 * SIZE), ("bb_l1", 192.0), ("bb_l0", 192.0)]
)
def test_brendel_bethge_fulfils_contract_and_is_close_to_fmn(key, largest_epsilon):
    task = TASKS[key]
    field = "epsilons_255" if key == "bb" else "epsilons"
    parameters = task.parameters(steps=150, **{field: (largest_epsilon / 8, largest_epsilon)})
    request = request_of(IMAGES, parameters.strengths)
    nearest = torch.full_like(CLEAN, torch.nan)
    for batch in check_batches(
        perturb(task, tiny_context(key), parameters, request), name=key, request=request, constraint=task.constraint
    ):
        if batch.strength_index == 1:
            nearest[batch.positions] = batch.images
    misclassified = CLASSIFIER(nearest).argmax(dim=1) != LABELS
    assert misclassified.double().mean() > 0.9
    fmn_key = "fmn" + key.removeprefix("bb")
    fmn_distances = distances_of(fmn_key, fused_minima(fmn_key, TASKS[fmn_key].parameters(steps=150)))
    ratios = (distances_of(key, nearest) / fmn_distances)[fmn_distances > 0]  # FMN does not fool every image
    # In L0, Foolbox's attack changes several times as many values.
    assert ratios.median() < (5 if key == "bb_l0" else 2)


def test_perturbation_of_exact_radius_is_in_ball():
    epsilons = range(1, 256)
    clean = torch.zeros(255, 3, 2, 2)
    nearest = clean + torch.tensor([epsilon / 255 for epsilon in epsilons]).view(-1, 1, 1, 1)
    for epsilon in epsilons:
        result = replace_outside_ball(LINF, clean, nearest, LINF.radius(epsilon))
        assert int((result > 0).any(dim=(1, 2, 3)).sum()) == epsilon
    changed = (torch.arange(12) < torch.arange(1, 13)[:, None]).float().view(12, 3, 2, 2)
    for count in range(1, 13):
        result = replace_outside_ball(L0, torch.zeros_like(changed), changed, L0.radius(count))
        assert int((result > 0).any(dim=(1, 2, 3)).sum()) == count
