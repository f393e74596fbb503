"""States of a training: whole or set aside, the newest two kept, never those of another training."""

import os
import stat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import StorageError
from robust201.training.data import OneSource
from robust201.training.loop import train
from robust201.training.recipes import Recipe
from robust201.training.state import EpochRecord, StateFolder, TrainingState
from tests.training.support import IMAGES, LIGHT, SPACE, weights_hash

RECIPE = Recipe.model_validate(
    {"epochs": 2, "batch_size": 8, "learning_rate": 0.1, "weight_decay": 5e-4, "schedule": {"cosine": {}}}
)


def make_state(step, value=1.5):
    network = {"weight": torch.full((2, 3), value), "count": torch.tensor(7)}
    history = (EpochRecord(1, 0.1, 1 / 3, 0.5),)
    return TrainingState(step, network, {"weight": torch.full((2, 3), -value)}, 0.1 + 0.2, 3, 8, history)


def same(first, second):
    return (
        (first.step, first.loss_sum, first.n_correct, first.n_images, first.history)
        == (second.step, second.loss_sum, second.n_correct, second.n_images, second.history)
        and weights_hash(first.network) == weights_hash(second.network)
        and weights_hash(first.momentum) == weights_hash(second.momentum)
    )


@pytest.fixture
def lines():
    return []


@pytest.fixture
def folder(tmp_path, lines):
    return StateFolder(tmp_path / "states", "a" * 64, lines.append)


def test_a_state_is_read_as_it_was_written(folder):
    assert folder.load(at_most=10) is None
    folder.save(make_state(3))
    assert same(folder.load(at_most=10), make_state(3))
    assert folder.load(at_most=2) is None


def test_the_newest_two_are_kept_and_the_newest_that_may_be_is_used(folder, tmp_path):
    for step in (1, 2, 10):
        folder.save(make_state(step))
    assert [path.name[:14] for path in sorted((tmp_path / "states").iterdir())] == ["step-000000002", "step-000000010"]
    assert folder.load(at_most=10).step == 10
    assert folder.load(at_most=9).step == 2


def test_states_of_later_steps_do_not_displace_a_new_one(folder):
    for step in (10, 20, 3, 5):  # after 20 steps, a snapshot from before the fifth was lost
        folder.save(make_state(step))
    assert folder.load(at_most=9).step == 5


@settings(max_examples=20)
@given(st.data())
def test_any_damage_is_noticed_and_the_state_before_is_used(tmp_path_factory, data):
    root, lines = tmp_path_factory.mktemp("states"), []
    folder = StateFolder(root, "a" * 64, lines.append)
    folder.save(make_state(1))
    folder.save(make_state(2, value=2.5))
    (newest,) = root.glob("step-000000002-*")
    raw = bytearray(newest.read_bytes())
    if data.draw(st.booleans(), "torn"):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1), "length")]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1), "byte")] ^= data.draw(st.integers(1, 255), "change")
    newest.write_bytes(raw)
    assert same(folder.load(at_most=10), make_state(1))
    (line,) = lines
    assert line.startswith(f"The state of a training after 2 steps in {newest} was damaged")
    assert "\n" not in line
    assert (root / f"damaged-{newest.name}").read_bytes() == raw
    assert folder.load(at_most=10).step == 1
    assert len(lines) == 1


def test_all_damaged_means_from_the_beginning(folder, lines, tmp_path):
    for step in (1, 2):
        folder.save(make_state(step))
    for path in (tmp_path / "states").iterdir():
        path.write_bytes(b"")
    assert folder.load(at_most=10) is None
    assert len(lines) == 2


def test_a_training_goes_on_from_the_state_before_a_damaged_one(tmp_path, lines):
    def go(**options):
        return list(train(SPACE, LIGHT, OneSource(IMAGES), RECIPE, seed=1, **options))

    (whole,) = go()
    assert go(states=tmp_path, save_seconds=0, keep_going=lambda step: step < 5) == []
    newest = max(tmp_path.glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    steps = []
    (resumed,) = go(states=tmp_path, notice=lines.append, keep_going=lambda step: steps.append(step) or True)
    assert (steps, len(lines)) == ([4, 5], 1)
    assert weights_hash(resumed.state_dict) == weights_hash(whole.state_dict)


def test_what_a_killed_process_left_is_removed_and_strangers_are_not(folder, tmp_path):
    folder.save(make_state(1))
    leftover, stranger = (tmp_path / "states" / name for name in (".step-000000002-00.tmp", "notes.txt"))
    leftover.write_bytes(b"half")
    stranger.write_text("mine")
    assert folder.load(at_most=10).step == 1
    assert not leftover.exists()
    assert stranger.exists()


def test_another_training_is_refused(folder, tmp_path):
    folder.save(make_state(1))
    with pytest.raises(StorageError, match=r"expected training b{16}…, got one of training a{16}…"):
        StateFolder(tmp_path / "states", "b" * 64, print).load(at_most=10)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_state_that_cannot_be_read_is_one_line(folder, tmp_path):
    folder.save(make_state(1))
    (path,) = (tmp_path / "states").iterdir()
    path.chmod(stat.S_IWUSR)
    with pytest.raises(StorageError, match="expected a file that can be read, got Permission denied"):
        folder.load(at_most=10)
