"""Verification of result files: every byte and row of every file, duplicates, and pixels."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError, ShardDamagedError
from robust201.dataset.shard_rows import check_images, decode_shard
from robust201.evaluation.measurements import check_values
from robust201.store.folder import ResultsFolder
from robust201.store.names import Listing, Names, ShardName, merge_names, names_of, tuple_digest
from robust201.store.shards import Shard
from robust201.sweep.parts import find_rows
from robust201.sweep.plan import Plan, open_results


class Finding(NamedTuple):
    """A fault, or missing parts.

    Attributes:
        kind: ``damaged`` (moved aside), ``duplicate`` (two files of a part have different values), ``pixels`` (files of
            a key and severity were computed from different corrupted images), ``record`` (a record to which
            results refer is missing or damaged; the next run writes it again), ``unstable`` (a network whose outputs
            depend on chance, earlier passes or other images) or ``missing``.
        subject: a file, packs, the label of a network, or datasets with keys.
    """

    kind: str
    subject: str
    message: str

    def __str__(self) -> str:
        has_subject = self.kind in {"damaged", "missing"}
        return self.message if has_subject else f"{self.kind}: {self.subject}: {self.message}"


OnFile = Callable[[int, int], None]
"""Function that receives the numbers of read files and of all files."""


def find_contradictions(results: Path, sources: Sequence[Listing]) -> Iterator[Finding]:
    """Yield contradictions in merged folders (differing files of a part, differing corrupted images), and damage."""
    plan, folder = open_results(results)
    listing = {
        dataset: merge_names([names[_belong_to_shared_slices(names)], *_corruption_samples(plan, dataset, sources)])
        for dataset, names in folder.list().items()
    }
    for finding in check_files(plan, folder, listing):
        if finding.kind in {"damaged", "duplicate", "pixels"}:
            yield finding


def _corruption_samples(plan: Plan, dataset: str, sources: Sequence[Listing]) -> Iterator[Names]:
    """Yield one file per folder, corruption and tuple of severities, which is enough to compare corrupted images."""
    for key in plan.keys:
        if key.dataset == dataset and key.task.kind == "corruption":
            for source in sources:
                names = names_of(source, dataset)
                rows = find_rows(key, names)[1]
                yield names[rows[np.unique(names["strengths"][rows], return_index=True)[1]]]


def _belong_to_shared_slices(names: Names) -> NDArray[np.bool_]:
    """Return which of the sorted names belong to a slice that several files have."""
    slices = np.strings.add(names["unit"], names["slice"])
    _, codes, counts = np.unique(slices, return_inverse=True, return_counts=True)
    return counts[codes] > 1


def check_files(
    plan: Plan, folder: ResultsFolder, listing: Listing, on_file: OnFile = lambda _done, _all: None
) -> Iterator[Finding]:
    """Check the files of a listing, compare them with each other, and yield the faults.

    Damaged files are moved to ``damaged/``, so the next run computes exactly their parts.

    Raises:
        StorageError: a file cannot be read at the moment.
    """
    checker, n_files, n_done = _Checker(folder, plan), sum(map(len, listing.values())), 0
    for dataset, names in listing.items():
        for name, content in folder.read_ahead(dataset, names):
            yield from checker.check(name, content)
            n_done += 1
            on_file(n_done, n_files)


class _Checker:
    """Checks files in the order of a listing; the files of a unit are adjacent."""

    def __init__(self, folder: ResultsFolder, plan: Plan) -> None:
        self._folder = folder
        self._keys = {key.protocol: key for key in plan.keys}
        self._records: set[str] = set()
        self._unit = ""
        self._values: dict[tuple[int, int, float, str], tuple[str, str]] = {}
        self._pixels: dict[tuple[str, float], tuple[str, str]] = {}

    def check(self, name: ShardName, content: bytes | ShardDamagedError) -> Iterator[Finding]:
        """Check a file, compare it with earlier files, and yield the faults."""
        try:
            if isinstance(content, ShardDamagedError):
                raise content
            shard = decode_shard(self._folder, name, content)
            self._check_rows(name, shard)
        except ShardDamagedError as error:
            yield Finding("damaged", name.path, str(error))
            return
        yield from self._check_records(name, shard)
        yield from self._compare_pixels(name, shard)
        yield from self._compare_duplicates(name, shard)

    def _check_records(self, name: ShardName, shard: Shard) -> Iterator[Finding]:
        for digest in {name.strengths, name.columns, shard.unit.protocol} - self._records:
            self._records.add(digest)
            if self._folder.read_record(digest) is None:
                yield Finding("record", f"protocols/{digest}.json", f"missing or damaged, needed by {name.path}")

    def _check_rows(self, name: ShardName, shard: Shard) -> None:
        columns = set(self._folder.read_tuple(name.columns))
        has_columns = not columns or columns == set(next(iter(shard.rows.values())))
        if tuple_digest(list(shard.rows)) != name.strengths or not has_columns:
            raise self._folder.set_aside(name, "strengths or columns that do not match its name")
        if shard.unit.protocol in self._keys:
            check_images(self._folder, self._keys[shard.unit.protocol], name, shard)
        for strength, values in shard.rows.items():
            try:
                check_values(values, shard.stop - shard.start, name=f"{shard.unit.label} at {strength:g}")
            except EvaluationError as error:
                raise self._folder.set_aside(name, f"a wrong row ({error})") from error

    def _compare_pixels(self, name: ShardName, shard: Shard) -> Iterator[Finding]:
        for severity, pixels in shard.pixels.items():
            first_pixels, first_path = self._pixels.setdefault((shard.unit.protocol, severity), (pixels, name.path))
            if first_pixels != pixels:
                message = f"computed from other corrupted images of severity {severity:g} than {first_path}"
                yield Finding("pixels", name.path, message)

    def _compare_duplicates(self, name: ShardName, shard: Shard) -> Iterator[Finding]:
        if name.unit != self._unit:
            self._unit, self._values = name.unit, {}
        differing = set()
        for strength, values in shard.rows.items():
            for column, array in values.items():
                digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
                value_id = name.slice, name.slices, strength, column
                first_digest, first_path = self._values.setdefault(value_id, (digest, name.path))
                if first_digest != digest:
                    differing.add((first_path, column))
        for first_path, column in sorted(differing):
            yield Finding("duplicate", name.path, f"{column} differs from {first_path}, which has the same part")
