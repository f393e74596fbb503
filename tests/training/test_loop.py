"""The training loop: equal weights after any interruption, snapshots, initial weights, and one-line errors."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from robust201.core.errors import (
    ArchitectureError,
    CheckpointError,
    ConfigError,
    EvaluationError,
    NetworkError,
    StorageError,
)
from robust201.core.records import ImageSet
from robust201.networks.zoo.zoo_space import Zoo
from robust201.training.data import OneSource
from robust201.training.loop import train
from tests.support.precision_settings import FP32_SETTINGS, effective_settings, raw_settings, tf32_everywhere
from tests.training.support import IMAGES, LIGHT_CELL, SPACE, SmallSpace, make_images, make_recipe, weights_hash

N_STEPS = 6  # two epochs with 20 images in batches of 8
SNAPSHOTS_AT_EVERY_STEP = {"iterations": range(N_STEPS + 1)}


def run_training(recipe, *, images: ImageSet = IMAGES, space=None, architecture="small", **options):
    data = OneSource(images)
    return list(train(space or SmallSpace(), architecture, data, recipe, **({"seed": 1} | options)))


def hash_snapshots(snapshots):
    return {snapshot.step: weights_hash(snapshot.state_dict) for snapshot in snapshots}


PGD = {"pgd": {"steps": 2}}
TRADES = {"trades": {"steps": 2, "mode": "training"}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.0, "decay": "weights"},
        {"augmentation": "std*", "schedule": {"steps": {"at_epochs": [0.5, 1]}}},
        {"adversarial": PGD, "augmentation": "std-tf"},
        {"adversarial": TRADES},
        {"epochs": None, "iterations": 5},
    ],
    ids=["standard", "no momentum", "std*", "pgd", "trades", "iterations"],
)
@settings(max_examples=4, deadline=None)
@given(stops=st.lists(st.integers(0, N_STEPS), max_size=3))
def test_training_interrupted_at_any_steps_resumes_to_the_same_weights(tmp_path_factory, changes, stops):
    recipe, folder = make_recipe(**changes), tmp_path_factory.mktemp("states")
    (uninterrupted,) = run_training(recipe)
    for last_step in stops:
        snapshots = run_training(recipe, states=folder, keep_going=lambda step, last_step=last_step: step < last_step)
        assert [snapshot.step for snapshot in snapshots] in ([], [uninterrupted.step])
        torch.manual_seed(99)
    (resumed,) = run_training(recipe, states=folder)
    assert weights_hash(resumed.state_dict) == weights_hash(uninterrupted.state_dict)
    assert resumed.history == uninterrupted.history


def test_training_interrupted_at_every_step_yields_the_same_snapshots(tmp_path):
    recipe = make_recipe(augmentation="std", snapshots=SNAPSHOTS_AT_EVERY_STEP)
    uninterrupted = run_training(recipe)
    assert [snapshot.step for snapshot in uninterrupted] == list(range(N_STEPS + 1))
    resumed = {}
    for step in range(N_STEPS + 1):
        # A run that ends before the snapshot is stored, as if killed, must yield the snapshot again.
        for _ in range(2):
            snapshot = next(
                train(SmallSpace(), "small", OneSource(IMAGES), recipe, seed=1, states=tmp_path, snapshot_steps={step})
            )
            resumed[step] = weights_hash(snapshot.state_dict)
            assert snapshot.history == uninterrupted[step].history
    assert resumed == hash_snapshots(uninterrupted)


@pytest.mark.parametrize("changes", [{"augmentation": "std"}, {"adversarial": PGD}])
def test_stopped_training_repeats_no_step(tmp_path, changes):
    (uninterrupted,) = run_training(make_recipe(**changes))
    for stop in range(1, N_STEPS + 1):
        steps = iter(range(stop - 1, N_STEPS))
        snapshots = run_training(
            make_recipe(**changes),
            states=tmp_path,
            keep_going=lambda step, steps=steps, stop=stop: step == next(steps) and step < stop,
        )
        assert next(steps, N_STEPS) == min(stop + 1, N_STEPS)
    assert hash_snapshots(snapshots) == hash_snapshots([uninterrupted])
    assert snapshots[0].history == uninterrupted.history


def test_training_saves_a_state_at_the_end_of_each_epoch_and_when_stopped(tmp_path):
    file_steps = []

    def record_states(step):
        file_steps.append([int(path.name[5:14]) for path in sorted(tmp_path.glob("step-*"))])
        return step < 8

    run_training(make_recipe(epochs=3), states=tmp_path, keep_going=record_states)
    assert file_steps == [*[[]] * 3, *[[3]] * 3, *[[6]] * 3]
    assert [path.name[5:14] for path in tmp_path.glob("step-*")] == ["000000008"]


CHANGED_FIELDS = {
    "learning_rate": 0.05,
    "momentum": 0.5,
    "nesterov": True,
    "weight_decay": 0.1,
    "batch_size": 7,
    "schedule": {"steps": {"at_iterations": [3]}},
    "augmentation": "flip-crop",
    "adversarial": PGD,
    "epochs": 1,
}


def test_each_recipe_field_changes_the_weights():
    recipes = [make_recipe(), *(make_recipe(**{name: value}) for name, value in CHANGED_FIELDS.items())]
    assert len({weights_hash(run_training(recipe)[-1].state_dict) for recipe in recipes}) == len(recipes)


def test_decay_of_weights_omits_biases_and_batch_norm():
    # All runs have the same first gradient, so weights after one step differ only by the weight decay.
    fields = {"learning_rate": 0.1, "momentum": 0.0, "epochs": 1, "batch_size": 20, "snapshots": {"iterations": [0]}}
    initial, without_decay = run_training(make_recipe(**fields, weight_decay=0))
    (_, all_decayed), (_, weights_decayed) = (
        run_training(make_recipe(**fields, weight_decay=0.5, decay=name)) for name in ("all", "weights")
    )
    decayed_names = {"0.weight", "7.weight"}
    for name in ("0.weight", "0.bias", "1.weight", "1.bias", "6.weight", "6.bias", "7.weight", "7.bias"):
        decay_step = -0.1 * 0.5 * initial.state_dict[name]
        undecayed = without_decay.state_dict[name]
        torch.testing.assert_close(all_decayed.state_dict[name], undecayed + decay_step, rtol=0, atol=1e-6)
        torch.testing.assert_close(
            weights_decayed.state_dict[name],
            undecayed + decay_step if name in decayed_names else undecayed,
            rtol=0,
            atol=1e-6,
        )


def test_initial_weights_depend_only_on_the_seed():
    initial = [
        run_training(recipe, images=images, snapshot_steps={0}, seed=seed)[0]
        for recipe, images, seed in (
            (make_recipe(snapshots={"epochs": [0]}), IMAGES, 1),
            (make_recipe(snapshots={"iterations": [0]}, learning_rate=0.7), make_images(seed=4), 1),
            (make_recipe(snapshots={"epochs": [0]}), IMAGES, 2),
        )
    ]
    seed_1, seed_1_other_recipe, seed_2 = (weights_hash(snapshot.state_dict) for snapshot in initial)
    assert seed_1 == seed_1_other_recipe != seed_2
    assert initial[0].history == ()
    assert (initial[0].step, initial[0].epochs) == (0, 0)


def test_snapshots_do_not_affect_the_weights():
    (without_snapshots,) = run_training(make_recipe())
    snapshots = run_training(make_recipe(snapshots={"iterations": [1, 4], "every_epochs": 1}))
    assert [(snapshot.step, snapshot.epochs) for snapshot in snapshots] == [(1, None), (3, 1), (4, None), (6, 2)]
    assert weights_hash(snapshots[-1].state_dict) == weights_hash(without_snapshots.state_dict)
    assert [len(snapshot.history) for snapshot in snapshots] == [1, 1, 2, 2]
    assert snapshots[2].history[0] == snapshots[1].history[0] == without_snapshots.history[0]
    assert snapshots[0].history[0] != without_snapshots.history[0]


def test_training_starts_from_the_passed_weights():
    (source,) = run_training(make_recipe(epochs=1))
    recipe = make_recipe(snapshots={"epochs": [0]})
    initial, final = run_training(recipe, images=make_images(seed=3), start=source.state_dict)
    assert weights_hash(initial.state_dict) == weights_hash(source.state_dict)
    assert weights_hash(final.state_dict) != weights_hash(
        run_training(recipe, images=make_images(seed=3))[-1].state_dict
    )
    source.state_dict.pop("7.bias")
    with pytest.raises(CheckpointError, match="they do not fit this network with 2 classes"):
        run_training(recipe, start=source.state_dict)


def test_training_restores_random_state_and_process_settings():
    for deterministic in (False, True):
        was_deterministic = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(deterministic)
        try:
            torch.manual_seed(5)
            expected = torch.rand(3)
            n_threads = torch.get_num_threads()
            torch.manual_seed(5)
            recipe = make_recipe(snapshots=SNAPSHOTS_AT_EVERY_STEP)
            for _ in train(SmallSpace(), "small", OneSource(IMAGES), recipe, seed=1, threads=n_threads + 1):
                # The settings are also restored between snapshots.
                assert torch.get_num_threads() == n_threads
                assert torch.are_deterministic_algorithms_enabled() == deterministic
            assert torch.equal(torch.rand(3), expected)
        finally:
            torch.use_deterministic_algorithms(was_deterministic)


def test_training_neither_saves_nor_yields_non_finite_weights(tmp_path):
    with pytest.raises(EvaluationError, match=r"small on bright: the loss diverged in epoch 2 \(nan\)"):
        run_training(make_recipe(learning_rate=1e30, epochs=2, batch_size=20))
    # The last step's loss is finite, but the updated weights are not.
    with pytest.raises(EvaluationError, match=r"the weights diverged in epoch 1 \(NaN or infinity in \S+\)"):
        run_training(make_recipe(learning_rate=1e37, weight_decay=1e5, epochs=1, batch_size=20), states=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_last_batch_of_one_image_is_an_error_if_batch_norm_rejects_it():
    images = make_images(9)
    with pytest.raises(EvaluationError, match=r"has only one image, .*more than 1 value.* a batch size other than 8"):
        run_training(make_recipe(), images=images)
    # PyTorch accepts a batch of one image if BatchNorm averages over several pixels.
    run_training(make_recipe(epochs=1), images=images, space=SPACE, architecture=LIGHT_CELL)


class LinearSpace(SmallSpace):
    """A space whose only network is built by a function, usually `linear_network`."""

    def __init__(self, build_network):
        self._build_network = build_network

    def build(self, architecture, *, n_classes):
        return self._build_network(n_classes)


def linear_network(n_outputs: int, n_inputs: int = 192) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(n_inputs, n_outputs))


SHARED_NETWORK = linear_network(2)

INVALID_NETWORKS = {
    "too many outputs": (lambda n_classes: linear_network(n_classes + 2), r"expected logits of shape"),
    "another image size": (lambda n_classes: linear_network(n_classes, 100), "it raised RuntimeError: mat1 and mat2"),
    "float16": (lambda n_classes: linear_network(n_classes).half(), "it raised RuntimeError"),
    "no parameters": (lambda n_classes: nn.Flatten(), "it has no parameters that can be trained"),
    "one module": (lambda n_classes: SHARED_NETWORK, "two calls of the function returned the same"),
}


@pytest.mark.parametrize("fault", INVALID_NETWORKS)
def test_invalid_network_is_rejected_before_the_first_step(fault):
    build_network, message = INVALID_NETWORKS[fault]
    steps = []
    with pytest.raises(NetworkError, match=message) as error:
        run_training(make_recipe(), space=LinearSpace(build_network), keep_going=lambda step: not steps.append(step))
    assert "\n" not in str(error.value)
    assert steps == []


def test_initial_weights_from_numpy_and_python_generators_depend_on_the_seed():
    def build_network(n_classes):
        network = linear_network(n_classes)
        with torch.no_grad():
            network[1].bias.copy_(torch.tensor(np.random.rand(n_classes) + random.random()))  # noqa: NPY002
        return network

    recipe = make_recipe(snapshots=SNAPSHOTS_AT_EVERY_STEP)
    biases = [
        run_training(recipe, space=LinearSpace(build_network), seed=seed)[0].state_dict["1.bias"].tolist()
        for seed in (1, 1, 2)
    ]
    assert biases[0] == biases[1] != biases[2]


class RandomLayer(nn.Module):
    """Scales its inputs at random in training, with Python's and NumPy's generators."""

    def forward(self, inputs):
        return inputs * (random.random() + np.random.rand()) if self.training else inputs  # noqa: NPY002


def test_layers_with_numpy_and_python_generators_depend_only_on_seed_and_step(tmp_path):
    space = LinearSpace(lambda n_classes: nn.Sequential(RandomLayer(), linear_network(n_classes)))
    states = (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    (uninterrupted,) = run_training(make_recipe(), space=space)
    assert states == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    run_training(make_recipe(), space=space, states=tmp_path, keep_going=lambda step: step < 4)
    random.seed(9)
    np.random.seed(9)  # noqa: NPY002
    (resumed,) = run_training(make_recipe(), space=space, states=tmp_path)
    assert weights_hash(resumed.state_dict) == weights_hash(uninterrupted.state_dict)


def test_missing_device_and_unsupported_precision_are_rejected(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for options in ({"device": "cuda"}, {"precision": "tf32"}, {"precision": "bf16"}):
        with pytest.raises(ConfigError):
            run_training(make_recipe(), **options)


def test_network_that_crashes_onednn_without_avx512_is_rejected(monkeypatch):
    network_options = {"space": Zoo(), "architecture": "stn-resnet18-w4"}
    monkeypatch.setattr("robust201.training.loop.has_avx512", lambda: False)
    with pytest.raises(ArchitectureError, match="corrupts memory"):
        run_training(make_recipe(), **network_options)
    monkeypatch.setattr("robust201.training.loop.has_avx512", lambda: True)
    # Training begins, and the first pass rejects the small images.
    with pytest.raises(NetworkError, match="shapes cannot be multiplied"):
        run_training(make_recipe(), **network_options)


def test_states_of_another_training_run_are_rejected(tmp_path):
    run_training(make_recipe(), states=tmp_path)
    for changed_argument in ({"seed": 2}, {"threads": 2}, {"images": make_images(seed=2)}):
        with pytest.raises(StorageError, match=r"belongs to another training run \(\w{16}…, not \w{16}…\)"):
            run_training(make_recipe(), states=tmp_path, **changed_argument)


def test_channels_last_changes_only_the_rounding(monkeypatch):
    (contiguous,) = run_training(make_recipe(epochs=1), space=SPACE, architecture=LIGHT_CELL)
    monkeypatch.setattr(type(SPACE), "channels_last", True)
    (channels_last,) = run_training(make_recipe(epochs=1), space=SPACE, architecture=LIGHT_CELL)
    assert weights_hash(channels_last.state_dict) != weights_hash(contiguous.state_dict)
    for name, tensor in contiguous.state_dict.items():
        assert channels_last.state_dict[name].is_contiguous()
        torch.testing.assert_close(channels_last.state_dict[name], tensor, rtol=0, atol=1e-4)


def test_training_ignores_and_restores_the_callers_precision():
    recorded_settings = []

    class RecordingSpace(SmallSpace):
        def build(self, *arguments, **options) -> nn.Module:
            recorded_settings.append(effective_settings())
            return super().build(*arguments, **options)

    with tf32_everywhere():
        expected = raw_settings()
    with tf32_everywhere():
        run_training(make_recipe(epochs=1), space=RecordingSpace())
        assert raw_settings() == expected
    assert set(recorded_settings) == {FP32_SETTINGS}
