"""Values of one key on one dataset as a table, one row per network and strength; tables of JSON files are cached.

A JSON file of accuracies takes much longer to read than its table, which is therefore stored as a Parquet file in the
user's cache folder. A changed JSON file has another size or modification time, and is read again.
"""

import contextlib
import hashlib
import os
from pathlib import Path

import numpy as np
import pandas as pd

from robust201.core.errors import InputError, StorageError
from robust201.core.files import atomic_write, make_folder
from robust201.dataset.folder import DatasetFolder
from robust201.dataset.row_block import RowBlock
from robust201.tasks.columns import MEASUREMENTS, fields_of

KEY_COLUMNS = ("architecture", "weights", "strength", "value", "n_images")

MIN_CACHED_BYTES = 1 << 16
"""Minimum size of a JSON file whose table is cached."""

_CACHE_FORMAT = 2
"""Number of the layout of cached tables; tables of another layout are read again."""


def cache_folder() -> Path:
    """Return the folder of cached tables: ``robust201`` in ``$XDG_CACHE_HOME``, by default ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "robust201" / "tables"


def read_key_table(folder: DatasetFolder, dataset: str, key: str, measurement: str) -> pd.DataFrame:
    """Read a measurement.

    Returns:
        `architecture` (int64 or text), `weights` (empty without a name), `strength` (float64), `value` (float64, or
        nested lists and dictionaries as in JSON files) and `n_images` (float64, NaN if unknown).

    Raises:
        ResultsError: the file is missing or damaged, or a value is invalid.
    """
    file = folder.find(dataset, key, measurement)
    cached = _cached_file(file) if file is not None and is_scalar(measurement) else None
    if cached is not None and cached.is_file():
        table = pd.read_parquet(cached)
    else:
        table = _read_rows(folder, dataset, key, measurement)
        if cached is not None:
            _write_cache(cached, table)
    # Other files than the cached one contain the number of images.
    if len(table) and table["n_images"].isna().all():
        table["n_images"] = folder.count_images(dataset, key)
    return table


def is_scalar(measurement: str) -> bool:
    """Return whether a measurement is one number, or a measure's column, which usually is."""
    columns = MEASUREMENTS.get(measurement)
    return columns is None or [column.dimensions for column in columns.values()] == [()]


def _read_rows(folder: DatasetFolder, dataset: str, key: str, measurement: str) -> pd.DataFrame:
    tables = [_to_table(rows, measurement) for rows in folder.iter_rows(dataset, key, measurement)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=[*KEY_COLUMNS], dtype=float)


def _to_table(rows: RowBlock, measurement: str) -> pd.DataFrame:
    column = rows.columns[next(iter(fields_of(measurement).values()))]
    is_number = column.ndim == 1 and column.dtype.kind in "iuf"
    values = pd.Series(column if is_number else rows.nested_values(measurement), dtype=None if is_number else object)
    columns = {
        "architecture": rows.architectures,
        "weights": "" if rows.weights is None else rows.weights,
        "strength": rows.strengths,
        "value": values.astype(np.float64) if is_number else values,
        "n_images": np.nan if rows.n_images is None else rows.n_images,
    }
    return pd.DataFrame(columns)


def _cached_file(file: Path) -> Path | None:
    """Return the file with the table of a large JSON file, which need not exist; None for other files."""
    status = file.stat()
    if file.suffix == ".parquet" or status.st_size < MIN_CACHED_BYTES:
        return None
    identity = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:32]
    return cache_folder() / f"{identity}.{status.st_size}.{status.st_mtime_ns}.{_CACHE_FORMAT}.parquet"


def _write_cache(cached: Path, table: pd.DataFrame) -> None:
    """Store a table, unless the cache is not writable."""
    with contextlib.suppress(OSError, InputError, StorageError):
        make_folder(cached.parent)
        for outdated in cached.parent.glob(f"{cached.name.partition('.')[0]}.*.parquet"):
            outdated.unlink(missing_ok=True)
        with atomic_write(cached) as stream:
            table.to_parquet(stream)
