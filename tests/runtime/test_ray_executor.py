"""The executor on Ray, with a simulated Ray: dead workers, errors and resources."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError

from robust201.core.errors import ConfigError, StorageFullError
from robust201.core.records import Bundle, Receipt
from robust201.planning.config import ExecutionSection
from robust201.runtime.executors import ray as executor_module
from robust201.runtime.executors.base import LOOKAHEAD_BUNDLES, SHORT_BUNDLE_SECONDS, BundleDone, BundleLost, WorkerLost
from robust201.runtime.executors.ray import RayExecutor, _WorkerActor, disable_unused_ray_services

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


class RayWithDyingActors(FakeRay):
    """Simulation of Ray in which the actors in `dying_actors` die; the other actors compute for ever."""

    def __init__(self) -> None:
        super().__init__(ActorDiedError())
        self.dying_actors: set[int] = set()

    def _has_finished(self, name, actor_index, call):
        return super()._has_finished(name, actor_index, call) and (name == "ready" or actor_index in self.dying_actors)


def test_idle_dead_worker_is_replaced_before_next_bundle(start_executor) -> None:
    fake = RayWithDyingActors()
    executor = start_executor(fake, workers=2, window=1)
    for bundle in BUNDLES:
        executor.submit(bundle)
    while len(fake.assigned_bundles) < 2:
        assert executor.poll(0.1) == []
    executor._slots[1].queue.clear()  # its bundle is complete, and no bundle is waiting
    fake.dying_actors = {1}
    assert executor.poll(0.1) == [WorkerLost(preempted=False, reason=str(fake.error))]
    assert fake.killed_actors == fake.actors[1:2]
    executor.submit(BUNDLES[0])
    executor.poll(0.1)
    assert [actor_index for actor_index, _ in fake.assigned_bundles] == [0, 1, 2]


def test_dead_workers_are_not_replaced_while_draining(start_executor) -> None:
    fake = RayWithDyingActors()
    executor = start_executor(fake, workers=2, window=1)
    for bundle in BUNDLES:
        executor.submit(bundle)
    while len(fake.assigned_bundles) < 2:
        executor.poll(0.1)
    executor.drain()
    fake.dying_actors = {0, 1}
    events = [event for _ in range(2) for event in executor.poll(0.1)]
    assert sorted((event.bundle.architecture, event.was_started) for event in events) == [(0, True), (21, True)]
    assert (len(fake.actors), executor.poll(0.1)) == (2, [])
    executor.close()
    assert fake.killed_actors == fake.actors


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


def test_bundles_are_assigned_to_started_workers_only(start_executor) -> None:
    fake = FakeRay(n_starting=1)
    executor = start_executor(fake, workers=2)
    bundles = [Bundle(index, "digits", ()) for index in range(4)]
    for bundle in bundles:
        executor.submit(bundle)
    assert fake.assigned_bundles == []
    assert executor.poll(0.1) == []
    assert fake.assigned_bundles == [(0, bundles[0]), (0, bundles[1])]
    assert executor.free_slots() == LOOKAHEAD_BUNDLES
    fake.n_starting = 2
    assert executor.poll(0.1) == []
    assert fake.assigned_bundles[2:] == [(1, bundles[2]), (1, bundles[3])]


class ObedientRay(FakeRay):
    """Simulation of Ray with actors that finish their bundle on request."""

    def __init__(self) -> None:
        super().__init__()
        self.finishing_actors: set[int] = set()

    def _has_finished(self, name, actor_index, call):
        return name == "ready" or (name == "collect" and actor_index in self.finishing_actors)

    def get(self, call):
        if call[0] == "ready":
            return True
        self.finishing_actors.discard(call[1])
        return [None]


def test_worker_continues_with_loaded_network(start_executor) -> None:
    fake = ObedientRay()
    executor = start_executor(fake, workers=2)
    bundles = [Bundle(number, "digits", (), 100.0) for number in (0, 21, 0, 309, 21)]
    for bundle in bundles:
        executor.submit(bundle)
    executor.poll(0.1)
    assert fake.assigned_bundles == [(0, bundles[0]), (1, bundles[1])]
    for worker, bundle in ((1, bundles[4]), (0, bundles[2]), (1, bundles[3])):
        fake.finishing_actors = {worker}
        assert [type(event) for event in executor.poll(0.1)] == [BundleDone]
        assert fake.assigned_bundles[-1] == (worker, bundle)


@pytest.mark.parametrize(("seconds", "n_assigned"), [(SHORT_BUNDLE_SECONDS, 3), (SHORT_BUNDLE_SECONDS + 1, 2)])
def test_bundle_is_not_queued_behind_long_bundle(start_executor, seconds: float, n_assigned: int) -> None:
    """Another worker may become idle long before the long bundle is complete."""
    fake = FakeRay()
    executor = start_executor(fake, workers=2)
    for _ in range(3):
        executor.submit(Bundle(0, "digits", (), seconds))
    executor.poll(0.1)
    assert len(fake.assigned_bundles) == n_assigned


def test_drain_does_not_wait_for_starting_workers(start_executor) -> None:
    fake = FakeRay(n_starting=0)
    executor = start_executor(fake, workers=2)
    for bundle in BUNDLES:
        executor.submit(bundle)
    executor.drain()
    assert [event.bundle for event in executor.poll(0.1)] == BUNDLES
    assert (executor.poll(0.1), fake.assigned_bundles) == ([], [])


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


def test_actor_returns_outcomes_in_batches_and_in_order() -> None:
    actor = _WorkerActor(ReportingWorker, ".")
    actor.run(BUNDLES[0])
    calls = [actor.collect()]
    while calls[-1][-1] is not None:
        calls.append(actor.collect())
    assert len(calls) < 10
    assert [outcome for outcomes in calls for outcome in outcomes] == [*RECEIPTS, None]


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
        self.values = no_monitor, include_log_monitor, dashboard_agent_listen_port


class ExpectedNode:
    """`Node` with the interface that robust201 expects."""

    def start_api_server(self, *, include_dashboard, raise_on_failure):
        return "started", include_dashboard, raise_on_failure


class OtherNode:
    """`Node` with another interface."""

    def start_api_server(self, include_dashboard):
        return "started", include_dashboard


def copy_class(original):
    return type(original.__name__, (), dict(vars(original))) if isinstance(original, type) else original


@pytest.fixture
def replace_ray_classes(monkeypatch):
    """Return a function that replaces classes in Ray's private modules; None removes a class."""

    def replace(node, params):
        for name, attribute, replacement in (("node", "Node", node), ("parameter", "RayParams", params)):
            module = SimpleNamespace() if replacement is None else SimpleNamespace(**{attribute: replacement})
            monkeypatch.setitem(sys.modules, f"ray._private.{name}", module)

    return replace


def test_disable_unused_ray_services_disables_them(replace_ray_classes) -> None:
    node, params = copy_class(ExpectedNode), copy_class(ExpectedParams)
    replace_ray_classes(node, params)
    for _ in range(2):
        disable_unused_ray_services()
        assert params().values == (True, False, 0)
        assert node().start_api_server(include_dashboard=False, raise_on_failure=True) is None


@pytest.mark.parametrize(
    ("node", "params"),
    [
        (None, ExpectedParams),
        (OtherNode, ExpectedParams),
    ],
)
def test_disable_unused_ray_services_changes_nothing_if_interface_is_unknown(replace_ray_classes, node, params) -> None:
    node, params = copy_class(node), copy_class(params)
    replace_ray_classes(node, params)
    original_members = [dict(vars(ray_class)) for ray_class in (node, params) if ray_class]
    disable_unused_ray_services()
    assert [dict(vars(ray_class)) for ray_class in (node, params) if ray_class] == original_members
