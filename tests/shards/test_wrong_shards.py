"""Shards with wrong contents whose names match their hashes. Readers reject them, `verify` reports them, and a run
recomputes them."""

import contextlib
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import RobustError
from robust201.shards import ShardStore, merge_folders, requeue_shards
from robust201.shards.parquet import FOOTER_KEY
from tests.support.shard_support import ALL_MEASUREMENTS, DEFAULT_MEASUREMENTS, make_results, make_unit, whole_part

DAMAGED_UNIT, INTACT_UNIT = make_unit(3), make_unit(5)


@pytest.fixture
def store(tmp_path):
    """Return a store with two units; tests damage the shard of `DAMAGED_UNIT`."""
    store = ShardStore.create(tmp_path / "results")
    for unit in (DAMAGED_UNIT, INTACT_UNIT):
        store.commit(make_results(unit))
    return store


def keep(content):
    return content


def rewrite_shard(path, change_table, change_footer):
    """Change a shard's table and footer, and rename the file to match its new hash."""
    footer = change_footer(json.loads(pq.read_metadata(path).metadata[FOOTER_KEY.encode()]))
    # ParquetFile reads a single file; read_table would read the names of parent folders as partitions.
    table = change_table(pq.ParquetFile(path).read()).replace_schema_metadata(None)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({FOOTER_KEY: json.dumps(footer)})
    content = bytes(sink.getvalue())
    path.unlink()
    path.with_name(f"{path.name[:-24]}{hashlib.sha256(content).hexdigest()[:16]}.parquet").write_bytes(content)


def with_column(name, make_cells, arrow_type=None):
    """Return a function that replaces the cells of a column by `make_cells(cells)`."""

    def change(table):
        cells = pa.array(make_cells(table[name].to_pylist()), arrow_type or table.schema.field(name).type)
        return table.set_column(table.schema.names.index(name), name, cells)

    return change


def with_identity(part, index, value):
    """Return a function that replaces an element of the identity in the footer."""

    def change(footer):
        footer["identity"][part][index] = value
        return footer

    return change


def _halve_first_element(cells):
    return [[cells[0][0] / 2, *cells[0][1:]], *cells[1:]]


CHANGES = {
    "no rows": (lambda table: table.slice(0, 0), keep),
    "a repeated row": (lambda table: pa.concat_tables([table, table.slice(0, 1)]), keep),
    "a missing row": (lambda table: table.slice(1), keep),
    "no matrix in a row": (with_column("cm", lambda cells: [None, *cells[1:]]), keep),
    "short matrices": (with_column("cm", lambda cells: [cell[:-1] for cell in cells]), keep),
    "matrices of zeros": (with_column("cm", lambda cells: [[0] * len(cell) for cell in cells]), keep),
    "a wrong confidence": (with_column("confidence_label", _halve_first_element), keep),
    "no column cm": (lambda table: table.drop_columns(["cm"]), keep),
    "strengths as text": (with_column("strength", lambda cells: [str(cell) for cell in cells], pa.string()), keep),
    "a NaN strength": (with_column("strength", lambda cells: [float("nan")] * len(cells)), keep),
    "start after stop": (with_column("start", lambda cells: [99] * len(cells)), keep),
    "a repeated strength in the footer": (keep, with_identity("rows", 0, [1.0, 1.0])),
    "a stop beyond the images in the footer": (keep, with_identity("rows", 2, 31)),
    "images as text in the footer": (keep, with_identity("unit", 5, "30")),
    "no identity in the footer": (keep, lambda footer: {"columns": footer["columns"]}),
}


@pytest.mark.parametrize("fault", CHANGES)
def test_wrong_shard_is_reported_and_requeued(store, fault):
    rewrite_shard(sorted(store.folder.shards.rglob("*.parquet"))[0], *CHANGES[fault])
    inventory = store.inventory(on_damage="report")
    store.find_receipts([whole_part(DAMAGED_UNIT)], DEFAULT_MEASUREMENTS)
    for run_reader in (
        lambda: store.values(DAMAGED_UNIT, 1.0, inventory, DEFAULT_MEASUREMENTS),
        lambda: list(store.select([DAMAGED_UNIT], inventory, DEFAULT_MEASUREMENTS).iter_values(None)),
        lambda: merge_folders([store.root], store.root.with_name("merged")),
    ):
        with contextlib.suppress(RobustError):  # any other exception fails the test
            run_reader()
    findings = store.verify()
    assert requeue_shards(store.folder, findings)
    store.commit(make_results(DAMAGED_UNIT))
    assert store.verify() == []
    inventory = store.inventory(verify="all")
    for unit in (DAMAGED_UNIT, INTACT_UNIT):
        assert inventory.find_missing_parts(unit, DEFAULT_MEASUREMENTS) == ()


def test_predictions_that_contradict_cm_are_reported(tmp_path):
    store = ShardStore.create(tmp_path / "results")
    store.commit(make_results(DAMAGED_UNIT, measurements=ALL_MEASUREMENTS))
    (path,) = store.folder.shards.rglob("*.parquet")
    change = with_column("predictions", lambda cells: [[(cells[0][0] + 1) % 3, *cells[0][1:]], *cells[1:]])
    rewrite_shard(path, change, keep)
    (finding,) = store.verify()
    assert "predictions" in finding.message


def test_export_rejects_wrong_confidence_with_valid_hash(robust201, finished_results, tmp_path):
    path = sorted((finished_results / "shards").rglob("*.parquet"))[0]
    assert robust201("export", finished_results, "--out", tmp_path / "before").code == 0
    rewrite_shard(path, *CHANGES["a wrong confidence"])
    assert "confidence_label" in robust201("export", finished_results, "--out", tmp_path / "after").error_line(4)
    assert not (tmp_path / "after" / "SHA256SUMS").exists()
    assert robust201("verify", finished_results, "--requeue").code == 3
