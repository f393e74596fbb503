"""Processes that are killed: workers, also in a commit, the driver, and Ray, in part or whole, also while it starts."""

import time
from collections.abc import Callable

import psutil

from robust201.cli.console import show_count
from robust201.core.files import WRITE_STEPS
from tests.faults.processes import is_head, is_link, is_ray, is_raylet, kill
from tests.faults.trial import N_UNITS, Command, Trial

_WITHOUT_RAY_SECONDS = 90.0
"""Time for a driver to end whose Ray is dead: it looks for it for 20 s, and collects none of its processes."""

_PACE = 1.0
"""Seconds that each part is held up, so that there is a middle to be killed in."""


def _start_in_the_middle(trial: Trial) -> Command:
    """Start the run, and wait until it computes and some of its shards, but not all, are there."""
    before = trial.count_shards()
    command = trial.start_run()
    trial.wait_for_shards(before + trial.draws.randint(1, 3), command)
    return command


def kill_worker(trial: Trial) -> None:
    """Kill -9 one worker at a time; the run goes on by itself."""
    trial.write_sweep()
    trial.order(pace=_PACE)
    command = _start_in_the_middle(trial)
    for _ in range(trial.repeats):
        workers = trial.workers()
        trial.injected["workers killed"] += kill(workers[:1])
        shards = trial.count_shards()
        if shards + 4 >= N_UNITS:
            break
        trial.wait_for_shards(shards + 2, command)
    trial.finish(command, {0})
    told = f"{show_count(trial.injected['workers killed'], 'worker')} died"
    trial.fail_unless(told in command.text(), "the deaths are not told")


def kill_driver(trial: Trial) -> None:
    """Kill -9 the driver; its workers must end too, and the same command completes the sweep."""
    trial.write_sweep()
    trial.order(pace=_PACE)
    for _ in range(trial.repeats):
        command = _start_in_the_middle(trial)
        trial.family()
        command.process.kill()
        command.wait()
        trial.injected["drivers killed"] += 1
    trial.resume()


def kill_raylet(trial: Trial) -> None:
    """Kill -9 the raylet of a run on this machine."""
    _kill_ray(trial, is_raylet, "raylets killed")


def kill_head(trial: Trial) -> None:
    """Kill -9 every process of Ray at once."""
    _kill_ray(trial, is_ray, "heads killed")


def _kill_ray(trial: Trial, is_victim: Callable[[psutil.Process], bool], what: str) -> None:
    trial.zombie_seconds = _WITHOUT_RAY_SECONDS
    trial.write_sweep()
    trial.order(pace=_PACE)
    for _ in range(trial.repeats):
        command = _start_in_the_middle(trial)
        trial.injected[what] += bool(kill(filter(is_victim, trial.family())))
        trial.finish(command, {3}, seconds=120)
    trial.order()
    trial.resume("--executor", "inline")  # starts of Ray after a kill are `kill_while_starting`'s


_VICTIMS_OF_A_START: tuple[Callable[[psutil.Process], bool], ...] = (is_raylet, is_head, is_link, is_ray)


def kill_while_starting(trial: Trial) -> None:
    """Kill -9 raylet, head, the process connected to them, or all of Ray in each second of its start, once and twice.

    Killed once, Ray is started again and the run goes on; killed twice, it ends in 3 and one line.
    """
    trial.zombie_seconds = _WITHOUT_RAY_SECONDS
    trial.write_sweep(workers=1)
    for second in range(trial.repeats):
        is_victim = _VICTIMS_OF_A_START[second % len(_VICTIMS_OF_A_START)]
        command = trial.start_run("--keys", "clean")
        n_kills = second % 2 + 1
        for _ in range(n_kills):
            if not _kill_when_there(trial, command, is_victim, second):
                break  # it was up and had computed everything, or had ended, before that second
        trial.finish(command, {0, 3})
        lines = command.text().splitlines()
        trial.fail_unless("Traceback" not in command.text(), f"a traceback: {command.text()[-400:]}")
        if trial.codes[-1] == 3:
            trial.fail_unless("--executor inline" in lines[-1], f"ended in other words: {lines[-1:]}")
    trial.resume()


def _kill_when_there(
    trial: Trial, command: Command, is_victim: Callable[[psutil.Process], bool], seconds: float
) -> bool:
    """Kill some processes of a command so many seconds after they appeared; False if it ended before."""

    def find() -> list[psutil.Process]:
        return list(filter(is_victim, trial.family()))

    while command.is_running and not find():
        time.sleep(0.1)
    end = time.monotonic() + seconds
    while command.is_running and time.monotonic() < end:
        trial.watch()
        time.sleep(0.1)
    victims = find()
    trial.injected["starts killed"] += bool(kill(victims))
    psutil.wait_procs(victims, timeout=10)
    return bool(victims)


def kill_while_committing(trial: Trial) -> None:
    """Kill -9 the worker at each step of writing a shard (or some), once each; the run goes on by itself."""
    steps = trial.draws.sample(WRITE_STEPS, trial.repeats)
    trial.write_sweep(max_attempts=len(steps) + 1)
    trial.order(die_at_steps=steps)
    trial.run()
    died = trial.claims("died-")
    trial.injected["workers killed at a step"] += len(died)
    trial.fail_unless(len(died) == len(steps), f"killed at {died} only, of {steps}")
