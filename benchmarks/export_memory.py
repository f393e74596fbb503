"""Peak memory of an export at the size of the paper's sweep, process by process.

    python -m benchmarks.export_memory [--processes 5] [--json-processes 8] [--folder FOLDER]

Needs 12 GB of disk in FOLDER, deleted at the end. The results folder has the paper's plan: 290,970 units and 1,610,034
rows in as many compacted shards as `benchmarks.store` gives it, with the measurements of the paper. What fills the
memory of a worker is a few row groups, so every file of CIFAR-100 and ImageNet16-120 begins with `--row-groups` of
them, of 100 and 120 classes and with the digits of trained networks (see `benchmarks.export`); all other rows are zeros
of ten classes, as large as CIFAR-10's in memory and next to nothing on disk. Then the command itself exports all files,
JSON and Parquet and then JSON alone, while the proportional set size of each of its processes is sampled.
"""

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.export import make_bank, make_values
from benchmarks.store import CLASSES, age, make_results_folder, write_compacted_shards, zero_tables
from robust201.core.records import EvaluationResult, Part, Unit
from robust201.planning.plan import Plan
from robust201.shards.parquet import ROW_GROUP_BYTES, concat, table_of

MEASUREMENTS = ("accuracy", "confidence", "cm")
SAMPLE_SECONDS = 0.1
MB = 1e6


def large_units(plan: Plan, row_groups: int) -> set[str]:
    """Ids of the units whose rows are as large as a true sweep's: the first of each key, a whole number of row groups.

    A row group of the exported Parquet file ends with the unit that fills it, and its rows must be of one size.
    """
    chosen = []
    for (dataset, _), units in itertools.groupby(plan.units, key=lambda unit: (unit.dataset, unit.key)):
        members = sorted(units, key=lambda unit: unit.architecture)
        row_bytes = CLASSES[dataset] ** 2 * (2 * 8 + 4) + 3 * 8
        per_group = -(-ROW_GROUP_BYTES // (row_bytes * len(members[0].strengths)))
        chosen += members[: row_groups * per_group] if CLASSES[dataset] > 10 else []
    return {unit.id for unit in chosen}


class InventedRows:
    """Makes the row groups of compacted shards (`benchmarks.store.MakeTables`), some rows of them large."""

    def __init__(self, large: Collection[str]) -> None:
        self.large = large
        self.rng = np.random.default_rng(0)
        self.banks = {c: make_bank(self.rng, 8, c, 50 * c) for c in CLASSES.values() if c > 10}

    def __call__(self, rows: Sequence[tuple[Unit, float]], columns: Sequence[str]) -> Iterator[Any]:
        """Yield the row groups of a shard of some (unit, strength); only `zero_tables` is told the columns."""
        for is_large, run in itertools.groupby(rows, key=lambda row: row[0].id in self.large):
            if is_large:
                yield from self._large_tables(run)
            else:
                yield from zero_tables(list(run), columns)

    def _large_tables(self, rows: Iterator[tuple[Unit, float]]) -> Iterator[Any]:
        tables: list[Any] = []
        for unit, strength in rows:
            values = make_values(self.rng, self.banks[CLASSES[unit.dataset]])
            part = Part(unit, unit.strengths, 0, unit.n_images)
            table = table_of([EvaluationResult(part, strength, values, 1.0)])
            if sum(one.nbytes for one in tables) + table.nbytes > ROW_GROUP_BYTES:
                yield concat(tables)
                tables = []
            tables.append(table)
        yield concat(tables)


@dataclass
class FamilyMemory:
    """Peaks of the proportional set size of a command and of the processes below it, in bytes.

    Attributes:
        together: of all at one time.
        parts: of the command and of those below it, at that time.
        alone: of the command, before it had others below it.
        command: of the command, once it had.
        below: of each process below it.
        started: when the second of those was first seen, by `time.perf_counter`; the first is the fork server.
    """

    together: int = 0
    parts: tuple[int, ...] = ()
    alone: int = 0
    command: int = 0
    below: dict[int, int] = field(default_factory=dict)
    started: float = 0.0

    def sample(self, command: psutil.Process) -> None:
        """Take one sample; a process that ends meanwhile counts as nothing."""
        own, sizes = _proportional_set_size(command), {}
        for process in command.children(recursive=True):
            sizes[process.pid] = _proportional_set_size(process)
            self.below[process.pid] = max(self.below.get(process.pid, 0), sizes[process.pid])
        if len(sizes) > 1:
            self.command, self.started = max(self.command, own), self.started or time.perf_counter()
        else:
            self.alone = max(self.alone, own)
        if own + sum(sizes.values()) > self.together:
            self.together, self.parts = own + sum(sizes.values()), (own, *sorted(sizes.values(), reverse=True))


def _proportional_set_size(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


_EXPORT = """
import sys
from robust201.__main__ import main
from robust201.shards import ShardStore

ShardStore.check_rows = lambda self, inventory: []
if __name__ == "__main__":
    main()
"""
"""The command without its check of the rows: zeros are no results. The check holds one row group at a time."""


def watch(command: Sequence[str]) -> tuple[FamilyMemory, float, float]:
    """Run a command; give its memory, and the seconds until its workers started and in all."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    memory, family = FamilyMemory(), psutil.Process(process.pid)
    while process.poll() is None:
        memory.sample(family)
        time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return memory, memory.started - start, time.perf_counter() - start


def main() -> None:
    """Invent the results, export them, and print what was held where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=[5], help="that write JSON and Parquet")
    parser.add_argument("--json-processes", type=int, nargs="*", default=[8], help="that write JSON alone")
    parser.add_argument("--row-groups", type=int, default=4, help="of large rows, in each file")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the architectures, to try it out")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder if absent")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="robust201-export-memory-", dir=options.folder))
    try:
        start = time.perf_counter()
        plan, store = make_results_folder(folder / "results", MEASUREMENTS, options.scale)
        large = large_units(plan, options.row_groups)
        n_rows = write_compacted_shards(store, plan, InventedRows(large))
        age(store)
        sizes = [entry.n_bytes for entry in store.folder.backend.entries()]
        print(
            f"{len(plan.units):,} units, {n_rows:,} rows, {len(large):,} units of them large; {len(sizes)} shards of "
            f"{sum(sizes) / 1e9:.2f} GB, made in {time.perf_counter() - start:.0f} s",
            flush=True,
        )
        del plan, large
        for processes in options.processes:
            export(folder, processes, "--parquet")
        for processes in options.json_processes:
            export(folder, processes)
    finally:
        shutil.rmtree(folder)


def export(folder: Path, processes: int, *formats: str) -> None:
    """Export all files with some processes, print what that took, and delete them."""
    out = folder / "out"
    command = [sys.executable, "-c", _EXPORT, "export", str(folder / "results"), str(out), *formats]
    memory, before, seconds = watch([*command, "--processes", str(processes)])
    n_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    workers = sorted(memory.below.values(), reverse=True)
    print(
        f"{processes} processes, JSON{' and Parquet' if formats else ''}: {n_bytes / 1e9:.2f} GB in {seconds:.0f} s, "
        f"{before:.0f} s of them before the first worker\n"
        f"  command alone {memory.alone / MB:.0f} MB, beside its workers {memory.command / MB:.0f}\n"
        f"  workers {workers[0] / MB:.0f} at most, median {statistics.median(workers) / MB:.0f}\n"
        f"  together {memory.together / MB:.0f} MB: {' '.join(f'{size / MB:.0f}' for size in memory.parts)}",
        flush=True,
    )
    shutil.rmtree(out)


if __name__ == "__main__":
    main()
