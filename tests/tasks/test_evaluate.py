"""Evaluating a part: what comes out, when, and what it does not depend on."""

import dataclasses
import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from robust201.core.errors import ConfigError, EvaluationError, PerturbationError
from robust201.models.arithmetic import configure_torch
from robust201.tasks import TASKS
from robust201.tasks.columns import MEASUREMENTS
from robust201.tasks.evaluate import evaluate_part
from robust201.tasks.measurements import check_values, merge_values
from tests.support.attack_rows import ATTACKS_IN_FULL, ROWS_IN_FULL, by_default, of_reference
from tests.support.tiny_networks import (
    BATCH_SIZE,
    CountingNetwork,
    TinyNetwork,
    attack_parameters,
    part_of,
    perturb_all,
    small_changes,
    small_parameters,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

every_row = pytest.mark.parametrize("row", by_default(of_reference(ROWS_IN_FULL)))
IMAGES = tiny_images()
PROVENANCE = {"host": "here"}
# The reference engine records no steps.
UNSTEPPED = tuple(name for name in MEASUREMENTS if name != "steps")


def results(row, *, context=None, images=IMAGES, measurements=UNSTEPPED, parameters=None, **part):
    parameters = parameters or small_parameters(row)
    # The key is left for `evaluate` to set, as a worker may.
    context = context or tiny_context("")
    asked = part_of(row, parameters, images, **part)
    return list(evaluate_part(context, row, parameters, asked, images, measurements, provenance=PROVENANCE))


def assert_same_values(one, two):
    assert [result.strength for result in one] == [result.strength for result in two]
    for a, b in zip(one, two, strict=True):
        assert {name: array.tobytes() for name, array in a.values.items()} == {
            name: array.tobytes() for name, array in b.values.items()
        }


@functools.cache
def whole(key):
    """What a row of the table gives on all images, with small parameters."""
    return results(TASKS[key])


@every_row
def test_measures_the_perturbed_images(row):
    parameters = small_parameters(row)
    found = whole(row.key)
    shown = perturb_all(row, parameters, IMAGES, tiny_context(row.key))
    assert [result.strength for result in found] == list(parameters.strengths)
    for result in found:
        predicted = tiny_classifier()(shown[result.strength]).argmax(dim=1).numpy()
        assert result.values["predictions"].tolist() == predicted.tolist()
        assert float(result.values["accuracy"]) == np.mean(predicted == IMAGES.labels)
        check_values(result.values, len(IMAGES), np.bincount(IMAGES.labels, minlength=IMAGES.n_classes))
        assert result.provenance == PROVENANCE
        assert result.seconds > 0


@every_row
def test_parts_merge_to_the_whole(row):
    parts = [results(row, start=start, stop=stop) for start, stop in ((0, 8), (8, 16), (16, 21))]
    for i, result in enumerate(whole(row.key)):
        merged = merge_values([part[i].values for part in parts])
        assert {name: array.tobytes() for name, array in merged.items()} == {
            name: array.tobytes() for name, array in result.values.items()
        }


@every_row
def test_the_order_of_batches_leaves_no_trace(row, monkeypatch):
    expected = whole(row.key)
    perturb = row.load()

    def shuffled(*arguments, **images):
        batches = list(perturb(*arguments, **images))
        order = np.random.default_rng(0).permutation(len(batches))
        for i in order:
            turned = torch.arange(len(batches[i].positions)).flip(0)
            yield batches[i]._replace(positions=batches[i].positions[turned], images=batches[i].images[turned])

    monkeypatch.setattr(type(row), "load", lambda *_: shuffled)
    assert_same_values(sorted(results(row), key=lambda result: result.strength), expected)


@every_row
@pytest.mark.parametrize("n_images", [1, BATCH_SIZE + 1])
@pytest.mark.each_value
def test_few_images(row, n_images):
    for result in results(row, images=tiny_images(n_images)):
        assert result.values["cm"].sum() == n_images


@pytest.mark.parametrize(
    "row", [row for row in of_reference(ATTACKS_IN_FULL) if row.constraint], ids=lambda row: row.key
)
def test_attacks_lower_the_accuracy(row):
    clean = float(results(TASKS["clean"])[0].values["accuracy"])
    more = {"queries": 60} if row.key.startswith("aa_square") else {}
    parameters = attack_parameters(row, (0.1, 32.0), **small_changes(row) | more)
    weak, strong = (float(result.values["accuracy"]) for result in results(row, parameters=parameters))
    assert clean >= weak > strong


def test_a_strength_comes_as_soon_as_it_is_complete():
    network = CountingNetwork(TinyNetwork())
    row = TASKS["fgsm"]
    parameters = small_parameters(row)
    stream = evaluate_part(
        tiny_context("", tiny_classifier(network)),
        row,
        parameters,
        part_of(row, parameters, IMAGES),
        IMAGES,
        ("accuracy",),
        provenance={},
    )
    assert next(stream).strength == 1.0
    one = network.n_images
    assert next(stream).strength == 8.0
    assert network.n_images == 2 * one


def test_only_what_is_asked_for_is_measured():
    (result,) = results(TASKS["clean"], measurements=("accuracy",))
    assert set(result.values) == {"accuracy", "cm"}


def test_read_only_images_are_taken():
    images = tiny_images()
    for array in (images.images, images.labels, images.indices):
        array.flags.writeable = False
    assert_same_values(results(TASKS["fgsm"], images=images), results(TASKS["fgsm"]))


@pytest.mark.parametrize(("start", "stop"), [(4, 21), (0, 12), (8, 8), (16, 24), (-8, 8)])
def test_a_part_that_cuts_a_batch_or_leaves_the_images_is_refused(start, stop):
    with pytest.raises(EvaluationError, match=f"Evaluating failed for .*{start}:{stop}"):
        results(TASKS["pgd"], start=start, stop=stop)


def test_a_unit_of_other_images_is_refused():
    row = TASKS["clean"]
    parameters = small_parameters(row)
    part = part_of(row, parameters, tiny_images(16))
    with pytest.raises(EvaluationError, match="expected a slice of 21 images"):
        list(evaluate_part(tiny_context(""), row, parameters, part, IMAGES, ("cm",), provenance={}))


@every_row
def test_a_network_with_nan_weights_fails_by_name(row):
    network = TinyNetwork()
    with torch.no_grad():
        network.classifier.weight[0, 0] = torch.nan
    with pytest.raises(EvaluationError, match=f"#0 tiny {row.key}"):
        results(row, context=tiny_context("", tiny_classifier(network)))


def test_a_broken_attack_fails_by_name(monkeypatch):
    row = TASKS["fgsm"]
    perturb = row.load()

    def broken(*arguments, **images):
        for batch in perturb(*arguments, **images):
            yield batch._replace(images=(batch.images + 0.1).clamp(0, 1))

    monkeypatch.setattr(type(row), "load", lambda *_: broken)
    with pytest.raises(PerturbationError, match="#0 tiny fgsm"):
        results(row)


def test_the_seed_changes_what_is_drawn():
    row = TASKS["pgd"]
    parameters = small_parameters(row, steps=1)
    one = perturb_all(row, parameters, IMAGES, tiny_context("pgd"))
    two = perturb_all(row, parameters, IMAGES, dataclasses.replace(tiny_context("pgd"), seed=12))
    assert not torch.equal(one[8.0], two[8.0])


@pytest.mark.parametrize(
    ("name", "neutral", "other"),
    [
        ("NVIDIA_TF32_OVERRIDE", "0", "1"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "strict", "BF16"),
        ("DNNL_DEFAULT_FPMATH_MODE", "STRICT", "ANY"),
    ],
)
def test_variables_that_change_the_arithmetic_are_refused(monkeypatch, name, neutral, other):
    monkeypatch.setenv(name, neutral)
    configure_torch(1)
    if name.startswith("NVIDIA"):
        with pytest.raises(ConfigError, match=name):
            configure_torch(1, "tf32")
    monkeypatch.setenv(name, other)
    with pytest.raises(ConfigError, match=f"{name}: expected it unset, got '{other}'"):
        configure_torch(1)


def test_torch_is_configured_for_equal_bytes():
    # In a process of its own: these settings are for the whole process.
    command = """
import os, torch
from robust201.models.arithmetic import (configure_torch)
configure_torch(2)
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
def test_bad_settings_are_refused(threads, precision, message):
    with pytest.raises(ConfigError, match=message):
        configure_torch(threads, precision)
