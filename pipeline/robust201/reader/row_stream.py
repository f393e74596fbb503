"""Every architecture's value of a JSON file of results, one after the other, however large the file is.

The file is read once from its beginning to its end, as it lies there or decompressed on the way, so nothing but a
piece of it and one value is in memory, and nothing is written.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from robust201.reader.json_index import (
    HEAD_BYTES,
    VALUE_DEPTH,
    check_tail,
    find_edges,
    malformed,
    match_head,
)
from robust201.reader.value_checks import damaged, parse_json

Taker = Callable[[bytes], Any]
"""Takes what is wanted out of the JSON text of one value."""

PIECE_BYTES = 1 << 22
"""Bytes that are read, decompressed, at once."""

MAX_VALUE_BYTES = 1 << 26
"""Ten times what the confidences of an architecture take; without a bound, a bracket that is lost makes a value of the
rest of the file, which may be larger than the memory."""

_ID = re.compile(rb'[\s,]*"(\d+)"\s*:\s*')


def open_decompressed(file: Path) -> AbstractContextManager[BinaryIO]:
    """Open a file to read what it holds, decompressed if its name ends in ``.gz`` or ``.zst``.

    What is raised of damage while it is read: `ResultsError` of Zstandard; `EOFError`, `zlib.error` and
    `gzip.BadGzipFile` of gzip.
    """
    if file.suffix == ".zst":
        from robust201.reader.parquet_results import open_zstandard

        return open_zstandard(file)
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


def read_pieces(file: Path) -> Iterator[bytes]:
    """Read a file in pieces, decompressed if its name ends in ``.gz`` or ``.zst``.

    Raises:
        ResultsError: the compressed file is damaged.
    """
    try:
        with open_decompressed(file) as stream:
            while piece := stream.read(PIECE_BYTES):
                yield piece
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(file, error) from error


def stream_rows(
    file: Path, dataset: str, keys: tuple[str, ...], measure: str, take: Taker | None = None
) -> Iterator[tuple[str, Any]]:
    """Go through the values of a file ``{dataset: {key: {measurement: {id: value}}}}`` of lists or objects.

    Args:
        file: plain, or compressed as its name says.
        dataset: the outermost name in the file.
        keys: spellings of the key that the second name may have.
        measure: the third name.
        take: gives what is wanted of a value's text, or None to have the value parsed.

    Yields:
        Id, and value or what was taken of it, in the order of the file.

    Raises:
        ResultsError: the file is damaged or not of this form.
    """
    pieces = read_pieces(file)
    seen: set[bytes] = set()
    text = b""
    while len(text) < HEAD_BYTES and (piece := next(pieces, b"")):
        text += piece
    text = text[match_head(text, file, dataset, keys, measure) :]
    depth, first = VALUE_DEPTH - 1, -1
    piece, text = text, b""
    while piece:
        edges, depth = find_edges(piece, depth)
        before, end = len(text), 0
        text += piece
        for place, depth_there in edges:
            if depth_there == VALUE_DEPTH:
                first = before + place
            else:
                stop = before + place + 1
                yield _parse(file, text[end:first], text[first:stop], take, seen)
                end = stop
        text, first = text[end:], first - end
        if len(text) > MAX_VALUE_BYTES:
            raise malformed(file, f"more than {MAX_VALUE_BYTES >> 20} MiB without the end of a value")
        piece = next(pieces, b"")
    if depth:
        raise malformed(file, "its end too early")
    check_tail(text, file)


def _parse(file: Path, name: bytes, value: bytes, take: Taker | None, seen: set[bytes]) -> tuple[str, Any]:
    match = _ID.fullmatch(name)
    if match is None:
        raise malformed(file, f"{name[:40].decode(errors='replace')!r} in front of a value")
    if match[1] in seen:
        raise malformed(file, f"the id {match[1].decode()!r} twice")
    seen.add(match[1])
    if take is not None and (taken := take(value)) is not None:
        return match[1].decode(), taken
    try:
        try:
            parsed = orjson.loads(value)
        except ValueError:
            parsed = parse_json(value)  # NaN, which Python's json writes, is no JSON for orjson.
        if value.count(b'"') != 2 * _count_names(parsed):
            parsed = parse_json(value)  # which says what name there is twice; orjson keeps the last value
    except ValueError as error:
        raise malformed(file, f"something else for {match[1].decode()} ({error})") from error
    return match[1].decode(), parsed


def _count_names(row: Any) -> int:
    """Count the names in an object, or in a list of objects."""
    objects = row if isinstance(row, list) else [row]
    return sum(len(value) for value in objects if isinstance(value, dict))
