"""Arrow's arrays from and to others, without importing pandas.

`pyarrow.array` and `Array.to_numpy` import it, a third of a second and 40 MB, to ask whether they deal with a series.
What every command does with a results folder, a scan, goes without.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def from_numpy(values: NDArray[Any]) -> pa.Array:
    """Make an Arrow array of numbers, which are not copied if they are contiguous, or of truth values."""
    held = np.packbits(values, bitorder="little") if values.dtype == bool else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(held)])


def from_strings(values: Iterable[str]) -> pa.Array:
    """Make an Arrow array of text, of less than 2 GiB."""
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def from_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Make an Arrow array of text or of numbers of a type."""
    return from_strings(values) if kind == pa.string() else from_numpy(np.array(values, kind.to_pandas_dtype()))


def from_bytes(values: NDArray[np.bytes_]) -> pa.Array:
    """Make an Arrow array of binary values, of which NumPy, and so this, keeps no zero bytes at the end."""
    width = values.dtype.itemsize
    if (np.strings.str_len(values) != width).any():
        return pa.array(values, pa.binary())
    content = pa.py_buffer(np.ascontiguousarray(values).view(np.uint8))
    return pa.Array.from_buffers(pa.binary(width), len(values), [None, content]).cast(pa.binary())


def to_numpy(array: pa.Array, missing: int | None = None) -> NDArray[Any]:
    """View the numbers of an Arrow array, read-only; where it may have empty cells, copy them, with `missing` there."""
    dtype, (validity, content) = np.dtype(array.type.to_pandas_dtype()), array.buffers()
    if array.null_count and missing is None:
        raise ValueError(f"expected no empty cells, got {array.null_count}")
    if content is None:
        return np.zeros(0, dtype)
    numbers = np.frombuffer(content, dtype, len(array), array.offset * dtype.itemsize)
    if not array.null_count:
        return numbers
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    return np.where(bits[array.offset : array.offset + len(array)], numbers, dtype.type(missing))


def where(mask: Sequence[bool]) -> pa.Array:
    """Positions at which a mask is true, for `take`."""
    return from_numpy(np.flatnonzero(mask))


def empty_table(schema: pa.Schema) -> pa.Table:
    """Make a table without rows."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
