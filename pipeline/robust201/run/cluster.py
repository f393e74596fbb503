"""Workers on Ray: one actor per worker, and one call per part."""

import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Generic, NamedTuple

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)

from robust201.core.errors import ConfigError, EvaluationError, RayLostError, RobustError, WorkerBrokenError, one_line
from robust201.core.precision import Precision
from robust201.run.environment import worker_environment
from robust201.run.work import Outcome, PartT, StartWorker
from robust201.sweep.config import ExecutionSection

SHORT_PART_SECONDS = 10.0
"""Duration of parts below which a worker gets a second part in advance, so that it need not wait for the driver."""

_OBJECT_STORE_BYTES = 128 << 20  # only parts and outcomes pass through Ray
_NODE_DEATH_TEXT = "its node has died"
"""Text of Ray's error if a machine is lost. Most spot machines vanish without notice, and Ray then reports this."""


class FinishedPart(NamedTuple):
    """A worker has returned the outcome of a part."""

    part: Any
    outcome: Outcome


class LostWorker(NamedTuple):
    """A worker is lost. `parts` is its queue, beginning with the part that it was computing."""

    parts: list[Any]
    preempted: bool
    reason: str


class _Actor:
    """Ray actor with a worker. The worker starts in a call, so that its errors are reported like those of other calls.

    `stop` has its own concurrency group, so that it can be called during `compute`.
    """

    def __init__(self) -> None:
        self._stopped = Event()

    def start(self, start_worker: StartWorker, folder: str) -> None:
        with suppress(OSError):  # opening relative paths will fail with a clear message
            os.chdir(folder)
        self._worker = start_worker()

    def compute(self, part: Any) -> Outcome:
        return self._worker.compute(part, self._stopped.is_set)

    def stop(self) -> None:
        self._stopped.set()


@dataclass
class _Slot(Generic[PartT]):
    """An actor and its pending calls: its start (with None), or the computations of parts (with the parts)."""

    actor: Any
    calls: deque[tuple[Any, PartT | None]]
    network: Hashable = None
    seconds: float = SHORT_PART_SECONDS

    def has_room(self) -> bool:
        is_starting = bool(self.calls) and self.calls[0][1] is None
        return not is_starting and len(self.calls) < (2 if self.seconds < SHORT_PART_SECONDS else 1)

    def submit(self, part: PartT) -> None:
        self.network = part.network
        self.calls.append((self.actor.compute.remote(part), part))


@dataclass
class Cluster(Generic[PartT]):
    """Workers on a Ray cluster, or on a local Ray that is started for the run.

    Args:
        execution: section of the YAML.
        precision: arithmetic that the workers' devices must support.
        start_worker: function that starts a worker in its process; small, because it is pickled for each worker.
        folder: private folder for a local Ray.

    Raises:
        ConfigError: Ray cannot be reached, or lacks the resources for the workers.
        RayLostError: Ray cannot be started.
    """

    execution: ExecutionSection
    precision: Precision
    start_worker: StartWorker
    folder: Path
    _slots: list[_Slot[PartT]] = field(default_factory=list)

    def __post_init__(self) -> None:
        _connect(self.execution, self.folder)
        self.gpus_per_worker = self.execution.gpus_per_worker if self._uses_gpus() else 0.0
        self._slots += [self._start_slot() for _ in range(self._count_workers())]

    @property
    def n_in_flight(self) -> int:
        return sum(part is not None for slot in self._slots for _, part in slot.calls)

    @property
    def n_busy(self) -> int:
        """Number of workers that are computing."""
        return sum(any(part is not None for _, part in slot.calls) for slot in self._slots)

    @property
    def _cluster_may_grow(self) -> bool:
        return bool(self.execution.ray_address) and self.execution.workers is not None

    def _uses_gpus(self) -> bool:
        n_gpus, execution = ray.cluster_resources().get("GPU", 0), self.execution
        needs_gpu = execution.requires_gpu or self.precision == "tf32"
        if execution.device != "cpu" and needs_gpu and not n_gpus and not self._cluster_may_grow:
            raise ConfigError(
                f"Starting workers failed for execution.device {execution.device} and precision {self.precision}: Ray "
                "has no GPU. Set device to cpu and precision to fp32, or start Ray on machines with a GPU."
            )
        return execution.device != "cpu" and (needs_gpu or n_gpus > 0)

    def _count_workers(self) -> int:
        resources, execution = ray.cluster_resources(), self.execution
        required = {"CPU": execution.cpus_per_worker, "GPU": self.gpus_per_worker}
        n_fitting = min(int(resources.get(name, 0) / amount + 1e-9) for name, amount in required.items() if amount)
        n_workers = execution.workers or max(n_fitting, 1)
        if n_workers > n_fitting and not self._cluster_may_grow:
            raise ConfigError(
                f"Starting workers failed for execution.workers {n_workers}: Ray's resources suffice for {n_fitting} "
                f"workers with {required['CPU']:g} CPUs and {required['GPU']:g} GPUs each. Lower these numbers."
            )
        return n_workers

    def _start_slot(self) -> _Slot[PartT]:
        actor_class = ray.remote(
            num_cpus=self.execution.cpus_per_worker,
            num_gpus=self.gpus_per_worker,
            max_restarts=0,
            concurrency_groups={"control": 1},
            runtime_env=worker_environment(self.execution),
        )(_Actor)
        actor = actor_class.remote()
        return _Slot(actor, deque([(actor.start.remote(self.start_worker, str(Path.cwd())), None)]))

    def fill(self, take: Callable[[Hashable], PartT | None]) -> None:
        """Give parts to workers with room, shortest queue first; `take` returns the next part for a loaded network."""
        for slot in sorted(self._slots, key=lambda slot: len(slot.calls)):
            while slot.has_room() and (part := take(slot.network)) is not None:
                slot.submit(part)

    def wait(self, seconds: float) -> list[FinishedPart | LostWorker]:
        """Wait for outcomes and losses, and replace lost workers.

        Raises:
            ConfigError: Ray cannot start workers as configured.
            RobustError: a worker could not start or write its results, so the run must stop.
            RayLostError: Ray was lost.
        """
        slots = {slot.calls[0][0]: slot for slot in self._slots if slot.calls}
        try:
            ready, _ = ray.wait(list(slots), num_returns=1, timeout=seconds)
            if ready:
                ready, _ = ray.wait(list(slots), num_returns=len(slots), timeout=0)
            events = [event for call in ready if (event := self._receive(slots[call])) is not None]
            if any(slot.calls and slot.calls[0][1] is None for slot in self._slots):
                self._check_node()
        except (RuntimeEnvSetupError, ActorUnschedulableError) as error:
            raise ConfigError(
                f"Starting workers failed for Ray: {one_line(error, 500)}. Correct the section `execution` or the "
                "cluster, and run the same command again."
            ) from error
        except RayError as error:
            raise _ray_lost_error(error) from error
        return events

    def _check_node(self) -> None:
        """Check that this process's raylet is alive; without it, workers would never finish starting."""
        driver_node = ray.get_runtime_context().get_node_id()
        if not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == driver_node):
            raise _ray_lost_error(RuntimeError("the raylet of the driver is dead"))

    def _receive(self, slot: _Slot[PartT]) -> FinishedPart | LostWorker | None:
        call, part = slot.calls[0]
        try:
            outcome = ray.get(call)
        except RayTaskError as error:
            if isinstance(error.cause, WorkerBrokenError):
                return self._replace(slot, error)
            raise error.cause if isinstance(error.cause, RobustError) else _unexpected_error(error) from error
        except (RayActorError, OutOfMemoryError) as error:
            return self._replace(slot, error)
        slot.calls.popleft()
        if part is None:
            return None
        slot.seconds = outcome.seconds
        return FinishedPart(part, outcome)

    def _replace(self, slot: _Slot[PartT], error: RayError) -> LostWorker:
        is_unreachable = isinstance(error, ActorUnavailableError) and self.execution.ray_address is not None
        preempted = bool(getattr(error, "preempted", False)) or _NODE_DEATH_TEXT in str(error) or is_unreachable
        ray.kill(slot.actor)  # an unreachable actor may still be alive and occupy a GPU
        self._slots[self._slots.index(slot)] = self._start_slot()
        reason = one_line(getattr(error, "cause", None) or error)
        return LostWorker([part for _, part in slot.calls if part is not None], preempted, reason)

    def stop(self) -> None:
        """Ask all workers to end their parts early, if the parts allow it."""
        for slot in self._slots:
            slot.actor.stop.options(concurrency_group="control").remote()

    def close(self) -> None:
        """End the workers and the connection, and Ray itself if it was started for this run."""
        for slot in self._slots:
            ray.kill(slot.actor)
        self._slots = []
        ray.shutdown()


def _unexpected_error(error: RayTaskError) -> EvaluationError:
    cause = error.cause if isinstance(error.cause, Exception) else error
    return EvaluationError(
        f"Running workers failed: one of them raised {type(cause).__name__}: {one_line(cause, 200)}. This is a bug: "
        "please report it."
    )


def _ray_lost_error(error: Exception) -> RayLostError:
    return RayLostError(
        f"Running workers failed for Ray: Ray was lost ({one_line(error, 200)}). Finished work is kept; run the same "
        "command again."
    )


def _connect(execution: ExecutionSection, folder: Path) -> None:
    """Connect to the cluster of the YAML, or start Ray on this machine."""
    address = execution.ray_address
    local_options: dict[str, Any] = {
        "num_cpus": len(os.sched_getaffinity(0)),
        "object_store_memory": _OBJECT_STORE_BYTES,
        "_temp_dir": str(folder / "r"),  # a short name, because the paths of sockets have a maximum length
    }
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address or "local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else local_options),
        )
    except Exception as error:
        if not address:
            raise _ray_lost_error(error) from error
        raise ConfigError(
            f"Connecting to Ray failed for {address}: {one_line(error)}. Check execution.ray_address, or remove it to "
            "start Ray on this machine."
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # ray.init installs a handler that ends the process
