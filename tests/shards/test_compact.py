"""Compaction does not lose, repeat or change results, even if it is killed or other processes commit results."""

import errno
import os
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core import files
from robust201.core.errors import StorageFullError
from robust201.shards import ShardStore, merge_folders
from robust201.shards.backends import is_compacted
from robust201.shards.parquet import ShardFile, encode
from robust201.shards.row_reader import RowReader
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
    input_shards = store.inventory().shards
    report = store.compact()
    assert (report.inputs, report.outputs, report.rows, report.deleted) == (9, 1, 18, 0)
    inventory = assert_complete_store(store, UNITS)
    (shard,) = inventory.shards
    assert is_compacted(shard)
    assert shard.endswith(f"{files.sha256_of(store.folder.shards.joinpath(shard))[:16]}.parquet")
    assert inventory.replaced_shards == input_shards
    assert inventory.seconds == pytest.approx(9.0)


def test_compacted_rows_are_sorted_for_export(store):
    store.compact(row_group_bytes=2000)
    (shard,) = store.inventory().shards
    file = pq.ParquetFile(store.folder.shards.joinpath(shard))
    assert file.metadata.num_row_groups > 3
    columns = file.read(columns=["key", "architecture", "strength", "start"]).to_pydict()
    rows = list(zip(*columns.values(), strict=True))
    assert rows == sorted(rows)
    file.close()
    assert_complete_store(store, UNITS)


def test_compacted_shards_and_row_groups_are_within_size_limits(tmp_path):
    # The target size is about a thousandth of the default. As in practice, rows are larger than footers.
    target_bytes, row_group_bytes, n_images = 192_000, 64_000, 8_000
    store = ShardStore.create(tmp_path / "results")
    rng = np.random.default_rng(0)
    units = [make_unit(architecture, n_images=n_images) for architecture in range(62)]
    for unit in units:
        results = make_results(unit, measurements=("accuracy",))
        for result in results:
            result.values["predictions"] = rng.integers(0, 3, n_images).astype(np.uint8)
            result.values["predictions"][:4000] = rng.integers(0, 256, 4000)  # hardly compressible
        store.folder.publish("digits", f"{unit.architecture:06d}-pgd", encode(results))
    sizes = check_sizes(
        store, store.compact(target_bytes=target_bytes, row_group_bytes=row_group_bytes), target_bytes, row_group_bytes
    )
    assert len(sizes) >= 3
    # A new shard is merged with the smallest compacted shard; the others are not changed.
    old_shards = set(store.inventory().shards)
    smallest_shard = store.folder.shards.joinpath(
        min(old_shards, key=lambda shard: store.folder.shards.joinpath(shard).stat().st_size)
    ).name
    assert min(sizes) < 2 * target_bytes / 3
    store.commit(make_results(make_unit(99, n_images=n_images), measurements=("accuracy", "predictions")))
    report = store.compact(target_bytes=target_bytes, row_group_bytes=row_group_bytes)
    assert (report.inputs, report.outputs) == (2, 1)
    assert {shard.rpartition("/")[2] for shard in old_shards - set(store.inventory().shards)} == {smallest_shard}
    assert store.compact(target_bytes=target_bytes, row_group_bytes=row_group_bytes).inputs == 0


def check_sizes(store, report, target_bytes, row_group_bytes):
    """Check the sizes of compacted shards, of which only the smallest may be below the limit, and return them."""
    paths = [store.folder.shards.joinpath(shard) for shard in store.inventory().shards]
    assert len(paths) == report.outputs
    sizes = sorted(path.stat().st_size for path in paths)
    assert all(2 * target_bytes / 3 <= size for size in sizes[1:])
    assert all(size <= 4 * target_bytes / 3 for size in sizes)
    for path in paths:
        metadata = pq.read_metadata(path)
        row_group_sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
        assert max(row_group_sizes) <= row_group_bytes
        assert len(row_group_sizes) > 1 or path.stat().st_size < row_group_bytes
    return sizes


def test_old_inventory_is_readable_during_grace_period(store):
    inventory = store.inventory()
    store.compact()
    expected = make_values(UNITS[0], 1.0, 0, 30)
    assert_equal_values(store.values(UNITS[0], 1.0, inventory, DEFAULT_MEASUREMENTS), expected)


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


def test_inputs_stay_replaced_after_compacted_shard_is_merged_again(store):
    store.compact()
    (first_compacted,) = store.inventory().shards
    store.commit(make_results(make_unit(4)))
    store.compact()
    store.folder.shards.joinpath(first_compacted).unlink()
    assert len(assert_complete_store(store, [*UNITS, make_unit(4)]).shards) == 1


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


def test_verify_finds_rows_lost_in_compaction(store, monkeypatch):
    write_table = pq.ParquetWriter.write_table
    monkeypatch.setattr(
        "pyarrow.parquet.ParquetWriter.write_table",
        lambda self, table, **options: write_table(self, table[:-1], **options),
    )
    store.compact()
    monkeypatch.undo()
    assert [finding.kind for finding in store.verify()] == ["lost in compaction"]


def test_compact_removes_old_temporary_files(store):
    temporary_path = store.folder.shards / "digits" / ".x.tmp"
    temporary_path.write_bytes(b"half")
    # The grace period applies only to shards, because a running writer must not lose its temporary file.
    assert store.compact(grace_seconds=0, clock=CLOCK_TWO_HOURS_AHEAD).removed_temporaries == 0
    assert store.compact(clock=lambda: time.time() + 25 * HOUR).removed_temporaries == 1
    assert not temporary_path.exists()


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


# Memory of a reader


@pytest.fixture(scope="module")
def compacted_groups(tmp_path_factory):
    """Return a store with one compacted shard of several row groups, and the shard's name."""
    store = ShardStore.create(tmp_path_factory.mktemp("groups"))
    for architecture in range(6):
        store.commit(make_results(make_unit(architecture=architecture), n_classes=10))
    store.compact(row_group_bytes=2000, grace_seconds=0)
    store.compact(row_group_bytes=2000, grace_seconds=0)
    (shard,) = store.inventory().shards
    return store, shard


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 20_000), st.lists(st.integers(0, 11), min_size=1, max_size=30))
def test_reader_evicts_before_reading(compacted_groups, cache_bytes, positions):
    store, shard = compacted_groups
    reader, original_read = RowReader(store.folder, cache_bytes), ShardFile.read
    cached_and_read_bytes = []

    def read_and_record(file, group, columns=None):
        cached_and_read_bytes.append((reader._cached_bytes, file.count_encoded_bytes(group, columns)))
        return original_read(file, group, columns)

    with patch.object(ShardFile, "read", read_and_record):
        for position in positions:
            reader.read_row(shard, position, ("cm", "accuracy"))
    reader.close()
    assert cached_and_read_bytes
    assert all(
        cached_bytes == 0 or cached_bytes + read_bytes <= cache_bytes
        for cached_bytes, read_bytes in cached_and_read_bytes
    )
