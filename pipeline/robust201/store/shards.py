"""The content of a shard: a Parquet file with one row per strength.

The columns are `strength`, `seconds` and the measurements (`tasks.columns.COLUMNS`, or a measure's own columns).
Matrices are flattened in row-major order. The key `robust201` of the file's metadata is a JSON object with labels: the
version, the unit, the slice's images (`start`, `stop`), the number of classes, hashes of corrupted images, and the
provenance, which is never part of an id.
"""

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.parquet.core import ParquetReader

from robust201.core.records import EvaluationResult, Unit, canonical_json
from robust201.tasks.columns import COLUMNS, Values, count_classes, stored_order

METADATA_KEY = "robust201"
VERSION = 1

StackedColumn: TypeAlias = NDArray[Any] | list[NDArray[Any]]
"""A column of E evaluations: an array (E, …), or a list of E arrays if their shapes differ."""


@dataclass(frozen=True, eq=False)
class Shard:
    """A decoded shard.

    Attributes:
        unit: the unit, with only the file's strengths.
        start: position of the first image.
        stop: position after the last image.
        columns: columns of the unit's strengths (see `core.records.EvaluationResult.values`).
        provenance: versions, host and device that computed the rows.
        pixels: hashes of the corrupted images that were used, by strength; empty if there are none.
    """

    unit: Unit
    start: int
    stop: int
    columns: Mapping[str, StackedColumn]
    provenance: Mapping[str, str]
    pixels: Mapping[float, str]

    @property
    def rows(self) -> dict[float, Values]:
        """The columns by strength."""
        return {
            strength: {name: np.asarray(column[row]) for name, column in self.columns.items()}
            for row, strength in enumerate(self.unit.strengths)
        }


def encode(results: Sequence[EvaluationResult], *, pixels: Sequence[str] = ()) -> bytes:
    """Return the content of a shard with the results of one part; all results must have the same columns.

    `pixels` are the hashes of the corrupted images of each result, if there are any.
    """
    part = results[0].part
    columns = stored_order(results[0].values)
    labels = {
        "version": VERSION,
        "unit": asdict(part.unit) | {"strengths": [result.strength for result in results]},
        "start": part.start,
        "stop": part.stop,
        "n_classes": count_classes(results[0].values),
        "provenance": dict(results[0].provenance),
        "pixels": list(pixels),
    }
    arrays = {
        "strength": pa.array([result.strength for result in results], pa.float64()),
        "seconds": pa.array([result.seconds for result in results], pa.float32()),
    } | {name: _to_arrow([np.asarray(result.values[name]) for result in results]) for name in columns}
    return _write(pa.table(arrays), canonical_json(labels))


def _to_arrow(values: Sequence[NDArray[Any]]) -> pa.Array:
    if values[0].ndim == 0:
        return pa.array(np.stack(values))
    offsets = np.cumsum([0, *(array.size for array in values)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate([array.ravel() for array in values])))


def _write(table: pa.Table, labels: str) -> bytes:
    lists = {f"{field.name}.list.element": field.type for field in table.schema if pa.types.is_list(field.type)}
    # Byte-stream-split makes confidences 10% smaller; a dictionary would make them 20% larger.
    float_lists = [path for path, dtype in lists.items() if pa.types.is_floating(dtype.value_type)]
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        table.schema,
        # Starting a decompressor takes longer than reading a column with one number per strength.
        compression=dict.fromkeys(lists, "zstd"),
        use_dictionary=False,
        column_encoding=dict.fromkeys(float_lists, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({METADATA_KEY: labels})
    return sink.getvalue()


def decode(content: bytes, columns: Collection[str] = ()) -> Shard:
    """Decode some or all columns of a shard, whose content has been compared with the hash in its name.

    Raises:
        ValueError: the content is not a shard of this version, or its columns do not fit its labels.
    """
    try:
        reader = ParquetReader()  # `pq.ParquetFile` takes 1.3 times as long, and `pq.read_table` 3 times as long
        reader.open(pa.BufferReader(content), use_memory_map=False)
        stored = [path[0] for path in reader.column_paths]
        labels = orjson.loads(reader.metadata.metadata[METADATA_KEY.encode()])
        if labels["version"] != VERSION:
            raise ValueError(f"version {labels['version']}, not {VERSION}")
        fields = labels["unit"]
        unit = Unit(**fields | {name: tuple(fields[name]) for name in ("strengths", "columns")})
        if not columns:  # strengths are compared with the labels only if all columns are read
            columns = [name for name in stored if name not in {"strength", "seconds"}]
            strengths = reader.read_column(stored.index("strength")).to_pylist()
            if tuple(strengths) != unit.strengths or len({*strengths}) != len(strengths):
                raise ValueError(f"strengths {strengths}, not {list(unit.strengths)}")
        elif not set(columns) <= set(stored):
            raise ValueError(f"columns {stored}, not {sorted(columns)}")
        n_classes, n_images = labels["n_classes"], labels["stop"] - labels["start"]
        arrays = {
            name: _from_arrow(reader.read_column(stored.index(name)), name, n_classes, n_images) for name in columns
        }
        if any(len(array) != len(unit.strengths) for array in arrays.values()):
            raise ValueError(f"columns whose lengths are not {len(unit.strengths)}")
        pixels = dict(zip(unit.strengths, labels["pixels"], strict=True)) if labels["pixels"] else {}
        return Shard(unit, labels["start"], labels["stop"], arrays, labels["provenance"], pixels)
    except (pa.ArrowException, OSError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not a valid shard ({type(error).__name__}: {error})") from error


def _from_arrow(column: pa.ChunkedArray, name: str, n_classes: int, n_images: int) -> StackedColumn:
    if column.null_count:
        raise ValueError(f"{name} with an empty cell")
    array = column.chunk(0)
    if not pa.types.is_list(array.type):
        return np.from_dlpack(array)  # `to_numpy` would import pandas
    values = np.from_dlpack(array.flatten())
    if name not in COLUMNS:
        return stack(np.split(values, array.offsets.tolist()[1:-1]))
    return values.reshape(len(array), *COLUMNS[name].shape(n_classes, n_images))


def stack(arrays: list[NDArray[Any]]) -> StackedColumn:
    """Return arrays as one array, or unchanged if their shapes differ."""
    return arrays if len({array.shape for array in arrays}) > 1 else np.array(arrays)
