"""Files of evaluations: one JSON file in a folder, with the SHA-256 of its content."""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import FormatVersionError, ResultsError, describe_read_error
from robust201.core.files import load_json, make_folder, write_text

FILE_NAME = "evaluation.json"

_FORMAT = 1

_T = TypeVar("_T")


def is_evaluation(path: Path) -> bool:
    """Return whether a folder has the file of an evaluation."""
    return (path / FILE_NAME).exists()


def write_content(folder: Path, content: dict[str, Any]) -> None:
    """Write the content of an evaluation, JSON values, to a folder, in place of an earlier one."""
    make_folder(folder)
    document = {"robust201_evaluation": _FORMAT, "sha256": _digest(content), "content": content}
    write_text(folder / FILE_NAME, json.dumps(document))


def read_content(folder: Path, decode: Callable[[Any], _T]) -> _T:
    """Read the content of an evaluation from a folder, and decode it.

    Raises:
        ResultsError: the folder has no evaluation, or the file is damaged.
        FormatVersionError: another version of robust201 wrote the file.
    """
    path = folder / FILE_NAME
    if not path.exists():
        raise ResultsError(
            f"Reading an evaluation failed for {folder}: expected the file {FILE_NAME}, got none. Write it with "
            "evaluate(…, save=FOLDER) or --save FOLDER."
        )
    try:
        document = load_json(path)
        version, digest, content = (document[name] for name in ("robust201_evaluation", "sha256", "content"))
        if version == _FORMAT and _digest(content) == digest:
            return decode(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damage_error(path, describe_read_error(error)) from error
    if version != _FORMAT:
        raise FormatVersionError(
            f"Reading an evaluation failed for {path}: expected format {_FORMAT}, got {version!r}. Use the version of "
            "robust201 that wrote it, or evaluate again."
        )
    raise _damage_error(path, "its content does not have the SHA-256 that it names")


def _damage_error(path: Path, reason: str) -> ResultsError:
    return ResultsError(
        f"Reading an evaluation failed for {path}: the file is damaged, or no evaluation ({reason}). Delete it, and "
        "evaluate again."
    )


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def encode(array: NDArray[Any]) -> str:
    """Return the bytes of an array as text; those of booleans are packed, eight in a byte."""
    little_endian = np.packbits(array) if array.dtype == np.bool_ else array.astype(array.dtype.newbyteorder("<"))
    return base64.b64encode(little_endian.tobytes()).decode()


def decode_numbers(text: str, dtype: type[np.int64] | type[np.float64]) -> NDArray[Any]:
    """Return the int64 or float64 numbers of `encode`."""
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype).newbyteorder("<")).astype(dtype)


def decode_booleans(text: str, count: int) -> NDArray[np.bool_]:
    """Return the `count` booleans of `encode`."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=count).astype(bool)
