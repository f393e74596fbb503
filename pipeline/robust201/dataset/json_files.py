"""One JSON file of results: rows in, text out, in constant memory."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import StorageError
from robust201.core.records import Unit
from robust201.dataset.number_text import Empty, array_text
from robust201.dataset.written_file import ResultFile
from robust201.tasks.columns import COLUMNS, fields_of

TEXT_VERSION = 1
"""Raised when the same rows would give other bytes: files of an interrupted export are then written anew."""


@dataclass(frozen=True, eq=False, kw_only=True)
class JsonFile(ResultFile):
    """A JSON file of one measurement (see `dataset.export.export_dataset` for rounding and empty means)."""

    measurement: str
    round_to: int | None
    empty: Empty

    def _ingredients(self) -> list[Any]:
        return [TEXT_VERSION, self.name, self.dataset, self.key, self.measurement, self.round_to, self.empty]

    def _write_content(self, stream: BinaryIO, on_row: Callable[[], None]) -> None:
        for unit, pieces in self.texts():
            for text in pieces:
                stream.write(text)
            if unit is not None:
                on_row()

    def texts(self) -> Iterator[tuple[Unit | None, Iterable[bytes]]]:
        """Make the file's text: pieces of each unit's row, and None with what stands before and after them."""
        names = (self.dataset, self.key, self.measurement)
        yield None, [("{" + "".join(f"{json.dumps(name)}: {{" for name in names)).encode()]
        separator = b""
        for unit, values in self.read_units(self.measurement):
            opening = b'%s"%s": ' % (separator, str(unit.architecture).encode())
            yield unit, itertools.chain([opening], row_text(self.measurement, unit, values, self.round_to, self.empty))
            separator = b", "
        yield None, [b"}}}}"]


def row_text(
    measurement: str,
    unit: Unit,
    values: Mapping[float, Mapping[str, Any]],
    round_to: int | None = None,
    empty: Empty = "null",
) -> Iterator[bytes]:
    """JSON text of a unit: a value for ``clean`` and measures, else a list with one value per strength.

    Raises StorageError where a number is infinite, or NaN where an accuracy is.
    """
    fields = fields_of(measurement)
    is_object = "" not in fields
    before, between, after = (b"", b"", b"") if _is_single(unit) else (b"[", b", ", b"]")
    yield before
    for place, strength in enumerate(unit.strengths):
        opening = (between if place else b"") + (b"{" if is_object else b"")
        for name, column in fields.items():
            yield opening + (b'"%s": ' % name.encode() if name else b"")
            opening = b", "
            try:
                yield array_text(_check_number(column, values[strength][column]), round_to, empty)
            except ValueError as error:
                raise StorageError(
                    f"Exporting failed for {unit.label} {measurement} at {strength:g}: {error}. "
                    "Run `robust201 verify` on the results folder."
                ) from error
        if is_object:
            yield b"}"
    yield after


def _is_single(unit: Unit) -> bool:
    return unit.key == "clean" or (bool(unit.columns) and len(unit.strengths) == 1)


def _check_number(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Refuse NaN in values other than means over images; only those may be over no image."""
    column = COLUMNS.get(name)
    if column is not None and column.of_counts is not None and np.isnan(values).any():
        raise ValueError(f"expected {name} to be a number, got NaN")
    return values
