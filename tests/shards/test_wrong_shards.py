"""Shards with wrong contents under names that match their hashes: rejected by every reader, reported, and
recomputed."""

import contextlib
import resource

import numpy as np
import pyarrow as pa
import pytest

from robust201.core.errors import EvaluationError, RobustError, ShardDamagedError, StorageError
from robust201.core.parquet_footer import parse_row_groups
from robust201.shards import ShardStore, merge_folders, requeue_shards
from robust201.shards.parquet import ShardFile, row_values
from robust201.shards.row_checks import find_suspects
from robust201.tasks.measurements import check_values
from tests.support.shard_support import ALL, DEFAULT, make_results, make_unit, whole
from tests.support.wrong_shards import WRONG_FOOTERS, WRONG_TABLES, name_by_hash, rewrite_shard, with_column

BAD, GOOD = make_unit(3), make_unit(5)


@pytest.fixture(params=["small", pytest.param("compacted", marks=pytest.mark.slow)])
def store(request, tmp_path):
    """A store of two units; tests damage the first."""
    store = ShardStore.create(tmp_path / "results")
    store.commit(make_results(BAD))
    if request.param == "compacted":
        store.commit(make_results(make_unit(4)))
        for _ in range(2):
            store.compact(grace_seconds=0)
    store.commit(make_results(GOOD))
    return store


def damaged_path(store):
    first = sorted(store.folder.shards.rglob("*.parquet"))
    return next((path for path in first if path.name.startswith("compact-")), first[0])


def read_everything(store):
    """Run every reader of shards on a folder; they may only raise robust201's errors."""
    inventory = store.inventory(on_damage="report")
    store.find_receipts([whole(BAD)], DEFAULT)
    for read in (
        lambda: store.values(BAD, 1.0, inventory, DEFAULT),
        lambda: list(store.select([BAD], inventory, DEFAULT).iter_values(None)),
        lambda: store.check_rows(inventory),
        lambda: merge_folders([store.root], store.root.with_name("merged")),
        lambda: store.compact(grace_seconds=0),
    ):
        with contextlib.suppress(RobustError):
            read()


def assert_reported_and_requeued(store):
    findings = store.verify()
    assert findings
    inventory = store.inventory(verify="all", on_damage="report")
    assert requeue_shards(store.folder, inventory, findings)
    store.commit(make_results(BAD))
    if not store.inventory().is_complete(make_unit(4), 1.0, DEFAULT):
        store.commit(make_results(make_unit(4)))
    assert store.verify() == []
    inventory = store.inventory(verify="all")
    for unit in (BAD, GOOD):
        assert inventory.missing(unit, DEFAULT) == ()


@pytest.mark.parametrize("fault", WRONG_TABLES)
def test_wrong_table_is_reported_and_requeued(store, fault):
    path = damaged_path(store)
    if fault == "a repeated row" and path.name.startswith("compact-"):
        pytest.skip("equal rows may be repeated, and count once")
    if fault == "a missing row" and path.name.startswith("compact-"):
        pytest.skip("the result is a valid compacted shard")
    rewrite_shard(path, WRONG_TABLES[fault])
    read_everything(store)
    assert_reported_and_requeued(store)


@pytest.mark.parametrize("fault", WRONG_FOOTERS)
def test_wrong_footer_is_reported_and_requeued(tmp_path, fault):
    store = ShardStore.create(tmp_path / "results")
    store.commit(make_results(BAD))
    store.commit(make_results(GOOD))
    rewrite_shard(damaged_path(store), footer=WRONG_FOOTERS[fault])
    read_everything(store)
    assert len(store.inventory(on_damage="report").damaged) == 1
    assert_reported_and_requeued(store)


def test_shard_file_rejects_value_bomb_before_decoding(tmp_path):
    store = ShardStore.create(tmp_path / "results")
    store.commit(make_results(BAD))
    path = rewrite_shard(damaged_path(store), WRONG_TABLES["forty million values"])
    assert path.stat().st_size < 30_000
    allocated = pa.total_allocated_bytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ShardDamagedError, match="that takes 320,"):
        ShardFile(store.folder.backend, f"digits/{path.name}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + 50_000
    assert pa.total_allocated_bytes() <= allocated + (1 << 20)


def test_damaged_footer_does_not_abort_process(tmp_path):
    """Arrow's view of column chunks aborts the interpreter if a chunk lacks its metadata."""
    store = ShardStore.create(tmp_path / "results")
    store.commit(make_results(BAD))
    path = damaged_path(store)
    original = path.read_bytes()
    length = int.from_bytes(original[-8:-4], "little")
    draws = np.random.default_rng(0)
    n_rejected = 0
    for _ in range(300):
        content = bytearray(original)
        content[-8 - int(draws.integers(1, length))] ^= 1 << int(draws.integers(8))
        path.unlink()
        path = name_by_hash(path, bytes(content))
        try:
            file = ShardFile(store.folder.backend, f"digits/{path.name}")
            file.read(0)
        except StorageError:
            n_rejected += 1
        else:
            file.close()
    assert n_rejected > 50
    with pytest.raises(ValueError, match="damaged"):
        parse_row_groups(b"\x19" * 40)


@pytest.mark.parametrize("measurements", [DEFAULT, ALL, ("accuracy", "cm")])
def test_find_suspects_finds_every_invalid_row(tmp_path, measurements):
    """Random changes of random rows: exactly the rows that `check_values` rejects are suspects."""
    store = ShardStore.create(tmp_path / "results")
    unit = make_unit(strengths=tuple(map(float, range(1, 9))))
    shard = store.commit(make_results(unit, measurements=measurements)).shard
    file = ShardFile(store.folder.backend, shard)
    table = file.read(0)
    suspects, images = find_suspects(table, file.columns)
    assert not suspects.any()
    assert images.tolist() == [[10, 10, 10]] * 8
    draws = np.random.default_rng(0)
    n_wrong = 0
    for _ in range(150):
        name = str(draws.choice(file.columns))
        cells = table[name].to_pylist()
        row = int(draws.integers(8))
        change = draws.choice([0.0, 1.0, -1.0, 1e-9, 1e-3, float("nan")])
        if isinstance(cells[row], list):
            index = int(draws.integers(len(cells[row])))
            whole_number = isinstance(cells[row][index], int)
            cells[row][index] += int(draws.integers(0, 2)) if whole_number else change
        else:
            cells[row] += change
        changed = with_column(name, lambda t, cells=cells, name=name: pa.array(cells, t.schema.field(name).type))(table)
        suspects, _ = find_suspects(changed, file.columns)
        for position in range(8):
            try:
                check_values(row_values(changed, position, file.columns), 30)
            except EvaluationError:
                n_wrong += 1
                assert suspects[position], (name, row, change)
            else:
                assert not suspects[position], (name, row, change)
    assert n_wrong > 50


def test_export_rejects_changed_confidence_with_valid_hash(robust201, finished, tmp_path):
    """The shard's name matches its hash, so only its rows show the damage."""
    path = sorted((finished / "shards").rglob("*.parquet"))[0]
    assert robust201("export", finished, "--out", tmp_path / "before").code == 0

    def halve(table):
        kind = table.schema.field("confidence_label").type
        cells = table["confidence_label"].to_pylist()
        cells[0][0] /= 2
        return pa.array(cells, kind)

    rewrite_shard(path, with_column("confidence_label", halve))
    line = robust201("export", finished, "--out", tmp_path / "after").refusal(4)
    assert "rows of confidence_label to sum to 1" in line
    assert "robust201 verify" in line
    assert not (tmp_path / "after" / "SHA256SUMS").exists()
    assert robust201("verify", finished, "--requeue").code == 3


NESTED_LISTS = b"\x99" * 40_000  # lists of nine lists
NESTED_STRUCTS = b"\x1c" * 40_000


@pytest.mark.parametrize("field", [b"\x49", b"\x19"], ids=["row groups", "a skipped field"])
@pytest.mark.parametrize("nested", [NESTED_LISTS, NESTED_STRUCTS], ids=["lists", "structs"])
def test_parse_row_groups_rejects_deep_nesting(field, nested):
    with pytest.raises(ValueError, match="a damaged Parquet footer"):
        parse_row_groups(field + nested)


def test_verify_reports_zero_matrix_without_warning(tmp_path):
    store = ShardStore.create(tmp_path / "results")
    store.commit(make_results(BAD))
    rewrite_shard(damaged_path(store), with_column("cm", _zeros))
    assert store.verify()


def _zeros(table: pa.Table) -> pa.Array:
    return pa.array([[0] * len(cells) for cells in table["cm"].to_pylist()], table.schema.field("cm").type)
