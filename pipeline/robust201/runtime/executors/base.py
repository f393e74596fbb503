"""Interface between the scheduler and executors.

An executor computes bundles and reports events. A bundle has parts of one network and dataset, which one worker
computes in order; a part is a range of images at some strengths of a key, or a training run. The scheduler
(`runtime.scheduler`) decides which parts are retried, which of these are alone in their bundle, and which parts count
as failed. Only shards record which results are complete.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, Bundle, Receipt, UnitFailure
from robust201.sweep.config import ExecutionSection


@dataclass(frozen=True, slots=True)
class BundleDone:
    """A worker has finished a bundle, after reporting its receipts and failures."""

    bundle: Bundle


@dataclass(frozen=True, slots=True)
class BundleLost:
    """A bundle's worker died or was preempted before the bundle was finished.

    Attributes:
        bundle: the bundle as it was submitted; receipts that were reported earlier remain valid.
        was_started: whether the worker had started the bundle; a bundle that was still waiting cannot have caused the
            worker's death.
        preempted: True if the machine was preempted, False if the worker died.
        reason: reason of the loss, in one line.
    """

    bundle: Bundle
    was_started: bool
    preempted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker without a bundle died, was preempted or could not start; `reason` is the reason in one line."""

    preempted: bool
    reason: str


SHORT_BUNDLE_SECONDS = 10.0
"""Maximum estimated time of a bundle behind which another bundle may be queued for the same worker. The queued bundle
keeps the worker busy for the milliseconds until the driver submits the next one. Behind a longer bundle, it would wait
although other workers might be idle."""

LOOKAHEAD_BUNDLES = 64
"""Number of bundles that an executor accepts beyond its workers' queues, so that a worker can often continue
with the network that it has loaded."""


def count_fitting_workers(amount: float, amount_per_worker: float) -> int:
    """Return the number of workers for which an amount of a resource suffices."""
    return int(amount / amount_per_worker + 1e-9)


def take_bundle_of_network(waiting: deque[Bundle], network: tuple[str, ArchitectureId] | None) -> Bundle:
    """Remove and return the first waiting bundle of `network`, or the first waiting bundle if none is of `network`."""
    index = next((index for index, bundle in enumerate(waiting) if bundle.network == network), 0)
    bundle = waiting[index]
    del waiting[index]
    return bundle


Event = Receipt | UnitFailure | BundleDone | BundleLost | WorkerLost


class WorkSettings(Protocol):
    """Settings that executors read from a sweep or from a YAML of training runs."""

    @property
    def execution(self) -> ExecutionSection:
        """The section `execution`."""

    @property
    def precision(self) -> Precision:
        """Precision of the arithmetic, which the device must support."""

    @property
    def results(self) -> Path:
        """Results folder, in which the run writes its logs."""


class BundleWorker(Protocol):
    """Worker that computes bundles in the process that created it, such as `runtime.worker.Worker`."""

    def run(self, bundle: Bundle) -> Iterator[Receipt | UnitFailure]:
        """Compute a bundle part by part; yield a receipt for each committed shard and a failure for each failed part.

        Raises:
            StorageError: results cannot be written; the run must stop.
            WorkerBrokenError: this process cannot continue.
        """

    def drain(self) -> None:
        """Stop after the part in progress; may be called from another thread."""


StartWorker = Callable[[], BundleWorker]
"""Function that creates a worker. It is pickled and sent to the worker's process, so it must not
refer to large objects."""


class Executor(Protocol):
    """Computes bundles with one or more workers.

    Attributes:
        gpus_per_worker: number of GPUs per worker; 0 if workers compute on CPUs.
        n_workers: number of workers, including those waiting for a machine.
    """

    gpus_per_worker: float
    n_workers: int

    def free_slots(self) -> int:
        """Return the number of bundles that can be submitted now."""

    def submit(self, bundle: Bundle) -> None:
        """Accept a bundle, without blocking on its computation."""

    def poll(self, timeout: float) -> list[Event]:
        """Wait for events and return them in order; the list may be empty.

        Waits at most `timeout` seconds, unless the executor computes in this process.

        Raises:
            StorageError: a worker could not write; the run must stop.
        """

    def drain(self) -> None:
        """Ask workers to stop after the part in progress; bundles that have not started are reported as done."""

    def close(self) -> None:
        """Release all workers; may be called more than once."""
