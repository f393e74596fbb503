"""Checks of a shard before its contents are used: its schema, counts and sizes, and that no cell is empty.

Metadata is checked before a page is decoded, so that a file of a few kilobytes cannot request gigabytes. A shard may
have the hash of its name although robust201 did not write it. Every reader of shards calls these functions.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robust201.core.parquet_footer import RowGroup
from robust201.core.records import MAX_CLASSES
from robust201.shards.arrow_arrays import to_numpy
from robust201.tasks.columns import COLUMNS, COUNTS

MAX_SMALL_ROWS = 1 << 20
"""Maximum number of rows of small shards; a larger shard may have as many rows as bytes."""

MAX_GROUP_BYTES = 256 << 20
"""Maximum memory of small row groups; a larger row group may take `MAX_EXPANSION` times its size in the file."""

MAX_EXPANSION = 100


class WrongShardError(ValueError):
    """A file that robust201 did not write."""


def check_schema(
    schema: pa.Schema,
    identity: Mapping[str, pa.DataType],
    measurements: Mapping[str, pa.DataType],
    wide: Mapping[str, pa.DataType],
    columns: Collection[str] | None = None,
) -> None:
    """Check a shard's columns: types of identity and measurements, and the `columns` that its footer names.

    `wide` are types of columns beyond 256 classes. Architectures are integers or text. Columns in neither mapping
    belong to a measure: float64 numbers, or lists of them.
    """
    names = schema.names
    if len(set(names)) < len(names):
        raise WrongShardError("a duplicate column")
    missing = [name for name in identity if name not in names]
    if missing:
        raise WrongShardError(f"no column {missing[0]}")
    measured = {name for name in names if name not in identity}
    if not measured or (columns is not None and measured != set(columns)):
        raise WrongShardError(f"the measurements {', '.join(sorted(measured)) or 'of nothing'}")
    doubles = (pa.float64(), pa.list_(pa.field("element", pa.float64())))
    for field in schema:
        if field.name == "architecture":
            expected: tuple[pa.DataType, ...] = (identity["architecture"], pa.string())
        elif field.name in identity:
            expected = (identity[field.name],)
        else:
            expected = (measurements[field.name],) if field.name in measurements else doubles
            expected += (wide[field.name],) if field.name in wide else ()
        if field.type not in expected:
            raise WrongShardError(f"{field.name} as {field.type}")


def check_row_count(n_rows: int, n_bytes: int) -> None:
    """Check the number of rows against the size of the file."""
    if not 0 < n_rows <= max(MAX_SMALL_ROWS, n_bytes):
        raise WrongShardError(f"{n_rows:,} rows in {n_bytes:,} bytes" if n_rows else "no rows")


def check_sizes(groups: Sequence[RowGroup], n_columns: int) -> None:
    """Check values and bytes in the footer against the limits of row groups with `n_columns` columns."""
    for group in groups:
        if len(group.chunks) != n_columns:
            raise WrongShardError(f"a row group of {len(group.chunks)} columns, not {n_columns}")
        lacking = next((chunk for chunk in group.chunks if chunk.n_values < group.n_rows), None)
        if lacking is not None:
            raise WrongShardError(f"{lacking.n_values} values of {lacking.path} in {group.n_rows} rows")
        in_memory = sum(max(8 * chunk.n_values, chunk.n_bytes) for chunk in group.chunks)
        in_file = sum(chunk.n_compressed for chunk in group.chunks)
        if in_memory > max(MAX_GROUP_BYTES, MAX_EXPANSION * in_file):
            raise WrongShardError(f"a row group of {in_file:,} bytes that takes {in_memory:,} in memory")


def check_identity(
    strength: NDArray[np.float64], start: NDArray[np.int32], stop: NDArray[np.int32], n_images: NDArray[np.integer[Any]]
) -> None:
    """Check the identity of each row: a finite strength, and some of the unit's images."""
    if not len(strength):
        raise WrongShardError("no rows")
    if not np.isfinite(strength).all():
        raise WrongShardError("a strength that is not finite")
    wrong = (start < 0) | (stop > n_images) | ((start >= stop) & (n_images > 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise WrongShardError(f"images {start[row]}:{stop[row]} of {n_images[row]} in row {row}")


def check_table(table: pa.Table) -> None:
    """Check rows for faults that `check_schema` cannot detect: empty cells, and lists of wrong lengths.

    Lengths are checked if the table has `n_classes`, `start` and `stop`.
    """
    sizes = _sizes_of(table) if {"n_classes", "start", "stop"} <= {*table.schema.names} else None
    for name, column in zip(table.schema.names, table.columns, strict=True):
        definition = COLUMNS.get(name)
        first_row = 0
        for chunk in column.chunks:
            if chunk.null_count:
                raise WrongShardError(f"a row without {name}")
            if not isinstance(chunk, pa.ListArray):
                continue
            if chunk.values.null_count:
                raise WrongShardError(f"{name} with an empty element")
            if sizes is not None and definition is not None:
                lengths, expected = np.diff(to_numpy(chunk.offsets)), np.ones(len(chunk), np.int64)
                for dimension in definition.dimensions:
                    if isinstance(dimension, int):
                        expected *= dimension
                    else:
                        expected *= sizes[dimension][first_row : first_row + len(chunk)]
                if not np.array_equal(lengths, expected):
                    row = int((lengths != expected).argmax())
                    values = f"{lengths[row]} values, not {expected[row]}"
                    raise WrongShardError(f"{name} of {values}, in row {first_row + row}")
            first_row += len(chunk)


def _sizes_of(table: pa.Table) -> dict[Any, NDArray[np.int64]]:
    """Return the numbers of classes and of images per row, by their names in `Column.dimensions`."""
    columns = [pa.concat_arrays(table[name].chunks) for name in ("n_classes", "start", "stop")]
    if any(column.null_count for column in columns):
        raise WrongShardError("a row without n_classes, start or stop")
    n_classes, start, stop = (to_numpy(column).astype(np.int64) for column in columns)
    n_images = stop - start
    smallest = 1 if COUNTS in table.schema.names else 0
    wrong = (n_classes < smallest) | (n_classes > MAX_CLASSES) | (n_images < smallest)
    if wrong.any():
        row = int(wrong.argmax())
        raise WrongShardError(f"a row of {n_classes[row]} classes and {n_images[row]} images")
    return {"classes": n_classes, "images": n_images}
