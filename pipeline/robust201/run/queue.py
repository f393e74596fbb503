"""The queue of a run, which gives parts to workers and retries the parts of lost workers."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic

from robust201.core.errors import EvaluationError
from robust201.run.work import PartT

MAX_DEATHS_WITHOUT_RESULT = 20
"""Maximum number of consecutive deaths of workers, each on another part or on none; more suggest faulty machines."""


class PartQueue(Generic[PartT]):
    """Distributes parts by network, so that a worker keeps its network loaded.

    A part that kills its worker `max_attempts` times counts as failed. Parts of preempted machines are retried without
    limit.

    Args:
        parts: the parts, grouped by network; they are taken network by network.
        max_attempts: number of deaths after which a part counts as failed.
    """

    def __init__(self, parts: Iterable[PartT], max_attempts: int) -> None:
        self._blocked: set[Hashable] = set()
        self._source: Iterator[PartT] = (part for part in parts if part.network not in self._blocked)
        self._next: PartT | None = next(self._source, None)
        self._waiting: dict[Hashable, deque[PartT]] = {}
        self._max_attempts = max_attempts
        self._deaths: Counter[Hashable] = Counter()
        self._deaths_without_result = 0

    def take(self, network: Hashable = None) -> PartT | None:
        """Return the next part for a worker that has loaded `network` (None: no network); None if no part is waiting.

        If the network has no more parts, the worker gets a new network; if no new network is left, it gets a part of
        the network that has the most waiting parts.
        """
        if network not in self._waiting and self._next is not None:
            network = self._read_network(self._next)
        elif network not in self._waiting:
            network = max(self._waiting, key=lambda name: len(self._waiting[name]), default=None)
        parts = self._waiting.get(network)
        if not parts:
            return None
        part = parts.popleft()
        if not parts:
            del self._waiting[network]
        return part

    def _read_network(self, first: PartT) -> Hashable:
        """Read the parts of the next network."""
        network, part = first.network, first
        waiting = self._waiting.setdefault(network, deque())
        while True:
            waiting.append(part)
            self._next = next(self._source, None)
            if self._next is None or self._next.network != network:
                return network
            part = self._next

    @property
    def is_empty(self) -> bool:
        """Whether no part is waiting; parts in progress may still be queued again."""
        return self._next is None and not self._waiting

    def succeed(self, parts: Iterable[PartT] = ()) -> None:
        """Record that a worker returned a result, and queue the `parts` that can begin now because of it."""
        self._deaths_without_result = 0
        for part in parts:
            self._queue_of(part.network).append(part)

    def block(self, network: Hashable) -> None:
        """Drop all remaining and future parts of a network."""
        self._blocked.add(network)
        self._waiting.pop(network, None)
        if self._next is not None and self._next.network == network:
            self._next = next(self._source, None)

    def lose(self, parts: Sequence[PartT], *, reason: str, preempted: bool) -> PartT | None:
        """Queue the parts of a lost worker again. The first one is the part that the worker was computing.

        Returns:
            The first part if it has now failed, because it killed its worker too often; else None.

        Raises:
            EvaluationError: too many workers died without a result.
        """
        if preempted:
            self._put_back(parts)
            return None
        if not parts:
            self._count_death("no part", reason)
            return None
        suspect, *others = parts
        self._put_back(others)
        self._deaths[suspect.id] += 1
        if self._deaths[suspect.id] == 1:
            self._count_death(suspect.label, reason)
        if self._deaths[suspect.id] >= self._max_attempts:
            return suspect
        self._queue_of(suspect.network).append(suspect)  # at the end, because the cause may be gone by then
        return None

    def _queue_of(self, network: Hashable) -> deque[PartT]:
        return deque() if network in self._blocked else self._waiting.setdefault(network, deque())

    def _put_back(self, parts: Sequence[PartT]) -> None:
        for part in reversed(parts):
            self._queue_of(part.network).appendleft(part)

    def _count_death(self, subject: str, reason: str) -> None:
        self._deaths_without_result += 1
        if self._deaths_without_result > MAX_DEATHS_WITHOUT_RESULT:
            raise EvaluationError(
                f"Computing parts failed: {self._deaths_without_result} workers died in a row without a result, each "
                f"on a different part or on none, the last on {subject} ({reason}). Check the workers' events, or "
                "run with --executor inline."
            )
