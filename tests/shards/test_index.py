"""The index of shards. A scan returns the same inventory with and without an index, after any change of the index or
the shards. A run hashes only shards that are not verified."""

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import IncompleteError, ShardDamagedError, StorageFullError
from robust201.core.files import atomic_write
from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import run_sweep
from robust201.shards import ShardStore, index, merge_folders, scan
from robust201.shards.folder import ResultsFolder, network_of
from robust201.shards.inventory import required_columns
from tests.support.shard_support import (
    ALL_MEASUREMENTS,
    DEFAULT_MEASUREMENTS,
    flip_middle_bit,
    inventory_state,
    make_results,
    make_unit,
    state_without_index,
)

UNITS = [make_unit(architecture, key=key) for key in ("pgd", "fgsm") for architecture in range(8)]


@pytest.fixture(autouse=True)
def allow_small_index_files(monkeypatch):
    monkeypatch.setattr(index, "MIN_ROWS", 1)


@pytest.fixture
def store(tmp_path):
    """Return a store with one shard per unit."""
    store = ShardStore.create(tmp_path / "results")
    for unit in UNITS:
        store.commit(make_results(unit))
    return store


def index_files(store):
    return sorted(store.folder.index.glob("*.index"))


@pytest.fixture
def scanned_names(monkeypatch):
    """Return a list that collects the names of the shards that scans read."""
    names = []
    read_footer = scan.read_footer
    monkeypatch.setattr(
        scan, "read_footer", lambda backend, entry: names.append(entry.name) or read_footer(backend, entry)
    )
    return names


def test_second_scan_reads_nothing(store, scanned_names):
    expected = inventory_state(store.inventory())
    assert len(scanned_names) == len(UNITS)
    scanned_names.clear()
    assert inventory_state(store.inventory()) == expected
    assert inventory_state(ShardStore.open(store.root).inventory()) == expected
    assert scanned_names == []


def test_scan_reads_only_new_and_changed_shards(store, scanned_names):
    store.inventory()
    scanned_names.clear()
    new_shard = store.commit(make_results(make_unit(50))).shard
    changed_shard = store.inventory().shards[3]
    assert scanned_names == [new_shard]
    scanned_names.clear()
    os.utime(store.folder.shards.joinpath(changed_shard), ns=(1, 1))
    store.inventory()
    assert scanned_names == [changed_shard]
    path = store.folder.shards.joinpath(changed_shard)
    path.write_bytes(path.read_bytes()[:-1])
    inventory = store.inventory(on_damage="report")
    assert inventory.damaged == (changed_shard,)
    assert inventory_state(inventory) == state_without_index(store)


def test_scan_drops_deleted_shards(store):
    shard = store.inventory().shards[0]
    store.folder.shards.joinpath(shard).unlink()
    state = inventory_state(store.inventory())
    assert shard not in store.inventory().shards
    assert state == state_without_index(store)


def test_index_supports_compacted_folder(store, scanned_names):
    store.compact()
    store.commit(make_results(make_unit(50), measurements=ALL_MEASUREMENTS))
    state = inventory_state(store.inventory())
    shards, *_, replaced_shards = state
    assert len(shards) == 2
    assert len(replaced_shards) == len(UNITS)
    scanned_names.clear()
    assert inventory_state(store.inventory()) == state == state_without_index(store)
    assert len(scanned_names) == 2  # in the scan without an index


def test_inputs_replace_damaged_compacted_shard_despite_index(store):
    inputs = store.inventory().shards
    store.compact()
    (compacted_shard,) = store.inventory().shards
    path = store.folder.shards.joinpath(compacted_shard)
    path.write_bytes(path.read_bytes()[:-20] + b"\0" * 20)
    inventory = store.inventory(on_damage="report")
    assert inventory.shards == inputs
    assert inventory_state(inventory) == state_without_index(store)


@pytest.fixture(scope="module")
def small_store(tmp_path_factory):
    """Return a store with three shards, which all examples of a test share."""
    store = ShardStore.create(tmp_path_factory.mktemp("indexed") / "results")
    for unit in UNITS[:3]:
        store.commit(make_results(unit))
    return store


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_index_is_ignored_and_rewritten(small_store, data):
    store = small_store
    store.inventory()
    expected = state_without_index(store)
    (path,) = index_files(store)
    original = path.read_bytes()
    fault = data.draw(st.sampled_from(["flip", "truncate", "other version"]))
    if fault == "flip":
        content = bytearray(original)
        bit = data.draw(st.integers(0, 8 * len(original) - 1))
        content[bit // 8] ^= 1 << bit % 8
    elif fault == "truncate":
        content = original[: data.draw(st.integers(0, len(original) - 1))]
    else:
        content = original.replace(b"index 1", b"index 2", 1)
    path.write_bytes(content)
    assert inventory_state(store.inventory()) == expected
    # The index was rewritten, and the damaged file was removed.
    assert [path.read_bytes() for path in index_files(store)] == [original]


def test_index_with_other_schema_is_ignored(store, monkeypatch):
    expected = inventory_state(store.inventory())
    monkeypatch.setattr(index, "SCHEMA", index.SCHEMA.append(index.SCHEMA.field("mark").with_name("more")))
    assert index._read_catalogue(index_files(store)[0]).num_rows == 0
    monkeypatch.undo()
    assert inventory_state(store.inventory()) == expected


def test_number_of_index_files_stays_small(store, monkeypatch):
    n_files = []
    for architecture in range(100, 140):
        store.commit(make_results(make_unit(architecture)))
        store.inventory()
        n_files.append(len(index_files(store)))
    assert max(n_files) <= 7  # approximately the logarithm of the number of scans
    assert inventory_state(store.inventory()) == state_without_index(store)


def test_index_file_is_not_written_for_fewer_than_min_rows(store, monkeypatch):
    monkeypatch.setattr(index, "MIN_ROWS", 2 * len(UNITS) + 1)  # one more than the store has
    store.inventory()
    assert index_files(store) == []
    store.commit(make_results(make_unit(50)))
    store.inventory()
    assert len(index_files(store)) == 1


def test_concurrent_scans_agree(store):
    expected = state_without_index(store)

    def scan_repeatedly():
        return [inventory_state(ShardStore.open(store.root).inventory()) for _ in range(5)]

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(scan_repeatedly) for _ in range(3)]
    assert all(state == expected for future in futures for state in future.result())


def test_scan_ignores_duplicate_index_entries(store):
    store.inventory()
    (path,) = index_files(store)
    shutil.copy(path, path.with_name("0" * 16 + ".index"))
    assert inventory_state(store.inventory()) == state_without_index(store)


@pytest.mark.parametrize("error_number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_scan_supports_read_only_folder(store, monkeypatch, error_number):
    def raise_error(folder, *_args, **_named):
        raise OSError(error_number, os.strerror(error_number))

    expected = state_without_index(store)
    monkeypatch.setattr(Path, "mkdir", raise_error)
    assert inventory_state(store.inventory()) == expected
    monkeypatch.undo()
    assert index_files(store) == []


def test_full_disk_keeps_existing_index(store, monkeypatch):
    store.inventory()
    old_contents = [path.read_bytes() for path in index_files(store)]
    store.commit(make_results(make_unit(50)))

    def write_to_full_disk(path, **_named):
        return atomic_write(path, on_step=_no_space)

    def _no_space(_step):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(index, "atomic_write", write_to_full_disk)
    assert len(store.inventory().shards) == len(UNITS) + 1
    assert [path.read_bytes() for path in index_files(store)] == old_contents
    with pytest.raises(StorageFullError), atomic_write(store.root / "x", on_step=_no_space):
        pass


def test_count_complete_agrees_with_single_evaluations(store):
    rng = np.random.default_rng(0)
    new_units = [make_unit(architecture, key="aa_square", strengths=(1.0, 2.0, 4.0)) for architecture in range(12)]
    for unit in new_units:
        for strength in unit.strengths:
            for start, stop in ((0, 10), (10, 30), (0, 30), (5, 30)):
                if rng.random() < 0.4:
                    measurements = DEFAULT_MEASUREMENTS if rng.random() < 0.7 else ("accuracy", "cm")
                    store.commit(make_results(unit, (strength,), start, stop, measurements))
    inventory = store.inventory()
    complete_counts = set()
    for unit in [*UNITS, *new_units, make_unit(77), make_unit(3, strengths=(4.0, 8.0))]:
        for measurements in (DEFAULT_MEASUREMENTS, ("accuracy",), ("predictions",)):
            complete_strengths = {
                strength for strength in unit.strengths if _has_slices(inventory, unit, strength, measurements)
            }
            assert {
                strength for strength in unit.strengths if inventory.is_complete(unit, strength, measurements)
            } == complete_strengths
            missing_strengths = {
                strength for part in inventory.find_missing_parts(unit, measurements) for strength in part.strengths
            }
            assert missing_strengths == set(unit.strengths) - complete_strengths
            assert inventory.count_complete(unit, measurements) == len(complete_strengths)
            complete_counts.add(len(complete_strengths))
    assert complete_counts == {0, 1, 2, 3}


def _has_slices(inventory, unit, strength, measurements):
    try:
        return bool(inventory.slices(unit, strength, required_columns(measurements)))
    except IncompleteError:
        return False


# A run hashes all shards that are not verified with their current size and modification time


@pytest.fixture
def hashed_names(monkeypatch):
    """Return a list that collects the names of the shards whose bytes are hashed."""
    names = []
    check_hash = ResultsFolder.check_hash
    monkeypatch.setattr(ResultsFolder, "check_hash", lambda *args: names.append(args[1]) or check_hash(*args))
    return names


def make_older(store, seconds=60):
    """Subtract `seconds` from the modification times of all shards."""
    for entry in store.folder.backend.entries():
        time_ns = int((entry.modified - seconds) * 1e9)
        os.utime(store.folder.shards.joinpath(entry.name), ns=(time_ns, time_ns))


def scan_like_run(store, **options):
    """Scan with the options with which a run scans before it starts."""
    return store.inventory(verify="unverified", **{"on_damage": "set_aside"} | options)


def test_run_hashes_unverified_shards(store, hashed_names):
    make_older(store)
    inventory = scan_like_run(store)
    assert sorted(hashed_names) == list(inventory.shards)
    hashed_names.clear()
    assert (
        inventory_state(scan_like_run(ShardStore.open(store.root)))
        == inventory_state(inventory)
        == state_without_index(store)
    )
    assert hashed_names == []
    new_shard = store.commit(make_results(make_unit(50))).shard
    touched_shard = inventory.shards[3]
    os.utime(store.folder.shards.joinpath(touched_shard), ns=(1, 1))  # as if the clock had been set back
    store.inventory()  # does not hash the shards, so they are not verified
    assert hashed_names == []
    scan_like_run(store)
    assert sorted(hashed_names) == sorted([new_shard, touched_shard])
    hashed_names.clear()
    make_older(store)
    scan_like_run(store)
    scan_like_run(store)
    assert len(hashed_names) == len(UNITS) + 1


def test_run_hashes_everything_after_index_damage(store, hashed_names):
    make_older(store)
    scan_like_run(store)
    (path,) = index_files(store)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    hashed_names.clear()
    scan_like_run(store)
    assert len(hashed_names) == len(UNITS)


def test_run_finds_damage_that_changes_modification_time(store):
    make_older(store)
    damaged_shard = scan_like_run(store).shards[5]
    flip_middle_bit(store, damaged_shard, keep_time=False)
    assert store.inventory().damaged == ()
    assert scan_like_run(store).damaged == (damaged_shard,)
    assert damaged_shard not in scan_like_run(store).shards


@pytest.mark.parametrize("command", ["verify", "export", "merge"])
@pytest.mark.parametrize("min_rows", [1, 1000])
def test_run_finds_hidden_damage_after_another_command_found_it(store, monkeypatch, tmp_path, command, min_rows):
    # Hidden damage changes neither the size nor the modification time of a shard.
    make_older(store)
    damaged_shard = scan_like_run(store).shards[5]
    flip_middle_bit(store, damaged_shard, keep_time=True)
    assert scan_like_run(store).damaged == ()
    monkeypatch.setattr(index, "MIN_ROWS", min_rows)
    if command == "verify":
        assert [finding.shard for finding in store.verify()] == [damaged_shard]
    elif command == "export":
        with pytest.raises(ShardDamagedError, match="Run the sweep again"):
            store.inventory(verify="all", on_damage="raise")
    else:
        report = merge_folders([store.root], tmp_path / "target")
        assert [finding.shard for finding in report.findings] == [damaged_shard]
    inventory = scan_like_run(store)
    assert inventory.damaged == (damaged_shard,)
    assert damaged_shard not in inventory.shards


def test_compaction_hashes_even_verified_inputs(store, hashed_names):
    make_older(store)
    damaged_shard = scan_like_run(store).shards[5]
    flip_middle_bit(store, damaged_shard, keep_time=True)
    hashed_names.clear()
    assert store.compact().damaged == (damaged_shard,)
    assert sorted(hashed_names) == sorted([*store.inventory().replaced_shards, damaged_shard])
    assert scan_like_run(store).damaged == (damaged_shard,)
    hashed_names.clear()
    make_older(store)
    (compacted_shard,) = scan_like_run(store).shards
    scan_like_run(store)
    assert hashed_names == [compacted_shard]


def test_run_hashes_only_shards_of_given_networks(store, hashed_names):
    make_older(store)
    networks = {("digits", 3), ("cifar100", 4)}
    inventory = scan_like_run(store, networks=networks, on_damage="report")
    assert inventory_state(inventory) == state_without_index(store)
    assert {network_of(shard) for shard in hashed_names} == {("digits", 3)}
    assert len(hashed_names) == 2
    hashed_names.clear()
    scan_like_run(store, networks=networks)
    assert hashed_names == []
    scan_like_run(store)
    assert len(hashed_names) == len(UNITS) - 2


def test_verified_index_entry_is_preferred_to_unverified_entry(store, hashed_names):
    make_older(store)
    other_index = store.root / "other-index"
    store.inventory()
    store.folder.index.rename(other_index)
    scan_like_run(store)
    for number, path in enumerate(other_index.iterdir()):
        shutil.copy(path, store.folder.index / f"{number:016x}.index")  # sorted before the other file
    store.commit(make_results(make_unit(50)))
    store.inventory()
    hashed_names.clear()
    scan_like_run(store)
    assert len(hashed_names) == 1


def test_sweep_resumes_after_export_found_hidden_damage(make_sweep, monkeypatch, hashed_names):
    monkeypatch.setattr(index, "MIN_ROWS", 1000)
    config = make_sweep()
    run_sweep(config, make_executor)
    store = ShardStore.open(config.results)
    make_older(store)
    monkeypatch.setattr(index, "MIN_ROWS", 1)
    hashed_names.clear()
    previews = []
    for _ in range(2):
        run_sweep(config, make_executor, on_preview=previews.append)
    assert sorted(hashed_names) == list(store.inventory().shards)  # each shard once, in the first run
    damaged_shard = store.inventory().shards[0]
    flip_middle_bit(store, damaged_shard, keep_time=True)
    run_sweep(config, make_executor, on_preview=previews.append)
    assert (previews[-1].missing, previews[-1].damaged) == ((), ())
    with pytest.raises(ShardDamagedError, match="Run the sweep again"):
        store.inventory(verify="all", on_damage="raise")
    tally = run_sweep(config, make_executor, on_preview=previews.append)
    assert len(previews[-1].damaged) == 1
    assert tally.results > 0
    assert store.inventory(verify="all").shards == store.inventory().shards
    assert store.verify() == []
