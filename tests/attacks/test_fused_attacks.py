"""Fused attacks: independence from batches, other images and other strengths; number of passes."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from robust201.attacks import square
from robust201.attacks.batching import BatchedModel
from robust201.attacks.context import Request, to_float
from robust201.attacks.contract import perturb
from robust201.attacks.random_numbers import RandomNumbers
from robust201.attacks.runner import run_attack
from robust201.dataset.export import export_dataset
from robust201.evaluation.evaluate import evaluate_part
from robust201.networks.batch_sizes import BatchSizes
from robust201.networks.model import differentiate_objective
from robust201.sweep.plan import open_results
from robust201.tasks import TASKS
from tests.conftest import TINY_KEYS, read_tree
from tests.support.attack_rows import FULLY_TESTED_FUSED_ATTACKS, mark_ensembles_slow
from tests.support.runs import run_inline
from tests.support.tiny_networks import (
    N_CLASSES,
    SEED,
    SIZE,
    CountingNetwork,
    PathlessNetwork,
    attack_parameters,
    checked_classifier,
    part_of,
    request_of,
    small_parameter_values,
    small_parameters,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

AUTOATTACKS = [task for task in FULLY_TESTED_FUSED_ATTACKS if task.key.startswith("aa_")]
each_fully_tested_attack = pytest.mark.parametrize("task", mark_ensembles_slow(FULLY_TESTED_FUSED_ATTACKS))
each_fully_tested_autoattack = pytest.mark.parametrize("task", mark_ensembles_slow(AUTOATTACKS))
SHAPE = (3, SIZE, SIZE)


class ExactNetwork(nn.Module):
    """A network whose logits do not depend on the order of sums or on the batch, since they are exact in float64.

    Pixels and weights are rounded to multiples of 2**-12 and 2**-6, so every product and sum is exact.
    """

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("weights", (torch.randn(12, 3 * SIZE * SIZE, generator=generator) * 64).round() / 64)
        self.register_buffer("head", (torch.randn(N_CLASSES, 12, generator=generator) * 64).round() / 64)

    def features(self, pixels):
        exact = ((pixels.double() - 0.5) * 4096).round() / 4096
        return exact.flatten(1) @ self.weights.double().T

    def forward(self, pixels):
        return (self.features(pixels).clamp(min=0) @ self.head.double().T).float()


class ExactModel:
    """A `Model` of `ExactNetwork`, whose logits and gradients do not depend on the batch."""

    def __init__(self):
        self.network = ExactNetwork()
        self.batch_sizes = BatchSizes()
        self.n_samples = 0

    def logits(self, pixels):
        self.n_samples += len(pixels)
        return self.network(pixels)

    def loss_and_gradient(self, pixels, labels):
        logits = self.logits(pixels)
        loss = nn.functional.cross_entropy(logits, labels, reduction="none")
        return logits, loss, self.backward(pixels, logits.softmax(dim=1) - nn.functional.one_hot(labels, N_CLASSES))

    def value_and_gradient(self, pixels, objective):
        logits = self.logits(pixels)
        values, error = differentiate_objective(objective, logits, slice(0, len(pixels)))
        return logits, values, self.backward(pixels, error)

    def backward(self, pixels, error):
        # Round to multiples of 2**-20, so that the products are exact.
        error = (error.double() * 2**20).round() / 2**20
        feature_error = (error @ self.network.head.double()) * (self.network.features(pixels) > 0)
        return (feature_error @ self.network.weights.double()).float().view(pixels.shape)


MODEL = ExactModel()
IMAGES = tiny_images(classifier=ExactNetwork())


def attack_images(
    task,
    *,
    parameters=None,
    positions=None,
    strengths=None,
    batch_size=64,
    pool_size=10_000,
    model=MODEL,
):
    """Attack some images; return {strength: (n, 3, H, W)} in the order of `positions`."""
    parameters = parameters or small_parameters(task)
    strengths = strengths or parameters.strengths
    positions = np.arange(len(IMAGES)) if positions is None else np.asarray(positions)
    batched_model = BatchedModel(model, N_CLASSES, batch_size, pool_size)
    request = Request(
        strengths,
        torch.from_numpy(IMAGES.images[positions]),
        torch.from_numpy(IMAGES.labels[positions]),
        IMAGES.indices[positions],
    )
    perturbed = {strength: torch.full((len(positions), *SHAPE), torch.nan) for strength in strengths}
    for batch in run_attack(task, parameters, batched_model, request, RandomNumbers(SEED, task.key)):
        perturbed[strengths[batch.strength_index]][batch.positions] = batch.images
    return perturbed


def assert_equals_rows_of(all_perturbed, perturbed, rows=slice(None)):
    """Assert that perturbed images equal these rows of all perturbed images, at each strength of `perturbed`."""
    for strength in perturbed:
        assert torch.equal(all_perturbed[strength][rows], perturbed[strength]), strength


MULTI_STEP_PARAMETERS = {
    "pgd": {"steps": 10},
    "pgd_l2": {"steps": 10, "random_start": True, "iterate": "best"},
    "pgd_linf7": {"steps": 7, "random_start": True, "iterate": "best", "label": "predicted"},
    "fgsm": {},
    "aa_apgd-ce": {"steps": 15, "restarts": 2},
    "aa_apgd-ce_l1": {"steps": 15, "restarts": 2, "larger_epsilons": False},
    "aa_apgd-t": {"steps": 8, "targets": 2, "restarts": 2},
    "aa_fab-t": {"steps": 6, "targets": 9},
    "grid775": {"rotations": 5, "translations": 2},
    "rot30": {},
    "aa_square": {"queries": 55, "restarts": 2},
}
PARAMETERS = {
    task.key: attack_parameters(
        task, (1.0, 4.0, 8.0), **MULTI_STEP_PARAMETERS.get(task.key, small_parameter_values(task))
    )
    for task in FULLY_TESTED_FUSED_ATTACKS
}


@functools.cache
def all_attacked_images(key):
    """Attack all images in one batch, and return them: {strength: (N, 3, H, W)}."""
    return attack_images(TASKS[key], parameters=PARAMETERS[key])


@each_fully_tested_autoattack
def test_attack_fools_some_images(task):
    n_fooled = [
        int((MODEL.network(images).argmax(dim=1) != torch.from_numpy(IMAGES.labels)).sum())
        for images in all_attacked_images(task.key).values()
    ]
    assert 5 <= n_fooled[0] < n_fooled[1] <= n_fooled[2]


@each_fully_tested_attack
@pytest.mark.parametrize(("batch_size", "pool_size"), [(5, 12), (11, 40), (1000, 3)])
@pytest.mark.slow_combinations
def test_result_does_not_depend_on_batches(task, batch_size, pool_size):
    perturbed = attack_images(task, parameters=PARAMETERS[task.key], batch_size=batch_size, pool_size=pool_size)
    assert_equals_rows_of(all_attacked_images(task.key), perturbed)


@pytest.mark.parametrize("check_interval", [1, 3, 17, 1000])
def test_square_result_does_not_depend_on_check_interval(check_interval, monkeypatch):
    task = TASKS["aa_square"]
    expected = all_attacked_images(task.key)
    monkeypatch.setattr(square, "queries_per_check", lambda _query: check_interval)
    assert_equals_rows_of(expected, attack_images(task, parameters=PARAMETERS[task.key]))


@each_fully_tested_attack
def test_result_does_not_depend_on_other_strengths(task):
    for strength in PARAMETERS[task.key].strengths:
        perturbed = attack_images(task, parameters=PARAMETERS[task.key], strengths=(strength,))
        assert_equals_rows_of(all_attacked_images(task.key), perturbed)


@each_fully_tested_attack
@settings(max_examples=4)
@given(positions=st.lists(st.integers(0, len(IMAGES) - 1), unique=True, min_size=1))
def test_result_does_not_depend_on_other_images(task, positions):
    perturbed = attack_images(task, parameters=PARAMETERS[task.key], positions=positions, batch_size=7, pool_size=30)
    assert_equals_rows_of(all_attacked_images(task.key), perturbed, rows=positions)


def test_evaluate_part_takes_predictions_from_attacked_model():
    task = TASKS["fgsm"]
    model = ExactModel()
    context = dataclasses.replace(tiny_context(""), engine="fused", model=model)
    parameters = small_parameters(task)
    part = part_of(task, parameters, IMAGES)
    weaker_result, _ = evaluate_part(context, task, parameters, part, IMAGES, ("predictions",), provenance={})
    perturbed = attack_images(task, strengths=(parameters.strengths[0],))[parameters.strengths[0]]
    assert weaker_result.values["predictions"].tolist() == model.network(perturbed).argmax(dim=1).tolist()
    # The attack takes one pass, and the evaluation of its results one pass at each of two strengths.
    assert model.n_samples == 3 * len(IMAGES)


def test_autoattack_classifies_results_again_before_returning_them():
    class ModelWithInvertedLogits(ExactModel):
        def loss_and_gradient(self, pixels, labels):
            logits, loss, gradient = super().loss_and_gradient(pixels, labels)
            return -logits, loss, gradient

    task = TASKS["aa_apgd-ce"]
    clean = to_float(torch.from_numpy(IMAGES.images))
    for images in attack_images(task, parameters=PARAMETERS[task.key], model=ModelWithInvertedLogits()).values():
        changed = (images != clean).flatten(1).any(dim=1)
        assert (MODEL.network(images).argmax(dim=1) != torch.from_numpy(IMAGES.labels))[changed].all()


@each_fully_tested_attack
def test_attack_respects_the_maximum_batch_size(task):
    class NetworkForSmallBatches(CountingNetwork):
        def forward(self, pixels):
            assert len(pixels) <= 5
            return super().forward(pixels)

    context = tiny_context(task.key, tiny_classifier(NetworkForSmallBatches(tiny_classifier().network), 5))
    context = dataclasses.replace(context, engine="fused")
    parameters = small_parameters(task)
    batches = perturb(task, context, parameters, request_of(IMAGES, parameters.strengths))
    assert sum(len(batch.positions) for batch in batches) == len(IMAGES) * len(parameters.strengths)


def test_sweep_does_not_depend_on_batches_and_parts(make_sweep, tmp_path):
    exports = []
    keys = {key: TINY_KEYS[key] for key in ("pgd", "aa_apgd-ce", "aa_square")}
    # Compare predictions instead of confidences, since logits of a float32 network round differently in other batches.
    for batch_size, speed in ((4, 10.0), (3, 1e-5)):
        config = make_sweep(
            keys=keys,
            engine="fused",
            batch_size=batch_size,
            measurements=["accuracy", "predictions"],
            results=str(tmp_path / f"results {batch_size}"),
            execution={"gmacs_per_second": speed},
        )
        assert run_inline(config).is_complete
        export_folder = tmp_path / f"json {batch_size}"
        export_dataset(*open_results(config.results), export_folder)
        exports.append({name: text for name, text in read_tree(export_folder).items() if "predictions" in name})
    assert len(exports[0]) == len(keys)
    assert exports[0] == exports[1]


# --- number of passes ----------------------------------------------------------------------------------------------


def test_fgsm_takes_one_gradient_for_all_epsilons():
    model = ExactModel()
    attack_images(TASKS["fgsm"], strengths=tuple(float(epsilon) for epsilon in range(1, 12)), model=model)
    assert model.n_samples == len(IMAGES)


def test_square_stops_querying_images_that_fool_the_network():
    task = TASKS["aa_square"]
    model = ExactModel()
    parameters = task.parameters(epsilons=("255/255",), queries=5000)
    perturbed = attack_images(task, parameters=parameters, model=model)[255.0]
    assert (model.network(perturbed).argmax(dim=1) != torch.from_numpy(IMAGES.labels)).all()
    assert model.n_samples < 100 * len(IMAGES)


def test_square_makes_no_query_for_zero_margin():
    network = CountingNetwork(PathlessNetwork([0.0] * N_CLASSES))
    context = tiny_context("aa_square", tiny_classifier(network))
    images = tiny_images(8, labels=[0] * 8)
    task, context = TASKS["aa_square"], dataclasses.replace(context, engine="fused")
    list(perturb(task, context, task.parameters(), request_of(images, (8.0,))))
    # One pass on clean images, one for the margin at the start, and one on the result.
    assert network.n_images == 8 * 3


@pytest.mark.parametrize(
    ("key", "changes", "n_passes"),
    [
        ("aa_apgd-ce", {"steps": 7}, 1 + 7 + 1),
        ("aa_apgd-ce", {"steps": 7, "restarts": 3}, 3 * (1 + 7 + 1)),
        ("aa_square", {"queries": 12}, 1 + 12 + 1),
        ("aa_square", {"queries": 12, "restarts": 2}, 2 * (1 + 12 + 1)),
    ],
)
def test_number_of_passes_follows_from_parameters(key, changes, n_passes):
    network = CountingNetwork(PathlessNetwork([5.0, 0.0, 0.0, 0.0, 0.0]))
    images = tiny_images(8, labels=[0] * 8)
    parameters = TASKS[key].parameters(epsilons=("1/255", "8/255"), **changes)
    context = dataclasses.replace(tiny_context(key, checked_classifier(network)), engine="fused")
    batches = perturb(TASKS[key], context, parameters, request_of(images, parameters.strengths))
    assert len(list(batches)) == 2
    # One pass on clean images for all strengths, and `n_passes` at each strength: for all runs and their results.
    assert network.n_images == 8 * (1 + 2 * n_passes)
