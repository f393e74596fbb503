"""Conversions between Arrow arrays and NumPy arrays or lists, without importing pandas.

`pyarrow.array` and `Array.to_numpy` import pandas, which takes a third of a second and 40 MB, to check for series.
Scans, which every command on a results folder runs, and workers that write results avoid this import.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def from_numpy(values: NDArray[Any]) -> pa.Array:
    """Convert one-dimensional numbers or booleans in native byte order; contiguous numbers are not copied."""
    if values.ndim != 1 or not values.dtype.isnative:
        raise ValueError(f"expected one dimension in native byte order, got {values.dtype.str} of {values.shape}")
    content = np.packbits(values, bitorder="little") if values.dtype == bool else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(content)])


def from_strings(values: Iterable[str]) -> pa.Array:
    """Convert text, of less than 2 GiB in total."""
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"expected less than 2 GiB of text, got {offsets[-1]:,} bytes")
    content = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), content)


def from_values(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Convert text, or numbers of a type."""
    return from_strings(values) if dtype == pa.string() else from_numpy(np.array(values, dtype.to_pandas_dtype()))


def from_bytes(values: NDArray[np.bytes_]) -> pa.Array:
    """Convert binary values; trailing zero bytes are lost, as in NumPy."""
    width = values.dtype.itemsize
    if (np.strings.str_len(values) != width).any():
        return pa.array(values, pa.binary())
    content = pa.py_buffer(np.ascontiguousarray(values).view(np.uint8))
    return pa.Array.from_buffers(pa.binary(width), len(values), [None, content]).cast(pa.binary())


def to_numpy(array: pa.Array, fill: int | None = None) -> NDArray[Any]:
    """Return an array's numbers as a read-only view, or as a copy with `fill` in place of nulls if there are nulls.

    Raises:
        ValueError: the array has nulls and `fill` is None, or its values are booleans.
    """
    if pa.types.is_boolean(array.type):
        raise ValueError("expected numbers, got booleans")
    if array.null_count and fill is None:
        raise ValueError(f"expected no nulls, got {array.null_count}")
    dtype, (validity, content) = np.dtype(array.type.to_pandas_dtype()), array.buffers()
    if content is None:
        return np.zeros(0, dtype)
    numbers = np.frombuffer(content, dtype, len(array), array.offset * dtype.itemsize)
    if array.null_count:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        numbers = np.where(bits[array.offset : array.offset + len(array)], numbers, dtype.type(fill))
    numbers.flags.writeable = False
    return numbers


def join_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Join the chunks of a column, without copying a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def numbers_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return the numbers of a column without nulls (see `to_numpy`)."""
    return to_numpy(join_chunks(column))


def true_indices(mask: Sequence[bool]) -> pa.Array:
    """Return the indices at which a mask is true, for `take`."""
    return from_numpy(np.flatnonzero(mask))


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
