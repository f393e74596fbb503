"""What a resume hashes: shards that were not found right before at their present size and time of change."""

import errno
import os
import shutil

import pytest

from robust201.core.errors import ShardDamagedError
from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import run_sweep
from robust201.shards import ShardStore, index, merge_folders
from robust201.shards import backends as places
from robust201.shards.folder import ResultsFolder, network_of
from tests.support.shard_support import (
    INDEXED_UNITS,
    cold_facts,
    facts_of,
    flip_middle_bit,
    index_files,
    make_indexed_store,
    make_results,
    make_unit,
)

UNITS = INDEXED_UNITS


@pytest.fixture(autouse=True)
def write_always(monkeypatch):
    monkeypatch.setattr(index, "MIN_ROWS", 1)


@pytest.fixture
def store(tmp_path):
    return make_indexed_store(tmp_path / "results")


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
    hashed.clear()
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


def test_a_sweep_resumes_after_an_export_that_met_hidden_damage(make_sweep, monkeypatch):
    monkeypatch.setattr(index, "MIN_ROWS", 1000)
    config = make_sweep()
    run_sweep(config, make_executor)
    store = ShardStore.open(config.results)
    age(store)
    monkeypatch.setattr(index, "MIN_ROWS", 1)
    hashed = []
    real = ResultsFolder.check_hash
    monkeypatch.setattr(ResultsFolder, "check_hash", lambda *args: hashed.append(args[1]) or real(*args))
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
