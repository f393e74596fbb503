"""The published recipe: its bytes, its learning, and how it fills the store."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from robust201.core.errors import ArchitectureError, CheckpointError
from robust201.core.files import bundled
from robust201.core.noise import derived_seed, generator
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.spaces.nasbench201.network import build_network
from robust201.training.loop import measure_accuracy
from robust201.training.published import TrainingSettings, recipe_name, train_into_store, train_network
from robust201.weights.store import CheckpointStore
from tests.conftest import add_network
from tests.training.support import IMAGES, LIGHT, SPACE, make_images, weights_hash

TINY = TrainingSettings(channels=4, cells=1, epochs=2, batch_size=8, crop_padding=1, seed=1)


def plain_training(images, settings):
    """Train as the text says, image by image and without any of the loop's parts: (weights, losses)."""

    def draws(epoch, purpose, count):
        return generator(settings.seed, "training", epoch, purpose).bit_generator.random_raw(count)

    count, padding = len(images), settings.crop_padding
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(settings.seed, "training", "initial weights"))
        network = build_network(nasbench201.specs()[LIGHT], channels=4, cells=1, n_classes=2)
    optimiser = torch.optim.SGD(network.parameters(), momentum=0.9, weight_decay=5e-4, nesterov=True)
    n_steps, losses = settings.epochs * -(-count // settings.batch_size), []
    for epoch in range(settings.epochs):
        mirrored, offsets = draws(epoch, "flip", count) % 2 == 1, draws(epoch, "crop", 2 * count) % (2 * padding + 1)
        order = np.argsort(draws(epoch, "order", count), kind="stable")
        for start in range(0, count, settings.batch_size):
            chosen = order[start : start + settings.batch_size]
            shown = []
            for i in chosen:
                image = images.images[i, :, :, ::-1] if mirrored[i] else images.images[i]
                padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
                y, x = int(offsets[i]), int(offsets[count + i])
                shown.append(padded[:, y : y + image.shape[1], x : x + image.shape[2]])
            pixels = (torch.from_numpy(np.stack(shown)).float() / 255 - 0.5) / 0.3
            optimiser.param_groups[0]["lr"] = 0.1 * 0.5 * (1 + float(np.cos(np.pi * (len(losses) / n_steps))))
            loss = nn.functional.cross_entropy(network(pixels)[1], torch.from_numpy(images.labels[chosen]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return network.state_dict(), losses


@pytest.mark.parametrize("change", [{}, {"batch_size": 7, "seed": 2}, {"crop_padding": 3, "epochs": 1}], ids=str)
def test_the_loop_gives_the_bytes_of_plain_training(change):
    settings = TINY.model_copy(update=change)
    expected, losses = plain_training(IMAGES, settings)
    trained = train_network(SPACE, LIGHT, IMAGES, settings)
    assert weights_hash(trained.state_dict) == weights_hash(expected)
    n_batches = -(-20 // settings.batch_size)
    sizes = [settings.batch_size] * (n_batches - 1) + [20 - settings.batch_size * (n_batches - 1)]
    mean = sum(loss * size for loss, size in zip(losses[-n_batches:], sizes, strict=True)) / 20
    assert trained.history[-1].loss == mean


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
    changed = train_network(SPACE, LIGHT, IMAGES, TINY.model_copy(update=change))
    assert weights_hash(changed.state_dict) != weights_hash(train_network(SPACE, LIGHT, IMAGES, TINY).state_dict)


def test_it_learns_and_reports_it():
    records = []
    trained = train_network(SPACE, LIGHT, IMAGES, TINY.model_copy(update={"epochs": 6}), records.append)
    assert list(trained.history) == records
    assert [record.epoch for record in trained.history] == [1, 2, 3, 4, 5, 6]
    assert trained.history[-1].loss < trained.history[0].loss
    test_accuracy = measure_accuracy(SPACE, LIGHT, trained.state_dict, make_images(seed=1))
    assert test_accuracy > 0.9
    network = build_network(nasbench201.specs()[LIGHT], channels=4, cells=1, n_classes=2).eval()
    network.load_state_dict(trained.state_dict, strict=True)
    pixels = (torch.from_numpy(make_images(seed=1).images) / 255 - 0.5) / 0.3
    with torch.inference_mode():
        accuracy = (network(pixels)[1].argmax(dim=1).numpy() == IMAGES.labels).mean()
    assert accuracy == pytest.approx(test_accuracy)


def test_a_network_without_a_path_trains_to_chance():
    trained = train_network(SPACE, 10, IMAGES, TINY)
    assert measure_accuracy(SPACE, 10, trained.state_dict, IMAGES) == 0.5


def test_settings_are_the_published_recipe_and_nothing_unknown():
    published = TrainingSettings()
    assert (published.channels, published.cells, published.epochs, published.batch_size) == (16, 5, 200, 256)
    assert (published.learning_rate, published.momentum, published.weight_decay) == (0.1, 0.9, 5e-4)
    assert (published.flip, published.crop_padding, published.seed) == (True, 4, 777)
    for wrong in ({"momentun": 0.9}, {"epochs": 0}, {"learning_rate": float("nan")}, {"device": "tpu"}):
        with pytest.raises(ValidationError):
            TrainingSettings(**wrong)


def test_the_store_gets_the_networks_and_training_resumes(tmp_path):
    progress_seen = []

    def fill():
        with CheckpointStore(tmp_path) as store:
            events = train_into_store(
                (309, 21), IMAGES, IMAGES, TINY, store, progress=lambda *e: progress_seen.append(e[:2])
            )
            return list(events)

    records = fill()
    assert progress_seen == [(309, 1), (309, 2), (21, 1), (21, 2)]
    assert [(record.index, record.dataset, record.epochs, record.seed) for record in records] == [
        (309, "bright", 2, 1),
        (21, "bright", 2, 1),
    ]
    again = train_network(SPACE, LIGHT, IMAGES, TINY)
    store = CheckpointStore(tmp_path)
    loaded = store.load(store.find(309, "bright"))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in again.state_dict.items())
    assert store.find(309, "bright").training["outcome"]["test_accuracy"] == measure_accuracy(
        SPACE, LIGHT, again.state_dict, IMAGES
    )

    assert fill() == records
    assert len(progress_seen) == 4
    (tmp_path / records[1].file).write_bytes(b"damaged")
    assert fill() == records
    assert progress_seen[4:] == [(21, 1), (21, 2)]


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
    network = build_network(nasbench201.specs()[LIGHT], channels=4, cells=1, n_classes=10)
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
