"""Arrays in NumPy's .npy format, read so that any damage to a file is a ValueError.

`numpy.load` evaluates the header as Python, so a damaged one ends in errors of the tokenizer or the parser, and a shape
that is damaged asks for memory. See numpy.lib.format for the format.
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
"""Bytes of the header's length by version of the format."""

_MAX_HEADER_BYTES = 1 << 16
_FIELD = re.compile(r"'(\w+)': ('[^']*'|True|False|\((?:\d+L?, ?)*(?:\d+L?,?)?\))")
_DTYPE = re.compile(r"'([<>|=]?(?:[iuf][1248]|b1))'")


def read_npy(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """Read a file of numbers, or map it into memory to be read where it is used.

    Raises:
        OSError: it cannot be read (FileNotFoundError: there is none).
        ValueError: it is no whole .npy file of numbers.
    """
    with open_file(path, None) as stream:
        n_bytes = os.fstat(stream.fileno()).st_size
        dtype, shape, is_fortran = read_header(stream)
        order: Any = "F" if is_fortran else "C"
        _check_size(n_bytes - stream.tell(), dtype, shape)
        n_values: int = math.prod(shape)
        if mapped and n_values:  # nothing cannot be mapped
            return np.memmap(path, dtype, "r", stream.tell(), shape, order)
        return np.fromfile(stream, dtype, n_values).reshape(shape, order=order)


def parse_npy(open_content: Callable[[], BinaryIO], n_bytes: int) -> NDArray[Any]:
    """Read an array of numbers from a stream of so many bytes, such as a member of an archive; ValueError as above."""
    with open_content() as stream:
        dtype, shape, is_fortran = read_header(stream)
        _check_size(n_bytes - stream.tell(), dtype, shape)
        content = stream.read()
        _check_size(len(content), dtype, shape)
        return np.frombuffer(bytearray(content), dtype).reshape(shape, order="F" if is_fortran else "C")


def read_header(stream: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Read type, shape and whether the first axis varies fastest; ValueError if it is no header of numbers."""
    head = stream.read(len(_MAGIC) + 2)
    length_bytes = _LENGTH_BYTES.get(head[-2]) if len(head) == len(_MAGIC) + 2 else None
    if not head.startswith(_MAGIC) or length_bytes is None:
        raise ValueError("other content")
    length = int.from_bytes(stream.read(length_bytes), "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length:,} bytes")
    text = stream.read(length).decode("latin-1")
    fields = dict(_FIELD.findall(text))
    dtype = _DTYPE.fullmatch(fields.get("descr", ""))
    if fields.keys() != {"descr", "fortran_order", "shape"} or dtype is None or fields["shape"][0] != "(":
        raise ValueError(f"the header {text[:100]!r}")
    shape = tuple(int(number) for number in re.findall(r"\d+", fields["shape"]))
    return np.dtype(dtype[1]), shape, fields["fortran_order"] == "True"


def _check_size(n_bytes: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    expected = math.prod(shape) * dtype.itemsize
    if n_bytes != expected:
        raise ValueError(f"{n_bytes:,} bytes, not {expected:,} of {dtype} {shape}")
