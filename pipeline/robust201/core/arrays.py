"""Read NumPy's .npy files; every damaged file raises ValueError.

`numpy.load` evaluates the header as a Python expression, so a damaged header raises errors of Python's tokenizer or
parser, and a damaged shape can request a huge allocation. The module numpy.lib.format defines the format.
"""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from robust201.core.files import open_file

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
"""Size in bytes of the header length field, by format version."""

_MAX_HEADER_BYTES = 1 << 16
_FIELD = re.compile(r"'(\w+)': ('[^']*'|True|False|\((?:\d+L?, ?)*(?:\d+L?,?)?\))")
_DTYPE = re.compile(r"'([<>|=]?(?:[iuf][1248]|b1))'")


def read_npy(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """Read a numeric .npy file, or map it into memory.

    Raises:
        OSError: the file cannot be read (FileNotFoundError: it does not exist).
        ValueError: the file is not a complete .npy file of numbers.
    """
    with open_file(path, None) as stream:
        n_bytes = os.fstat(stream.fileno()).st_size
        dtype, shape, is_fortran = read_header(stream)
        order: Any = "F" if is_fortran else "C"
        _check_size(n_bytes - stream.tell(), dtype, shape)
        n_values: int = math.prod(shape)
        if mapped and n_values:  # an empty array cannot be mapped
            return np.memmap(path, dtype, "r", stream.tell(), shape, order)
        return np.fromfile(stream, dtype, n_values).reshape(shape, order=order)


def parse_npy(open_content: Callable[[], BinaryIO], n_bytes: int) -> NDArray[Any]:
    """Open a stream of `n_bytes`, such as an archive member, and read a numeric array from it.

    Raises:
        ValueError: the stream is not a complete .npy file of numbers.
    """
    with open_content() as stream:
        dtype, shape, is_fortran = read_header(stream)
        _check_size(n_bytes - stream.tell(), dtype, shape)
        content = stream.read()  # may be shorter or longer than the archive declares
        _check_size(len(content), dtype, shape)
        return np.frombuffer(bytearray(content), dtype).reshape(shape, order="F" if is_fortran else "C")


def read_header(stream: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Read the header of a .npy file; return the dtype, the shape, and whether the array is in Fortran order.

    Raises:
        ValueError: the stream does not begin with the header of a numeric array.
    """
    prefix = stream.read(len(_MAGIC) + 2)
    length_field_bytes = _LENGTH_BYTES.get(prefix[-2]) if len(prefix) == len(_MAGIC) + 2 else None
    if not prefix.startswith(_MAGIC) or length_field_bytes is None:
        raise ValueError("not a .npy file")
    header_bytes = int.from_bytes(stream.read(length_field_bytes), "little")
    if header_bytes > _MAX_HEADER_BYTES:
        raise ValueError(f"an impossible header length of {header_bytes:,} bytes")
    header = stream.read(header_bytes).decode("latin-1")
    fields = dict(_FIELD.findall(header))
    dtype_match = _DTYPE.fullmatch(fields.get("descr", ""))
    if fields.keys() != {"descr", "fortran_order", "shape"} or dtype_match is None or fields["shape"][0] != "(":
        raise ValueError(f"an unsupported header {header[:100]!r}")
    shape = tuple(int(size) for size in re.findall(r"\d+", fields["shape"]))
    return np.dtype(dtype_match[1]), shape, fields["fortran_order"] == "True"


def _check_size(n_bytes: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    expected_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes != expected_bytes:
        raise ValueError(f"{n_bytes:,} bytes of data instead of {expected_bytes:,} for {dtype} {shape}")
