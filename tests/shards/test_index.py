"""The index of shards always gives the result of a cold scan, whatever happened to its files or the shards; and the
shards that a resume hashes."""

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
from robust201.shards import ShardStore, backends, index, merge_folders, scan
from robust201.shards.folder import ResultsFolder, network_of
from robust201.shards.inventory import required_columns
from tests.support.shard_support import (
    ALL,
    DEFAULT,
    flip_middle_bit,
    inventory_state,
    make_results,
    make_unit,
    state_without_index,
)

UNITS = [make_unit(architecture, key=key) for key in ("pgd", "fgsm") for architecture in range(8)]


@pytest.fixture(autouse=True)
def write_small_index(monkeypatch):
    monkeypatch.setattr(index, "MIN_ROWS", 1)


@pytest.fixture
def store(tmp_path):
    """A store with one shard per unit."""
    store = ShardStore.create(tmp_path / "results")
    for unit in UNITS:
        store.commit(make_results(unit))
    return store


def index_files(store):
    return sorted(store.folder.index.glob("*.index"))


@pytest.fixture
def read(monkeypatch):
    """Names of the shards that were read by scans."""
    names = []
    real = scan.read_footer
    monkeypatch.setattr(scan, "read_footer", lambda backend, entry: names.append(entry.name) or real(backend, entry))
    return names


def test_second_scan_reads_nothing(store, read):
    first = inventory_state(store.inventory())
    assert len(read) == len(UNITS)
    read.clear()
    assert inventory_state(store.inventory()) == first
    assert inventory_state(ShardStore.open(store.root).inventory()) == first
    assert read == []


def test_scan_reads_only_new_and_changed_shards(store, read):
    store.inventory()
    read.clear()
    more = store.commit(make_results(make_unit(50))).shard
    changed = store.inventory().shards[3]
    assert read == [more]
    read.clear()
    os.utime(store.folder.shards.joinpath(changed), ns=(1, 1))
    store.inventory()
    assert read == [changed]
    path = store.folder.shards.joinpath(changed)
    path.write_bytes(path.read_bytes()[:-1])
    result = store.inventory(on_damage="report")
    assert result.damaged == (changed,)
    assert inventory_state(result) == state_without_index(store)


def test_scan_drops_deleted_shards(store):
    shard = store.inventory().shards[0]
    store.folder.shards.joinpath(shard).unlink()
    result = inventory_state(store.inventory())
    assert shard not in result[0]
    assert result == state_without_index(store)


def test_index_supports_compacted_folder(store, read):
    store.compact()
    store.commit(make_results(make_unit(50), measurements=ALL))
    result = inventory_state(store.inventory())
    assert len(result[0]) == 2
    assert len(result[-1]) == len(UNITS)
    read.clear()
    assert inventory_state(store.inventory()) == result == state_without_index(store)
    assert len(read) == 2  # in the cold scan


def test_inputs_replace_damaged_compacted_shard_despite_index(store):
    inputs = store.inventory().shards
    store.compact()
    (compacted,) = store.inventory().shards
    path = store.folder.shards.joinpath(compacted)
    path.write_bytes(path.read_bytes()[:-20] + b"\0" * 20)
    result = store.inventory(on_damage="report")
    assert result.shards == inputs
    assert inventory_state(result) == state_without_index(store)


@pytest.fixture(scope="module")
def small_store(tmp_path_factory):
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
    damage = data.draw(st.sampled_from(["flip", "cut", "foreign"]))
    if damage == "flip":
        content = bytearray(original)
        bit = data.draw(st.integers(0, 8 * len(original) - 1))
        content[bit // 8] ^= 1 << bit % 8
    elif damage == "cut":
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
    assert index._read(index_files(store)[0]).num_rows == 0
    monkeypatch.undo()
    assert inventory_state(store.inventory()) == expected


def test_number_of_index_files_stays_small(store, monkeypatch):
    sizes = []
    for architecture in range(100, 140):
        store.commit(make_results(make_unit(architecture)))
        store.inventory()
        sizes.append(len(index_files(store)))
    assert max(sizes) <= 7  # approximately the logarithm of the number of scans
    assert inventory_state(store.inventory()) == state_without_index(store)


def test_few_new_rows_are_not_written(store, monkeypatch):
    monkeypatch.setattr(index, "MIN_ROWS", 33)
    store.inventory()
    assert index_files(store) == []
    store.commit(make_results(make_unit(50)))
    store.inventory()
    assert len(index_files(store)) == 1


def test_concurrent_writers_are_supported(store):
    expected = state_without_index(store)

    def work():
        return [inventory_state(ShardStore.open(store.root).inventory()) for _ in range(5)]

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(work) for _ in range(3)]
    assert all(state == expected for future in futures for state in future.result())


def test_duplicate_entries_count_once(store):
    store.inventory()
    (path,) = index_files(store)
    shutil.copy(path, path.with_name("0" * 16 + ".index"))
    assert inventory_state(store.inventory()) == state_without_index(store)


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_scan_supports_read_only_folder(store, monkeypatch, error):
    def raise_error(folder, *_args, **_named):
        raise OSError(error, os.strerror(error))

    expected = state_without_index(store)
    monkeypatch.setattr(Path, "mkdir", raise_error)
    assert inventory_state(store.inventory()) == expected
    monkeypatch.undo()
    assert index_files(store) == []


def test_full_disk_keeps_existing_index(store, monkeypatch):
    store.inventory()
    before = [path.read_bytes() for path in index_files(store)]
    store.commit(make_results(make_unit(50)))

    def fail(path, **_named):
        return atomic_write(path, on_step=_no_space)

    def _no_space(_step):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(index, "atomic_write", fail)
    assert len(store.inventory().shards) == len(UNITS) + 1
    assert [path.read_bytes() for path in index_files(store)] == before
    with pytest.raises(StorageFullError), atomic_write(store.root / "x", on_step=_no_space):
        pass


def test_count_complete_agrees_with_single_evaluations(store):
    draws = np.random.default_rng(0)
    more = [make_unit(architecture, key="aa_square", strengths=(1.0, 2.0, 4.0)) for architecture in range(12)]
    for unit in more:
        for strength in unit.strengths:
            for start, stop in ((0, 10), (10, 30), (0, 30), (5, 30)):
                if draws.random() < 0.4:
                    measurements = DEFAULT if draws.random() < 0.7 else ("accuracy", "cm")
                    store.commit(make_results(unit, (strength,), start, stop, measurements))
    inventory = store.inventory()
    counts = set()
    for unit in [*UNITS, *more, make_unit(77), make_unit(3, strengths=(4.0, 8.0))]:
        for measurements in (DEFAULT, ("accuracy",), ("predictions",)):
            done = {s for s in unit.strengths if _can_be_read(inventory, unit, s, measurements)}
            assert {s for s in unit.strengths if inventory.is_complete(unit, s, measurements)} == done
            missing = {s for part in inventory.missing(unit, measurements) for s in part.strengths}
            assert missing == set(unit.strengths) - done
            assert inventory.count_complete(unit, measurements) == len(done)
            counts.add(len(done))
    assert counts == {0, 1, 2, 3}


def _can_be_read(inventory, unit, strength, measurements):
    try:
        return bool(inventory.slices(unit, strength, required_columns(measurements)))
    except IncompleteError:
        return False


# Hashing by a resume: all shards that were not verified with their current size and modification time


@pytest.fixture
def hashed(monkeypatch):
    """Names of the shards whose bytes were hashed."""
    names = []
    real = ResultsFolder.check_hash
    monkeypatch.setattr(ResultsFolder, "check_hash", lambda *args: names.append(args[1]) or real(*args))
    return names


def age(store, seconds=60):
    """Set the modification times of all shards back."""
    for entry in store.folder.backend.entries():
        then = int((entry.modified - seconds) * 1e9)
        os.utime(store.folder.shards.joinpath(entry.name), ns=(then, then))


def resume(store, **options):
    return store.inventory(verify="unverified", **{"on_damage": "set_aside"} | options)


def test_resume_hashes_unverified_shards(store, hashed):
    age(store)
    first = resume(store)
    assert sorted(hashed) == list(first.shards)
    hashed.clear()
    assert inventory_state(resume(ShardStore.open(store.root))) == inventory_state(first) == state_without_index(store)
    assert hashed == []
    more = store.commit(make_results(make_unit(50))).shard
    touched = first.shards[3]
    os.utime(store.folder.shards.joinpath(touched), ns=(1, 1))  # as with a clock that was set back
    store.inventory()  # reads without hashing, so nothing is verified
    assert hashed == []
    resume(store)
    assert sorted(hashed) == sorted([more, touched])
    hashed.clear()
    age(store)
    resume(store)
    resume(store)
    assert len(hashed) == len(UNITS) + 1


def test_recently_written_shard_is_hashed_again(store, hashed):
    for _ in range(2):
        hashed.clear()
        resume(store)
        assert len(hashed) == len(UNITS)
    age(store, -3600)  # as if the clock was set back afterwards
    for _ in range(2):
        hashed.clear()
        resume(store)
        assert len(hashed) == len(UNITS)


def test_nothing_is_verified_if_clock_is_unavailable(store, hashed, monkeypatch):
    age(store)

    def raise_error(**_named):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(backends.tempfile, "TemporaryFile", raise_error)
    for _ in range(2):
        hashed.clear()
        resume(store)
        assert len(hashed) == len(UNITS)


def test_resume_hashes_everything_after_index_damage(store, hashed):
    age(store)
    resume(store)
    (path,) = index_files(store)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    hashed.clear()
    resume(store)
    assert len(hashed) == len(UNITS)


def test_resume_finds_damage_that_changes_modification_time(store):
    age(store)
    victim = resume(store).shards[5]
    flip_middle_bit(store, victim, keep_time=False)
    assert store.inventory().damaged == ()
    assert resume(store).damaged == (victim,)
    assert victim not in resume(store).shards


@pytest.mark.parametrize("detector", ["verify", "export", "merge"])
@pytest.mark.parametrize("min_rows", [1, 1000])
def test_hidden_damage_is_found_by_verify_export_and_merge_and_later_resumes(
    store, monkeypatch, tmp_path, detector, min_rows
):
    age(store)
    victim = resume(store).shards[5]
    flip_middle_bit(store, victim, keep_time=True)
    assert resume(store).damaged == ()
    monkeypatch.setattr(index, "MIN_ROWS", min_rows)
    if detector == "verify":
        assert [finding.shard for finding in store.verify()] == [victim]
    elif detector == "export":
        with pytest.raises(ShardDamagedError, match="Run the sweep again"):
            store.inventory(verify="all", on_damage="raise")
    else:
        report = merge_folders([store.root], tmp_path / "target")
        assert [finding.shard for finding in report.conflicts] == [victim]
    result = resume(store)
    assert result.damaged == (victim,)
    assert victim not in result.shards


def test_compaction_hashes_verified_inputs(store, hashed):
    age(store)
    victim = resume(store).shards[5]
    flip_middle_bit(store, victim, keep_time=True)
    hashed.clear()
    assert store.compact().damaged == (victim,)
    assert sorted(hashed) == sorted([*store.inventory().superseded, victim])
    assert resume(store).damaged == (victim,)
    hashed.clear()
    age(store)
    (compacted,) = resume(store).shards
    resume(store)
    assert hashed == [compacted]


def test_resume_hashes_only_shards_of_given_networks(store, hashed):
    age(store)
    networks = {("digits", 3), ("cifar100", 4)}
    result = resume(store, networks=networks, on_damage="report")
    assert inventory_state(result) == state_without_index(store)
    assert {network_of(shard) for shard in hashed} == {("digits", 3)}
    assert len(hashed) == 2
    hashed.clear()
    resume(store, networks=networks)
    assert hashed == []
    resume(store)
    assert len(hashed) == len(UNITS) - 2


def test_verified_entry_is_preferred_to_unverified_one(store, hashed):
    age(store)
    other_index = store.root / "other-index"
    store.inventory()
    store.folder.index.rename(other_index)
    resume(store)
    for number, path in enumerate(other_index.iterdir()):
        shutil.copy(path, store.folder.index / f"{number:016x}.index")  # sorted before the other file
    store.commit(make_results(make_unit(50)))
    store.inventory()
    hashed.clear()
    resume(store)
    assert len(hashed) == 1


def test_sweep_resumes_after_export_found_hidden_damage(make_sweep, monkeypatch, hashed):
    monkeypatch.setattr(index, "MIN_ROWS", 1000)
    config = make_sweep()
    run_sweep(config, make_executor)
    store = ShardStore.open(config.results)
    age(store)
    monkeypatch.setattr(index, "MIN_ROWS", 1)
    hashed.clear()
    previews = []
    for _ in range(2):
        run_sweep(config, make_executor, on_preview=previews.append)
    assert sorted(hashed) == list(store.inventory().shards)  # once, in the first run
    victim = store.inventory().shards[0]
    flip_middle_bit(store, victim, keep_time=True)
    run_sweep(config, make_executor, on_preview=previews.append)
    assert (previews[-1].missing, previews[-1].damaged) == ((), ())
    with pytest.raises(ShardDamagedError, match="Run the sweep again"):
        store.inventory(verify="all", on_damage="raise")
    tally = run_sweep(config, make_executor, on_preview=previews.append)
    assert len(previews[-1].damaged) == 1
    assert tally.evaluations > 0
    assert store.inventory(verify="all").shards == store.inventory().shards
    assert store.verify() == []
