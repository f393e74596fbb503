"""Minimum-norm attacks: parity with Foolbox, stored distances, and images on the boundary of a ball or a class."""

import dataclasses

import eagerpy
import numpy as np
import pytest
import torch

from robust201.attacks.batching import BatchedModel
from robust201.attacks.context import to_float
from robust201.attacks.contract import perturb
from robust201.attacks.fmn import find_nearest, keep_in_balls
from robust201.attacks.random_numbers import RandomNumbers
from robust201.attacks.reference import foolbox
from robust201.attacks.samples import Samples
from robust201.evaluation.evaluate import evaluate_part
from robust201.evaluation.measurements import merge_values
from robust201.tasks import TASKS
from robust201.tasks.columns import distances_of as convert_stored_distances
from robust201.tasks.constraints import LINF
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
MINIMUM_NORM_TASKS = [task for task in TASKS.values() if task.model.finds_distances]


class ProjectedL2Fmn(foolbox.attacks.L2FMNAttack):
    """Foolbox's attack with the projection of Pintor et al. (2021) onto the epsilon ball, which Foolbox omits."""

    def project(self, x, x0, epsilon):
        norms = eagerpy.maximum((x - x0).flatten(start=1).norms.l2(axis=-1), 1e-12)
        return x0 + (x - x0) * eagerpy.minimum(1, epsilon / norms).reshape((len(x), 1, 1, 1))


LIBRARY_ATTACKS = {
    "fmn": foolbox.attacks.LInfFMNAttack,
    "fmn_l2": ProjectedL2Fmn,
    "fmn_l1": foolbox.attacks.L1FMNAttack,
}


def library_nearest_images(attack, classifier=CLASSIFIER, labels=LABELS):
    """Return the nearest misclassified images that Foolbox's attack finds, at any distance."""
    model = foolbox.PyTorchModel(classifier, bounds=(0, 1), device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return attack.run(model, CLEAN, foolbox.criteria.Misclassification(labels)).detach()


def fused_nearest_images(key, parameters, classifier=CLASSIFIER, labels=LABELS):
    """Return the nearest misclassified images that the fused attack finds, at any distance."""
    indices = np.arange(len(IMAGES))
    samples = Samples(CLEAN, labels, np.full(len(IMAGES), np.inf), indices, indices, RandomNumbers(5, key))
    return find_nearest(BatchedModel(classifier, classifier.n_classes, *LIBRARY_BATCHES), samples, parameters)


def distances_of(key, images):
    return TASKS[key].constraint.distances(images - CLEAN).double()


@pytest.mark.parametrize("steps", [1, 7, 60])
@pytest.mark.parametrize("key", LIBRARY_ATTACKS)
def test_fused_attack_matches_foolbox_bitwise(key, steps):
    projection = {"projection": "ball"} if key == "fmn_l2" else {}
    nearest = fused_nearest_images(key, TASKS[key].parameters(steps=steps, **projection))
    expected = library_nearest_images(LIBRARY_ATTACKS[key](steps=steps))
    assert count_differing_bits(nearest, expected) == 0
    if steps == 60:
        misclassified = CLASSIFIER(expected).argmax(dim=1) != LABELS
        # Some images are misclassified without an attack, and the attack fools more than half of all images.
        fooled_by_attack = misclassified & (distances_of(key, expected) > 0)
        assert int(fooled_by_attack.sum()) < len(LABELS)
        assert fooled_by_attack.double().mean() > 0.5


@pytest.mark.parametrize("changes", [{"max_stepsize": 0.3, "gamma": 0.2}, {"max_stepsize": 10.0}])
@pytest.mark.parametrize("key", ["fmn", "fmn_l1"])
def test_fmn_with_other_parameters_matches_foolbox(key, changes):
    nearest = fused_nearest_images(key, TASKS[key].parameters(steps=12, **changes))
    assert count_differing_bits(nearest, library_nearest_images(LIBRARY_ATTACKS[key](steps=12, **changes))) == 0


def test_fmn_l2_without_projection_matches_foolbox():
    nearest = fused_nearest_images("fmn_l2", TASKS["fmn_l2"].parameters(steps=30, projection="none"))
    assert count_differing_bits(nearest, library_nearest_images(foolbox.attacks.L2FMNAttack(steps=30))) == 0
    projected = fused_nearest_images("fmn_l2", TASKS["fmn_l2"].parameters(steps=30, projection="ball"))
    assert distances_of("fmn_l2", projected).median() < 0.9 * distances_of("fmn_l2", nearest).median()


@pytest.mark.parametrize("projection", ["ball", "none", "both"])
@pytest.mark.parametrize("engine", ["reference", "fused"])
def test_fmn_l2_takes_the_nearer_image_of_the_requested_runs(projection, engine):
    """For some images, 3 steps without projection find a nearer adversarial image, or the only one."""
    task, largest_radius = TASKS["fmn_l2"], 3.0**0.5 * SIZE
    parameters = task.parameters(steps=3, projection=projection, epsilons=(largest_radius,))
    context = dataclasses.replace(tiny_context(task.key, batch_size=len(IMAGES)), engine=engine)
    projected, unprojected = (
        library_nearest_images(attack_class(steps=3)) for attack_class in (ProjectedL2Fmn, foolbox.attacks.L2FMNAttack)
    )
    distances = [distances_of("fmn_l2", images) for images in (projected, unprojected)]
    is_nearer = (distances[1] > 0) & ((distances[0] == 0) | (distances[1] < distances[0]))
    assert 0 < int(is_nearer.sum()) < len(IMAGES)
    nearer = torch.where(is_nearer.view(-1, 1, 1, 1), unprojected, projected)
    expected = {"ball": projected, "none": unprojected, "both": nearer}[projection]
    assert torch.allclose(perturb_all(task, parameters, IMAGES, context)[largest_radius], expected, atol=1e-6)


@pytest.mark.parametrize("task", MINIMUM_NORM_TASKS, ids=lambda task: task.key)
def test_image_is_correct_at_epsilons_below_its_distance(task):
    # Rounding inside this network does not depend on the batch.
    classifier = tiny_classifier(Float64Network())
    nearest = fused_nearest_images(task.key, task.parameters(steps=40), classifier)
    distances = distances_of(task.key, nearest)
    misclassified = classifier(nearest).argmax(dim=1) != LABELS
    positive_distances = sorted(set(distances[misclassified].tolist()) - {0.0})
    # Exceed the distances slightly: radii are rounded, and the rounding of the attack's norms depends on the batch.
    epsilons = [1.0001 * positive_distances[len(positive_distances) // 4], 1.0001 * positive_distances[-1]]
    parameters = task.parameters(steps=40, epsilons=epsilons)
    context = dataclasses.replace(tiny_context(task.key, classifier), engine="fused")
    request = request_of(IMAGES, parameters.strengths)
    is_correct = torch.zeros(2, len(IMAGES), dtype=torch.bool)
    for batch in perturb(task, context, parameters, request):
        is_correct[batch.strength_index, batch.positions] = (
            classifier(batch.images).argmax(dim=1) == LABELS[batch.positions]
        )
    expected = ~misclassified | (distances > torch.tensor(epsilons)[:, None])
    assert torch.equal(is_correct, expected)
    assert int(is_correct[1].sum()) + int((~is_correct[0]).sum()) > 0


@pytest.mark.parametrize("key", ["fmn", "pgd", "clean"])
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


def test_perturbation_of_exact_radius_is_in_ball():
    epsilons = range(1, 256)
    clean = torch.zeros(255, 3, 2, 2)
    nearest = clean + torch.tensor([epsilon / 255 for epsilon in epsilons]).view(-1, 1, 1, 1)
    for epsilon in epsilons:
        result = keep_in_balls(LINF, clean, nearest, np.full(255, LINF.radius(epsilon)))
        assert int((result > 0).any(dim=(1, 2, 3)).sum()) == epsilon


def test_image_on_the_boundary_without_gradient_stays_unchanged():
    """The attack estimates the distance to the boundary by a quotient, which is 0 / 0 for such an image."""
    classifier = tiny_classifier(PathlessNetwork([1.0, 1.0, 0.0, 0.0, 0.0]))
    labels = torch.zeros(len(IMAGES), dtype=torch.int64)
    for task in MINIMUM_NORM_TASKS:
        assert torch.equal(fused_nearest_images(task.key, task.parameters(steps=3), classifier, labels), CLEAN)
