"""Executor that computes in this process, for tests, debugging and machines without Ray (`--executor inline`)."""

from collections import deque
from collections.abc import Callable, Iterator

from robust201.core.records import Bundle, Receipt, UnitFailure
from robust201.runtime.executors.base import BundleDone, Event

RunBundle = Callable[[Bundle], Iterator[Receipt | UnitFailure]]


class InlineExecutor:
    """Computes one bundle at a time; each call of `poll` computes until the next event and returns it.

    `run_bundle` is a worker's `run`. `on_drain` asks the worker to stop, if possible before the current part is
    finished. `drain` may be called from another thread.
    """

    n_workers = 1

    def __init__(
        self, run_bundle: RunBundle, *, on_drain: Callable[[], None] = lambda: None, gpus_per_worker: float = 0.0
    ) -> None:
        self.gpus_per_worker = gpus_per_worker
        self._run_bundle = run_bundle
        self._on_drain = on_drain
        self._waiting: deque[Bundle] = deque()
        self._current: tuple[Bundle, Iterator[Receipt | UnitFailure]] | None = None
        self._draining = False

    def free_slots(self) -> int:
        """Return the number of bundles that can be submitted: one bundle is computed and one may wait."""
        return 0 if self._draining else max(0, 2 - len(self._waiting) - (self._current is not None))

    def submit(self, bundle: Bundle) -> None:
        self._waiting.append(bundle)

    def poll(self, timeout: float) -> list[Event]:
        """Compute until the next event; the timeout does not interrupt a computation."""
        del timeout
        if self._current is None:
            if not self._waiting:
                return []
            bundle = self._waiting.popleft()
            self._current = bundle, self._run_bundle(bundle)
        bundle, outcomes = self._current
        if not self._draining:
            for outcome in outcomes:
                return [outcome]
        self._current = None
        return [BundleDone(bundle)]

    def drain(self) -> None:
        """Start no more parts; the part in progress ends within the current `poll`."""
        self._draining = True
        self._on_drain()

    def close(self) -> None:
        self._waiting.clear()
        self._current = None
