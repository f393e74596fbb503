"""The executor on Ray actors: one actor a worker, on this machine or a cluster."""

import functools
import inspect
import logging
import os
import signal
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.metrics import Counter, Gauge, Histogram

from robust201.core.errors import ConfigError, EvaluationError, RayLostError, RobustError, WorkerBrokenError, one_line
from robust201.core.memory import collect_rarely
from robust201.core.records import ArchitectureId, Bundle, Receipt, UnitFailure
from robust201.runtime.executors.base import (
    LOOKAHEAD,
    SHORT_SECONDS,
    BundleDone,
    BundleLost,
    Event,
    StartWorker,
    WorkerLost,
    WorkSettings,
    fitting_workers,
    take_for,
)
from robust201.runtime.executors.ray_environment import worker_environment
from robust201.runtime.executors.watch import Watch, answers, parse_address
from robust201.runtime.metrics import METRICS, Metrics

# Only receipts of a few hundred bytes pass through Ray, so its object store can be the smallest it takes.
_OBJECT_STORE_BYTES = 128 << 20

_MAX_COLLECTED = 256
"""Outcomes of one call: more than come while the driver handles the last ones, few enough to travel in one message."""

_Outcome = Receipt | UnitFailure | None
"""What a worker tells of a bundle; None where the bundle ends."""

_NODE_DIED = "its node has died"
"""How Ray's ActorDiedError says that a machine is gone with its actors. Only machines that announced their end to Ray's
autoscaler are marked as preempted; those that vanish, as spot machines mostly do, are found missing by the head."""

_ASK_SECONDS = 0.2

_LOCAL_PATIENCE_SECONDS = 3.0
_CLUSTER_PATIENCE_SECONDS = 45.0
"""How long Ray may be silent before the run ends. Ray itself would end this process, here after 30 s, on a cluster,
whose head may come back, after 60 s."""


class RayMetrics(Metrics):
    """Records values with the Ray that this process is connected to."""

    def __init__(self) -> None:
        self._instruments: dict[str, Counter | Gauge | Histogram] = {}

    def record(self, name: str, value: float = 1.0, **tags: str) -> None:
        instrument = self._instruments.get(name)
        if instrument is None:
            instrument = self._instruments[name] = _make_instrument(name)
        if isinstance(instrument, Counter):
            if value > 0:  # Ray refuses to add nothing
                instrument.inc(value, tags)
        elif isinstance(instrument, Gauge):
            instrument.set(value, tags)
        else:
            instrument.observe(value, tags)


def _make_instrument(name: str) -> Counter | Gauge | Histogram:
    metric = METRICS[name]
    described = f"{metric.description} ({metric.unit})"
    if metric.kind == "histogram":
        return Histogram(name, described, boundaries=list(metric.boundaries), tag_keys=metric.tags)
    return (Counter if metric.kind == "counter" else Gauge)(name, described, tag_keys=metric.tags)


class _WorkerActor:
    """A worker in a process of its own, whose outcomes wait here until the driver collects them.

    `run` ends with its bundle; `collect` and `drain` have concurrency groups of their own, so that they get through
    meanwhile.
    """

    def __init__(self, start_worker: StartWorker, folder: str) -> None:
        collect_rarely()
        with suppress(OSError):  # where it is absent, relative paths fail with a message of their own
            os.chdir(folder)
        self._worker = start_worker(RayMetrics())
        self._outcomes: SimpleQueue[_Outcome | Exception] = SimpleQueue()
        self._error: Exception | None = None

    def run(self, bundle: Bundle) -> None:
        try:
            for outcome in self._worker.run(bundle):
                self._outcomes.put(outcome)
        except Exception as error:  # noqa: BLE001 - raised again by `collect`, after what came before it
            self._outcomes.put(error)
        else:
            self._outcomes.put(None)

    def collect(self) -> list[_Outcome]:
        """Wait for an outcome; return it with all that came meanwhile, or raise the error that stands first."""
        collected: list[_Outcome] = []
        while self._error is None and len(collected) < _MAX_COLLECTED and not (collected and self._outcomes.empty()):
            outcome = self._outcomes.get()
            if isinstance(outcome, Exception):
                self._error = outcome
            else:
                collected.append(outcome)
        if self._error is not None and not collected:
            raise self._error
        return collected

    def drain(self) -> None:
        self._worker.drain()


@dataclass
class _Slot:
    """An actor, the bundles it was given, first the one it computes, and the call to wait for.

    That call is answered when the actor has started, and after that with its outcomes. `network` is that of the last
    bundle given.
    """

    actor: Any
    call: Any
    is_started: bool = False
    queue: deque[tuple[Bundle, Any]] = field(default_factory=deque)
    network: tuple[str, ArchitectureId] | None = None

    def has_room(self, window: int) -> bool:
        """Whether it takes a bundle: it has started and none, or short ones only."""
        is_short = not self.queue or (len(self.queue) < window and self.queue[-1][0].seconds <= SHORT_SECONDS)
        return self.is_started and is_short

    def run(self, bundle: Bundle) -> None:
        self.network = bundle.network
        self.queue.append((bundle, self.actor.run.remote(bundle)))

    def collect(self) -> None:
        self.call = self.actor.collect.options(concurrency_group="outcomes").remote()


def disable_unused_ray_services() -> None:
    """Let a head that this process starts go without autoscaler, log monitor and dashboard server.

    Each is a Python process, and nobody asks them anything, as the run has one machine, its workers write their own
    logs, and the dashboard is off: a start took 10.8 s in place of 16.8 s (single runs on two busy cores, 2026-11-22).
    Ray's public interface cannot leave them out. A Ray whose parts are other than expected here is left as it is.
    """
    # Port 0 is a free one. Ray's default is 52365 for every Ray of a machine, so that of a second one would have none.
    wanted = {"no_monitor": True, "include_log_monitor": False, "dashboard_agent_listen_port": 0}
    try:
        from ray._private.node import Node
        from ray._private.parameter import RayParams

        initialise = RayParams.__init__
        parameters = inspect.signature(initialise).parameters.keys()
        of_server = inspect.signature(Node.start_api_server).parameters.keys()
    except (ImportError, AttributeError, TypeError, ValueError):
        return
    if wanted.keys() <= parameters and of_server == {"self", "include_dashboard", "raise_on_failure"}:
        RayParams.__init__ = functools.partialmethod(initialise, **wanted)
        Node.start_api_server = lambda _node, **_options: None


def _describe(error: RayTaskError) -> EvaluationError:
    cause = error.cause if isinstance(error.cause, Exception) else error
    line = one_line(cause, 200)
    return EvaluationError(
        f"Running workers failed for one of them: expected results or failures, got {type(cause).__name__}: {line}. "
        "Report this; robust201 logs shows what the worker did before."
    )


class RayExecutor:
    """Computes bundles on Ray actors, each with a small window of bundles so that it never waits for the driver.

    Bundles are given to actors that have started only. Others wait here for whichever actor has room first, since a
    machine that was lost may be replaced late or never. So that an actor can go on with the network that it has loaded,
    a few more wait than there is room for.

    Raises:
        ConfigError: the Ray cluster cannot be reached, or offers no worker the resources it needs.
    """

    def __init__(self, config: WorkSettings, start_worker: StartWorker, folder: Path) -> None:
        self.metrics: Metrics = RayMetrics()
        self._precision = config.precision
        self._execution = config.execution
        self._start_worker = start_worker
        self._draining = False
        self._slots: list[_Slot] = []
        self._watch: Watch | None = None
        self._held: deque[Bundle] = deque()
        try:
            self._start_ray(folder)
            self._watch = self._start_watch()
            self.gpus_per_worker = self._execution.gpus_per_worker if self._uses_gpus() else 0
            self.n_workers = self._count_workers()
            for _ in range(self.n_workers):
                self._slots.append(self._start_slot())
        except BaseException:
            self.close()
            raise

    def _start_ray(self, folder: Path) -> None:
        address = self._execution.ray_address
        local: dict[str, Any] = (
            {}
            if address
            else {
                "num_cpus": len(os.sched_getaffinity(0)),
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": str(folder),
            }
        )
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            if not address:
                disable_unused_ray_services()
            ray.init(
                address=address or "local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **local,
            )
        except (ConnectionError, ValueError) as error:
            if not address:
                raise
            raise ConfigError(
                f"Connecting to Ray failed for {address}: expected a running cluster, got {error}. "
                "Check execution.ray_address, or leave it out to start Ray on this machine."
            ) from error
        finally:
            signal.signal(signal.SIGTERM, on_sigterm)  # ray.init puts its own there, which ends the process

    def _start_watch(self) -> Watch:
        """Watch the head and this machine's raylet, without which nothing gets done and most calls to Ray block."""
        context = ray.get_runtime_context()
        addresses = {"head": parse_address(context.gcs_address)}
        here = context.get_node_id()
        for node in ray.nodes():
            if node["NodeID"] == here:
                addresses["raylet on this machine"] = node["NodeManagerAddress"], node["NodeManagerPort"]
        is_local = not self._execution.ray_address
        # Through a tunnel or a proxy they may not be reached from here by these addresses; then nobody can watch them.
        addresses = {name: address for name, address in addresses.items() if answers(address)}
        return Watch(addresses, _LOCAL_PATIENCE_SECONDS if is_local else _CLUSTER_PATIENCE_SECONDS)

    @property
    def _may_grow(self) -> bool:
        """Whether machines may join later: a cluster of others, and the sweep says for how many workers."""
        return bool(self._execution.ray_address) and self._execution.workers is not None

    def _uses_gpus(self) -> bool:
        if self._execution.device == "cpu":
            return False
        gpus = ray.cluster_resources().get("GPU", 0)
        needs_gpus = self._execution.device == "cuda" or self._precision == "tf32"  # which no CPU has
        if needs_gpus and not gpus and not self._may_grow:
            what = "execution.device cuda" if self._execution.device == "cuda" else f"precision {self._precision}"
            raise ConfigError(
                f"Starting workers failed for {what}: expected a GPU in Ray, got none. "
                "Choose another device or precision, or start Ray on machines with a GPU."
            )
        return needs_gpus or gpus > 0

    def _count_workers(self) -> int:
        resources = ray.cluster_resources()
        room = fitting_workers(resources.get("CPU", 0), self._execution.cpus_per_worker)
        if self.gpus_per_worker:
            room = min(room, fitting_workers(resources.get("GPU", 0), self.gpus_per_worker))
        wanted = self._execution.workers or max(room, 1)
        if wanted > room and not self._may_grow:
            # Ray would let the others wait for ever, and with them the bundles that they were given.
            raise ConfigError(
                f"Starting workers failed for {wanted} of them: expected {self._execution.cpus_per_worker:g} CPUs "
                f"and {self.gpus_per_worker:g} GPUs each, got {resources.get('CPU', 0):g} CPUs and "
                f"{resources.get('GPU', 0):g} GPUs in all. Set execution.workers to {max(room, 1)}, or lower "
                "execution.cpus_per_worker or execution.gpus_per_worker."
            )
        return wanted

    def _start_slot(self) -> _Slot:
        actor_class = ray.remote(
            num_cpus=self._execution.cpus_per_worker,
            num_gpus=self.gpus_per_worker,
            max_restarts=0,
            concurrency_groups={"control": 1, "outcomes": 1},
            runtime_env=worker_environment(self._execution),
        )(_WorkerActor)
        # Relative paths of the sweep start where the driver stands, on every machine.
        actor = actor_class.remote(self._start_worker, str(Path.cwd()))
        return _Slot(actor, actor.__ray_ready__.remote())

    def free_slots(self) -> int:
        """Places left in the windows of the actors, those that are starting among them, and among those that wait."""
        if self._draining:
            return 0
        in_flight = len(self._held) + sum(len(slot.queue) for slot in self._slots)
        return max(0, self._execution.window * len(self._slots) + LOOKAHEAD - in_flight)

    def submit(self, bundle: Bundle) -> None:
        """Take a bundle; an actor gets one when it has room, of the network that it has loaded if one waits."""
        self._held.append(bundle)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._held:
            open_slots = [slot for slot in self._slots if slot.has_room(self._execution.window)]
            if not open_slots:
                return
            slot = min(open_slots, key=lambda candidate: len(candidate.queue))
            slot.run(take_for(self._held, slot.network))

    def poll(self, timeout: float) -> list[Event]:
        """Wait for outcomes, and take all that are there."""
        self._raise_if_gone()
        return self._wait_for_events(timeout)

    def _raise_if_gone(self) -> None:
        silent = None if self._watch is None else self._watch.silent()
        if silent is not None:
            raise RayLostError(f"silence of the {silent}")

    def _wait_for_ray(self) -> None:
        """Return once Ray answers: what is about to be called would wait for it where no signal gets through."""
        while self._watch is not None and self._watch.unanswered() is not None:
            self._raise_if_gone()
            time.sleep(_ASK_SECONDS)

    def _wait_for_events(self, timeout: float) -> list[Event]:
        if self._draining and self._held:
            not_begun: list[Event] = [BundleDone(bundle) for bundle in self._held]
            self._held.clear()
            return not_begun
        # The idle are waited for, too: the next part must not be given to one that is dead, and blamed for it.
        slots = {slot.call: slot for slot in self._slots if slot.is_started or self._held}
        if not slots:
            return []
        ready, waiting = ray.wait(list(slots), num_returns=1, timeout=timeout)
        if not ready:
            self._raise_lost_errors()
        elif waiting:
            ready += ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]
        events: list[Event] = []
        for call in ready:
            events.extend(self._receive(slots[call]))
        self._hand_out()
        return events

    def _raise_lost_errors(self) -> None:
        """Raise the error of a bundle that failed before its worker saw it: such a worker has nothing to tell."""
        begun = [slot.queue[0][1] for slot in self._slots if slot.queue]
        ended = ray.wait(begun, num_returns=len(begun), timeout=0)[0] if begun else []
        for call in ended:
            with suppress(RayActorError, OutOfMemoryError):  # its outcomes say so, too
                ray.get(call)

    def _receive(self, slot: _Slot) -> list[Event]:
        try:
            answer = ray.get(slot.call)
        except RayTaskError as error:
            if isinstance(error.cause, WorkerBrokenError):
                return self._replace(slot, error)
            # The worker's own error: Ray's rendering of it is a whole traceback.
            raise error.cause if isinstance(error.cause, RobustError) else _describe(error) from error
        except (RayActorError, OutOfMemoryError) as error:  # Ray's memory monitor does not call its kills actor errors
            return self._replace(slot, error)
        # At once, before anybody handles these: what a worker still holds when it dies is computed again.
        slot.collect()
        outcomes: list[_Outcome] = answer if slot.is_started else []
        slot.is_started = True
        return [BundleDone(slot.queue.popleft()[0]) if outcome is None else outcome for outcome in outcomes]

    def _replace(self, slot: _Slot, error: RayError) -> list[Event]:
        of_machine = [line.strip() for line in str(error).splitlines() if _NODE_DIED in line]
        # Out of reach on one machine is dying; between machines it is most often a machine that is dying, or a cable.
        out_of_reach = isinstance(error, ActorUnavailableError) and self._execution.ray_address is not None
        preempted = bool(getattr(error, "preempted", False) or of_machine or out_of_reach)
        cause = getattr(error, "cause", None)
        lines = of_machine or str(cause or error).strip().splitlines() or ["the worker died"]
        # An error while a worker starts stands in the last line, below its traceback.
        reason = lines[-1 if getattr(error, "actor_init_failed", False) else 0]
        self._wait_for_ray()
        ray.kill(slot.actor)  # one that is out of reach may live, hold its GPU and go on
        lost: list[Event] = [
            BundleLost(bundle, started=position == 0, preempted=preempted, reason=reason)
            for position, (bundle, _) in enumerate(slot.queue)
        ]
        place = self._slots.index(slot)
        self._slots[place : place + 1] = [] if self._draining else [self._start_slot()]
        return lost or [WorkerLost(preempted, reason)]

    def drain(self) -> None:
        self._draining = True
        for slot in self._slots:
            slot.actor.drain.options(concurrency_group="control").remote()

    def close(self) -> None:
        """End the actors and the connection, and Ray where this executor started it."""
        is_gone = self._watch is not None and (self._watch.silent() or self._watch.unanswered()) is not None
        if self._watch is not None:
            self._watch.stop()
        if not is_gone:  # a Ray that is gone would let each of these calls wait
            for slot in self._slots:
                ray.kill(slot.actor)
        self._slots = []
        ray.shutdown()
