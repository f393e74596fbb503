"""Tests of the engine on a GPU. `pytest -n 0 -m gpu` runs them; without a GPU they are skipped."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from robust201.attacks import square
from robust201.attacks.batching import BatchedModel
from robust201.attacks.context import Request
from robust201.attacks.contract import perturb
from robust201.attacks.random_numbers import RandomNumbers
from robust201.attacks.runner import run_attack
from robust201.evaluation.evaluate import copy_to_device
from robust201.networks.batch_sizes import BatchSizes, Maxima
from robust201.networks.classifier import Classifier
from robust201.networks.device import GraphCapture, configure_torch, device_memory
from robust201.networks.gpu_memory import fit_memory
from robust201.networks.graphed_model import GraphedModel
from robust201.networks.nb201.cells import format_spec, specs
from robust201.networks.nb201.compiled import InferenceNetwork, compile_network
from robust201.networks.nb201.compiled.kernels import Convolution
from robust201.sweep.config import SweepConfig
from robust201.tasks import TASKS
from tests.networks.test_inference import N_CLASSES, NORMALISATION, SPECIAL_CELLS, images_of, network_of
from tests.support.library_parity import compare
from tests.support.runs import export_bytes, run_sweep
from tests.support.tiny_networks import N_CLASSES as N_TINY_CLASSES
from tests.support.tiny_networks import (
    PathlessNetwork,
    TinyNetwork,
    small_parameters,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use"),
]

PARAMETERS = {
    "fgsm": {"epsilons": ("0.5/255", "8/255", "255/255")},
    "pgd": {"epsilons": ("0.5/255", "3/255", "8/255")},
    "pgd_l2": {"epsilons": (0.02, 0.15, 0.5), "step_size": 0.02, "random_start": True},
    "aa_apgd-ce": {"epsilons": ("0.5/255", "3/255", "8/255")},
    "aa_square": {"epsilons": ("0.5/255", "3/255", "8/255"), "queries": 600},
}
all_attacks = pytest.mark.parametrize("key", list(PARAMETERS))
CELLS = {name: format_spec(SPECIAL_CELLS[name]) for name in ("constant map with a border", "only pooling", "all 3x3")}


@pytest.fixture(autouse=True)
def _configure_torch() -> None:
    configure_torch(threads=1)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda")


def move_to(device: torch.device, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to(device) for tensor in tensors]


def compile_on(device: torch.device, spec: str, channels: int = 16) -> InferenceNetwork:
    network = network_of(spec, channels=channels)
    return compile_network(network, spec, NORMALISATION, device=device)


# --- numbers ---------------------------------------------------------------------------------------------------------


@all_attacks
def test_fused_attacks_match_libraries_bitwise(device, key):
    classifier = tiny_classifier(TinyNetwork()).to(device)
    image_set = tiny_images()
    images, labels = move_to(device, torch.from_numpy(image_set.images), torch.from_numpy(image_set.labels))
    parameters = TASKS[key].parameters(**PARAMETERS[key])
    differences = compare(key, classifier, images, labels, parameters, seed=5)
    assert {
        strength: (difference.image_bits, difference.logit_bits) for strength, difference in differences.items()
    } == dict.fromkeys(parameters.strengths, (0, 0))


class RecordingModel:
    """Wrapper of a model that copies every batch of images to the host."""

    def __init__(self, model):
        self.model = model
        self.batches = []

    def logits(self, pixels):
        self.batches.append(pixels.cpu().clone())
        return self.model.logits(pixels)

    def loss_and_gradient(self, pixels, labels):
        self.batches.append(pixels.cpu().clone())
        return self.model.loss_and_gradient(pixels, labels)


@pytest.mark.parametrize("key", ["pgd", "aa_apgd-ce", "aa_square"])
def test_random_numbers_match_cpu(device, key):
    """The logits are constant, so no attack succeeds, and the model receives all starting points and proposals."""
    images_by_device = []
    image_set = tiny_images(8, labels=[0] * 8)
    iterations = {"queries": 50} if key == "aa_square" else {"steps": 3}
    parameters = TASKS[key].parameters(epsilons=("1/255", "8/255"), **iterations)
    for target in (torch.device("cpu"), device):
        model = RecordingModel(tiny_classifier(PathlessNetwork([5.0, 0.0, 0.0, 0.0, 0.0])).to(target))
        images, labels = move_to(target, torch.from_numpy(image_set.images), torch.from_numpy(image_set.labels))
        request = Request((1.0, 8.0), images, labels, image_set.indices)
        batched_model = BatchedModel(model, N_TINY_CLASSES, 64, 64)
        list(run_attack(TASKS[key], parameters, batched_model, request, RandomNumbers(0, key)))
        images_by_device.append(torch.cat(model.batches))
    assert images_by_device[0].shape == images_by_device[1].shape
    # The random numbers are equal, but dividing a pixel by 255 may round differently.
    assert (images_by_device[0] - images_by_device[1]).abs().max() < 1e-6


@pytest.mark.parametrize("spec", list(CELLS.values()), ids=list(CELLS))
def test_compiled_network_matches_published_network(device, spec):
    network = network_of(spec, channels=16)
    compiled = compile_network(network, spec, NORMALISATION, device=device)
    published = Classifier(network, NORMALISATION, N_CLASSES, device=device)
    pixels, labels = move_to(device, *images_of(32, n_images=64))
    expected = published.loss_and_gradient(pixels, labels % N_CLASSES)
    result = compiled.loss_and_gradient(pixels, labels % N_CLASSES)
    for actual, reference in zip(result[:2], expected[:2], strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-5)
    # A few ReLUs may be active in only one of the networks (docs/internals/engine.md).
    assert (result[2] - expected[2]).norm() < 5e-3 * expected[2].norm()
    torch.testing.assert_close(
        compiled.logits(pixels).cpu(), compile_on("cpu", spec).logits(pixels.cpu()), rtol=1e-4, atol=1e-4
    )


def test_tf32_is_disabled(device):
    """TF32 has a mantissa of 10 bits, which would cause relative errors of about one thousandth."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, 3, 3, generator=generator, dtype=torch.float64)
    images = torch.randn(32, 64, 32, 32, generator=generator)
    exact_output = functional.conv2d(images.double(), weight.float().double(), padding=1)
    output = Convolution(weight, None, device=device)(images.to(device).contiguous(memory_format=torch.channels_last))
    assert (output.cpu() - exact_output).abs().max() < 1e-5 * exact_output.abs().max()
    left, right = torch.randn(256, 256, generator=generator), torch.randn(256, 256, generator=generator)
    exact_product = left.double() @ right.double()
    assert ((left.to(device) @ right.to(device)).cpu() - exact_product).abs().max() < 1e-5 * exact_product.abs().max()


# --- graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("spec", list(CELLS.values()), ids=list(CELLS))
def test_cuda_graphs_do_not_change_results(device, spec, inference):
    plain_model = compile_on(device, spec)
    plain_model.batch_sizes = BatchSizes(Maxima(1024, 512), is_padded=True)
    graphed_model = GraphedModel(plain_model, GraphCapture(device))
    results = []
    for n_images in (1, 200, 256, 300, 1500, 7, 256):
        pixels, labels = move_to(device, *images_of(32, n_images=n_images))
        labels = labels % N_CLASSES
        with torch.inference_mode(inference):
            expected = (plain_model.logits(pixels), *plain_model.loss_and_gradient(pixels, labels))
            result = (graphed_model.logits(pixels), *graphed_model.loss_and_gradient(pixels, labels))
        results.append((result, expected))
    for result, expected in results:
        for actual, reference in zip(result, expected, strict=True):
            assert torch.equal(actual, reference)
    graphed_model.release()
    assert torch.equal(graphed_model.logits(pixels), plain_model.logits(pixels))


def test_released_graphs_free_their_memory(device):
    pixels, labels = move_to(device, *images_of(32, n_images=1024))

    def use_graphs(spec: str) -> int:
        network = compile_on(device, spec)
        network.batch_sizes = BatchSizes(Maxima(1024, 1024), is_padded=True)
        graphs = GraphedModel(network, GraphCapture(device))
        for n_images in (1024, 512, 256):
            graphs.loss_and_gradient(pixels[:n_images], labels[:n_images] % N_CLASSES)
            graphs.logits(pixels[:n_images])
        reserved_bytes = torch.cuda.memory_reserved(device)
        graphs.release()
        torch.cuda.empty_cache()
        return reserved_bytes

    use_graphs(specs()[1462])
    initial_bytes = torch.cuda.memory_reserved(device)
    peak_bytes = [use_graphs(specs()[index]) for index in (1462, 991, 1462)]
    # The tolerance of 32 MiB allows for memory that the allocator keeps.
    assert torch.cuda.memory_reserved(device) <= initial_bytes + 2**25
    assert peak_bytes[2] <= peak_bytes[0] + 2**25


def test_chosen_batches_fit_into_the_memory(device):
    network = compile_on(device, specs()[1462])
    memory, limit = device_memory(device), 2 * 10**9
    fit_memory(network, (3, 32, 32), device, (limit, memory[1]), share=1.0, attack_bytes=0)
    for gradient in (False, True):
        pixels, labels = move_to(device, *images_of(32, n_images=network.batch_sizes.maximum(gradient=gradient)))
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        initial_bytes = torch.cuda.memory_allocated(device)
        network.loss_and_gradient(pixels, labels % N_CLASSES) if gradient else network.logits(pixels)
        assert torch.cuda.max_memory_allocated(device) - initial_bytes <= limit


def test_batch_size_changes_logits_by_rounding_only(device):
    network = compile_on(device, specs()[991])
    pixels, _ = move_to(device, *images_of(32, n_images=400))  # batches of 256, 64, 64, 16, or 512
    logits = []
    for maximum in (256, 4096):
        network.batch_sizes = BatchSizes(Maxima(maximum, maximum), is_padded=True)
        logits.append(network.logits(pixels))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)


# --- synchronisation -------------------------------------------------------------------------------------------------


@pytest.fixture
def forbid_synchronisation() -> Iterator[Callable[[], None]]:
    """Return a function that makes PyTorch raise an error whenever the host waits for the device."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


def attack(key: str, classifier: Classifier, **changes: object) -> None:
    """Run a fused attack on images of the classifier's device."""
    task, images = TASKS[key], tiny_images(24)
    parameters = small_parameters(task, **changes)
    context = dataclasses.replace(tiny_context(key, classifier), engine="fused")
    resident_images = copy_to_device(images, classifier.device)
    request = Request(parameters.strengths, resident_images.pixels, resident_images.labels, images.indices)
    list(perturb(task, context, parameters, request))


@pytest.mark.parametrize("key", ["pgd", "pgd_linf7", "pgd_l2", "aa_apgd-ce", "aa_apgd-t_l1"])
def test_attack_steps_do_not_synchronise_with_device(device, key, forbid_synchronisation, monkeypatch):
    """From the start of the first gradient to the end of the last one, the host never waits."""
    classifier = tiny_classifier(TinyNetwork()).to(device)
    n_gradients = {"expected": 0, "done": 0}

    def wrap(differentiate):
        def differentiate_without_waiting(*arguments):
            if n_gradients["expected"]:
                forbid_synchronisation()
            result = differentiate(*arguments)
            n_gradients["done"] += 1
            if n_gradients["done"] == n_gradients["expected"]:
                torch.cuda.set_sync_debug_mode("default")
            return result

        return differentiate_without_waiting

    for name in ("loss_and_gradient", "value_and_gradient"):
        monkeypatch.setattr(classifier, name, wrap(getattr(classifier, name)))
    one_target = {"targets": 1} if "targets" in TASKS[key].field_names else {}
    attack(key, classifier, **one_target)
    n_gradients.update(expected=n_gradients["done"], done=0)
    attack(key, classifier, **one_target)
    assert n_gradients["done"] == n_gradients["expected"] > 1


def test_square_queries_do_not_synchronise_with_device(device, forbid_synchronisation, monkeypatch):
    make_queries = square._make_queries

    def make_queries_without_waiting(*arguments):
        forbid_synchronisation()
        margins = make_queries(*arguments)
        torch.cuda.set_sync_debug_mode("default")
        return margins

    monkeypatch.setattr(square, "_make_queries", make_queries_without_waiting)
    attack("aa_square", tiny_classifier(TinyNetwork()).to(device), queries=40)


# --- sweeps ---------------------------------------------------------------------------------------------------------


def run_and_export(config: SweepConfig, out: Path) -> dict[str, bytes]:
    assert run_sweep(config).is_complete
    return export_bytes(config, out)


@pytest.mark.parametrize("engine", ["reference", "fused"])
def test_repeated_sweeps_export_same_bytes(make_sweep, tmp_path, engine):
    exports = [
        run_and_export(
            make_sweep(engine=engine, results=str(tmp_path / f"run {i}"), execution={"device": "cuda"}),
            tmp_path / f"json {i}",
        )
        for i in range(2)
    ]
    assert len(exports[0]) == 7 * 3  # seven keys, each with three measurements
    assert exports[0] == exports[1]


def test_sweeps_with_and_without_graphs_export_same_bytes(make_sweep, tmp_path):
    exports = [
        run_and_export(
            make_sweep(
                engine="fused",
                results=str(tmp_path / str(uses_graphs)),
                execution={"device": "cuda", "cuda_graphs": uses_graphs},
            ),
            tmp_path / f"json {uses_graphs}",
        )
        for uses_graphs in (True, False)
    ]
    assert exports[0] == exports[1]


def test_gpu_sweep_agrees_with_cpu(make_sweep, tmp_path):
    """A few predictions may differ, because random networks have small margins."""
    predictions = []
    for device_name in ("cpu", "cuda"):
        config = make_sweep(
            engine="fused",
            measurements=["predictions"],
            results=str(tmp_path / device_name),
            execution={"device": device_name},
        )
        contents = [
            content
            for name, content in run_and_export(config, tmp_path / f"json {device_name}").items()
            if "predictions" in name
        ]
        predictions.append(
            np.array([int(digits) for content in contents for digits in re.findall(rb"\b\d+\b", content)])
        )
    assert predictions[0].shape == predictions[1].shape
    assert (predictions[0] == predictions[1]).mean() > 0.95
