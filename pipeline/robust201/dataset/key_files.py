"""All result files of one key on one dataset, written in one pass over its rows."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from robust201.core.records import Unit
from robust201.dataset.json_writer import JsonWriter
from robust201.dataset.parquet_writer import ParquetFormat, ParquetWriter
from robust201.dataset.published_layout import ParquetColumn
from robust201.dataset.row_batch import RowBatch, UnitResults, count_bytes
from robust201.dataset.shard_rows import UnitRows
from robust201.dataset.written_file import WrittenFile, open_hashed

_BATCH_BYTES = 2 << 20
"""Size of a batch, in bytes, from which numbers are converted to text at full speed."""


@dataclass(frozen=True)
class KeyReport:
    """What was written of a key.

    Attributes:
        key: the key as it is spelled in files.
        is_measure: whether it is a measure with a Parquet file.
        files: the files.
        columns: columns of the Parquet file.
        provenances: distinct provenances of the results.
    """

    key: str
    is_measure: bool
    files: tuple[WrittenFile, ...]
    columns: Mapping[str, ParquetColumn]
    provenances: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyFiles:
    """The result files of a key to write; can be pickled, so that another process writes them.

    Attributes:
        folder: folder to which names of files are relative.
        dataset: name of the dataset.
        key: the key as it is spelled in files.
        rows: the results.
        json_names: name of the JSON file of each measurement.
        round_to: number of decimals in JSON; None for exact values.
        parquet: name and format of the Parquet file; None if it is not written.
    """

    folder: Path
    dataset: str
    key: str
    rows: UnitResults
    json_names: Mapping[str, str] = field(default_factory=dict)
    round_to: int | None = None
    parquet: tuple[str, ParquetFormat] | None = None

    @property
    def names(self) -> list[str]:
        return [*self.json_names.values(), *([self.parquet[0]] if self.parquet else [])]

    def write(self, on_units: Callable[[int], None] = lambda _n_units: None) -> KeyReport:
        """Write the files; `on_units` receives the number of units of each batch, and may raise to stop.

        Raises:
            IncompleteError: a result is missing.
            StorageError: a result is damaged, or contains a number that the format cannot represent.
        """
        with ExitStack() as stack:
            opened = {name: stack.enter_context(open_hashed(self.folder / name)) for name in self.names}
            writers = [
                JsonWriter(opened[name][0], self.dataset, self.key, measurement, self.round_to)
                for measurement, name in self.json_names.items()
            ]
            parquet = ParquetWriter(opened[self.parquet[0]][0], self.parquet[1]) if self.parquet else None
            self._write_rows(writers, parquet, on_units)
            files = tuple(hashing.written(name) for name, (_, hashing) in opened.items())
        is_measure = self.parquet is not None and self.parquet[1].is_measure
        columns = parquet.columns if parquet else {}
        return KeyReport(self.key, is_measure, files, columns, tuple(self.rows.provenances))

    def _write_rows(
        self, writers: list[JsonWriter], parquet: ParquetWriter | None, on_units: Callable[[int], None]
    ) -> None:
        batch: list[tuple[Unit, UnitRows]] = []
        n_bytes = 0
        for unit, columns in self.rows:
            batch.append((unit, columns))
            n_bytes += count_bytes(columns)
            if parquet:
                parquet.add(unit, columns)
            if n_bytes >= _BATCH_BYTES:
                _write_batch(writers, batch, on_units)
                batch, n_bytes = [], 0
        _write_batch(writers, batch, on_units)
        for writer in writers:
            writer.close()
        if parquet:
            parquet.close()


def _write_batch(writers: list[JsonWriter], rows: list[tuple[Unit, UnitRows]], on_units: Callable[[int], None]) -> None:
    if rows and writers:
        batch = RowBatch.of(rows)
        for writer in writers:
            writer.add(batch)
    on_units(len(rows))
