"""Training: deterministic to the byte, learns, augments within bounds, fills the store and resumes."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import save

from robust201.core.errors import ArchitectureError, CheckpointError, ConfigError, EvaluationError
from robust201.core.files import bundled
from robust201.core.records import ImageSet, Normalisation, image_hash
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.spaces.nasbench201.network import build_network
from robust201.weights.store import CheckpointStore
from robust201.weights.training import TrainingSettings, _augment, _learning_rate, recipe_name, train, train_into_store
from tests.conftest import add_network

TINY = TrainingSettings(channels=4, cells=1, epochs=2, batch_size=8, crop_padding=1, seed=1)
LIGHT = nasbench201.specs()[309]


def make_images(n_images=20, size=8, seed=0):
    """Two classes that differ in brightness, so that a few steps tell them apart."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n_images, dtype=np.int64) % 2
    images = (rng.integers(0, 100, (n_images, 3, size, size)) + 150 * labels[:, None, None, None]).astype(np.uint8)
    indices = np.arange(n_images, dtype=np.int64)
    normalisation = Normalisation((0.5, 0.5, 0.5), (0.3, 0.3, 0.3))
    return ImageSet("bright", images, labels, indices, 2, normalisation, image_hash(images, labels, indices))


IMAGES = make_images()


def weights_of(trained):
    return hashlib.sha256(save(dict(trained.state_dict))).hexdigest()


def test_equal_settings_give_equal_bytes_whatever_the_process_did():
    first = train(LIGHT, IMAGES, None, TINY)
    torch.manual_seed(99)
    second = train(LIGHT, IMAGES, make_images(seed=1), TINY)
    assert weights_of(first) == weights_of(second)
    assert first.history == second.history
    assert first.test_accuracy is None


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"batch_size": 7},
        {"learning_rate": 0.05},
        {"momentum": 0.0},
        {"weight_decay": 0.0},
        {"flip": False},
        {"crop_padding": 0},
        {"epochs": 1},
    ],
    ids=str,
)
def test_every_setting_changes_the_weights(change):
    assert weights_of(train(LIGHT, IMAGES, None, TINY.model_copy(update=change))) != weights_of(
        train(LIGHT, IMAGES, None, TINY)
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_training_leaves_the_process_as_it_was(deterministic):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        _check_that_training_leaves_no_trace(deterministic)
    finally:
        torch.use_deterministic_algorithms(before)


def _check_that_training_leaves_no_trace(deterministic):
    torch.manual_seed(5)
    expected = torch.rand(3)
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    train(LIGHT, IMAGES, None, TINY.model_copy(update={"threads": threads + 1}))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert torch.are_deterministic_algorithms_enabled() == deterministic


def test_it_learns_and_tells_of_it():
    told = []
    calm = TINY.model_copy(update={"epochs": 6})
    trained = train(LIGHT, IMAGES, make_images(seed=1), calm, lambda *event: told.append(event))
    assert [(record.epoch, record.loss, record.accuracy) for record in trained.history] == told
    assert [record.epoch for record in trained.history] == [1, 2, 3, 4, 5, 6]
    assert trained.history[-1].loss < trained.history[0].loss
    assert trained.test_accuracy > 0.9
    network = build_network(LIGHT, channels=4, cells=1, n_classes=2).eval()
    network.load_state_dict(trained.state_dict, strict=True)
    pixels = (torch.from_numpy(make_images(seed=1).images) / 255 - 0.5) / 0.3
    with torch.inference_mode():
        accuracy = (network(pixels)[1].argmax(dim=1).numpy() == IMAGES.labels).mean()
    assert accuracy == pytest.approx(trained.test_accuracy)


def test_a_network_without_a_path_trains_to_chance():
    trained = train(nasbench201.specs()[10], IMAGES, IMAGES, TINY)
    assert trained.test_accuracy == 0.5


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(EvaluationError, match=r"expected a finite loss, got nan in epoch 1\. Lower the learning rate"):
        train(LIGHT, IMAGES, None, TINY.model_copy(update={"learning_rate": 1e30, "epochs": 1}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_bad_input():
    with pytest.raises(ConfigError, match="expected a CUDA device"):
        train(LIGHT, IMAGES, None, TINY.model_copy(update={"device": "cuda"}))


def test_settings_are_the_published_recipe_and_nothing_unknown():
    published = TrainingSettings()
    assert (published.channels, published.cells, published.epochs, published.batch_size) == (16, 5, 200, 256)
    assert (published.learning_rate, published.momentum, published.weight_decay) == (0.1, 0.9, 5e-4)
    assert (published.flip, published.crop_padding, published.seed) == (True, 4, 777)
    for wrong in ({"momentun": 0.9}, {"epochs": 0}, {"learning_rate": float("nan")}, {"device": "tpu"}):
        with pytest.raises(ValidationError):
            TrainingSettings(**wrong)


def test_the_learning_rate_falls_along_a_cosine():
    rates = [_learning_rate(TINY, done) for done in (0.0, 0.25, 0.5, 1.0)]
    assert rates == pytest.approx([0.1, 0.05 * (1 + 0.5**0.5), 0.05, 0.0])


@settings(max_examples=30)
@given(st.booleans(), st.integers(0, 3), st.integers(0, 4), st.integers(0, 50))
def test_augmented_images_are_shifted_and_mirrored_images(flip, padding, epoch, seed):
    recipe = TINY.model_copy(update={"flip": flip, "crop_padding": padding, "seed": seed})
    source = IMAGES.images[:6] | 1
    augmented = _augment(source, recipe, epoch)
    assert augmented.shape == source.shape
    for image, result in zip(source, augmented, strict=True):
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        candidates = [padded, padded[..., ::-1]] if flip else [padded]
        crops = [
            form[:, y : y + 8, x : x + 8]
            for form in candidates
            for y in range(2 * padding + 1)
            for x in range(2 * padding + 1)
        ]
        assert any(np.array_equal(result, crop) for crop in crops)


def test_augmentation_reaches_every_offset_and_both_sides():
    count = 400
    image = np.zeros((1, 3, 8, 8), np.uint8)
    image[:, :, 4, 3] = 1
    recipe = TINY.model_copy(update={"crop_padding": 2})
    _, _, rows, columns = np.nonzero(_augment(np.repeat(image, count, axis=0), recipe, 0)[:, :1])
    assert set(rows) == {2, 3, 4, 5, 6}
    assert set(columns) == {1, 2, 3, 4, 5, 6}
    assert len(rows) == count


def test_the_store_gets_the_networks_and_training_resumes(tmp_path):
    told = []

    def fill():
        with CheckpointStore(tmp_path) as store:
            events = train_into_store((309, 21), IMAGES, IMAGES, TINY, store, progress=lambda *e: told.append(e[:2]))
            return list(events)

    records = fill()
    assert told == [(309, 1), (309, 2), (21, 1), (21, 2)]
    assert [(record.index, record.dataset, record.epochs, record.seed) for record in records] == [
        (309, "bright", 2, 1),
        (21, "bright", 2, 1),
    ]
    again = train(LIGHT, IMAGES, IMAGES, TINY)
    store = CheckpointStore(tmp_path)
    loaded = store.load(store.find(309, "bright"))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in again.state_dict.items())
    assert store.find(309, "bright").training["outcome"]["test_accuracy"] == again.test_accuracy

    assert fill() == records
    assert len(told) == 4
    (tmp_path / records[1].file).write_bytes(b"damaged")
    assert fill() == records
    assert told[4:] == [(21, 1), (21, 2)]


def test_other_images_or_settings_are_trained_anew(tmp_path):
    with CheckpointStore(tmp_path) as store:
        (first,) = train_into_store((309,), IMAGES, None, TINY, store)
        (second,) = train_into_store((309,), make_images(seed=3), None, TINY, store)
        (third,) = train_into_store((309,), IMAGES, None, TINY.model_copy(update={"weight_decay": 0.0}), store)
    assert len({record.sha256 for record in (first, second, third)}) == 3
    assert len({record.source_sha256 for record in (first, second, third)}) == 3


def _publish(store, **changes):
    """Put weights into a store as an import does, of the same network, length and seed as `TINY` trains."""
    torch.manual_seed(0)
    network = build_network(LIGHT, channels=4, cells=1, n_classes=10)
    add_network(store, 309, network.state_dict(), **({"dataset": "bright", "epochs": 2, "seed": 1} | changes))


OTHER_TRAININGS = [{"learning_rate": 0.05}, {"channels": 5}, {"cells": 2}, {"batch_size": 7}, {"flip": False}]


def test_trainings_replace_neither_each_other_nor_published_weights(tmp_path):
    with CheckpointStore(tmp_path) as store:
        _publish(store)
        (published,) = store.records()
        raw = (tmp_path / published.file).read_bytes()
        ours = [
            record
            for change in ({}, *OTHER_TRAININGS)
            for record in train_into_store((309,), IMAGES, None, TINY.model_copy(update=change), store)
        ]
    assert published.file == "bright/000309-e2-s1.safetensors"
    assert (tmp_path / published.file).read_bytes() == raw
    assert all(f"bright/000309-{record.recipe}-e2-s1.safetensors" == record.file for record in ours)
    again = CheckpointStore(tmp_path)
    assert {record.file for record in again.records()} == {published.file, *(record.file for record in ours)}
    assert len(again.records()) == 2 + len(OTHER_TRAININGS)
    for record in again.records():
        again.load(record)


def test_a_recipe_has_one_name_for_all_networks_lengths_and_seeds(tmp_path):
    with CheckpointStore(tmp_path) as store:
        records = [
            record
            for change in ({}, {"epochs": 1}, {"seed": 2})
            for record in train_into_store((309, 10), IMAGES, None, TINY.model_copy(update=change), store)
        ]
    assert len({record.file for record in records}) == 6
    assert {record.recipe for record in records} == {recipe_name(IMAGES, TINY)}
    assert recipe_name(make_images(seed=3), TINY) != recipe_name(IMAGES, TINY)


@pytest.mark.parametrize("damaged", [False, True])
def test_an_unnamed_training_of_an_earlier_version_is_found(tmp_path, damaged):
    with CheckpointStore(tmp_path) as store:
        (record,) = train_into_store((309,), IMAGES, None, TINY, store)
    plain = "bright/000309-e2-s1.safetensors"
    (tmp_path / record.file).rename(tmp_path / plain)
    header, line = (tmp_path / "manifest.jsonl").read_text().splitlines()
    fields = json.loads(line) | {"file": plain}
    del fields["recipe"]
    (tmp_path / "manifest.jsonl").write_text(f"{header}\n{json.dumps(fields)}\n")
    if damaged:
        (tmp_path / plain).write_bytes(b"damaged")
    with CheckpointStore(tmp_path) as store:
        (found,) = train_into_store((309,), IMAGES, None, TINY, store)
    assert found == dataclasses.replace(record, file=plain, recipe="")
    assert [path.name for path in (tmp_path / "bright").iterdir()] == ["000309-e2-s1.safetensors"]


def test_equal_images_of_another_dataset_are_trained_for_it(tmp_path):
    with CheckpointStore(tmp_path) as store:
        (first,) = train_into_store((309,), IMAGES, None, TINY, store)
        (second,) = train_into_store((309,), dataclasses.replace(IMAGES, dataset="mine"), None, TINY, store)
    assert (first.dataset, second.dataset) == ("bright", "mine")


def test_one_of_several_recipes_must_be_named(tmp_path):
    with CheckpointStore(tmp_path) as store:
        (ours,) = train_into_store((309,), IMAGES, None, TINY, store)
        assert store.find(309, "bright") == ours
        assert store.find_all(309, "bright") == (ours,)
        _publish(store)
        for choose in (store.find, store.find_all):
            with pytest.raises(CheckpointError, match=f"one recipe, got those of 2: .*, {ours.recipe}. Name the one"):
                choose(309, "bright")
        assert store.find(309, "bright", recipe=ours.recipe) == ours
        assert store.find(309, "bright", recipe="").source == "random"
        assert len(store.find_all(309, "bright", recipes=("", ours.recipe))) == 2


def test_an_index_out_of_range_trains_nothing(tmp_path):
    with pytest.raises(ArchitectureError, match="index 15625"):
        list(train_into_store((309, 15_625), IMAGES, None, TINY, CheckpointStore(tmp_path / "store")))
    assert not (tmp_path / "store").exists()


def test_the_demo_has_sixteen_networks_that_do_what_the_manifest_says():
    from robust201.images import load_images

    store = CheckpointStore(bundled("benchmark_data/demo"))
    records = store.records()
    assert len({record.index for record in records}) >= 16
    assert {record.index for record in records} <= set(nasbench201.evaluated_indices())
    test_images, train_images = load_images("digits"), load_images("digits", split="train")
    pixels = torch.from_numpy(test_images.images) / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in dataclasses.astuple(test_images.normalisation))
    for record in records:
        assert record.training["recipe"]["train_images"] == train_images.sha256
        sizes = {"channels": record.channels, "cells": record.cells, "n_classes": record.n_classes}
        network = build_network(record.spec, **sizes).eval()
        network.load_state_dict(store.load(record), strict=True)
        with torch.inference_mode():
            answers = network((pixels - mean) / std)[1].argmax(dim=1).numpy()
        accuracy = (answers == test_images.labels).mean()
        # One image of slack for machines whose sums differ in the last bits.
        assert accuracy == pytest.approx(record.training["outcome"]["test_accuracy"], abs=1.1 / len(test_images))
        assert accuracy > 0.9 or 3 in nasbench201.constant_nodes(record.spec)
