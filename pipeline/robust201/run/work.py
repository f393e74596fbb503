"""Interface between a run's driver and its computations: parts, workers that compute them, and outcomes.

Sweeps (`run.sweep`) and training runs (`run.trainings`) implement `Work`; driver, guard and cluster depend on neither.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from robust201.core.precision import Precision
from robust201.sweep.config import ExecutionSection

Say = Callable[[str], None]
ShouldStop = Callable[[], bool]


class WorkPart(Protocol):
    """A part, which one call of a worker computes."""

    @property
    def id(self) -> Hashable:
        """Identifier of the part."""

    @property
    def label(self) -> str:
        """Display name."""

    @property
    def network(self) -> Hashable:
        """Identifier of the network, which a worker keeps loaded between parts."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Fields that identify the part in events."""


PartT = TypeVar("PartT", bound=WorkPart)
PartT_contra = TypeVar("PartT_contra", bound=WorkPart, contravariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of computing a part.

    Attributes:
        label: the part, for messages.
        strengths: stored strengths, or the steps of stored snapshots.
        seconds: wall time.
        failure: one line about the error; empty if there was none.
        notices: warnings for the user.
        blocks_network: whether no result of the network can be trusted, so that its other parts must not be computed.
    """

    label: str
    strengths: tuple[float, ...] = ()
    seconds: float = 0.0
    failure: str = ""
    notices: tuple[str, ...] = ()
    blocks_network: bool = False


class PartWorker(Protocol[PartT_contra]):
    """Object that computes parts in a worker's process."""

    def compute(self, part: PartT_contra, should_stop: ShouldStop) -> Outcome:
        """Compute a part, which may save its state and end early once `should_stop` returns True."""

    def close(self) -> None:
        """Record the end of the worker."""


StartWorker = Callable[..., PartWorker[Any]]
"""Function that starts a worker in its process; its argument is the token of the run (`store.events.Events.run`)."""


class Work(ABC, Generic[PartT]):
    """Computation of a run. Its plan and inputs are stored before the run, so that workers can start anywhere.

    Attributes:
        execution: section of the YAML.
        precision: arithmetic that the workers' devices must support.
        role: role of the driver in events: ``driver``, or ``share`` if it computes one share of a sweep.
        folder: folder of events, which all workers see.
        parts: the missing parts, in order, grouped by network (in a share, corruptions form groups of their own).
        n_planned: number of evaluations (for training runs: epochs), finished or not.
        n_done: number of finished evaluations or epochs; `finish` updates it.
        start_worker: function that starts a worker in its process; small, because it is pickled for each worker.
    """

    execution: ExecutionSection
    precision: Precision
    role: str = "driver"
    folder: Path
    parts: Iterable[PartT]
    n_planned: int
    n_done: int
    start_worker: StartWorker

    @abstractmethod
    def find_stored(self, part: PartT) -> Outcome | None:
        """Return the outcome of a part whose worker was lost after it had stored everything; else None."""

    @abstractmethod
    def finish(self, part: PartT, outcome: Outcome) -> Sequence[PartT]:
        """Record the outcome of a part, and return the parts that can begin now because of it."""

    def end(self, say: Say) -> None:
        """Record the end of the run; may update `n_done`, and print messages with `say`."""

    @abstractmethod
    def seconds_left(self, n_workers: int) -> float | None:
        """Return the estimated time until the work is complete, None if it is unknown; may update `n_done`."""


@dataclass
class Tally:
    """Progress of a run.

    Attributes:
        n_planned: see `Work`.
        n_done_before: number of evaluations (or epochs) that were finished before the run.
        n_done: number of finished evaluations (or epochs).
        n_parts: number of parts with an outcome.
        seconds: worker time of all parts.
        failures: outcomes with a failure.
        n_died: number of workers that died, not counting the `n_preempted` ones that were lost with their machines.
        is_drained: whether a signal stopped the run before its work was complete.
        is_out_of_time: whether that signal was SIGUSR1, which announces a time limit.
        n_abandoned: number of parts that did not end within `drain_seconds`.
    """

    n_planned: int
    n_done_before: int
    n_done: int = 0
    n_parts: int = 0
    seconds: float = 0.0
    failures: list[Outcome] = field(default_factory=list)
    n_died: int = 0
    n_preempted: int = 0
    is_drained: bool = False
    is_out_of_time: bool = False
    n_abandoned: int = 0

    @classmethod
    def of(cls, work: Work[Any]) -> "Tally":
        return cls(work.n_planned, work.n_done, work.n_done)

    @property
    def is_complete(self) -> bool:
        return self.n_done == self.n_planned

    def count(self, outcome: Outcome, n_done: int) -> None:
        """Count a part, after which `n_done` evaluations are finished."""
        self.n_done = n_done
        self.n_parts += 1
        self.seconds += outcome.seconds
        if outcome.failure:
            self.failures.append(outcome)


OnProgress = Callable[[Tally, float | None], None]
"""Function of the tally and the estimated seconds left, called after each outcome and, on Ray, about every second."""
