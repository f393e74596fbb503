"""Functions that read a dataset's JSON files, completely or as rows with few values in memory at a time."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from robust201.core.errors import ResultsError
from robust201.dataset.layout import format_id
from robust201.dataset.row_block import RowBlock, make_ids
from robust201.dataset.values import ADVICE, damaged_file_error, describe_measurement, to_array
from robust201.tasks.columns import MEASUREMENTS, fields_of

CHUNK_BYTES = 1 << 22
"""Number of bytes that are read at once."""

HEAD_BYTES = 1 << 12
"""Maximum number of bytes before the first id: brackets, and the names of the dataset, key and measurement."""

_BYTES_PER_BLOCK = 1 << 20
"""Approximate size of the text of the values in one `RowBlock`."""

_HEAD = re.compile(
    rb'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*'
)
_FIELDS = sorted({field for columns in MEASUREMENTS.values() for field in columns if field})
_ID = re.compile(rf'"(?!(?:{"|".join(_FIELDS)})")([\w.@-]+)"\s*:'.encode())
"""An id and the colon after it; the names of a measurement's fields are not ids."""


def _read_chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        ResultsError: the file is not valid JSON.
        FileNotFoundError: the file does not exist.
    """
    try:
        return orjson.loads(file.read_bytes())
    except ValueError as error:
        raise damaged_file_error(file, error) from error


def read_object(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; return None if the file does not exist.

    Raises:
        ResultsError: the file does not contain a JSON object.
    """
    if not file.is_file():
        return None
    content = read_json(file)
    if not isinstance(content, dict):
        raise ResultsError(
            f"Opening a dataset failed for {file}: expected a JSON object, got {str(content)[:40]!r}. "
            "Export or download the dataset again."
        )
    return content


def iter_json_rows(
    file: Path, names: tuple[str, tuple[str, ...], str], strengths: Sequence[float], *, is_single: bool
) -> Iterator[RowBlock]:
    """Read a file ``{dataset: {key: {measurement: {id: value}}}}`` as rows.

    Args:
        file: the file.
        names: the dataset, the spellings of the key, and the measurement.
        strengths: the strengths of the values.
        is_single: whether each id has a single value, instead of a list with one value per strength.

    Yields:
        The rows of a few networks at a time. Rows whose value is null are left out, except for measures.

    Raises:
        ResultsError: the file is damaged, or a value is invalid.
    """
    block: list[tuple[str, list[Any]]] = []
    n_bytes = 0
    for identifier, n_value_bytes, value in _iter_values(file, *names):
        values = [value] if is_single else _values_by_strength(file, identifier, value, len(strengths))
        block.append((identifier, values))
        n_bytes += n_value_bytes
        if n_bytes > _BYTES_PER_BLOCK:
            yield _make_rows(file, names[2], block, strengths)
            block, n_bytes = [], 0
    if block:
        yield _make_rows(file, names[2], block, strengths)


def read_first_value(file: Path, names: tuple[str, tuple[str, ...], str]) -> Any:
    """Return the first value of a file (see `iter_json_rows`) without checking it; None if there is none."""
    return next((value for _, _, value in _iter_values(file, *names)), None)


def _check_id(file: Path, identifier: str) -> None:
    if identifier.isdecimal() and str(int(identifier)) != identifier:
        raise _malformed_error(file, f"the id {identifier!r}, with leading zeros")


def _values_by_strength(file: Path, identifier: str, value: Any, n_strengths: int) -> list[Any]:
    """Return an architecture's values, one per strength.

    The value may be a list, or an object with a list for each field, because the nesting of the published confidences
    is not documented.
    """
    if isinstance(value, dict):
        lists = [*value.values()]
        if not all(isinstance(field, list) for field in lists):
            raise _invalid_value_error(file, identifier, f"{n_strengths} values, one per strength", value)
        value = [dict(zip(value, fields, strict=True)) for fields in zip(*lists, strict=False)]
    if not isinstance(value, list) or len(value) != n_strengths:
        raise _invalid_value_error(file, identifier, f"{n_strengths} values, one per strength", value)
    return value


def _make_rows(
    file: Path, measurement: str, block: Sequence[tuple[str, list[Any]]], strengths: Sequence[float]
) -> RowBlock:
    keeps_null = measurement not in MEASUREMENTS  # a measure may be undefined
    flat = [value for _, values in block for value in values]
    rows = [row for row, value in enumerate(flat) if value is not None or keeps_null]
    values = flat if len(rows) == len(flat) else [flat[row] for row in rows]
    try:
        columns = _make_columns(measurement, values)
    except (ValueError, TypeError, KeyError) as error:
        entries = [(block[row // len(strengths)][0], strengths[row % len(strengths)], flat[row]) for row in rows]
        raise _first_invalid_value_error(file, measurement, entries, error) from error
    ids = np.repeat(make_ids([identifier for identifier, _ in block]), len(strengths))
    return RowBlock(ids[rows], None, np.tile(np.array(strengths, np.float64), len(block))[rows], None, columns)


def _make_columns(measurement: str, values: Sequence[Any]) -> dict[str, Any]:
    columns = {
        name: to_array(name, [value[field] for value in values] if field else values)
        for field, name in fields_of(measurement).items()
    }
    if len({array.shape[1] for array in columns.values() if array.ndim > 2}) > 1:
        raise ValueError("matrices of different sizes")
    return columns


def _first_invalid_value_error(
    file: Path, measurement: str, entries: Sequence[tuple[str, float, Any]], error: Exception
) -> ResultsError:
    """Return an error that names the first invalid value; if each is valid alone, their shapes differ."""
    expected = describe_measurement(measurement)
    for identifier, strength, value in entries:
        try:
            _make_columns(measurement, [value])
        except (ValueError, TypeError, KeyError):
            return _invalid_value_error(file, identifier, f"{expected}, at strength {strength:g}", value)
    return _invalid_value_error(file, entries[0][0], f"{expected}, of equal shapes", str(error))


def _invalid_value_error(file: Path, identifier: str, expected: str, value: Any) -> ResultsError:
    text = repr(value)
    excerpt = text if len(text) <= 60 else f"{text[:57]}..."
    return ResultsError(
        f"Reading {format_id(identifier)} failed for {file}: expected {expected}, got {excerpt}. {ADVICE}"
    )


def _iter_values(file: Path, dataset: str, keys: tuple[str, ...], measurement: str) -> Iterator[tuple[str, int, Any]]:
    """Yield the id, size in bytes and value of each architecture.

    The text of a value ends where the next id begins, because the only names inside values are those of fields.
    """
    chunks = _read_chunks(file)
    buffer = b""
    while len(buffer) < HEAD_BYTES and (chunk := next(chunks, b"")):
        buffer += chunk
    buffer = buffer[_find_end_of_head(buffer, file, dataset, keys, measurement) :]
    seen_ids: set[str] = set()
    identifier: str | None = None
    while True:
        start = 0
        for match in _ID.finditer(buffer):
            preceding_text = buffer[start : match.start()].rstrip()
            if identifier is not None:
                yield identifier, len(preceding_text), _parse_value(file, identifier, preceding_text, b",")
            elif preceding_text:
                raise _malformed_error(file, f"{preceding_text[:40].decode(errors='replace')!r} before the first id")
            identifier, start = match[1].decode(), match.end()
            _check_id(file, identifier)
            if identifier in seen_ids:
                raise _malformed_error(file, f"the id {identifier!r} twice")
            seen_ids.add(identifier)
        buffer = buffer[start:]
        chunk = next(chunks, b"")
        if not chunk:
            break
        buffer += chunk
    for _ in range(4):
        buffer = buffer.rstrip()
        if not buffer.endswith(b"}"):
            raise _malformed_error(file, "an early end of the file")
        buffer = buffer[:-1]
    if identifier is not None:
        yield identifier, len(buffer), _parse_value(file, identifier, buffer, b"")
    elif buffer.strip():
        raise _malformed_error(file, f"{buffer.strip()[:40].decode(errors='replace')!r} instead of ids")


def _find_end_of_head(text: bytes, path: Path, dataset: str, keys: tuple[str, ...], measurement: str) -> int:
    """Return the position of the first byte after the names and brackets that precede the values."""
    head_match = _HEAD.match(text)
    try:
        names = [] if head_match is None else [json.loads(name) for name in head_match.groups()]
    except ValueError:
        head_match, names = None, []
    if head_match is None or names[0] != dataset or names[1] not in keys or names[2] != measurement:
        raise _malformed_error(path, f"names {names}" if names else "a file that begins differently")
    return head_match.end()


def _parse_value(file: Path, identifier: str, text: bytes, delimiter: bytes) -> Any:
    """Parse a value that must be followed by `delimiter`."""
    if not text.endswith(delimiter):
        raise _malformed_error(file, f"no valid value after {format_id(identifier)}")
    try:
        return orjson.loads(text.removesuffix(delimiter))
    except ValueError as error:
        position = getattr(error, "pos", 0)
        excerpt = text[position : position + 40].decode(errors="replace")
        raise _malformed_error(file, f"an invalid value for {format_id(identifier)} ({error}): {excerpt!r}") from error


def _malformed_error(path: Path, fault: str) -> ResultsError:
    return ResultsError(
        f"Reading failed for {path}: expected {{dataset: {{key: {{measurement: {{id: value}}}}}}}}, got {fault}. "
        f"{ADVICE}"
    )
