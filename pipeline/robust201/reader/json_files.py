"""Reading of a dataset's JSON files, completely or one value at a time."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robust201.core.errors import ResultsError
from robust201.core.files import MAX_EXPORTED_FILE_BYTES, IrregularFileError, format_bytes, open_file
from robust201.reader.value_checks import ADVICE, damaged_file_error, format_id, parse_json

CHUNK_BYTES = 1 << 22
"""Number of bytes that are read at once."""

MAX_TEXT_BYTES = 4 << 30
"""Maximum size of a JSON file that is read completely."""

HEAD_BYTES = 1 << 12
"""Maximum number of bytes before the first id: brackets, and the names of the dataset, key and measurement."""

MAX_VALUE_BYTES = 1 << 28
"""Maximum size of a value.

Without this limit, a value in a damaged file that lacks the next id would extend to the end of the file and might
exceed the memory.
"""

_HEAD = re.compile(
    rb'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*'
)
_ID = re.compile(rb'"(\d+)"\s*:')

_NO_DEFAULT: Any = object()


def _read_chunks(file: Path) -> Iterator[bytes]:
    try:
        with open_file(file, MAX_EXPORTED_FILE_BYTES) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except IrregularFileError as error:
        raise damaged_file_error(file, error) from error


def read_json(file: Path, missing: Any = _NO_DEFAULT) -> Any:
    """Read a JSON file.

    Args:
        file: the file.
        missing: value to return if the file does not exist.

    Raises:
        ResultsError: the file is not valid JSON, or an object in it has a duplicate name.
        FileNotFoundError: the file does not exist, and `missing` was not given.
    """
    if missing is not _NO_DEFAULT and not file.is_file():
        return missing
    chunks, n_bytes = [], 0
    try:
        for chunk in _read_chunks(file):
            chunks.append(chunk)
            n_bytes += len(chunk)
            if n_bytes > MAX_TEXT_BYTES:
                raise ValueError(f"more than {format_bytes(MAX_TEXT_BYTES)}")  # noqa: TRY301
        return parse_json(b"".join(chunks))
    except ValueError as error:
        raise ResultsError(
            f"Reading failed for {file}: expected a readable JSON file, got the error '{error}'. "
            "Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
        ) from error


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


def iter_json_values(file: Path, dataset: str, keys: tuple[str, ...], measurement: str) -> Iterator[tuple[str, Any]]:
    """Read a file ``{dataset: {key: {measurement: {id: value}}}}`` with one value in memory at a time.

    Names that consist of digits are ids, and values do not contain such names. The text of a value therefore ends where
    the next id begins.

    Yields:
        Id and value, in the order of the file. Duplicate ids are rejected; other contents are not checked.
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
                yield identifier, _parse_value(file, identifier, preceding_text, b",")
            elif preceding_text:
                raise _malformed_error(file, f"{preceding_text[:40].decode(errors='replace')!r} before the first id")
            identifier, start = match[1].decode(), match.end()
            if identifier in seen_ids:
                raise _malformed_error(file, f"the id {identifier!r} twice")
            seen_ids.add(identifier)
        buffer = buffer[start:]
        if len(buffer) > MAX_VALUE_BYTES:
            raise _malformed_error(file, f"more than {MAX_VALUE_BYTES >> 20} MiB without the end of a value")
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
        yield identifier, _parse_value(file, identifier, buffer, b"")
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
        return parse_json(text.removesuffix(delimiter))
    except ValueError as error:
        position = getattr(error, "pos", 0)
        excerpt = text[position : position + 40].decode(errors="replace")
        raise _malformed_error(file, f"an invalid value for {format_id(identifier)} ({error}): {excerpt!r}") from error


def _malformed_error(path: Path, fault: str) -> ResultsError:
    return ResultsError(
        f"Reading failed for {path}: expected {{dataset: {{key: {{measurement: {{id: value}}}}}}}}, got {fault}. "
        f"{ADVICE}"
    )
