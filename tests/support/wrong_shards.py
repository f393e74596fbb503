"""Shards with invalid contents, although their names contain the right hashes."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from robust201.shards.parquet import FOOTER_KEY

Change = Callable[[pa.Table], pa.Table]
ChangeFooter = Callable[[dict[str, Any]], None]


def rewrite_shard(path: Path, change: Change = lambda table: table, change_footer: ChangeFooter | None = None) -> Path:
    """Change a shard's table or footer, and rename the file to match its new hash."""
    footer = json.loads(pq.read_metadata(path).metadata[FOOTER_KEY.encode()])
    if change_footer is not None:
        change_footer(footer)
    # ParquetFile reads a single file; read_table would read the names of parent folders as partitions.
    table = change(pq.ParquetFile(path).read()).replace_schema_metadata(None)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({FOOTER_KEY: json.dumps(footer)})
    path.unlink()
    return write_with_hash_in_name(path, bytes(sink.getvalue()))


def write_with_hash_in_name(path: Path, content: bytes) -> Path:
    """Write a shard's bytes to a file whose name contains their hash."""
    target = path.with_name(f"{path.name[:-24]}{hashlib.sha256(content).hexdigest()[:16]}.parquet")
    target.write_bytes(content)
    return target


def with_column(name: str, make_column: Callable[[pa.Table], Any]) -> Change:
    """Return a function that replaces a column of a table by `make_column(table)`."""
    return lambda table: table.set_column(table.schema.names.index(name), name, make_column(table))


def _set_first_to_null(name: str) -> Change:
    return with_column(name, lambda t: pa.array([None, *t[name].to_pylist()[1:]], t.schema.field(name).type))


def _convert_to_text(name: str) -> Change:
    return with_column(name, lambda t: pa.array([str(value) for value in t[name].to_pylist()]))


def _shorten_cm(table: pa.Table) -> pa.Table:
    cm_type = table.schema.field("cm").type
    return with_column("cm", lambda t: pa.array([matrix[:-1] for matrix in t["cm"].to_pylist()], cm_type))(table)


def _drop_column(name: str) -> Change:
    return lambda table: table.drop_columns([name])


INVALID_TABLES: dict[str, Change] = {
    "no rows": lambda table: table.slice(0, 0),
    "a repeated row": lambda table: pa.concat_tables([table, table.slice(0, 1)]),
    "a missing row": lambda table: table.slice(1),
    **{
        f"{name} null": _set_first_to_null(name)
        for name in ("start", "stop", "cm", "protocol", "strength", "provenance")
    },
    **{f"{name} as text": _convert_to_text(name) for name in ("start", "stop", "strength", "n_images", "accuracy")},
    **{f"no {name}": _drop_column(name) for name in ("protocol", "cm", "strength")},
    "start after stop": with_column("start", lambda t: pa.array([99] * len(t), pa.int32())),
    "a negative stop": with_column("stop", lambda t: pa.array([-1] * len(t), pa.int32())),
    "a NaN strength": with_column("strength", lambda t: pa.array([float("nan")] * len(t))),
    "short matrices": _shorten_cm,
    "no classes": with_column("n_classes", lambda t: pa.array([0] * len(t), pa.int16())),
    "a provenance that is a list": with_column("provenance", lambda t: pa.array(["[]"] * len(t))),
    "an invalid JSON provenance": with_column("provenance", lambda t: pa.array(["{"] * len(t))),
}


def _set_rows_field(index: int, value: Any) -> ChangeFooter:
    def change(footer: dict[str, Any]) -> None:
        footer["identity"]["rows"][index] = value

    return change


def _set_unit_field(index: int, value: Any) -> ChangeFooter:
    def change(footer: dict[str, Any]) -> None:
        footer["identity"]["unit"][index] = value

    return change


INVALID_FOOTERS: dict[str, ChangeFooter] = {
    "no strengths": _set_rows_field(0, []),
    "a strength as text": _set_rows_field(0, ["1.0", "4.0"]),
    "a repeated strength": _set_rows_field(0, [1.0, 1.0]),
    "a boolean strength": _set_rows_field(0, [True, 4.0]),
    "a null start": _set_rows_field(1, None),
    "a start as text": _set_rows_field(1, "0"),
    "a stop beyond the images": _set_rows_field(2, 31),
    "a null protocol": _set_unit_field(4, None),
    "images as text": _set_unit_field(5, "30"),
    "other measurements": lambda footer: footer.update(columns=["accuracy"]),
    "no identity": lambda footer: footer.pop("identity"),
    "an identity that is a list": lambda footer: footer.update(identity=["unit", "rows"]),
}
