"""JSON files of a dataset that are read whole, plain or compressed."""

import json
from pathlib import Path
from typing import Any

from robust201.core.errors import ResultsError
from robust201.reader.row_stream import read_pieces
from robust201.reader.value_checks import parse_json

_REQUIRED: Any = object()


def read_bytes(file: Path) -> bytes:
    """Read a file, decompressed if its name ends in ``.gz`` or ``.zst``.

    Raises:
        ResultsError: the compressed file is damaged.
    """
    return b"".join(read_pieces(file))


def read_json(file: Path, missing: Any = _REQUIRED) -> Any:
    """Read a JSON file.

    Args:
        file: the file.
        missing: what to return where there is no file.

    Raises:
        ResultsError: it is no JSON, or an object in it has a name twice.
        FileNotFoundError: there is no file, and `missing` was not given.
    """
    if missing is not _REQUIRED and not file.is_file():
        return missing
    try:
        return parse_json(read_bytes(file))
    except ValueError as error:
        raise ResultsError(
            f"Reading failed for {file}: expected JSON, got something else ({error}). "
            "Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
        ) from error


def read_object(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no file.

    Raises:
        ResultsError: it is no JSON object.
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


def read_meta(file: Path) -> Any:
    """Read meta.json, whose 15,625 objects are opened too often for `parse_json`: names in them are counted instead.

    Raises:
        ResultsError: it is no JSON, or an id stands in it twice.
    """
    text = read_bytes(file)
    try:
        meta = json.loads(text)
        n_ids = len(meta["ids"]) if isinstance(meta, dict) and isinstance(meta.get("ids"), dict) else 0
    except (ValueError, RecursionError):
        n_ids = 0
    return meta if n_ids and text.count(b'"nb201-string"') == n_ids else read_json(file)
