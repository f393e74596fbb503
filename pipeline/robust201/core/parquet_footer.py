"""Parse Parquet footers without Arrow, because a damaged footer can make Arrow abort the process.

pyarrow's `FileMetaData.row_group(i).column(j)` aborts the interpreter if a column chunk lacks its metadata or has
statistics of a wrong length. The footer is a `FileMetaData` struct (https://github.com/apache/parquet-format,
parquet.thrift) in Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
"""

from dataclasses import dataclass
from typing import Any, BinaryIO

_MAGIC = b"PAR1"
_TRAILER_BYTES = 8  # after the footer: its length and the magic number, four bytes each
_MAX_DEPTH = 16

# Type codes of the compact protocol
_DOUBLE, _BINARY, _LIST, _STRUCT = 7, 8, 9, 12
_BOOLEAN_TYPES, _ONE_BYTE_TYPES, _INTEGER_TYPES, _LIST_TYPES = (1, 2), (1, 2, 3), (4, 5, 6), (9, 10)

# Field ids of parquet.thrift
_ROW_GROUPS = 4
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_CHUNK_METADATA, _CHUNK_ENCRYPTION = 3, (8, 9)
_COLUMN_PATH, _NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _STATISTICS = 3, 5, 6, 7, 12
_MAX_VALUE, _MIN_VALUE = 5, 6

_FieldSelection = dict[int, Any]
"""Ids of the fields to parse. Each value selects the fields of a nested struct. All other fields are skipped."""

_CHUNK_FIELDS: _FieldSelection = {
    _CHUNK_METADATA: {
        **{field_id: {} for field_id in (_COLUMN_PATH, _NUM_VALUES, _UNCOMPRESSED, _COMPRESSED)},
        _STATISTICS: {field_id: {} for field_id in (_MAX_VALUE, _MIN_VALUE)},
    },
    **{field_id: {} for field_id in _CHUNK_ENCRYPTION},
}
_FOOTER_FIELDS: _FieldSelection = {_ROW_GROUPS: {_GROUP_ROWS: {}, _GROUP_COLUMNS: _CHUNK_FIELDS}}


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One column of one row group.

    Attributes:
        path: path of the column in the schema.
        n_values: number of values.
        n_bytes: size in bytes before compression.
        n_compressed_bytes: size in bytes after compression.
        bounds: encoded smallest and largest values; None if the footer lacks them.
    """

    path: str
    n_values: int
    n_bytes: int
    n_compressed_bytes: int
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
    """Read the footer of an open Parquet file; raise ValueError if it is missing or incomplete."""
    n_bytes = stream.seek(0, 2)
    start = max(0, n_bytes - (1 << 14))
    stream.seek(start)
    tail = stream.read()
    length = int.from_bytes(tail[-_TRAILER_BYTES:-4], "little")
    if tail[-4:] != _MAGIC or not 0 < length <= n_bytes - _TRAILER_BYTES:
        raise ValueError("no complete Parquet footer")
    if length + _TRAILER_BYTES > len(tail):
        stream.seek(n_bytes - length - _TRAILER_BYTES)
        tail = stream.read()
    return tail[-length - _TRAILER_BYTES : -_TRAILER_BYTES]


def parse_row_groups(footer: bytes) -> list[RowGroup]:
    """Return the row groups of a footer; raise ValueError if it is damaged or the file is encrypted."""
    try:
        metadata, _ = _read_struct(footer, 0, _FOOTER_FIELDS, 0)
        return [_parse_row_group(fields) for fields in metadata.get(_ROW_GROUPS, ())]
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"a damaged Parquet footer ({error!r})") from error


def _parse_row_group(fields: dict[int, Any]) -> RowGroup:
    return RowGroup(_check_count(fields[_GROUP_ROWS]), tuple(map(_parse_column_chunk, fields[_GROUP_COLUMNS])))


def _parse_column_chunk(fields: dict[int, Any]) -> ColumnChunk:
    if any(field_id in fields for field_id in _CHUNK_ENCRYPTION):
        raise ValueError("an encrypted column")
    metadata = fields[_CHUNK_METADATA]
    bounds = None
    if _STATISTICS in metadata:
        minimum, maximum = metadata[_STATISTICS].get(_MIN_VALUE), metadata[_STATISTICS].get(_MAX_VALUE)
        bounds = (minimum, maximum) if isinstance(minimum, bytes) and isinstance(maximum, bytes) else None
    path = b".".join(metadata[_COLUMN_PATH]).decode()
    n_values, n_bytes, n_compressed_bytes = metadata[_NUM_VALUES], metadata[_UNCOMPRESSED], metadata[_COMPRESSED]
    return ColumnChunk(path, _check_count(n_values), _check_count(n_bytes), _check_count(n_compressed_bytes), bounds)


def _check_count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"a damaged Parquet footer (a count of {value!r})")
    return value


def _read_varint(footer: bytes, offset: int) -> tuple[int, int]:
    """Return an unsigned integer in variable-length encoding, and the offset of its end."""
    byte = footer[offset]
    if byte < 128:
        return byte, offset + 1
    value, shift = byte & 127, 7
    while True:
        offset += 1
        byte = footer[offset]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset + 1
        shift += 7
        if shift > 63:
            raise ValueError("a damaged Parquet footer (an unterminated varint)")


def _read_struct(footer: bytes, offset: int, selection: _FieldSelection, depth: int) -> tuple[dict[int, Any], int]:
    """Return the selected fields of a struct by id, and the offset of its end."""
    fields: dict[int, Any] = {}
    field_id = 0
    while header := footer[offset]:
        offset += 1
        type_code = header & 15
        if header > 15:
            field_id += header >> 4
        else:
            value, offset = _read_varint(footer, offset)
            field_id = (value >> 1) ^ -(value & 1)
        if type_code in _BOOLEAN_TYPES:
            continue  # the header contains the value, and no boolean is selected
        if field_id in selection:
            fields[field_id], offset = _read_value(footer, offset, type_code, selection[field_id], depth + 1)
        else:
            offset = _skip_value(footer, offset, type_code, depth + 1)
    return fields, offset + 1


def _read_value(footer: bytes, offset: int, type_code: int, selection: _FieldSelection, depth: int) -> tuple[Any, int]:
    """Return a value, or None if its type is not needed, and the offset of its end."""
    _check_depth(depth)
    if type_code in _INTEGER_TYPES:
        value, offset = _read_varint(footer, offset)
        return (value >> 1) ^ -(value & 1), offset
    if type_code == _BINARY:
        length, offset = _read_varint(footer, offset)
        return footer[offset : offset + length], offset + length
    if type_code == _STRUCT:
        return _read_struct(footer, offset, selection, depth)
    if type_code == _LIST:
        size, item_type, offset = _read_list_header(footer, offset)
        items = []
        for _ in range(size):
            item, offset = _read_value(footer, offset, item_type, selection, depth + 1)
            items.append(item)
        return items, offset
    return None, _skip_value(footer, offset, type_code, depth)


def _check_depth(depth: int) -> None:
    if depth >= _MAX_DEPTH:
        raise ValueError("a damaged Parquet footer (nested too deeply)")


def _read_list_header(footer: bytes, offset: int) -> tuple[int, int, int]:
    """Return the size of a list, the type code of its items, and the offset of the first item."""
    header = footer[offset]
    size, offset = (header >> 4, offset + 1) if header < 0xF0 else _read_varint(footer, offset + 1)
    if size > len(footer) - offset:  # every value takes at least one byte
        raise IndexError("a list that exceeds the footer")
    return size, header & 15, offset


def _skip_value(footer: bytes, offset: int, type_code: int, depth: int) -> int:
    """Return the offset of the end of a value."""
    if type_code in _INTEGER_TYPES:
        while footer[offset] > 127:
            offset += 1
        return offset + 1
    if type_code == _BINARY:
        length, offset = _read_varint(footer, offset)
        return offset + length
    _check_depth(depth)
    if type_code == _STRUCT:
        while header := footer[offset]:
            offset += 1
            if header < 16:
                _, offset = _read_varint(footer, offset)
            if header & 15 not in _BOOLEAN_TYPES:
                offset = _skip_value(footer, offset, header & 15, depth + 1)
        return offset + 1
    if type_code in _LIST_TYPES:
        size, item_type, offset = _read_list_header(footer, offset)
        for _ in range(size):
            offset = _skip_value(footer, offset, item_type, depth + 1)
        return offset
    if type_code in _ONE_BYTE_TYPES:  # in a list, a boolean takes one byte
        return offset + 1
    if type_code == _DOUBLE:
        return offset + 8
    raise ValueError(f"a damaged Parquet footer (a value of type {type_code})")
