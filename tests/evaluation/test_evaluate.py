"""Evaluation of a part: results at each strength, merging and errors; and the settings of PyTorch in a worker."""

import dataclasses
import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from robust201.core.errors import ConfigError, EvaluationError, PerturbationError
from robust201.evaluation.evaluate import evaluate_part
from robust201.evaluation.measurements import check_values, merge_values
from robust201.evaluation.user_calls import count_passes
from robust201.networks.device import configure_torch
from robust201.tasks import ENGINES, TASKS
from robust201.tasks.columns import MEASUREMENTS
from tests.support.attack_rows import FULLY_TESTED_TASKS, mark_ensembles_slow
from tests.support.tiny_networks import (
    CountingNetwork,
    TinyNetwork,
    checked_classifier,
    part_of,
    perturb_all,
    request_of,
    small_parameters,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

every_task = pytest.mark.parametrize("task", mark_ensembles_slow(FULLY_TESTED_TASKS))
IMAGES = tiny_images()
PROVENANCE = {"host": "here"}


def iterate_results(task, *, context=None, images=IMAGES, **bounds):
    parameters = small_parameters(task)
    # `evaluate_part` sets the key, as in a worker.
    context = context or tiny_context("")
    part = part_of(task, parameters, images, **bounds)
    return evaluate_part(context, task, parameters, part, images, tuple(MEASUREMENTS), provenance=PROVENANCE)


def evaluate_images(task, **options):
    return list(iterate_results(task, **options))


def bytes_of(values):
    return {name: array.tobytes() for name, array in values.items()}


@functools.cache
def results_of_all_images(key):
    """Return the results of a task for all images, with small parameters."""
    return evaluate_images(TASKS[key])


@pytest.mark.parametrize("engine", ENGINES)
@every_task
def test_evaluate_part_measures_perturbed_images(task, engine):
    parameters = small_parameters(task)
    context = dataclasses.replace(tiny_context(task.key), engine=engine)
    results = sorted(evaluate_images(task, context=context), key=lambda result: result.strength)
    perturbed = perturb_all(task, parameters, IMAGES, context)
    assert [result.strength for result in results] == list(parameters.strengths)
    for result in results:
        predicted = tiny_classifier()(perturbed[result.strength]).argmax(dim=1).numpy()
        assert result.values["predictions"].tolist() == predicted.tolist()
        assert float(result.values["accuracy"]) == np.mean(predicted == IMAGES.labels)
        check_values(result.values, len(IMAGES), np.bincount(IMAGES.labels, minlength=IMAGES.n_classes))
        assert result.provenance == PROVENANCE
        assert result.seconds > 0


@every_task
def test_merged_parts_are_byte_identical_to_whole_unit(task):
    parts = [evaluate_images(task, start=start, stop=stop) for start, stop in ((0, 8), (8, 16), (16, 21))]
    for i, result in enumerate(results_of_all_images(task.key)):
        assert bytes_of(merge_values([part[i].values for part in parts])) == bytes_of(result.values)


def test_evaluate_part_yields_each_strength_as_soon_as_it_is_complete():
    network = CountingNetwork(TinyNetwork())
    results = iterate_results(TASKS["fgsm"], context=tiny_context("", checked_classifier(network)))
    assert next(results).strength == 1.0
    n_images_at_first_strength = network.n_images
    assert next(results).strength == 8.0
    assert network.n_images == 2 * n_images_at_first_strength


def test_evaluate_part_accepts_read_only_images():
    images = tiny_images()
    for array in (images.images, images.labels, images.indices):
        array.flags.writeable = False
    results, expected = evaluate_images(TASKS["fgsm"], images=images), results_of_all_images("fgsm")
    assert [bytes_of(result.values) for result in results] == [bytes_of(result.values) for result in expected]


@every_task
def test_nan_weights_raise_error_naming_unit(task):
    network = TinyNetwork()
    with torch.no_grad():
        network.classifier.weight[0, 0] = torch.nan
    with pytest.raises(EvaluationError, match=f"#0 tiny {task.key}"):
        evaluate_images(task, context=tiny_context("", tiny_classifier(network)))


def test_broken_attack_raises_error_naming_unit(monkeypatch):
    task = TASKS["fgsm"]
    perturb = task.load()

    def yield_images_outside_ball(*arguments, **options):
        for batch in perturb(*arguments, **options):
            yield batch._replace(images=(batch.images + 0.1).clamp(0, 1))

    monkeypatch.setattr(type(task), "load", lambda *_: yield_images_outside_ball)
    with pytest.raises(PerturbationError, match="#0 tiny fgsm"):
        evaluate_images(task)


def test_passes_of_a_users_attack_are_counted_on_one_batch():
    def perturb(model, images, labels, _strength, steps):
        for _ in range(steps):
            pixels = images.clone().requires_grad_()
            torch.nn.functional.cross_entropy(model(pixels), labels).backward()
        model.logits(images)
        return images

    context, request = tiny_context("mine"), request_of(IMAGES, (1.0, 8.0))
    assert count_passes(perturb, {"steps": 20}, context, request) == 20 * 3 + 1
    assert count_passes(perturb, {"unknown": 20}, context, request) == 1
    assert not context.classifier._forward_hooks


@pytest.mark.parametrize(
    ("variable", "allowed_value", "rejected_value"),
    [
        ("NVIDIA_TF32_OVERRIDE", "0", "1"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "strict", "BF16"),
        ("DNNL_DEFAULT_FPMATH_MODE", "STRICT", "ANY"),
    ],
)
def test_configure_torch_rejects_variables_that_change_arithmetic(monkeypatch, variable, allowed_value, rejected_value):
    monkeypatch.setenv(variable, allowed_value)
    configure_torch(1)
    if variable.startswith("NVIDIA"):
        with pytest.raises(ConfigError, match=variable):
            configure_torch(1, "tf32")
    monkeypatch.setenv(variable, rejected_value)
    with pytest.raises(ConfigError, match=f"{variable}: its value '{rejected_value}' overrides"):
        configure_torch(1)


def test_configure_torch_enables_determinism_and_restores_garbage_collection():
    # In a separate process, because the settings affect the whole process.
    command = """
import gc, os
thresholds = gc.get_threshold()
from robust201.core.memory import reduce_gc_frequency, restore_gc_thresholds
reduce_gc_frequency()
assert gc.get_threshold() > thresholds
import torch
from robust201.networks.device import configure_torch
configure_torch(2)
assert gc.get_threshold() == thresholds and gc.get_freeze_count()
gc.set_threshold(600, 9, 8)
restore_gc_thresholds()
assert gc.get_threshold() == (600, 9, 8)
assert torch.get_num_threads() == 2
assert torch.are_deterministic_algorithms_enabled()
assert torch.get_float32_matmul_precision() == "highest"
assert not torch.backends.cuda.matmul.allow_tf32
assert not torch.backends.cudnn.allow_tf32
assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
"""
    environment = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    subprocess.run([sys.executable, "-W", "error", "-c", command], env=environment, check=True)


@pytest.mark.parametrize(("threads", "precision", "message"), [(1, "fp23", "fp32"), (0, "fp32", "1 to 1024")])
def test_configure_torch_rejects_bad_settings(threads, precision, message):
    with pytest.raises(ConfigError, match=message):
        configure_torch(threads, precision)
