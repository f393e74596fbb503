"""The simulated accelerator is bit-identical to the CPU, and the host waits for it as often as expected."""

import dataclasses

import numpy as np
import pytest
import torch

from robust201.attacks.context import Request
from robust201.attacks.contract import perturb
from robust201.evaluation.evaluate import evaluate_part
from robust201.networks.classifier import Classifier
from robust201.networks.device import cumulative_sum
from robust201.networks.nb201.cells import specs
from robust201.networks.nb201.compiled import compile_network
from robust201.networks.zoo.zoo_space import NETWORKS, Zoo
from robust201.tasks import TASKS
from tests.networks.test_inference import N_CLASSES as N_CELL_CLASSES
from tests.networks.test_inference import NORMALISATION as CELL_NORMALISATION
from tests.networks.test_inference import network_of
from tests.support.simulated_device import NAME, count_waits, enable_device
from tests.support.tiny_networks import (
    N_CLASSES,
    NORMALISATION,
    TinyNetwork,
    part_of,
    small_parameters,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

GRADIENT_ATTACKS = [
    key
    for key, task in TASKS.items()
    # Ensembles are omitted, because their stages are also keys.
    if task.kind == "attack" and task.model.role not in ("black box", "ensemble")
]
IMAGES = tiny_images(24)
SPEC = specs()[991]


@pytest.fixture(autouse=True)
def _enable_device():
    """Enable the device, and deterministic mode as in the workers of a sweep."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    with enable_device():
        yield
    torch.set_deterministic_debug_mode(mode)


def test_device_computes_values_rejects_mixed_devices_and_counts_waits():
    host = torch.arange(4.0)
    with count_waits() as waits:
        x = host.to(NAME)
        assert x.device.type == (x + x).device.type == NAME
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            x + host
    assert waits == []
    for wait in (
        lambda: bool((x > 0).any()),
        lambda: float(x.sum()),
        lambda: x[x > 1],
        (x > 1).nonzero,
        lambda: x.clone().__setitem__(x > 1, torch.zeros(2, device=NAME)),
        lambda: torch.equal(x, x),
        x.cpu,
        lambda: torch.empty(4).copy_(x),
    ):
        with count_waits() as waits:
            wait()
        assert len(waits) == 1
    assert torch.equal((x * 2).cpu(), host * 2)
    with pytest.raises(RuntimeError, match="deterministic"):
        x.cumsum(dim=0)


def test_cumulative_sum_is_bit_identical_to_the_cpu():
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3072, 2)).astype(np.float32))
    assert torch.equal(cumulative_sum(values.to(NAME), dim=1).cpu(), values.cumsum(dim=1))


def evaluate_on(device, key, *, attack_samples=20, **changes):
    """Return a key's values by strength, and the operations that waited for the device."""
    task = TASKS[key]
    classifier = tiny_classifier(TinyNetwork(), attack_samples=attack_samples).to(device)
    context = dataclasses.replace(tiny_context(key, classifier), engine="fused")
    parameters = small_parameters(task, **changes)
    measurements = [] if task.kind == "measure" else ["confusion", "predictions"]
    part = part_of(task, parameters, IMAGES)
    with count_waits() as waits:
        results = list(evaluate_part(context, task, parameters, part, IMAGES, measurements, provenance={}))
    return {result.strength: result.values for result in results}, waits


# The ensembles in L2 and L1 are omitted, because their stages are also keys.
@pytest.mark.parametrize("key", [key for key in TASKS if key not in ("aa_standard_l2", "aa_standard_l1")])
def test_results_are_bit_identical_to_the_cpu(key):
    changes = {"steps": 16} if key == "hessian_weights" else {}
    expected, _ = evaluate_on("cpu", key, **changes)
    actual, _ = evaluate_on(NAME, key, **changes)
    np.testing.assert_equal(actual, expected)


def count_expected_waits(task, parameters):
    """Return how often the host must wait for the device if an attack's samples at all strengths fit into one batch."""
    n_strengths, runs = len(parameters.strengths), task.procedure.count_runs
    # The host checks each returned batch, and at the end that each image was returned.
    n_waits = n_strengths + 1
    if task.procedure.images == "correct":
        n_waits += 1 + n_strengths  # to read which images are correct, and to check the batches of the other images
    # Before each further run, the host reads which samples resist.
    return n_waits + (0 if runs is None else runs(parameters, N_CLASSES) - 1)


@pytest.mark.parametrize("key", GRADIENT_ATTACKS)
def test_number_of_waits_follows_from_the_procedure_of_the_attack(key):
    task, classifier = TASKS[key], tiny_classifier(TinyNetwork(), attack_samples=2048).to(NAME)
    context = dataclasses.replace(tiny_context(key, classifier), engine="fused")
    images, labels = (torch.from_numpy(array).to(NAME) for array in (IMAGES.images, IMAGES.labels))
    n_waits = []
    for steps in (2, 4):
        parameters = small_parameters(task, **{"steps": steps} if "steps" in task.field_names else {})
        with count_waits() as waits:
            list(perturb(task, context, parameters, Request(parameters.strengths, images, labels, IMAGES.indices)))
        n_waits.append(len(waits))
    expected = count_expected_waits(task, parameters)
    assert n_waits == [expected + 1, expected]  # the first gradient of a network is checked


@pytest.mark.parametrize("key", ["aa_square", "aa_square_l2"])
def test_square_waits_once_per_check_for_fooled_images(key):
    n_waits = [len(evaluate_on(NAME, key, attack_samples=2048, queries=queries)[1]) for queries in (20, 40, 90)]
    # Square checks after each of the first 64 queries, then after every second query (up to 96).
    assert np.diff(n_waits).tolist() == [20, 37]


def compute_passes_on(device, classifier):
    pixels = torch.from_numpy(np.random.default_rng(0).random((5, 3, 32, 32), np.float32)).to(device)
    labels = torch.arange(5).to(device)
    return [classifier.logits(pixels), *classifier.loss_and_gradient(pixels, labels)]


# Networks with 34 layers are omitted, because they have the same types of blocks as networks with 18 layers.
@pytest.mark.parametrize("name", [name for name in NETWORKS if not name.endswith("34")])
def test_zoo_networks_are_bit_identical_to_the_cpu(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = NETWORKS[name].build(NETWORKS[name].width_divisor, 10)
    layout = {"channels_last": Zoo.channels_last}
    assert_same_passes(lambda device: Classifier(network, NORMALISATION, 10, device=device, **layout))


def test_cells_are_bit_identical_to_the_cpu():
    network = network_of(SPEC)
    assert_same_passes(lambda device: Classifier(network, CELL_NORMALISATION, N_CELL_CLASSES, device=device))


def test_compiled_cells_match_the_cpu_within_tolerance():
    """On a CPU, oneDNN computes fused convolutions, whose rounding differs. Folding copies nothing from the device."""
    with count_waits() as waits:
        on_device = compile_network(network_of(SPEC), SPEC, CELL_NORMALISATION, device=NAME)
    assert waits == []
    on_cpu = compile_network(network_of(SPEC), SPEC, CELL_NORMALISATION)
    for expected, actual in zip(compute_passes_on("cpu", on_cpu), compute_passes_on(NAME, on_device), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


def assert_same_passes(make_classifier):
    expected = compute_passes_on("cpu", make_classifier("cpu"))
    on_device = make_classifier(NAME)
    compute_passes_on(NAME, on_device)  # the first gradient of a network is checked, once
    with count_waits() as waits:
        actual = compute_passes_on(NAME, on_device)
    assert waits == []
    for expected_tensor, tensor in zip(expected, actual, strict=True):
        assert tensor.device.type == NAME
        assert torch.equal(tensor.cpu(), expected_tensor)
