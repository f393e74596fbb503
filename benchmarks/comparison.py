"""Comparison of the times that a user's loop (`plain_loop`) and `robust201 run` take for the same images and weights.

If other programs run on the machine, CPU time is more reliable than wall time. The same commands without attacks
measure the start-up time, which is subtracted from the times with attacks.
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
"""Name of the image dataset in the sweep."""

MIN_START_UP_FRACTION = 0.05
"""Fraction of the start-up time below which an attack time is dominated by variations in the start-up time."""

_KEYS = {"fgsm": "fgsm", "pgd": "pgd", "apgd": "aa_apgd-ce", "square": "aa_square"}
"""Key in the sweep, by the name of the attack in the loop."""


class RunTime(NamedTuple):
    """Wall and CPU time of a process in seconds; CPU time includes child processes for which it waited."""

    wall: float
    cpu: float

    def __sub__(self, other: object) -> "RunTime":
        if not isinstance(other, RunTime):
            return NotImplemented
        return RunTime(self.wall - other.wall, self.cpu - other.cpu)


@dataclass(frozen=True)
class AttackBudget:
    """Radii (in units of 1/255), steps and queries of the attacks, by default the paper's values."""

    epsilons: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
    fgsm_epsilons: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 255.0)
    pgd_steps: int = 40
    apgd_steps: int = 100
    queries: int = 5000

    def to_options(self) -> list[str]:
        """Return these values as options of `plain_loop`."""
        return [
            *("--epsilons", *map(str, self.epsilons), "--fgsm-epsilons", *map(str, self.fgsm_epsilons)),
            *("--pgd-steps", str(self.pgd_steps), "--apgd-steps", str(self.apgd_steps)),
            *("--queries", str(self.queries)),
        ]

    def keys(self) -> dict[str, dict[str, object]]:
        """Return the field `keys` of the sweep YAML."""
        radii, fgsm_radii = ([f"{k:g}/255" for k in epsilons] for epsilons in (self.epsilons, self.fgsm_epsilons))
        return {
            "clean": {},
            "fgsm": {"epsilons": fgsm_radii},
            "pgd": {"epsilons": radii, "steps": self.pgd_steps},
            "aa_apgd-ce": {"epsilons": radii, "steps": self.apgd_steps},
            "aa_square": {"epsilons": radii, "queries": self.queries},
        }


@dataclass(frozen=True)
class Subject:
    """A network and the images on which it is attacked.

    Attributes:
        name: index in NAS-Bench-201, or a network's name in the zoo.
        weights: safetensors file of its state_dict.
        images: .npz file of images (N, 3, H, W) uint8 and labels (N,).
        n_images: N.
        image_size: H and W.
        n_classes: number of classes.
        normalisation: normalisation of the network's training images.
        channels: channels of the first stage; ignored for the zoo.
        cells: cells per stage; ignored for the zoo.
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
    """The threads and device of the processes."""

    threads: int = 1
    device: str = "cpu"

    def environment(self) -> dict[str, str]:
        """Return this process's environment, with the libraries' thread pools limited to `threads`."""
        # Without GIT_PYTHON_REFRESH, Foolbox cannot be imported if git is not installed.
        return os.environ | {"OMP_NUM_THREADS": str(self.threads), "GIT_PYTHON_REFRESH": "quiet"}


@dataclass(frozen=True)
class Loop:
    """The user's loop with one memory layout and batch size."""

    layout: str
    batch: int

    @property
    def label(self) -> str:
        return f"loop, {self.layout} layout, batch {self.batch}"

    def command(
        self, subject: Subject, budget: AttackBudget, machine: Machine, folder: Path, *, with_attacks: bool
    ) -> list[str]:
        """Return the command line of the loop."""
        del folder  # The loop writes no files.
        return [
            *(sys.executable, "-m", "benchmarks.plain_loop", str(subject.images), str(subject.weights)),
            *("--architecture", subject.name, "--classes", str(subject.n_classes)),
            *("--channels", str(subject.channels), "--cells", str(subject.cells)),
            *("--mean", *map(str, subject.normalisation.mean), "--std", *map(str, subject.normalisation.std)),
            *("--layout", self.layout, "--batch", str(self.batch)),
            *("--threads", str(machine.threads), "--device", machine.device),
            *budget.to_options(),
            *(["--attacks", *_KEYS] if with_attacks else ["--attacks"]),
        ]

    def read_accuracies(self, folder: Path, output: str) -> dict[str, dict[float, float]]:
        """Return accuracies by the sweep's key and strength."""
        del folder
        accuracies_by_attack = json.loads(output.splitlines()[-1])
        return {
            _KEYS.get(name, name): {float(epsilon): accuracy for epsilon, accuracy in accuracies.items()}
            for name, accuracies in accuracies_by_attack.items()
        }


@dataclass(frozen=True)
class Sweep:
    """`robust201 run` on one network."""

    engine: str = "fused"
    label = "robust201"

    def command(
        self, subject: Subject, budget: AttackBudget, machine: Machine, folder: Path, *, with_attacks: bool
    ) -> list[str]:
        """Write a sweep YAML to `folder`, and return the command line that runs it."""
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
            "keys": budget.keys() if with_attacks else {"clean": {}},
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

    def read_accuracies(self, folder: Path, output: str) -> dict[str, dict[float, float]]:
        """Return accuracies by key and strength, read from the results folder of the sweep."""
        del output
        from robust201.dataset.shard_rows import KeyRows
        from robust201.sweep.plan import open_results

        plan, results = open_results(folder / "results")
        listing = results.list()
        accuracies = {key: map(float, KeyRows(results, key, listing).read(0)["accuracy"]) for key in plan.keys}
        return {key.key: dict(zip(key.strengths, values, strict=True)) for key, values in accuracies.items()}


Contender = Loop | Sweep


def make_loops(n_images: int, batch_sizes: Sequence[int] = (50, 250)) -> list[Loop]:
    """Return loops in both layouts with each distinct batch size; the largest batch contains all images."""
    distinct_sizes = sorted({min(size, n_images) for size in (*batch_sizes, n_images)})
    return [Loop(layout, batch) for layout in LAYOUTS for batch in distinct_sizes]


def run_timed(command: Sequence[str], environment: Mapping[str, str], log: Path) -> tuple[RunTime, str]:
    """Run a process and measure its time.

    Args:
        command: command line of the process.
        environment: environment variables of the process.
        log: file to which the process's stderr is written.

    Returns:
        The time and the stdout of the process. The CPU time includes child processes that the process waited for, but
        not Ray's workers.

    Raises:
        EvaluationError: the process failed.
    """
    with log.open("wb") as error_log:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, stderr=error_log)
        assert process.stdout is not None
        with process.stdout:
            output = process.stdout.read()
        _, status, resource_usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last_lines = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise EvaluationError(
            f"Timing a process failed for {' '.join(command[1:4])}: it ended with exit code {process.returncode}: "
            f"{last_lines}. See {log}."
        )
    return RunTime(wall, resource_usage.ru_utime + resource_usage.ru_stime), output.decode()


@dataclass
class ContenderTimes:
    """The measured times of one contender on a subject.

    Attributes:
        contender: the loop or sweep.
        starts: start-up times, from runs without attacks; all loops share those of each round's first loop.
        totals: times with attacks, including the start-up.
        accuracies: results of the last process with attacks, by key and strength.
    """

    contender: Contender
    starts: list[RunTime] = field(default_factory=list)
    totals: list[RunTime] = field(default_factory=list)
    accuracies: dict[str, dict[float, float]] = field(default_factory=dict)

    @property
    def total(self) -> RunTime:
        """Median time with attacks, including the start-up."""
        return RunTime(median(run.wall for run in self.totals), median(run.cpu for run in self.totals))

    @property
    def start(self) -> RunTime:
        """Median start-up time."""
        return RunTime(median(run.wall for run in self.starts), median(run.cpu for run in self.starts))

    @property
    def attacks(self) -> RunTime:
        """Median time of the attacks alone."""
        return self.total - self.start


@dataclass(frozen=True)
class TimeComparison:
    """The times of loops and of a sweep on a subject."""

    subject: Subject
    loops: tuple[ContenderTimes, ...]
    sweep: ContenderTimes

    def fastest_loop(self, clock: str) -> ContenderTimes:
        """Return the loop with the smallest attack time by a clock, ``cpu`` or ``wall``."""
        return min(self.loops, key=lambda contender_times: getattr(contender_times.attacks, clock))

    def speed_up(self, clock: str, *, with_start_up: bool = False) -> float:
        """Return the sweep's speed relative to the best loop; NaN if the attacks are too short to measure."""
        time_name = "total" if with_start_up else "attacks"
        best_loop_time = min(getattr(getattr(contender_times, time_name), clock) for contender_times in self.loops)
        sweep_time = getattr(getattr(self.sweep, time_name), clock)
        if min(best_loop_time, sweep_time) < MIN_START_UP_FRACTION * getattr(self.sweep.start, clock):
            return math.nan
        return float(best_loop_time / sweep_time)

    @property
    def largest_difference(self) -> float:
        """Largest absolute difference between accuracies of the sweep and of the loop with the least CPU time.

        The loop and the sweep use different random numbers.
        """
        loop_accuracies, accuracies = self.fastest_loop("cpu").accuracies, self.sweep.accuracies
        return max(
            abs(accuracies[key][strength] - accuracy)
            for key in loop_accuracies
            for strength, accuracy in loop_accuracies[key].items()
        )


def compare(
    subject: Subject,
    loops: Sequence[Loop],
    budget: AttackBudget,
    machine: Machine,
    folder: Path,
    *,
    rounds: int = 1,
    report: Callable[[str], None] = lambda _line: None,
) -> TimeComparison:
    """Time loops and a sweep alternately, to spread changes in the machine's load over all of them.

    Args:
        subject: network and images.
        loops: the loops.
        budget: radii, steps and queries of the attacks.
        machine: threads and device.
        folder: an empty folder for sweeps, results and logs.
        rounds: number of runs of each contender.
        report: function that receives a line about each timed run with attacks.

    Raises:
        EvaluationError: a process failed.
    """
    all_times = [*map(ContenderTimes, loops), ContenderTimes(Sweep())]
    for round_index, current_times in _alternate(all_times, rounds):
        # The start-up time of a loop does not depend on its layout and batch size.
        start_up_owner = all_times[0 if isinstance(current_times.contender, Loop) else -1]
        for with_attacks in (True,) if len(start_up_owner.starts) > round_index else (False, True):
            run_folder = (
                folder / f"{round_index}-{all_times.index(current_times)}-{'attacks' if with_attacks else 'start'}"
            )
            run_folder.mkdir(parents=True)
            command = current_times.contender.command(subject, budget, machine, run_folder, with_attacks=with_attacks)
            run_time, output = run_timed(command, machine.environment(), run_folder / "log")
            (current_times.totals if with_attacks else start_up_owner.starts).append(run_time)
        current_times.starts = start_up_owner.starts
        current_times.accuracies = current_times.contender.read_accuracies(run_folder, output)
        seconds_text = f"{run_time.wall:.1f} s ({run_time.cpu:.1f} s of CPU time)"
        report(f"{subject.label}, {current_times.contender.label}: {seconds_text}")
    return TimeComparison(subject, tuple(all_times[:-1]), all_times[-1])


def _alternate(all_times: Sequence[ContenderTimes], rounds: int) -> Iterator[tuple[int, ContenderTimes]]:
    """Yield each round's index with each contender. Every second round is in reverse order, to avoid a bias."""
    for round_index in range(rounds):
        for current_times in all_times if round_index % 2 == 0 else reversed(all_times):
            yield round_index, current_times
