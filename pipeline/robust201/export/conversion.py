"""Conversion of a dataset's JSON files to Parquet files, from which single values can be read quickly."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator
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
from robust201.reader.listings import PARQUET_FILES, ListedFile, parquet_files_text, read_parquet_files
from robust201.reader.parquet_results import JSON_SOURCES, agrees_with, has_columns_of, is_converted
from robust201.reader.result_files import PARQUET_FOLDER, ResultFiles, parquet_name, task_of
from robust201.shards import RowBatch


@dataclass(frozen=True)
class ConversionReport:
    """Result of a conversion.

    Attributes:
        written: names of the written files, relative to the folder.
        kept: names of existing files that were kept: up to date, or written by an export.
        remarks: values in a variant of the format that exports do not write (see `KeyRows.remarks`).
    """

    written: tuple[str, ...]
    kept: tuple[str, ...]
    remarks: tuple[str, ...]


def convert_dataset(
    folder: Path, *, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> ConversionReport:
    """Write a dataset's JSON results also as Parquet files, in the layout of an export, to its folder ``parquet``.

    Keys are converted one by one with one row group in memory, and each file is complete or absent. An interrupted
    conversion is resumed by the next call, and a repeated one rewrites only files whose JSON files have changed. If the
    folder has a listing, the new files are added to it. `progress` is called with (keys done, keys in total).

    Raises:
        ResultsError: the folder has no JSON results, a file is damaged, or files have different architectures.
    """
    stale = _find_stale(folder)
    _remove_from_listings(folder, stale)  # a file that differs from its listing could not be opened
    dataset = RobustnessDataset(folder)
    pairs = ((name, key) for name in dataset.data for key in dataset.keys_all)
    keys = [key for name, spelling in pairs if (key := _JsonKey.find(dataset.files, name, spelling)) is not None]
    if not keys:
        raise ResultsError(
            f"Converting failed for {folder}: expected JSON files <dataset>/<key>_<measurement>.json, got none. "
            "Name the unpacked dataset's folder."
        )
    changed = [key for key in keys if key.name in stale or not key.is_converted()]
    _remove_from_listings(folder, {key.name for key in changed})
    remarks: list[str] = []
    for done, key in enumerate(keys, start=1):
        if key in changed:
            try:
                key.parquet_file().write()
            except EvaluationError as error:
                raise ResultsError(str(error)) from error
            remarks += key.rows.remarks
        progress(done, len(keys))
    _add_to_listings(folder, [key.name for key in keys])
    written = tuple(key.name for key in changed)
    return ConversionReport(written, tuple(key.name for key in keys if key.name not in written), tuple(remarks))


def _find_stale(folder: Path) -> set[str]:
    """Return the names of converted files that differ from their listing and must be rewritten."""
    listed = {f"{PARQUET_FOLDER}/{name}": file for name, file in read_parquet_files(folder).items()}
    present = {name: file for name, file in listed.items() if (folder / name).is_file()}
    return {
        name for name, file in present.items() if is_converted(folder / name) and ListedFile.of(folder / name) != file
    }


def _remove_from_listings(folder: Path, names: Collection[str]) -> None:
    """Remove files from the listings before they are rewritten: after a kill, readers would reject them as changed."""
    if not names:
        return
    remove_from_listing(folder, {*names, PARQUET_FILES})
    files = read_parquet_files(folder)
    kept = {name: file for name, file in files.items() if f"{PARQUET_FOLDER}/{name}" not in names}
    if kept != files:
        write_text(folder / PARQUET_FILES, parquet_files_text(kept))


def _add_to_listings(folder: Path, names: Iterable[str]) -> None:
    """Add the files of a conversion to the listings; those written by an export are listed already."""
    names = list(names)
    listed = read_parquet_files(folder)
    files = {name.removeprefix(f"{PARQUET_FOLDER}/"): folder / name for name in names}
    new = {name: ListedFile.of(path) for name, path in files.items() if name not in listed and is_converted(path)}
    if new:
        remove_from_listing(folder, {PARQUET_FILES})
        write_text(folder / PARQUET_FILES, parquet_files_text(listed | new))
    present = [PARQUET_FILES] if (folder / PARQUET_FILES).is_file() else []
    add_to_listing(folder, [*names, *present])


@dataclass(frozen=True, eq=False)
class _JsonKey:
    """The JSON files of one key on one dataset, and the Parquet file that they are converted to."""

    rows: KeyRows

    @classmethod
    def find(cls, files: ResultFiles, dataset: str, key: str) -> "_JsonKey | None":
        """Return the files of a key in either spelling; None if there are none."""
        sources = json_files_of(files, dataset, key)
        if not sources:
            return None
        measure, file = next(iter(sources.items()))
        return cls(KeyRows(files, dataset, file.name.partition(f"_{measure}.json")[0], sources))

    @property
    def name(self) -> str:
        return parquet_name(self.rows.dataset, self.rows.key)

    def is_converted(self) -> bool:
        """Return whether the Parquet file exists and was written by an export or from these JSON files."""
        path = self.rows.files.path / self.name
        return path.is_file() and (
            not is_converted(path)
            or all(
                has_columns_of(path, measure) and agrees_with(path, file, measure)
                for measure, file in self.rows.sources.items()
            )
        )

    def parquet_file(self) -> ParquetFile:
        rows = self.rows
        sources = {
            measure: {"size": file.stat().st_size, "sha256": _hash_source(file)}
            for measure, file in rows.sources.items()
        }
        return ParquetFile(
            folder=rows.files.path,
            name=self.name,
            dataset=rows.dataset,
            key=rows.key,
            measurements=tuple(rows.sources),
            space=rows.files.space_name,
            strength=describe_strength(task_of(rows.key)),
            is_measure=rows.is_measure,
            n_classes=DATASETS[rows.dataset].n_classes if rows.dataset in DATASETS else None,
            units=rows.units,
            rows=self,
            metadata={JSON_SOURCES: json.dumps(sources).encode()},
        )

    def iter_batches(self, measurement: str | None) -> Iterator[RowBatch]:
        """Yield the columns unit by unit (see `export.written_file.RowSource`).

        Raises:
            EvaluationError: a file is damaged, or lacks an architecture that another file has. A ResultsError, which is
                an OSError, would look like an error of the file that is being written.
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
