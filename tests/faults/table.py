"""The faults: one row each, all judged by one verdict."""

import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.faults import clocks, drivers, kills, machines, results, trainings, workers
from tests.faults.trial import Trial, UnavailableError
from tests.faults.verdict import export, judge

Stage = Callable[[Trial], dict[str, bool] | None]
Judge = Callable[..., list[str]]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: what `--only` takes.
        stage: injects it; gives what `judge` should allow.
        ends: how it must end, in words.
        is_short: whether the test suite runs it once on every occasion.
        repeats: how often the long form injects it, where it can be injected often.
        judge: looks at what it left, and names the problems.
    """

    name: str
    stage: Stage
    ends: str
    is_short: bool = False
    repeats: int = 1
    judge: Judge = judge

    @property
    def injects(self) -> str:
        """What it does, in words."""
        return " ".join((self.stage.__doc__ or "").partition("\n")[0].split())


FAULTS = (
    Fault("worker-killed", kills.kill_worker, "the run goes on: 0", repeats=4),
    Fault("driver-killed", kills.kill_driver, "resumed: 0", repeats=2),
    Fault("raylet-killed", kills.kill_raylet, "3, resumed: 0"),
    Fault("head-killed", kills.kill_head, "3, resumed: 0"),
    Fault("ray-killed-starting", kills.kill_while_starting, "started again, or 3, resumed: 0", repeats=12),
    Fault("node-lost", machines.lose_node, "the run goes on: 0"),
    Fault("network-cut", machines.cut_network, "the run goes on: 0"),
    Fault("commit-killed", kills.kill_while_committing, "the run goes on: 0", repeats=4),
    Fault("memory-exhausted", workers.run_out_of_memory, "the run goes on: 0", is_short=True),
    Fault("unit-poisonous", workers.poison_unit, "3, the unit listed; harmless again: 0"),
    Fault("disk-full", results.fill_disk, "4, resumed: 0", is_short=True, repeats=2),
    Fault("disk-full-for-workers", results.fill_disk_of_workers, "4, resumed: 0"),
    Fault("shards-damaged", results.damage_shards, "set aside, resumed: 0"),
    Fault("drain-too-slow", workers.drain_past_deadline, "3, resumed: 0"),
    Fault("drain-too-slow-inline", workers.drain_past_deadline_inline, "3, resumed: 0"),
    Fault("interrupted-twice", workers.interrupt_twice, "3, resumed: 0"),
    Fault("clock-jumps", clocks.jump_clock, "the run goes on: 0", repeats=3),
    Fault("second-driver", drivers.second_driver, "refused: 4; takes over the dead: 0"),
    Fault("second-driver-elsewhere", drivers.second_driver_elsewhere, "refused: 4; takes over the dead: 0"),
    Fault("stopped-driver-elsewhere", drivers.stopped_driver_elsewhere, "replaced: 4; the other: 0"),
    Fault("trainer-killed", trainings.kill_worker, "the run goes on: 0", repeats=2, judge=trainings.judge),
    Fault("training-killed", trainings.kill_driver, "resumed: 0", judge=trainings.judge),
    Fault("training-killed-inline", trainings.kill_driver_inline, "resumed: 0", repeats=2, judge=trainings.judge),
)


@dataclass(frozen=True)
class Outcome:
    """What came of one fault.

    Attributes:
        fault: which.
        injected: what was injected, how often.
        codes: exit codes in order.
        problems: what was wrong; empty is well.
        skipped: why it could not be staged here, or nothing.
        seconds: how long it took.
    """

    fault: Fault
    injected: Mapping[str, int]
    codes: tuple[int, ...]
    problems: tuple[str, ...]
    skipped: str
    seconds: float


def run_undisturbed(folder: Path) -> dict[str, bytes]:
    """Compute the sweep without a fault, in one process, and export it."""
    folder.mkdir(parents=True)
    trial = Trial("undisturbed", folder, {}, random.Random(0))
    trial.write_sweep()
    trial.run("--executor", "inline")
    if trial.problems:
        raise RuntimeError(f"the undisturbed run failed: {trial.problems}")
    return export(trial.results, folder / "json")


def run_fault(fault: Fault, folder: Path, undisturbed: Mapping[str, bytes], *, seed: int, repeats: int) -> Outcome:
    """Stage one fault in a new folder, which is removed unless something was wrong, and judge what it left."""
    folder.mkdir(parents=True)
    trial = Trial(fault.name, folder, undisturbed, random.Random(f"{seed} {fault.name}"), repeats=repeats)
    began = time.monotonic()
    skipped, problems = "", []
    try:
        allowed = fault.stage(trial) or {}
        problems = fault.judge(trial, **allowed)
    except UnavailableError as error:
        skipped = str(error)
    except TimeoutError as error:
        problems = [*trial.problems, str(error)]
    finally:
        trial.end()
    if not problems:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    return Outcome(fault, dict(+trial.injected), tuple(trial.codes), tuple(problems), skipped, seconds)
