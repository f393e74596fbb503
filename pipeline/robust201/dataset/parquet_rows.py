"""Functions that read the Parquet files of an export as rows.

Arrow's threads are not used, so that reading also works in forked processes. Functions raise ResultsError if a file is
damaged.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.core.records import ArchitectureId
from robust201.dataset.layout import paper_key
from robust201.dataset.row_block import RowBlock, make_ids
from robust201.dataset.values import ADVICE, check_column, damaged_file_error, describe_measurement
from robust201.statistics.outcomes import Packed, count_correct
from robust201.tasks.columns import COLUMNS, CORRECT_BITS, COUNTS, MEASUREMENTS, column_sources, fields_of

_CHECK_FILE = "Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."


@contextmanager
def _convert_damage_errors(path: Path) -> Iterator[None]:
    """Convert Arrow's exceptions for a damaged file to ResultsError."""
    try:
        yield
    except ResultsError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:  # invalid names, types or columns
        # Arrow also raises OSError for damaged files, but without errno, which errors of the operating system have.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise damaged_file_error(path, error) from error


@contextmanager
def _open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file so that reading verifies the checksums of pages.

    Without checksums, most damaged pages would be decoded to wrong values.
    """
    with _convert_damage_errors(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        yield file


def _file_state(path: Path) -> tuple[int, int]:
    """Return a file's modification time and size, which identify its current content."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def column_names(path: Path) -> list[str]:
    """Return the names of a file's columns."""
    return _read_column_names(path, *_file_state(path))


@lru_cache(maxsize=1024)
def _read_column_names(path: Path, _modified: int, _size: int) -> list[str]:
    with _convert_damage_errors(path):
        names: list[str] = pq.read_schema(path).names
        return names


def read_distinct_values(path: Path, column: str) -> list[Any]:
    """Return the distinct values of a column, except null; empty if the file does not have the column."""
    return _read_distinct_values(path, *_file_state(path), column) if column in column_names(path) else []


@lru_cache(maxsize=1024)
def _read_distinct_values(path: Path, _modified: int, _size: int, column: str) -> list[Any]:
    with _open_parquet(path) as file:
        values = pc.unique(file.read([column], use_threads=False)[column]).to_pylist()
    return [value for value in values if value is not None]


def has_columns_of(path: Path, measurement: str) -> bool:
    """Return whether a file has all columns of a measurement."""
    return column_sources(measurement).keys() <= {*column_names(path)}


def iter_parquet_rows(path: Path, measurement: str, architecture: ArchitectureId | None = None) -> Iterator[RowBlock]:
    """Read a measurement of all architectures or of one architecture, one row group at a time.

    For an index, only row groups whose bounds in the footer include it are read. For null values, see `_to_rows`.

    Raises:
        ResultsError: the file is damaged, or a value is invalid.
    """
    _check_columns(path)
    names = [name for name in ("architecture", "weights", "strength", "n_images") if name in column_names(path)]
    with _open_parquet(path) as file:
        for group in _find_groups(file, architecture):
            table = file.read_row_group(group, [*names, *column_sources(measurement)], use_threads=False)
            if architecture is not None:
                table = table.filter(pc.equal(table["architecture"].cast(pa.string()), str(architecture)))
            if rows := _to_rows(path, table, measurement):
                yield rows


def _find_groups(file: pq.ParquetFile, architecture: ArchitectureId | None) -> list[int]:
    """Return the indices of the row groups whose bounds in the footer include an architecture's index."""
    metadata = file.metadata
    groups = list(range(metadata.num_row_groups))
    if not isinstance(architecture, int) or not pa.types.is_integer(file.schema_arrow.field("architecture").type):
        return groups
    index = [metadata.schema.column(position).path for position in range(metadata.num_columns)].index("architecture")
    bounds = {group: metadata.row_group(group).column(index).statistics for group in groups}
    return [
        group
        for group, statistics in bounds.items()
        if statistics is None or not statistics.has_min_max or statistics.min <= architecture <= statistics.max
    ]


def _to_rows(path: Path, table: pa.Table, measurement: str) -> RowBlock | None:
    """Convert a table; rows without a value are left out, unless the measurement is confidence or a measure."""
    if table["architecture"].null_count or table["strength"].null_count:
        raise _malformed_error(path, "rows without an architecture or strength")
    if "n_images" in table.column_names and pc.any(pc.less(table["n_images"], 1)).as_py():
        raise _malformed_error(path, "a number of images below 1")
    sources = column_sources(measurement)
    first_column = table[next(iter(sources))]
    if first_column.null_count and measurement in MEASUREMENTS and measurement != "confidence":
        table = table.filter(first_column.is_valid())
    if not len(table):
        return None
    architectures = table["architecture"]
    columns = {}
    for name in fields_of(measurement).values():
        parquet_names = [parquet_name for parquet_name, source in sources.items() if source.source == name]
        arrays = [_to_array(path, table[parquet_name], parquet_name, name) for parquet_name in parquet_names]
        columns[name] = arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=-1)
        try:
            check_column(name, columns[name])
        except ValueError as error:
            raise ResultsError(
                f"Reading {measurement} failed for {path}: expected {describe_measurement(measurement)}, got {error}. "
                f"{ADVICE}"
            ) from error
    n_images = table["n_images"].to_numpy().astype(np.float64) if "n_images" in table.column_names else None
    counts = columns.get(COUNTS)
    if n_images is not None and counts is not None and counts.dtype.kind == "i":
        is_known = ~np.isnan(n_images)
        if not np.array_equal(counts.sum(axis=(1, 2))[is_known], n_images[is_known]):
            raise _malformed_error(path, "confusion matrices of another number of images")
    return RowBlock(
        architectures.to_numpy().astype(np.int64)
        if pa.types.is_integer(architectures.type)
        else make_ids(architectures.to_pylist()),
        np.array(table["weights"].to_pylist(), dtype=object) if "weights" in table.column_names else None,
        table["strength"].to_numpy(),
        n_images,
        columns,
    )


def _to_array(path: Path, column: pa.ChunkedArray, source: str, name: str) -> NDArray[Any]:
    """Convert a column of numbers, or of lists of equal shape, to an array; null becomes NaN.

    The lists of a measure become objects, because their shapes may differ.
    """
    values = column.combine_chunks()
    if name not in COLUMNS and _is_list(values.type):
        array = np.empty(len(values), dtype=object)
        array[:] = values.to_pylist()
        return array
    shape = [len(values)]
    while _is_list(values.type):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) != 1 or not lengths[0]:
            raise _shape_error(path, source, lengths)
        values = values.flatten()
        shape.append(lengths[0])
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind not in "iuf" or np.isinf(numbers).any():
        raise ResultsError(
            f"Reading {source} failed for {path}: expected finite numbers, got other values. {_CHECK_FILE}"
        )
    return numbers.reshape(shape)


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype))


def _shape_error(path: Path, source: str, lengths: Iterable[Any]) -> ResultsError:
    sizes = ", ".join(map(str, sorted(lengths, key=str)))
    return ResultsError(
        f"Reading {source} failed for {path}: expected arrays of numbers, all of the same size, got lists of {sizes} "
        f"entries. {_CHECK_FILE}"
    )


def _check_columns(path: Path) -> None:
    """Check that a file has the required columns, and the key and the dataset that its folders are named after."""
    for name in ("architecture", "strength", "key"):
        if name not in column_names(path):
            raise _malformed_error(path, f"no column `{name}`")
    for folder, name in ((path.parent, "key"), (path.parent.parent, "dataset")):
        values = read_distinct_values(path, name)
        if values and [*map(paper_key, values)] != [paper_key(folder.name.removeprefix(f"{name}="))]:
            raise _malformed_error(path, f"the {name} {', '.join(map(str, values))}")


def _malformed_error(path: Path, fault: str) -> ResultsError:
    return ResultsError(
        f"Reading failed for {path}: expected distinct rows with an architecture (an integer, or text if the "
        f"search space has no indices), a strength (a double) and a key, got {fault}. {ADVICE}"
    )


# Per-image outcomes


def read_packed_outcomes(path: Path, strength: float) -> tuple[list[Any], list[str], Packed]:
    """Read the packed outcomes of all architectures at a strength.

    Returns:
        In the order of the file: A ids, A names of the weights (empty if the file has no such column), and the packed
        outcomes, (A, B) uint8 (see `statistics.outcomes`).

    Raises:
        ResultsError: the file is damaged, or outcomes contradict the number of images or the accuracies.
    """
    _check_columns(path)
    with _open_parquet(path) as file:
        names = [name for name in ("architecture", "weights", "strength", "n_images") if name in column_names(path)]
        table = file.read([*names, "accuracy", CORRECT_BITS], use_threads=False)
        table = table.filter(pc.equal(table["strength"], strength))
        ids, bit_rows, accuracies = (table[name].to_pylist() for name in ("architecture", CORRECT_BITS, "accuracy"))
        image_counts = set(table["n_images"].to_pylist()) if "n_images" in names else set()
        n_images = image_counts.pop() if len(image_counts) == 1 else 0
        if (
            not n_images
            or any(bits is None or len(bits) != -(-n_images // 8) for bits in bit_rows)
            or None in accuracies
        ):
            raise _invalid_outcomes_error(path, "rows with a wrong number of bits")
        packed: Packed = np.frombuffer(b"".join(bit_rows), np.uint8).reshape(len(bit_rows), -(-n_images // 8))
        # The bits of the last byte that belong to no image must be 0.
        padding = packed[:, -1] & (0xFF >> (n_images % 8)) if n_images % 8 else np.zeros(len(bit_rows), np.uint8)
        if padding.any() or not np.array_equal(count_correct(packed), np.rint(np.multiply(accuracies, n_images))):
            raise _invalid_outcomes_error(path, "bits that contradict the accuracy, or bits without an image")
        weights = [str(name) for name in table["weights"].to_pylist()] if "weights" in names else [""] * len(ids)
        if len({*zip(ids, weights, strict=True)}) != len(ids):
            raise _malformed_error(path, "an architecture twice")
        return ids, weights, packed


def _invalid_outcomes_error(path: Path, fault: str) -> ResultsError:
    return ResultsError(
        f"Reading {CORRECT_BITS} failed for {path}: expected one bit for each image, set for as many images as the "
        f"accuracy implies, got {fault}. {_CHECK_FILE}"
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
