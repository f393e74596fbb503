"""Inventory queries for many units at once agree with queries for single units."""

from pathlib import Path

import pytest

from robust201.shards import ShardStore
from tests.support.shard_support import make_results, make_unit

COMPLETE, FIRST_STRENGTH, FIRST_HALF, ACCURACY_ONLY, BOTH_HALVES, ABSENT = UNITS = [
    make_unit(index) for index in range(6)
]


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    """Return a store with complete and incomplete units; `ABSENT` is not in it."""
    store = ShardStore.create(tmp_path / "results")
    for results in (
        make_results(COMPLETE),
        make_results(FIRST_STRENGTH, strengths=(1.0,)),
        make_results(FIRST_HALF, stop=15),
        make_results(ACCURACY_ONLY, measurements=("accuracy",)),
        make_results(BOTH_HALVES, stop=15),
        make_results(BOTH_HALVES, start=15),
    ):
        store.commit(results)
    return store


def test_are_complete_reports_units_complete_at_a_strength(store: ShardStore) -> None:
    inventory = store.inventory()
    assert inventory.are_complete(UNITS, 1.0, ("accuracy",)) == [True, True, False, True, True, False]
    assert inventory.are_complete(UNITS, 4.0, ("accuracy",)) == [True, False, False, True, True, False]
    assert inventory.are_complete(UNITS, 1.0, ("accuracy", "confidence")) == [True, True, False, False, True, False]
    assert inventory.are_complete(UNITS, 2.0, ("accuracy",)) == [False] * len(UNITS)


def test_are_complete_follows_order_of_units(store: ShardStore) -> None:
    inventory = store.inventory()
    assert inventory.are_complete([ABSENT, COMPLETE, FIRST_HALF, COMPLETE], 1.0, ("accuracy",)) == [
        False,
        True,
        False,
        True,
    ]
    assert inventory.are_complete([ABSENT], 1.0, ("accuracy",)) == [False]
    assert inventory.are_complete([], 1.0, ("accuracy",)) == []


def test_are_complete_agrees_with_single_units(store: ShardStore) -> None:
    inventory = store.inventory()
    for strength in (1.0, 4.0):
        for measurements in (("accuracy",), ("accuracy", "confidence")):
            expected = [inventory.is_complete(unit, strength, measurements) for unit in UNITS]
            assert inventory.are_complete(UNITS, strength, measurements) == expected


def test_are_complete_is_false_for_empty_store(tmp_path: Path) -> None:
    assert ShardStore.create(tmp_path).inventory().are_complete(UNITS, 1.0, ("accuracy",)) == [False] * len(UNITS)
