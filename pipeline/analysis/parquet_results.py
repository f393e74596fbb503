"""Results read from the Parquet files of an export, in the form of the JSON files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_COLUMNS = {
    "accuracy": ("accuracy",),
    "confidence": ("confidence_label", "confidence_argmax", "confidence_correct", "confidence_incorrect"),
    "cm": ("cm",),
    "predictions": ("predictions",),
}


def holds(path: Path, measure: str) -> bool:
    """Whether a file has a measurement."""
    return set(_COLUMNS.get(measure, (measure,))) <= set(pq.read_schema(path).names)


def read_rows(path: Path, measure: str, architecture: int | None = None) -> dict[str, Any]:
    """Read a measurement: a value by id, or a list of them by strength.

    Row groups are skipped by the architectures that the footer says they hold. No thread of Arrow's is used, so this
    works after a fork too.

    Args:
        path: a Parquet file of an export.
        measure: name of the measurement.
        architecture: the only one to read; None for all.

    Returns:
        As the JSON file: a value for ``clean``, else a list with one value a strength, ascending.
    """
    columns = _COLUMNS[measure]
    rows: dict[str, list[Any]] = {}
    clean = False
    with pq.ParquetFile(path) as file:
        groups = [g for g in range(file.num_row_groups) if _may_hold(file, g, architecture)]
        for group in groups:
            table = file.read_row_group(group, ["architecture", "key", *columns], use_threads=False)
            if architecture is not None:
                table = table.filter(pa.compute.equal(table["architecture"], architecture))
            clean = clean or table["key"].slice(0, 1).to_pylist() == ["clean"]
            for identifier, value in zip(table["architecture"].to_pylist(), _values(table, measure), strict=True):
                rows.setdefault(str(identifier), []).append(value)
    return {i: values[0] for i, values in rows.items()} if clean else rows


def read_strengths(path: Path) -> tuple[float, ...]:
    """Strengths of a file, ascending."""
    with pq.ParquetFile(path) as file:
        strengths = file.read_row_group(0, ["strength"], use_threads=False)["strength"].to_pylist()
    return tuple(sorted(set(strengths)))


def _may_hold(file: pq.ParquetFile, group: int, architecture: int | None) -> bool:
    if architecture is None:
        return True
    column = file.schema_arrow.names.index("architecture")
    statistics = next(
        chunk.statistics
        for number in range(file.metadata.num_columns)
        if (chunk := file.metadata.row_group(group).column(number)).path_in_schema == file.schema_arrow.names[column]
    )
    return statistics is None or bool(statistics.min <= architecture <= statistics.max)


def _values(table: pa.Table, measure: str) -> Iterable[Any]:
    if measure != "confidence":
        plain: list[Any] = table[_COLUMNS[measure][0]].to_pylist()
        return plain
    label, argmax, correct, incorrect = (table[name].to_pylist() for name in _COLUMNS[measure])
    return [
        {"label": one, "argmax": other, "prediction": [sure, wrong]}
        for one, other, sure, wrong in zip(label, argmax, correct, incorrect, strict=True)
    ]


def decompress(path: Path) -> bytes:
    """Read a file that was compressed with Zstandard."""
    with pa.CompressedInputStream(str(path), "zstd") as stream:
        return bytes(stream.read())
