"""Files of evaluations: one JSON file in a folder, with the SHA-256 of its content."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import FormatVersionError, ResultsError, describe_read_error
from robust201.core.files import atomic_write, load_json, make_folder, write_text

FILE_NAME = "evaluation.json"

_FORMAT_VERSION = 2


def is_evaluation(folder: Path) -> bool:
    """Return whether a folder contains a saved evaluation."""
    return (folder / FILE_NAME).exists()


def write_content(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the content of an evaluation (JSON values and arrays) to a folder, and replace an earlier evaluation."""
    make_folder(folder)
    document = {"robust201_evaluation": _FORMAT_VERSION, "sha256": _digest(content), "content": content}
    write_text(folder / FILE_NAME, json.dumps(document, default=np.ndarray.tolist))


def read_content(folder: Path) -> dict[str, Any]:
    """Read the content of an evaluation from a folder; arrays are lists.

    Raises:
        ResultsError: the folder has no evaluation, or the file is damaged.
        FormatVersionError: the file has the format of another version of robust201.
    """
    path = folder / FILE_NAME
    if not path.exists():
        raise ResultsError(
            f"Reading an evaluation failed for {folder}: the file {FILE_NAME} is missing. Write it with "
            "evaluate(…, save=FOLDER) or --save FOLDER."
        )
    try:
        document = load_json(path)
        version, digest, content = (document[name] for name in ("robust201_evaluation", "sha256", "content"))
        reason = "its content does not match its SHA-256" if _digest(content) != digest else ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        version, content, reason = _FORMAT_VERSION, {}, describe_read_error(error)
    if version != _FORMAT_VERSION:
        raise FormatVersionError(
            f"Reading an evaluation failed for {path}: expected format {_FORMAT_VERSION}, got {version!r}. Use the "
            "version of robust201 that wrote it, or evaluate again."
        )
    if reason:
        raise ResultsError(
            f"Reading an evaluation failed for {path}: the file is damaged, or not an evaluation ({reason}). Delete "
            "it, and evaluate again."
        )
    result: dict[str, Any] = content
    return result


class StageFile:
    """File ``<key>-<digest>.stages`` (.npz) with the progress of AutoAttack, until the key's results are saved.

    Args:
        folder: the folder of the evaluation.
        key: the key.
        identity: JSON value of everything that affects the results; the file's name contains the value's digest.
    """

    def __init__(self, folder: Path, key: str, identity: Any) -> None:
        self._path = folder / f"{key}-{_digest(identity)[:16]}.stages"

    def load(self, names: Sequence[str]) -> dict[str, NDArray[Any]] | None:
        """Return arrays by name; None if there is no file, or if it is damaged or cannot be read."""
        from robust201.core.arrays import read_npz

        try:
            return read_npz(self._path, names)
        except (OSError, ValueError):
            return None

    def save(self, arrays: Mapping[str, Any]) -> None:
        """Write arrays by name, and replace an earlier file."""
        with atomic_write(self._path) as stream:
            np.savez_compressed(stream, **arrays)


def delete_stages(folder: Path, key: str) -> None:
    """Delete the progress of a key after its results are saved."""
    for path in folder.glob(f"{key}-*.stages"):
        path.unlink(missing_ok=True)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, default=np.ndarray.tolist).encode()).hexdigest()
