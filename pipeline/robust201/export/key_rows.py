"""The files of one key of a dataset as rows: an architecture's values of all measurements at every strength."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from robust201.core.errors import ResultsError
from robust201.core.records import Unit, show_architecture
from robust201.export.published_forms import counts_from_fractions, holds_fractions, zeros_to_missing
from robust201.images import DATASETS
from robust201.reader.result_files import ResultFiles, paper_key, task_of, values_by_strength
from robust201.reader.value_checks import architecture_of
from robust201.tasks.columns import COLUMNS, COUNTS, MEASUREMENTS, Values, columns_of_json, count_images, fields_of

UNKNOWN = ""
"""Protocol and hash of the weights of rows from JSON files, which do not contain them."""

EXACT_DECIMALS = 15
"""Numbers with at least this many decimals were not rounded."""

_SAMPLED_ROWS = 20
_DECIMALS = re.compile(r"\d\.(\d+)(?:e-(\d+))?")
_MATRICES = COLUMNS[COUNTS].measurement


def possible_measurements(files: ResultFiles, dataset: str, key: str) -> list[str]:
    """Return the measurements that a dataset may have of a key: a measure's columns, else all measurements."""
    row = task_of(key)
    return list(MEASUREMENTS) if row and not row.columns else files.measurements_of(dataset, key)


def json_files_of(files: ResultFiles, dataset: str, key: str) -> dict[str, Path]:
    """Find the JSON files of a key, in either spelling, by measurement."""
    paths = {measure: files.find_json(dataset, key, measure) for measure in possible_measurements(files, dataset, key)}
    return {measure: path for measure, path in paths.items() if path is not None}


def count_decimals(values: Iterable[Any]) -> int | None:
    """Return the number of decimals of the first values, or None if they were not rounded."""
    max_decimals = 0
    for value in itertools.islice(values, _SAMPLED_ROWS):
        for number, exponent in _DECIMALS.findall(repr(value)):
            max_decimals = max(max_decimals, len(number) + int(exponent or 0))
    return max_decimals if max_decimals < EXACT_DECIMALS else None


@dataclass(frozen=True)
class Origin:
    """What an export's sweep.json records about the results of a key on a dataset.

    Attributes:
        n_images: number of images; that of the whole test split if nothing is recorded.
        decimals: number of decimals that a measurement's values were rounded to, by measurement.
    """

    n_images: int
    decimals: Mapping[str, int]


def read_origin(sweep: Mapping[str, Any] | None, dataset: str, key: str) -> Origin:
    """Read the origin of a key's results from a valid sweep.json; `sweep` is None if the dataset has none.

    The key is in the paper's style.
    """
    record = {} if sweep is None else sweep.get("sweep", {})
    protocols = [p for p in record.get("protocols", ()) if (p.get("dataset"), p.get("key")) == (dataset, key)]
    counts = [protocol["n_images"] for protocol in protocols if protocol.get("n_images") is not None]
    n_test = DATASETS[dataset].n_test if dataset in DATASETS else 0  # unknown for a custom dataset
    n_images = next(iter(counts), None) or (record.get("images") or {}).get("count") or n_test
    decimals: dict[str, int] = {}
    for protocol in protocols:
        known = {name: count for name, count in protocol.get("decimals", {}).items() if count is not None}
        decimals |= {name: min(count, decimals.get(name, count)) for name, count in known.items()}
    return Origin(n_images, decimals)


@dataclass
class KeyRows:
    """The rows of one key on one dataset, with variants of the format normalised (see `export.published_forms`).

    Attributes:
        files: the dataset's files.
        dataset: name of the dataset.
        key: the key, spelled as in the files.
        sources: file of each measurement: JSON files, or one Parquet file for all.
        has_zeros: whether `complete` has met values with 0 for a mean over no image.
    """

    files: ResultFiles
    dataset: str
    key: str
    sources: Mapping[str, Path]
    has_zeros: bool = field(default=False, init=False)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        strengths, n_images = self.files.strengths(self.dataset, self.key), self.n_images
        columns = tuple(self.sources) if self.is_measure else ()
        ids = (identifier for identifier, _ in self._iter_source(next(iter(self.sources))))
        return tuple(
            Unit(i, architecture_of(i), self.dataset, self.key, strengths, n_images, UNKNOWN, UNKNOWN, columns=columns)
            for i in ids
        )

    @property
    def is_measure(self) -> bool:
        return self.files.kind_of(self.key) == "measure"

    @property
    def is_single(self) -> bool:
        """Whether an architecture has a single value instead of one per strength."""
        return self.files.is_single(self.dataset, self.key)

    @cached_property
    def is_parquet(self) -> bool:
        """Whether the source is an export's Parquet file, which has counts, and values in full precision."""
        return any(file.suffix == ".parquet" for file in self.sources.values())

    @cached_property
    def _has_fractions(self) -> bool:
        if self.is_parquet or _MATRICES not in self.sources:
            return False
        _, row = next(self._iter_source(_MATRICES), (None, None))
        return row is not None and holds_fractions(row, self.origin.n_images, is_single=self.is_single)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Messages about values in a variant of the format that exports do not write."""
        label = f"{self.dataset} {self.key}"
        fractions = (
            f"{label}: rows of {COUNTS} contain fractions, which were read as counts of {self.n_images:,} images"
        )
        zeros = f"{label}: zeros in confidences over no image were read as null"
        return (*([fractions] if self._has_fractions else []), *([zeros] if self.has_zeros else []))

    @property
    def origin(self) -> Origin:
        return read_origin(self.files.sweep, self.dataset, paper_key(self.key))

    @cached_property
    def n_images(self) -> int:
        """Number of images, from a measurement that shows it, else from sweep.json; 0 if unknown."""
        for measure in self.sources:
            if self._has_fractions and measure == _MATRICES:
                continue
            _, row = next(self._iter_source(measure), (None, None))
            if row is not None and (n_images := count_images(measure, row, is_single=self.key == "clean")):
                return n_images
        if not self._has_fractions:
            record = {} if self.files.sweep is None else self.files.sweep.get("sweep", {})
            return (record.get("images") or {}).get("count") or 0
        if n_images := self.origin.n_images:
            return n_images
        raise ResultsError(
            f"Reading results failed for {self.files.path} {self.dataset} {self.key}: rows of {COUNTS} contain "
            "fractions, and sweep.json does not give the number of images. Convert an export with counts instead."
        )

    @cached_property
    def decimals(self) -> dict[str, int | None]:
        """Number of decimals that values were rounded to, by measurement; None if not rounded."""
        if self.is_parquet:
            return {}
        sampled = {
            measure: count_decimals(row for _, row in self._iter_source(measure))
            for measure in self.sources
            if not all(name in COLUMNS and COLUMNS[name].is_exact for name in fields_of(measure).values())
        }
        recorded = self.origin.decimals
        return {
            measure: min((n for n in (count, recorded.get(measure)) if n is not None), default=None)
            for measure, count in sampled.items()
        }

    def _iter_source(self, measure: str) -> Iterator[tuple[str, Any]]:
        if self.is_parquet:
            return self.files.iter_values(self.dataset, self.key, measure)
        return self.files.iter_json_file(self.sources[measure], self.dataset, self.key, measure)

    def iter_rows(self, measurement: str | None = None) -> Iterator[tuple[Unit, Mapping[float, Values]]]:
        """Yield each unit with its columns by strength, of one measurement or of all.

        Raises:
            ResultsError: a file is damaged, has an invalid value, or lacks an architecture that another file has.
        """
        measures = [name for name in self.sources if measurement in (None, name)]
        sources = {measure: _AlignedRows(self._iter_source(measure)) for measure in measures}
        for unit in self.units:
            by_strength: dict[float, dict[str, Any]] = {strength: {} for strength in unit.strengths}
            for measure, rows in sources.items():
                label = f"{unit.label} {measure}"
                row = rows.take(unit.id)
                if row is _ABSENT:
                    raise self._unmatched_architecture(f"{show_architecture(unit.architecture)} in it", measure)
                values = [row] if self.is_single else values_by_strength(row, unit.strengths, label)
                for strength, value in zip(unit.strengths, values, strict=True):
                    by_strength[strength] |= self._columns(measure, value, label)
            yield unit, by_strength
        for measure, rows in sources.items():
            if (extra := rows.next_unused()) is not None:
                raise self._unmatched_architecture(f"no {show_architecture(architecture_of(extra))}", measure)

    def _columns(self, measure: str, value: Any, label: str) -> Values:
        try:
            counts = (
                counts_from_fractions(value, self.n_images) if measure == _MATRICES and self._has_fractions else value
            )
            return columns_of_json(measure, counts)
        except (ValueError, TypeError) as error:
            raise ResultsError(
                f"Reading {label} failed for {self.sources[measure]}: {measure} is not in the published format "
                f"({error}). Export or download it again."
            ) from error

    def complete(self, values: Values) -> Values:
        """Replace 0 by NaN in means over no image."""
        completed = zeros_to_missing(values)
        self.has_zeros = self.has_zeros or any(completed[name] is not array for name, array in values.items())
        return completed

    def _unmatched_architecture(self, expected: str, measure: str) -> ResultsError:
        first = next(iter(self.sources.values()))
        return ResultsError(
            f"Reading results failed for {self.sources[measure]}: expected {expected}, as in {first.name}, got "
            "another. Export or download both again."
        )


_ABSENT = object()


class _AlignedRows:
    """Iterator over a file's values that returns them in another file's order.

    Values that are skipped wait in memory; there are none if the orders agree.
    """

    def __init__(self, rows: Iterator[tuple[str, Any]]) -> None:
        self._rows = rows
        self._waiting: dict[str, Any] = {}

    def take(self, identifier: str) -> Any:
        """Return an architecture's value, or `_ABSENT` if the file has none."""
        while identifier not in self._waiting:
            row = next(self._rows, None)
            if row is None:
                return _ABSENT
            self._waiting[row[0]] = row[1]
        return self._waiting.pop(identifier)

    def next_unused(self) -> str | None:
        """Return the id of an architecture that was never taken, or None."""
        return next(iter(self._waiting), None) or next((identifier for identifier, _ in self._rows), None)
