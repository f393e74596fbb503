"""Numbers of one key on one dataset, one row per network and strength; the numbers in large JSON files are cached.

Parsing a large JSON file is slow, so its numbers are stored as NumPy arrays in the user's cache folder. A
changed JSON file is recognised by its size or modification time, and is read again.
"""

import contextlib
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from robust201.core.errors import InputError, StorageError
from robust201.core.files import atomic_write, make_folder
from robust201.dataset.folder import DatasetFolder
from robust201.dataset.row_block import RowBlock, concatenate, make_ids
from robust201.tasks.columns import MEASUREMENTS

MIN_CACHED_BYTES = 1 << 16
"""Minimum size of a JSON file whose numbers are cached."""

_CACHE_FORMAT = 3
"""Version of the layout of cached arrays; arrays of other versions are not read."""


def cache_folder() -> Path:
    """Return the folder of cached numbers: ``robust201/tables`` in ``$XDG_CACHE_HOME``, by default ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "robust201" / "tables"


def read_single_column(folder: DatasetFolder, dataset: str, key: str, measurement: str) -> RowBlock:
    """Read a measurement that has a single column (see `has_single_column`).

    Returns:
        The rows, with `n_images` (NaN if unknown) and the column `measurement`: float64, or the nested lists of a
        measure.

    Raises:
        ResultsError: the file is missing or damaged, or a value is invalid.
    """
    file = folder.find(dataset, key, measurement)
    cache_file = None if file is None else _cache_file_of(file, measurement)
    rows = None if cache_file is None else _read_cache(cache_file, measurement)
    if rows is None:
        rows = concatenate([*folder.iter_rows(dataset, key, measurement)], measurement)
        if cache_file is not None and rows.columns[measurement].dtype == np.float64:
            _write_cache(cache_file, rows)
    # The number of images is not in the cache file.
    if rows.n_images is None:
        rows = replace(rows, n_images=np.full(len(rows), folder.count_images(dataset, key)))
    rows.columns[measurement].flags.writeable = False  # callers share the array
    return rows


def has_single_column(measurement: str) -> bool:
    """Return whether a measurement is a single number, or a column of a measure."""
    columns = MEASUREMENTS.get(measurement)
    return columns is None or [column.dimensions for column in columns.values()] == [()]


def _cache_file_of(file: Path, measurement: str) -> Path | None:
    """Return the path for the cached numbers of a large JSON file; None for other files."""
    status = file.stat()
    if file.suffix == ".parquet" or status.st_size < MIN_CACHED_BYTES:
        return None
    identity = hashlib.sha256(f"{measurement} of {file.resolve()}".encode()).hexdigest()[:32]
    return cache_folder() / f"{identity}.{status.st_size}.{status.st_mtime_ns}.{_CACHE_FORMAT}.npz"


def _read_cache(cache_file: Path, measurement: str) -> RowBlock | None:
    """Return cached rows; None if they are not cached, or the file is damaged."""
    try:
        with np.load(cache_file) as arrays:
            architectures, strengths, values = (arrays[name] for name in ("architectures", "strengths", "values"))
    except (OSError, EOFError, ValueError, KeyError, BadZipFile):
        return None
    ids = architectures if architectures.dtype == np.int64 else make_ids(architectures)
    return RowBlock(ids, None, strengths, None, {measurement: values})


def _write_cache(cache_file: Path, rows: RowBlock) -> None:
    """Store rows, unless the cache is not writable."""
    ids = rows.architectures if rows.architectures.dtype == np.int64 else rows.architectures.astype(str)
    with contextlib.suppress(OSError, InputError, StorageError):
        make_folder(cache_file.parent)
        for outdated in cache_file.parent.glob(f"{cache_file.name.partition('.')[0]}.*.npz"):
            outdated.unlink(missing_ok=True)
        with atomic_write(cache_file) as stream:
            (values,) = rows.columns.values()
            np.savez(stream, architectures=ids, strengths=rows.strengths, values=values)
