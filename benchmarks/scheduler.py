"""Measure the overhead of the scheduler and the Ray executor, with units of the paper's sweep that compute nothing.

    python -m benchmarks.scheduler

The benchmark runs on two cores of the machine. The driver is `runtime.sweep.compute` with its scheduler, progress and
Ray executor, on bundles of `jobs/paper.yaml`. Only the worker is simulated, by an actor in a separate process that
computes nothing. Neither the driver nor a worker may import torch. Counting starts when every worker has answered,
because processes start one after the other.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from robust201.core.records import Bundle, Part, Receipt, UnitFailure
from robust201.planning.config import SweepConfig
from robust201.planning.loading import load_config
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.runtime.executors.base import Event
from robust201.runtime.executors.ray_process import RayProcess
from robust201.runtime.metrics import Metrics
from robust201.runtime.preview import RunPreview
from robust201.runtime.progress import RunProgress
from robust201.runtime.sweep import compute, make_driver
from robust201.shards import ShardStore

SWEEP_YAML = Path(__file__).parent.parent / "jobs" / "paper.yaml"
UNITS_PER_ARCHITECTURE = 45
N_CORES = 2
NEVER_SPLIT_GMACS = 1e12
"""Assumed speed at which every unit takes so little time that the plan does not split it."""

HEADER = "| workers | units | units per second | driver's memory at 0, 25, 50, 75, 100%, MB |\n" + "|---" * 4 + "|"


class SimulatedWorker:
    """A worker that computes nothing."""

    def run(self, bundle: Bundle) -> Iterator[Receipt | UnitFailure]:
        """Yield a receipt for each unit, with the process ID instead of a shard's name."""
        for part in bundle.parts:
            yield Receipt(part.unit.id, part.strengths, part.start, part.stop, str(os.getpid()), 0.0)
        if "torch" in sys.modules:
            raise RuntimeError("A simulated worker imported torch.")

    def drain(self) -> None:
        """Do nothing: a benchmark runs to its end."""


def start_worker(_metrics: Metrics) -> SimulatedWorker:
    """Return a worker for an actor."""
    return SimulatedWorker()


@dataclass
class Observer:
    """Observer of a run in its driver.

    Attributes:
        n_units: number of units in the run.
        memory: megabytes of memory of the driver at the first unit and after each quarter of the units.
        workers: process IDs of the workers that have answered.
        counting_start: time of the last worker's first answer, and number of units that were received until then.
        n_received: number of received units.
        last_time: time of the last received unit.
    """

    n_units: int
    memory: list[int] = field(default_factory=list)
    workers: set[str] = field(default_factory=set)
    counting_start: tuple[float, int] = (0.0, 0)
    n_received: int = 0
    last_time: float = 0.0

    def observe(self, progress: RunProgress, event: Event | None) -> None:
        """Record an event if it is a receipt."""
        del progress
        if not isinstance(event, Receipt):
            return
        self.n_received, self.last_time = self.n_received + 1, time.perf_counter()
        if event.shard not in self.workers:
            self.workers.add(event.shard)
            self.counting_start = self.last_time, self.n_received
        if self.n_received >= self.n_units * len(self.memory) // 4:
            self.memory.append(psutil.Process().memory_info().rss // 10**6)

    @property
    def units_per_second(self) -> float:
        """Units per second, counted from the time at which all workers had answered."""
        return (self.n_received - self.counting_start[1]) / (self.last_time - self.counting_start[0])


def plan_units(config: SweepConfig, n_units: int) -> Plan:
    """Plan `n_units` units of the sweep, for as few architectures as possible."""
    n_architectures = -(-n_units // UNITS_PER_ARCHITECTURE)
    config = config.model_copy(update={"architectures": config.selected_architectures[:n_architectures]})
    plan = make_plan(config, assumed_facts(config))
    sorted_units = sorted(plan.units, key=lambda unit: (unit.architecture, unit.dataset))
    return Plan.of_units(config, sorted_units[:n_units], plan.protocols, plan.facts)


def measure(n_units: int, n_workers: int, results: Path) -> str:
    """Run the units and return the row of the table."""
    os.environ.setdefault("ROBUST201_DATA", str(results))
    execution = {"workers": n_workers, "device": "cpu", "gmacs_per_second": NEVER_SPLIT_GMACS}
    plan = plan_units(load_config(SWEEP_YAML, results=results, execution=execution), n_units)
    parts = tuple(Part(unit, unit.strengths, 0, unit.n_images) for unit in plan.units)
    ShardStore.create(results)
    observer = Observer(len(plan.units))
    preview = RunPreview(plan, parts, 0, (), ())
    driver = make_driver(preview, results, on_progress=observer.observe, say=print)
    compute(driver, plan, parts, lambda plan: RayProcess(plan.config, start_worker))
    tally = driver.finish()
    if not tally.complete or tally.parts != len(plan.units) or len(observer.workers) != n_workers:
        raise RuntimeError(
            f"The run was not complete, a unit was repeated, or a worker had no unit. The scheduler counted: {tally}"
        )
    if "torch" in sys.modules:
        raise RuntimeError("The driver imported torch.")
    return (
        f"| {n_workers} | {tally.parts:,} | {observer.units_per_second:,.0f} | {' '.join(map(str, observer.memory))} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:N_CORES]
    if len(cores) < N_CORES:
        print(f"Only {len(cores)} core is available; the published table is for {N_CORES}.", file=sys.stderr)
    os.sched_setaffinity(0, cores)  # Ray and its workers inherit the affinity
    with tempfile.TemporaryDirectory() as folder:
        print(f"{HEADER}\n{measure(arguments.units, arguments.workers, Path(folder))}", flush=True)


if __name__ == "__main__":
    from benchmarks import scheduler  # worker processes must be able to import this module by its name

    scheduler.main()
