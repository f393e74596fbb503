"""The training loop: equal bytes after any interruption, snapshots, start weights, and one-line errors."""

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
def test_training_interrupted_at_any_step_resumes_to_the_same_bytes(tmp_path, changes):
    fields = recipe(**changes)
    (uninterrupted,) = run(fields)
    for last_step in range(uninterrupted.step + 1):
        folder = tmp_path / str(last_step)

        def stop(step, after=last_step):
            return step < after

        stopped = run(fields, states=folder, keep_going=stop)
        assert [snapshot.step for snapshot in stopped] == (
            [uninterrupted.step] if last_step == uninterrupted.step else []
        )
        torch.manual_seed(99)
        (resumed,) = run(fields, states=folder)
        assert weights_hash(resumed.state_dict) == weights_hash(uninterrupted.state_dict)
        assert resumed.history == uninterrupted.history


def test_training_interrupted_at_every_step_yields_the_same_snapshots(tmp_path):
    fields = recipe(augmentation="std", snapshots=EVERY_STEP)
    uninterrupted = run(fields)
    assert [snapshot.step for snapshot in uninterrupted] == list(range(N_STEPS + 1))
    resumed = {}
    for step in range(N_STEPS + 1):
        # Dropping the generator before the snapshot is stored, as a kill would, must yield it again.
        for _ in range(2):
            first = next(
                train(Small(), "small", OneSource(IMAGES), fields, seed=1, states=tmp_path, snapshot_steps={step})
            )
            resumed[step] = weights_hash(first.state_dict)
            assert first.history == uninterrupted[step].history
    assert resumed == hashes(uninterrupted)


def test_training_of_a_published_network_resumes(tmp_path):
    fields = recipe(augmentation={"flip": True, "crop_padding": 1})
    (uninterrupted,) = run(fields, space=SPACE, architecture=LIGHT)
    assert run(fields, space=SPACE, architecture=LIGHT, states=tmp_path, keep_going=lambda step: step < 4) == []
    (resumed,) = run(fields, space=SPACE, architecture=LIGHT, states=tmp_path)
    assert weights_hash(resumed.state_dict) == weights_hash(uninterrupted.state_dict)


def test_training_saves_states_every_save_seconds(tmp_path):
    saved = []

    def record_states(step):
        saved.append(sorted(path.name[5:14] for path in tmp_path.glob("step-*")))
        return step < 4

    run(recipe(), states=tmp_path, save_seconds=0, keep_going=record_states)
    assert saved == [[], ["000000001"], ["000000001", "000000002"], *[[f"{n - 1:09}", f"{n:09}"] for n in (3, 4)]]


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
def test_every_recipe_field_changes_the_weights(name):
    (plain,), (changed,) = run(recipe()), run(recipe(**{name: CHANGES[name]}))
    assert weights_hash(plain.state_dict) != weights_hash(changed.state_dict)


def test_decay_of_weights_does_not_apply_to_biases_and_batch_norm():
    """All runs have the same first gradient, so their differences are the decay's contribution to the step."""
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


def test_initial_weights_depend_on_the_seed_only():
    initial = [
        run(fields, images=images, snapshot_steps={0}, seed=seed)[0]
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


def test_snapshots_do_not_change_the_weights_and_give_step_and_epoch():
    (plain,) = run(recipe())
    every = run(recipe(snapshots={"iterations": [1, 4], "every_epochs": 1}))
    assert [(each.step, each.epochs) for each in every] == [(1, None), (3, 1), (4, None), (6, 2)]
    assert weights_hash(every[-1].state_dict) == weights_hash(plain.state_dict)
    assert [len(each.history) for each in every] == [1, 1, 2, 2]
    assert every[2].history[0] == every[1].history[0] == plain.history[0]
    assert every[0].history[0] != plain.history[0]


def test_training_starts_from_given_weights():
    (source,) = run(recipe(epochs=1))
    fields = recipe(snapshots={"epochs": [0]})
    first, last = run(fields, images=make_images(seed=3), start=source.state_dict)
    assert weights_hash(first.state_dict) == weights_hash(source.state_dict)
    assert weights_hash(last.state_dict) != weights_hash(run(fields, images=make_images(seed=3))[-1].state_dict)
    source.state_dict.pop("7.bias")
    with pytest.raises(CheckpointError, match="expected those of the same network with 2 classes, got others"):
        run(fields, start=source.state_dict)


def test_training_on_a_mixture_resumes(tmp_path):
    data = Mixture(IMAGES, make_images(seed=5), 0.3)
    fields = recipe(augmentation="std")
    (uninterrupted,) = train(Small(), "small", data, fields, seed=1)
    assert list(train(Small(), "small", data, fields, seed=1, states=tmp_path, keep_going=lambda step: step < 2)) == []
    (resumed,) = train(Small(), "small", data, fields, seed=1, states=tmp_path)
    assert weights_hash(uninterrupted.state_dict) == weights_hash(resumed.state_dict)


def test_training_restores_random_state_and_process_settings():
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
                # The settings are also restored between snapshots.
                assert torch.get_num_threads() == threads
                assert torch.are_deterministic_algorithms_enabled() == deterministic
            assert torch.equal(torch.rand(3), expected)
        finally:
            torch.use_deterministic_algorithms(before)


def test_training_with_a_non_finite_loss_gives_a_one_line_error():
    with pytest.raises(EvaluationError, match=r"small on bright: .* finite loss, got nan in epoch 2\. Lower the learn"):
        run(recipe(learning_rate=1e30, epochs=2, batch_size=20))


def test_training_neither_saves_nor_yields_non_finite_weights(tmp_path):
    """The last step's loss is finite, but the updated weights are not."""
    with pytest.raises(EvaluationError, match=r"expected finite weights, got NaN or infinity in \S+ in epoch 1"):
        run(recipe(learning_rate=1e37, weight_decay=1e5, epochs=1, batch_size=20), states=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_last_batch_of_one_image_rejected_by_batch_norm_gives_a_one_line_error():
    images = make_images(9)
    with pytest.raises(EvaluationError, match=r"last batch of one, .*more than 1 value.* another batch size than 8"):
        run(recipe(), images=images)
    run(recipe(batch_size=5), images=images)
    # If BatchNorm averages over several pixels, PyTorch accepts a batch of one image.
    run(recipe(epochs=1), images=images, space=SPACE, architecture=LIGHT)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_missing_device_is_rejected():
    with pytest.raises(ConfigError, match="expected a CUDA device"):
        run(recipe(), device="cuda")


@pytest.mark.parametrize(("precision", "message"), [("bf16", "expected fp32 or tf32"), ("tf32", "got a CPU")])
def test_unsupported_precision_is_rejected(precision, message):
    with pytest.raises(ConfigError, match=message):
        run(recipe(), precision=precision)


def test_training_that_would_corrupt_memory_is_rejected(monkeypatch):
    network = {"space": Zoo(), "architecture": "stn-resnet18-w4"}
    monkeypatch.setattr("robust201.training.loop.has_avx512", lambda: False)
    with pytest.raises(ArchitectureError, match="corrupts memory"):
        run(recipe(), **network)
    monkeypatch.setattr("robust201.training.loop.has_avx512", lambda: True)
    with pytest.raises(NetworkError, match="expected 32x32 pixels"):  # Raised when training on the tiny images begins.
        run(recipe(), **network)


def test_states_of_another_training_are_rejected(tmp_path):
    run(recipe(), states=tmp_path)
    for change in ({"seed": 2}, {"threads": 2}, {"images": make_images(seed=2)}):
        with pytest.raises(StorageError, match=r"expected training \w{16}…, got one of training \w{16}…"):
            run(recipe(), states=tmp_path, **change)


def test_training_on_data_that_end_early_gives_a_one_line_error():
    class Short(OneSource):
        def batches(self, batch_size, seed, epoch):
            yield from itertools.islice(super().batches(batch_size, seed, epoch), 2)

    with pytest.raises(EvaluationError, match="expected 3 batches per epoch, got 2"):
        list(train(Small(), "small", Short(IMAGES), recipe(), seed=1))


def test_channels_last_changes_only_the_rounding(monkeypatch):
    (plain,) = run(recipe(epochs=1), space=SPACE, architecture=LIGHT)
    monkeypatch.setattr(type(SPACE), "channels_last", True)
    (fast,) = run(recipe(epochs=1), space=SPACE, architecture=LIGHT)
    assert weights_hash(fast.state_dict) != weights_hash(plain.state_dict)
    for name, tensor in plain.state_dict.items():
        assert fast.state_dict[name].is_contiguous()
        torch.testing.assert_close(fast.state_dict[name], tensor, rtol=0, atol=1e-4)
