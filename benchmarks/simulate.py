"""Simulate the paper's sweep on many preemptible GPUs: duration, and GPU-hours by cause.

    python -m benchmarks.simulate

This command prints the table of docs/internals/store-and-runtime.md with more rows and columns. The page explains the
simulation and its assumptions.
The plan, its parts and bundles, and their order and retries come from robust201 itself (`planning.plan`,
`runtime.scheduler`). Machines, their preemptions, time and costs of parts are simulated (`virtual_cluster.py`). Equal
arguments give equal results.

    python -m benchmarks.simulate --architectures 100 --gpus 20

This command simulates every hundredth network, which takes seconds.
"""

import argparse
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.virtual_cluster import Cause, Machines, VirtualCluster
from robust201.core.records import ArchitectureId, Bundle, Part
from robust201.images import DATASETS
from robust201.planning.bundles import make_bundles
from robust201.planning.config import SweepConfig
from robust201.planning.loading import load_config
from robust201.planning.plan import assumed_facts, make_plan
from robust201.runtime.scheduler import RunTally, Scheduler
from robust201.spaces.nasbench201.cells import multiply_accumulates, resolve
from robust201.tasks import TASKS
from robust201.tasks.parameters import Square

SWEEP_YAML = Path(__file__).parent.parent / "jobs" / "paper.yaml"

CONSTANT_MACS, FORWARD_SPREAD = 13.6e6, 0.38
"""Parameters of the cost of a forward pass, fitted to thirty networks on a CPU.

The cost is the network's multiply-accumulates plus `CONSTANT_MACS`, times a random factor for each network.
`FORWARD_SPREAD` is the standard deviation of the factor's logarithm.
"""

QUERY_FRACTIONS = {"cifar10": 0.42, "cifar100": 0.21, "ImageNet16-120": 0.06}
"""Fraction of Square's queries that are made, by dataset, from published medians (docs/protocol/statistics.md)."""

QUERY_SPREAD = 0.2
"""Assumed standard deviation of the logarithm of a network's random factor, which multiplies `QUERY_FRACTIONS`."""


class PartCosts:
    """GPU seconds of parts, which deviate from the plan's estimates as in a real sweep.

    Args:
        config: configuration of the sweep.
        macs_per_second: throughput of a GPU, averaged over the space.
        seed: seed for the random factors of networks.
    """

    def __init__(self, config: SweepConfig, macs_per_second: float, seed: int) -> None:
        indices = config.selected_architectures
        forward_deviations, query_deviations = np.random.default_rng(seed).normal(size=(2, len(indices)))
        self._query_factors = dict(zip(indices, np.exp(QUERY_SPREAD * query_deviations).tolist(), strict=True))
        self._image_seconds: dict[tuple[str, ArchitectureId], float] = {}
        for dataset in config.datasets:
            macs = np.array([_macs(index, dataset) for index in indices], dtype=np.float64)
            constant = CONSTANT_MACS * (DATASETS[dataset].image_size / 32) ** 2
            costs: NDArray[np.float64] = (macs + constant) * np.exp(FORWARD_SPREAD * forward_deviations)
            seconds = costs * macs.sum() / costs.sum() / macs_per_second
            self._image_seconds |= {
                (dataset, index): seconds_per_image
                for index, seconds_per_image in zip(indices, seconds.tolist(), strict=True)
            }
        self._passes = {key: _passes(key, parameters) for key, parameters in config.parameters.items()}

    def seconds(self, part: Part) -> float:
        """Return the seconds of a part, without the time to load weights."""
        unit = part.unit
        passes = self._passes[unit.key] * len(part.strengths)
        if unit.key == "fgsm":
            passes += 3  # one gradient for all epsilons
        elif unit.key == "aa_square":
            passes *= min(1.0, QUERY_FRACTIONS[unit.dataset] * self._query_factors[unit.architecture])
        return self._image_seconds[unit.dataset, unit.architecture] * passes * (part.stop - part.start)


def _macs(index: ArchitectureId, dataset: str) -> int:
    n_classes, size = DATASETS[dataset].n_classes, DATASETS[dataset].image_size
    return multiply_accumulates(resolve(index).spec, channels=16, cells=5, n_classes=n_classes, image_size=size)


def _passes(key: str, parameters: object) -> float:
    """Return the number of forward passes per image and strength; for Square, the maximum."""
    if isinstance(parameters, Square):
        return float(parameters.queries * parameters.restarts)
    return 1.0 if key == "fgsm" else TASKS[key].passes(parameters, 10)


@dataclass(frozen=True)
class SimulatedRun:
    """Result of a simulated run.

    Attributes:
        tally: tally of the scheduler.
        hours: GPU-hours by cause; their sum is `n_gpus` times `makespan`.
        n_gpus: number of machines.
        n_parts: number of parts in the sweep.
        makespan: hours from the start to the last receipt.
        bound: lower bound of the makespan without preemptions, for any order of the parts.
        preemptions: number of preempted machines.
        crashes: number of crashed workers.
    """

    tally: RunTally
    hours: Mapping[Cause, float]
    n_gpus: int
    n_parts: int
    makespan: float
    bound: float
    preemptions: int
    crashes: int


def simulate(
    bundles: Sequence[Bundle], seconds_of: Callable[[Part], float], machines: Machines, seed: int
) -> SimulatedRun:
    """Run bundles with the scheduler of robust201 on simulated machines.

    Args:
        bundles: bundles in the order in which they start.
        seconds_of: function that returns the cost of a part.
        machines: simulated machines.
        seed: seed for the times of preemptions and crashes.

    Raises:
        RuntimeError: some parts were not computed.
    """
    costs = [seconds_of(part) for bundle in bundles for part in bundle.parts]
    cluster = VirtualCluster(machines, seconds_of, seed)
    tally = Scheduler(cluster).run(bundles)
    cluster.close()
    if not tally.complete or tally.parts != len(costs):
        raise RuntimeError(f"The run did not compute each of {len(costs)} parts once. The scheduler counted: {tally}")
    return SimulatedRun(
        tally=tally,
        hours=dict(cluster.hours),
        n_gpus=machines.n_gpus,
        n_parts=len(costs),
        makespan=cluster.now / 3600,
        bound=max(math.fsum(costs) / machines.n_gpus, *costs) / 3600,
        preemptions=cluster.preemptions,
        crashes=cluster.crashes,
    )


class Sweep:
    """A planned sweep with the costs of its parts.

    Args:
        config: configuration of the sweep.
        seed: seed for the networks' costs.
        macs_per_second: throughput of a worker, averaged over the space; the default is the plan's assumption.
    """

    def __init__(self, config: SweepConfig, seed: int, macs_per_second: float | None = None) -> None:
        self._plan = make_plan(config, assumed_facts(config))
        self.costs = PartCosts(config, macs_per_second or config.execution.assumed_gmacs() * 1e9, seed)

    def bundles(self, n_workers: int) -> Sequence[Bundle]:
        """Return the sweep's bundles, split and ordered as in a run with `n_workers` workers."""
        parts = (Part(unit, unit.strengths, 0, unit.n_images) for unit in self._plan.units)
        return list(make_bundles(self._plan, parts, n_workers=n_workers))


CAUSES: tuple[Cause, ...] = ("computing", "lost", "loading", "starting", "absent", "idle")
HEADER = (
    f"| machines | parts | makespan, h | bound, h | makespan / bound | {' | '.join(CAUSES)} | preemptions |\n"
    + "|---" * 12
    + "|"
)


def machines_by_row(base: Machines) -> dict[str, Machines]:
    """Return the simulated machines for each row of the table, by the row's name."""
    gpu_counts = dict.fromkeys((max(1, base.n_gpus // 100), max(1, base.n_gpus // 10), base.n_gpus))
    rows = {f"{count:,} GPUs": dataclasses.replace(base, n_gpus=count) for count in gpu_counts}
    for hours in (0.5, 24.0, math.inf):
        rate = "never preempted" if math.isinf(hours) else f"preempted after a mean of {hours:g} h"
        name = f"{base.n_gpus:,} GPUs, {rate}"
        rows[name] = dataclasses.replace(base, preemption_hours=hours)
    return rows


def format_row(name: str, outcome: SimulatedRun) -> str:
    fractions = " | ".join(f"{outcome.hours[cause] / (outcome.n_gpus * outcome.makespan):.2%}" for cause in CAUSES)
    return (
        f"| {name} | {outcome.n_parts:,} | {outcome.makespan:.2f} | {outcome.bound:.2f} | "
        f"{outcome.makespan / outcome.bound:.3f} | {fractions} | {outcome.preemptions:,} |"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=1000, help="number of machines, each with one GPU")
    parser.add_argument("--gpu-macs-per-second", type=float, default=2e12, help="assumed mean over the space")
    parser.add_argument("--hours-between-preemptions", type=float, default=2.0, help="mean; inf for none")
    parser.add_argument("--architectures", type=int, default=1, metavar="N", help="simulate every N-th network")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("ROBUST201_DATA", ".")  # the YAML requires it, but nothing is read
    config = load_config(SWEEP_YAML, execution={"gmacs_per_second": arguments.gpu_macs_per_second / 1e9})
    config = config.model_copy(update={"architectures": config.selected_architectures[:: arguments.architectures]})
    sweep = Sweep(config, arguments.seed)
    base = Machines(arguments.gpus, arguments.hours_between_preemptions, crash_hours=1000.0)
    print(f"{arguments.gpu_macs_per_second:g} multiply-accumulates per second and GPU; {base}; seed {arguments.seed}")
    print(f"\n{HEADER}", flush=True)
    for name, machines in machines_by_row(base).items():
        outcome = simulate(sweep.bundles(machines.n_gpus), sweep.costs.seconds, machines, arguments.seed)
        print(format_row(name, outcome), flush=True)


if __name__ == "__main__":
    main()
