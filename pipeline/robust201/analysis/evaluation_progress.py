"""Progress of `robust201.evaluate`: one line on a terminal; elsewhere (notebooks, logs) a line every ten seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from robust201.tasks import Task
from robust201.tasks.strengths import format_strength, unit_of

LINE_SECONDS = 10.0
"""Seconds between two lines if the output is not a terminal."""

_STATUS_SECONDS = 0.5

ProgressOption: TypeAlias = Callable[[int, int], None] | bool
"""Whether to show progress, or a function that is called with the number of complete evaluations and their total."""


@dataclass
class EvaluationProgress:
    """Progress of an evaluation, updated by the evaluation and read by a display in another thread.

    Passes of images through the network are counted in forward passes; a gradient counts as three.

    Attributes:
        costs: estimated passes of each key, in the order of the evaluation.
        stage_costs: for each ensemble, the estimated passes of each of its attacks per attacked image.
        key: the key that is being evaluated; empty before the first key.
        strengths: text with the key's strengths.
        stage: text with the current attack of an ensemble; empty for other keys.
        n_images: number of images.
        n_evaluations: number of evaluations (pairs of key and strength).
        n_evaluations_done: number of complete evaluations.
    """

    costs: dict[str, float] = field(default_factory=dict)
    stage_costs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    key: str = ""
    strengths: str = ""
    stage: str = ""
    n_images: int = 0
    n_evaluations: int = 0
    n_evaluations_done: int = 0
    _start_time: float = 0.0
    _first_key_time: float = 0.0
    _passes: float = 0.0
    _passes_of_key: float = 0.0
    _n_strengths: int = 1

    def __post_init__(self) -> None:
        self._start_time = time.monotonic()

    def begin_key(self, task: Task, strengths: Sequence[float]) -> None:
        """Record that the evaluation of a key has started and that the previous key is complete."""
        if not self.key:
            self._first_key_time = time.monotonic()
        unit = unit_of(task.constraint, task.kind)
        extremes = dict.fromkeys(format_strength(strengths[index], unit) for index in (0, -1))
        self.strengths = f" at {' to '.join(extremes)}" if any(extremes) else ""
        self.key, self.stage, self._n_strengths, self._passes_of_key = task.key, "", len(strengths), 0.0

    def begin_stage(self, number: int, key: str, n_images: int) -> None:
        """Record that the attack `key` of an ensemble has started.

        The ensemble's cost is estimated again, because an attack receives only images that withstood earlier
        attacks; `n_images` is their number, summed over strengths.
        """
        stage_costs = self.stage_costs[self.key]
        fraction = n_images / max(1, self.n_images * self._n_strengths)
        self.stage = f", attack {number} of {len(stage_costs)} ({key} on {fraction:.0%} of the images)"
        self.costs[self.key] = self._passes_of_key + n_images * sum(stage_costs[number - 1 :])

    def add_passes(self, count: int) -> None:
        """Count further passes."""
        self._passes += count
        self._passes_of_key += count

    def describe(self) -> str:
        """Return a line with the key, strengths, progress, elapsed time and time left."""
        elapsed = f"{_format_time(time.monotonic() - self._start_time)} elapsed"
        if not self.key:
            return f"checking the network, {elapsed}"
        cost = self.costs.get(self.key, 0.0)
        fraction = f": {min(0.99, self._passes_of_key / cost):.0%}" if cost and self._passes_of_key else ""
        done = f"{self.n_evaluations_done} of {self.n_evaluations} evaluations done"
        return f"{self.key}{self.strengths}{self.stage}{fraction}, {done}, {elapsed}, {self._describe_time_left()}"

    def _describe_time_left(self) -> str:
        if not self._passes or self.key not in self.costs:
            return "time left unknown"
        keys = list(self.costs)
        passes_left = max(0.0, self.costs[self.key] - self._passes_of_key)
        passes_left += sum(self.costs[key] for key in keys[keys.index(self.key) + 1 :])
        seconds_left = passes_left * (time.monotonic() - self._first_key_time) / self._passes
        return f"about {_format_time(seconds_left)} left" if passes_left else "longer than estimated"


def _format_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


@contextmanager
def shown_progress(option: ProgressOption) -> Iterator[EvaluationProgress]:
    """Show the progress of an evaluation, if `option` is True, until the context ends."""
    progress = EvaluationProgress()
    if option is not True:
        yield progress
    elif sys.stderr.isatty():
        from rich.console import Console

        # While the status is shown, rich prints other stderr lines above it.
        with (
            Console(stderr=True).status(progress.describe()) as status,
            _calling_repeatedly(lambda: status.update(progress.describe()), _STATUS_SECONDS),
        ):
            yield progress
    else:
        with _calling_repeatedly(lambda: sys.stderr.write(f"{progress.describe()}\n"), LINE_SECONDS):
            yield progress


@contextmanager
def _calling_repeatedly(function: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call a function at intervals in a separate thread, because an attack can take minutes until its next result."""
    is_finished = threading.Event()

    def repeat() -> None:
        while not is_finished.wait(seconds):
            function()

    thread = threading.Thread(target=repeat, name="progress of evaluate", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_finished.set()
        thread.join()
