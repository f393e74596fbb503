"""Results read from the Parquet files of an export or a conversion, in the form of the JSON files."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.reader.kept_files import FileState, hash_file
from robust201.reader.value_checks import damaged_file

_COLUMNS = {
    "accuracy": ("accuracy",),
    "confidence": ("confidence_label", "confidence_argmax", "confidence_correct", "confidence_incorrect"),
    "cm": ("cm",),
    "predictions": ("predictions",),
}
_ROWS_AT_ONCE = 16
"""As Python objects, rows are some ten times larger than in Arrow."""


def _open(path: Path) -> pq.ParquetFile:
    """Open a file whose pages are held to their checksums, where it has any: damaged ones mostly decode, to others."""
    return pq.ParquetFile(path, page_checksum_verification=True)


JSON_SOURCES = b"robust201.json"
"""In the metadata of a converted file: size and SHA-256 of the JSON file that each measurement was read from."""


class _Footer(NamedTuple):
    columns: frozenset[str]
    sources: Mapping[str, Mapping[str, Any]] | None


def has_columns_of(path: Path, measure: str) -> bool:
    """Whether a file has a measurement.

    Raises:
        ResultsError: the file is damaged.
    """
    return set(_COLUMNS.get(measure, (measure,))) <= _read_footer(path).columns


def is_converted(path: Path) -> bool:
    """Whether a file was made of JSON files, not by an export.

    Raises:
        ResultsError: the file is damaged.
    """
    return _read_footer(path).sources is not None


def agrees_with(path: Path, json_file: Path, measure: str) -> bool:
    """Whether a converted file has the values of the JSON file beside it.

    It names the JSON file that it was made of by size and SHA-256; the latter is computed only if the JSON file was
    written after it.

    Args:
        path: the Parquet file.
        json_file: of the same dataset and key.
        measure: what is in the latter.

    Raises:
        ResultsError: the Parquet file is damaged.
    """
    source, state = (_read_footer(path).sources or {}).get(measure, {}), FileState.of(json_file)
    if source.get("size") != state.size:
        return False
    return state.mtime_ns <= path.stat().st_mtime_ns or hash_file(json_file) == source.get("sha256")


def _read_footer(path: Path) -> _Footer:
    with _naming(path):
        return _footer(path, FileState.of(path))


@lru_cache(maxsize=256)
def _footer(path: Path, _state: FileState) -> _Footer:
    """Read which columns a file has and what it was made of; once, as a look-up would read the footer twice."""
    schema = pq.read_schema(path)
    told = (schema.metadata or {}).get(JSON_SOURCES)
    return _Footer(frozenset(schema.names), None if told is None else json.loads(told))


def read_parquet_values(
    path: Path, measure: str, strengths: Sequence[float], architecture: int | None = None
) -> dict[str, Any]:
    """Read a measurement: a value by id, or a list of them by strength.

    Row groups are skipped by the architectures that the footer says they hold. No thread of Arrow's is used, so this
    works after a fork too.

    Args:
        path: a Parquet file of an export.
        measure: name of the measurement.
        strengths: at which every architecture must have a value, ascending.
        architecture: the only one to read; None for all.

    Returns:
        As the JSON file: a value for ``clean``, else a list with one value a strength, ascending.

    Raises:
        ResultsError: the file is damaged, or an architecture has values at other strengths.
    """
    found: dict[str, dict[float, Any]] = {}
    clean = False
    for identifier, values, is_clean in _iter_parts(path, measure, architecture):
        clean = is_clean
        # Files that others sorted anew may have an architecture's strengths apart.
        held = found.setdefault(identifier, {})
        if not held.keys().isdisjoint(values):
            raise _malformed(path, f"#{identifier} at one strength twice")
        held |= values
    if clean:
        return {identifier: _only_value(path, identifier, values) for identifier, values in found.items()}
    return {identifier: _in_order(path, identifier, values, strengths) for identifier, values in found.items()}


def _only_value(path: Path, identifier: str, values: Mapping[float, Any]) -> Any:
    if len(values) > 1:
        raise _malformed(path, f"#{identifier} with {len(values)} values of clean images")
    return next(iter(values.values()))


def _in_order(path: Path, identifier: str, values: Mapping[float, Any], strengths: Sequence[float]) -> list[Any]:
    # Whoever is given a list takes its places for the strengths': a value less would move the others.
    if values.keys() != set(strengths):
        wanted, got = (", ".join(f"{strength:g}" for strength in sorted(held)) for held in (strengths, values))
        raise ResultsError(
            f"Reading #{identifier} failed for {path}: expected {len(strengths)} values, at the strengths {wanted}, "
            f"got {len(values)}, at {got}. Export or download the file again."
        )
    return [values[strength] for strength in sorted(values)]


def _iter_parts(path: Path, measure: str, architecture: int | None) -> Iterator[tuple[str, dict[float, Any], bool]]:
    """Go through the rows of a file: an id, its values by strength as far as they are neighbours, and whether clean."""
    held: str | None = None
    values: dict[float, Any] = {}
    clean = False
    with _naming(path), _open(path) as file:
        _check_columns(path, file.schema_arrow)
        for group in _groups_of(file.metadata, architecture):
            columns = ["architecture", "strength", "key", *_COLUMNS[measure]]
            table = file.read_row_group(group, columns, use_threads=False)
            if architecture is not None:
                table = table.filter(pc.equal(table["architecture"], architecture))
            if table["architecture"].null_count or table["strength"].null_count:
                raise _malformed(path, "rows without one of them")
            clean = clean or table["key"].slice(0, 1).to_pylist() == ["clean"]
            for first in range(0, len(table), _ROWS_AT_ONCE):
                rows = table.slice(first, _ROWS_AT_ONCE)
                names, strengths = rows["architecture"].to_pylist(), rows["strength"].to_pylist()
                for identifier, strength, value in zip(names, strengths, _values(rows, measure), strict=True):
                    if held is not None and str(identifier) != held:
                        yield held, values, clean
                        values = {}
                    held = str(identifier)
                    if strength in values:
                        raise _malformed(path, f"#{identifier} at {strength:g} twice")
                    values[strength] = value
    if held is not None:
        yield held, values, clean


def _check_columns(path: Path, schema: pa.Schema) -> None:
    """Make sure that a file has the columns that say what a row is about."""
    kinds = {"architecture": pa.types.is_integer, "strength": pa.types.is_floating, "key": lambda _kind: True}
    for name, fits in kinds.items():
        if name not in schema.names:
            raise _malformed(path, f"no {name}")
        if not fits(schema.field(name).type):
            raise _malformed(path, f"{name} as {schema.field(name).type}")


def _malformed(path: Path, got: str) -> ResultsError:
    return ResultsError(
        f"Reading failed for {path}: expected rows that name their architecture, a whole number, their strength, a "
        f"double, and their key, each once, got {got}. Export or download the file again."
    )


def iter_matrices(
    path: Path, column: str, numbers: Sequence[str], *, missing_ok: bool
) -> Iterator[tuple[NDArray[np.float64], NDArray[Any]]]:
    """Go through a column of square matrices with a row group in memory, as arrays and without Python objects.

    Args:
        path: a Parquet file of an export.
        column: of lists of lists of numbers; rows without a value are left out.
        numbers: columns of single numbers to read beside it.
        missing_ok: whether entries of a matrix may be null.

    Yields:
        For the B rows of a row group the numbers, (len(numbers), B) float64 and NaN for null, and the matrices
        (B, C, C) as they are stored, float64 with NaN for null.

    Raises:
        ResultsError: the file is damaged, or a value is not a square matrix of finite numbers as large as the others
            of its row group.
    """
    with _naming(path), _open(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, [*numbers, column], use_threads=False)
            table = table.filter(table[column].is_valid()) if table[column].null_count else table
            if len(table):
                rows = np.array([table[name].to_numpy() for name in numbers], dtype=np.float64)
                yield rows, _matrices(path, table[column].combine_chunks(), column, missing_ok)


def _matrices(path: Path, values: Any, column: str, missing_ok: bool) -> NDArray[Any]:
    """Put lists of lists of equal lengths into one array."""
    lines = values.flatten()
    entries = lines.flatten()
    n_rows, n_classes = len(values), len(lines) // len(values)
    lengths = {
        *pc.unique(pc.list_value_length(values)).to_pylist(),
        *pc.unique(pc.list_value_length(lines)).to_pylist(),
    }
    if lengths != {n_classes} or n_classes == 0:
        raise _not_square(path, column, f"lists of {', '.join(map(str, sorted(lengths, key=str)))} entries")
    array: NDArray[Any] = entries.to_numpy(zero_copy_only=False).reshape(n_rows, n_classes, n_classes)
    if array.dtype.kind not in "iuf" or np.isinf(array).any() or not (missing_ok or np.isfinite(array).all()):
        raise _not_square(path, column, "others")
    return array


def _not_square(path: Path, column: str, got: str) -> ResultsError:
    return ResultsError(
        f"Reading {column} failed for {path}: expected square matrices of finite numbers, as large as one another, got "
        f"{got}. Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
    )


def read_strengths(path: Path) -> tuple[float, ...]:
    """Find the strengths that a file has rows at, ascending; whoever sorted it may have put one in each row group.

    Raises:
        ResultsError: the file is damaged.
    """
    with _naming(path):
        return _strengths(path, FileState.of(path))


@lru_cache(maxsize=256)
def _strengths(path: Path, _state: FileState) -> tuple[float, ...]:
    with _open(path) as file:
        _check_columns(path, file.schema_arrow)
        strengths = pc.unique(file.read(["strength"], use_threads=False)["strength"]).to_pylist()
    if None in strengths:
        raise _malformed(path, "a row without a strength")
    return tuple(sorted(strengths))


def read_n_classes(path: Path) -> int | None:
    """Read how many classes the dataset of a file has; None where it does not tell.

    Raises:
        ResultsError: the file is damaged.
    """
    with _naming(path), _open(path) as file:
        if "n_classes" not in file.schema_arrow.names or file.num_row_groups == 0:
            return None
        counts = file.read_row_group(0, ["n_classes"], use_threads=False)["n_classes"].to_pylist()
    return next((int(count) for count in counts if count is not None), None)


def _groups_of(footer: pq.FileMetaData, architecture: int | None) -> list[int]:
    """Name the row groups that may hold an architecture, by the smallest and largest that the footer says they have."""
    if architecture is None:
        return list(range(footer.num_row_groups))
    names = [footer.schema.column(number).path for number in range(footer.num_columns)]
    place = names.index("architecture")
    held = []
    for group in range(footer.num_row_groups):
        bounds = footer.row_group(group).column(place).statistics
        if bounds is None or not bounds.has_min_max or bounds.min <= architecture <= bounds.max:
            held.append(group)
    return held


def _values(table: pa.Table, measure: str) -> Iterable[Any]:
    if measure != "confidence":
        plain: list[Any] = table[_COLUMNS[measure][0]].to_pylist()
        return plain
    label, argmax, correct, incorrect = (table[name].to_pylist() for name in _COLUMNS[measure])
    return [
        {"label": one, "argmax": other, "prediction": [sure, wrong]}
        for one, other, sure, wrong in zip(label, argmax, correct, incorrect, strict=True)
    ]


@contextmanager
def open_zstandard(path: Path) -> Iterator[BinaryIO]:
    """Open a file that was compressed with Zstandard, to read what it was made of.

    Raises:
        ResultsError: inside, where it is damaged.
    """
    with _naming(path), path.open("rb") as packed, pa.CompressedInputStream(pa.PythonFile(packed), "zstd") as stream:
        yield stream


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise what Arrow says of a damaged file as an error of ours."""
    try:
        yield
    except ResultsError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # the last of names and of metadata
        # Arrow says of damage that it is an OSError, without the number that those of the system have.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise damaged_file(path, error) from error
