"""Training states: damaged states are renamed, two states are kept, and states of another training run are rejected."""

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
from tests.training.support import IMAGES, ONE_CONVOLUTION, SPACE, weights_hash

RECIPE = Recipe.model_validate(
    {"epochs": 2, "batch_size": 8, "learning_rate": 0.1, "weight_decay": 5e-4, "schedule": {"cosine": {}}}
)


def make_state(step, value=1.5):
    network = {"weight": torch.full((2, 3), value), "count": torch.tensor(7)}
    history = (EpochRecord(1, 0.1, 0.1 + 0.2, 0.5),)  # the loss needs all 17 digits
    return TrainingState(step, network, {"weight": torch.full((2, 3), -value)}, history, (0.1 + 0.2, 3, 8))


def is_equal(state, other):
    return (
        (state.step, state.history, state.sums) == (other.step, other.history, other.sums)
        and weights_hash(state.network) == weights_hash(other.network)
        and weights_hash(state.momentum) == weights_hash(other.momentum)
    )


@pytest.fixture
def notices():
    return []


@pytest.fixture
def folder(tmp_path, notices):
    return StateFolder(tmp_path / "states", "a" * 64, notices.append)


def test_loaded_state_equals_the_saved_one(folder):
    assert folder.load(max_step=10) is None
    folder.save(make_state(3))
    assert is_equal(folder.load(max_step=10), make_state(3))
    assert folder.load(max_step=2) is None


def test_state_folder_keeps_two_states_and_loads_the_newest_up_to_max_step(folder, tmp_path):
    for step in (1, 2, 10):
        folder.save(make_state(step))
    assert [path.name[:14] for path in sorted((tmp_path / "states").iterdir())] == ["step-000000002", "step-000000010"]
    assert folder.load(max_step=10).step == 10
    assert folder.load(max_step=9).step == 2


def test_state_saved_last_is_kept_although_others_have_later_steps(folder):
    for step in (10, 20, 3, 5):  # Training repeats earlier steps if a snapshot was lost.
        folder.save(make_state(step))
    assert folder.load(max_step=99).step == 5


@settings(max_examples=20)
@given(st.data())
def test_load_uses_the_previous_state_if_the_newest_is_damaged(tmp_path_factory, data):
    root, notices = tmp_path_factory.mktemp("states"), []
    folder = StateFolder(root, "a" * 64, notices.append)
    folder.save(make_state(1))
    folder.save(make_state(2, value=2.5))
    (newest,) = root.glob("step-000000002-*")
    raw = bytearray(newest.read_bytes())
    if data.draw(st.booleans(), "truncated"):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1), "length")]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1), "byte")] ^= data.draw(st.integers(1, 255), "change")
    newest.write_bytes(raw)
    assert is_equal(folder.load(max_step=10), make_state(1))
    (notice,) = notices
    assert notice.startswith(f"The state of a training run after 2 steps in {newest} was damaged")
    assert "\n" not in notice
    assert (root / f"damaged-{newest.name}").read_bytes() == raw
    assert folder.load(max_step=10).step == 1
    assert len(notices) == 1


def test_load_returns_none_if_all_states_are_damaged(folder, notices, tmp_path):
    for step in (1, 2):
        folder.save(make_state(step))
    for path in (tmp_path / "states").iterdir():
        path.write_bytes(b"")
    assert folder.load(max_step=10) is None
    assert len(notices) == 2


def test_training_resumes_from_the_state_before_a_damaged_one(tmp_path, notices):
    def run_training(**options):
        return list(train(SPACE, ONE_CONVOLUTION, OneSource(IMAGES), RECIPE, seed=1, **options))

    (uninterrupted,) = run_training()
    run_training(states=tmp_path)
    newest = max(tmp_path.glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    steps = []
    (resumed,) = run_training(
        states=tmp_path, on_notice=notices.append, keep_going=lambda step: steps.append(step) or True
    )
    assert (steps, len(notices)) == ([3, 4, 5], 1)
    assert weights_hash(resumed.state_dict) == weights_hash(uninterrupted.state_dict)


def test_load_deletes_only_temporary_files(folder, tmp_path):
    folder.save(make_state(1))
    incomplete_file, user_file = (tmp_path / "states" / name for name in (".step-000000002-00.tmp", "notes.txt"))
    incomplete_file.write_bytes(b"half")
    user_file.write_text("mine")
    assert folder.load(max_step=10).step == 1
    assert not incomplete_file.exists()
    assert user_file.exists()


def test_state_of_another_training_run_is_rejected(folder, tmp_path):
    folder.save(make_state(1))
    with pytest.raises(StorageError, match=r"it belongs to training run a{16}…, not to b{16}…"):
        StateFolder(tmp_path / "states", "b" * 64, print).load(max_step=10)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_state_is_an_error(folder, tmp_path):
    folder.save(make_state(1))
    (path,) = (tmp_path / "states").iterdir()
    path.chmod(stat.S_IWUSR)
    with pytest.raises(StorageError, match="Permission denied"):
        folder.load(max_step=10)
