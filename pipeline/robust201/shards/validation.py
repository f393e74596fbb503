"""Checks of a shard before its contents are used: schema, identities, null values and lengths of lists.

Every reader of shards calls these functions, because a file that robust201 did not write may still match the hash in
its name.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robust201.core.records import MAX_CLASSES
from robust201.shards.arrow_arrays import to_numpy
from robust201.tasks.columns import COLUMNS, COUNTS


class WrongShardError(ValueError):
    """A file has contents that robust201 never writes; the message names the contents."""


def check_schema(
    schema: pa.Schema,
    identity: Mapping[str, pa.DataType],
    measurements: Mapping[str, pa.DataType],
    wide_measurements: Mapping[str, pa.DataType],
    columns: Collection[str] | None = None,
) -> None:
    """Check the names and types of a shard's columns.

    Architectures are integers or text. Columns in neither `identity` nor `measurements` belong to a measure, and
    contain float64 numbers or lists of them.

    Args:
        schema: schema of the shard.
        identity: types of the columns that identify rows.
        measurements: types of the measurement columns.
        wide_measurements: types of the measurement columns for more than 256 classes.
        columns: names of the measurement columns according to the footer, if they are to be compared.
    """
    column_names = schema.names
    if len(set(column_names)) < len(column_names):
        raise WrongShardError("a duplicate column")
    missing_columns = [column_name for column_name in identity if column_name not in column_names]
    if missing_columns:
        raise WrongShardError(f"no column {missing_columns[0]}")
    measurement_columns = {column_name for column_name in column_names if column_name not in identity}
    if not measurement_columns or (columns is not None and measurement_columns != set(columns)):
        columns_text = ", ".join(sorted(measurement_columns))
        raise WrongShardError(f"the measurement columns {columns_text}" if columns_text else "no measurement columns")
    measure_types = (pa.float64(), pa.list_(pa.field("element", pa.float64())))
    for field in schema:
        if field.name == "architecture":
            allowed_types: tuple[pa.DataType, ...] = (identity["architecture"], pa.string())
        elif field.name in identity:
            allowed_types = (identity[field.name],)
        else:
            allowed_types = (measurements[field.name],) if field.name in measurements else measure_types
            allowed_types += (wide_measurements[field.name],) if field.name in wide_measurements else ()
        if field.type not in allowed_types:
            raise WrongShardError(f"`{field.name}` as {field.type}")


def check_identity(
    strength: NDArray[np.float64], start: NDArray[np.int32], stop: NDArray[np.int32], n_images: NDArray[np.integer[Any]]
) -> None:
    """Check that each row has a finite strength, and a valid range of its unit's images."""
    if not len(strength):
        raise WrongShardError("no rows")
    if not np.isfinite(strength).all():
        raise WrongShardError("a strength that is not finite")
    is_invalid = (start < 0) | (stop > n_images) | ((start >= stop) & (n_images > 0))
    if is_invalid.any():
        row = int(is_invalid.argmax())
        raise WrongShardError(f"images {start[row]}:{stop[row]} of {n_images[row]} in row {row}")


def check_table(table: pa.Table) -> None:
    """Check that a table has no null values and no lists with wrong lengths.

    Lengths are checked if the table has `n_classes`, `start` and `stop`.
    """
    dimension_sizes = _read_dimensions(table) if {"n_classes", "start", "stop"} <= {*table.schema.names} else None
    for name, column in zip(table.schema.names, table.columns, strict=True):
        definition = COLUMNS.get(name)
        first_row = 0
        for chunk in column.chunks:
            if chunk.null_count:
                raise WrongShardError(f"a row without `{name}`")
            if not isinstance(chunk, pa.ListArray):
                continue
            if chunk.values.null_count:
                raise WrongShardError(f"`{name}` with an empty element")
            if dimension_sizes is not None and definition is not None:
                lengths, expected_lengths = np.diff(to_numpy(chunk.offsets)), np.ones(len(chunk), np.int64)
                for dimension in definition.dimensions:
                    if isinstance(dimension, int):
                        expected_lengths *= dimension
                    else:
                        expected_lengths *= dimension_sizes[dimension][first_row : first_row + len(chunk)]
                if not np.array_equal(lengths, expected_lengths):
                    row = int((lengths != expected_lengths).argmax())
                    fault = f"{lengths[row]} values, not {expected_lengths[row]}"
                    raise WrongShardError(f"`{name}` with {fault}, in row {first_row + row}")
            first_row += len(chunk)


def _read_dimensions(table: pa.Table) -> dict[Any, NDArray[np.int64]]:
    """Return the number of classes and the number of images of each row, by their names in `Column.dimensions`."""
    columns = [pa.concat_arrays(table[name].chunks) for name in ("n_classes", "start", "stop")]
    if any(column.null_count for column in columns):
        raise WrongShardError("a row without `n_classes`, `start` or `stop`")
    n_classes, start, stop = (to_numpy(column).astype(np.int64) for column in columns)
    n_images = stop - start
    minimum = 1 if COUNTS in table.schema.names else 0
    is_invalid = (n_classes < minimum) | (n_classes > MAX_CLASSES) | (n_images < minimum)
    if is_invalid.any():
        row = int(is_invalid.argmax())
        raise WrongShardError(f"a row with {n_classes[row]} classes and {n_images[row]} images")
    return {"classes": n_classes, "images": n_images}
