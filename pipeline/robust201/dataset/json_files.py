"""One file of results: rows in, JSON text out, in constant memory."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError, StorageError
from robust201.core.records import Unit
from robust201.dataset.compression import Compression
from robust201.dataset.folder import WrittenFile, hashed_file
from robust201.dataset.number_text import array_text
from robust201.tasks.columns import MEASUREMENTS, Values

TEXT_VERSION = 1
"""Raised when the same rows would give other bytes: files of an interrupted export are then written anew."""


class ExportTask(Protocol):
    """A file of an export that a process of its own may write."""

    @property
    def name(self) -> str:
        """Name of the file, relative to the folder."""

    @property
    def recipe(self) -> str:
        """Digest of everything that the file follows from."""

    def write(self, on_row: Callable[[], None]) -> tuple[WrittenFile, bool]:
        """Write the file; give it, and whether it was there already."""


class RowSelection(Protocol):
    """What export needs of `shards.Selection`; where several processes write, it can be pickled."""

    @property
    def digest(self) -> str:
        """Name of what is read, by content."""

    def iter_values(self, measurement: str | None) -> Iterator[tuple[Unit, Mapping[float, Values]]]:
        """Columns by strength, unit by unit: those of a measurement, or of all."""


@dataclass(frozen=True, eq=False)
class FileTask:
    """A file of results to write.

    Attributes:
        folder: the export's folder.
        name: of the file, relative to it.
        dataset: name of the dataset.
        key: spelled as in the file.
        measurement: what is in it.
        units: in order.
        rows: where their values are.
        round_to: decimals to keep; None keeps every double exactly.
        compression: of the file.
        finished: what an interrupted export noted of the file, by the same recipe.
    """

    folder: Path
    name: str
    dataset: str
    key: str
    measurement: str
    units: Sequence[Unit]
    rows: RowSelection
    round_to: int | None
    compression: Compression | None
    finished: WrittenFile | None = None

    @property
    def recipe(self) -> str:
        """Digest of everything that the file's bytes follow from."""
        recipe = [TEXT_VERSION, self.name, self.dataset, self.key, self.measurement, self.round_to, self.rows.digest]
        return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()

    def write(self, on_row: Callable[[], None]) -> tuple[WrittenFile, bool]:
        """Write the file, or keep the one that an interrupted export left.

        Args:
            on_row: called after each row, of a kept file too; what it raises ends the file, of which nothing stays.

        Returns:
            What lies there now, and whether it was kept.

        Raises:
            StorageError: the rows are not those that were asked for, or hold a number that JSON cannot say.
        """
        path = self.folder / self.name
        if self.finished is not None and self.finished.is_at(path):
            for _ in self.units:
                on_row()
            return self.finished, True
        with hashed_file(path, self.compression) as (stream, hashed):
            for unit, pieces in self.texts():
                for text in pieces:
                    stream.write(text)
                if unit is not None:
                    on_row()
        return WrittenFile(self.name, hashed.digest.hexdigest(), hashed.n_bytes, self.recipe), False

    def texts(self) -> Iterator[tuple[Unit | None, Iterable[bytes]]]:
        """Make the file's text: pieces of each unit's row, and None with what stands before and after them.

        Raises:
            StorageError: see `write`.
        """
        names = (self.dataset, self.key, self.measurement)
        yield None, [("{" + "".join(f"{json.dumps(name)}: {{" for name in names)).encode()]
        expected = iter(self.units)
        separator = b""
        for unit, values in self.rows.iter_values(self.measurement):
            check_row(unit, values, next(expected, None))
            opening = b'%s"%d": ' % (separator, unit.architecture)
            yield unit, itertools.chain([opening], row_text(self.measurement, unit, values, self.round_to))
            separator = b", "
        if (left := next(expected, None)) is not None:
            raise StorageError(
                f"Exporting failed for {left.label}: expected its values from the store, got none. "
                "Run `robust201 verify` on the results folder."
            )
        yield None, [b"}}}}"]


class ExportStoppedError(EvaluationError):
    """Another file of the export failed, or it was interrupted."""


def row_text(
    measurement: str, unit: Unit, values: Mapping[float, Mapping[str, Any]], round_to: int | None = None
) -> Iterator[bytes]:
    """JSON text of a unit: a value for ``clean``, else a list with one value a strength.

    Args:
        measurement: what to write.
        unit: the unit.
        values: the measurement's columns by strength.
        round_to: decimals to keep.

    Yields:
        Pieces of the text.

    Raises:
        StorageError: a number is infinite, or NaN where an accuracy is.
    """
    form = MEASUREMENTS[measurement]
    fields = {"": form} if isinstance(form, str) else form
    before, between, after = (b"", b"", b"") if unit.key == "clean" else (b"[", b", ", b"]")
    yield before
    for place, strength in enumerate(unit.strengths):
        opening = (between if place else b"") + (b"" if isinstance(form, str) else b"{")
        for name, column in fields.items():
            yield opening + (b'"%s": ' % name.encode() if name else b"")
            opening = b", "
            try:
                yield array_text(_check_number(measurement, values[strength][column]), round_to)
            except ValueError as error:
                raise StorageError(
                    f"Exporting failed for {unit.label} {measurement} at {strength:g}: {error}. "
                    "Run `robust201 verify` on the results folder."
                ) from error
        if not isinstance(form, str):
            yield b"}"
    yield after


def _check_number(measurement: str, values: NDArray[Any]) -> NDArray[Any]:
    if measurement == "accuracy" and np.isnan(values):
        raise ValueError("expected an accuracy, got NaN")
    return values


def check_row(unit: Unit, values: Mapping[float, Values], expected: Unit | None) -> None:
    """Hold a row to what was asked for.

    Raises:
        StorageError: it is another unit, or lacks a strength.
    """
    if expected is None or unit.id != expected.id or any(strength not in values for strength in unit.strengths):
        wanted = "no further unit" if expected is None else f"{expected.label} at strengths {list(expected.strengths)}"
        raise StorageError(
            f"Exporting failed for {unit.label}: expected {wanted}, got {unit.label} at strengths {sorted(values)}. "
            "Run `robust201 verify` on the results folder."
        )
