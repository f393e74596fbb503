"""Conversions between Arrow arrays and NumPy arrays or lists, without importing pandas.

`pyarrow.array` and `Array.to_numpy` import pandas to check for pandas Series. This import takes a third of a second and
40 MB. Workers that write results avoid it, and so do scans, which every command on a results folder runs.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def from_numpy(array: NDArray[Any]) -> pa.Array:
    """Convert a one-dimensional array of numbers or booleans in native byte order to Arrow.

    Contiguous numbers are not copied.
    """
    if array.ndim != 1 or not array.dtype.isnative:
        raise ValueError(f"expected one dimension in native byte order, got {array.dtype.str}, shape {array.shape}")
    buffer = np.packbits(array, bitorder="little") if array.dtype == bool else np.ascontiguousarray(array)
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, pa.py_buffer(buffer)])


def from_strings(strings: Iterable[str]) -> pa.Array:
    """Return an Arrow array of strings; raise ValueError if they have 2 GiB or more in total."""
    encoded = [string.encode() for string in strings]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"expected less than 2 GiB of text, got {offsets[-1]:,} bytes")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def from_values(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Return an Arrow array of strings, or of numbers of type `dtype`."""
    return from_strings(values) if dtype == pa.string() else from_numpy(np.array(values, dtype.to_pandas_dtype()))


def from_bytes(byte_strings: NDArray[np.bytes_]) -> pa.Array:
    """Return an Arrow array of byte strings; trailing zero bytes are lost, as in NumPy."""
    width = byte_strings.dtype.itemsize
    if (np.strings.str_len(byte_strings) != width).any():
        return pa.array(byte_strings, pa.binary())
    buffer = pa.py_buffer(np.ascontiguousarray(byte_strings).view(np.uint8))
    return pa.Array.from_buffers(pa.binary(width), len(byte_strings), [None, buffer]).cast(pa.binary())


def to_numpy(array: pa.Array, fill: int | None = None) -> NDArray[Any]:
    """Return an array's numbers as a read-only view; if there are nulls, as a copy with `fill` in their place.

    Raises:
        ValueError: the array has nulls and `fill` is None, or its values are booleans.
    """
    if pa.types.is_boolean(array.type):
        raise ValueError("expected numbers, got booleans")
    if array.null_count and fill is None:
        raise ValueError(f"expected no nulls, got {array.null_count}")
    dtype, (validity, data_buffer) = np.dtype(array.type.to_pandas_dtype()), array.buffers()
    if data_buffer is None:
        return np.zeros(0, dtype)
    numbers = np.frombuffer(data_buffer, dtype, len(array), array.offset * dtype.itemsize)
    if array.null_count:
        is_valid = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        numbers = np.where(is_valid[array.offset : array.offset + len(array)], numbers, dtype.type(fill))
    numbers.flags.writeable = False
    return numbers


def join_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Join the chunks of a column; a column with only one chunk is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def numbers_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column's numbers as one array; the column must not have nulls (see `to_numpy`)."""
    return to_numpy(join_chunks(column))


def true_indices(mask: Sequence[bool]) -> pa.Array:
    """Return the indices of the true elements of a mask, as an argument of Arrow's `take`."""
    return from_numpy(np.flatnonzero(mask))


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
