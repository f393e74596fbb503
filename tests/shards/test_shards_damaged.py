"""The store under damage: every damaged byte is found, a crash at any step leaves a clean folder."""

import errno
import os

import numpy as np
import pytest

from robust201.core import files
from robust201.core.errors import FormatVersionError, ShardDamagedError, StorageError, StorageFullError
from robust201.shards import ShardStore
from tests.support.shard_support import DEFAULT, flip, make_results, make_unit, start_until, whole


@pytest.fixture
def store(tmp_path):
    return ShardStore.create(tmp_path / "results")


# Damage


def test_every_flipped_bit_is_found(store):
    path = store.folder.shards.joinpath(store.commit(make_results(make_unit())).shard)
    sound = path.read_bytes()
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    draws = np.random.default_rng(0)
    bits = [*draws.integers(0, 8 * footer, 100), *draws.integers(8 * footer, 8 * len(sound), 100)]
    for bit in bits:
        flip(path, int(bit))
        assert store.inventory(verify="all", on_damage="report").damaged != ()
        path.write_bytes(sound)
    assert store.inventory(verify="all").damaged == ()


def test_no_flipped_bit_ends_in_another_exception(store):
    unit = make_unit()
    path = store.folder.shards.joinpath(store.commit(make_results(unit)).shard)
    sound = path.read_bytes()
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    draws = np.random.default_rng(1)
    n_noticed = 0
    for bit in draws.integers(8 * footer, 8 * len(sound), 150):
        flip(path, int(bit))
        try:
            n_noticed += bool(store.inventory(on_damage="report").damaged)
        except FormatVersionError:
            n_noticed += 1
        path.write_bytes(sound)
    assert n_noticed > 0


@pytest.mark.parametrize("kept", [0, 1, 7, 100, -1, -8, -100])
def test_truncated_shard_is_found(store, kept):
    unit = make_unit()
    path = store.folder.shards.joinpath(store.commit(make_results(unit)).shard)
    path.write_bytes(path.read_bytes()[:kept])
    for verify in ("all", "unverified", "none"):
        with pytest.raises(ShardDamagedError, match="expected"):
            store.inventory(verify=verify)
    (finding,) = store.verify()
    assert finding.kind == "damaged"


def test_damaged_shard_is_set_aside_and_its_evaluations_are_missing(store):
    unit, other = make_unit(1), make_unit(2)
    shard = store.commit(make_results(unit)).shard
    store.commit(make_results(other))
    flip(store.folder.shards.joinpath(shard), 1000)
    inventory = store.inventory(verify="all", on_damage="set_aside")
    assert inventory.damaged == (shard,)
    assert "expected SHA-256" in inventory.damage[shard]
    assert (store.root / "damaged" / shard).is_file()
    assert inventory.missing(unit, DEFAULT) == (whole(unit),)
    assert inventory.missing(other, DEFAULT) == ()
    assert store.inventory(verify="all").damaged == ()


def test_verify_finds_rows_that_break_an_invariant(store, monkeypatch):
    monkeypatch.setattr("robust201.shards.store.check_values", lambda *_args, **_named: None)
    unit = make_unit()
    results = make_results(unit)
    results[0].values["cm"][0, 0] += 1
    store.commit(results)
    (finding,) = store.verify()
    assert (finding.kind, finding.unit) == ("invalid", "#21 digits pgd at 1 images 0:30")


@pytest.mark.parametrize("name", ["digits/000022-pgd", "digits/000021-fgsm", "cifar10/000021-pgd"])
def test_verify_finds_misplaced_shards(store, name):
    path = store.folder.shards.joinpath(store.commit(make_results(make_unit())).shard)
    target = store.folder.shards.joinpath(f"{name}-{path.name[-24:]}")
    target.parent.mkdir(exist_ok=True)
    path.rename(target)
    assert {finding.kind for finding in store.verify()} == {"misplaced"}


def test_shard_that_vanishes_after_the_scan_is_a_storage_error(store):
    unit = make_unit()
    shard = store.commit(make_results(unit)).shard
    inventory = store.inventory()
    store.folder.backend.set_aside(shard)
    with pytest.raises(StorageError, match="Run the same command again"):
        store.values(unit, 1.0, inventory, DEFAULT)


# Crashes and full disks


@pytest.mark.parametrize("step", files.WRITE_STEPS)
def test_killed_commit_leaves_all_or_nothing(store, step):
    store.commit(make_results(make_unit(1)))
    assert start_until(step, store, "store.commit(make_results(make_unit(2)))").wait() == 9
    inventory = store.inventory(verify="all")
    assert len(inventory.shards) == (2 if step == "renamed" else 1)
    assert inventory.missing(make_unit(1), DEFAULT) == ()
    assert (inventory.missing(make_unit(2), DEFAULT) == ()) == (step == "renamed")
    store.commit(make_results(make_unit(2)))
    assert store.inventory(verify="all").n_evaluations == 4
    assert store.verify() == []


def _fail_at(step_to_fail, error):
    def on_step(step):
        if step == step_to_fail:
            raise OSError(error, os.strerror(error))

    return on_step


@pytest.mark.parametrize("step", files.WRITE_STEPS[:-1])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_full_device_leaves_nothing_behind(store, step, error):
    full = ShardStore(store.root, on_step=_fail_at(step, error))
    with pytest.raises(StorageFullError, match="Free some space"):
        full.commit(make_results(make_unit()))
    assert [path for path in (store.root / "shards").rglob("*") if path.is_file()] == []


def test_full_device_while_writing(store, monkeypatch):
    # /dev/full takes the place of the temporary file: opening works, flushing does not.
    temporary = files.Path.open
    monkeypatch.setattr(
        files.Path,
        "open",
        lambda path, *args, **named: (
            open("/dev/full", "wb")  # noqa: SIM115, PTH123
            if path.suffix == ".tmp"
            else temporary(path, *args, **named)
        ),
    )
    with pytest.raises(StorageFullError):
        store.commit(make_results(make_unit()))
    monkeypatch.undo()
    assert store.inventory().shards == ()
