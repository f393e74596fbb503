"""Conversion of a dataset's JSON files to Parquet files, from which single values can be read faster."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from robust201.core.errors import EvaluationError, ResultsError
from robust201.core.records import Unit
from robust201.export.key_files import KeyFiles
from robust201.export.key_rows import KeyRows, json_files_of
from robust201.export.listing import add_to_listing, remove_from_listing
from robust201.export.parquet_files import ParquetFormat
from robust201.export.published_layout import describe_strength
from robust201.export.row_batch import UnitRows
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.parquet_results import CONVERTED, is_outdated, stamp_of
from robust201.reader.result_files import ResultFiles, parquet_name, task_of


@dataclass(frozen=True)
class ConversionReport:
    """Result of a conversion.

    Attributes:
        written_files: names of the written files, relative to the folder.
        unchanged_files: names of existing files that were not changed, because they are up to date or an export wrote
            them.
        remarks: messages about values in variants of the format that exports do not write (see `KeyRows.remarks`).
    """

    written_files: tuple[str, ...]
    unchanged_files: tuple[str, ...]
    remarks: tuple[str, ...]


def convert_dataset(
    folder: Path, *, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> ConversionReport:
    """Write the results of a dataset's JSON files as Parquet files to its folder ``parquet``, as an export does.

    Keys are converted one by one, with one row group in memory. Each Parquet file is complete or does not exist. A
    Parquet file is written again if one of its JSON files has changed. If the folder has a listing, the new files are
    added to it. `progress` is called with the number of keys that are up to date and the total number of keys.

    Raises:
        ResultsError: the folder has no JSON results, a file is damaged, or the files of a key have different
            architectures.
    """
    dataset = RobustnessDataset(folder)
    dataset_keys = ((dataset_name, key) for dataset_name in dataset.data for key in dataset.keys_all)
    json_keys = [
        json_key
        for dataset_name, key in dataset_keys
        if (json_key := _JsonKey.find(dataset.files, dataset_name, key)) is not None
    ]
    if not json_keys:
        raise ResultsError(
            f"Converting failed for {folder}: there are no JSON files <dataset>/<key>_<measurement>.json. "
            "Use the folder of the unpacked dataset."
        )
    changed_keys = [json_key for json_key in json_keys if not json_key.has_current_parquet()]
    # An outdated digest must not remain if the process is killed.
    remove_from_listing(folder, {json_key.name for json_key in changed_keys})
    remarks: list[str] = []
    for n_done, json_key in enumerate(json_keys, start=1):
        if json_key in changed_keys:
            try:
                json_key.parquet_file().write()
            except EvaluationError as error:
                raise ResultsError(str(error)) from error
            remarks += json_key.rows.remarks
        progress(n_done, len(json_keys))
    add_to_listing(folder, [json_key.name for json_key in json_keys])
    written_names = tuple(json_key.name for json_key in changed_keys)
    return ConversionReport(
        written_names,
        tuple(json_key.name for json_key in json_keys if json_key.name not in written_names),
        tuple(remarks),
    )


@dataclass(frozen=True, eq=False)
class _JsonKey:
    """The JSON files of one key on one dataset, and the Parquet file to which they are converted."""

    rows: KeyRows

    @classmethod
    def find(cls, files: ResultFiles, dataset: str, key: str) -> "_JsonKey | None":
        """Return a key's JSON files, in either spelling of the key, or None if there are no such files."""
        sources = json_files_of(files, dataset, key)
        if not sources:
            return None
        measurement, path = next(iter(sources.items()))
        return cls(KeyRows(files, dataset, path.name.partition(f"_{measurement}.json")[0], sources))

    @property
    def name(self) -> str:
        return parquet_name(self.rows.dataset, self.rows.key)

    def has_current_parquet(self) -> bool:
        """Return whether the Parquet file exists and was written by an export or converted from these JSON files."""
        path = self.rows.files.path / self.name
        return path.is_file() and not any(is_outdated(path, *source) for source in self.rows.sources.items())

    def parquet_file(self) -> KeyFiles:
        rows = self.rows
        stamps = {measurement: stamp_of(path) for measurement, path in rows.sources.items()}
        parquet = ParquetFormat(
            dataset=rows.dataset,
            key=rows.key,
            measurements=tuple(rows.sources),
            space=rows.files.space_name,
            strength_description=describe_strength(task_of(rows.key)),
            is_measure=rows.is_measure,
            n_classes=DATASETS[rows.dataset].n_classes if rows.dataset in DATASETS else None,
            metadata={CONVERTED: json.dumps(stamps).encode()},
        )
        folder, source = rows.files.path, _JsonRows(rows)
        return KeyFiles(folder=folder, dataset=rows.dataset, key=rows.key, rows=source, parquet=(self.name, parquet))


@dataclass(eq=False)
class _JsonRows:
    """The rows of JSON files (see `export.row_batch.Rows`)."""

    rows: KeyRows
    provenances: tuple[Mapping[str, str], ...] = ()

    def __iter__(self) -> Iterator[tuple[Unit, UnitRows]]:
        try:
            yield from self.rows.iter_rows()
        except ResultsError as error:  # which is an OSError, and would look like an error in writing the new file
            raise EvaluationError(str(error)) from error
