"""Reading of one key's files on one dataset as rows. A row has all measurements of a unit, at every strength."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from robust201.core.errors import ResultsError
from robust201.core.records import Unit
from robust201.dataset.folder import DatasetFolder
from robust201.dataset.format_variants import contains_fractions, counts_from_fractions, zeros_to_missing
from robust201.dataset.layout import format_id, parse_architecture_id
from robust201.dataset.row_block import RowBlock
from robust201.images import DATASETS
from robust201.tasks.columns import COLUMNS, COUNTS, Values, columns_of_json, fields_of

NOT_RECORDED = ""
"""Protocol and hash of the weights for rows from JSON files, which contain neither."""

EXACT_DECIMALS = 15
"""A number with at least this many decimals counts as not rounded."""

_N_EXAMINED_VALUES = 20
_DECIMALS = re.compile(r"\d\.(\d+)(?:e-(\d+))?")
_CM = COLUMNS[COUNTS].measurement


def count_decimals(values: Iterable[Any]) -> int | None:
    """Return the maximum number of decimals among the first values, or None if they were not rounded."""
    max_decimals = 0
    for value in itertools.islice(values, _N_EXAMINED_VALUES):
        for digits, exponent in _DECIMALS.findall(repr(value)):
            max_decimals = max(max_decimals, len(digits) + int(exponent or 0))
    return max_decimals if max_decimals < EXACT_DECIMALS else None


def count_recorded_images(sweep: Mapping[str, Any] | None, dataset: str) -> int:
    """Return the number of images in a valid sweep.json, the size of the test split, or 0 for a custom dataset."""
    record = {} if sweep is None else sweep.get("sweep", {})
    n_test = DATASETS[dataset].n_test if dataset in DATASETS else 0
    return (record.get("images") or {}).get("count") or n_test


@dataclass
class FileRows:
    """The rows of one key on one dataset, with variants of the format normalised (see `dataset.format_variants`).

    Attributes:
        folder: the dataset's folder.
        dataset: name of the dataset.
        key: the key, spelled as in the files.
        sources: file of each measurement: JSON files, or one Parquet file for all measurements.
        weights: name of the weights whose rows are read; None if there is only one set.
        has_replaced_zeros: whether `replace_zeros_of_empty_means` has replaced a 0 in a mean over zero images.
    """

    folder: DatasetFolder
    dataset: str
    key: str
    sources: Mapping[str, Path]
    weights: str | None = None
    has_replaced_zeros: bool = field(default=False, init=False)

    @classmethod
    def find(cls, folder: DatasetFolder, dataset: str, key: str, suffix: str, weights: str | None) -> "FileRows | None":
        """Return a key's rows in files of one format (``.json`` or ``.parquet``); None if there are no such files."""
        find_file = folder.find_json if suffix == ".json" else folder.find
        paths = {name: find_file(dataset, key, name) for name in folder.possible_measurements(dataset, key)}
        sources = {name: path for name, path in paths.items() if path is not None and path.suffix == suffix}
        return cls(folder, dataset, key, sources, weights) if sources else None

    def _unit(self, identifier: str) -> Unit:
        strengths = self.folder.strengths(self.dataset, self.key)
        columns = tuple(self.sources) if self.folder.kind_of(self.key) == "measure" else ()
        network = identifier, parse_architecture_id(identifier), self.dataset, self.key
        return Unit(*network, strengths, self.n_images, NOT_RECORDED, NOT_RECORDED, columns=columns)

    @property
    def _is_parquet(self) -> bool:
        """Whether the source is a Parquet file, which contains counts, and values in full precision."""
        return any(file.suffix == ".parquet" for file in self.sources.values())

    @cached_property
    def _has_fractions(self) -> bool:
        if self._is_parquet or _CM not in self.sources:
            return False
        n_images = count_recorded_images(self.folder.sweep, self.dataset)
        return any(contains_fractions(rows.columns[COUNTS][0], n_images) for rows in self._first_rows(_CM))

    def _first_rows(self, measurement: str) -> Iterator[RowBlock]:
        """Yield the first rows of a measurement, or nothing if it has no rows."""
        return itertools.islice(self._iter_source(measurement), 1)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Messages about values in variants of the format that exports do not write."""
        label = f"{self.dataset} {self.key}"
        fractions = (
            f"{label}: rows of {COUNTS} contain fractions, which were read as counts of {self.n_images:,} images"
        )
        zeros = f"{label}: mean confidences of 0 over zero images were read as null"
        return (*([fractions] if self._has_fractions else []), *([zeros] if self.has_replaced_zeros else []))

    @cached_property
    def n_images(self) -> int:
        """Number of images, from a measurement that depends on it, or from sweep.json; 0 if unknown."""
        for measurement in self.sources:
            for rows in self._first_rows(measurement) if not (self._has_fractions and measurement == _CM) else ():
                for name, array in rows.columns.items():
                    if name in COLUMNS and (n_images := COLUMNS[name].count_images(array[0])):
                        return n_images
        if not self._has_fractions:
            return (self.folder.sweep_record.get("images") or {}).get("count") or 0
        if n_images := count_recorded_images(self.folder.sweep, self.dataset):
            return n_images
        raise ResultsError(
            f"Reading results failed for {self.folder.path} {self.dataset} {self.key}: rows of {COUNTS} contain "
            "fractions, and sweep.json does not contain the number of images. Export counts instead."
        )

    @cached_property
    def decimals(self) -> dict[str, int | None]:
        """Number of decimals to which values were rounded, by measurement; None if they were not rounded."""
        if self._is_parquet:
            return {}
        return {
            measurement: count_decimals(
                array.tolist() for rows in self._iter_source(measurement) for array in rows.columns.values()
            )
            for measurement in self.sources
            if not all(name in COLUMNS and COLUMNS[name].is_exact for name in fields_of(measurement).values())
        }

    def _iter_source(self, measurement: str) -> Iterator[RowBlock]:
        for rows in self.folder.iter_rows(self.dataset, self.key, measurement, file=self.sources[measurement]):
            selected = rows if self.weights is None or rows.weights is None else rows.take(rows.weights == self.weights)
            if len(selected):
                yield selected

    def _iter_networks(self, measurement: str) -> Iterator[tuple[str, dict[float, Values]]]:
        """Yield each id with the columns of a measurement by strength."""
        identifier = ""
        columns_by_strength: dict[float, Values] = {}
        for rows in self._iter_source(measurement):
            for row in range(len(rows)):
                if str(rows.architectures[row]) != identifier:
                    if identifier:
                        yield identifier, columns_by_strength
                    identifier, columns_by_strength = str(rows.architectures[row]), {}
                columns = {name: array[row] for name, array in rows.columns.items()}
                columns_by_strength[float(rows.strengths[row])] = self._convert(measurement, columns, identifier)
        if identifier:
            yield identifier, columns_by_strength

    def iter_rows(self) -> Iterator[tuple[Unit, Mapping[float, Values]]]:
        """Yield each unit with its columns by strength.

        Raises:
            ResultsError: a file is damaged, has an invalid value, or lacks an architecture that another file has.
        """
        first, *others = self.sources
        rows_by_measurement = {name: _ReorderedRows(self._iter_networks(name)) for name in others}
        for identifier, columns in self._iter_networks(first):
            unit = self._unit(identifier)
            columns_by_strength = {strength: dict(columns.get(strength, {})) for strength in unit.strengths}
            for name, rows in rows_by_measurement.items():
                columns_of_measurement = rows.take(identifier)
                if columns_of_measurement is None:
                    raise self._unmatched_architecture_error(f"{format_id(identifier)} in this file", name)
                for strength, values in columns_of_measurement.items():
                    columns_by_strength[strength] |= values
            yield unit, columns_by_strength
        for name, rows in rows_by_measurement.items():
            if (unmatched_id := rows.next_unused()) is not None:
                raise self._unmatched_architecture_error(f"no {format_id(unmatched_id)}", name)

    def _convert(self, measurement: str, columns: Mapping[str, Any], identifier: str) -> Values:
        try:
            if measurement == _CM and self._has_fractions:
                columns = {COUNTS: counts_from_fractions(columns[COUNTS], self.n_images)}
            fields = {field: columns[name] for field, name in fields_of(measurement).items()}
            return columns_of_json(measurement, fields.get("", fields))
        except (ValueError, TypeError) as error:
            raise ResultsError(
                f"Reading {format_id(identifier)} failed for {self.sources[measurement]}: {measurement} is not in the "
                f"published format ({error}). Export or download it again."
            ) from error

    def replace_zeros_of_empty_means(self, values: Values) -> Values:
        """Replace 0 by NaN in means over zero images, and record in `has_replaced_zeros` whether there were any."""
        values_with_nan = zeros_to_missing(values)
        self.has_replaced_zeros = self.has_replaced_zeros or any(
            values_with_nan[name] is not array for name, array in values.items()
        )
        return values_with_nan

    def _unmatched_architecture_error(self, expected: str, measurement: str) -> ResultsError:
        first_source = next(iter(self.sources.values()))
        return ResultsError(
            f"Reading results failed for {self.sources[measurement]}: expected {expected}, as in {first_source.name}. "
            "Export or download both files again."
        )


class _ReorderedRows:
    """Values of a file, read in the order of another file's architectures.

    Values stay in memory until they are taken. If the files have the same order, at most one value is in memory.
    """

    def __init__(self, rows: Iterator[tuple[str, dict[float, Values]]]) -> None:
        self._rows = rows
        self._unused: dict[str, dict[float, Values]] = {}

    def take(self, identifier: str) -> dict[float, Values] | None:
        """Return an architecture's values, or None if the file has none."""
        while identifier not in self._unused:
            id_and_values = next(self._rows, None)
            if id_and_values is None:
                return None
            self._unused[id_and_values[0]] = id_and_values[1]
        return self._unused.pop(identifier)

    def next_unused(self) -> str | None:
        """Return the id of an architecture that was never taken, or None."""
        return next(iter(self._unused), None) or next((identifier for identifier, _ in self._rows), None)
