"""Reading of a dataset's JSON files, plain or compressed: as a whole, or one architecture's value at a time."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from robust201.core.errors import ResultsError
from robust201.core.files import MAX_LISTED_BYTES, IrregularFileError, open_file, show_bytes
from robust201.reader.value_checks import ADVICE, damaged_file, parse_json, show_id

PIECE_BYTES = 1 << 22
"""Decompressed bytes that are read at once."""

MAX_TEXT_BYTES = 4 << 30
"""Maximum decompressed size of a JSON file that is read as a whole."""

HEAD_BYTES = 1 << 12
"""Maximum number of bytes in front of the first id."""

MAX_VALUE_BYTES = 1 << 28
"""Maximum number of bytes of a value: in a damaged file the next id may be missing, and the rest may exceed memory."""

_HEAD = re.compile(
    rb'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*'
)
_ID = re.compile(rb'"(\d+)"\s*:')

_REQUIRED: Any = object()


def open_decompressed(file: Path) -> AbstractContextManager[BinaryIO]:
    """Open a file for reading, decompressed if its name ends in ``.gz`` or ``.zst``.

    Reading a damaged file raises `ResultsError` for Zstandard, and `EOFError`, `zlib.error` or `gzip.BadGzipFile` for
    gzip.
    """
    if file.suffix == ".zst":
        from robust201.reader.parquet_results import open_zstandard

        return open_zstandard(file)
    return _open_gzip(file) if file.suffix == ".gz" else open_file(file, MAX_LISTED_BYTES)


@contextmanager
def _open_gzip(file: Path) -> Iterator[BinaryIO]:
    with open_file(file, MAX_LISTED_BYTES) as packed, gzip.open(packed) as stream:
        yield cast(BinaryIO, stream)


def _read_pieces(file: Path) -> Iterator[bytes]:
    try:
        with open_decompressed(file) as stream:
            while piece := stream.read(PIECE_BYTES):
                yield piece
    except (EOFError, zlib.error, gzip.BadGzipFile, IrregularFileError) as error:
        raise damaged_file(file, error) from error


def read_json(file: Path, missing: Any = _REQUIRED) -> Any:
    """Read a JSON file, decompressed if its name ends in ``.gz`` or ``.zst``.

    Args:
        file: the file.
        missing: value to return if there is no file.

    Raises:
        ResultsError: the file is not valid JSON, or an object in it has a duplicate name.
        FileNotFoundError: there is no file and no `missing` value.
    """
    if missing is not _REQUIRED and not file.is_file():
        return missing
    pieces, n_bytes = [], 0
    try:
        for piece in _read_pieces(file):
            pieces.append(piece)
            n_bytes += len(piece)
            if n_bytes > MAX_TEXT_BYTES:
                raise ValueError(f"more than {show_bytes(MAX_TEXT_BYTES)}")  # noqa: TRY301
        return parse_json(b"".join(pieces))
    except ValueError as error:
        raise ResultsError(
            f"Reading failed for {file}: expected JSON, got something else ({error}). "
            "Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
        ) from error


def read_object(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; return None if there is no file.

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


def iter_json_values(file: Path, dataset: str, keys: tuple[str, ...], measure: str) -> Iterator[tuple[str, Any]]:
    """Read a file ``{dataset: {key: {measurement: {id: value}}}}`` with one value in memory at a time.

    A name of digits only is an id, and values contain no such names. A value's text therefore ends where the next such
    name begins.

    Yields:
        Id and value, in the order of the file. Duplicate ids are rejected; nothing else is checked.
    """
    pieces = _read_pieces(file)
    text = b""
    while len(text) < HEAD_BYTES and (piece := next(pieces, b"")):
        text += piece
    text = text[_match_head(text, file, dataset, keys, measure) :]
    seen: set[str] = set()
    identifier: str | None = None
    while True:
        start = 0
        for match in _ID.finditer(text):
            before = text[start : match.start()].rstrip()
            if identifier is not None:
                yield identifier, _parse_value(file, identifier, before, b",")
            elif before:
                raise _malformed(file, f"{before[:40].decode(errors='replace')!r} before the first id")
            identifier, start = match[1].decode(), match.end()
            if identifier in seen:
                raise _malformed(file, f"the id {identifier!r} twice")
            seen.add(identifier)
        text = text[start:]
        if len(text) > MAX_VALUE_BYTES:
            raise _malformed(file, f"more than {MAX_VALUE_BYTES >> 20} MiB without the end of a value")
        piece = next(pieces, b"")
        if not piece:
            break
        text += piece
    for _ in range(4):
        text = text.rstrip()
        if not text.endswith(b"}"):
            raise _malformed(file, "its end too early")
        text = text[:-1]
    if identifier is not None:
        yield identifier, _parse_value(file, identifier, text, b"")
    elif text.strip():
        raise _malformed(file, f"{text.strip()[:40].decode(errors='replace')!r} instead of ids")


def _match_head(text: bytes, path: Path, dataset: str, keys: tuple[str, ...], measure: str) -> int:
    """Return the position of the first byte after the names and brackets that precede the values."""
    head = _HEAD.match(text)
    try:
        names = [] if head is None else [json.loads(name) for name in head.groups()]
    except ValueError:
        head, names = None, []
    if head is None or names[0] != dataset or names[1] not in keys or names[2] != measure:
        raise _malformed(path, f"names {names}" if names else "another beginning")
    return head.end()


def _parse_value(file: Path, identifier: str, text: bytes, end: bytes) -> Any:
    """Parse a value, which `end` must follow."""
    if not text.endswith(end):
        raise _malformed(file, f"no valid value after {show_id(identifier)}")
    try:
        return parse_json(text.removesuffix(end))
    except ValueError as error:
        position = getattr(error, "pos", 0)
        nearby = text[position : position + 40].decode(errors="replace")
        raise _malformed(file, f"an invalid value for {show_id(identifier)} ({error}): {nearby!r}") from error


def _malformed(path: Path, got: str) -> ResultsError:
    return ResultsError(
        f"Reading failed for {path}: expected {{dataset: {{key: {{measurement: {{id: value}}}}}}}}, got {got}. {ADVICE}"
    )
