"""Read NumPy's .npy and .npz files without unpickling objects; a damaged file raises ValueError."""

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import one_line


def read_npy(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """Read a numeric .npy file; if `mapped`, map it into memory instead.

    Raises:
        OSError: the file cannot be read (FileNotFoundError: it does not exist).
        ValueError: the file is not a complete .npy file of numbers.
    """
    with _damage_as_value_error(), path.open("rb") as stream:
        n_bytes = os.fstat(stream.fileno()).st_size
        array = np.lib.format.open_memmap(path, mode="r") if mapped else np.lib.format.read_array(stream)
        end = array.offset + array.nbytes if isinstance(array, np.memmap) else stream.tell()
        if end != n_bytes:
            raise ValueError(f"{n_bytes:,} bytes instead of {end:,} for {array.dtype} {array.shape}")
        return _check_numeric(array)


def read_npz(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read numeric arrays of an .npz file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not an .npz archive, is damaged, or lacks one of the arrays.
    """
    with _damage_as_value_error():
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a complete .npz archive")
        with np.load(path, allow_pickle=False) as archive:
            if missing := [name for name in names if name not in archive.files]:
                raise ValueError(f"it has no array {missing[0]!r}, only {', '.join(archive.files) or 'none'}")
            return {name: _check_numeric(archive[name]) for name in names}


def _check_numeric(content: Any) -> NDArray[Any]:
    if not isinstance(content, np.ndarray) or content.dtype.kind not in "biuf":
        raise ValueError(f"an array of {getattr(content, 'dtype', 'bytes')}, not of numbers")
    return content


@contextmanager
def _damage_as_value_error() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # NumPy and zipfile raise errors of many types for damaged files
        raise ValueError(one_line(error)) from error
