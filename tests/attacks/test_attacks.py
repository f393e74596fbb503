"""The contract and properties of every task, and comparison of the reference engine with the libraries."""

import dataclasses
import functools
import os

import numpy as np
import pytest
import torch
from pyautoattack import AutoAttack

from robust201.attacks.context import Perturbed, to_float
from robust201.attacks.contract import check_batches, perturb
from robust201.attacks.reference import foolbox
from robust201.core.errors import PerturbationError
from robust201.core.noise import derived_seed
from robust201.tasks import ENGINES, TASKS
from robust201.tasks.constraints import LINF
from tests.support.attack_rows import (
    COVERED_TASKS,
    FULLY_TESTED_ATTACKS,
    FULLY_TESTED_TASKS,
    mark_ensembles_slow,
)
from tests.support.library_parity import library_images
from tests.support.tiny_networks import (
    BATCH_SIZE,
    N_CLASSES,
    SEED,
    Float64Network,
    PathlessNetwork,
    attack_parameters,
    corrupted_images,
    perturb_all,
    request_of,
    small_parameter_values,
    small_parameters,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

AUTOATTACKS = [task for task in FULLY_TESTED_ATTACKS if task.key.startswith("aa_")]
DETERMINISTIC_ATTACKS = ("fgsm", "aa_fab-t", "fmn", "grid775", "rot30")
"""Attacks without random numbers."""
every_task = pytest.mark.parametrize("task", mark_ensembles_slow(FULLY_TESTED_TASKS))
every_attack = pytest.mark.parametrize("task", mark_ensembles_slow(FULLY_TESTED_ATTACKS))
every_autoattack = pytest.mark.parametrize("task", mark_ensembles_slow(AUTOATTACKS))

IMAGES = tiny_images()


def predict(pixels, network=None):
    with torch.no_grad():
        return tiny_classifier(network)(pixels).argmax(dim=1)


@functools.cache
def all_perturbed_images(key, network_class=None):
    """Return all images perturbed by a task with small parameters: {strength: (N, 3, H, W)}."""
    classifier = tiny_classifier(None if network_class is None else network_class())
    return perturb_all(TASKS[key], small_parameters(TASKS[key]), IMAGES, tiny_context(key, classifier))


def protocol_batches(key):
    """Yield seed, pixels and labels of each batch of the protocol."""
    for batch_number in range(-(-len(IMAGES) // BATCH_SIZE)):
        batch = slice(batch_number * BATCH_SIZE, (batch_number + 1) * BATCH_SIZE)
        pixels = torch.from_numpy(IMAGES.images[batch]) / 255
        yield derived_seed(SEED, key, batch_number), pixels, torch.from_numpy(IMAGES.labels[batch])


# --- every task ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "engine"),
    [
        pytest.param(task, engine, id=f"{task.key}-{engine}")
        for task in TASKS.values()
        if task.kind != "measure"
        for engine in task.engines
    ],
)
def test_task_fulfils_contract_and_preserves_global_state(task, engine):
    parameters = small_parameters(task)
    images = IMAGES if task in FULLY_TESTED_TASKS else tiny_images(BATCH_SIZE + 1)
    context = dataclasses.replace(tiny_context(task.key), engine=engine)
    random_state, n_images = torch.get_rng_state(), 0
    for batch in perturb(task, context, parameters, request_of(images, parameters.strengths)):
        n_images += len(batch.positions)
        assert torch.equal(torch.get_rng_state(), random_state)
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        assert not batch.images.is_inference()
    assert n_images == len(parameters.strengths) * len(images)
    assert all(parameter.grad is None for parameter in context.classifier.parameters())


@every_task
def test_task_result_does_not_depend_on_other_strengths(task):
    parameters = small_parameters(task)
    for strength in parameters.strengths:
        perturbed = perturb_all(task, parameters, IMAGES, tiny_context(task.key), strengths=(strength,))
        assert torch.equal(perturbed[strength], all_perturbed_images(task.key)[strength])


@every_task
def test_task_result_does_not_depend_on_random_state(task):
    parameters = small_parameters(task)
    expected = all_perturbed_images(task.key)
    with torch.random.fork_rng():
        torch.rand(1)
        perturbed = perturb_all(task, parameters, IMAGES, tiny_context(task.key))
    assert all(torch.equal(perturbed[strength], expected[strength]) for strength in parameters.strengths)


@every_task
@pytest.mark.parametrize("micro_batch", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_task_result_does_not_depend_on_micro_batch(task, micro_batch):
    # FAB ends on a boundary, where rounding decides the class. In float32, rounding depends on the batch.
    parameters = small_parameters(task)
    context = tiny_context(task.key, tiny_classifier(Float64Network(), micro_batch=micro_batch))
    perturbed = perturb_all(task, parameters, IMAGES, context)
    for strength in parameters.strengths:
        assert torch.equal(perturbed[strength], all_perturbed_images(task.key, Float64Network)[strength])


@every_task
@pytest.mark.parametrize("has_gradients", [True, False], ids=["zero gradients", "no gradients"])
@pytest.mark.parametrize("logits", [[0.0, 3.0, 1.0, -2.0, 0.5], [0.0] * N_CLASSES], ids=["constant", "ties"])
@pytest.mark.slow_combinations
def test_task_supports_constant_networks(task, has_gradients, logits):
    parameters = small_parameters(task)
    labels = np.arange(len(IMAGES)) % N_CLASSES
    images = tiny_images(labels=labels)
    context = tiny_context(task.key, tiny_classifier(PathlessNetwork(logits, has_gradients=has_gradients)))
    perturbed = perturb_all(task, parameters, images, context)
    for pixels in perturbed.values():
        assert torch.equal(context.classifier(pixels).argmax(dim=1), torch.full((len(images),), int(np.argmax(logits))))


@every_attack
def test_part_uses_random_numbers_of_whole_unit(task):
    parameters = small_parameters(task)
    expected = all_perturbed_images(task.key)
    fields = {name: getattr(IMAGES, name)[BATCH_SIZE:] for name in ("images", "labels", "indices")}
    last_images = dataclasses.replace(IMAGES, **fields)
    part_images = perturb_all(task, parameters, last_images, tiny_context(task.key, first_batch=1))
    wrong_batch_images = perturb_all(task, parameters, last_images, tiny_context(task.key, first_batch=0))
    assert all(torch.equal(part_images[strength], expected[strength][BATCH_SIZE:]) for strength in parameters.strengths)
    is_equal = all(
        torch.equal(part_images[strength], wrong_batch_images[strength]) for strength in parameters.strengths
    )
    assert is_equal == (task.key in DETERMINISTIC_ATTACKS)


# --- the libraries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("fgsm", {}),
        ("pgd", {"random_start": False}),
        ("pgd", {"target": "least_likely"}),
        ("pgd_linf7", {"label": "predicted", "random_start": False}),
        ("pgd_l2", {}),
        ("aa_apgd-ce", {"restarts": 2}),
        ("aa_apgd-ce_l1", {}),
        ("aa_apgd-t_l2", {}),
        ("aa_fab-t_l1", {}),
        ("aa_square", {"queries": 60}),
    ],
)
def test_reference_engine_matches_library_bitwise(key, changes):
    task = TASKS[key]
    parameters = small_parameters(task, **changes)
    perturbed = perturb_all(task, parameters, IMAGES, tiny_context(key))
    for strength in parameters.strengths:
        radius = task.constraint.radius(strength)
        expected = [
            library_images(key, tiny_classifier(), pixels, labels, radius, seed, parameters)
            for seed, pixels, labels in protocol_batches(key)
        ]
        assert torch.equal(perturbed[strength], torch.cat(expected))


def test_defaults_match_the_libraries():
    parameters, attack = TASKS["pgd"].parameters(), foolbox.attacks.LinfPGD()
    settings = [(source.steps, source.rel_stepsize, source.random_start) for source in (parameters, attack)]
    assert settings[0] == settings[1]
    adversary = AutoAttack(tiny_classifier(), version="standard", eps=1 / 255)
    apgd = TASKS["aa_apgd-ce"].parameters()
    assert (apgd.steps, apgd.restarts) == (adversary.apgd.n_iter, adversary.apgd.n_restarts)
    parameters, square = TASKS["aa_square"].parameters(), adversary.square
    assert (parameters.queries, parameters.restarts) == (square.n_queries, square.n_restarts)
    assert (parameters.p_init, square.rescale_schedule, square.loss) == (square.p_init, False, "margin")


def test_foolbox_import_does_not_need_git():
    """Foolbox imports GitPython, which raises an error without git unless this variable is set before."""
    assert os.environ["GIT_PYTHON_REFRESH"] == "quiet"


@every_autoattack
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.slow_combinations
def test_autoattack_returns_clean_image_if_it_fails(task, engine):
    parameters = attack_parameters(task, (1.0, 8.0, 64.0), **small_parameter_values(task))
    context = dataclasses.replace(tiny_context(task.key), engine=engine)
    clean, labels = to_float(torch.from_numpy(IMAGES.images)), torch.from_numpy(IMAGES.labels)
    misclassified_before = predict(clean) != labels
    assert 0 < int(misclassified_before.sum()) < len(labels)
    for perturbed in perturb_all(task, parameters, IMAGES, context).values():
        unchanged = (perturbed == clean).flatten(1).all(dim=1)
        assert unchanged[misclassified_before].all()
        assert torch.equal(~unchanged, (predict(perturbed) != labels) & ~misclassified_before)


# --- clean and corrupted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task", [task for task in COVERED_TASKS if task.kind == "corruption"], ids=lambda task: task.key
)
def test_corruption_requests_images_by_key_severity_and_index(task):
    perturbed = perturb_all(task, small_parameters(task), IMAGES, tiny_context(task.key))
    for severity, pixels in perturbed.items():
        expected = corrupted_images(task.key, int(severity), IMAGES.indices)
        assert torch.equal(pixels, torch.from_numpy(expected) / 255)


@pytest.mark.parametrize("make_images", [None, lambda *arguments: corrupted_images(*arguments)[:, :, 1:]])
def test_corruption_rejects_missing_or_misshapen_images(make_images):
    task = TASKS["fog"]
    context = dataclasses.replace(tiny_context("fog"), corrupted_images=make_images)
    with pytest.raises(PerturbationError, match="fog"):
        perturb_all(task, small_parameters(task), IMAGES, context)


# --- the contract --------------------------------------------------------------------------------------------------


def _broken_batches(change):
    pixels = torch.from_numpy(IMAGES.images)
    positions = torch.arange(len(pixels))
    images = to_float(pixels)
    return [Perturbed(*batch) for batch in change(positions, images)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, x: [(0, p, x.masked_fill(x == x.max(), torch.nan))], "nan"),
        (lambda p, x: [(0, p, x + (x == x.max()) * 0.5)], r"pixels in \[0, 1\]"),
        (lambda p, x: [(0, p, x - (x == x.min()) * 0.5)], r"pixels in \[0, 1\]"),
        (lambda p, x: [(0, p, (x + 1.1 / 255).clamp(0, 1))], "Linf"),
        (lambda p, x: [(0, p, x.double())], "float64"),
        (lambda p, x: [(0, p, x[:, :1])], "shape"),
        (lambda p, x: [(0, p[:-1], x[:-1])], "image 20 "),
        (lambda p, x: [(0, p, x), (0, p[:1], x[:1])], "image 0 "),
        (lambda p, x: [(0, torch.cat([p, p[:1]]), torch.cat([x, x[:1]]))], "image 0 "),
        (lambda _p, _x: [], "image 0 "),
    ],
)
def test_check_batches_rejects_invalid_batches(change, message):
    request = request_of(IMAGES, (1.0,))
    with pytest.raises(PerturbationError, match=message):
        list(check_batches(iter(_broken_batches(change)), tiny_context(""), request, LINF, None, name="#0 tiny pgd"))
