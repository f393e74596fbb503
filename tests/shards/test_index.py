"""The index of the shards: always what a cold scan finds, whatever happened to its files or to the shards; and what
resumes hash."""

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
from robust201.shards import backends as places
from robust201.shards.folder import ResultsFolder, network_of
from robust201.shards.inventory import required_columns
from tests.support.shard_support import (
    ALL,
    DEFAULT,
    cold_facts,
    facts_of,
    flip_middle_bit,
    make_results,
    make_unit,
)

UNITS = [make_unit(architecture, key=key) for key in ("pgd", "fgsm") for architecture in range(8)]


@pytest.fixture(autouse=True)
def write_always(monkeypatch):
    monkeypatch.setattr(index, "MIN_ROWS", 1)


@pytest.fixture
def store(tmp_path):
    """A store of one shard a unit."""
    store = ShardStore.create(tmp_path / "results")
    for unit in UNITS:
        store.commit(make_results(unit))
    return store


def index_files(store):
    return sorted(store.folder.index.glob("*.index"))


@pytest.fixture
def read(monkeypatch):
    """Names of the shards that scans read."""
    names = []
    real = scan.read_footer
    monkeypatch.setattr(scan, "read_footer", lambda backend, entry: names.append(entry.name) or real(backend, entry))
    return names


def test_a_second_scan_reads_nothing(store, read):
    first = facts_of(store.inventory())
    assert len(read) == len(UNITS)
    read.clear()
    assert facts_of(store.inventory()) == first
    assert facts_of(ShardStore.open(store.root).inventory()) == first
    assert read == []


def test_only_what_is_new_or_changed_is_read(store, read):
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
    found = store.inventory(on_damage="report")
    assert found.damaged == (changed,)
    assert facts_of(found) == cold_facts(store)


def test_what_vanishes_drops_out(store):
    shard = store.inventory().shards[0]
    store.folder.shards.joinpath(shard).unlink()
    found = facts_of(store.inventory())
    assert shard not in found[0]
    assert found == cold_facts(store)


def test_a_compacted_folder_is_indexed_as_it_stands(store, read):
    store.compact()
    store.commit(make_results(make_unit(50), measurements=ALL))
    found = facts_of(store.inventory())
    assert len(found[0]) == 2
    assert len(found[-1]) == len(UNITS)
    read.clear()
    assert facts_of(store.inventory()) == found == cold_facts(store)
    assert len(read) == 2  # by the cold scan


def test_a_damaged_compacted_shard_gives_way_to_its_inputs_despite_the_index(store):
    inputs = store.inventory().shards
    store.compact()
    (compacted,) = store.inventory().shards
    path = store.folder.shards.joinpath(compacted)
    path.write_bytes(path.read_bytes()[:-20] + b"\0" * 20)
    found = store.inventory(on_damage="report")
    assert found.shards == inputs
    assert facts_of(found) == cold_facts(store)


@pytest.fixture(scope="module")
def small_store(tmp_path_factory):
    store = ShardStore.create(tmp_path_factory.mktemp("indexed") / "results")
    for unit in UNITS[:3]:
        store.commit(make_results(unit))
    return store


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_index_is_as_good_as_none(small_store, data):
    store = small_store
    store.inventory()
    expected = cold_facts(store)
    (path,) = index_files(store)
    sound = path.read_bytes()
    kind = data.draw(st.sampled_from(["flip", "cut", "foreign"]))
    if kind == "flip":
        content = bytearray(sound)
        bit = data.draw(st.integers(0, 8 * len(sound) - 1))
        content[bit // 8] ^= 1 << bit % 8
    elif kind == "cut":
        content = sound[: data.draw(st.integers(0, len(sound) - 1))]
    else:
        content = sound.replace(b"index 1", b"index 2", 1)
    path.write_bytes(content)
    assert facts_of(store.inventory()) == expected
    # It was written anew, and the damaged file is gone.
    assert [path.read_bytes() for path in index_files(store)] == [sound]


def test_a_whole_index_of_another_form_is_ignored(store, monkeypatch):
    expected = facts_of(store.inventory())
    monkeypatch.setattr(index, "SCHEMA", index.SCHEMA.append(index.SCHEMA.field("mark").with_name("more")))
    assert index._read(index_files(store)[0]).num_rows == 0
    monkeypatch.undo()
    assert facts_of(store.inventory()) == expected


def test_few_files_grow_together(store, monkeypatch):
    sizes = []
    for architecture in range(100, 140):
        store.commit(make_results(make_unit(architecture)))
        store.inventory()
        sizes.append(len(index_files(store)))
    assert max(sizes) <= 7  # about the logarithm of the number of scans
    assert facts_of(store.inventory()) == cold_facts(store)


def test_little_that_is_new_is_not_written_down(store, monkeypatch):
    monkeypatch.setattr(index, "MIN_ROWS", 33)
    store.inventory()
    assert index_files(store) == []
    store.commit(make_results(make_unit(50)))
    store.inventory()
    assert len(index_files(store)) == 1


def test_several_processes_may_write_at_once(store):
    expected = cold_facts(store)

    def work():
        return [facts_of(ShardStore.open(store.root).inventory()) for _ in range(5)]

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(work) for _ in range(3)]
    assert all(one == expected for future in working for one in future.result())


def test_entries_that_two_processes_wrote_count_once(store):
    store.inventory()
    (path,) = index_files(store)
    shutil.copy(path, path.with_name("0" * 16 + ".index"))
    assert facts_of(store.inventory()) == cold_facts(store)


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_read_all_the_same(store, monkeypatch, error):
    def refuse(folder, *_args, **_named):
        raise OSError(error, os.strerror(error))

    expected = cold_facts(store)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert facts_of(store.inventory()) == expected
    monkeypatch.undo()
    assert index_files(store) == []


def test_a_full_device_keeps_the_index_that_there_was(store, monkeypatch):
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


def test_complete_evaluations_are_counted_as_they_are_found_one_by_one(store):
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


# What a resume hashes: shards that were not found right before at their present size and time of change


@pytest.fixture
def hashed(monkeypatch):
    """Names of the shards whose bytes were hashed."""
    names = []
    real = ResultsFolder.check_hash
    monkeypatch.setattr(ResultsFolder, "check_hash", lambda *args: names.append(args[1]) or real(*args))
    return names


def age(store, seconds=60):
    """Let all shards have been written some time ago."""
    for entry in store.folder.backend.entries():
        then = int((entry.modified - seconds) * 1e9)
        os.utime(store.folder.shards.joinpath(entry.name), ns=(then, then))


def resume(store, **options):
    return store.inventory(verify="unverified", **{"on_damage": "set_aside"} | options)


def test_a_resume_hashes_what_was_not_hashed_before(store, hashed):
    age(store)
    first = resume(store)
    assert sorted(hashed) == list(first.shards)
    hashed.clear()
    assert facts_of(resume(ShardStore.open(store.root))) == facts_of(first) == cold_facts(store)
    assert hashed == []
    more = store.commit(make_results(make_unit(50))).shard
    touched = first.shards[3]
    os.utime(store.folder.shards.joinpath(touched), ns=(1, 1))  # as by a clock that was set back
    store.inventory()  # what was read without being hashed is not verified
    assert hashed == []
    resume(store)
    assert sorted(hashed) == sorted([more, touched])
    hashed.clear()
    age(store)
    resume(store)
    resume(store)
    assert len(hashed) == len(UNITS) + 1


def test_a_shard_written_seconds_before_it_is_hashed_is_hashed_again(store, hashed):
    for _ in range(2):
        hashed.clear()
        resume(store)
        assert len(hashed) == len(UNITS)
    age(store, -3600)  # by a clock that was set back since
    for _ in range(2):
        hashed.clear()
        resume(store)
        assert len(hashed) == len(UNITS)


def test_where_the_clock_cannot_be_asked_nothing_counts_as_verified(store, hashed, monkeypatch):
    age(store)

    def refuse(**_named):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(places.tempfile, "TemporaryFile", refuse)
    for _ in range(2):
        hashed.clear()
        resume(store)
        assert len(hashed) == len(UNITS)


def test_a_damaged_index_has_everything_hashed_again(store, hashed):
    age(store)
    resume(store)
    (path,) = index_files(store)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    hashed.clear()
    resume(store)
    assert len(hashed) == len(UNITS)


def test_a_flipped_byte_is_found_by_a_resume_if_the_time_of_change_shows_it(store):
    age(store)
    victim = resume(store).shards[5]
    flip_middle_bit(store, victim, keep_time=False)
    assert store.inventory().damaged == ()
    assert resume(store).damaged == (victim,)
    assert victim not in resume(store).shards


@pytest.mark.parametrize("finds", ["verify", "export", "merge"])
@pytest.mark.parametrize("min_rows", [1, 1000])
def test_damage_that_no_time_shows_is_found_by_others_and_by_every_resume_after_that(
    store, monkeypatch, tmp_path, finds, min_rows
):
    age(store)
    victim = resume(store).shards[5]
    flip_middle_bit(store, victim, keep_time=True)
    assert resume(store).damaged == ()
    monkeypatch.setattr(index, "MIN_ROWS", min_rows)
    if finds == "verify":
        assert [finding.shard for finding in store.verify()] == [victim]
    elif finds == "export":
        with pytest.raises(ShardDamagedError, match="Run the sweep again"):
            store.inventory(verify="all", on_damage="raise")
    else:
        report = merge_folders([store.root], tmp_path / "target")
        assert [finding.shard for finding in report.conflicts] == [victim]
    found = resume(store)
    assert found.damaged == (victim,)
    assert victim not in found.shards


def test_compaction_hashes_verified_inputs_too(store, hashed):
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


def test_a_share_hashes_the_shards_of_its_own_networks(store, hashed):
    age(store)
    mine = {("digits", 3), ("cifar100", 4)}
    found = resume(store, networks=mine, on_damage="report")
    assert facts_of(found) == cold_facts(store)
    assert {network_of(shard) for shard in hashed} == {("digits", 3)}
    assert len(hashed) == 2
    hashed.clear()
    resume(store, networks=mine)
    assert hashed == []
    resume(store)
    assert len(hashed) == len(UNITS) - 2


def test_what_one_scan_verified_is_not_lost_to_another_that_only_read(store, hashed):
    age(store)
    seen = store.root / "seen"
    store.inventory()
    store.folder.index.rename(seen)
    resume(store)
    for number, path in enumerate(seen.iterdir()):
        shutil.copy(path, store.folder.index / f"{number:016x}.index")  # sorts before the other
    store.commit(make_results(make_unit(50)))
    store.inventory()
    hashed.clear()
    resume(store)
    assert len(hashed) == 1


def test_a_sweep_resumes_after_an_export_that_met_hidden_damage(make_sweep, monkeypatch, hashed):
    monkeypatch.setattr(index, "MIN_ROWS", 1000)
    config = make_sweep()
    run_sweep(config, make_executor)
    store = ShardStore.open(config.results)
    age(store)
    monkeypatch.setattr(index, "MIN_ROWS", 1)
    hashed.clear()
    seen = []
    for _ in range(2):
        run_sweep(config, make_executor, on_preview=seen.append)
    assert sorted(hashed) == list(store.inventory().shards)  # once, by the first of the two
    victim = store.inventory().shards[0]
    flip_middle_bit(store, victim, keep_time=True)
    run_sweep(config, make_executor, on_preview=seen.append)
    assert (seen[-1].missing, seen[-1].damaged) == ((), ())
    with pytest.raises(ShardDamagedError, match="Run the sweep again"):
        store.inventory(verify="all", on_damage="raise")
    tally = run_sweep(config, make_executor, on_preview=seen.append)
    assert len(seen[-1].damaged) == 1
    assert tally.evaluations > 0
    assert store.inventory(verify="all").shards == store.inventory().shards
    assert store.verify() == []
