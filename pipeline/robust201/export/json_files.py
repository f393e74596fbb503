"""JSON result files, written from rows in constant memory."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import StorageError
from robust201.core.records import Unit
from robust201.export.number_text import Empty, array_text, array_texts
from robust201.export.written_file import ResultFile
from robust201.shards import RowBatch
from robust201.tasks.columns import COLUMNS, fields_of


@dataclass(frozen=True, eq=False, kw_only=True)
class JsonFile(ResultFile):
    """A JSON file of one measurement (see `export.writing.export_dataset` for rounding and empty means)."""

    measurement: str
    round_to: int | None
    empty: Empty

    def _write_content(self, stream: BinaryIO, on_rows: Callable[[int], None]) -> None:
        for units, pieces in self.texts():
            stream.writelines(pieces)
            if units:
                on_rows(len(units))

    def texts(self) -> Iterator[tuple[Sequence[Unit], list[bytes]]]:
        """Yield the file's text in batches of units with one piece per unit; the first and last batch have no units."""
        names = (self.dataset, self.key, self.measurement)
        yield (), [("{" + "".join(f"{json.dumps(name)}: {{" for name in names)).encode()]
        separator = b""
        for batch in self.read_batches(self.measurement):
            pieces = []
            for unit, text in zip(
                batch.units, row_texts(self.measurement, batch, self.round_to, self.empty), strict=True
            ):
                pieces.append(b'%s"%s": %s' % (separator, str(unit.architecture).encode(), text))
                separator = b", "
            yield batch.units, pieces
        yield (), [b"}}}}"]


def row_texts(measurement: str, batch: RowBatch, round_to: int | None = None, empty: Empty = "null") -> Iterator[bytes]:
    """Yield each unit's JSON text: one value for ``clean`` and measures, else a list with one value per strength.

    Raises:
        StorageError: a number is infinite, or is NaN but not a mean over images.
    """
    fields = fields_of(measurement)
    names = [b'"%s": ' % name.encode() if name else b"" for name in fields]
    columns = [_column_texts(measurement, batch, column, round_to, empty) for column in fields.values()]
    if "" in fields:
        texts = columns[0]
    else:
        template = b"{" + b", ".join(name + b"%s" for name in names) + b"}"
        texts = [template % row for row in zip(*columns, strict=True)]
    first = 0
    for unit in batch.units:
        stop = first + len(unit.strengths)
        yield texts[first] if _is_single(unit) else b"[" + b", ".join(texts[first:stop]) + b"]"
        first = stop


def _column_texts(measurement: str, batch: RowBatch, name: str, round_to: int | None, empty: Empty) -> list[bytes]:
    """Return the JSON text of a column for each evaluation (raises as `row_texts` does)."""
    column = batch.columns[name]
    try:
        if isinstance(column, list):
            return [array_text(_check_numbers(name, values), round_to, empty) for values in column]
        return array_texts(_check_numbers(name, column), round_to, empty)
    except ValueError:
        evaluations = ((unit, strength) for unit in batch.units for strength in unit.strengths)
        for (unit, strength), values in zip(evaluations, column, strict=True):
            try:
                array_text(_check_numbers(name, values), round_to, empty)
            except ValueError as error:
                raise StorageError(
                    f"Exporting failed for {unit.label} {measurement} at {strength:g}: {error}. "
                    "Run `robust201 verify` on the results folder."
                ) from error
        raise


def _is_single(unit: Unit) -> bool:
    return unit.key == "clean" or (bool(unit.columns) and len(unit.strengths) == 1)


def _check_numbers(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values; raise ValueError for NaN except in means over images, which may be over no image."""
    column = COLUMNS.get(name)
    if column is not None and column.value_from_counts is not None and np.isnan(values).any():
        raise ValueError(f"expected {name} to be a number, got NaN")
    return values
