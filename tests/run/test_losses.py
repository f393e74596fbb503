"""Lost connections, lost machines and jumping clocks, simulated without Ray: results equal those without faults."""

import random
import time
from collections import Counter, deque

import pytest
import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from robust201.core.errors import LockHeldError
from robust201.run import cluster, executor_ray
from robust201.run.cluster import FinishedPart, LostWorker
from robust201.run.guard import Attachment
from robust201.run.lock import hold_lock
from robust201.run.status import read_status
from robust201.sweep.config import ExecutionSection
from robust201.sweep.loading import parse_config
from tests.conftest import tiny_sweep_fields
from tests.support.runs import export_bytes, run_inline, run_sweep

KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}, "brightness": {"severities": [1, 5]}}


OPTIONS = {
    "keys": KEYS,
    "images": {"count": 20, "seed": 0},
    "execution": {"executor": "ray", "device": "cpu", "gmacs_per_second": 1e-5},
}


@pytest.fixture
def config(make_sweep):
    return make_sweep(**OPTIONS)


@pytest.fixture(scope="module")
def undisturbed_bytes(tiny_weights, tmp_path_factory):
    """Return the exported files of a run without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    undisturbed = parse_config(tiny_sweep_fields(folder, tiny_weights, **OPTIONS), "test")
    run_inline(undisturbed)
    return export_bytes(undisturbed, folder / "out")


class UnreliableCluster:
    """One worker in this process, with two parts in flight.

    At random, it is lost before it computes a part (its machine vanishes), or after it has stored the part's results
    (the connection is cut, so the outcome is lost).
    """

    def __init__(self, rng, counts, start_worker):
        self._rng, self._counts, self._start, self._parts = rng, counts, start_worker, deque()
        self._worker = start_worker()

    n_busy = property(lambda self: int(bool(self._parts)))
    n_in_flight = property(lambda self: len(self._parts))

    def fill(self, take):
        while len(self._parts) < 2 and (part := take(self._parts[-1].network if self._parts else None)) is not None:
            self._parts.append(part)

    def wait(self, _seconds):
        event = self._rng.choice(["vanishes", "is cut off", "works", "works"])
        self._counts[event] += 1
        if event != "vanishes":
            outcome = self._worker.compute(self._parts[0], lambda: False)
            self._counts[self._parts[0].id] += 1
        if event == "works":
            return [FinishedPart(self._parts.popleft(), outcome)]
        lost = LostWorker([*self._parts], preempted=self._rng.random() < 0.8, reason=event)
        self._parts.clear()
        self._worker = self._start()
        return [lost]

    def close(self):
        self._worker.close()


def replace_ray(monkeypatch, folder, make_cluster):
    """Replace Ray with a cluster in this process; `make_cluster` gets the function that starts a worker."""
    monkeypatch.setattr(executor_ray, "attach", lambda: Attachment(folder, lambda _message: None))
    monkeypatch.setattr(executor_ray, "ray_variables", lambda _execution: {})
    monkeypatch.setattr(cluster, "Cluster", lambda _execution, _precision, start, _folder: make_cluster(start))


@pytest.mark.parametrize("seed", [1, 2, 3])  # with seed 0, one part fails, because it loses three workers by chance
def test_lost_machines_and_connections_affect_only_parts_in_flight(
    config, tmp_path, monkeypatch, undisturbed_bytes, seed
):
    rng, counts = random.Random(seed), Counter()
    replace_ray(monkeypatch, tmp_path, lambda start: UnreliableCluster(rng, counts, start))
    tally = run_sweep(config)
    assert (tally.is_complete, tally.failures) == (True, [])
    assert tally.n_died + tally.n_preempted == counts["vanishes"] + counts["is cut off"] > 0
    computed = [count for name, count in counts.items() if isinstance(name, tuple) and name[0] != "images"]
    assert set(computed) == {1}  # a part that was stored before the loss is not computed again
    assert export_bytes(config, tmp_path / "lossy-out") == undisturbed_bytes


class FatalCluster(UnreliableCluster):
    """One worker, which dies on every part of the key `fgsm`."""

    def wait(self, _seconds):
        parts = [*self._parts]
        if parts[0].id[0] == "images" or parts[0].unit.key != "fgsm":
            return [FinishedPart(self._parts.popleft(), self._worker.compute(parts[0], lambda: False))]
        self._parts.clear()
        return [LostWorker(parts, preempted=False, reason="killed")]


def test_parts_that_kill_their_workers_are_reported_and_the_others_computed(config, tmp_path, monkeypatch):
    replace_ray(monkeypatch, tmp_path, lambda start: FatalCluster(random.Random(), Counter(), start))
    tally = run_sweep(config)
    n_fatal = len(tally.failures)
    assert n_fatal > 0
    assert all("fgsm" in outcome.label and "3 times" in outcome.failure for outcome in tally.failures)
    assert (tally.n_died, tally.n_planned - tally.n_done) == (3 * n_fatal, 2 * 2)


@pytest.mark.parametrize(
    ("error", "address", "preempted"),
    [
        (ActorUnavailableError("the network is cut", None), "auto", True),
        (ActorUnavailableError("the network is cut", None), None, False),
        (RayActorError(error_msg="The actor died because its node has died."), "auto", True),
        (RayActorError(error_msg="The actor died."), "auto", False),
    ],
)
def test_lost_workers_are_replaced_and_their_parts_returned(monkeypatch, error, address, preempted):
    def fail(_call):
        raise error

    killed = []
    monkeypatch.setattr(ray, "wait", lambda calls, **_options: (calls, []))
    monkeypatch.setattr(ray, "get", fail)
    monkeypatch.setattr(ray, "kill", killed.append)
    monkeypatch.setattr(cluster.Cluster, "_start_slot", lambda _self: cluster._Slot("new", deque()))
    workers = object.__new__(cluster.Cluster)  # without a connection to Ray
    workers.execution = ExecutionSection(ray_address=address)
    workers._slots = [cluster._Slot("old", deque([("first call", "first"), ("second call", "second")]))]
    (lost,) = workers.wait(0.0)
    assert (lost.parts, lost.preempted) == (["first", "second"], preempted)
    assert (killed, [slot.actor for slot in workers._slots]) == (["old"], ["new"])


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_clock_jump_changes_neither_results_nor_lock_nor_status(config, tmp_path, monkeypatch, undisturbed_bytes, jump):
    config = config.model_copy(update={"execution": config.execution.model_copy(update={"executor": "inline"})})
    clock, jumps = time.time, []

    def check(_tally, _seconds_left):
        jumps.append(jump)
        status = read_status(config.results)
        assert (status.running, status.silent) == (True, [])
        with pytest.raises(LockHeldError), hold_lock(config.results):
            pass

    monkeypatch.setattr(time, "time", lambda: clock() + sum(jumps))
    assert run_sweep(config, on_progress=check).is_complete
    assert len(jumps) > 5
    assert export_bytes(config, tmp_path / "jumping-out") == undisturbed_bytes
