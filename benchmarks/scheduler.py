"""Measure what the scheduler and the Ray executor cost, with units of the paper's sweep whose evaluation costs nothing.

    python -m benchmarks.scheduler

runs on two cores, however many the machine has, and prints every row of the table in docs/measurements.md: units a
second and the driver's memory over 200,000 units that take no time, the same with bundles of one unit and with a shard
written for each unit, and the overhead a unit on 64 workers whose units take a second. One row is measured, in this
process, by saying what to measure:

    python -m benchmarks.scheduler --units 200000 --workers 2 --unit-seconds 0

The driver is the product's: `runtime.sweep.compute` with its scheduler, its progress and its Ray executor, on bundles
of `jobs/paper.yaml` (a unit of every key of an architecture and dataset). Only the worker is simulated: an actor in a
process of its own that sleeps for each unit. Neither the driver nor a worker may import torch.

A worker notes when each unit begins and ends. What counts begins once every worker has been heard of, since processes
start one after the other. Overhead is the time from the beginning of a worker's first such unit to the end of its last
one, less the time its units were meant to take, over their number: waiting for bundles is in it, the wait for the
slowest worker at the end is not.
"""

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from robust201.core.records import Bundle, EvaluationResult, Part, Receipt, UnitFailure
from robust201.images import DATASETS
from robust201.planning.config import SweepConfig
from robust201.planning.loading import load_config
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.runtime.executors.base import BundleDone, Event
from robust201.runtime.executors.ray_process import RayProcess
from robust201.runtime.metrics import Metrics
from robust201.runtime.preview import RunPreview
from robust201.runtime.progress import RunProgress
from robust201.runtime.sweep import compute
from robust201.shards import ShardStore

SWEEP = Path(__file__).parent.parent / "jobs" / "paper.yaml"
UNITS_PER_ARCHITECTURE = 45
N_CORES = 2
NEVER_SPLIT_GMACS = 1e12
ROWS = (
    ("--units", "200000", "--workers", "2"),
    ("--units", "20000", "--workers", "2", "--units-per-network", "1"),
    ("--units", "4000", "--workers", "2", "--write-shards"),
    ("--units", "7680", "--workers", "64", "--unit-seconds", "1"),
)
HEADER = (
    "| workers | units | seconds a unit | units a bundle | shards | units/s | overhead a unit, ms (share) "
    "| driver's memory at 0, 25, 50, 75, 100 %, MB |\n|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class SimulatedWorker:
    """A worker that sleeps.

    Attributes:
        seconds: time a unit.
        results: folder to write a shard to for each unit; None to write nothing.
    """

    seconds: float
    results: Path | None

    def run(self, bundle: Bundle) -> Iterator[Receipt | UnitFailure]:
        """Sleep for each unit; receipts tell process, beginning and end where a shard's name would be."""
        for part in bundle.parts:
            begin = time.perf_counter()
            if self.seconds:
                time.sleep(self.seconds)
            if self.results is not None:
                ShardStore(self.results).commit(_results(part))
            times = f"{os.getpid()} {begin} {time.perf_counter()}"
            yield Receipt(part.unit.id, part.strengths, part.start, part.stop, times, self.seconds)
        if "torch" in sys.modules:
            raise RuntimeError("a simulated worker imported torch")

    def drain(self) -> None:
        """Nothing: a benchmark runs to its end."""


def start_worker(worker: SimulatedWorker, _metrics: Metrics) -> SimulatedWorker:
    """Make a worker in its actor: a copy of the one given."""
    return worker


def _results(part: Part) -> list[EvaluationResult]:
    n_images, n_classes = part.stop - part.start, DATASETS[part.unit.dataset].n_classes
    counts = np.zeros((n_classes, n_classes), dtype=np.int32)
    counts[0, 0] = n_images
    values = {"accuracy": np.array(1.0), "cm": counts}
    return [EvaluationResult(part, strength, values, 0.0) for strength in part.strengths]


@dataclass
class Observer:
    """Watches a run in its driver.

    Attributes:
        n_units: units of the run.
        memory: bytes of the driver, with the first unit and at each quarter of them.
        spans: by worker, since all of them have been heard of: beginning of the first unit, end of the last, number.
        n_bundles: bundles that are done.
    """

    n_units: int
    memory: list[int] = field(default_factory=list)
    spans: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    n_received: int = 0
    n_bundles: int = 0

    def observe(self, progress: RunProgress, event: Event | None) -> None:
        """Take a receipt into account."""
        del progress
        self.n_bundles += isinstance(event, BundleDone)
        if not isinstance(event, Receipt):
            return
        worker, begin, end = event.shard.split()
        if worker not in self.spans:
            self.spans = dict.fromkeys([*self.spans, worker], (math.inf, 0.0, 0))
        first, last, count = self.spans[worker]
        self.spans[worker] = min(first, float(begin)), max(last, float(end)), count + 1
        self.n_received += 1
        if self.n_received >= self.n_units * len(self.memory) // 4:
            self.memory.append(_memory())

    @property
    def units_per_second(self) -> float:
        """Units a second from the beginning of the first one that counts to the end of the last one."""
        spans = self.spans.values()
        seconds = max(last for _, last, _ in spans) - min(first for first, _, _ in spans)
        return sum(count for *_, count in spans) / seconds

    def overhead(self, unit_seconds: float) -> float:
        """Seconds of a worker a unit beyond the time that the unit was meant to take."""
        spans = [span for span in self.spans.values() if span[2]]
        return sum(last - first for first, last, _ in spans) / sum(count for *_, count in spans) - unit_seconds


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


def plan_units(config: SweepConfig, n_units: int, per_network: int | None) -> Plan:
    """Plan as many units of the sweep as are wanted: all of as few architectures as have them, or some of each."""
    if per_network is None:
        config = config.model_copy(
            update={"architectures": config.selected_architectures[: -(-n_units // UNITS_PER_ARCHITECTURE)]}
        )
    plan = make_plan(config, assumed_facts(config))
    by_network = sorted(plan.units, key=lambda unit: (unit.architecture, unit.dataset))
    if per_network is not None:
        networks = itertools.groupby(by_network, key=lambda unit: (unit.architecture, unit.dataset))
        by_network = [unit for _, units in networks for unit in itertools.islice(units, per_network)]
    return Plan.of_units(config, by_network[:n_units], plan.protocols, plan.facts)


def measure(arguments: argparse.Namespace, results: Path) -> str:
    """Run the units and describe it as a row of the table."""
    os.environ.setdefault("ROBUST201_DATA", str(results))
    execution = {"workers": arguments.workers, "device": "cpu", "gmacs_per_second": NEVER_SPLIT_GMACS}
    config = load_config(SWEEP, results=results, execution=execution)
    plan = plan_units(config, arguments.units, arguments.units_per_network)
    missing = tuple(Part(unit, unit.strengths, 0, unit.n_images) for unit in plan.units)
    ShardStore.create(results)
    worker = SimulatedWorker(arguments.unit_seconds, results if arguments.write_shards else None)
    observer = Observer(len(plan.units))
    tally = compute(
        RunPreview(plan, missing, 0, (), ()),
        missing,
        lambda: RayProcess(plan.config, partial(start_worker, worker)),
        folder=results,
        on_progress=observer.observe,
        say=print,
    )
    if not tally.complete or tally.parts != len(plan.units) or len(observer.spans) != arguments.workers:
        raise RuntimeError(f"expected every unit once, on every worker, got {tally}")
    if "torch" in sys.modules:
        raise RuntimeError("the driver imported torch")
    overhead = observer.overhead(arguments.unit_seconds)
    share = f" ({overhead / arguments.unit_seconds:.2%})" if arguments.unit_seconds else ""
    memory = " ".join(f"{size / 1e6:.0f}" for size in observer.memory)
    per_bundle = tally.parts / observer.n_bundles
    return (
        f"| {arguments.workers} | {tally.parts:,} | {arguments.unit_seconds:g} | {per_bundle:.1f} | "
        f"{'written' if arguments.write_shards else 'none'} | {observer.units_per_second:,.0f} | "
        f"{1000 * overhead:.2f}{share} | {memory} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, help="measure one row with so many units; without it, all rows")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--unit-seconds", type=float, default=0.0)
    parser.add_argument("--units-per-network", type=int, help="without it, as the sweep is planned")
    parser.add_argument("--write-shards", action="store_true", help="let each worker write a shard for each unit")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:N_CORES]
    if len(cores) < N_CORES:
        print(f"on {len(cores)} core only; the table is of {N_CORES}", file=sys.stderr)
    os.sched_setaffinity(0, cores)  # Ray and its workers inherit it
    if arguments.units is None:
        print(HEADER, flush=True)
        for row in ROWS:  # a process each: memory that a run left behind would count for the next one
            subprocess.run([sys.executable, "-m", "benchmarks.scheduler", *row], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(measure(arguments, Path(folder)), flush=True)


if __name__ == "__main__":
    from benchmarks import scheduler  # workers are sent to other processes, which know them by this module's name

    scheduler.main()
