"""A JSON dataset gets Parquet files beside it, from which single values are read without the others'."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from robust201.core.errors import EvaluationError, ResultsError
from robust201.core.files import MAX_LISTED_BYTES, IrregularFileError, sha256_of, show_bytes, write_text
from robust201.core.records import Unit, show_architecture
from robust201.dataset.json_import import Origin, json_files_of, read_origin
from robust201.dataset.listing import add_to_listing, remove_from_listing
from robust201.dataset.parquet_files import ParquetFile
from robust201.dataset.published_forms import PublishedForms, holds_shares
from robust201.dataset.published_layout import describe_strength
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.expected_files import PARQUET_FILES, ListedFile, parquet_files_text, read_parquet_files
from robust201.reader.parquet_results import JSON_SOURCES, agrees_with, has_columns_of, is_converted
from robust201.reader.result_files import (
    PARQUET_FOLDER,
    ResultFiles,
    parquet_name,
    row_of,
    values_by_strength,
)
from robust201.reader.value_checks import architecture_of
from robust201.shards import RowBatch
from robust201.tasks.columns import COLUMNS, COUNTS, Values, count_images

NOT_TOLD = ""
"""Protocol and hash of the weights in a converted file, where they become null: JSON files do not have them."""


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
            remarks += key.forms.remarks
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
    """The JSON files of one key on one dataset, by measurement, as the rows of a Parquet file."""

    files: ResultFiles
    dataset: str
    key: str
    json_files: Mapping[str, Path]

    @classmethod
    def find(cls, files: ResultFiles, dataset: str, key: str) -> "_JsonKey | None":
        """Find the files of a key in either spelling; None where there are none."""
        found = json_files_of(files, dataset, key)
        if not found:
            return None
        measure, file = next(iter(found.items()))
        return cls(files, dataset, file.name.partition(f"_{measure}.json")[0], found)

    @property
    def name(self) -> str:
        """Name of the Parquet file, relative to the dataset's folder."""
        return parquet_name(self.dataset, self.key)

    def is_converted(self, is_listed: bool) -> bool:
        """Whether the Parquet file is there: of an export, or of these files and as it is listed."""
        path = self.files.path / self.name
        if not path.is_file():
            return False
        return not is_converted(path) or (
            is_listed
            and all(
                has_columns_of(path, measure) and agrees_with(path, file, measure)
                for measure, file in self.json_files.items()
            )
        )

    def task(self) -> ParquetFile:
        """Make the file to write."""
        sources = {
            measure: {"size": file.stat().st_size, "sha256": _hash_source(file)}
            for measure, file in self.json_files.items()
        }
        return ParquetFile(
            folder=self.files.path,
            name=self.name,
            dataset=self.dataset,
            key=self.key,
            measurements=tuple(self.json_files),
            space=self.files.space_name,
            strength=describe_strength(row_of(self.key)),
            is_measure=self._is_measure,
            n_classes=DATASETS[self.dataset].n_classes if self.dataset in DATASETS else None,
            units=self.units,
            rows=self,
            metadata={JSON_SOURCES: json.dumps(sources).encode()},
        )

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The rows, as the first file has them."""
        strengths, n_images = self.files.strengths(self.dataset, self.key), self._n_images
        first = next(iter(self.json_files))
        columns = tuple(self.json_files) if self._is_measure else ()
        return tuple(
            Unit(
                i, architecture_of(i), self.dataset, self.key, strengths, n_images, NOT_TOLD, NOT_TOLD, columns=columns
            )
            for i, _ in self._iter_json(first)
        )

    @property
    def _is_measure(self) -> bool:
        return self.files.kind_of(self.key) == "measure"

    @cached_property
    def forms(self) -> PublishedForms:
        """How the values are written."""
        return PublishedForms(f"{self.dataset} {self.key}", self._n_images, shares=self._has_shares)

    @cached_property
    def _has_shares(self) -> bool:
        cm = COLUMNS[COUNTS].measurement
        _, row = next(self._iter_json(cm), (None, None)) if cm in self.json_files else (None, None)
        return row is not None and holds_shares(row, self._origin.n_images, is_single=self._is_single)

    @property
    def _origin(self) -> Origin:
        return read_origin(self.files.sweep, self.dataset, row.key if (row := row_of(self.key)) else self.key)

    @property
    def _is_single(self) -> bool:
        return self.files.is_single(self.dataset, self.key)

    @cached_property
    def _n_images(self) -> int:
        """Images by a measurement of each of them, else as sweep.json says; 0 where it does not."""
        for measure in self.json_files:
            if self._has_shares and measure == COLUMNS[COUNTS].measurement:
                continue
            for _, row in self._iter_json(measure):
                if n_images := count_images(measure, row, is_single=self.key == "clean"):
                    return n_images
                break
        if not self._has_shares:
            record = {} if self.files.sweep is None else self.files.sweep.get("sweep", {})
            return (record.get("images") or {}).get("count") or 0
        if n_images := self._origin.n_images:
            return n_images
        raise ResultsError(
            f"Converting failed for {self.files.path} {self.dataset} {self.key}: expected sweep.json to give the "
            f"number of images, as rows of {COUNTS} hold shares, got none. Convert an export with counts instead."
        )

    def _iter_json(self, measure: str) -> Iterator[tuple[str, Any]]:
        return self.files.iter_json_file(self.json_files[measure], self.dataset, self.key, measure)

    def iter_batches(self, measurement: str | None) -> Iterator[RowBatch]:
        """Columns, unit by unit (see `dataset.written_file.RowSource`).

        Raises EvaluationError where a file lacks an architecture that another has, or is damaged: `ResultsError`, an
        OSError, would look like an error of the file being written.
        """
        try:
            for unit, by_strength in self._rows(measurement):
                yield RowBatch.of_unit(unit, by_strength)
        except ResultsError as error:
            raise EvaluationError(str(error)) from error

    def _rows(self, measurement: str | None) -> Iterator[tuple[Unit, Mapping[float, Values]]]:
        measures = [name for name in self.json_files if measurement in (None, name)]
        columns = {measure: _InStep(self._iter_json(measure)) for measure in measures}
        for unit in self.units:
            by_strength: dict[float, dict[str, Any]] = {strength: {} for strength in unit.strengths}
            for measure, rows in columns.items():
                label = f"{unit.label} {measure}"
                row = rows.take(unit.id)
                if row is _ABSENT:
                    raise self._uneven(f"{show_architecture(unit.architecture)} in it", measure)
                values = [row] if self._is_single else values_by_strength(row, unit.strengths, label)
                for strength, value in zip(unit.strengths, values, strict=True):
                    by_strength[strength] |= self._columns(measure, value, label)
            yield unit, by_strength
        for measure, rows in columns.items():
            if (more := rows.left()) is not None:
                raise self._uneven(f"no {show_architecture(architecture_of(more))}", measure)

    def _columns(self, measure: str, value: Any, label: str) -> Values:
        try:
            return self.forms.columns_of(measure, value)
        except (ValueError, TypeError) as error:
            raise ResultsError(
                f"Converting {label} failed for {self.json_files[measure]}: expected {measure} as it is published, got "
                f"another form ({error}). Export or download it again."
            ) from error

    def _uneven(self, expected: str, measure: str) -> ResultsError:
        first = next(iter(self.json_files.values()))
        return ResultsError(
            f"Converting failed for {self.json_files[measure]}: expected {expected}, as in {first.name}, got another. "
            "Export or download both again."
        )


def _hash_source(file: Path) -> str:
    try:
        return sha256_of(file, MAX_LISTED_BYTES)
    except IrregularFileError as error:
        raise ResultsError(
            f"Converting failed for {file}: expected a regular file of at most {show_bytes(MAX_LISTED_BYTES)}, got "
            f"{error}. Compress a larger file with gzip or zstd, and remove the uncompressed one."
        ) from error


_ABSENT = object()


class _InStep:
    """Values of a file, taken in the order of another: those in between wait in memory, none if the orders agree."""

    def __init__(self, rows: Iterator[tuple[str, Any]]) -> None:
        self._rows = rows
        self._waiting: dict[str, Any] = {}

    def take(self, identifier: str) -> Any:
        """Give an architecture's value; `_ABSENT` where there is none."""
        while identifier not in self._waiting:
            row = next(self._rows, None)
            if row is None:
                return _ABSENT
            self._waiting[row[0]] = row[1]
        return self._waiting.pop(identifier)

    def left(self) -> str | None:
        """Name an architecture that was not asked for."""
        return next(iter(self._waiting), None) or next((identifier for identifier, _ in self._rows), None)
