"""Whole processes timed in turn: a user's own loop (`user_loop`) and `robust201 run`, on the same images and weights.

Wall time says how long one waits; CPU time is what to trust where other programs run. Start-up is measured with the
same commands and no attacks, and subtracted.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

import yaml

from robust201.core.errors import EvaluationError
from robust201.core.records import Normalisation

LAYOUTS = ("default", "channels_last")
DATASET = "images"
"""What the sweep calls the images."""

SMALLEST_SHARE = 0.05
"""Attacks shorter than this share of the start-up are lost in its noise."""

_KEYS = {"fgsm": "fgsm", "pgd": "pgd", "apgd": "aa_apgd-ce", "square": "aa_square"}
"""The loop's names of the attacks, and the sweep's."""


class RunTime(NamedTuple):
    """What a process took, in seconds: on the clock, and of the CPU, children included."""

    wall: float
    cpu: float

    def __sub__(self, other: object) -> "RunTime":
        if not isinstance(other, RunTime):
            return NotImplemented
        return RunTime(self.wall - other.wall, self.cpu - other.cpu)


@dataclass(frozen=True)
class Lengths:
    """What the attacks do: radii in units of 1/255, steps and queries; the defaults are the paper's."""

    epsilons: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
    fgsm_epsilons: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 255.0)
    pgd_steps: int = 40
    apgd_steps: int = 100
    queries: int = 5000

    def words(self) -> list[str]:
        return [
            *("--epsilons", *map(str, self.epsilons), "--fgsm-epsilons", *map(str, self.fgsm_epsilons)),
            *("--pgd-steps", str(self.pgd_steps), "--apgd-steps", str(self.apgd_steps)),
            *("--queries", str(self.queries)),
        ]

    def keys(self) -> dict[str, dict[str, object]]:
        radii = list(self.epsilons)
        return {
            "clean": {},
            "fgsm": {"epsilons_255": list(self.fgsm_epsilons)},
            "pgd": {"epsilons_255": radii, "steps": self.pgd_steps},
            "aa_apgd-ce": {"epsilons_255": radii, "steps": self.apgd_steps},
            "aa_square": {"epsilons_255": radii, "queries": self.queries},
        }


@dataclass(frozen=True)
class Subject:
    """One network with its images.

    Attributes:
        name: index in NAS-Bench-201, or a name of the zoo.
        weights: safetensors file of its state_dict.
        images: .npz file of images (N, 3, H, W) uint8 and labels (N,).
        n_images: N.
        image_size: H and W.
        n_classes: number of classes.
        normalisation: what the network was trained with.
        channels: of the first stage; of no meaning for the zoo.
        cells: per stage; of no meaning for the zoo.
    """

    name: str
    weights: Path
    images: Path
    n_images: int
    image_size: int
    n_classes: int
    normalisation: Normalisation
    channels: int = 16
    cells: int = 5

    @property
    def label(self) -> str:
        return f"#{self.name}" if self.name.isdigit() else self.name


@dataclass(frozen=True)
class Machine:
    """Where the processes compute."""

    threads: int = 1
    device: str = "cpu"

    def environment(self) -> dict[str, str]:
        """Variables of a process: the libraries' pools have as many threads as PyTorch gets."""
        return os.environ | {"OMP_NUM_THREADS": str(self.threads), "GIT_PYTHON_REFRESH": "quiet"}


@dataclass(frozen=True)
class Loop:
    """The user's loop in one form."""

    layout: str
    batch: int

    @property
    def label(self) -> str:
        return f"loop, {self.layout} layout, batch {self.batch}"

    @property
    def starts_as(self) -> str:
        """What starts up alike: the loop without attacks, in any layout and batch."""
        return "loop"

    def command(
        self, subject: Subject, lengths: Lengths, machine: Machine, folder: Path, *, attacks: bool
    ) -> list[str]:
        del folder  # it writes nothing
        return [
            *(sys.executable, "-m", "robust201.bench.user_loop", str(subject.images), str(subject.weights)),
            *("--architecture", subject.name, "--classes", str(subject.n_classes)),
            *("--channels", str(subject.channels), "--cells", str(subject.cells)),
            *("--mean", *map(str, subject.normalisation.mean), "--std", *map(str, subject.normalisation.std)),
            *("--layout", self.layout, "--batch", str(self.batch)),
            *("--threads", str(machine.threads), "--device", machine.device),
            *lengths.words(),
            *(["--attacks", *_KEYS] if attacks else ["--attacks"]),
        ]

    def read(self, folder: Path, printed: str) -> dict[str, dict[float, float]]:
        """Accuracies by the sweep's key and strength."""
        del folder
        found = json.loads(printed.splitlines()[-1])
        return {
            _KEYS.get(name, name): {float(epsilon): value for epsilon, value in values.items()}
            for name, values in found.items()
        }


@dataclass(frozen=True)
class Sweep:
    """`robust201 run` on one network."""

    engine: str = "fused"

    @property
    def label(self) -> str:
        return "robust201" if self.engine == "fused" else f"robust201, engine: {self.engine}"

    @property
    def starts_as(self) -> str:
        return self.label

    def command(
        self, subject: Subject, lengths: Lengths, machine: Machine, folder: Path, *, attacks: bool
    ) -> list[str]:
        is_cell = subject.name.isdigit()
        sweep: dict[str, object] = {
            "name": "bench",
            "results": str(folder / "results"),
            **({"network": {"channels": subject.channels, "cells": subject.cells}} if is_cell else {"space": "zoo"}),
            "architectures": [int(subject.name) if is_cell else subject.name],
            "weights": {"files": {subject.name: str(subject.weights)}},
            "datasets": {
                DATASET: {
                    "path": str(subject.images),
                    "classes": subject.n_classes,
                    "image_size": subject.image_size,
                    "normalisation": {
                        "mean": list(subject.normalisation.mean),
                        "std": list(subject.normalisation.std),
                    },
                }
            },
            "keys": lengths.keys() if attacks else {"clean": {}},
            "engine": self.engine,
            "execution": {
                "executor": "inline",
                "device": machine.device,
                "threads": machine.threads,
                "gmacs_per_second": 10,
            },
        }
        path = folder / "sweep.yaml"
        path.write_text(yaml.safe_dump(sweep, sort_keys=False))
        return [sys.executable, "-m", "robust201", "run", str(path)]

    def read(self, folder: Path, printed: str) -> dict[str, dict[float, float]]:
        del printed
        from robust201.planning.plan_file import load_plan
        from robust201.shards import ShardStore

        plan, store = load_plan(folder / "results"), ShardStore.open(folder / "results")
        inventory = store.inventory()
        return {
            unit.key: {
                strength: float(store.values(unit, strength, inventory, ("accuracy",))["accuracy"])
                for strength in unit.strengths
            }
            for unit in plan.units
        }


Way = Loop | Sweep


def loops(n_images: int, batches: Sequence[int] = (50, 250)) -> list[Loop]:
    """The user's loop in both layouts at each batch that differs from the others, all images at once among them."""
    sizes = sorted({min(batch, n_images) for batch in (*batches, n_images)})
    return [Loop(layout, batch) for layout in LAYOUTS for batch in sizes]


def run_timed(words: Sequence[str], environment: Mapping[str, str], log: Path) -> tuple[RunTime, str]:
    """Run a process to its end.

    Args:
        words: its command line.
        environment: its variables.
        log: file for what it says on stderr.

    Returns:
        What it took, and what it printed. CPU time is that of the process and of those children that it waited for:
        Ray's workers are not among them.

    Raises:
        EvaluationError: it failed.
    """
    with log.open("wb") as complaints:
        start = time.perf_counter()
        process = subprocess.Popen(words, env=dict(environment), stdout=subprocess.PIPE, stderr=complaints)
        assert process.stdout is not None  # noqa: S101 - asked for above
        with process.stdout:
            printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise EvaluationError(
            f"Timing a process failed for {' '.join(words[1:4])}: expected exit code 0, got {process.returncode}: "
            f"{said}. See {log}."
        )
    return RunTime(wall, used.ru_utime + used.ru_stime), printed.decode()


@dataclass
class Timed:
    """One way to compute a subject's attacks, timed a few times.

    Attributes:
        way: how it is computed.
        starts: processes without attacks, of this way or of one that starts up alike.
        wholes: processes with them.
        accuracies: what the last one found, by key and strength.
    """

    way: Way
    starts: list[RunTime] = field(default_factory=list)
    wholes: list[RunTime] = field(default_factory=list)
    accuracies: dict[str, dict[float, float]] = field(default_factory=dict)

    @property
    def whole(self) -> RunTime:
        return RunTime(median(cost.wall for cost in self.wholes), median(cost.cpu for cost in self.wholes))

    @property
    def start(self) -> RunTime:
        return RunTime(median(cost.wall for cost in self.starts), median(cost.cpu for cost in self.starts))

    @property
    def attacks(self) -> RunTime:
        return self.whole - self.start


@dataclass(frozen=True)
class Compared:
    """A subject's ways, timed in turn; the sweep is the last of them."""

    subject: Subject
    ways: tuple[Timed, ...]

    @property
    def baselines(self) -> tuple[Timed, ...]:
        return tuple(timed for timed in self.ways if isinstance(timed.way, Loop))

    @property
    def sweeps(self) -> tuple[Timed, ...]:
        return tuple(timed for timed in self.ways if isinstance(timed.way, Sweep))

    def best(self, clock: str) -> Timed:
        """The form of the loop whose attacks take least by a clock, ``cpu`` or ``wall``."""
        return min(self.baselines, key=lambda timed: getattr(timed.attacks, clock))

    def ratio(self, clock: str, *, start_up: bool = False) -> float:
        """How many times as fast as the best loop the sweep is by a clock; NaN where start-up drowns the attacks."""
        part = "whole" if start_up else "attacks"
        best = min(getattr(getattr(timed, part), clock) for timed in self.baselines)
        ours = getattr(getattr(self.sweeps[0], part), clock)
        if min(best, ours) < SMALLEST_SHARE * getattr(self.sweeps[0].start, clock):
            return math.nan
        return float(best / ours)

    @property
    def largest_difference(self) -> float:
        """How far apart the accuracies of the sweep and of the best loop are at most: the draws differ."""
        expected, found = self.best("cpu").accuracies, self.sweeps[0].accuracies
        return max(abs(found[key][strength] - value) for key in expected for strength, value in expected[key].items())

    def to_payload(self) -> dict[str, object]:
        return {
            "network": self.subject.name,
            "images": self.subject.n_images,
            "seconds": {
                timed.way.label: {"start": timed.start._asdict(), "whole": timed.whole._asdict()} for timed in self.ways
            },
            "ratio": {clock: self.ratio(clock) for clock in RunTime._fields},
            "ratio_with_start": {clock: self.ratio(clock, start_up=True) for clock in RunTime._fields},
            "largest_difference_of_accuracies": self.largest_difference,
        }


def compare(
    subject: Subject,
    ways: Sequence[Way],
    lengths: Lengths,
    machine: Machine,
    folder: Path,
    *,
    rounds: int = 1,
    tell: Callable[[str], None] = lambda _line: None,
) -> Compared:
    """Time ways in turn, round by round.

    Args:
        subject: network and images.
        ways: forms of the loop, and the sweep.
        lengths: what the attacks do.
        machine: where it computes.
        folder: an empty folder for sweeps, results and logs.
        rounds: how often each is run.
        tell: receives a line about each run that was timed.

    Raises:
        EvaluationError: a process failed.
    """
    timed = [Timed(way) for way in ways]
    for number, one in _rounds(timed, rounds):
        alike = next(other for other in timed if other.way.starts_as == one.way.starts_as)
        for attacks in (True,) if len(alike.starts) > number else (False, True):
            place = folder / f"{number}-{timed.index(one)}-{'attacks' if attacks else 'start'}"
            place.mkdir(parents=True)
            words = one.way.command(subject, lengths, machine, place, attacks=attacks)
            cost, printed = run_timed(words, machine.environment(), place / "log")
            (one.wholes if attacks else alike.starts).append(cost)
        one.starts = alike.starts
        one.accuracies = one.way.read(place, printed)
        tell(f"{subject.label}, {one.way.label}: {cost.wall:.1f} s ({cost.cpu:.1f} s of CPU time)")
    return Compared(subject, tuple(timed))


def _rounds(timed: Sequence[Timed], rounds: int) -> Iterator[tuple[int, Timed]]:
    """Go through all of them in each round, backwards in every other one, so that no one always comes first."""
    for number in range(rounds):
        for one in timed if number % 2 == 0 else reversed(timed):
            yield number, one
