"""Time commands on results of the paper's size: 1,610,034 evaluations in 448,338 parts.

    python -m benchmarks.store --folder FOLDER [--scale 1.0]

Prints a table of steps with wall and CPU seconds and peak memory. Each step is a separate process, measured from its
start. If other programs run on the machine, CPU time is more reliable. The results are those of `jobs/paper.yaml`
without confidences. Shards are small (about 3 KB): all predictions are equal, and there are two classes. Steps:

- resume: plan and find the missing parts, like `run`; once with loose shards, and once with packs.
- driver: simulate one hour of a driver with 1,000 workers, with 10% of the parts missing. A worker is lost every 7.5 s.
  Ray's own time is not included.
- pack: `merge --compact`, twice.
- export: accuracies as JSON, with one process and with the default number.
- requests: requests to an object store per part, resume, lost worker and packed shard (moto's S3 server on loopback).
"""

import argparse
import heapq
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robust201.core.files import bundled
from robust201.core.records import EvaluationResult
from robust201.dataset.export import export_dataset
from robust201.dataset.key_files import choose_n_processes
from robust201.run.queue import PartQueue
from robust201.run.sweep import SweepWork
from robust201.run.work import Outcome
from robust201.store.folder import ResultsFolder
from robust201.store.names import ShardName, content_hash, tuple_digest
from robust201.store.packing import pack
from robust201.store.shards import encode
from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import DatasetFacts, Facts, ImageFacts, Network, save_plan
from robust201.sweep.loading import load_config
from robust201.sweep.parts import SlicePart, compare
from robust201.sweep.plan import choose_slices, make_plan, open_results
from tests.support.object_stores import BUCKET, s3_server

N_WORKERS = 1_000
SECONDS_PER_LOSS = 7.5
SIMULATED_SECONDS = 3_600.0
MISSING_FRACTION = 0.1
N_OBJECTS = 1_200


def paper_sweep(results: Path, scale: float) -> SweepConfig:
    """Return the paper's sweep with a fraction `scale` of its networks."""
    os.environ.setdefault("ROBUST201_DATA", str(results / "data"))  # the YAML requires it, but nothing is read
    config = load_config(bundled("jobs/paper.yaml"), results=str(results))
    architectures = config.selected_architectures[: max(1, round(scale * len(config.selected_architectures)))]
    return config.model_copy(update={"architectures": architectures, "measurements": ("accuracy",)})


def assume_facts(config: SweepConfig) -> Facts:
    """Return facts with placeholders for hashes."""
    (weights,) = config.placeholder_weights("0" * 64)
    networks = tuple(Network(architecture, weights) for architecture in config.selected_architectures)
    return Facts(
        {
            dataset: DatasetFacts(
                {"": ImageFacts(config.dataset_spec(dataset).n_test, "0" * 64)},
                networks,
                {key: {} for key in config.keys_of(dataset) if config.tasks[key].kind == "corruption"},
            )
            for dataset in config.datasets
        }
    )


def make_results(results: Path, scale: float, url: str = "") -> None:
    """Create a results folder without shards."""
    config = paper_sweep(results, scale)
    facts, slices = assume_facts(config), choose_slices(config)
    folder = ResultsFolder.create(results, slices, url)
    make_plan(config, facts, slices).save_records(folder)
    save_plan(config, facts)


def make_shard(part: SlicePart) -> tuple[ShardName, bytes]:
    """Return the name and the content of a part's shard."""
    n_images, rng = part.part.stop - part.part.start, random.Random(f"{part.unit.id} {part.index}")
    results = []
    for strength in part.part.strengths:
        n_correct = rng.randint(0, n_images)
        values = {
            "accuracy": np.array(n_correct / n_images),
            "cm": np.array([[n_correct, n_images - n_correct], [0, 0]], np.int32),
            "predictions": np.zeros(n_images, np.uint8),
        }
        results.append(EvaluationResult(part.part, strength, values, 1.0, {"host": "benchmark"}))
    content = encode(results)
    strengths, columns = tuple_digest(part.part.strengths), tuple_digest(part.columns)
    unit, digest = part.unit, content_hash(content)
    return ShardName(unit.dataset, unit.id, strengths, part.index, part.n_slices, columns, digest), content


def missing_parts(results: Path) -> Iterator[SlicePart]:
    """Yield the missing parts of a results folder."""
    plan, folder = open_results(results)
    return compare(plan, folder.list(), folder.read_tuple).missing_parts()


def write_shards(results: Path, fraction: float) -> None:
    """Write a fraction of the missing parts, without flushing each to disk."""
    rng = random.Random(0)
    for part in missing_parts(results):
        if rng.random() < fraction:
            name, content = make_shard(part)
            path = results / "shards" / name.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def resume_step(results: Path) -> str:
    """Find the missing parts, like `run`."""
    plan, folder = open_results(results)
    state = compare(plan, folder.list(), folder.read_tuple)
    return f"{plan.n_evaluations:,} evaluations, {state.n_missing_parts:,} parts missing"


def driver_step(results: Path) -> str:
    """Simulate a driver; its workers write nothing, because only the driver is measured."""
    plan, folder = open_results(results)
    work = SweepWork(folder, plan, compare(plan, folder.list(), folder.read_tuple))
    queue, rng, counts, busy = PartQueue(work.parts, 3), random.Random(0), Counter[str](), 0.0
    speed = plan.config.execution.assumed_gmacs() * 1e9
    now, next_loss, next_status = 0.0, SECONDS_PER_LOSS, 0.0
    running: list[tuple[float, int, SlicePart]] = []

    def timed(function: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal busy
        start = time.perf_counter()
        result = function(*arguments)
        busy += time.perf_counter() - start
        return result

    def take(network: Any = None) -> None:
        part = timed(queue.take, network)
        if part is not None:
            counts["taken"] += 1
            heapq.heappush(running, (now + max(1.0, part.macs / speed), counts["taken"], part))

    for _ in range(N_WORKERS):
        take()
    while running and now < SIMULATED_SECONDS:
        now = min(running[0][0], next_loss, next_status)
        if now == next_loss:
            next_loss += SECONDS_PER_LOSS
            part = running.pop(rng.randrange(len(running)))[2]
            heapq.heapify(running)
            if timed(work.find_stored, part) is None:
                timed(lambda part=part: queue.lose([part], reason="preempted", preempted=True))
            counts["lost"] += 1
            take()
        elif now == next_status:
            next_status += 1.0
            timed(work.seconds_left, N_WORKERS)
        else:
            _, _, part = heapq.heappop(running)
            outcome = Outcome(part.label, part.part.strengths, part.macs / speed)
            timed(work.finish, part, outcome)
            timed(queue.succeed)
            timed(work.seconds_left, N_WORKERS)
            counts["finished"] += 1
            take(part.network)
    return f"{counts['finished']:,} parts, {counts['lost']:,} lost workers, busy {busy / now:.2%} of {now:,.0f} s"


def pack_step(results: Path) -> str:
    """Pack all shards, and delete superseded files at once instead of after 24 hours."""
    report = pack(ResultsFolder.open(results), grace_seconds=0.0)
    n_files = sum(1 for path in results.rglob("*") if path.is_file())
    return f"{report.n_shards:,} packed into {report.n_packs:,}, {report.n_deleted:,} deleted, {n_files:,} files left"


def export_step(results: Path, processes: int = 0) -> str:
    """Export the accuracies; `processes` = 0 means the default number."""
    plan, folder = open_results(results)
    out = results.with_name(f"export-{processes}")
    processes = processes or choose_n_processes(plan.n_evaluations)
    report = export_dataset(plan, folder, out, processes=processes)
    return f"{report.n_evaluations:,} accuracies, {report.n_bytes / 1e6:.0f} MB, processes: {processes}"


@contextmanager
def counting_requests() -> Iterator[Counter[str]]:
    """Count the operations of all S3 clients in a block."""
    from aiobotocore.client import AioBaseClient

    counts, call = Counter[str](), AioBaseClient._make_api_call

    async def count(client: Any, operation: str, arguments: Any) -> Any:
        counts[operation] += 1
        return await call(client, operation, arguments)

    AioBaseClient._make_api_call = count
    try:
        yield counts
    finally:
        AioBaseClient._make_api_call = call


def requests_step(results: Path) -> str:
    """Count requests to an object store with over a thousand shards."""
    lines = []

    def measure(label: str, function: Callable[[], Any]) -> Any:
        with counting_requests() as counts:
            result = function()
        lines.append(f"{label}: {' + '.join(f'{count} {name}' for name, count in sorted(counts.items()))}")
        return result

    with s3_server() as environment:
        os.environ.update(environment)
        url = f"s3://{BUCKET}/benchmark"
        make_results(results, 40 * N_OBJECTS / 1_000_000, url)
        parts = [part for part, _ in zip(missing_parts(results), range(N_OBJECTS), strict=False)]
        folder = ResultsFolder.open(results)
        shards = [make_shard(part) for part in parts]
        measure("first part", lambda: folder.write(*shards[0]))
        measure("a part", lambda: folder.write(*shards[1]))
        for shard in shards[2:]:
            folder.write(*shard)
        measure(f"resume with {len(shards):,} shards", lambda: ResultsFolder.open(results).list())
        measure("a lost worker", lambda: folder.list_unit(parts[0].unit.dataset, parts[0].unit.id))
        measure(f"packing {len(shards):,} shards", lambda: pack(folder))
        pack(folder, grace_seconds=0.0)
        reader = ResultsFolder.open(results)
        measure("resume with packs", reader.list)
        measure("a packed shard", lambda: reader.read(shards[0][0]))
    return "\n  ".join(["", *lines])


STEPS: dict[str, Callable[[Path], str]] = {
    "resume": resume_step,
    "driver": driver_step,
    "pack": pack_step,
    "export 1": partial(export_step, processes=1),
    "export": export_step,
    "requests": requests_step,
}


def measure(name: str, step: str, folder: Path) -> None:
    """Run a step in a separate process, and print its row of the table."""
    command = [sys.executable, "-m", "benchmarks.store", "--step", step, "--folder", str(folder)]
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    summary, _, peak = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.rpartition("\t")
    seconds, cpu = time.perf_counter() - start, _cpu_seconds() - cpu_start
    print(f"{name:<24}{seconds:>8.2f} s{cpu:>8.2f} s CPU{float(peak):>6.0f} MiB  {summary}", flush=True)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="new or empty folder for the results")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the paper's networks")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        summary = STEPS[options.step](options.folder)
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        peak_kib = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]
        print(f"{summary}\t{peak_kib / 1024}", end="")
        return
    results = options.folder / "results"
    make_results(results, options.scale)
    write_shards(results, 1 - MISSING_FRACTION)
    measure("driver", "driver", results)
    write_shards(results, 1.0)
    measure("resume, loose shards", "resume", results)
    measure("pack", "pack", results)
    measure("pack again", "pack", results)
    measure("resume, packs", "resume", results)
    measure("export, one process", "export 1", results)
    measure("export", "export", results)
    measure("requests", "requests", options.folder / "object-store")


if __name__ == "__main__":
    main()
