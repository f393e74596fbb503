"""Results read from the Parquet files of an export or a conversion, in the form of the JSON files.

No thread of Arrow's is used, so that reading works after a fork too. Functions raise ResultsError where a file is
damaged; those that take the name of weights raise ConfigError where the file has rows of several weights and none is
named, or none of those named.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, ResultsError, closest
from robust201.core.files import MAX_LISTED_BYTES, IrregularFileError, check_file, open_file
from robust201.core.parquet_footer import RowGroup, parse_row_groups, read_footer_bytes
from robust201.reader.file_cache import FileState, hash_once, kept_while_unchanged
from robust201.reader.listings import PARQUET_FILES, ListedFile
from robust201.reader.value_checks import ANEW, damaged_file, show_id
from robust201.statistics.outcomes import Packed, count_correct
from robust201.tasks.columns import CORRECT_BITS, DESCRIPTIONS, MEASUREMENTS, fields_of, parquet_forms

_WEIGHTS = "weights"
"""Column of the names of weights, in a file with rows of several per architecture."""

_ROWS_AT_ONCE = 16
"""As Python objects, rows are some ten times larger than in Arrow."""

JSON_SOURCES = b"robust201.json"
"""In the metadata of a converted file: size and SHA-256 of the JSON file that each measurement was read from."""


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Raise what Arrow says of a damaged file as an error of ours."""
    try:
        yield
    except ResultsError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # the last of names and of metadata
        # Arrow says of damage that it is an OSError, without the number that those of the system have.
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, IrregularFileError):
            raise
        raise damaged_file(path, error) from error


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file; pages are compared with their checksums, if any: damaged ones mostly decode, to other values."""
    with _damage_named(path):
        check_file(path, MAX_LISTED_BYTES)
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file


@contextmanager
def open_zstandard(path: Path) -> Iterator[BinaryIO]:
    """Open a file that was compressed with Zstandard, to read what it was made of."""
    with (
        _damage_named(path),
        open_file(path, MAX_LISTED_BYTES) as packed,
        pa.CompressedInputStream(pa.PythonFile(packed), "zstd") as stream,
    ):
        yield stream


# What a file says of itself


@kept_while_unchanged
def _schema(path: Path) -> pa.Schema:
    with _damage_named(path):
        check_file(path, MAX_LISTED_BYTES)
        return pq.read_schema(path)


def column_names(path: Path) -> list[str]:
    """Names of a file's columns."""
    names: list[str] = _schema(path).names
    return names


def has_columns_of(path: Path, measure: str) -> bool:
    """Whether a file has a measurement."""
    return parquet_forms(measure).keys() <= {*column_names(path)}


def measurements_in(path: Path) -> list[str]:
    """List what a file has measurements of."""
    known = [measure for measure in MEASUREMENTS if has_columns_of(path, measure)]
    taken = {*DESCRIPTIONS, CORRECT_BITS, *(column for measure in MEASUREMENTS for column in parquet_forms(measure))}
    return [*known, *(name for name in column_names(path) if name not in taken)]


def has_text_ids(path: Path) -> bool:
    """Whether a file names its architectures by text, not by whole numbers."""
    return "architecture" in column_names(path) and _is_text(_schema(path).field("architecture").type)


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value))


@kept_while_unchanged
def _distinct(path: Path, column: str) -> list[Any]:
    """Different values of a column; none of a column that the file does not have."""
    if column not in column_names(path):
        return []
    with _opened(path) as file:
        values: list[Any] = pc.unique(file.read([column], use_threads=False)[column]).to_pylist()
        return values


def read_ids(path: Path) -> list[str]:
    """List the architectures that a file has rows of."""
    return [str(name) for name in _distinct(path, "architecture") if name is not None]


def read_weights_names(path: Path) -> list[str]:
    """List the names of the weights that a file has rows of; empty where it does not say."""
    return [str(name) for name in _distinct(path, _WEIGHTS) if name is not None]


def read_strengths(path: Path) -> tuple[float, ...]:
    """List the strengths that a file has rows at, ascending; each row group may have one of its own."""
    _check_columns(path, _schema(path))
    strengths = _distinct(path, "strength")
    if None in strengths:
        raise _malformed(path, "a row without a strength")
    return tuple(sorted(strengths))


def read_whole(path: Path) -> pa.Table:
    """Read a small file; ResultsError if it is damaged."""
    with _opened(path) as file:
        return file.read()


def read_n_images(path: Path) -> int | None:
    """Find how many images each row of a file is of; None where it does not tell, or rows differ."""
    counts = _distinct(path, "n_images")
    return int(counts[0]) if len(counts) == 1 and counts[0] is not None else None


def read_n_classes(path: Path) -> int | None:
    """Find how many classes the dataset of a file has; None where it does not say."""
    return next((int(count) for count in _distinct(path, "n_classes") if count is not None), None)


@kept_while_unchanged
def _describe(path: Path) -> ListedFile:
    with _damage_named(path):
        return ListedFile.of(path)


def check_listed(path: Path, expected: ListedFile | None) -> None:
    """Check that a file has the rows and the footer that its folder's listing says; None where that says nothing."""
    if expected is None or (found := _describe(path)) == expected:
        return
    got = f"{found.rows:,} rows" if found.rows != expected.rows else "another footer"
    raise ResultsError(
        f"Reading failed for {path}: expected the {expected.rows:,} rows that {PARQUET_FILES} lists, got {got}. "
        f"Export or download the file again; if it was made of JSON beside it, run `robust201 convert`; if it was "
        f"changed on purpose, delete {PARQUET_FILES}."
    )


def is_converted(path: Path) -> bool:
    """Whether a file was made of JSON files, not by an export."""
    return JSON_SOURCES in (_schema(path).metadata or {})


def agrees_with(path: Path, json_file: Path, measure: str) -> bool:
    """Whether a converted file has the values of the JSON file beside it, by the size and SHA-256 that it names.

    The SHA-256 is computed only if the JSON file was written after it.
    """
    with _damage_named(path):
        source = json.loads((_schema(path).metadata or {}).get(JSON_SOURCES, "{}")).get(measure, {})
    state = FileState.of(json_file)
    if source.get("size") != state.size:
        return False
    return state.mtime_ns <= path.stat().st_mtime_ns or hash_once(json_file) == source.get("sha256")


# Values


def _choose_weights(path: Path, weights: str | None) -> str | None:
    """Return the name of the weights whose rows are read; None for all rows, of a file of one choice without names."""
    names = read_weights_names(path)
    if not names or (weights is None and len(names) == 1):
        return None
    if weights not in names:
        got, near = ("no name", "") if weights is None else (repr(weights), closest(weights, names))
        raise ConfigError(
            f"Reading failed for {path}: expected weights {' or '.join(map(repr, names))}, got {got}.{near} "
            "Name one choice: --weights-name, or weights=… in Python."
        )
    return weights


def _iter_row_groups(
    path: Path, columns: Sequence[str], weights: str | None, groups: Iterable[int] | None = None
) -> Iterator[pa.Table]:
    """Read some row groups or all, of one choice of weights (None: all rows)."""
    with _opened(path) as file:
        for group in range(file.num_row_groups) if groups is None else groups:
            table = file.read_row_group(group, [*columns, *([_WEIGHTS] if weights else [])], use_threads=False)
            yield table.filter(pc.equal(table[_WEIGHTS].cast(pa.string()), weights)) if weights else table


def read_parquet_values(
    path: Path,
    measure: str,
    strengths: Sequence[float],
    architecture: str | None = None,
    *,
    single: bool,
    weights: str | None = None,
    text_ids: bool = False,
) -> dict[str, Any]:
    """Read a measurement: a value by id, or a list of them by strength; of one architecture or of all.

    Row groups are skipped by the architectures that the footer says they hold. ResultsError is also raised where an
    architecture has values at other strengths.
    """
    chosen = _choose_weights(path, weights)
    _check_columns(path, _schema(path), text_ids=text_ids)
    if architecture is None:
        rows = _read_numbers(path, measure, None if single else sorted(strengths), chosen, text_ids)
        if rows is not None:
            return rows
    by_id: dict[str, dict[float, Any]] = {}
    for identifier, strength, value in _iter_values(path, measure, architecture, chosen, text_ids):
        values = by_id.setdefault(identifier, {})
        if strength in values:
            raise _malformed(path, f"{show_id(identifier)} at {strength:g} twice")
        values[strength] = value
    return {
        identifier: _only_value(path, identifier, values) if single else _in_order(path, identifier, values, strengths)
        for identifier, values in by_id.items()
    }


def _read_numbers(
    path: Path, measure: str, strengths: Sequence[float] | None, weights: str | None, text_ids: bool
) -> dict[str, Any] | None:
    """Read a measurement of one number per row, all rows at once.

    `strengths` are those of each architecture's rows, ascending; None where each has one row. Returns None where a row
    is not as an export writes it, so that rows have to be gone through one by one.
    """
    forms = parquet_forms(measure)
    if len(forms) > 1 or not pa.types.is_floating(_schema(path).field(*forms).type):
        return None
    tables = [*_iter_row_groups(path, ["architecture", "strength", *forms], weights)]
    if not tables:
        return {}
    table = pa.concat_tables(tables)
    n_values = 1 if strengths is None else len(strengths)
    if not n_values or len(table) % n_values or table["architecture"].null_count or table["strength"].null_count:
        return None
    names = np.array(table["architecture"].to_pylist() if text_ids else table["architecture"]).reshape(-1, n_values)
    if (names != names[:, :1]).any() or len(np.unique(names[:, 0])) < len(names):
        return None
    if strengths is not None and (table["strength"].to_numpy().reshape(names.shape) != strengths).any():
        return None
    (column,) = forms
    values = np.array(table[column].to_pylist() if table[column].null_count else table[column]).reshape(names.shape)
    rows = values[:, 0] if strengths is None else values
    return dict(zip(map(str, names[:, 0].tolist()), rows.tolist(), strict=True))


def _iter_values(
    path: Path, measure: str, architecture: str | None, weights: str | None, text_ids: bool
) -> Iterator[tuple[str, float, Any]]:
    """Yield id, strength and value of each row."""
    only = architecture if architecture is None or text_ids else int(architecture)
    groups = None if only is None else _groups_of(path, only)
    for group in _iter_row_groups(path, ["architecture", "strength", *parquet_forms(measure)], weights, groups):
        with _damage_named(path):
            names = group["architecture"].cast(pa.string()) if text_ids else group["architecture"]
            table = group if only is None else group.filter(pc.equal(names, only))
            if table["architecture"].null_count or table["strength"].null_count:
                raise _malformed(path, "rows without one of them")
            for first in range(0, len(table), _ROWS_AT_ONCE):
                rows = table.slice(first, _ROWS_AT_ONCE)
                ids, strengths = map(str, rows["architecture"].to_pylist()), rows["strength"].to_pylist()
                yield from zip(ids, strengths, _values(rows, measure), strict=True)


def _groups_of(path: Path, architecture: int | str) -> list[int]:
    """List the row groups that may hold an architecture, by the bounds in the footer."""
    with _damage_named(path), open_file(path, MAX_LISTED_BYTES) as stream:
        groups = parse_row_groups(read_footer_bytes(stream))
    return [number for number, group in enumerate(groups) if _may_hold(group, architecture)]


def _may_hold(group: RowGroup, architecture: int | str) -> bool:
    bounds = next((chunk.bounds for chunk in group.chunks if chunk.path == "architecture"), None)
    if bounds is None or any(len(bound) not in (4, 8) for bound in bounds) or isinstance(architecture, str):
        return True
    least, most = (int.from_bytes(bound, "little", signed=True) for bound in bounds)
    return least <= architecture <= most


def _values(table: pa.Table, measure: str) -> list[Any]:
    """Values of a measurement by row: numbers and lists, or objects of its fields."""
    by_column: dict[str, list[Any]] = {}
    for name, form in parquet_forms(measure).items():
        values = table[name].to_pylist()
        if form.element is not None:
            before = by_column.get(form.source, [[]] * len(values))
            values = [[*elements, value] for elements, value in zip(before, values, strict=True)]
        by_column[form.source] = values
    fields = fields_of(measure)
    if "" in fields:
        return by_column[fields[""]]
    rows = zip(*(by_column[column] for column in fields.values()), strict=True)
    return [dict(zip(fields, row, strict=True)) for row in rows]


def _only_value(path: Path, identifier: str, values: dict[float, Any]) -> Any:
    if len(values) > 1:
        raise _malformed(path, f"{show_id(identifier)} with {len(values)} values of clean images or of a measure")
    return next(iter(values.values()))


def _in_order(path: Path, identifier: str, values: dict[float, Any], strengths: Sequence[float]) -> list[Any]:
    # Whoever is given a list takes its places for the strengths': a value less would move the others.
    if values.keys() != set(strengths):
        wanted, got = (", ".join(f"{strength:g}" for strength in sorted(found)) for found in (strengths, values))
        raise ResultsError(
            f"Reading {show_id(identifier)} failed for {path}: expected {len(strengths)} values, at the strengths "
            f"{wanted}, got {len(values)}, at {got}. {ANEW}"
        )
    return [values[strength] for strength in sorted(values)]


def _check_columns(path: Path, schema: pa.Schema, *, text_ids: bool | None = None) -> None:
    for name in ("architecture", "strength", "key"):
        if name not in schema.names:
            raise _malformed(path, f"no {name}")
    kind = schema.field("architecture").type
    fits = (pa.types.is_integer(kind) and not text_ids) or (_is_text(kind) and text_ids is not False)
    for name, right in (("architecture", fits), ("strength", pa.types.is_floating(schema.field("strength").type))):
        if not right:
            raise _malformed(path, f"{name} as {schema.field(name).type}")


def _malformed(path: Path, got: str) -> ResultsError:
    return ResultsError(
        f"Reading failed for {path}: expected rows that name their architecture (by a whole number, or in spaces "
        f"without indices by text), their strength, a double, and their key, each once, got {got}. {ANEW}"
    )


def iter_matrices(
    path: Path, columns: Sequence[str], beside: Sequence[str], *, missing_ok: bool, weights: str | None = None
) -> Iterator[tuple[list[NDArray[Any]], list[NDArray[Any]]]]:
    """Go through columns of square matrices with a row group in memory, as arrays and without Python objects.

    Yields:
        For the B rows of a row group in which the first column has a value: each column beside, (B,) float64 with NaN
        for null or objects, and of each column the matrices (B, C, C) as they are stored, float64 with NaN for null.

    Raises:
        ResultsError: a value is not a square matrix of finite numbers as large as the others of its row group.
    """
    for table in _iter_row_groups(path, [*beside, *columns], _choose_weights(path, weights)):
        with _damage_named(path):
            first = table[columns[0]]
            rows = table.filter(first.is_valid()) if first.null_count else table
            if len(rows):
                others = [_plain_array(rows[name]) for name in beside]
                yield others, [_matrices(path, rows[name].combine_chunks(), name, missing_ok) for name in columns]


def _plain_array(column: pa.ChunkedArray) -> NDArray[Any]:
    if _is_text(column.type):
        return np.array(column.to_pylist(), dtype=object)
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _matrices(path: Path, values: Any, column: str, missing_ok: bool) -> NDArray[Any]:
    """Make one array of lists of lists of equal lengths."""
    lines = values.flatten()
    n_rows, n_classes = len(values), len(lines) // len(values)
    lengths = {length for lists in (values, lines) for length in pc.unique(pc.list_value_length(lists)).to_pylist()}
    got = f"lists of {', '.join(map(str, sorted(lengths, key=str)))} entries"
    if lengths == {n_classes} and n_classes > 0:
        array: NDArray[Any] = lines.flatten().to_numpy(zero_copy_only=False).reshape(n_rows, n_classes, n_classes)
        if array.dtype.kind in "iuf" and not np.isinf(array).any() and (missing_ok or np.isfinite(array).all()):
            return array
        got = "others"
    raise ResultsError(
        f"Reading {column} failed for {path}: expected square matrices of finite numbers, as large as one another, got "
        f"{got}. Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
    )


def iter_lists(
    path: Path, column: str, *, weights: str | None = None
) -> Iterator[tuple[list[str], list[float], NDArray[Any]]]:
    """Go through a column of lists of whole numbers, one per image, with a row group in memory.

    Yields:
        For the B rows of a row group the ids of their architectures, their strengths, and the numbers (B, N).

    Raises:
        ResultsError: a value is not a list of whole numbers as long as the others of its row group.
    """
    for table in _iter_row_groups(path, ["architecture", "strength", column], _choose_weights(path, weights)):
        with _damage_named(path):
            rows = table.filter(table[column].is_valid()) if table[column].null_count else table
            if not len(rows):
                continue
            values: Any = rows[column].combine_chunks()
            numbers = values.flatten().to_numpy(zero_copy_only=False)
            lengths = pc.unique(pc.list_value_length(values)).to_pylist()
            if numbers.dtype.kind not in "iu" or len(lengths) != 1:
                raise ResultsError(
                    f"Reading {column} failed for {path}: the lists are not whole numbers, or differ in length. {ANEW}"
                )
            names = [str(name) for name in rows["architecture"].to_pylist()]
            yield names, rows["strength"].to_pylist(), numbers.reshape(len(rows), -1)


# Outcomes by image


def read_packed_outcomes(
    path: Path, strength: float, *, weights: str | None = None, text_ids: bool = False
) -> tuple[list[str], Packed]:
    """Read the packed outcomes of all architectures at a strength.

    Returns:
        A ids, in the order of the file, and (A, B) uint8 (see `statistics.outcomes`).

    Raises:
        ResultsError: outcomes contradict the number of images or the accuracies.
    """
    chosen = _choose_weights(path, weights)
    _check_columns(path, _schema(path), text_ids=text_ids)
    n_images = read_n_images(path) or 0
    n_bytes = -(-n_images // 8)
    columns = ["architecture", "strength", "accuracy", CORRECT_BITS]
    tables = [table.filter(pc.equal(table["strength"], strength)) for table in _iter_row_groups(path, columns, chosen)]
    ids, rows, accuracies = (
        [value for table in tables for value in table[name].to_pylist()]
        for name in ("architecture", CORRECT_BITS, "accuracy")
    )
    if not n_images or any(row is None or len(row) != n_bytes for row in rows) or None in accuracies:
        raise _no_outcomes(path, "rows of other sizes")
    packed: Packed = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), n_bytes)
    unused = packed[:, -1] & (0xFF >> (n_images % 8)) if n_images % 8 else np.zeros(len(rows), np.uint8)
    if unused.any() or not np.array_equal(count_correct(packed), np.rint(np.multiply(accuracies, n_images))):
        raise _no_outcomes(path, "others")
    if len({*ids}) != len(ids):
        raise _malformed(path, "an architecture twice")
    return list(map(str, ids)), packed


def _no_outcomes(path: Path, got: str) -> ResultsError:
    return ResultsError(
        f"Reading {CORRECT_BITS} failed for {path}: expected one bit for each image, as many of them set as the "
        f"accuracy says, got {got}. Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file "
        "again."
    )


def read_image_table(path: Path) -> dict[str, NDArray[Any]]:
    """Read the table of images that outcomes are of, in their order.

    Returns:
        `row` (N,) int64, the image's row in its split, `label` (N,) int64 and `sha256` (N,) text, of its pixels.
    """
    with _opened(path) as file:
        table = file.read(["position", "row", "label", "sha256"], use_threads=False)
        if table["position"].to_pylist() != list(range(len(table))):
            raise ResultsError(f"Reading failed for {path}: expected positions from 0 on, in order, got others. {ANEW}")
        whole = {name: table[name].to_numpy().astype(np.int64) for name in ("row", "label")}
        return {**whole, "sha256": np.array(table["sha256"].to_pylist(), dtype=object)}
