"""Executor on Ray actors, one per worker, on this machine or a cluster."""

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

from robust201.core.errors import ConfigError, EvaluationError, RayLostError, RobustError, WorkerBrokenError, one_line
from robust201.core.memory import reduce_gc_frequency
from robust201.core.records import ArchitectureId, Bundle, Receipt, UnitFailure
from robust201.runtime.executors.base import (
    LOOKAHEAD_BUNDLES,
    SHORT_BUNDLE_SECONDS,
    BundleDone,
    BundleLost,
    Event,
    StartWorker,
    WorkerLost,
    WorkSettings,
    count_fitting_workers,
    take_bundle_of_network,
)
from robust201.runtime.executors.ray_environment import worker_environment
from robust201.runtime.executors.watch import Watch, accepts_connections, parse_address

# Only receipts of a few hundred bytes pass through Ray, so its object store can have the minimum size.
_OBJECT_STORE_BYTES = 128 << 20

_MAX_OUTCOMES = 256
"""Maximum number of outcomes that a call of `collect` returns. This many fit into one message, and a worker rarely
queues more while the driver handles the previous call."""

_Outcome = Receipt | UnitFailure | None
"""A worker's message about a bundle; None marks the end of the bundle."""

_NODE_DEATH_TEXT = "its node has died"
"""Text in Ray's ActorDiedError if a machine is lost, which counts as a preemption here. Ray itself marks a machine as
preempted only if the machine announces its end to Ray's autoscaler. Most spot machines vanish without notice, and the
head detects only that their nodes have died."""

_RETRY_SECONDS = 0.2

_LOCAL_PATIENCE_SECONDS = 3.0
_CLUSTER_PATIENCE_SECONDS = 45.0
"""Seconds without an answer from Ray after which the run ends: on this machine, and on a cluster, whose head may
recover. Ray itself would end this process after 30 s on this machine, and after 60 s on a cluster."""


class _WorkerActor:
    """Ray actor with a worker, whose outcomes are queued until the driver collects them.

    `run` returns at the end of its bundle; `collect` and `drain` have separate concurrency groups, so that they can be
    called while it runs.
    """

    def __init__(self, start_worker: StartWorker, folder: str) -> None:
        reduce_gc_frequency()
        with suppress(OSError):  # if the folder is missing, opening relative paths fails later with a clear message
            os.chdir(folder)
        self._worker = start_worker()
        self._outcomes: SimpleQueue[_Outcome | Exception] = SimpleQueue()
        self._error: Exception | None = None

    def run(self, bundle: Bundle) -> None:
        try:
            for outcome in self._worker.run(bundle):
                self._outcomes.put(outcome)
        except Exception as error:  # noqa: BLE001 - `collect` raises it after the earlier outcomes
            self._outcomes.put(error)
        else:
            self._outcomes.put(None)

    def collect(self) -> list[_Outcome]:
        """Wait for an outcome, and return all queued outcomes; raise an error only after the outcomes before it."""
        collected_outcomes: list[_Outcome] = []
        while (
            self._error is None
            and len(collected_outcomes) < _MAX_OUTCOMES
            and not (collected_outcomes and self._outcomes.empty())
        ):
            outcome = self._outcomes.get()
            if isinstance(outcome, Exception):
                self._error = outcome
            else:
                collected_outcomes.append(outcome)
        if self._error is not None and not collected_outcomes:
            raise self._error
        return collected_outcomes

    def drain(self) -> None:
        self._worker.drain()


@dataclass
class _Slot:
    """An actor, its queue of bundles, and the pending call of one of its methods.

    The actor computes the first bundle of the queue. The first call returns when the actor has started; all later calls
    return outcomes. `network` is the network of the last submitted bundle.
    """

    actor: Any
    pending_call: Any
    is_started: bool = False
    queue: deque[tuple[Bundle, Any]] = field(default_factory=deque)
    network: tuple[str, ArchitectureId] | None = None

    def has_room(self, window: int) -> bool:
        """Return whether the actor can receive a bundle.

        It must have started. Its queue must be empty, or it must end with a short bundle and have fewer than `window`
        bundles.
        """
        can_queue = not self.queue or (len(self.queue) < window and self.queue[-1][0].seconds <= SHORT_BUNDLE_SECONDS)
        return self.is_started and can_queue

    def run(self, bundle: Bundle) -> None:
        self.network = bundle.network
        self.queue.append((bundle, self.actor.run.remote(bundle)))

    def collect(self) -> None:
        self.pending_call = self.actor.collect.options(concurrency_group="outcomes").remote()


def disable_unused_ray_services() -> None:
    """Disable the autoscaler, log monitor and dashboard server of a Ray head that this process starts.

    Each is a Python process that a local run does not need: the run has a single machine, workers write their own logs,
    and the dashboard is off. Ray has no public option that disables them. If Ray's internals are not as expected,
    nothing is changed.
    """
    # Port 0 means any free port. Ray's default port, 52365, is the same for all Ray instances on a machine.
    replacements = {"no_monitor": True, "include_log_monitor": False, "dashboard_agent_listen_port": 0}
    try:
        from ray._private.node import Node
        from ray._private.parameter import RayParams

        initialise = RayParams.__init__
        parameters = inspect.signature(initialise).parameters.keys()
        server_parameters = inspect.signature(Node.start_api_server).parameters.keys()
    except (ImportError, AttributeError, TypeError, ValueError):
        return
    if replacements.keys() <= parameters and server_parameters == {"self", "include_dashboard", "raise_on_failure"}:
        RayParams.__init__ = functools.partialmethod(initialise, **replacements)
        Node.start_api_server = lambda _node, **_options: None


def _unexpected_error(error: RayTaskError) -> EvaluationError:
    cause = error.cause if isinstance(error.cause, Exception) else error
    message = one_line(cause, 200)
    return EvaluationError(
        f"Running workers failed: one of them raised {type(cause).__name__}: {message}. This is a bug: please report "
        "it. `robust201 status --log` shows the worker's last actions."
    )


class RayExecutor:
    """Computes bundles on Ray actors, each with a short queue of bundles, so that actors never wait for the driver.

    Only actors that have started receive bundles, because a lost machine may be replaced late or never. All other
    bundles wait in the executor until an actor has room. The executor accepts a few more bundles than fit into the
    actors' queues, so that an actor can continue with the network that it has loaded.

    Raises:
        ConfigError: the Ray cluster cannot be reached, or lacks resources for a worker.
    """

    def __init__(self, config: WorkSettings, start_worker: StartWorker, folder: Path) -> None:
        self._precision = config.precision
        self._execution = config.execution
        self._start_worker = start_worker
        self._draining = False
        self._slots: list[_Slot] = []
        self._watch: Watch | None = None
        self._waiting: deque[Bundle] = deque()
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
        local_options: dict[str, Any] = (
            {}
            if address
            else {
                "num_cpus": len(os.sched_getaffinity(0)),
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": str(folder),
            }
        )
        sigterm_handler = signal.getsignal(signal.SIGTERM)
        try:
            if not address:
                disable_unused_ray_services()
            ray.init(
                address=address or "local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **local_options,
            )
        except (ConnectionError, ValueError) as error:
            if not address:
                raise
            raise ConfigError(
                f"Connecting to Ray failed for {address}: {error}. "
                "Check execution.ray_address, or remove it to start Ray on this machine."
            ) from error
        finally:
            signal.signal(signal.SIGTERM, sigterm_handler)  # ray.init installs a handler that ends the process

    def _start_watch(self) -> Watch:
        """Start watching the head and this machine's raylet; if one of them has died, most calls to Ray block."""
        context = ray.get_runtime_context()
        addresses = {"head": parse_address(context.gcs_address)}
        node_id = context.get_node_id()
        for node in ray.nodes():
            if node["NodeID"] == node_id:
                addresses["raylet on this machine"] = node["NodeManagerAddress"], node["NodeManagerPort"]
        is_local = not self._execution.ray_address
        # Through a tunnel or proxy, these addresses may be unreachable from here and cannot be watched.
        addresses = {name: address for name, address in addresses.items() if accepts_connections(address)}
        return Watch(addresses, _LOCAL_PATIENCE_SECONDS if is_local else _CLUSTER_PATIENCE_SECONDS)

    @property
    def _may_grow(self) -> bool:
        """Whether machines may join later: Ray runs on a cluster, and the sweep sets the number of workers."""
        return bool(self._execution.ray_address) and self._execution.workers is not None

    def _uses_gpus(self) -> bool:
        if self._execution.device == "cpu":
            return False
        n_gpus = ray.cluster_resources().get("GPU", 0)
        needs_gpus = self._execution.requires_gpu or self._precision == "tf32"  # CPUs do not support tf32
        if needs_gpus and not n_gpus and not self._may_grow:
            setting = "execution.device cuda" if self._execution.requires_gpu else f"precision {self._precision}"
            raise ConfigError(
                f"Starting workers failed for {setting}: Ray has no GPU. Set execution.device to cpu and precision to "
                "fp32, or start Ray on machines with a GPU."
            )
        return needs_gpus or n_gpus > 0

    def _count_workers(self) -> int:
        resources = ray.cluster_resources()
        max_workers = count_fitting_workers(resources.get("CPU", 0), self._execution.cpus_per_worker)
        if self.gpus_per_worker:
            max_workers = min(max_workers, count_fitting_workers(resources.get("GPU", 0), self.gpus_per_worker))
        n_workers = self._execution.workers or max(max_workers, 1)
        if n_workers > max_workers and not self._may_grow:
            # Otherwise Ray would wait forever for resources for the remaining workers.
            workers = "1 worker" if n_workers == 1 else f"{n_workers} workers"
            remedy = f"Set execution.workers to {max_workers}, or lower" if max_workers > 0 else "Lower"
            raise ConfigError(
                f"Starting {workers} failed: each needs {self._execution.cpus_per_worker:g} CPUs and "
                f"{self.gpus_per_worker:g} GPUs, but Ray has {resources.get('CPU', 0):g} CPUs and "
                f"{resources.get('GPU', 0):g} GPUs in total. {remedy} "
                "execution.cpus_per_worker or execution.gpus_per_worker."
            )
        return n_workers

    def _start_slot(self) -> _Slot:
        actor_class = ray.remote(
            num_cpus=self._execution.cpus_per_worker,
            num_gpus=self.gpus_per_worker,
            max_restarts=0,
            concurrency_groups={"control": 1, "outcomes": 1},
            runtime_env=worker_environment(self._execution),
        )(_WorkerActor)
        # On every machine, the sweep's relative paths are relative to the driver's working directory.
        actor = actor_class.remote(self._start_worker, str(Path.cwd()))
        return _Slot(actor, actor.__ray_ready__.remote())

    def free_slots(self) -> int:
        """Return the number of bundles that can be submitted, including bundles for actors that are still starting."""
        if self._draining:
            return 0
        in_flight = len(self._waiting) + sum(len(slot.queue) for slot in self._slots)
        return max(0, self._execution.window * len(self._slots) + LOOKAHEAD_BUNDLES - in_flight)

    def submit(self, bundle: Bundle) -> None:
        """Accept a bundle; actors with room receive waiting bundles, preferably of the networks they have loaded."""
        self._waiting.append(bundle)
        self._assign_waiting_bundles()

    def _assign_waiting_bundles(self) -> None:
        while self._waiting:
            open_slots = [slot for slot in self._slots if slot.has_room(self._execution.window)]
            if not open_slots:
                return
            slot = min(open_slots, key=lambda candidate: len(candidate.queue))
            slot.run(take_bundle_of_network(self._waiting, slot.network))

    def poll(self, timeout: float) -> list[Event]:
        """Wait for events and return all that have arrived."""
        self._raise_if_ray_lost()
        return self._wait_for_events(timeout)

    def _raise_if_ray_lost(self) -> None:
        silent_process = None if self._watch is None else self._watch.find_silent_process()
        if silent_process is not None:
            raise RayLostError(f"the {silent_process} does not answer")

    def _wait_until_ray_answers(self) -> None:
        """Wait until Ray answers; until then, calls to Ray would block without handling signals."""
        while self._watch is not None and self._watch.probe_all() is not None:
            self._raise_if_ray_lost()
            time.sleep(_RETRY_SECONDS)

    def _wait_for_events(self, timeout: float) -> list[Event]:
        if self._draining and self._waiting:
            # The scheduler only has to know that these bundles are no longer in flight: their parts remain missing.
            events_of_waiting: list[Event] = [BundleDone(bundle) for bundle in self._waiting]
            self._waiting.clear()
            return events_of_waiting
        # Idle actors are also checked: a dead actor must not receive the next bundle, which would be blamed for the
        # actor's death.
        slots = {slot.pending_call: slot for slot in self._slots if slot.is_started or self._waiting}
        if not slots:
            return []
        ready_calls, pending_calls = ray.wait(list(slots), num_returns=1, timeout=timeout)
        if not ready_calls:
            self._raise_delivery_errors()
        elif pending_calls:
            ready_calls += ray.wait(pending_calls, num_returns=len(pending_calls), timeout=0)[0]
        events: list[Event] = []
        for call in ready_calls:
            events.extend(self._receive(slots[call]))
        self._assign_waiting_bundles()
        return events

    def _raise_delivery_errors(self) -> None:
        """Raise the error of a bundle that never reached its worker, because the worker cannot report it."""
        calls = [slot.queue[0][1] for slot in self._slots if slot.queue]
        finished_calls = ray.wait(calls, num_returns=len(calls), timeout=0)[0] if calls else []
        for call in finished_calls:
            with suppress(RayActorError, OutOfMemoryError):  # also reported by `collect`
                ray.get(call)

    def _receive(self, slot: _Slot) -> list[Event]:
        """Return the events of a slot's finished call; if its actor has died, replace the actor."""
        try:
            reply = ray.get(slot.pending_call)
        except RayTaskError as error:
            if isinstance(error.cause, WorkerBrokenError):
                return self._replace(slot, error)
            # Raise the worker's original error, because Ray's message contains a full traceback.
            raise error.cause if isinstance(error.cause, RobustError) else _unexpected_error(error) from error
        except (RayActorError, OutOfMemoryError) as error:  # OutOfMemoryError: Ray's memory monitor killed the worker
            return self._replace(slot, error)
        # Collect again immediately: if the worker dies, outcomes that it has queued are lost and must be recomputed.
        slot.collect()
        outcomes: list[_Outcome] = reply if slot.is_started else []
        slot.is_started = True
        return [BundleDone(slot.queue.popleft()[0]) if outcome is None else outcome for outcome in outcomes]

    def _replace(self, slot: _Slot, error: RayError) -> list[Event]:
        """Replace a slot whose actor is lost, and return an event for each of its bundles, or one for an idle actor."""
        node_lines = [line.strip() for line in str(error).splitlines() if _NODE_DEATH_TEXT in line]
        # An unreachable local actor is dying; on a cluster, its machine or the network most likely failed.
        is_unreachable = isinstance(error, ActorUnavailableError) and self._execution.ray_address is not None
        preempted = bool(getattr(error, "preempted", False) or node_lines or is_unreachable)
        cause = getattr(error, "cause", None)
        messages = node_lines or str(cause or error).strip().splitlines() or ["the worker died"]
        # If a worker fails to start, the error is in the last line, after its traceback.
        reason = messages[-1 if getattr(error, "actor_init_failed", False) else 0]
        self._wait_until_ray_answers()
        ray.kill(slot.actor)  # an unreachable actor may still be alive and occupy its GPU
        loss_events: list[Event] = [
            BundleLost(bundle, was_started=position == 0, preempted=preempted, reason=reason)
            for position, (bundle, _) in enumerate(slot.queue)
        ]
        index = self._slots.index(slot)
        self._slots[index : index + 1] = [] if self._draining else [self._start_slot()]
        return loss_events or [WorkerLost(preempted, reason)]

    def drain(self) -> None:
        self._draining = True
        for slot in self._slots:
            slot.actor.drain.options(concurrency_group="control").remote()

    def close(self) -> None:
        """End the actors and the connection; also end Ray if this executor started it."""
        is_lost = self._watch is not None and (self._watch.find_silent_process() or self._watch.probe_all()) is not None
        if self._watch is not None:
            self._watch.stop()
        if not is_lost:  # without Ray, each of these calls would block
            for slot in self._slots:
                ray.kill(slot.actor)
        self._slots = []
        ray.shutdown()
