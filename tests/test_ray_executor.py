"""What the executor makes of what Ray says: deaths, errors and resources. Ray itself is a stand-in here."""

from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError

from pipeline.config import ExecutionSection
from pipeline.errors import ConfigError, StorageFullError
from pipeline.executors import ray as executor_module
from pipeline.executors.base import BundleLost, WorkerLost
from pipeline.executors.ray import RayExecutor
from pipeline.records import Bundle

READY = "ready"
BUNDLES = [Bundle(0, "digits", ()), Bundle(21, "digits", ())]


class FakeRay:
    """Actors that answer every bundle with one error."""

    def __init__(self, answer=None, **resources):
        self.answer, self.resources = answer, {"CPU": 8.0, **resources}
        self.actors, self.killed, self.options = [], [], []
        self.failing_starts = 0

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return self.resources

    def remote(self, **options):
        self.options.append(options)
        return lambda _kind: SimpleNamespace(remote=self._actor)

    def _actor(self, *_arguments):
        actor = SimpleNamespace(run=SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._stream)))
        actor.__ray_ready__ = SimpleNamespace(remote=lambda: (READY, len(self.actors)))
        self.actors.append(actor)
        return actor

    def _stream(self, _bundle):
        return iter([self.answer])

    def wait(self, streams, **_options):
        return streams[:1], streams[1:]

    def get(self, answer):
        if isinstance(answer, tuple) and not self.failing_starts:
            return
        self.failing_starts -= isinstance(answer, tuple)
        raise self.answer

    def kill(self, actor):
        self.killed.append(actor)


@pytest.fixture
def start(monkeypatch):
    def start(fake, precision="fp32", **execution):
        monkeypatch.setattr(executor_module, "ray", fake)
        config = SimpleNamespace(execution=ExecutionSection(**execution), precision=precision)
        return RayExecutor(SimpleNamespace(config=config))

    return start


def wait_until_up(executor) -> RayExecutor:
    while any(slot.starting for slot in executor._slots):
        assert executor.poll(0.1) == []
    return executor


@pytest.mark.parametrize(
    "death",
    [ActorDiedError(), ActorUnavailableError("no answer", None), OutOfMemoryError("the node ran low on memory")],
)
def test_a_lost_worker_is_ended_and_replaced_and_its_bundles_come_back(start, death) -> None:
    fake = FakeRay(death)
    executor = wait_until_up(start(fake, workers=1))
    for bundle in BUNDLES:
        executor.submit(bundle)
    lost = executor.poll(0.1)
    assert [type(event) for event in lost] == [BundleLost, BundleLost]
    assert [(event.bundle, event.started, event.preempted) for event in lost] == [
        (BUNDLES[0], True, False),
        (BUNDLES[1], False, False),
    ]
    assert fake.killed == fake.actors[:1]
    assert (len(fake.actors), executor.free_slots()) == (2, 0)
    assert wait_until_up(executor).free_slots() == 2


def test_a_worker_that_cannot_start_says_why(start) -> None:
    error = RayTaskError("__init__", "Traceback:\nConfigError: expected a GPU", ConfigError("expected a GPU"))
    fake = FakeRay(ActorDiedError(error))
    executor = start(fake, workers=1)
    fake.failing_starts = 1
    assert executor.poll(0.1) == [WorkerLost(preempted=False, reason="ConfigError: expected a GPU")]
    assert wait_until_up(executor).free_slots() == 2


def test_a_worker_that_is_not_up_gets_nothing(start) -> None:
    executor = start(FakeRay(), workers=2)
    assert executor.free_slots() == 0
    executor.poll(0.1)
    assert executor.free_slots() == 2
    executor.submit(BUNDLES[0])
    executor.submit(BUNDLES[1])
    assert [len(slot.queue) for slot in executor._slots] == [2, 0]


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_a_machine_that_vanished_counts_as_preempted(start, address) -> None:
    found_missing = ActorDiedError()
    found_missing.error_msg = "The actor died unexpectedly.\nThe actor died because its node has died. Node Id: 5"
    out_of_reach = ActorUnavailableError("Socket closed", None)
    for death, preempted in ((found_missing, True), (out_of_reach, address is not None), (ActorDiedError(), False)):
        executor = wait_until_up(start(FakeRay(death), workers=1, ray_address=address))
        executor.submit(BUNDLES[0])
        assert [event.preempted for event in executor.poll(0.1)] == [preempted]


def test_a_full_disk_is_told_in_the_workers_words(start) -> None:
    full = StorageFullError("Writing failed for x: expected free space on the device, got none.")
    executor = wait_until_up(start(FakeRay(RayTaskError("run", "Traceback: …", full)), workers=1))
    executor.submit(BUNDLES[0])
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
def test_as_many_workers_start_as_there_is_room_for(start, resources, execution, n_workers, n_gpus) -> None:
    fake = FakeRay(**resources)
    assert wait_until_up(start(fake, **execution)).free_slots() == 2 * n_workers
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
def test_more_workers_than_there_is_room_for_are_refused(start, resources, execution) -> None:
    with pytest.raises(ConfigError, match="Starting workers failed"):
        start(FakeRay(**resources), **execution)
