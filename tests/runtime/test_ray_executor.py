"""Handling of deaths, errors and resources by the executor on Ray, with a simulated Ray."""

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
from robust201.runtime.executors.base import LOOKAHEAD, SHORT_SECONDS, BundleDone, BundleLost, WorkerLost
from robust201.runtime.executors.ray import RayExecutor, _WorkerActor, disable_unused_ray_services

BUNDLES = [Bundle(0, "digits", ()), Bundle(21, "digits", ())]


class FakeRay:
    """Simulates Ray: only the first `n_starting` actors start, and all of them answer with the same error."""

    def __init__(self, answer=None, n_starting=1000, **resources):
        self.answer, self.resources = answer, {"CPU": 8.0, **resources}
        self.n_starting = n_starting
        self.actors, self.killed, self.options, self.assigned = [], [], [], []

    def shutdown(self):
        """Do nothing."""

    def cluster_resources(self):
        return self.resources

    def remote(self, **options):
        self.options.append(options)
        return lambda _kind: SimpleNamespace(remote=self._actor)

    def _actor(self, *_arguments):
        number = len(self.actors)

        def call(name, **_options):
            return SimpleNamespace(options=lambda **_: call(name), remote=lambda *_: (name, number, object()))

        def run(bundle):
            self.assigned.append((number, bundle))
            return "run", number, object()

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
        answered = [call for call in calls if self._is_answered(*call)][:num_returns]
        return answered, [call for call in calls if call not in answered]

    def _is_answered(self, name, number, _call):
        return number < self.n_starting and (name == "ready" or (name == "collect" and self.answer is not None))

    def get(self, call):
        if call[0] == "ready" and not getattr(self.answer, "actor_init_failed", False):
            return True
        raise self.answer

    def kill(self, actor):
        self.killed.append(actor)


@pytest.fixture
def start(monkeypatch):
    def start(fake, precision="fp32", **execution):
        monkeypatch.setattr(executor_module, "ray", fake)
        monkeypatch.setattr(RayExecutor, "_start_ray", lambda _executor, _folder: None)
        monkeypatch.setattr(RayExecutor, "_start_watch", lambda _executor: None)
        config = SimpleNamespace(execution=ExecutionSection(**execution), precision=precision)
        return RayExecutor(config, start_worker=None, folder=Path("unused"))

    return start


@pytest.mark.parametrize(
    "death",
    [ActorDiedError(), ActorUnavailableError("no answer", None), OutOfMemoryError("the node ran low on memory")],
)
def test_lost_worker_is_killed_and_replaced_and_bundles_returned(start, death) -> None:
    fake = FakeRay(death)
    executor = start(fake, workers=1)
    for bundle in BUNDLES:
        executor.submit(bundle)
    assert executor.poll(0.1) == []  # the worker started
    lost = executor.poll(0.1)
    assert [type(event) for event in lost] == [BundleLost, BundleLost]
    assert [(event.bundle, event.started, event.preempted) for event in lost] == [
        (BUNDLES[0], True, False),
        (BUNDLES[1], False, False),
    ]
    assert fake.killed == fake.actors[:1]
    assert (len(fake.actors), executor.free_slots()) == (2, 2 + LOOKAHEAD)


class PartlyFatalRay(FakeRay):
    """Simulates Ray with actors of which those in `dying` die, while the others compute for ever."""

    def __init__(self) -> None:
        super().__init__(ActorDiedError())
        self.dying: set[int] = set()

    def _is_answered(self, name, number, call):
        return super()._is_answered(name, number, call) and (name == "ready" or number in self.dying)


def test_idle_dead_worker_is_replaced_before_next_part(start) -> None:
    fake = PartlyFatalRay()
    executor = start(fake, workers=2, window=1)
    for bundle in BUNDLES:
        executor.submit(bundle)
    while len(fake.assigned) < 2:
        assert executor.poll(0.1) == []
    executor._slots[1].queue.clear()  # its bundle is done, and no other is waiting
    fake.dying = {1}
    assert executor.poll(0.1) == [WorkerLost(preempted=False, reason=str(fake.answer))]
    assert fake.killed == fake.actors[1:2]
    executor.submit(BUNDLES[0])
    executor.poll(0.1)
    assert [number for number, _ in fake.assigned] == [0, 1, 2]


def test_dead_workers_are_not_replaced_while_draining(start) -> None:
    fake = PartlyFatalRay()
    executor = start(fake, workers=2, window=1)
    for bundle in BUNDLES:
        executor.submit(bundle)
    while len(fake.assigned) < 2:
        executor.poll(0.1)
    executor.drain()
    fake.dying = {0, 1}
    lost = [event for _ in range(2) for event in executor.poll(0.1)]
    assert sorted((event.bundle.architecture, event.started) for event in lost) == [(0, True), (21, True)]
    assert (len(fake.actors), executor.poll(0.1)) == (2, [])
    executor.close()
    assert fake.killed == fake.actors


def test_worker_lost_at_start_reports_reason(start) -> None:
    error = RayTaskError("__init__", "Traceback:\nConfigError: expected a GPU", ConfigError("expected a GPU"))
    executor = start(FakeRay(ActorDiedError(error)), workers=1)
    executor.submit(BUNDLES[0])
    assert executor.poll(0.1) == [WorkerLost(preempted=False, reason="ConfigError: expected a GPU")]
    assert executor.free_slots() == 1 + LOOKAHEAD  # the bundle waits for the next worker


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_vanished_machine_counts_as_preempted(start, address) -> None:
    node_died = ActorDiedError()
    node_died.error_msg = "The actor died unexpectedly.\nThe actor died because its node has died. Node Id: 5"
    unreachable = ActorUnavailableError("Socket closed", None)
    for death, preempted in ((node_died, True), (unreachable, address is not None), (ActorDiedError(), False)):
        executor = start(FakeRay(death), workers=1, ray_address=address)
        executor.submit(BUNDLES[0])
        assert executor.poll(0.1) == []
        assert [event.preempted for event in executor.poll(0.1)] == [preempted]


def test_bundles_are_assigned_to_started_workers_only(start) -> None:
    fake = FakeRay(n_starting=1)
    executor = start(fake, workers=2)
    bundles = [Bundle(number, "digits", ()) for number in range(4)]
    for bundle in bundles:
        executor.submit(bundle)
    assert fake.assigned == []
    assert executor.poll(0.1) == []
    assert fake.assigned == [(0, bundles[0]), (0, bundles[1])]
    assert executor.free_slots() == LOOKAHEAD
    fake.n_starting = 2
    assert executor.poll(0.1) == []
    assert fake.assigned[2:] == [(1, bundles[2]), (1, bundles[3])]


class ObedientRay(FakeRay):
    """Simulates Ray with actors that finish their bundle on request."""

    def __init__(self) -> None:
        super().__init__()
        self.finishing: set[int] = set()

    def _is_answered(self, name, number, call):
        return name == "ready" or (name == "collect" and number in self.finishing)

    def get(self, call):
        if call[0] == "ready":
            return True
        self.finishing.discard(call[1])
        return [None]


def test_worker_continues_with_loaded_network(start) -> None:
    fake = ObedientRay()
    executor = start(fake, workers=2)
    bundles = [Bundle(number, "digits", (), 100.0) for number in (0, 21, 0, 309, 21)]
    for bundle in bundles:
        executor.submit(bundle)
    executor.poll(0.1)
    assert fake.assigned == [(0, bundles[0]), (1, bundles[1])]
    for worker, bundle in ((1, bundles[4]), (0, bundles[2]), (1, bundles[3])):
        fake.finishing = {worker}
        assert [type(event) for event in executor.poll(0.1)] == [BundleDone]
        assert fake.assigned[-1] == (worker, bundle)


@pytest.mark.parametrize(("seconds", "n_assigned"), [(SHORT_SECONDS, 3), (SHORT_SECONDS + 1, 2)])
def test_bundle_is_not_queued_behind_long_bundle(start, seconds: float, n_assigned: int) -> None:
    """Another worker may become idle long before the long bundle is done."""
    fake = FakeRay()
    executor = start(fake, workers=2)
    for _ in range(3):
        executor.submit(Bundle(0, "digits", (), seconds))
    executor.poll(0.1)
    assert len(fake.assigned) == n_assigned


def test_drain_does_not_wait_for_starting_workers(start) -> None:
    fake = FakeRay(n_starting=0)
    executor = start(fake, workers=2)
    for bundle in BUNDLES:
        executor.submit(bundle)
    executor.drain()
    assert [event.bundle for event in executor.poll(0.1)] == BUNDLES
    assert (executor.poll(0.1), fake.assigned) == ([], [])


def test_storage_error_of_worker_is_raised_unchanged(start) -> None:
    full = StorageFullError("Writing failed for x: expected free space on the device, got none.")
    executor = start(FakeRay(RayTaskError("run", "Traceback: …", full)), workers=1)
    executor.submit(BUNDLES[0])
    executor.poll(0.1)
    with pytest.raises(StorageFullError) as raised:
        executor.poll(0.1)
    assert str(raised.value) == str(full)


@pytest.mark.parametrize(
    ("resources", "execution", "n_workers", "n_gpus"),
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
def test_number_of_workers_follows_from_resources(start, resources, execution, n_workers, n_gpus) -> None:
    fake = FakeRay(**resources)
    executor = start(fake, **execution)
    assert (executor.n_workers, executor.free_slots()) == (n_workers, 2 * n_workers + LOOKAHEAD)
    assert {options["num_gpus"] for options in fake.options} == {n_gpus}


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
def test_ray_executor_rejects_workers_without_resources(start, resources, execution) -> None:
    with pytest.raises(ConfigError, match=r"Starting (\d+ )?workers failed"):
        start(FakeRay(**resources), **execution)


RECEIPTS = [Receipt(f"unit {number}", (1.0,), 0, 10, "shard", 1.0) for number in range(1000)]


class ReportingWorker:
    """Worker that reports many receipts at once and then optionally fails."""

    def __init__(self, _metrics, error=None):
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
    def __init__(self, *, no_monitor=False, include_log_monitor=True, dashboard_agent_listen_port=52365):
        self.values = no_monitor, include_log_monitor, dashboard_agent_listen_port


class ExpectedNode:
    def start_api_server(self, *, include_dashboard, raise_on_failure):
        return "started", include_dashboard, raise_on_failure


class OtherNode:
    def start_api_server(self, include_dashboard):
        return "started", include_dashboard


def copy_of(kind):
    return type(kind.__name__, (), dict(vars(kind))) if isinstance(kind, type) else kind


@pytest.fixture
def shape_ray(monkeypatch):
    """Replace classes in Ray's private modules; None removes a class."""

    def shape(node, params):
        for name, attribute, kind in (("node", "Node", node), ("parameter", "RayParams", params)):
            module = SimpleNamespace() if kind is None else SimpleNamespace(**{attribute: kind})
            monkeypatch.setitem(sys.modules, f"ray._private.{name}", module)

    return shape


def test_disable_unused_ray_services_disables_them(shape_ray) -> None:
    node, params = copy_of(ExpectedNode), copy_of(ExpectedParams)
    shape_ray(node, params)
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
def test_disable_unused_ray_services_ignores_unknown_ray(shape_ray, node, params) -> None:
    node, params = copy_of(node), copy_of(params)
    shape_ray(node, params)
    before = [dict(vars(kind)) for kind in (node, params) if kind]
    disable_unused_ray_services()
    assert [dict(vars(kind)) for kind in (node, params) if kind] == before
