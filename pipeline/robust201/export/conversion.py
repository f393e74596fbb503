"""A JSON dataset gets Parquet files beside it, from which single values are read without the others'."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from robust201.core.errors import EvaluationError, ResultsError
from robust201.core.files import MAX_LISTED_BYTES, IrregularFileError, sha256_of, show_bytes, write_text
from robust201.export.key_rows import KeyRows, json_files_of
from robust201.export.listing import add_to_listing, remove_from_listing
from robust201.export.parquet_files import ParquetFile
from robust201.export.published_layout import describe_strength
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.expected_files import PARQUET_FILES, ListedFile, parquet_files_text, read_parquet_files
from robust201.reader.parquet_results import JSON_SOURCES, agrees_with, has_columns_of, is_converted
from robust201.reader.result_files import (
    PARQUET_FOLDER,
    ResultFiles,
    parquet_name,
    row_of,
)
from robust201.shards import RowBatch


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        written: names, below the folder, of files written.
        kept: of those that were there, of the same JSON or an export's.
        remarks: what was read in another form than an export's (see `PublishedForms`).
    """

    written: tuple[str, ...]
    kept: tuple[str, ...]
    remarks: tuple[str, ...]


def convert_dataset(
    folder: Path, *, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> ConversionReport:
    """Write Parquet files, laid out as an export's, of the JSON files of a dataset, into its folder ``parquet``.

    A key is converted at a time, with a row group in memory, and its file appears whole or not at all. A conversion
    that was interrupted goes on where it ended, and one that is repeated writes what was made of other JSON files.
    Where an export listed its files, these are listed too. `progress` is called with (keys done, keys to do).

    Raises:
        ResultsError: the folder has no JSON of results, or a file is damaged or of other architectures than another.
    """
    _forget_stale(folder)
    dataset = RobustnessDataset(folder)
    keys = [
        key
        for name in dataset.data
        for spelling in dataset.keys_all
        if (key := _JsonKey.find(dataset.files, name, spelling)) is not None
    ]
    if not keys:
        raise ResultsError(
            f"Converting failed for {folder}: expected JSON files <dataset>/<key>_<measurement>.json, got none. "
            "Name the unpacked dataset's folder."
        )
    listed = read_parquet_files(folder)
    written: list[str] = []
    remarks: list[str] = []
    for done, key in enumerate(keys):
        if not key.is_converted(_listed_name(key.name) in listed):
            _forget(folder, key.name)
            try:
                key.task().write()
            except EvaluationError as error:
                raise ResultsError(str(error)) from error
            _list_rows(folder, key.name)
            written.append(key.name)
            remarks += key.rows.forms.remarks
        progress(done + 1, len(keys))
    there = [PARQUET_FILES] if (folder / PARQUET_FILES).is_file() else []
    add_to_listing(folder, [*(key.name for key in keys), *there])
    kept = tuple(key.name for key in keys if key.name not in written)
    return ConversionReport(tuple(written), kept, tuple(remarks))


def _listed_name(name: str) -> str:
    return name.removeprefix(f"{PARQUET_FOLDER}/")


def _list_rows(folder: Path, name: str) -> None:
    """Note what a Parquet file has, in the listing of them."""
    files = read_parquet_files(folder) | {_listed_name(name): ListedFile.of(folder / name)}
    write_text(folder / PARQUET_FILES, parquet_files_text(files))


def _forget(folder: Path, name: str) -> None:
    """List a file no longer that is about to be written: readers would refuse it after a kill in between."""
    remove_from_listing(folder, {name, PARQUET_FILES})
    files = read_parquet_files(folder)
    if files.pop(_listed_name(name), None) is not None:
        write_text(folder / PARQUET_FILES, parquet_files_text(files))


def _forget_stale(folder: Path) -> None:
    """List converted files no longer that are not as they are listed, so that they can be opened and made again."""
    for listed, file in read_parquet_files(folder).items():
        path = folder / PARQUET_FOLDER / listed
        if path.is_file() and is_converted(path) and ListedFile.of(path) != file:
            _forget(folder, f"{PARQUET_FOLDER}/{listed}")


@dataclass(frozen=True)
class _JsonKey:
    """The JSON files of one key on one dataset, and the Parquet file that is made of them."""

    rows: KeyRows

    @classmethod
    def find(cls, files: ResultFiles, dataset: str, key: str) -> "_JsonKey | None":
        """Find the files of a key in either spelling; None if there are none."""
        found = json_files_of(files, dataset, key)
        if not found:
            return None
        measure, file = next(iter(found.items()))
        return cls(KeyRows(files, dataset, file.name.partition(f"_{measure}.json")[0], found))

    @property
    def name(self) -> str:
        return parquet_name(self.rows.dataset, self.rows.key)

    def is_converted(self, is_listed: bool) -> bool:
        """Whether the Parquet file is there: of an export, or of these files and as it is listed."""
        path = self.rows.files.path / self.name
        if not path.is_file():
            return False
        return not is_converted(path) or (
            is_listed
            and all(
                has_columns_of(path, measure) and agrees_with(path, file, measure)
                for measure, file in self.rows.sources.items()
            )
        )

    def task(self) -> ParquetFile:
        sources = {
            measure: {"size": file.stat().st_size, "sha256": _hash_source(file)}
            for measure, file in self.rows.sources.items()
        }
        return ParquetFile(
            folder=self.rows.files.path,
            name=self.name,
            dataset=self.rows.dataset,
            key=self.rows.key,
            measurements=tuple(self.rows.sources),
            space=self.rows.files.space_name,
            strength=describe_strength(row_of(self.rows.key)),
            is_measure=self.rows.is_measure,
            n_classes=DATASETS[self.rows.dataset].n_classes if self.rows.dataset in DATASETS else None,
            units=self.rows.units,
            rows=self,
            metadata={JSON_SOURCES: json.dumps(sources).encode()},
        )

    def iter_batches(self, measurement: str | None) -> Iterator[RowBatch]:
        """Columns, unit by unit (see `export.written_file.RowSource`).

        Raises EvaluationError where a file lacks an architecture that another has, or is damaged: `ResultsError`, an
        OSError, would look like an error of the file being written.
        """
        try:
            for unit, by_strength in self.rows.iter_rows(measurement):
                yield RowBatch.of_unit(unit, by_strength)
        except ResultsError as error:
            raise EvaluationError(str(error)) from error


def _hash_source(file: Path) -> str:
    try:
        return sha256_of(file, MAX_LISTED_BYTES)
    except IrregularFileError as error:
        raise ResultsError(
            f"Converting failed for {file}: expected a regular file of at most {show_bytes(MAX_LISTED_BYTES)}, got "
            f"{error}. Compress a larger file with gzip or zstd, and remove the uncompressed one."
        ) from error
