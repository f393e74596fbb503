"""Reading of one key's files on one dataset as rows. A row has all measurements of a unit, at every strength."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from robust201.core.errors import ResultsError
from robust201.core.records import Unit, format_architecture
from robust201.export.format_variants import contains_fractions, counts_from_fractions, zeros_to_missing
from robust201.images import DATASETS
from robust201.reader.result_files import ResultFiles, list_values_per_strength, task_of
from robust201.reader.value_checks import parse_architecture_id
from robust201.tasks.columns import COLUMNS, COUNTS, MEASUREMENTS, Values, columns_of_json, count_images, fields_of

NOT_RECORDED = ""
"""Protocol and hash of the weights for rows from JSON files, which contain neither."""

EXACT_DECIMALS = 15
"""A number with at least this many decimals counts as not rounded."""

_N_EXAMINED_VALUES = 20
_DECIMALS = re.compile(r"\d\.(\d+)(?:e-(\d+))?")
_CM = COLUMNS[COUNTS].measurement


def possible_measurements(files: ResultFiles, dataset: str, key: str) -> list[str]:
    """Return the measurements that a dataset may have for a key: a measure's columns, or all measurements."""
    task = task_of(key)
    return list(MEASUREMENTS) if task and not task.columns else files.measurements_of(dataset, key)


def json_files_of(files: ResultFiles, dataset: str, key: str) -> dict[str, Path]:
    """Return the JSON files of a key, in either spelling, by measurement."""
    paths = {
        measurement: files.find_json(dataset, key, measurement)
        for measurement in possible_measurements(files, dataset, key)
    }
    return {measurement: path for measurement, path in paths.items() if path is not None}


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
class KeyRows:
    """The rows of one key on one dataset, with variants of the format normalised (see `export.format_variants`).

    Attributes:
        files: the dataset's files.
        dataset: name of the dataset.
        key: the key, spelled as in the files.
        sources: file of each measurement: JSON files, or one Parquet file for all measurements.
        has_replaced_zeros: whether `replace_zeros_of_empty_means` has replaced a 0 in a mean over zero images.
    """

    files: ResultFiles
    dataset: str
    key: str
    sources: Mapping[str, Path]
    has_replaced_zeros: bool = field(default=False, init=False)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        strengths, n_images = self.files.strengths(self.dataset, self.key), self.n_images
        columns = tuple(self.sources) if self.is_measure else ()
        ids = (identifier for identifier, _ in self._iter_source(next(iter(self.sources))))
        return tuple(
            Unit(
                identifier,
                parse_architecture_id(identifier),
                self.dataset,
                self.key,
                strengths,
                n_images,
                NOT_RECORDED,
                NOT_RECORDED,
                columns=columns,
            )
            for identifier in ids
        )

    @property
    def is_measure(self) -> bool:
        return self.files.kind_of(self.key) == "measure"

    @property
    def has_single_value(self) -> bool:
        """Whether an architecture has a single value instead of one per strength."""
        return self.files.has_single_value(self.dataset, self.key)

    @cached_property
    def is_parquet(self) -> bool:
        """Whether the source is a Parquet file, which contains counts, and values in full precision."""
        return any(file.suffix == ".parquet" for file in self.sources.values())

    @cached_property
    def _has_fractions(self) -> bool:
        if self.is_parquet or _CM not in self.sources:
            return False
        _, first_value = next(self._iter_source(_CM), (None, None))
        return first_value is not None and contains_fractions(
            first_value, count_recorded_images(self.files.sweep, self.dataset), is_single=self.has_single_value
        )

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
            if self._has_fractions and measurement == _CM:
                continue
            _, first_value = next(self._iter_source(measurement), (None, None))
            if first_value is not None and (
                n_images := count_images(measurement, first_value, is_single=self.key == "clean")
            ):
                return n_images
        if not self._has_fractions:
            record = {} if self.files.sweep is None else self.files.sweep.get("sweep", {})
            return (record.get("images") or {}).get("count") or 0
        if n_images := count_recorded_images(self.files.sweep, self.dataset):
            return n_images
        raise ResultsError(
            f"Reading results failed for {self.files.path} {self.dataset} {self.key}: rows of {COUNTS} contain "
            "fractions, and sweep.json does not contain the number of images. Convert an export with counts instead."
        )

    @cached_property
    def decimals(self) -> dict[str, int | None]:
        """Number of decimals to which values were rounded, by measurement; None if they were not rounded."""
        if self.is_parquet:
            return {}
        return {
            measurement: count_decimals(value for _, value in self._iter_source(measurement))
            for measurement in self.sources
            if not all(name in COLUMNS and COLUMNS[name].is_exact for name in fields_of(measurement).values())
        }

    def _iter_source(self, measurement: str) -> Iterator[tuple[str, Any]]:
        if self.is_parquet:
            return self.files.iter_values(self.dataset, self.key, measurement)
        return self.files.iter_json_file(self.sources[measurement], self.dataset, self.key, measurement)

    def iter_rows(self, measurement: str | None = None) -> Iterator[tuple[Unit, Mapping[float, Values]]]:
        """Yield each unit with its columns by strength, for one measurement or all measurements.

        Raises:
            ResultsError: a file is damaged, has an invalid value, or lacks an architecture that another file has.
        """
        measurements_to_read = [name for name in self.sources if measurement in (None, name)]
        rows_by_measurement = {name: _ReorderedRows(self._iter_source(name)) for name in measurements_to_read}
        for unit in self.units:
            columns_by_strength: dict[float, dict[str, Any]] = {strength: {} for strength in unit.strengths}
            for name, rows in rows_by_measurement.items():
                label = f"{unit.label} {name}"
                architecture_value = rows.take(unit.id)
                if architecture_value is _NO_ROW:
                    raise self._unmatched_architecture_error(
                        f"{format_architecture(unit.architecture)} in this file", name
                    )
                values = (
                    [architecture_value]
                    if self.has_single_value
                    else list_values_per_strength(architecture_value, unit.strengths, label)
                )
                for strength, value in zip(unit.strengths, values, strict=True):
                    columns_by_strength[strength] |= self._convert_value(name, value, label)
            yield unit, columns_by_strength
        for name, rows in rows_by_measurement.items():
            if (unmatched_id := rows.next_unused()) is not None:
                raise self._unmatched_architecture_error(
                    f"no {format_architecture(parse_architecture_id(unmatched_id))}", name
                )

    def _convert_value(self, measurement: str, value: Any, label: str) -> Values:
        try:
            stored_value = (
                counts_from_fractions(value, self.n_images) if measurement == _CM and self._has_fractions else value
            )
            return columns_of_json(measurement, stored_value)
        except (ValueError, TypeError) as error:
            raise ResultsError(
                f"Reading {label} failed for {self.sources[measurement]}: {measurement} is not in the published format "
                f"({error}). Export or download it again."
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


_NO_ROW = object()


class _ReorderedRows:
    """Values of a file, read in the order of another file's architectures.

    Values stay in memory until they are taken. If the files have the same order, at most one value is in memory.
    """

    def __init__(self, rows: Iterator[tuple[str, Any]]) -> None:
        self._rows = rows
        self._unused_values: dict[str, Any] = {}

    def take(self, identifier: str) -> Any:
        """Return an architecture's value, or `_NO_ROW` if the file has none."""
        while identifier not in self._unused_values:
            id_and_value = next(self._rows, None)
            if id_and_value is None:
                return _NO_ROW
            self._unused_values[id_and_value[0]] = id_and_value[1]
        return self._unused_values.pop(identifier)

    def next_unused(self) -> str | None:
        """Return the id of an architecture that was never taken, or None."""
        return next(iter(self._unused_values), None) or next((identifier for identifier, _ in self._rows), None)
