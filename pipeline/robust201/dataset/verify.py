"""Verification of results: every byte and row of every file, duplicates, pixels, and missing parts."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robust201.core.errors import EvaluationError, ShardDamagedError
from robust201.dataset.rows import check_images, read_shard
from robust201.store.folder import ResultsFolder
from robust201.store.names import ShardName, shard_name, tuple_digest
from robust201.store.shards import Shard
from robust201.sweep.explain import explain
from robust201.sweep.facts import load_plan
from robust201.sweep.parts import compare
from robust201.sweep.plan import Plan, make_plan
from robust201.tasks.measurements import check_values


class Finding(NamedTuple):
    """One fault.

    Attributes:
        kind: ``damaged`` (moved aside), ``duplicate`` (two files of a part have different values), ``pixels`` (files of
            a key were computed from different corrupted images), ``record`` (what names refer to is missing or damaged;
            the next run writes it again) or ``missing``.
        subject: file, or dataset and key.
    """

    kind: str
    subject: str
    message: str


def verify(results: Path, on_file: Callable[[int], None] = lambda _n_done: None) -> Iterator[Finding]:
    """Yield all faults of a results folder; `on_file` receives the number of read files.

    Damaged files are moved to ``damaged/``, so the next run computes exactly their parts.

    Raises:
        InputError: the path is not a results folder, or has no plan.
        StorageError: a file cannot be read at the moment.
    """
    folder, (config, facts) = ResultsFolder.open(results), load_plan(results)
    plan = make_plan(config, facts, folder.slices)
    checker = _Checker(folder, plan)
    listing = folder.list()
    names = (shard_name(dataset, row) for dataset, rows in listing.items() for row in rows)
    for n_done, name in enumerate(names, 1):
        yield from checker.check(name)
        on_file(n_done)
    listing = folder.list()
    state = compare(plan, listing, folder.read_tuple)
    for cause in explain(plan, state, listing, folder.read_tuple, folder.read_protocols()):
        yield Finding("missing", ", ".join(cause.keys), str(cause))


class _Checker:
    """Checks files in the order of a listing, in which the files of a unit follow each other."""

    def __init__(self, folder: ResultsFolder, plan: Plan) -> None:
        self._folder = folder
        self._keys = {key.protocol: key for key in plan.keys}
        self._records: set[str] = set()
        self._unit = ""
        self._values: dict[tuple[int, int, float, str], tuple[str, str]] = {}
        self._pixels: dict[str, tuple[str, str]] = {}

    def check(self, name: ShardName) -> Iterator[Finding]:
        """Yield the faults of a file, compared with the files before it."""
        yield from self._check_records(name)
        try:
            shard = read_shard(self._folder, name)
            self._check_rows(name, shard)
        except ShardDamagedError as error:
            yield Finding("damaged", name.path, str(error))
            return
        except FileNotFoundError:
            return
        yield from self._compare_pixels(name, shard)
        yield from self._compare_duplicates(name, shard)

    def _check_records(self, name: ShardName) -> Iterator[Finding]:
        for digest in (name.strengths, name.columns):
            if digest not in self._records and not self._folder.read_tuple(digest):
                yield Finding("record", f"protocols/{digest}.json", f"missing or damaged, for {name.path}")
            self._records.add(digest)

    def _check_rows(self, name: ShardName, shard: Shard) -> None:
        columns = set(self._folder.read_tuple(name.columns))
        has_columns = not columns or columns == set(next(iter(shard.rows.values())))
        if tuple_digest(list(shard.rows)) != name.strengths or not has_columns:
            raise self._folder.set_aside(name, "other strengths or columns than its name says")
        if shard.unit.protocol in self._keys:
            check_images(self._folder, self._keys[shard.unit.protocol], name, shard)
        for strength, values in shard.rows.items():
            try:
                check_values(values, shard.stop - shard.start, name=f"{shard.unit.label} at {strength:g}")
            except EvaluationError as error:
                raise self._folder.set_aside(name, f"a wrong row ({error})") from error

    def _compare_pixels(self, name: ShardName, shard: Shard) -> Iterator[Finding]:
        if shard.pixels:
            pixels, first = self._pixels.setdefault(shard.unit.protocol, (shard.pixels, name.path))
            if pixels != shard.pixels:
                message = f"computed from other corrupted images than {first}"
                yield Finding("pixels", name.path, message)

    def _compare_duplicates(self, name: ShardName, shard: Shard) -> Iterator[Finding]:
        if name.unit != self._unit:
            self._unit, self._values = name.unit, {}
        differing = set()
        for strength, values in shard.rows.items():
            for column, array in values.items():
                digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
                part = name.slice, name.slices, strength, column
                known, first = self._values.setdefault(part, (digest, name.path))
                if known != digest:
                    differing.add((first, column))
        for first, column in sorted(differing):
            yield Finding("duplicate", name.path, f"{column} differs from {first}, which has the same part")
