"""Parser of Parquet footers that does not use Arrow, because a damaged footer can make Arrow abort the process.

pyarrow's `FileMetaData.row_group(i).column(j)` aborts the interpreter if a column chunk lacks its metadata or has
statistics of a wrong length, so chunks are parsed here. The footer is a `FileMetaData` struct in Thrift's compact
protocol (https://github.com/apache/parquet-format, parquet.thrift;
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
"""

from dataclasses import dataclass
from typing import Any, BinaryIO

_MAGIC = b"PAR1"
_END_BYTES = 8  # four bytes of length, four of magic
_MAX_DEPTH = 16

# Types of the compact protocol
_DOUBLE, _BINARY, _LIST, _STRUCT = 7, 8, 9, 12
_BOOLEANS, _BYTES, _INTEGERS, _LISTS = (1, 2), (1, 2, 3), (4, 5, 6), (9, 10)

# Fields of parquet.thrift
_ROW_GROUPS = 4
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_CHUNK_METADATA, _CHUNK_ENCRYPTED = 3, (8, 9)
_PATH, _NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _STATISTICS = 3, 5, 6, 7, 12
_MAX_VALUE, _MIN_VALUE = 5, 6

_Fields = dict[int, Any]
"""Fields to read, by id, each with the fields to read of its structs; all others are skipped."""

_CHUNK: _Fields = {
    _CHUNK_METADATA: {
        **{name: {} for name in (_PATH, _NUM_VALUES, _UNCOMPRESSED, _COMPRESSED)},
        _STATISTICS: {name: {} for name in (_MAX_VALUE, _MIN_VALUE)},
    },
    **{name: {} for name in _CHUNK_ENCRYPTED},
}
_NEEDED: _Fields = {_ROW_GROUPS: {_GROUP_ROWS: {}, _GROUP_COLUMNS: _CHUNK}}


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One column of one row group: path in the schema, number of values, and bytes before and after compression.

    `bounds` are the encoded smallest and largest values; None if the footer lacks them.
    """

    path: str
    n_values: int
    n_bytes: int
    n_compressed: int
    bounds: tuple[bytes, bytes] | None

    @property
    def column(self) -> str:
        return self.path.partition(".")[0]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group, with its column chunks in schema order."""

    n_rows: int
    chunks: tuple[ColumnChunk, ...]


def read_footer_bytes(stream: BinaryIO) -> bytes:
    """Read the footer of an open Parquet file; ValueError if it is missing or incomplete."""
    n_bytes = stream.seek(0, 2)
    start = max(0, n_bytes - (1 << 14))
    stream.seek(start)
    tail = stream.read()
    length = int.from_bytes(tail[-_END_BYTES:-4], "little")
    if tail[-4:] != _MAGIC or not 0 < length <= n_bytes - _END_BYTES:
        raise ValueError("no complete Parquet footer")
    if length + _END_BYTES > len(tail):
        stream.seek(n_bytes - length - _END_BYTES)
        tail = stream.read()
    return tail[-length - _END_BYTES : -_END_BYTES]


def parse_row_groups(footer: bytes) -> list[RowGroup]:
    """Return the row groups of a footer; ValueError if it is damaged or the file is encrypted."""
    try:
        metadata, _ = _read_struct(footer, 0, _NEEDED, 0)
        return [_row_group(group) for group in metadata.get(_ROW_GROUPS, ())]
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"a damaged Parquet footer ({error!r})") from error


def _row_group(fields: dict[int, Any]) -> RowGroup:
    return RowGroup(_count(fields[_GROUP_ROWS]), tuple(map(_column_chunk, fields[_GROUP_COLUMNS])))


def _column_chunk(fields: dict[int, Any]) -> ColumnChunk:
    if any(name in fields for name in _CHUNK_ENCRYPTED):
        raise ValueError("an encrypted column")
    metadata = fields[_CHUNK_METADATA]
    bounds = None
    if _STATISTICS in metadata:
        minimum, maximum = metadata[_STATISTICS].get(_MIN_VALUE), metadata[_STATISTICS].get(_MAX_VALUE)
        bounds = (minimum, maximum) if isinstance(minimum, bytes) and isinstance(maximum, bytes) else None
    path = b".".join(metadata[_PATH]).decode()
    n_values, n_bytes, n_compressed = metadata[_NUM_VALUES], metadata[_UNCOMPRESSED], metadata[_COMPRESSED]
    return ColumnChunk(path, _count(n_values), _count(n_bytes), _count(n_compressed), bounds)


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"a damaged Parquet footer (a count of {value!r})")
    return value


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    byte = data[offset]
    if byte < 128:
        return byte, offset + 1
    value, shift = byte & 127, 7
    while True:
        offset += 1
        byte = data[offset]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset + 1
        shift += 7
        if shift > 63:
            raise ValueError("a damaged Parquet footer (a number without end)")


def _read_struct(data: bytes, offset: int, needed: _Fields, depth: int) -> tuple[dict[int, Any], int]:
    """Return the needed fields of a struct by id, and the offset of its end."""
    fields: dict[int, Any] = {}
    number = 0
    while header := data[offset]:
        offset += 1
        kind = header & 15
        if header > 15:
            number += header >> 4
        else:
            value, offset = _read_varint(data, offset)
            number = (value >> 1) ^ -(value & 1)
        if kind in _BOOLEANS:
            continue  # its value is in the header; none is needed
        if number in needed:
            fields[number], offset = _read_value(data, offset, kind, needed[number], depth + 1)
        else:
            offset = _skip(data, offset, kind, depth + 1)
    return fields, offset + 1


def _read_value(data: bytes, offset: int, kind: int, needed: _Fields, depth: int) -> tuple[Any, int]:
    _check_depth(depth)
    if kind in _INTEGERS:
        value, offset = _read_varint(data, offset)
        return (value >> 1) ^ -(value & 1), offset
    if kind == _BINARY:
        length, offset = _read_varint(data, offset)
        return data[offset : offset + length], offset + length
    if kind == _STRUCT:
        return _read_struct(data, offset, needed, depth)
    if kind == _LIST:
        size, kind, offset = _read_list_head(data, offset)
        values = []
        for _ in range(size):
            value, offset = _read_value(data, offset, kind, needed, depth + 1)
            values.append(value)
        return values, offset
    return None, _skip(data, offset, kind, depth)


def _check_depth(depth: int) -> None:
    if depth >= _MAX_DEPTH:
        raise ValueError("a damaged Parquet footer (nested too deeply)")


def _read_list_head(data: bytes, offset: int) -> tuple[int, int, int]:
    header = data[offset]
    size, offset = (header >> 4, offset + 1) if header < 0xF0 else _read_varint(data, offset + 1)
    if size > len(data) - offset:  # every value takes at least one byte
        raise IndexError("a list that exceeds the footer")
    return size, header & 15, offset


def _skip(data: bytes, offset: int, kind: int, depth: int) -> int:
    if kind in _INTEGERS:
        while data[offset] > 127:
            offset += 1
        return offset + 1
    if kind == _BINARY:
        length, offset = _read_varint(data, offset)
        return offset + length
    _check_depth(depth)
    if kind == _STRUCT:
        while header := data[offset]:
            offset += 1
            if header < 16:
                _, offset = _read_varint(data, offset)
            if header & 15 not in _BOOLEANS:
                offset = _skip(data, offset, header & 15, depth + 1)
        return offset + 1
    if kind in _LISTS:
        size, kind, offset = _read_list_head(data, offset)
        for _ in range(size):
            offset = _skip(data, offset, kind, depth + 1)
        return offset
    if kind in _BYTES:  # in a list, a boolean takes one byte
        return offset + 1
    if kind == _DOUBLE:
        return offset + 8
    raise ValueError(f"a damaged Parquet footer (a value of type {kind})")
