"""Simulate the paper's sweep on many preemptible GPUs: how long it takes, what is wasted, and what limits it.

    python -m benchmarks.simulate

prints every table of docs/simulation.md; that page says what is simulated and what is assumed. The plan, its parts and
bundles, their order, retries and preemptions are the product's (`planning.plan`, `runtime.scheduler`); machines, time
and the cost of a part are simulated (`virtual_cluster.py`, `unit_costs.py`). Equal arguments give equal results.

    python -m benchmarks.simulate --architectures 100 --gpus 20

simulates every hundredth part of it in seconds.
"""

import argparse
import dataclasses
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from benchmarks.unit_costs import UnitCosts
from benchmarks.virtual_cluster import Cause, Machines, VirtualCluster
from robust201.core.records import Bundle, Part
from robust201.planning.bundles import make_bundles
from robust201.planning.config import SweepConfig
from robust201.planning.cost import CPU_GMACS, assumed_gmacs
from robust201.planning.loading import load_config
from robust201.planning.plan import assumed_facts, make_plan
from robust201.runtime.scheduler import RunTally, Scheduler

SWEEP = Path(__file__).parent.parent / "jobs" / "paper.yaml"


@dataclass(frozen=True)
class Outcome:
    """One simulated run.

    Attributes:
        tally: the scheduler's account.
        hours: GPU-hours by cause; they add up to `n_gpus` times `makespan`.
        n_gpus: machines.
        n_parts: parts of the sweep.
        makespan: hours from the start to the last receipt.
        work_bound: hours that the work alone takes on all GPUs.
        longest: hours of the longest part.
        preemptions: machines taken away.
        crashes: workers that died by themselves.
    """

    tally: RunTally
    hours: Mapping[Cause, float]
    n_gpus: int
    n_parts: int
    makespan: float
    work_bound: float
    longest: float
    preemptions: int
    crashes: int

    @property
    def bound(self) -> float:
        """Hours below which no order could get, even without preemptions."""
        return max(self.work_bound, self.longest)

    def share(self, cause: Cause) -> float:
        """Share of all GPU-hours."""
        return self.hours[cause] / (self.n_gpus * self.makespan)

    @property
    def limit(self) -> str:
        """What costs most beside the work: the longest part where it bounds the run, else a cause of waste."""
        if self.longest > self.work_bound:
            return "longest part"
        return max(WASTES, key=self.share)


WASTES: tuple[Cause, ...] = ("lost", "loading", "starting", "absent", "idle")
HEADER = (
    "| parts | makespan, h | bound, h | makespan / bound | computing | lost | loading | starting | absent | idle "
    "| preemptions | most is lost to |\n|" + "---|" * 13
)


def simulate(bundles: Sequence[Bundle], seconds_of: Callable[[Part], float], machines: Machines, seed: int) -> Outcome:
    """Let the product's scheduler run bundles on simulated machines.

    Args:
        bundles: in the order in which they are to begin.
        seconds_of: what a part costs.
        machines: what it runs on.
        seed: of preemptions and crashes.

    Raises:
        RuntimeError: not every part was computed.
    """
    costs = [seconds_of(part) for bundle in bundles for part in bundle.parts]
    cluster = VirtualCluster(machines, seconds_of, seed)
    tally = Scheduler(cluster).run(bundles)
    cluster.close()
    if not tally.complete or tally.parts != len(costs):
        raise RuntimeError(f"expected {len(costs)} parts once each, got {tally}")
    return Outcome(
        tally=tally,
        hours=dict(cluster.hours),
        n_gpus=machines.n_gpus,
        n_parts=len(costs),
        makespan=cluster.now / 3600,
        work_bound=math.fsum(costs) / machines.n_gpus / 3600,
        longest=max(costs) / 3600,
        preemptions=cluster.preemptions,
        crashes=cluster.crashes,
    )


class Sweep:
    """The sweep to simulate, planned anew for each way of cutting it.

    Args:
        config: the sweep.
        seed: of the networks' costs, and of the shuffled order.
        macs_per_second: throughput of a worker, averaged over the space; that which the plan assumes where None.
    """

    def __init__(self, config: SweepConfig, seed: int, macs_per_second: float | None = None) -> None:
        self._seed = seed
        self._plan = make_plan(config, assumed_facts(config))
        self.costs = UnitCosts(config, macs_per_second or assumed_gmacs(config.execution) * 1e9, seed)

    def bundles(self, *, bundle_minutes: float, slice_minutes: float, order: str, n_workers: int) -> Sequence[Bundle]:
        """Cut, bundle and order the sweep.

        Args:
            bundle_minutes: `execution.part_minutes`.
            slice_minutes: longest part, estimated; the product's is 5.
            order: ``"shrinking"`` (the product's), or bundles of equal length ``"longest first"`` by estimates,
                ``"as planned"`` (by dataset and architecture) or ``"shuffled"``.
            n_workers: workers for which bundles shrink.
        """
        config = self._plan.config
        execution = config.execution.model_copy(update={"part_minutes": bundle_minutes})
        plan = dataclasses.replace(self._plan, config=config.model_copy(update={"execution": execution}))
        parts = (Part(unit, unit.strengths, 0, unit.n_images) for unit in plan.units)
        n_workers = n_workers if order == "shrinking" else 1
        bundles = list(make_bundles(plan, parts, n_workers=n_workers, slice_seconds=60 * slice_minutes))
        if order == "as planned":
            bundles.sort(key=lambda bundle: (plan.datasets.index(bundle.dataset), bundle.architecture))
        elif order == "shuffled":
            random.Random(self._seed).shuffle(bundles)
        return bundles


@dataclass(frozen=True)
class Case:
    """A row of a table: what differs from the product on the machines that were asked for."""

    name: str
    machines: Machines
    order: str = "shrinking"
    bundle_minutes: float = 15.0
    slice_minutes: float = 5.0


@dataclass(frozen=True)
class FewNetworks:
    """A small sweep on a machine without a GPU: a row of the table of few networks.

    Attributes:
        architectures: in #.
        n_images: of CIFAR-10.
        n_workers: one thread each.
        engine: of the sweep.
    """

    architectures: tuple[int, ...]
    n_images: int
    n_workers: int
    engine: str = "fused"


CPU_MACS_PER_SECOND = 6e10
"""What a worker with one thread sustains; the plan assumes a sixth of it."""

CPU_START_SECONDS, CPU_LOAD_SECONDS = 6.0, 0.4
"""From the start of Ray's actors to workers that compute; from a change of the network to its first part."""

SIX = (13714, 1462, 21, 991, 309, 0)
FEW_NETWORKS = (
    FewNetworks((21,), 24, 2),
    FewNetworks((21,), 1000, 8),
    FewNetworks((21,), 10_000, 8),
    FewNetworks((21,), 1000, 8, engine="reference"),
    FewNetworks((13714, 21, 309, 0), 24, 2),
    FewNetworks(SIX, 100, 8),
    FewNetworks(tuple(range(0, 15_000, 625)), 100, 8),
)
FEW_HEADER = (
    "| networks | images | engine | workers | start + work / workers, s | ends after, s | more | bundles | loaded, s "
    "| equal bundles end after, s |\n|" + "---|" * 10
)


def few_networks_row(case: FewNetworks, seed: int) -> str:
    """Simulate all keys of a few networks, in bundles that shrink and in equal ones."""
    outcomes, n_bundles = [], []
    for order in ("shrinking", "longest first"):
        sweep = small_sweep_of(case, seed)
        bundles = sweep.bundles(bundle_minutes=15.0, slice_minutes=5.0, order=order, n_workers=case.n_workers)
        machines = Machines(case.n_workers, start_seconds=CPU_START_SECONDS, load_seconds=CPU_LOAD_SECONDS)
        outcomes.append(simulate(bundles, sweep.costs.seconds, machines, seed))
        n_bundles.append(len(bundles))
    shrinking, equal = outcomes
    ideal = CPU_START_SECONDS + 3600 * shrinking.work_bound
    return (
        f"| {len(case.architectures)} | {case.n_images:,} | {case.engine} | {case.n_workers} | {ideal:.1f} | "
        f"{3600 * shrinking.makespan:.1f} | {3600 * shrinking.makespan / ideal - 1:.1%} | {n_bundles[0]} | "
        f"{3600 * shrinking.hours['loading']:.1f} | {3600 * equal.makespan:.1f} |"
    )


def small_sweep_of(case: FewNetworks, seed: int) -> Sweep:
    """Plan all keys of a few networks for CPUs."""
    config = load_config(SWEEP, execution={"device": "cpu", "gmacs_per_second": CPU_GMACS})
    changes = {
        "architectures": case.architectures,
        "datasets": {"cifar10": config.datasets["cifar10"]},
        "images": config.images.model_copy(update={"count": case.n_images}),
        "engine": case.engine,
    }
    return Sweep(config.model_copy(update=changes), seed, CPU_MACS_PER_SECOND)


def make_tables(base: Machines) -> dict[str, list[Case]]:
    """List what is compared: all tables have the product's way on the given machines as a row."""

    def on(**changes: float) -> Machines:
        return dataclasses.replace(base, **changes)  # type: ignore[arg-type]

    orders = ("shrinking", "longest first", "as planned", "shuffled")
    cuts = ((15.0, 1.0), (5.0, 5.0), (15.0, 5.0), (60.0, 5.0), (15.0, 15.0), (60.0, 60.0), (math.inf, math.inf))
    counts = (max(1, base.n_gpus // 100), max(1, base.n_gpus // 10), base.n_gpus)
    return {
        "order": [Case(order, base, order=order) for order in orders]
        + [Case(f"{order}, no preemption", on(preemption_hours=math.inf), order=order) for order in orders],
        "longest part / longest bundle, minutes": [
            Case(f"{part:g} / {bundle:g}", base, bundle_minutes=bundle, slice_minutes=part) for bundle, part in cuts
        ],
        "GPUs": [Case(f"{count:,}", on(n_gpus=count)) for count in dict.fromkeys(counts)],
        "mean hours between preemptions": [
            Case(f"{hours:g}", on(preemption_hours=hours)) for hours in (0.5, 2.0, 24.0, math.inf)
        ],
        "notice, and window": [
            Case("computes to the end", on(notice_seconds=0.0)),
            Case("120 s: finishes its part", on(notice_seconds=120.0)),
            Case("window of 1 bundle", on(window=1)),
            Case("window of 8 bundles", on(window=8)),
        ],
    }


def format_row(name: str, outcome: Outcome) -> str:
    causes: tuple[Cause, ...] = ("computing", *WASTES)
    shares = " | ".join(f"{outcome.share(cause):.2%}" for cause in causes)
    return (
        f"| {name} | {outcome.n_parts:,} | {outcome.makespan:.2f} | {outcome.bound:.2f} | "
        f"{outcome.makespan / outcome.bound:.3f} | {shares} | {outcome.preemptions:,} | {outcome.limit} |"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--gpu-macs-per-second", type=float, default=2e12, help="mean over the space: an assumption")
    parser.add_argument("--hours-between-preemptions", type=float, default=2.0, help="mean; inf for none")
    parser.add_argument("--hours-between-crashes", type=float, default=1000.0, help="mean, of a worker; inf for none")
    parser.add_argument(
        "--replacement-seconds", type=float, default=300.0, help="from a preemption to the next machine"
    )
    parser.add_argument("--start-seconds", type=float, default=30.0, help="from a machine to a worker that computes")
    parser.add_argument("--load-seconds", type=float, default=2.0, help="whenever a worker changes the network")
    parser.add_argument("--notice-seconds", type=float, default=0.0, help="0: workers compute until they are ended")
    parser.add_argument("--architectures", type=int, default=1, help="simulate every so manieth architecture")
    parser.add_argument("--tables", nargs="+", help="beginnings of the tables' names; all without it")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("ROBUST201_DATA", ".")  # nothing is read from it
    execution = {"gmacs_per_second": arguments.gpu_macs_per_second / 1e9}
    config = load_config(SWEEP, execution=execution)
    config = config.model_copy(update={"architectures": config.selected_architectures[:: arguments.architectures]})
    sweep = Sweep(config, arguments.seed)
    bundles_of = lru_cache(maxsize=1)(sweep.bundles)
    base = Machines(
        n_gpus=arguments.gpus,
        preemption_hours=arguments.hours_between_preemptions,
        crash_hours=arguments.hours_between_crashes,
        replacement_seconds=arguments.replacement_seconds,
        start_seconds=arguments.start_seconds,
        load_seconds=arguments.load_seconds,
        notice_seconds=arguments.notice_seconds,
    )
    print(f"{arguments.gpu_macs_per_second:g} multiply-accumulates a second and GPU; {base}; seed {arguments.seed}")

    @cache
    def outcome_of(case: Case) -> Outcome:
        bundles = bundles_of(
            bundle_minutes=case.bundle_minutes,
            slice_minutes=case.slice_minutes,
            order=case.order,
            n_workers=case.machines.n_gpus,
        )
        return simulate(bundles, sweep.costs.seconds, case.machines, arguments.seed)

    if not arguments.tables or "few networks".startswith(tuple(arguments.tables)):
        print(f"\n{FEW_HEADER}")
        for few in FEW_NETWORKS:
            print(few_networks_row(few, arguments.seed), flush=True)
    for title, cases in make_tables(base).items():
        if arguments.tables and not title.startswith(tuple(arguments.tables)):
            continue
        print(f"\n| {title} {HEADER}", flush=True)
        for case in cases:
            print(format_row(case.name, outcome_of(dataclasses.replace(case, name=""))), flush=True)


if __name__ == "__main__":
    main()
