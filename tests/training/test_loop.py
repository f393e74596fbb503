"""The loop: equal bytes however it was cut, snapshots, start weights, and one clear line for each error."""

import itertools

import pytest
import torch

from robust201.core.errors import (
    ArchitectureError,
    CheckpointError,
    ConfigError,
    EvaluationError,
    NetworkError,
    StorageError,
)
from robust201.core.records import ImageSet
from robust201.spaces.zoo.space import Zoo
from robust201.training.data import Mixture, OneSource
from robust201.training.loop import train
from robust201.training.recipes import Recipe
from tests.training.support import IMAGES, LIGHT, SPACE, Small, make_images, weights_hash

BASE = {"epochs": 2, "batch_size": 8, "learning_rate": 0.1, "weight_decay": 5e-4, "schedule": {"cosine": {}}}
N_STEPS = 6
EVERY_STEP = {"iterations": range(N_STEPS + 1)}


def recipe(**changes) -> Recipe:
    return Recipe.model_validate(BASE | changes)


def run(fields, *, images: ImageSet = IMAGES, space=None, architecture="small", **options):
    data = OneSource(images)
    return list(train(space or Small(), architecture, data, fields, **({"seed": 1} | options)))


def hashes(snapshots):
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
    ids=["plain", "no momentum", "std*", "pgd", "trades", "iterations"],
)
def test_killed_after_any_step_it_ends_with_the_same_bytes(tmp_path, changes):
    fields = recipe(**changes)
    (whole,) = run(fields)
    for killed_after in range(whole.step + 1):
        folder = tmp_path / str(killed_after)

        def stop(step, after=killed_after):
            return step < after

        stopped = run(fields, states=folder, keep_going=stop)
        assert [snapshot.step for snapshot in stopped] == ([whole.step] if killed_after == whole.step else [])
        torch.manual_seed(99)
        (resumed,) = run(fields, states=folder)
        assert weights_hash(resumed.state_dict) == weights_hash(whole.state_dict)
        assert resumed.history == whole.history


def test_killed_at_every_step_it_ends_with_the_same_bytes(tmp_path):
    fields = recipe(augmentation="std", snapshots=EVERY_STEP)
    whole = run(fields)
    assert [snapshot.step for snapshot in whole] == list(range(N_STEPS + 1))
    cut = {}
    for step in range(N_STEPS + 1):
        # The generator is dropped after one snapshot, as by a kill before it is stored: it comes again.
        for _ in range(2):
            first = next(train(Small(), "small", OneSource(IMAGES), fields, seed=1, states=tmp_path, wanted={step}))
            cut[step] = weights_hash(first.state_dict)
            assert first.history == whole[step].history
    assert cut == hashes(whole)


def test_a_published_network_resumes_too(tmp_path):
    fields = recipe(augmentation={"flip": True, "crop_padding": 1})
    (whole,) = run(fields, space=SPACE, architecture=LIGHT)
    assert run(fields, space=SPACE, architecture=LIGHT, states=tmp_path, keep_going=lambda step: step < 4) == []
    (resumed,) = run(fields, space=SPACE, architecture=LIGHT, states=tmp_path)
    assert weights_hash(resumed.state_dict) == weights_hash(whole.state_dict)


def test_states_are_kept_after_the_time_given(tmp_path):
    seen = []

    def look(step):
        seen.append(sorted(path.name[5:14] for path in tmp_path.glob("step-*")))
        return step < 4

    run(recipe(), states=tmp_path, save_seconds=0, keep_going=look)
    assert seen == [[], ["000000001"], ["000000001", "000000002"], *[[f"{n - 1:09}", f"{n:09}"] for n in (3, 4)]]


CHANGES = {
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


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_changes_the_weights(name):
    (plain,), (changed,) = run(recipe()), run(recipe(**{name: CHANGES[name]}))
    assert weights_hash(plain.state_dict) != weights_hash(changed.state_dict)


def test_decay_of_weights_alone_leaves_biases_and_batch_norm():
    """The first step's gradient is the same, so what the decay moves stands alone: it is that of half the norm."""
    fields = {"learning_rate": 0.1, "momentum": 0.0, "epochs": 1, "batch_size": 20, "snapshots": {"iterations": [0]}}
    initial, free = run(recipe(**fields, weight_decay=0))
    (_, everything), (_, weights) = (run(recipe(**fields, weight_decay=0.5, decay=name)) for name in ("all", "weights"))
    decayed = {"0.weight", "7.weight"}
    for name in ("0.weight", "0.bias", "1.weight", "1.bias", "6.weight", "6.bias", "7.weight", "7.bias"):
        moved = -0.1 * 0.5 * initial.state_dict[name]
        after = free.state_dict[name]
        torch.testing.assert_close(everything.state_dict[name], after + moved, rtol=0, atol=1e-6)
        torch.testing.assert_close(
            weights.state_dict[name], after + moved if name in decayed else after, rtol=0, atol=1e-6
        )


def test_the_initial_weights_follow_from_the_seed_alone():
    initial = [
        run(fields, images=images, wanted={0}, seed=seed)[0]
        for fields, images, seed in (
            (recipe(snapshots={"epochs": [0]}), IMAGES, 1),
            (recipe(snapshots={"iterations": [0]}, learning_rate=0.7), make_images(seed=4), 1),
            (recipe(snapshots={"epochs": [0]}), IMAGES, 2),
        )
    ]
    first, second, other = (weights_hash(snapshot.state_dict) for snapshot in initial)
    assert first == second != other
    assert initial[0].history == ()
    assert (initial[0].step, initial[0].epochs) == (0, 0)


def test_snapshots_do_not_change_the_weights_and_say_where_they_are():
    (plain,) = run(recipe())
    every = run(recipe(snapshots={"iterations": [1, 4], "every_epochs": 1}))
    assert [(each.step, each.epochs) for each in every] == [(1, None), (3, 1), (4, None), (6, 2)]
    assert weights_hash(every[-1].state_dict) == weights_hash(plain.state_dict)
    assert [len(each.history) for each in every] == [1, 1, 2, 2]
    assert every[2].history[0] == every[1].history[0] == plain.history[0]
    assert every[0].history[0] != plain.history[0]


def test_training_begins_with_the_weights_given():
    (source,) = run(recipe(epochs=1))
    fields = recipe(snapshots={"epochs": [0]})
    first, last = run(fields, images=make_images(seed=3), start=source.state_dict)
    assert weights_hash(first.state_dict) == weights_hash(source.state_dict)
    assert weights_hash(last.state_dict) != weights_hash(run(fields, images=make_images(seed=3))[-1].state_dict)
    source.state_dict.pop("7.bias")
    with pytest.raises(CheckpointError, match="expected those of the same network with 2 classes, got others"):
        run(fields, start=source.state_dict)


def test_a_mixture_resumes(tmp_path):
    data = Mixture(IMAGES, make_images(seed=5), 0.3)
    fields = recipe(augmentation="std")
    (whole,) = train(Small(), "small", data, fields, seed=1)
    assert list(train(Small(), "small", data, fields, seed=1, states=tmp_path, keep_going=lambda step: step < 2)) == []
    (resumed,) = train(Small(), "small", data, fields, seed=1, states=tmp_path)
    assert weights_hash(whole.state_dict) == weights_hash(resumed.state_dict)


def test_every_random_number_and_setting_of_the_process_is_left_alone():
    for deterministic in (False, True):
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(deterministic)
        try:
            torch.manual_seed(5)
            expected = torch.rand(3)
            threads = torch.get_num_threads()
            torch.manual_seed(5)
            for _ in train(
                Small(), "small", OneSource(IMAGES), recipe(snapshots=EVERY_STEP), seed=1, threads=threads + 1
            ):
                # Also while a snapshot is out.
                assert torch.get_num_threads() == threads
                assert torch.are_deterministic_algorithms_enabled() == deterministic
            assert torch.equal(torch.rand(3), expected)
        finally:
            torch.use_deterministic_algorithms(before)


def test_a_loss_that_is_not_finite_is_one_line():
    with pytest.raises(EvaluationError, match=r"small on bright: .* finite loss, got nan in epoch 2\. Lower the learn"):
        run(recipe(learning_rate=1e30, epochs=2, batch_size=20))


def test_weights_that_are_not_finite_are_neither_kept_nor_given(tmp_path):
    """The loss of the last step was finite; the step was not."""
    with pytest.raises(EvaluationError, match=r"expected finite weights, got NaN or infinity in \S+ in epoch 1"):
        run(recipe(learning_rate=1e37, weight_decay=1e5, epochs=1, batch_size=20), states=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_last_batch_of_one_image_that_batch_norm_refuses_is_one_line():
    images = make_images(9)
    with pytest.raises(EvaluationError, match=r"last batch of one, .*more than 1 value.* another batch size than 8"):
        run(recipe(), images=images)
    run(recipe(batch_size=5), images=images)
    # Where BatchNorm still sees several pixels, PyTorch trains on one image.
    run(recipe(epochs=1), images=images, space=SPACE, architecture=LIGHT)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_bad_input():
    with pytest.raises(ConfigError, match="expected a CUDA device"):
        run(recipe(), device="cuda")


@pytest.mark.parametrize(("precision", "message"), [("bf16", "expected fp32 or tf32"), ("tf32", "got a CPU")])
def test_a_precision_that_is_not_there_is_bad_input(precision, message):
    with pytest.raises(ConfigError, match=message):
        run(recipe(), precision=precision)


def test_a_training_that_would_corrupt_memory_is_rejected(monkeypatch):
    network = {"space": Zoo(), "architecture": "stn-resnet18-w4"}
    monkeypatch.setattr("robust201.training.loop.has_avx512", lambda: False)
    with pytest.raises(ArchitectureError, match="corrupts memory"):
        run(recipe(), **network)
    monkeypatch.setattr("robust201.training.loop.has_avx512", lambda: True)
    with pytest.raises(NetworkError, match="expected 32x32 pixels"):  # of the tiny images, when training begins
        run(recipe(), **network)


def test_states_of_another_training_are_refused(tmp_path):
    run(recipe(), states=tmp_path)
    for change in ({"seed": 2}, {"threads": 2}, {"images": make_images(seed=2)}):
        with pytest.raises(StorageError, match=r"expected training \w{16}…, got one of training \w{16}…"):
            run(recipe(), states=tmp_path, **change)


def test_data_that_ends_early_is_one_line():
    class Short(OneSource):
        def batches(self, batch_size, seed, epoch):
            yield from itertools.islice(super().batches(batch_size, seed, epoch), 2)

    with pytest.raises(EvaluationError, match="expected 3 batches per epoch, got 2"):
        list(train(Small(), "small", Short(IMAGES), recipe(), seed=1))


def test_channels_last_changes_rounding_alone(monkeypatch):
    (plain,) = run(recipe(epochs=1), space=SPACE, architecture=LIGHT)
    monkeypatch.setattr(type(SPACE), "channels_last", True)
    (fast,) = run(recipe(epochs=1), space=SPACE, architecture=LIGHT)
    assert weights_hash(fast.state_dict) != weights_hash(plain.state_dict)
    for name, tensor in plain.state_dict.items():
        assert fast.state_dict[name].is_contiguous()
        torch.testing.assert_close(fast.state_dict[name], tensor, rtol=0, atol=1e-4)
