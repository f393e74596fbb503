"""Progress of `robust201.evaluate`: a bar on a terminal; elsewhere (notebooks, logs) a line every ten seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from robust201.tasks import TASKS

LINE_SECONDS = 10.0
"""Seconds between two lines if the output is not a terminal."""

_BAR_SECONDS = 0.5

_SIGNIFICANT_FRACTION = 0.01
"""Minimum fraction of the total cost that a key must account for, so that its measured time corrects other keys'
estimates."""

ProgressOption: TypeAlias = Callable[[int, int], None] | bool
"""Whether to show progress, or a function that is called with the numbers of complete and of all evaluations."""


@dataclass
class EvaluationProgress:
    """Progress of an evaluation, updated by the evaluation and read by a display in another thread.

    Attributes:
        costs: estimated cost of each key, in the order of the evaluation and in an arbitrary unit.
        seconds_per_cost: seconds per unit of cost; None if unknown.
        key: the key that is being evaluated; empty before the first key.
        strengths: the key's strengths.
        stage: text with the number and key of the current stage; empty if the attack has no stages.
        n_images: number of images to evaluate at each strength of this key.
        n_images_done: number of images evaluated under this key, counted once per strength.
        n_evaluations: number of evaluations (pairs of key and strength).
        n_evaluations_done: number of complete evaluations.
    """

    is_shown: bool = False
    costs: Mapping[str, float] = field(default_factory=dict)
    seconds_per_cost: float | None = None
    key: str = ""
    strengths: Sequence[float] = ()
    stage: str = ""
    n_images: int = 0
    n_images_done: int = 0
    n_evaluations: int = 0
    n_evaluations_done: int = 0
    _start_time: float = 0.0
    _key_start_time: float = 0.0

    def __post_init__(self) -> None:
        self._start_time = time.monotonic()

    def say(self, line: str) -> None:
        """Print a line to stderr if progress is shown."""
        if self.is_shown:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def begin_key(self, key: str, strengths: Sequence[float], n_images: int) -> None:
        """Record that a key begins and that the previous key is complete."""
        start_time = time.monotonic()
        if self.costs.get(self.key, 0.0) >= _SIGNIFICANT_FRACTION * sum(self.costs.values()):
            self.seconds_per_cost = (start_time - self._key_start_time) / self.costs[self.key]
        self.key, self.strengths, self._key_start_time = key, strengths, start_time
        self.n_images, self.n_images_done, self.stage = n_images, 0, ""

    def begin_stage(self, stage_number: int, key: str) -> None:
        """Record that a stage of the current key begins; the attack `key` runs in it."""
        self.stage = f", stage {stage_number} ({key})"

    def add_images(self, count: int) -> None:
        """Add to the number of images evaluated under this key."""
        self.n_images_done += count

    def describe(self) -> str:
        """Return a line with the key, strengths, number of images, elapsed time and time left."""
        elapsed = f"{_format_time(time.monotonic() - self._start_time)} elapsed"
        if not self.key:
            return f"checking the network, {elapsed}"
        factor = f"{len(self.strengths)} × " if len(self.strengths) > 1 else ""
        image_progress = f"{self.n_images_done:,} of {factor}{self.n_images:,} images"
        strengths = _describe_strengths(self.key, self.strengths)
        return f"{self.key}{strengths}{self.stage}: {image_progress}, {elapsed}, {self._describe_time_left()}"

    def _describe_time_left(self) -> str:
        if self.seconds_per_cost is None or self.key not in self.costs:
            return "time left unknown"
        keys = list(self.costs)
        seconds_of_later_keys = sum(self.costs[key] for key in keys[keys.index(self.key) + 1 :]) * self.seconds_per_cost
        seconds_left = self.costs[self.key] * self.seconds_per_cost - (time.monotonic() - self._key_start_time)
        return (
            f"about {_format_time(seconds_left + seconds_of_later_keys)} left"
            if seconds_left > 0
            else "longer than estimated"
        )


def _format_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _describe_strengths(key: str, strengths: Sequence[float]) -> str:
    task = TASKS.get(key)
    if task is None or task.kind not in ("attack", "corruption") or strengths == (0.0,):
        return ""
    strength_name = "severity" if task.constraint is None else "epsilon"
    unit = "/255" if task.constraint is not None and task.constraint.divisor == 255 else ""
    if len(strengths) == 1:
        return f" at {strength_name} {strengths[0]:g}{unit}"
    plural_name = "severities" if strength_name == "severity" else "epsilons"
    return f" at {len(strengths)} {plural_name} {strengths[0]:g}{unit} to {strengths[-1]:g}{unit}"


@contextmanager
def shown_progress(option: ProgressOption) -> Iterator[EvaluationProgress]:
    """Show the progress of an evaluation, if `option` is True, until the context ends."""
    if option is not True:
        yield EvaluationProgress()
        return
    progress = EvaluationProgress(is_shown=True)
    if sys.stderr.isatty():
        with _progress_bar(progress):
            yield progress
    else:
        with _calling_repeatedly(lambda: progress.say(progress.describe()), LINE_SECONDS):
            yield progress


@contextmanager
def _progress_bar(progress: EvaluationProgress) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    # While the bar is shown, rich prints other stderr lines above it.
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console) as bar:
        task = bar.add_task(progress.describe(), total=None)

        def update() -> None:
            bar.update(
                task,
                description=progress.describe(),
                completed=progress.n_evaluations_done,
                total=progress.n_evaluations or None,
            )

        with _calling_repeatedly(update, _BAR_SECONDS):
            yield
        update()


@contextmanager
def _calling_repeatedly(function: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call a function at intervals in a separate thread, because an attack can take minutes until its next result."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            function()

    thread = threading.Thread(target=repeat, name="progress of evaluate", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
