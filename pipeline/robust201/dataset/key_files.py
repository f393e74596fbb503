"""All result files of one key on one dataset, written in one pass over its rows."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from robust201.dataset.json_writer import JsonWriter
from robust201.dataset.parquet_writer import KeyFormat, ParquetWriter
from robust201.dataset.published_layout import ParquetColumn
from robust201.dataset.row_batch import JSON_BYTES, ROW_GROUP_BYTES, UnitResults, iter_batches
from robust201.dataset.written_file import WrittenFile, open_hashed


@dataclass(frozen=True)
class KeyReport:
    """What was written of a key.

    Attributes:
        form: format of the key's files.
        n_units: number of units.
        files: the files.
        columns: columns of the Parquet file; empty if there is none.
        provenances: distinct provenances of the results.
    """

    form: KeyFormat
    n_units: int
    files: tuple[WrittenFile, ...]
    columns: Mapping[str, ParquetColumn]
    provenances: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, eq=False)
class KeyFiles:
    """The result files of a key to write; can be pickled, so that another process writes them.

    Attributes:
        folder: folder to which names of files are relative.
        form: format of the files.
        rows: the results.
        json_names: name of the JSON file of each measurement.
        parquet_name: name of the Parquet file; None if it is not written.
        round_to: number of decimals in JSON; None for exact values.
    """

    folder: Path
    form: KeyFormat
    rows: UnitResults
    json_names: Mapping[str, str]
    parquet_name: str | None
    round_to: int | None

    @property
    def names(self) -> list[str]:
        return [*self.json_names.values(), *([self.parquet_name] if self.parquet_name else [])]

    def write(self) -> KeyReport:
        """Write the files.

        Raises:
            IncompleteError: a result is missing.
            StorageError: a result is damaged, or contains a number that the format cannot represent.
        """
        form, n_units = self.form, 0
        with ExitStack() as stack:
            opened = {name: stack.enter_context(open_hashed(self.folder / name)) for name in self.names}
            writers: list[JsonWriter | ParquetWriter] = [
                JsonWriter(opened[name][0], form.dataset, form.key, measurement, self.round_to)
                for measurement, name in self.json_names.items()
            ]
            parquet = ParquetWriter(opened[self.parquet_name][0], form) if self.parquet_name else None
            writers += [parquet] if parquet else []
            for batch in iter_batches(self.rows, ROW_GROUP_BYTES if parquet else JSON_BYTES):
                n_units += len(batch.units)
                for writer in writers:
                    writer.add(batch)
            for writer in writers:
                writer.close()
            files = tuple(hashing.written(name) for name, (_, hashing) in opened.items())
        return KeyReport(form, n_units, files, parquet.columns if parquet else {}, tuple(self.rows.provenances))
