"""The index of shards: a scan returns the same inventory with and without an index, after any change of either."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import IncompleteError, ShardDamagedError
from robust201.shards import ShardStore, index, merge_folders, scan
from robust201.shards.inventory import required_columns
from tests.support.shard_support import (
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
            are_complete = [inventory.are_complete([unit], strength, measurements) for strength in unit.strengths]
            assert are_complete == [[strength in complete_strengths] for strength in unit.strengths]
            complete_counts.add(len(complete_strengths))
    assert complete_counts == {0, 1, 2, 3}


def _has_slices(inventory, unit, strength, measurements):
    try:
        return bool(inventory.slices(unit, strength, required_columns(measurements)))
    except IncompleteError:
        return False


def make_older(store, seconds=60):
    """Subtract `seconds` from the modification times of all shards."""
    for entry in store.folder.backend.entries():
        time_ns = int((entry.modified - seconds) * 1e9)
        os.utime(store.folder.shards.joinpath(entry.name), ns=(time_ns, time_ns))


def scan_like_run(store, **options):
    """Scan with the options with which a run scans before it starts."""
    return store.inventory(verify="unverified", **{"on_damage": "set_aside"} | options)


@pytest.mark.parametrize("command", ["verify", "export", "merge"])
def test_run_finds_hidden_damage_after_another_command_found_it(store, monkeypatch, tmp_path, command):
    # Hidden damage changes neither the size nor the modification time of a shard.
    make_older(store)
    damaged_shard = scan_like_run(store).shards[5]
    flip_middle_bit(store, damaged_shard, keep_time=True)
    assert scan_like_run(store).damaged == ()
    monkeypatch.setattr(index, "MIN_ROWS", 1000)
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
