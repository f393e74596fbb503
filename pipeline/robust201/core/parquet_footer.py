"""The footer of a Parquet file, read without Arrow: where Arrow's own view of a damaged footer ends the process.

pyarrow's `FileMetaData.row_group(i).column(j)` aborts the interpreter where a column chunk lacks its metadata or has
statistics of a wrong length. So chunks are taken from here. The footer is a `FileMetaData` struct in Thrift's compact
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
_TRUTHS, _BYTES, _INTEGERS, _LISTS = (1, 2), (1, 2, 3), (4, 5, 6), (9, 10)

# Fields of parquet.thrift
_ROW_GROUPS = 4
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_CHUNK_METADATA, _CHUNK_ENCRYPTED = 3, (8, 9)
_PATH, _NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _STATISTICS = 3, 5, 6, 7, 12
_MAX_VALUE, _MIN_VALUE = 5, 6

_Fields = dict[int, Any]
"""Fields that are read, by id, each with those of its structs; the others are passed over."""

_CHUNK: _Fields = {
    _CHUNK_METADATA: {
        **{name: {} for name in (_PATH, _NUM_VALUES, _UNCOMPRESSED, _COMPRESSED)},
        _STATISTICS: {name: {} for name in (_MAX_VALUE, _MIN_VALUE)},
    },
    **{name: {} for name in _CHUNK_ENCRYPTED},
}
_WANTED: _Fields = {_ROW_GROUPS: {_GROUP_ROWS: {}, _GROUP_COLUMNS: _CHUNK}}


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One column of one row group: its place in the schema, values, and bytes before and after compression.

    `bounds` are the smallest and the largest value as they are encoded, None where the footer does not say.
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
    """One row group, its column chunks in the order of the schema."""

    n_rows: int
    chunks: tuple[ColumnChunk, ...]


def read_footer_bytes(stream: BinaryIO) -> bytes:
    """Read the footer of a Parquet file that is open for reading; ValueError if there is no whole one."""
    n_bytes = stream.seek(0, 2)
    start = max(0, n_bytes - (1 << 14))
    stream.seek(start)
    tail = stream.read()
    length = int.from_bytes(tail[-_END_BYTES:-4], "little")
    if tail[-4:] != _MAGIC or not 0 < length <= n_bytes - _END_BYTES:
        raise ValueError("no whole Parquet footer")
    if length + _END_BYTES > len(tail):
        stream.seek(n_bytes - length - _END_BYTES)
        tail = stream.read()
    return tail[-length - _END_BYTES : -_END_BYTES]


def parse_row_groups(footer: bytes) -> list[RowGroup]:
    """List the row groups of a footer; ValueError if it is damaged, or of an encrypted file."""
    try:
        metadata, _ = _read_struct(footer, 0, _WANTED, 0)
        return [_row_group(group) for group in metadata.get(_ROW_GROUPS, ())]
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"a damaged Parquet footer ({error!r})") from error


def _row_group(fields: dict[int, Any]) -> RowGroup:
    return RowGroup(_count(fields[_GROUP_ROWS]), tuple(map(_column_chunk, fields[_GROUP_COLUMNS])))


def _column_chunk(fields: dict[int, Any]) -> ColumnChunk:
    if any(name in fields for name in _CHUNK_ENCRYPTED):
        raise ValueError("an encrypted column")
    found = fields[_CHUNK_METADATA]
    bounds = None
    if _STATISTICS in found:
        least, most = found[_STATISTICS].get(_MIN_VALUE), found[_STATISTICS].get(_MAX_VALUE)
        bounds = (least, most) if isinstance(least, bytes) and isinstance(most, bytes) else None
    path = b".".join(found[_PATH]).decode()
    n_values, n_bytes, n_compressed = found[_NUM_VALUES], found[_UNCOMPRESSED], found[_COMPRESSED]
    return ColumnChunk(path, _count(n_values), _count(n_bytes), _count(n_compressed), bounds)


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"a damaged Parquet footer (a count of {value!r})")
    return value


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    byte = data[place]
    if byte < 128:
        return byte, place + 1
    value, shift = byte & 127, 7
    while True:
        place += 1
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
        if shift > 63:
            raise ValueError("a damaged Parquet footer (a number without end)")


def _read_struct(data: bytes, place: int, wanted: _Fields, depth: int) -> tuple[dict[int, Any], int]:
    """Read the wanted fields of a struct by their ids, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while header := data[place]:
        place += 1
        kind = header & 15
        if header > 15:
            number += header >> 4
        else:
            value, place = _read_varint(data, place)
            number = (value >> 1) ^ -(value & 1)
        if kind in _TRUTHS:
            continue  # in the header; none is wanted
        if number in wanted:
            fields[number], place = _read_value(data, place, kind, wanted[number], depth + 1)
        else:
            place = _skip(data, place, kind, depth + 1)
    return fields, place + 1


def _read_value(data: bytes, place: int, kind: int, wanted: _Fields, depth: int) -> tuple[Any, int]:
    _check_depth(depth)
    if kind in _INTEGERS:
        value, place = _read_varint(data, place)
        return (value >> 1) ^ -(value & 1), place
    if kind == _BINARY:
        length, place = _read_varint(data, place)
        return data[place : place + length], place + length
    if kind == _STRUCT:
        return _read_struct(data, place, wanted, depth)
    if kind == _LIST:
        size, kind, place = _read_list_head(data, place)
        values = []
        for _ in range(size):
            value, place = _read_value(data, place, kind, wanted, depth + 1)
            values.append(value)
        return values, place
    return None, _skip(data, place, kind, depth)


def _check_depth(depth: int) -> None:
    if depth >= _MAX_DEPTH:
        raise ValueError("a damaged Parquet footer (nested too deeply)")


def _read_list_head(data: bytes, place: int) -> tuple[int, int, int]:
    header = data[place]
    size, place = (header >> 4, place + 1) if header < 0xF0 else _read_varint(data, place + 1)
    if size > len(data) - place:  # every value takes a byte at least
        raise IndexError("a list beyond the end")
    return size, header & 15, place


def _skip(data: bytes, place: int, kind: int, depth: int) -> int:
    if kind in _INTEGERS:
        while data[place] > 127:
            place += 1
        return place + 1
    if kind == _BINARY:
        length, place = _read_varint(data, place)
        return place + length
    _check_depth(depth)
    if kind == _STRUCT:
        while header := data[place]:
            place += 1
            if header < 16:
                _, place = _read_varint(data, place)
            if header & 15 not in _TRUTHS:
                place = _skip(data, place, header & 15, depth + 1)
        return place + 1
    if kind in _LISTS:
        size, kind, place = _read_list_head(data, place)
        for _ in range(size):
            place = _skip(data, place, kind, depth + 1)
        return place
    if kind in _BYTES:  # in a list, a truth takes a byte
        return place + 1
    if kind == _DOUBLE:
        return place + 8
    raise ValueError(f"a damaged Parquet footer (a value of type {kind})")
