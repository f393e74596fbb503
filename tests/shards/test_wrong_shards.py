"""Shards with wrong contents whose names match their hashes. Every reader rejects them, `verify` reports them, and a
run recomputes them."""

import contextlib

import numpy as np
import pyarrow as pa
import pytest

from robust201.core.errors import EvaluationError, RobustError
from robust201.shards import ShardStore, merge_folders, requeue_shards
from robust201.shards.parquet import ShardFile, copy_row_values
from robust201.shards.row_checks import find_suspects
from robust201.tasks.measurements import check_values
from tests.support.shard_support import ALL_MEASUREMENTS, DEFAULT_MEASUREMENTS, make_results, make_unit, whole_part
from tests.support.wrong_shards import (
    INVALID_FOOTERS,
    INVALID_TABLES,
    rewrite_shard,
    with_column,
)

DAMAGED_UNIT, INTACT_UNIT = make_unit(3), make_unit(5)


@pytest.fixture(params=["small", pytest.param("compacted", marks=pytest.mark.slow)])
def store(request, tmp_path):
    """Return a store with two or three units; tests damage `DAMAGED_UNIT`."""
    store = ShardStore.create(tmp_path / "results")
    store.commit(make_results(DAMAGED_UNIT))
    if request.param == "compacted":
        store.commit(make_results(make_unit(4)))
        for _ in range(2):
            store.compact(grace_seconds=0)
    store.commit(make_results(INTACT_UNIT))
    return store


def path_to_damage(store):
    paths = sorted(store.folder.shards.rglob("*.parquet"))
    return next((path for path in paths if path.name.startswith("compact-")), paths[0])


def run_all_readers(store):
    """Run every reader of shards on a folder; readers may only raise errors of robust201."""
    inventory = store.inventory(on_damage="report")
    store.find_receipts([whole_part(DAMAGED_UNIT)], DEFAULT_MEASUREMENTS)
    for run_reader in (
        lambda: store.values(DAMAGED_UNIT, 1.0, inventory, DEFAULT_MEASUREMENTS),
        lambda: list(store.select([DAMAGED_UNIT], inventory, DEFAULT_MEASUREMENTS).iter_values(None)),
        lambda: store.check_rows(inventory),
        lambda: merge_folders([store.root], store.root.with_name("merged")),
        lambda: store.compact(grace_seconds=0),
    ):
        with contextlib.suppress(RobustError):
            run_reader()


def assert_verify_reports_and_requeue_repairs(store):
    findings = store.verify()
    assert findings
    assert requeue_shards(store.folder, findings)
    store.commit(make_results(DAMAGED_UNIT))
    if not store.inventory().is_complete(make_unit(4), 1.0, DEFAULT_MEASUREMENTS):
        store.commit(make_results(make_unit(4)))
    assert store.verify() == []
    inventory = store.inventory(verify="all")
    for unit in (DAMAGED_UNIT, INTACT_UNIT):
        assert inventory.find_missing_parts(unit, DEFAULT_MEASUREMENTS) == ()


@pytest.mark.parametrize("fault", INVALID_TABLES)
def test_wrong_table_is_reported_and_requeued(store, fault):
    path = path_to_damage(store)
    if fault == "a repeated row" and path.name.startswith("compact-"):
        pytest.skip("a compacted shard may repeat equal rows, which count once")
    if fault == "a missing row" and path.name.startswith("compact-"):
        pytest.skip("the result is a valid compacted shard")
    rewrite_shard(path, INVALID_TABLES[fault])
    run_all_readers(store)
    assert_verify_reports_and_requeue_repairs(store)


@pytest.mark.parametrize("fault", INVALID_FOOTERS)
def test_wrong_footer_is_reported_and_requeued(tmp_path, fault):
    store = ShardStore.create(tmp_path / "results")
    store.commit(make_results(DAMAGED_UNIT))
    store.commit(make_results(INTACT_UNIT))
    rewrite_shard(path_to_damage(store), change_footer=INVALID_FOOTERS[fault])
    run_all_readers(store)
    assert len(store.inventory(on_damage="report").damaged) == 1
    assert_verify_reports_and_requeue_repairs(store)


@pytest.mark.parametrize("measurements", [DEFAULT_MEASUREMENTS, ALL_MEASUREMENTS, ("accuracy", "cm")])
def test_find_suspects_finds_exactly_the_invalid_rows(tmp_path, measurements):
    # After a random change to a random row, the suspects are exactly the rows that `check_values` rejects.
    store = ShardStore.create(tmp_path / "results")
    unit = make_unit(strengths=tuple(map(float, range(1, 9))))
    shard = store.commit(make_results(unit, measurements=measurements)).shard
    file = ShardFile(store.folder.backend, shard)
    table = file.read(0)
    assert not find_suspects(table, file.columns).any()
    rng = np.random.default_rng(0)
    n_invalid = 0
    for _ in range(150):
        name = str(rng.choice(file.columns))
        cells = table[name].to_pylist()
        changed_row = int(rng.integers(8))
        change = rng.choice([0.0, 1.0, -1.0, 1e-9, 1e-3, float("nan")])
        if isinstance(cells[changed_row], list):
            element = int(rng.integers(len(cells[changed_row])))
            is_integer = isinstance(cells[changed_row][element], int)
            cells[changed_row][element] += int(rng.integers(0, 2)) if is_integer else change
        else:
            cells[changed_row] += change
        changed_table = with_column(
            name, lambda original, cells=cells, name=name: pa.array(cells, original.schema.field(name).type)
        )(table)
        suspects = find_suspects(changed_table, file.columns)
        for position in range(8):
            try:
                check_values(copy_row_values(changed_table, position, file.columns), 30)
            except EvaluationError:
                n_invalid += 1
                assert suspects[position], (name, changed_row, change)
            else:
                assert not suspects[position], (name, changed_row, change)
    assert n_invalid > 50


def test_export_rejects_changed_confidence_with_valid_hash(robust201, finished_results, tmp_path):
    # The shard's name matches its hash, so only its rows reveal the damage.
    path = sorted((finished_results / "shards").rglob("*.parquet"))[0]
    assert robust201("export", finished_results, "--out", tmp_path / "before").code == 0

    def halve(table):
        arrow_type = table.schema.field("confidence_label").type
        cells = table["confidence_label"].to_pylist()
        cells[0][0] /= 2
        return pa.array(cells, arrow_type)

    rewrite_shard(path, with_column("confidence_label", halve))
    error_line = robust201("export", finished_results, "--out", tmp_path / "after").error_line(4)
    assert "rows of confidence_label to sum to 1" in error_line
    assert "robust201 verify" in error_line
    assert not (tmp_path / "after" / "SHA256SUMS").exists()
    assert robust201("verify", finished_results, "--requeue").code == 3


def test_verify_reports_zero_matrix_without_warning(tmp_path):
    store = ShardStore.create(tmp_path / "results")
    store.commit(make_results(DAMAGED_UNIT))
    rewrite_shard(path_to_damage(store), with_column("cm", _make_zero_matrices))
    assert store.verify()


def _make_zero_matrices(table: pa.Table) -> pa.Array:
    return pa.array([[0] * len(cells) for cells in table["cm"].to_pylist()], table.schema.field("cm").type)
