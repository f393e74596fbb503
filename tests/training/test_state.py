"""Saved states of a training run: only the last one is kept, damaged ones are deleted, unreadable ones are errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import RobustWarning, StorageError
from robust201.training.data import OneSource
from robust201.training.loop import train
from robust201.training.state import EpochRecord, StateFolder, TrainingState
from tests.training.support import IMAGES, LIGHT_CELL, SPACE, make_recipe, weights_hash


def make_state(step, value=1.5):
    network = {"weight": torch.full((2, 3), value), "count": torch.tensor(7)}
    history = (EpochRecord(1, 0.1, 0.1 + 0.2, 0.5),)  # 0.1 + 0.2 needs 17 digits
    return TrainingState(step, network, {"weight": torch.full((2, 3), -value)}, history, (0.1 + 0.2, 3, 8))


def is_equal(state, other):
    return (
        (state.step, state.history, state.sums) == (other.step, other.history, other.sums)
        and weights_hash(state.network) == weights_hash(other.network)
        and weights_hash(state.momentum) == weights_hash(other.momentum)
    )


@pytest.fixture
def folder(tmp_path):
    return StateFolder(tmp_path / "states", "a" * 64)


def test_state_folder_keeps_the_state_saved_last(folder, tmp_path):
    assert folder.load(max_step=10) is None
    for step in (10, 20, 3, 5):  # Training repeats earlier steps if a snapshot was lost.
        folder.save(make_state(step))
        assert [path.name[:14] for path in (tmp_path / "states").iterdir()] == [f"step-{step:09d}"]
        assert is_equal(folder.load(max_step=step), make_state(step))
        assert folder.load(max_step=step - 1) is None


@settings(max_examples=20)
@given(st.data())
def test_load_deletes_a_damaged_state(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("states")
    folder = StateFolder(root, "a" * 64)
    folder.save(make_state(2, value=2.5))
    (path,) = root.iterdir()
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans(), "truncated"):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1), "length")]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1), "byte")] ^= data.draw(st.integers(1, 255), "change")
    path.write_bytes(raw)
    with pytest.warns(RobustWarning, match=f"after 2 steps in {path} was damaged"):
        assert folder.load(max_step=10) is None
    assert list(root.iterdir()) == []


def test_training_starts_again_if_its_state_is_damaged(tmp_path):
    def run_training(**options):
        return list(train(SPACE, LIGHT_CELL, OneSource(IMAGES), make_recipe(), seed=1, **options))

    (uninterrupted,) = run_training()
    run_training(states=tmp_path)
    (path,) = tmp_path.glob("step-*")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(RobustWarning, match="starts again"):
        (restarted,) = run_training(states=tmp_path)
    assert weights_hash(restarted.state_dict) == weights_hash(uninterrupted.state_dict)


def test_load_deletes_temporary_files_and_keeps_the_users_files(folder, tmp_path):
    folder.save(make_state(1))
    incomplete_file, user_file = (tmp_path / "states" / name for name in (".step-000000002-00.tmp", "notes.txt"))
    incomplete_file.write_bytes(b"half")
    user_file.write_text("mine")
    assert folder.load(max_step=10).step == 1
    assert not incomplete_file.exists()
    assert user_file.exists()


def test_load_skips_a_vanished_state_and_rejects_an_unreadable_one(folder, tmp_path, monkeypatch):
    folder.save(make_state(2))
    (path,) = (tmp_path / "states").iterdir()
    monkeypatch.setattr(StateFolder, "_paths", lambda _self: [path.with_name(path.name.replace("2", "3", 1)), path])
    assert folder.load(max_step=10).step == 2
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match=str(path)):
        folder.load(max_step=10)
