"""JSON result files, written from rows in constant memory."""

import json
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from robust201.core.errors import StorageError
from robust201.core.records import Unit
from robust201.dataset.number_text import array_text, array_texts
from robust201.dataset.row_batch import RowBatch
from robust201.tasks.columns import COLUMNS, fields_of


class JsonWriter:
    """Writes a JSON file with one measurement (see `dataset.export.write_dataset` for rounding)."""

    def __init__(self, stream: BinaryIO, dataset: str, key: str, measurement: str, round_to: int | None) -> None:
        self._stream, self._measurement, self._round_to = stream, measurement, round_to
        self._separator = b""
        stream.write(("{" + "".join(f"{json.dumps(name)}: {{" for name in (dataset, key, measurement))).encode())

    def add(self, batch: RowBatch) -> None:
        texts = iter_unit_texts(self._measurement, batch, self._round_to)
        for unit, text in zip(batch.units, texts, strict=True):
            self._stream.write(b'%s"%s": %s' % (self._separator, str(unit.architecture).encode(), text))
            self._separator = b", "

    def close(self) -> None:
        self._stream.write(b"}}}}")


def iter_unit_texts(measurement: str, batch: RowBatch, round_to: int | None = None) -> Iterator[bytes]:
    """Yield each unit's JSON text: one value for ``clean`` and measures, or a list with one value per strength.

    Raises:
        StorageError: a number is infinite, or an accuracy is NaN.
    """
    fields = fields_of(measurement)
    field_prefixes = [b'"%s": ' % name.encode() if name else b"" for name in fields]
    column_texts = [_column_texts(measurement, batch, column, round_to) for column in fields.values()]
    if "" in fields:
        evaluation_texts = column_texts[0]
    else:
        object_template = b"{" + b", ".join(prefix + b"%s" for prefix in field_prefixes) + b"}"
        evaluation_texts = [object_template % texts_of_columns for texts_of_columns in zip(*column_texts, strict=True)]
    first_row = 0
    for unit in batch.units:
        end_row = first_row + len(unit.strengths)
        yield (
            evaluation_texts[first_row]
            if _is_single(unit)
            else b"[" + b", ".join(evaluation_texts[first_row:end_row]) + b"]"
        )
        first_row = end_row


def _column_texts(measurement: str, batch: RowBatch, name: str, round_to: int | None) -> list[bytes]:
    """Return the JSON texts of a column, one per evaluation. Raises the same errors as `iter_unit_texts`."""
    values = batch.columns[name]
    # In columns that are computed from `cm`, NaN is an error. In others, it stands for a mean over zero images.
    is_from_counts = name in COLUMNS and COLUMNS[name].value_from_counts is not None
    try:
        if is_from_counts and np.isnan(values).any():
            raise ValueError(f"{name} is NaN")  # noqa: TRY301
        if isinstance(values, list):
            return [array_text(array, round_to) for array in values]
        return array_texts(values, round_to)
    except ValueError as error:
        first, last = batch.units[0].label, batch.units[-1].label
        raise StorageError(
            f"Exporting failed for {measurement} of {first} to {last}: {error}. Run `robust201 verify` on the results "
            "folder."
        ) from error


def _is_single(unit: Unit) -> bool:
    return unit.key == "clean" or (bool(unit.columns) and len(unit.strengths) == 1)
