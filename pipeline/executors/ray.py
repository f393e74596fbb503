"""The executor on Ray actors: one actor a worker, on this machine or a cluster."""

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, RayError, RayTaskError

from pipeline.errors import ConfigError, EvaluationError, StorageError, WorkerBrokenError
from pipeline.executors.base import BundleDone, BundleLost, Event, WorkerLost
from pipeline.executors.ray_metrics import RayMetrics
from pipeline.executors.watch import Watch, parse_address
from pipeline.metrics import Metrics
from pipeline.records import Bundle, Receipt, UnitFailure
from pipeline.worker import Worker, WorkerSettings

# Only receipts of a few hundred bytes pass through Ray, so its object store can be the smallest it takes.
_OBJECT_STORE_BYTES = 128 << 20

_LOCAL_HEAD_SECONDS = 30
"""After this long without an answer from a head on this machine, Ray ends its own processes, and the driver's."""

_NODE_DIED = "its node has died"
"""How Ray's ActorDiedError says that a machine is gone with its actors. Only machines that announced their end to Ray's
autoscaler are marked as preempted; those that vanish, as spot machines mostly do, are found missing by the head."""

_ASK_SECONDS = 0.2

_LOCAL_PATIENCE_SECONDS = 3.0
_CLUSTER_PATIENCE_SECONDS = 45.0
"""How long Ray may be silent before the run ends. Ray itself would end the driver's process with an exit code of its
own, here after `_LOCAL_HEAD_SECONDS`, on a cluster, whose head may come back, after 60 s."""


class _OwnProcessGroup:
    """Puts processes that are started meanwhile into groups of their own.

    A signal to the driver's group (Ctrl-C, a batch system's SIGTERM) would otherwise end Ray on this machine while the
    driver drains, and the driver with it. Python runs this hook in the child because Ray passes a `preexec_fn`. The
    children still end with the driver: Ray binds them to its life.
    """

    def __init__(self) -> None:
        self._wanted = False
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        if self._wanted:
            os.setpgid(0, 0)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._wanted = True
        try:
            yield
        finally:
            self._wanted = False


_own_process_group = _OwnProcessGroup()


class _WorkerActor:
    """A worker in a process of its own. `drain` has its own concurrency group, so that it gets through meanwhile."""

    def __init__(self, settings: WorkerSettings, folder: str) -> None:
        with suppress(OSError):  # where it is absent, relative paths fail with a message of their own
            os.chdir(folder)
        self._worker = Worker(settings, RayMetrics())

    def run(self, bundle: Bundle) -> Iterator[Receipt | UnitFailure]:
        yield from self._worker.run(bundle)

    def drain(self) -> None:
        self._worker.drain()


@dataclass
class _Slot:
    """An actor and the bundles it was given, first the one it computes; `starting` until it is up."""

    actor: Any
    starting: Any
    queue: deque[tuple[Bundle, Any]] = field(default_factory=deque)


class RayExecutor:
    """Computes bundles on Ray actors, each with a small window of bundles so that it never waits for the driver.

    Args:
        settings: handed to every worker.

    Raises:
        ConfigError: the Ray cluster cannot be reached, or offers no worker the resources it needs.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.metrics: Metrics = RayMetrics()
        self._settings = settings
        self._execution = settings.config.execution
        self._draining = False
        self._owns_ray = not ray.is_initialized()
        self._slots: list[_Slot] = []
        self._watch: Watch | None = None
        try:
            if self._owns_ray:
                self._start_ray()
                self._watch = self._start_watch()
            self.gpus_per_worker = self._execution.gpus_per_worker if self._uses_gpus() else 0
            for _ in range(self._count_workers()):
                self._slots.append(self._start_slot())
        except BaseException:
            self.close()
            raise

    def _start_ray(self) -> None:
        address = self._execution.ray_address
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # reports go to a server outside
        if not address:
            # A head on this machine that stops answering is dead; on a cluster it may come back, so Ray's wait holds.
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_LOCAL_HEAD_SECONDS))
        local: dict[str, Any] = (
            {} if address else {"num_cpus": self._local_cpus(), "object_store_memory": _OBJECT_STORE_BYTES}
        )
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            with _own_process_group():
                ray.init(
                    address=address or "local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **local,
                )
        except (ConnectionError, ValueError) as error:
            raise ConfigError(
                f"Connecting to Ray failed for {address}: expected a running cluster, got {error}. "
                "Check execution.ray_address, or leave it out to start Ray on this machine."
            ) from error
        except SystemExit as error:
            raise KeyboardInterrupt from error  # what its handler of SIGTERM makes of it
        finally:
            if threading.current_thread() is threading.main_thread():
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
        return Watch(addresses, _LOCAL_PATIENCE_SECONDS if is_local else _CLUSTER_PATIENCE_SECONDS)

    def _local_cpus(self) -> int:
        wanted = (self._execution.workers or 0) * self._execution.cpus_per_worker
        return max(len(os.sched_getaffinity(0)), int(-(-wanted // 1)))

    @property
    def _may_grow(self) -> bool:
        """Whether machines may join later: a cluster of others, and the sweep says for how many workers."""
        return bool(self._execution.ray_address) and self._execution.workers is not None

    def _uses_gpus(self) -> bool:
        if self._execution.device == "cpu":
            return False
        gpus = ray.cluster_resources().get("GPU", 0)
        precision = self._settings.config.precision
        needs_gpus = self._execution.device == "cuda" or precision == "tf32"  # which no CPU has
        if needs_gpus and not gpus and not self._may_grow:
            what = "execution.device cuda" if self._execution.device == "cuda" else f"precision {precision}"
            raise ConfigError(
                f"Starting workers failed for {what}: expected a GPU in Ray, got none. "
                "Choose another device or precision, or start Ray on machines with a GPU."
            )
        return needs_gpus or gpus > 0

    def _count_workers(self) -> int:
        resources = ray.cluster_resources()
        by_cpu = resources.get("CPU", 0) / self._execution.cpus_per_worker
        by_gpu = resources.get("GPU", 0) / self.gpus_per_worker if self.gpus_per_worker else by_cpu
        room = int(min(by_cpu, by_gpu) + 1e-9)  # three times a third of a GPU is one
        wanted = self._execution.workers or max(room, 1)
        if wanted > room and not self._may_grow:
            # Ray would let the others wait for ever, and with them the bundles that they were given.
            raise ConfigError(
                f"Starting workers failed for {wanted} of them: expected {self._execution.cpus_per_worker:g} CPUs "
                f"and {self.gpus_per_worker:g} GPUs each, got {resources.get('CPU', 0):g} CPUs and "
                f"{resources.get('GPU', 0):g} GPUs in all. "
                "Lower execution.workers, execution.cpus_per_worker or execution.gpus_per_worker."
            )
        return wanted

    def _start_slot(self) -> _Slot:
        threads = str(self._execution.threads)
        actor_class = ray.remote(
            num_cpus=self._execution.cpus_per_worker,
            num_gpus=self.gpus_per_worker,
            max_restarts=0,
            concurrency_groups={"control": 1},
            runtime_env={"env_vars": {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}},
        )(_WorkerActor)
        # Relative paths of the sweep start where the driver stands, on every machine.
        actor = actor_class.remote(self._settings, str(Path.cwd()))
        return _Slot(actor, actor.__ray_ready__.remote())

    def _up(self) -> list[_Slot]:
        """Actors that have started: one that waits for a machine, perhaps for ever, must be given nothing."""
        return [slot for slot in self._slots if slot.starting is None]

    def free_slots(self) -> int:
        """Places left in the windows of the actors that are up."""
        if self._draining:
            return 0
        return sum(max(0, self._execution.window - len(slot.queue)) for slot in self._up())

    def submit(self, bundle: Bundle) -> None:
        """Give a bundle to the actor with the shortest queue."""
        slot = min(self._up(), key=lambda candidate: len(candidate.queue))
        stream = slot.actor.run.options(num_returns="streaming").remote(bundle)
        slot.queue.append((bundle, stream))

    def poll(self, timeout: float) -> list[Event]:
        """Wait for receipts; one event a ready actor.

        Raises:
            EvaluationError: Ray itself is gone.
            StorageError: a worker could not write.
        """
        self._raise_if_gone()
        try:
            return self._wait_for_events(timeout)
        except SystemError as error:
            # What a signal's handler raised in the middle of Ray's compiled code comes out as the cause of this.
            raise error.__cause__ or error from None

    def _raise_if_gone(self) -> None:
        silent = None if self._watch is None else self._watch.silent()
        if silent is not None:
            raise EvaluationError(
                f"Running workers failed for Ray at {self._execution.ray_address or 'this machine'}: expected the "
                f"{silent} to answer, got silence. Finished work is kept; run the same command again to go on."
            )

    def _wait_for_ray(self) -> None:
        """Return once Ray answers: what is about to be called would wait for it where no signal gets through."""
        while self._watch is not None and self._watch.unanswered() is not None:
            self._raise_if_gone()
            time.sleep(_ASK_SECONDS)

    def _wait_for_events(self, timeout: float) -> list[Event]:
        starting = {slot.starting: slot for slot in self._slots if slot.starting is not None}
        streams = {slot.queue[0][1]: slot for slot in self._slots if slot.queue}
        if not starting and not streams:
            return []
        ready, _ = ray.wait([*starting, *streams], num_returns=1, timeout=timeout, fetch_local=False)
        events: list[Event] = []
        for reference in ready:
            if reference in starting:
                events.extend(self._finish_start(starting[reference]))
            else:
                events.extend(self._advance(streams[reference]))
        return events

    def _finish_start(self, slot: _Slot) -> list[Event]:
        try:
            ray.get(slot.starting)
        except (RayActorError, OutOfMemoryError) as error:
            return self._replace(slot, error)
        slot.starting = None
        return []

    def _advance(self, slot: _Slot) -> list[Event]:
        bundle, stream = slot.queue[0]
        try:
            return [ray.get(next(stream))]
        except StopIteration:
            slot.queue.popleft()
            return [BundleDone(bundle)]
        except RayTaskError as error:
            if isinstance(error.cause, WorkerBrokenError):
                return self._replace(slot, error)
            # The worker's own error: Ray's rendering of it is a whole traceback.
            raise error.cause if isinstance(error.cause, StorageError) else error from error
        except (RayActorError, OutOfMemoryError) as error:  # Ray's memory monitor does not call its kills actor errors
            return self._replace(slot, error)

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
        self._slots[self._slots.index(slot)] = self._start_slot()
        return lost or [WorkerLost(preempted, reason)]

    def drain(self) -> None:
        """Tell every actor to stop after its part."""
        self._draining = True
        for slot in self._slots:
            slot.actor.drain.options(concurrency_group="control").remote()

    def close(self) -> None:
        """End the actors, and Ray where this executor started it."""
        is_gone = self._watch is not None and (self._watch.silent() or self._watch.unanswered()) is not None
        if self._watch is not None:
            self._watch.stop()
        if not is_gone:  # a Ray that is gone would let each of these calls wait
            for slot in self._slots:
                ray.kill(slot.actor)
        self._slots = []
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()
