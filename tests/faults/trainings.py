"""Trainings whose worker or driver is killed in the middle; and the verdict: the same weights, to the byte."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from robust201.cli.console import show_count
from tests.faults import verdict
from tests.faults.processes import kill, remaining
from tests.faults.trial import Command, Trial, stray_files
from tests.support.tiny_trainings import weight_files

_INLINE = ("--executor", "inline")
_STEP_SECONDS = 0.2
"""Time by which each step is held up, so that there is a middle to be killed in."""

_EPOCHS, _SEEDS = 3, (0, 1)
_N_SNAPSHOTS = len(_SEEDS) * (_EPOCHS + 1)


def training_fields(store: Path) -> dict[str, Any]:
    """Fields of the trainings of every trial: a narrow LeNet-5 on digits, twelve steps and four snapshots a seed."""
    recipe = {
        "epochs": _EPOCHS,
        "batch_size": 16,
        "learning_rate": 0.05,
        "weight_decay": 5e-4,
        "schedule": {"cosine": {}},
        "augmentation": {"crop_padding": 1},
        "snapshots": {"every_epochs": 1, "iterations": [2]},
    }
    return {
        "name": "faults",
        "store": str(store),
        "space": "zoo",
        "architectures": ["lenet5-w4"],
        "datasets": {"digits": {}},
        "images": {"count": 64},
        "recipes": {"plain": recipe},
        "seeds": list(_SEEDS),
        "execution": {"executor": "ray", "workers": 2, "device": "cpu", "threads": 1},
    }


def _store(trial: Trial) -> Path:
    return trial.folder / "store"


def _prepare(trial: Trial) -> None:
    """Write the YAML, train once without a fault into another store, and hold up the steps of what comes."""
    _yaml(trial).write_text(yaml.safe_dump(training_fields(_store(trial))), encoding="utf-8")
    _run(trial, *_INLINE, "--out", str(trial.folder / "whole"))
    trial.order(step_seconds=_STEP_SECONDS)


def _yaml(trial: Trial) -> Path:
    return trial.folder / "trainings.yaml"


def _run(trial: Trial, *options: str, expected: Collection[int] = (0,)) -> Command:
    command = trial.start("train", str(_yaml(trial)), *options)
    trial.finish(command, expected)
    return command


def _start_in_the_middle(trial: Trial, *options: str) -> Command:
    """Start the run, and wait until it trains and some of its snapshots, but not all, are there."""
    wanted = len(weight_files(_store(trial))) + trial.draws.randint(1, 3)
    command = trial.start("train", str(_yaml(trial)), *options)
    trial.wait_until(lambda: len(weight_files(_store(trial))) >= wanted, command, f"{wanted} snapshots")
    trial.fail_unless(wanted < _N_SNAPSHOTS, "killed after the end")
    return command


def kill_worker(trial: Trial) -> None:
    """Kill -9 a worker of trainings in the middle of one, one at a time; the run goes on by itself."""
    _prepare(trial)
    command = _start_in_the_middle(trial)
    for _ in range(trial.repeats):
        count = len(weight_files(_store(trial)))
        trial.injected["workers killed"] += kill(trial.workers()[:1])
        if count + 3 >= _N_SNAPSHOTS:
            break
        trial.wait_until(lambda: len(weight_files(_store(trial))) > count, command, "another snapshot")  # noqa: B023
    trial.finish(command, {0})
    deaths = f"{show_count(trial.injected['workers killed'], 'worker')} died"
    trial.fail_unless(deaths in command.text(), f"the output does not say: {deaths}")


def kill_driver(trial: Trial) -> None:
    """Kill -9 the driver of trainings in the middle; its workers end too, and the same command completes them."""
    _kill_driver(trial)


def kill_driver_inline(trial: Trial) -> None:
    """The same where the driver itself trains."""
    _kill_driver(trial, *_INLINE)


def _kill_driver(trial: Trial, *options: str) -> None:
    _prepare(trial)
    for _ in range(trial.repeats):
        command = _start_in_the_middle(trial, *options)
        trial.family()
        command.process.kill()
        command.wait()
        trial.injected["drivers killed"] += 1
    trial.order()
    _run(trial, *options)


def judge(trial: Trial) -> list[str]:
    """Look at what a trial of trainings left: the weights of an undisturbed run, no process, and no file for ever.

    Files of the killed may lie there for a day; the next run after that must take them away.
    """
    problems = remaining(trial.mark, verdict.GRACE_SECONDS, trial.watch)
    store, whole = _store(trial), weight_files(trial.folder / "whole")
    found = weight_files(store)
    trial.fail_unless(len(whole) == _N_SNAPSHOTS, f"the undisturbed run left {len(whole)} snapshots")
    problems += [f"weights differ: {name}" for name in sorted(whole) if found.get(name) != whole[name]]
    problems += [f"another file of weights: {name}" for name in sorted(found.keys() - whole.keys())]
    verdict.age(stray_files(store))
    again = _run(trial, *_INLINE)
    trial.fail_unless(f": {_N_SNAPSHOTS} done, 0 missing" in again.text(), f"not complete: {again.text()[-300:]}")
    run = store / "training"
    left = [run / "lease.json", *(run / "states").glob("*"), *(run / "finished").glob("*"), *stray_files(store)]
    problems += [f"{path.relative_to(store)} left" for path in left if path.exists()]
    return trial.problems + problems
