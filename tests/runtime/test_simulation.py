"""Simulation of sweeps on preemptible machines: accounting of hours, and utilisation of workers."""

import dataclasses
import itertools
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate import SWEEP_YAML, SimulatedRun, Sweep, simulate
from benchmarks.virtual_cluster import Machines, VirtualCluster
from robust201.core.records import Bundle, Part, Receipt, Unit
from robust201.planning.config import CPU_GMACS
from robust201.planning.loading import load_config
from robust201.runtime.scheduler import Scheduler

STABLE = Machines(n_gpus=4, start_seconds=30, load_seconds=10)
N_IMAGES = 10_000


def make_bundle(architecture: int, seconds: list[float]) -> Bundle:
    """Return a bundle whose parts take these numbers of seconds, at one second per image."""
    edges = [0]
    for part_seconds in seconds:
        edges.append(edges[-1] + round(part_seconds))
    unit = Unit(f"unit {architecture}", architecture, "cifar10", "pgd", (1.0,), N_IMAGES, "p", "c")
    return Bundle(
        architecture, "cifar10", tuple(Part(unit, (1.0,), start, stop) for start, stop in itertools.pairwise(edges))
    )


def seconds_of(part: Part) -> float:
    return float(part.stop - part.start)


BUNDLES = [make_bundle(index, [300 - 7 * index, 60, 120]) for index in range(30)]


def run(machines: Machines, bundles: list[Bundle] | None = None, seed: int = 0) -> SimulatedRun:
    return simulate(BUNDLES if bundles is None else bundles, seconds_of, machines, seed)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n_gpus=st.integers(1, 9),
    preemption_hours=st.sampled_from([0.3, 2.0, math.inf]),
    crash_hours=st.sampled_from([1.0, math.inf]),
    window=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_simulation_computes_each_part_once_and_accounts_for_all_hours(seed, **changes) -> None:
    machines = Machines(**changes)
    computed_parts: list[tuple[str, int]] = []
    cluster = VirtualCluster(machines, seconds_of, seed)
    event_times = [0.0]

    def observe(event, _tally) -> None:
        event_times.append(cluster.now)
        if isinstance(event, Receipt):
            computed_parts.append((event.unit_id, event.start))

    tally = Scheduler(cluster, max_attempts=50, on_event=observe).run(BUNDLES)
    cluster.close()
    parts = [part for bundle in BUNDLES for part in bundle.parts]
    assert tally.complete
    assert sorted(computed_parts) == sorted((part.unit.id, part.start) for part in parts)
    assert event_times == sorted(event_times)
    assert sum(cluster.hours.values()) == pytest.approx(machines.n_gpus * cluster.now / 3600)
    total_seconds = sum(map(seconds_of, parts))
    assert 3600 * cluster.hours["computing"] == pytest.approx(total_seconds)
    assert cluster.now >= max(total_seconds / machines.n_gpus, *map(seconds_of, parts))


def test_bundles_do_not_wait_for_machines_that_never_start() -> None:
    machines = dataclasses.replace(STABLE, n_gpus=8, preemption_hours=2.0, replacement_seconds=1e6)
    outcome = run(machines)
    assert 0 < outcome.preemptions < 8
    assert outcome.makespan < 2  # hours


@dataclasses.dataclass(frozen=True)
class FewNetworks:
    """A sweep of all twenty keys on CIFAR-10 images, with workers that have one CPU thread."""

    architectures: tuple[int, ...]
    n_images: int
    n_workers: int
    engine: str = "fused"


@pytest.mark.parametrize(
    "case",
    [
        FewNetworks((21,), 24, 2),
        FewNetworks((21,), 1000, 8),
        FewNetworks((21,), 10_000, 8),
        FewNetworks((21,), 1000, 8, engine="reference"),
        FewNetworks((13714, 21, 309, 0), 24, 2),
        FewNetworks((13714, 1462, 21, 991, 309, 0), 100, 8),
        FewNetworks(tuple(range(0, 15_000, 625)), 100, 8),
    ],
    ids=str,
)
def test_few_networks_keep_all_workers_busy(case: FewNetworks) -> None:
    """Costs deviate from their estimates, differently for each network and key."""
    os.environ.setdefault("ROBUST201_DATA", ".")
    config = load_config(SWEEP_YAML, execution={"device": "cpu", "gmacs_per_second": CPU_GMACS})
    changes = {
        "architectures": case.architectures,
        "datasets": {"cifar10": config.datasets["cifar10"]},
        "images": config.images.model_copy(update={"count": case.n_images}),
        "engine": case.engine,
    }
    # The speed is six times the speed that the plan assumes.
    sweep = Sweep(config.model_copy(update=changes), seed=1, macs_per_second=6e10)
    machines = Machines(case.n_workers, start_seconds=6.0, load_seconds=0.4)
    bundles = sweep.bundles(case.n_workers)
    total_seconds = sum(sweep.costs.seconds(part) for bundle in bundles for part in bundle.parts)
    outcome = simulate(bundles, sweep.costs.seconds, machines, 1)
    assert outcome.tally.complete
    assert 3600 * outcome.makespan < machines.start_seconds + 1.1 * total_seconds / case.n_workers
