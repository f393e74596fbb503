"""Compaction does not lose, repeat or change results, even if it is killed or other processes commit results."""

import errno
import os
from pathlib import Path

import pytest

from robust201.core import files
from robust201.core.errors import StorageFullError
from robust201.shards import ShardStore, merge_folders
from robust201.shards.backends import is_compacted
from tests.support.shard_support import (
    ALL_MEASUREMENTS,
    CLOCK_TWO_HOURS_AHEAD,
    DEFAULT_MEASUREMENTS,
    HOUR,
    assert_complete_store,
    assert_equal_values,
    flip,
    make_results,
    make_unit,
    make_values,
    start_and_die_at,
)

UNITS = [make_unit(architecture, key=key) for key in ("pgd", "fgsm") for architecture in (5, 3, 9, 1)]


@pytest.fixture
def store(tmp_path):
    """Return a store with one shard per unit, except for the last unit, which is in two shards."""
    store = ShardStore.create(tmp_path / "results")
    for unit in UNITS[:-1]:
        store.commit(make_results(unit))
    for start, stop in ((0, 7), (7, 30)):
        store.commit(make_results(UNITS[-1], start=start, stop=stop))
    return store


def test_compact_preserves_values(store):
    report = store.compact()
    assert (report.inputs, report.outputs, report.rows, report.deleted) == (9, 1, 18, 0)
    inventory = assert_complete_store(store, UNITS)
    (shard,) = inventory.shards
    assert is_compacted(shard)
    assert shard.endswith(f"{files.sha256_of(store.folder.shards.joinpath(shard))[:16]}.parquet")
    assert inventory.seconds == pytest.approx(9.0)


def test_second_compaction_merges_new_and_small_shards(store):
    store.compact(grace_seconds=HOUR)
    new_units = [make_unit(architecture) for architecture in (4, 6)]
    for unit in new_units:
        store.commit(make_results(unit))
    assert store.compact(grace_seconds=HOUR).inputs == 3
    # The inputs of the first compaction still exist. Both compacted shards replace them.
    assert len(assert_complete_store(store, UNITS + new_units).shards) == 1
    # The first compacted shard, its nine inputs and the two new shards are deleted.
    assert store.compact(grace_seconds=HOUR, clock=CLOCK_TWO_HOURS_AHEAD).deleted == 12
    assert len(assert_complete_store(store, UNITS + new_units).shards) == 1
    assert store.compact(grace_seconds=HOUR, clock=CLOCK_TWO_HOURS_AHEAD).inputs == 0


def test_shards_with_different_columns_or_datasets_are_not_merged(store):
    units_on_cifar10 = [make_unit(architecture, dataset="cifar10") for architecture in (1, 2)]
    units_with_all_columns = [make_unit(architecture, key="clean", strengths=(0.0,)) for architecture in (1, 2)]
    for unit in units_on_cifar10:
        store.commit(make_results(unit, n_classes=4))
    for unit in units_with_all_columns:
        store.commit(make_results(unit, measurements=ALL_MEASUREMENTS))
    assert store.compact().outputs == 3
    inventory = store.inventory(verify="all")
    for unit in units_with_all_columns:
        assert_equal_values(
            store.values(unit, 0.0, inventory, ALL_MEASUREMENTS), make_values(unit, 0.0, 0, 30, ALL_MEASUREMENTS)
        )
    for unit in units_on_cifar10:
        expected = make_values(unit, 1.0, 0, 30, n_classes=4)
        assert_equal_values(store.values(unit, 1.0, inventory, DEFAULT_MEASUREMENTS), expected)
    assert store.verify() == []


def test_damaged_inputs_are_kept_and_reported(store):
    damaged_shard = store.inventory().shards[0]
    flip(store.folder.shards.joinpath(damaged_shard), 8000)
    report = store.compact()
    assert report.damaged == (damaged_shard,)
    assert report.inputs == 8
    assert store.inventory(verify="all", on_damage="report").damaged == (damaged_shard,)


def test_compact_command_reports_damaged_shards_and_fails(store, robust201):
    damaged_shard = store.inventory().shards[0]
    path = store.folder.shards.joinpath(damaged_shard)
    path.write_bytes(path.read_bytes()[:-1])
    result = robust201("merge", store.root, "--compact")
    assert result.code == 4
    assert "Merged 8 files into 1" in result.out
    assert f"damaged: {damaged_shard}" in result.err
    assert "robust201 run" in result.err


def test_inputs_of_a_damaged_compacted_shard_are_not_deleted(store):
    inputs = store.inventory().shards
    store.compact()
    (shard,) = store.inventory().shards
    flip(store.folder.shards.joinpath(shard), 4000)
    report = store.compact(grace_seconds=0, clock=CLOCK_TWO_HOURS_AHEAD)
    assert report.deleted == 0
    assert report.damaged == (shard,)
    assert all(store.folder.shards.joinpath(name).exists() for name in inputs)


# The tests of the steps just before and after the rename, which makes the shard visible, always run; others are slow.
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step in ("flushed", "renamed") else pytest.mark.slow)
        for step in files.WRITE_STEPS
    ],
)
def test_killed_compaction_does_not_change_visible_results(store, step):
    assert start_and_die_at(step, store).wait() == 9
    inventory = assert_complete_store(store, UNITS)
    assert any(map(is_compacted, inventory.shards)) == (step == "renamed")
    store.compact()
    assert len(assert_complete_store(store, UNITS).shards) == 1


def test_interrupted_deletion_loses_no_results(store, monkeypatch):
    store.compact(grace_seconds=HOUR)
    original_unlink, deleted_paths = Path.unlink, []

    def unlink(path, **options):
        if len(deleted_paths) == 4:
            raise KeyboardInterrupt
        deleted_paths.append(path)
        original_unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        store.compact(grace_seconds=HOUR, clock=CLOCK_TWO_HOURS_AHEAD)
    monkeypatch.undo()
    assert_complete_store(store, UNITS)
    assert store.compact(grace_seconds=HOUR, clock=CLOCK_TWO_HOURS_AHEAD).deleted == 5
    assert_complete_store(store, UNITS)


def test_full_disk_during_compaction_loses_no_results(store):
    def fail(step):
        if step == "written":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageFullError):
        ShardStore(store.root, on_step=fail).compact()
    assert list(store.root.rglob("*.tmp")) == []
    assert not any(map(is_compacted, assert_complete_store(store, UNITS).shards))


def test_concurrent_compactions_lose_no_results(store):
    processes = [start_and_die_at("never", store) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert_complete_store(store, UNITS)


def test_merge_folders_supports_compacted_source(store, tmp_path):
    copy_report = merge_folders([store.root], tmp_path / "copy")
    assert copy_report.added == 9
    store.compact(grace_seconds=HOUR)
    store.compact(grace_seconds=HOUR, clock=CLOCK_TWO_HOURS_AHEAD)
    report = merge_folders([store.root, tmp_path / "copy"], tmp_path / "all")
    assert report.findings == ()
    target = ShardStore.open(tmp_path / "all")
    assert len(assert_complete_store(target, UNITS).shards) == 1
