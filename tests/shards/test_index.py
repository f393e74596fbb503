"""The index of the shards: always what a cold scan finds, whatever happened to its files or to the shards."""

import errno
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import IncompleteError, StorageFullError
from robust201.core.files import atomic_write
from robust201.shards import ShardStore, index, scan
from robust201.shards.inventory import required_columns
from tests.support.shard_support import (
    ALL,
    DEFAULT,
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


def test_verifying_scans_trust_no_index(store):
    victim = store.inventory().shards[0]
    flip_middle_bit(store, victim, keep_time=True)  # damage that leaves no trace in a listing
    assert store.inventory(verify="all", on_damage="report").damaged == (victim,)
    assert store.inventory(verify="all", on_damage="set_aside").damaged == (victim,)
    assert victim not in store.inventory().shards


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


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_index_is_as_good_as_none(tmp_path_factory, data):
    store = _indexed(tmp_path_factory)
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


_made: list[ShardStore] = []


def _indexed(tmp_path_factory):
    """One small folder with an index, made once."""
    if not _made:
        _made.append(ShardStore.create(tmp_path_factory.mktemp("indexed") / "results"))
        for unit in UNITS[:3]:
            _made[0].commit(make_results(unit))
    _made[0].inventory()
    return _made[0]


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
    found, failures = [], []

    def work():
        try:
            for _ in range(5):
                found.append(facts_of(ShardStore.open(store.root).inventory()))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all(one == expected for one in found)


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
