"""The executor on Ray, with a simulated Ray: dead workers, errors and resources."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError

from robust201.core.errors import ConfigError, StorageFullError
from robust201.core.records import Bundle, Receipt
from robust201.runtime.executors import ray as executor_module
from robust201.runtime.executors.base import LOOKAHEAD_BUNDLES, BundleLost, WorkerLost
from robust201.runtime.executors.ray import RayExecutor, _WorkerActor, disable_unused_ray_services
from robust201.sweep.config import ExecutionSection

BUNDLES = [Bundle(0, "digits", ()), Bundle(21, "digits", ())]


class FakeRay:
    """Simulation of Ray: only the first `n_starting` actors start; if there is an `error`, all of them fail with it."""

    def __init__(self, error=None, n_starting=1000, **resources):
        self.error, self.resources = error, {"CPU": 8.0, **resources}
        self.n_starting = n_starting
        self.actors, self.killed_actors, self.options, self.assigned_bundles = [], [], [], []

    def shutdown(self):
        """Do nothing."""

    def cluster_resources(self):
        return self.resources

    def remote(self, **options):
        self.options.append(options)
        return lambda _class: SimpleNamespace(remote=self._actor)

    def _actor(self, *_arguments):
        actor_index = len(self.actors)

        def call(name, **_options):
            return SimpleNamespace(options=lambda **_: call(name), remote=lambda *_: (name, actor_index, object()))

        def run(bundle):
            self.assigned_bundles.append((actor_index, bundle))
            return "run", actor_index, object()

        self.actors.append(
            SimpleNamespace(
                __ray_ready__=call("ready"),
                collect=call("collect"),
                drain=call("drain"),
                run=SimpleNamespace(remote=run),
            )
        )
        return self.actors[-1]

    def wait(self, calls, *, num_returns, timeout):
        finished_calls = [call for call in calls if self._has_finished(*call)][:num_returns]
        return finished_calls, [call for call in calls if call not in finished_calls]

    def _has_finished(self, name, actor_index, _call):
        return actor_index < self.n_starting and (name == "ready" or (name == "collect" and self.error is not None))

    def get(self, call):
        if call[0] == "ready" and not getattr(self.error, "actor_init_failed", False):
            return True
        raise self.error

    def kill(self, actor):
        self.killed_actors.append(actor)


@pytest.fixture
def start_executor(monkeypatch):
    """Return a function that starts an executor on a simulated Ray."""

    def start_executor(fake, precision="fp32", **execution):
        monkeypatch.setattr(executor_module, "ray", fake)
        monkeypatch.setattr(RayExecutor, "_start_ray", lambda _executor, _folder: None)
        monkeypatch.setattr(RayExecutor, "_start_watch", lambda _executor: None)
        config = SimpleNamespace(execution=ExecutionSection(**execution), precision=precision)
        return RayExecutor(config, start_worker=None, folder=Path("unused"))

    return start_executor


@pytest.mark.parametrize(
    "death",
    [ActorDiedError(), ActorUnavailableError("no answer", None), OutOfMemoryError("the node ran low on memory")],
)
def test_lost_worker_is_replaced_and_its_bundles_are_returned(start_executor, death) -> None:
    fake = FakeRay(death)
    executor = start_executor(fake, workers=1)
    for bundle in BUNDLES:
        executor.submit(bundle)
    assert executor.poll(0.1) == []  # the worker started
    events = executor.poll(0.1)
    assert [type(event) for event in events] == [BundleLost, BundleLost]
    assert [(event.bundle, event.was_started, event.preempted) for event in events] == [
        (BUNDLES[0], True, False),
        (BUNDLES[1], False, False),
    ]
    assert fake.killed_actors == fake.actors[:1]
    assert (len(fake.actors), executor.free_slots()) == (2, 2 + LOOKAHEAD_BUNDLES)


def test_worker_lost_at_start_reports_reason(start_executor) -> None:
    error = RayTaskError("__init__", "Traceback:\nConfigError: expected a GPU", ConfigError("expected a GPU"))
    executor = start_executor(FakeRay(ActorDiedError(error)), workers=1)
    executor.submit(BUNDLES[0])
    assert executor.poll(0.1) == [WorkerLost(preempted=False, reason="ConfigError: expected a GPU")]
    assert executor.free_slots() == 1 + LOOKAHEAD_BUNDLES  # the bundle waits for the next worker


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_vanished_machine_counts_as_preempted(start_executor, address) -> None:
    node_died = ActorDiedError()
    node_died.error_msg = "The actor died unexpectedly.\nThe actor died because its node has died. Node Id: 5"
    unreachable = ActorUnavailableError("Socket closed", None)
    for death, preempted in ((node_died, True), (unreachable, address is not None), (ActorDiedError(), False)):
        executor = start_executor(FakeRay(death), workers=1, ray_address=address)
        executor.submit(BUNDLES[0])
        assert executor.poll(0.1) == []
        assert [event.preempted for event in executor.poll(0.1)] == [preempted]


def test_storage_error_of_worker_is_raised_unchanged(start_executor) -> None:
    storage_error = StorageFullError("Writing failed for x: expected free space on the device, got none.")
    executor = start_executor(FakeRay(RayTaskError("run", "Traceback: …", storage_error)), workers=1)
    executor.submit(BUNDLES[0])
    executor.poll(0.1)
    with pytest.raises(StorageFullError) as raised:
        executor.poll(0.1)
    assert str(raised.value) == str(storage_error)


@pytest.mark.parametrize(
    ("resources", "execution", "n_workers", "gpus_per_worker"),
    [
        ({}, {}, 8, 0),
        ({"GPU": 2.0}, {}, 2, 1),
        ({"GPU": 1.0}, {"gpus_per_worker": 1 / 3}, 3, 1 / 3),
        ({"GPU": 2.0}, {"device": "cpu"}, 8, 0),
        ({}, {"workers": 12, "ray_address": "auto"}, 12, 0),
        ({}, {"workers": 4, "ray_address": "auto", "device": "cuda"}, 4, 1),
        ({}, {"workers": 4, "ray_address": "auto", "precision": "tf32"}, 4, 1),
    ],
)
def test_number_of_workers_follows_from_resources(
    start_executor, resources, execution, n_workers, gpus_per_worker
) -> None:
    fake = FakeRay(**resources)
    executor = start_executor(fake, **execution)
    assert (executor.n_workers, executor.free_slots()) == (n_workers, 2 * n_workers + LOOKAHEAD_BUNDLES)
    assert {options["num_gpus"] for options in fake.options} == {gpus_per_worker}


@pytest.mark.parametrize(
    ("resources", "execution"),
    [
        ({"GPU": 1.0}, {"workers": 4}),
        ({}, {"workers": 9}),
        ({}, {"device": "cuda"}),
        ({}, {"precision": "tf32"}),
        ({"CPU": 1.0}, {"cpus_per_worker": 2}),
        ({"GPU": 1.0}, {"gpus_per_worker": 2}),
    ],
)
def test_ray_executor_rejects_workers_without_resources(start_executor, resources, execution) -> None:
    with pytest.raises(ConfigError, match=r"Starting (\d+ )?workers? failed"):
        start_executor(FakeRay(**resources), **execution)


RECEIPTS = [Receipt(f"unit {index}", (1.0,), 0, 10, "shard", 1.0) for index in range(1000)]


class ReportingWorker:
    """Worker that reports many receipts at once, and then raises `error` unless it is None."""

    def __init__(self, error=None):
        self.error = error

    def run(self, _bundle):
        yield from RECEIPTS
        if self.error is not None:
            raise self.error


def test_actor_returns_outcomes_before_raising_error() -> None:
    actor = _WorkerActor(partial(ReportingWorker, error=StorageFullError("no space")), ".")
    actor.run(BUNDLES[0])
    actor.run(BUNDLES[1])
    outcomes = []
    while len(outcomes) < len(RECEIPTS):
        outcomes += actor.collect()
    assert outcomes == RECEIPTS
    for _ in range(2):  # bundles submitted before the driver noticed the failure report nothing else
        with pytest.raises(StorageFullError):
            actor.collect()


class ExpectedParams:
    """`RayParams` with the interface that robust201 expects."""

    def __init__(self, *, no_monitor=False, include_log_monitor=True, dashboard_agent_listen_port=52365):
        """Do nothing."""


class OtherNode:
    """`Node` with another interface."""

    def start_api_server(self, include_dashboard):
        return "started", include_dashboard


@pytest.mark.parametrize("node_module", [SimpleNamespace(), SimpleNamespace(Node=OtherNode)])
def test_disable_unused_ray_services_changes_nothing_if_interface_is_unknown(monkeypatch, node_module) -> None:
    monkeypatch.setitem(sys.modules, "ray._private.node", node_module)
    monkeypatch.setitem(sys.modules, "ray._private.parameter", SimpleNamespace(RayParams=ExpectedParams))
    original_members = dict(vars(ExpectedParams)), dict(vars(OtherNode))
    disable_unused_ray_services()
    assert (dict(vars(ExpectedParams)), dict(vars(OtherNode))) == original_members
