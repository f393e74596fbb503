"""What every executor promises the scheduler.

An executor computes bundles and reports events. It decides nothing: retries, isolation and failures are the scheduler's
(`runtime.scheduler`), what is done is the shards'.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, Bundle, Receipt, UnitFailure
from robust201.planning.config import ExecutionSection
from robust201.runtime.metrics import Metrics


@dataclass(frozen=True, slots=True)
class BundleDone:
    """A worker went through a whole bundle; its receipts and failures came before."""

    bundle: Bundle


@dataclass(frozen=True, slots=True)
class BundleLost:
    """A bundle's worker died or was taken away before the bundle was done.

    Attributes:
        bundle: the bundle as it was submitted; receipts that came before still hold.
        started: whether the worker had begun it. A bundle that only waited behind another is not to blame.
        preempted: whether the machine was taken away, rather than the worker killed.
        reason: one line.
    """

    bundle: Bundle
    started: bool
    preempted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died, was taken away or could not start before it was given a bundle; `reason` is one line."""

    preempted: bool
    reason: str


SHORT_SECONDS = 10.0
"""Estimated time of a bundle behind which another may wait for the same worker. It bridges the milliseconds until the
driver gives the next one; behind a longer one it would wait while other workers are idle."""

LOOKAHEAD = 64
"""Bundles that an executor takes beyond those it has workers for, so that a worker can go on with its network."""


def fitting_workers(amount: float, per_worker: float) -> int:
    """Return the number of workers that a resource suffices for: a GPU for three that take a third of it each."""
    return int(amount / per_worker + 1e-9)


def take_for(held: deque[Bundle], network: tuple[str, ArchitectureId] | None) -> Bundle:
    """Take the first bundle of a network that a worker has loaded, or else the first of all."""
    place = next((place for place, bundle in enumerate(held) if bundle.network == network), 0)
    bundle = held[place]
    del held[place]
    return bundle


Event = Receipt | UnitFailure | BundleDone | BundleLost | WorkerLost


class WorkSettings(Protocol):
    """What executors read of a sweep or of trainings."""

    @property
    def execution(self) -> ExecutionSection:
        """How the work is done."""

    @property
    def precision(self) -> Precision:
        """The arithmetic, which not every device has."""

    @property
    def results(self) -> Path:
        """The folder of the run's logs."""


class BundleWorker(Protocol):
    """Computes bundles in the process that made it, as `runtime.worker.Worker` does."""

    def run(self, bundle: Bundle) -> Iterator[Receipt | UnitFailure]:
        """Compute a bundle part by part: a receipt for each committed shard, a failure for each part that failed.

        Raises:
            StorageError: results cannot be written; the run must stop.
            WorkerBrokenError: this process can compute nothing any more.
        """

    def drain(self) -> None:
        """Stop after the part in progress; called from another thread."""


StartWorker = Callable[[Metrics], BundleWorker]
"""Makes a worker where it is called, with a place for its numbers for monitoring. It travels there as a pickle, so it
says no more than how."""


class Executor(Protocol):
    """Computes bundles somewhere.

    Attributes:
        metrics: where numbers for monitoring go.
        gpus_per_worker: GPUs that a worker occupies; 0 where it computes on a CPU.
        n_workers: workers, those that wait for their machine among them.
    """

    metrics: Metrics
    gpus_per_worker: float
    n_workers: int

    def free_slots(self) -> int:
        """How many more bundles it would take now."""

    def submit(self, bundle: Bundle) -> None:
        """Take a bundle; never blocks on its computation."""

    def poll(self, timeout: float) -> list[Event]:
        """Wait for events, `timeout` seconds at most unless it computes meanwhile; give them in order, if any came.

        Raises:
            StorageError: a worker could not write; the run must stop.
        """

    def drain(self) -> None:
        """Ask the workers to stop after the part in progress; bundles not begun come back as done at once."""

    def close(self) -> None:
        """Release every worker; safe to call twice."""
