"""Reading of the Parquet files of an export or a conversion. Values have the same form as in JSON files.

Arrow's threads are not used, so that reading also works after a fork. Functions raise ResultsError if a file is
damaged. Functions with a parameter `weights` raise ConfigError if the file has rows for several sets of weights and
`weights` is not the name of one of these sets.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, ResultsError, did_you_mean
from robust201.core.files import MAX_EXPORTED_FILE_BYTES, IrregularFileError, check_file
from robust201.reader.file_cache import cached_while_unchanged
from robust201.reader.value_checks import ADVICE, damaged_file_error, format_id
from robust201.statistics.outcomes import Packed, count_correct
from robust201.tasks.columns import CORRECT_BITS, DESCRIPTIVE_COLUMNS, MEASUREMENTS, column_sources, fields_of

_WEIGHTS_COLUMN = "weights"
"""Column with the name of the weights, in files with rows for several sets of weights per architecture."""

_ROWS_PER_BATCH = 16
"""Number of rows that are converted to Python objects at once; objects need about ten times as much memory as Arrow."""

CONVERTED = b"robust201.converted"
"""Metadata key of files that were converted from JSON files: the size and time of each file (see `stamp_of`)."""


@contextmanager
def _convert_damage_errors(path: Path) -> Iterator[None]:
    """Convert Arrow's exceptions for a damaged file to ResultsError."""
    try:
        yield
    except ResultsError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: invalid names or metadata
        # Arrow also raises OSError for damaged files, but without errno, which errors of the operating system have.
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, IrregularFileError):
            raise
        raise damaged_file_error(path, error) from error


@contextmanager
def _open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file so that reading verifies the checksums of pages.

    Without checksums, most damaged pages would be decoded to wrong values.
    """
    with _convert_damage_errors(path):
        check_file(path, MAX_EXPORTED_FILE_BYTES)
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file


# Columns and metadata


@cached_while_unchanged
def _read_schema(path: Path) -> pa.Schema:
    with _convert_damage_errors(path):
        check_file(path, MAX_EXPORTED_FILE_BYTES)
        return pq.read_schema(path)


def read_file(path: Path) -> pa.Table:
    """Return all columns and rows of a file."""
    with _open_parquet(path) as file:
        return file.read()


def column_names(path: Path) -> list[str]:
    """Return the names of a file's columns."""
    names: list[str] = _read_schema(path).names
    return names


def has_columns_of(path: Path, measurement: str) -> bool:
    """Return whether a file has all columns of a measurement."""
    return column_sources(measurement).keys() <= {*column_names(path)}


def measurements_in(path: Path) -> list[str]:
    """Return the names of a file's measurements."""
    measurements = [measurement for measurement in MEASUREMENTS if has_columns_of(path, measurement)]
    known_columns = {
        *DESCRIPTIVE_COLUMNS,
        CORRECT_BITS,
        *(column for measurement in MEASUREMENTS for column in column_sources(measurement)),
    }
    return [*measurements, *(name for name in column_names(path) if name not in known_columns)]


def has_text_ids(path: Path) -> bool:
    """Return whether a file identifies architectures by text instead of integers."""
    return "architecture" in column_names(path) and _is_text(_read_schema(path).field("architecture").type)


def _is_text(dtype: pa.DataType) -> bool:
    value_type = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    return bool(pa.types.is_string(value_type) or pa.types.is_large_string(value_type))


@cached_while_unchanged
def _read_distinct_values(path: Path, column: str) -> list[Any]:
    """Return the distinct values of a column; empty if the file does not have the column."""
    if column not in column_names(path):
        return []
    with _open_parquet(path) as file:
        values: list[Any] = pc.unique(file.read([column], use_threads=False)[column]).to_pylist()
        return values


def read_ids(path: Path) -> list[str]:
    """Return the ids of a file's architectures."""
    return [str(name) for name in _read_distinct_values(path, "architecture") if name is not None]


def read_weights_names(path: Path) -> list[str]:
    """Return the names of the weights in a file; empty if the file has no such column."""
    return [str(name) for name in _read_distinct_values(path, _WEIGHTS_COLUMN) if name is not None]


def read_strengths(path: Path) -> tuple[float, ...]:
    """Return a file's strengths, ascending."""
    _check_columns(path, _read_schema(path))
    strengths = _read_distinct_values(path, "strength")
    if None in strengths:
        raise _malformed_error(path, "a row without a strength")
    return tuple(sorted(strengths))


def read_n_images(path: Path) -> int | None:
    """Return the number of images on which a file's rows were evaluated; None if unknown or not the same for all."""
    distinct_counts = _read_distinct_values(path, "n_images")
    return int(distinct_counts[0]) if len(distinct_counts) == 1 and distinct_counts[0] is not None else None


def read_n_classes(path: Path) -> int | None:
    """Return the number of classes of a file's dataset; None if unknown."""
    return next((int(count) for count in _read_distinct_values(path, "n_classes") if count is not None), None)


def is_converted(path: Path) -> bool:
    """Return whether a file was converted from JSON files, as opposed to written by an export."""
    return CONVERTED in (_read_schema(path).metadata or {})


def stamp_of(json_file: Path) -> list[int]:
    """Return the size and the modification time of a JSON file; a file that was replaced has another stamp."""
    status = json_file.stat()
    return [status.st_size, status.st_mtime_ns]


def is_outdated(path: Path, measurement: str, json_file: Path) -> bool:
    """Return whether a Parquet file was converted from another version of a measurement's JSON file, or without it."""
    metadata = _read_schema(path).metadata or {}
    if CONVERTED not in metadata:
        return False
    stamps = json.loads(metadata[CONVERTED])
    return not isinstance(stamps, dict) or stamps.get(measurement) != stamp_of(json_file)


# Values


def _select_weights(path: Path, weights: str | None) -> str | None:
    """Return the name of the weights whose rows are read, or None for all rows if the file has at most one name."""
    names = read_weights_names(path)
    if not names or (weights is None and len(names) == 1):
        return None
    if weights not in names:
        actual, suggestion = ("no name", "") if weights is None else (repr(weights), did_you_mean(weights, names))
        raise ConfigError(
            f"Reading failed for {path}: expected weights {' or '.join(map(repr, names))}, got {actual}.{suggestion} "
            "Choose one with --weights-name, or weights=… in Python."
        )
    return weights


def _iter_row_groups(
    path: Path, columns: Sequence[str], weights: str | None, groups: Iterable[int] | None = None
) -> Iterator[pa.Table]:
    """Yield some or all row groups; if `weights` is not None, only with the rows of these weights."""
    with _open_parquet(path) as file:
        for group in range(file.num_row_groups) if groups is None else groups:
            table = file.read_row_group(group, [*columns, *([_WEIGHTS_COLUMN] if weights else [])], use_threads=False)
            yield table.filter(pc.equal(table[_WEIGHTS_COLUMN].cast(pa.string()), weights)) if weights else table


def read_parquet_values(
    path: Path,
    measurement: str,
    strengths: Sequence[float],
    architecture: str | None = None,
    *,
    is_single: bool,
    weights: str | None = None,
    ids_are_text: bool = False,
) -> dict[str, Any]:
    """Read a measurement of all architectures or of one architecture.

    For one architecture, only the row groups whose bounds in the footer include its id are read.

    Args:
        path: the file.
        measurement: name of the measurement.
        strengths: the expected strengths.
        architecture: id of an architecture; None for all architectures.
        is_single: whether architectures have a single value instead of one value per strength.
        weights: name of the weights.
        ids_are_text: whether the dataset identifies architectures by names instead of indices.

    Returns:
        A value for each id, or a list of values in ascending order of strengths.

    Raises:
        ResultsError: the file is damaged, or the strengths of an architecture's values differ from `strengths`.
    """
    selected_weights = _select_weights(path, weights)
    _check_columns(path, _read_schema(path), ids_are_text=ids_are_text)
    if architecture is None:
        scalars = _read_scalars(
            path, measurement, None if is_single else sorted(strengths), selected_weights, ids_are_text
        )
        if scalars is not None:
            return scalars
    values_by_id: dict[str, dict[float, Any]] = {}
    for identifier, strength, value in _iter_values(path, measurement, architecture, selected_weights, ids_are_text):
        values = values_by_id.setdefault(identifier, {})
        if strength in values:
            raise _malformed_error(path, f"{format_id(identifier)} at {strength:g} twice")
        values[strength] = value
    return {
        identifier: _get_single_value(path, identifier, values)
        if is_single
        else _list_values_per_strength(path, identifier, values, strengths)
        for identifier, values in values_by_id.items()
    }


def _read_scalars(
    path: Path, measurement: str, strengths: Sequence[float] | None, weights: str | None, ids_are_text: bool
) -> dict[str, Any] | None:
    """Read a measurement with one number per row, in one pass.

    `strengths` are the strengths of each architecture's rows, ascending, or None if each architecture has one row.
    Returns None if the measurement is not a single number, or if the rows are not in the order of an export. The rows
    must then be read one by one.
    """
    (column, *other_columns) = column_sources(measurement)
    if other_columns or not pa.types.is_floating(_read_schema(path).field(column).type):
        return None
    tables = [*_iter_row_groups(path, ["architecture", "strength", column], weights)]
    if not tables:
        return {}
    table = pa.concat_tables(tables)
    n_values = 1 if strengths is None else len(strengths)
    if not n_values or len(table) % n_values or table["architecture"].null_count or table["strength"].null_count:
        return None
    architectures = np.array(table["architecture"].to_pylist() if ids_are_text else table["architecture"]).reshape(
        -1, n_values
    )
    if (architectures != architectures[:, :1]).any() or len(np.unique(architectures[:, 0])) < len(architectures):
        return None
    if strengths is not None and (table["strength"].to_numpy().reshape(architectures.shape) != strengths).any():
        return None
    values = np.array(table[column].to_pylist() if table[column].null_count else table[column]).reshape(
        architectures.shape
    )
    values_of_architectures = values[:, 0] if strengths is None else values
    return dict(zip(map(str, architectures[:, 0].tolist()), values_of_architectures.tolist(), strict=True))


def _iter_values(
    path: Path, measurement: str, architecture: str | None, weights: str | None, ids_are_text: bool
) -> Iterator[tuple[str, float, Any]]:
    """Yield the id, strength and value of each row."""
    requested_id = architecture if architecture is None or ids_are_text else int(architecture)
    groups = _find_groups(path, requested_id) if isinstance(requested_id, int) else None
    for group in _iter_row_groups(path, ["architecture", "strength", *column_sources(measurement)], weights, groups):
        with _convert_damage_errors(path):
            architectures = group["architecture"].cast(pa.string()) if ids_are_text else group["architecture"]
            table = group if requested_id is None else group.filter(pc.equal(architectures, requested_id))
            if table["architecture"].null_count or table["strength"].null_count:
                raise _malformed_error(path, "rows without an architecture or strength")
            for first_row in range(0, len(table), _ROWS_PER_BATCH):
                rows = table.slice(first_row, _ROWS_PER_BATCH)
                ids, strengths = map(str, rows["architecture"].to_pylist()), rows["strength"].to_pylist()
                yield from zip(ids, strengths, _convert_rows(rows, measurement), strict=True)


def _find_groups(path: Path, architecture: int) -> list[int]:
    """Return the indices of the row groups whose bounds in the footer include an architecture's index."""
    with _convert_damage_errors(path):
        metadata = pq.read_metadata(path)
        columns = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        index = columns.index("architecture")
        bounds = (metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups))
        return [
            group
            for group, statistics in enumerate(bounds)
            if statistics is None or not statistics.has_min_max or statistics.min <= architecture <= statistics.max
        ]


def _convert_rows(table: pa.Table, measurement: str) -> list[Any]:
    """Return a measurement's value for each row: a number, a list, or a dictionary of its fields."""
    values_by_column: dict[str, list[Any]] = {}
    for name, column_source in column_sources(measurement).items():
        values = table[name].to_pylist()
        if column_source.element is not None:
            earlier_elements = values_by_column.get(column_source.source, [[]] * len(values))
            values = [[*elements, value] for elements, value in zip(earlier_elements, values, strict=True)]
        values_by_column[column_source.source] = values
    fields = fields_of(measurement)
    if "" in fields:
        return values_by_column[fields[""]]
    rows = zip(*(values_by_column[column] for column in fields.values()), strict=True)
    return [dict(zip(fields, values_of_fields, strict=True)) for values_of_fields in rows]


def _get_single_value(path: Path, identifier: str, values: dict[float, Any]) -> Any:
    if len(values) > 1:
        raise _malformed_error(
            path, f"{len(values)} values of {format_id(identifier)}, where clean images and measures have only one"
        )
    return next(iter(values.values()))


def _list_values_per_strength(
    path: Path, identifier: str, values: dict[float, Any], strengths: Sequence[float]
) -> list[Any]:
    # A value's position in the list determines its strength, so no value may be missing.
    if values.keys() != set(strengths):
        expected, actual = (
            ", ".join(f"{strength:g}" for strength in sorted(strength_set)) for strength_set in (strengths, values)
        )
        raise ResultsError(
            f"Reading {format_id(identifier)} failed for {path}: expected {len(strengths)} values, at the strengths "
            f"{expected}, got {len(values)}, at {actual}. {ADVICE}"
        )
    return [values[strength] for strength in sorted(values)]


def _check_columns(path: Path, schema: pa.Schema, *, ids_are_text: bool | None = None) -> None:
    for name in ("architecture", "strength", "key"):
        if name not in schema.names:
            raise _malformed_error(path, f"no column `{name}`")
    architecture_type = schema.field("architecture").type
    is_valid_architecture = (pa.types.is_integer(architecture_type) and not ids_are_text) or (
        _is_text(architecture_type) and ids_are_text is not False
    )
    for name, is_valid in (
        ("architecture", is_valid_architecture),
        ("strength", pa.types.is_floating(schema.field("strength").type)),
    ):
        if not is_valid:
            raise _malformed_error(path, f"a column `{name}` of type {schema.field(name).type}")


def _malformed_error(path: Path, fault: str) -> ResultsError:
    return ResultsError(
        f"Reading failed for {path}: expected distinct rows with an architecture (an integer, or text in spaces "
        f"without indices), a strength (a double) and a key, got {fault}. {ADVICE}"
    )


def iter_matrices(
    path: Path, columns: Sequence[str], companions: Sequence[str], *, missing_ok: bool, weights: str | None = None
) -> Iterator[tuple[list[NDArray[Any]], list[NDArray[Any]]]]:
    """Read columns of square matrices as arrays, one row group at a time.

    Args:
        path: the file.
        columns: columns of matrices.
        companions: further columns of numbers or text.
        missing_ok: whether matrices may contain null.
        weights: name of the weights.

    Yields:
        Two lists for the B rows of a row group that have a value in the first column. The first has each companion
        column, (B,) float64 with NaN for null, or objects. The second has the matrices of each column, (B, C, C), with
        the stored type, or float64 with NaN for null.

    Raises:
        ResultsError: a value is not a square matrix of finite numbers, or matrices of a row group differ in size.
    """
    for table in _iter_row_groups(path, [*companions, *columns], _select_weights(path, weights)):
        with _convert_damage_errors(path):
            first_column = table[columns[0]]
            rows = table.filter(first_column.is_valid()) if first_column.null_count else table
            if len(rows):
                companion_arrays = [_to_array(rows[name]) for name in companions]
                yield (
                    companion_arrays,
                    [_to_matrices(path, rows[name].combine_chunks(), name, missing_ok) for name in columns],
                )


def _to_array(column: pa.ChunkedArray) -> NDArray[Any]:
    if _is_text(column.type):
        return np.array(column.to_pylist(), dtype=object)
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _to_matrices(path: Path, values: Any, column: str, missing_ok: bool) -> NDArray[Any]:
    """Convert a column of square matrices, which are lists of lists, to one array."""
    matrix_rows = values.flatten()
    n_rows, n_classes = len(values), len(matrix_rows) // len(values)
    lengths = {
        length for lists in (values, matrix_rows) for length in pc.unique(pc.list_value_length(lists)).to_pylist()
    }
    problem = f"lists of {', '.join(map(str, sorted(lengths, key=str)))} entries"
    if lengths == {n_classes} and n_classes > 0:
        array: NDArray[Any] = matrix_rows.flatten().to_numpy(zero_copy_only=False).reshape(n_rows, n_classes, n_classes)
        if array.dtype.kind in "iuf" and not np.isinf(array).any() and (missing_ok or np.isfinite(array).all()):
            return array
        problem = "other values"
    raise ResultsError(
        f"Reading {column} failed for {path}: expected square matrices of finite numbers, all of the same size, got "
        f"{problem}. Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
    )


# Per-image outcomes


def read_packed_outcomes(
    path: Path, strength: float, *, weights: str | None = None, ids_are_text: bool = False
) -> tuple[list[str], Packed]:
    """Read the packed outcomes of all architectures at a strength.

    Returns:
        The A ids in the order of the file, and (A, B) uint8 (see `statistics.outcomes`).

    Raises:
        ResultsError: the file is damaged, or outcomes contradict the number of images or the accuracies.
    """
    selected_weights = _select_weights(path, weights)
    _check_columns(path, _read_schema(path), ids_are_text=ids_are_text)
    n_images = read_n_images(path) or 0
    n_bytes = -(-n_images // 8)
    columns = ["architecture", "strength", "accuracy", CORRECT_BITS]
    tables = [
        table.filter(pc.equal(table["strength"], strength))
        for table in _iter_row_groups(path, columns, selected_weights)
    ]
    ids, bit_rows, accuracies = (
        [value for table in tables for value in table[name].to_pylist()]
        for name in ("architecture", CORRECT_BITS, "accuracy")
    )
    if not n_images or any(bits is None or len(bits) != n_bytes for bits in bit_rows) or None in accuracies:
        raise _invalid_outcomes_error(path, "rows with a wrong number of bits")
    packed: Packed = np.frombuffer(b"".join(bit_rows), np.uint8).reshape(len(bit_rows), n_bytes)
    # The bits of the last byte that belong to no image must be 0.
    padding = packed[:, -1] & (0xFF >> (n_images % 8)) if n_images % 8 else np.zeros(len(bit_rows), np.uint8)
    if padding.any() or not np.array_equal(count_correct(packed), np.rint(np.multiply(accuracies, n_images))):
        raise _invalid_outcomes_error(path, "bits that contradict the accuracy, or bits without an image")
    if len({*ids}) != len(ids):
        raise _malformed_error(path, "an architecture twice")
    return list(map(str, ids)), packed


def _invalid_outcomes_error(path: Path, fault: str) -> ResultsError:
    return ResultsError(
        f"Reading {CORRECT_BITS} failed for {path}: expected one bit for each image, set for as many images as the "
        f"accuracy implies, got {fault}. Check the folder with `sha256sum -c SHA256SUMS`, and export or download the "
        "file again."
    )


def read_image_table(path: Path) -> dict[str, NDArray[Any]]:
    """Read the table of images, in the order of their outcomes.

    Returns:
        `row` (N,) int64, the image's row in its split; `label` (N,) int64; and `sha256` (N,) text, the hash of its
        pixels.
    """
    with _open_parquet(path) as file:
        table = file.read(["position", "row", "label", "sha256"], use_threads=False)
        if table["position"].to_pylist() != list(range(len(table))):
            raise ResultsError(f"Reading failed for {path}: the positions are not consecutive numbers from 0. {ADVICE}")
        integer_columns = {name: table[name].to_numpy().astype(np.int64) for name in ("row", "label")}
        return {**integer_columns, "sha256": np.array(table["sha256"].to_pylist(), dtype=object)}
