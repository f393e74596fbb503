"""Measure all commands that read or write results, at the size of the paper's sweep.

    python -m benchmarks.store [--folder FOLDER] [--scale 1.0]
    python -m benchmarks.store --only exported --scale 0.01

The output is a table of steps with counts, seconds and peak memory. Each step is a separate process, measured from its
start to its end, including the start of Python and imports (a second or two). "Cold" means without the index, and
without pages of the results in the file cache. Names and sizes of files remain in the kernel's cache, as do all pages
if FOLDER is in memory (tmpfs). All other steps have warm caches. At scale 1, FOLDER needs 12 GB of space.

The results are synthetic, with the identities and sizes of `jobs/paper.yaml`, in four folders (`--only`):

- finished: 1,610,034 rows, with as many compacted shards, row groups and footers as the 133 GB that `plan` estimates
  would have. The rows have no confidences and highly compressible values, because a resume hashes a shard only once
  and scans read no values.
- exported: the same rows with valid measurements for ten classes, repeated from eight generated results. `verify`
  checks them, an export writes JSON and Parquet, and a report is written from this export.
- small: 40,000 shards of one unit each.
- compacted: shards of realistic size, which are merged. Their confidences are random and do not compress, whereas real
  confidences shrink by a quarter. The rate at which they are hashed gives the duration of a first resume.
"""

import argparse
import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.synthetic import MEASUREMENTS, make_bank, sampling_memory
from robust201.core.files import bundled, make_folder, sha256_of
from robust201.core.records import EvaluationResult, Part, Unit
from robust201.planning.estimates import estimate
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.planning.plan_file import load_plan, save_plan
from robust201.shards import ShardStore
from robust201.sweep.config import SweepConfig
from robust201.sweep.loading import load_config

ROWS_PER_SHARD = 2_440
"""Rows per compacted shard. At 133 GB for 1,610,034 rows, a row has 82 kB and a shard 192 MiB."""

ROWS_PER_GROUP = 180
INPUTS_PER_SHARD = 450
"""Number of merged shards whose names a compacted shard lists in its footer."""

SMALL_SHARDS = 40_000
N_ARCHITECTURES = 6466
COMPACTED_ARCHITECTURES = 250
"""Number of architectures whose shards are compacted: 45 shards each, 5.6 GB in total, several files per dataset."""

N_CLASSES_BY_DATASET = {"cifar10": 10, "cifar100": 100, "ImageNet16-120": 120}
MIB = 1 << 20

MakeTables = Callable[[Sequence[tuple[Unit, float]], Sequence[str]], Iterator[Any]]
"""Function that yields a compacted shard's row groups from its (unit, strength) pairs and columns."""


def paper_sweep(results: Path) -> SweepConfig:
    """Return the paper's sweep with a different results folder."""
    os.environ.setdefault("ROBUST201_DATA", str(results / "data"))  # the YAML requires it, but nothing is read
    return load_config(bundled("jobs/paper.yaml"), results=str(results))


def _peak_mib() -> float:
    """Return the peak memory of this process; wait4 would report the parent's peak if that is larger."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


def make_results_folder(
    results: Path, measurements: Sequence[str] = ("accuracy", "cm"), scale: float = 1.0
) -> tuple[Plan, ShardStore]:
    """Create a results folder without shards: the paper's plan for a fraction `scale` of the architectures."""
    config = paper_sweep(results).model_copy(update={"measurements": tuple(measurements)})
    if scale < 1:
        architectures = config.selected_architectures
        n_selected = max(1, round(scale * len(architectures)))
        config = config.model_copy(update={"architectures": architectures[:n_selected]})
    facts = assumed_facts(config)
    plan, store = make_plan(config, facts), ShardStore.create(results)
    save_plan(plan, store)
    for protocol in plan.protocols.values():  # including corruptions, although their images do not exist
        store.save_protocol(protocol)
    return plan, store


def make_result(unit: Unit, strength: float, generator: np.random.Generator, *, confidences: bool) -> EvaluationResult:
    """Return a synthetic result with realistic shapes."""
    n_classes = N_CLASSES_BY_DATASET[unit.dataset]
    counts = generator.multinomial(unit.n_images, np.full(n_classes**2, 1 / n_classes**2)) if confidences else None
    cm = (
        np.zeros((n_classes, n_classes), np.int32) if counts is None else counts.reshape(n_classes, -1).astype(np.int32)
    )
    values: dict[str, Any] = {"accuracy": np.float64(np.trace(cm) / unit.n_images), "cm": cm}
    if confidences:
        for name in ("confidence_label", "confidence_argmax"):
            matrix = generator.random((n_classes, n_classes))
            values[name] = matrix / matrix.sum(axis=1, keepdims=True)
        values["confidence_prediction"] = generator.random(2)
    return EvaluationResult(Part(unit, unit.strengths, 0, unit.n_images), strength, values, 1.0, {"host": "synthetic"})


def write_small_shards(store: ShardStore, units: Sequence[Unit], *, confidences: bool) -> None:
    """Write a shard per unit, without syncing each to disk."""
    from robust201.shards.folder import stem_of
    from robust201.shards.parquet import encode

    generator = np.random.default_rng(0)
    for unit in units:
        content = encode([make_result(unit, s, generator, confidences=confidences) for s in unit.strengths])
        temporary_path = store.folder.shards / unit.dataset / "new"
        temporary_path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path.write_bytes(content)
        name = f"{stem_of(unit.architecture, unit.key)}-{sha256_of(temporary_path)[:16]}.parquet"
        temporary_path.rename(temporary_path.with_name(name))


def write_compacted_shards(store: ShardStore, plan: Plan, tables: MakeTables) -> None:
    """Write all evaluations of a plan as compacted shards."""
    from robust201.shards.parquet import Footer, write_tables
    from robust201.tasks.columns import columns_of

    columns, n_rows = columns_of(plan.measurements, _N_CLASSES), 0
    for dataset in plan.datasets:
        units = sorted((u for u in plan.units if u.dataset == dataset), key=lambda u: (u.key, u.architecture))
        rows = ((unit, strength) for unit in units for strength in unit.strengths)
        while block := list(itertools.islice(rows, ROWS_PER_SHARD)):
            inputs = tuple(f"{dataset}/{n_rows + i:06d}-pgd-{n_rows + i:016x}.parquet" for i in range(INPUTS_PER_SHARD))
            with store.folder.open_compacted_shard(dataset) as stream:
                write_tables(stream, tables(block, columns), Footer("compacted", columns, inputs))
            n_rows += len(block)


_N_CLASSES = 10
"""Number of classes of all datasets in compacted shards: larger matrices take minutes to write, and scans skip them."""


def make_zero_tables(rows: Sequence[tuple[Unit, float]], columns: Sequence[str]) -> Iterator[Any]:
    """Yield row groups whose values are all zero."""
    from robust201.tasks.columns import COLUMNS

    def zeros(name: str, n_images: int) -> NDArray[Any]:
        return np.zeros((1, *COLUMNS[name].shape(_N_CLASSES, n_images)), COLUMNS[name].dtype)

    return _tables(rows, columns, zeros)


def make_valid_tables(rows: Sequence[tuple[Unit, float]], columns: Sequence[str]) -> Iterator[Any]:
    """Yield row groups with valid values."""

    @functools.cache
    def values(name: str, n_images: int) -> NDArray[Any]:
        bank = make_bank(np.random.default_rng(n_images), 8, _N_CLASSES, n_images)
        return np.stack([result[name] for result in bank])

    return _tables(rows, columns, values)


def _tables(
    rows: Sequence[tuple[Unit, float]], columns: Sequence[str], values_of: Callable[[str, int], NDArray[Any]]
) -> Iterator[Any]:
    """Yield row groups with the values (B, …) of `values_of(column, n_images)`, repeated cyclically."""
    import pyarrow as pa

    from robust201.shards.parquet import IDENTITY_TYPES, MEASUREMENT_TYPES

    schema = pa.schema(IDENTITY_TYPES | {name: MEASUREMENT_TYPES[name] for name in columns})
    for group_start in range(0, len(rows), ROWS_PER_GROUP):
        group = rows[group_start : group_start + ROWS_PER_GROUP]
        n_classes = _N_CLASSES
        arrays = {
            "unit_id": [unit.id for unit, _ in group],
            "architecture": [unit.architecture for unit, _ in group],
            "dataset": [unit.dataset for unit, _ in group],
            "key": [unit.key for unit, _ in group],
            "strength": [strength for _, strength in group],
            "protocol": [unit.protocol for unit, _ in group],
            "checkpoint_sha256": [unit.checkpoint_sha256 for unit, _ in group],
            "start": [0] * len(group),
            "stop": [unit.n_images for unit, _ in group],
            "n_images": [unit.n_images for unit, _ in group],
            "n_classes": [n_classes] * len(group),
            "seconds": [1.0] * len(group),
            "provenance": ["{}"] * len(group),
        }
        for name in columns:
            bank = values_of(name, group[0][0].n_images)
            column_values = bank[np.arange(len(group)) % len(bank)].reshape(len(group), -1)
            offsets = np.arange(len(group) + 1, dtype=np.int32) * column_values.shape[1]
            flat, column_type = pa.array(column_values.ravel()), schema.field(name).type
            is_list = pa.types.is_list(column_type)
            arrays[name] = pa.ListArray.from_arrays(offsets, flat, type=column_type) if is_list else flat
        yield pa.table(arrays, schema=schema)


def plan_step(folder: Path) -> str:
    """Plan the paper's sweep."""
    config = paper_sweep(folder)
    summary = estimate(make_plan(config, assumed_facts(config)))
    return f"{summary['units']:,} units, {summary['evaluations']:,} evaluations"


def resume_step(folder: Path) -> str:
    """Find the unfinished evaluations of a results folder, like `run`."""
    from robust201.runtime.preview import preview_run

    plan, store = load_plan(folder), ShardStore.open(folder)
    check_hash, hashed_shards = store.folder.check_hash, set()

    def record_hash(shard: str, sha256: str) -> None:
        hashed_shards.add(shard)
        check_hash(shard, sha256)

    store.folder.check_hash = record_hash  # type: ignore[method-assign]
    start = time.perf_counter()
    inventory = store.inventory(verify="unverified", on_damage="set_aside")
    seconds = time.perf_counter() - start
    n_finished = preview_run(plan, plan, inventory).done
    n_bytes = sum(entry.n_bytes for entry in store.folder.backend.entries() if entry.name in hashed_shards)
    rate = f", {n_bytes / 1e9:.2f} GB hashed at {n_bytes / seconds / 1e6:.0f} MB/s" if hashed_shards else ""
    return f"{len(inventory.shards):,} shards, {n_finished:,} evaluations finished{rate}"


def status_step(folder: Path) -> str:
    """Count finished evaluations, like `status`."""
    from robust201.monitoring.status import read_status

    state = read_status(load_plan(folder), ShardStore.open(folder).inventory(on_damage="report"))
    return f"{state.done:,} of {state.total:,} evaluations"


def scan_step(folder: Path) -> str:
    """Read the inventory of shards, without a plan."""
    inventory = ShardStore.open(folder).inventory()
    return f"{len(inventory.shards):,} shards, {len(inventory):,} rows"


def compare_step(folder: Path) -> str:
    """Compare all accuracies with themselves, like `verify --against`."""
    from robust201.export.diff import compare_results

    report = compare_results(folder, folder)
    return f"{report.comparisons['n_architectures'].sum():,} accuracies"


def compact_step(folder: Path) -> str:
    """Merge small shards."""
    store = ShardStore.open(folder)
    n_bytes = sum(entry.n_bytes for entry in store.folder.backend.entries())
    start = time.perf_counter()
    report = store.compact()
    rate = n_bytes / (time.perf_counter() - start) / 1e6
    return f"{report.inputs:,} shards, {n_bytes / 1e9:.2f} GB at {rate:.0f} MB/s into {report.outputs}"


def verify_step(folder: Path) -> str:
    """Check every row, like `verify`."""
    from robust201.export.verify import verify_results

    verdict = verify_results(folder)
    return f"{verdict.n_shards:,} shards, {verdict.n_evaluations:,} evaluations, {len(verdict.findings)} findings"


def export_step(folder: Path) -> str:
    """Write JSON and Parquet, with as many processes as `robust201 export`."""
    from robust201.export import export_dataset
    from robust201.export.pool import default_processes
    from robust201.store.folder import ResultsFolder
    from robust201.sweep.facts import load_plan as load_new_plan
    from robust201.sweep.plan import make_plan as make_new_plan

    results = ResultsFolder.open(folder)
    plan = make_new_plan(*load_new_plan(folder), results.slices)
    processes = default_processes(plan.n_evaluations, parquet=True)
    with sampling_memory() as peak:
        report = export_dataset(
            plan,
            results,
            folder.with_name("dataset"),
            formats=("json", "parquet"),
            processes=processes,
        )
    return f"{report.n_bytes / 1e9:.2f} GB, {processes} processes, {1e9 * peak['all'] / MIB:.0f} MiB in total"


def report_step(folder: Path) -> str:
    """Write the report of an exported dataset."""
    from robust201.figures.report import write_report
    from robust201.reader.dataset import RobustnessDataset

    page = folder.with_name("report.html")
    with sampling_memory() as peak:
        write_report(RobustnessDataset(folder.with_name("dataset")), page)
    return f"page of {page.stat().st_size / MIB:.1f} MiB, all processes {1e9 * peak['all'] / MIB:.0f} MiB"


STEPS: dict[str, Callable[[Path], str]] = {
    "plan": plan_step,
    "resume": resume_step,
    "status": status_step,
    "scan": scan_step,
    "compare": compare_step,
    "compact": compact_step,
    "verify": verify_step,
    "export": export_step,
    "report": report_step,
}


def measure(name: str, step: str, folder: Path) -> None:
    """Run a step in a separate process, and print its row of the table."""
    command = [sys.executable, "-m", "benchmarks.store", "--step", step, "--folder", str(folder)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    *_, summary, peak = process.stdout.read().splitlines()
    if process.wait():
        raise SystemExit(f"{name} failed with exit code {process.returncode}")
    seconds = time.perf_counter() - start
    print(f"{name:<42}{summary:<62}{seconds:>8.2f} s{float(peak):>8.0f} MiB", flush=True)


def evict_from_cache(results: Path) -> None:
    """Write all files of a results folder to disk, and drop their pages from the file cache."""
    os.sync()  # the kernel cannot drop pages that are not written yet
    for path in results.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def backdate_shards(store: ShardStore) -> None:
    """Set modification times back by a minute: shards that are hashed seconds after writing are hashed again."""
    for entry in store.folder.backend.entries():
        os.utime(store.folder.shards.joinpath(entry.name), (entry.modified - 60, entry.modified - 60))


def measure_finished(folder: Path, scale: float) -> None:
    """Measure planning of the paper's sweep, and resuming, status and comparison of a finished sweep."""
    measure("plan the paper's sweep", "plan", folder / "plan")
    finished = folder / "finished"
    plan, store = make_results_folder(finished, scale=scale)
    write_compacted_shards(store, plan, make_zero_tables)
    backdate_shards(store)
    evict_from_cache(finished)
    measure("finished sweep: first resume, cold", "resume", finished)
    measure("finished sweep: resume scan", "resume", finished)
    shutil.rmtree(store.folder.index)
    evict_from_cache(finished)
    measure("finished sweep: status, cold", "status", finished)
    measure("finished sweep: status, index", "status", finished)
    measure("finished sweep: compared with itself", "compare", finished)


def measure_exported(folder: Path, scale: float) -> None:
    """Measure the verification, export and report of a finished sweep."""
    exported = folder / "exported"
    plan, store = make_results_folder(exported, MEASUREMENTS, scale)
    write_compacted_shards(store, plan, make_valid_tables)
    measure("finished sweep: verify", "verify", exported)
    measure("finished sweep: export, JSON and Parquet", "export", exported)
    measure("exported dataset: report", "report", exported)


def measure_small(folder: Path, scale: float) -> None:
    """Measure scans of shards that were never compacted."""
    small = folder / "small"
    plan, store = make_results_folder(small)
    write_small_shards(store, plan.units[: round(SMALL_SHARDS * scale)], confidences=False)
    evict_from_cache(small)
    measure("uncompacted shards: scan, cold", "scan", small)
    measure("uncompacted shards: scan, index", "scan", small)
    measure("uncompacted shards: status, index", "status", small)


def measure_compacted(folder: Path, scale: float) -> None:
    """Measure hashing and merging of shards of realistic size."""
    compacted = folder / "compacted"
    plan, store = make_results_folder(compacted, scale=scale * COMPACTED_ARCHITECTURES / N_ARCHITECTURES)
    write_small_shards(store, plan.units, confidences=True)
    backdate_shards(store)
    evict_from_cache(compacted)
    measure("shards of realistic size: first resume, cold", "resume", compacted)
    measure("shards of realistic size: resume scan", "resume", compacted)
    measure("compaction", "compact", compacted)


MEASURE_BY_FOLDER = {
    "finished": measure_finished,
    "exported": measure_exported,
    "small": measure_small,
    "compacted": measure_compacted,
}


def main() -> None:
    """Measure all steps, or run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder for the synthetic results; they are deleted at the end")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the full size, for a quick trial")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=MEASURE_BY_FOLDER,
        default=list(MEASURE_BY_FOLDER),
        help="folders to create and measure",
    )
    parser.add_argument("--step", choices=sorted(STEPS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(STEPS[arguments.step](arguments.folder))
        print(_peak_mib())
        return
    if arguments.folder is not None:
        make_folder(arguments.folder)
    for name in arguments.only:
        folder = Path(tempfile.mkdtemp(prefix="robust201-store-", dir=arguments.folder))
        try:
            MEASURE_BY_FOLDER[name](folder, arguments.scale)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
