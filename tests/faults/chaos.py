"""Chaos: one sweep whose processes are killed at random moments, starts included, until it was killed often enough.

Each command must end with 0 or 3, or with -9 where it was itself the victim; then the sweep is resumed to its end, and
judged like any other.
"""

import time
from collections.abc import Callable

import psutil

from tests.faults.processes import is_head, is_link, is_ray, is_raylet, is_worker, kill
from tests.faults.table import Fault
from tests.faults.trial import N_UNITS, Command, Trial

_LONGEST_SECONDS = 25.0
"""No kill comes later after the one before it: by then a start is over, on a machine that is not overloaded."""

_PACE = 1.0
_KILLED = -9

_VICTIMS: dict[str, Callable[[psutil.Process], bool]] = {
    "link": is_link,
    "head": is_head,
    "raylet": is_raylet,
    "worker": is_worker,
    "all of Ray": is_ray,
}


def kill_at_random(trial: Trial) -> None:
    """Kill -9 driver, link, head, raylet, a worker or all of Ray at random moments; resume until complete."""
    trial.zombie_seconds = 90.0
    trial.write_sweep()
    trial.order(pace=_PACE)
    while trial.injected.total() < trial.repeats and not trial.problems:
        _forget_finished_work(trial)
        command = trial.start_run()
        while trial.injected.total() < trial.repeats and _is_running_after_a_while(trial, command):
            _kill_one_kind(trial, command)
        trial.finish(command, {0, 3, _KILLED})
        trial.fail_unless("Traceback" not in command.text(), f"a traceback: {command.text()[-400:]}")
    trial.order()
    trial.resume()


def _forget_finished_work(trial: Trial) -> None:
    """Delete some shards once most are there, so that there is always something to be killed in."""
    shards = sorted((trial.results / "shards").rglob("[!.]*.parquet"))
    if len(shards) > N_UNITS // 2:
        for shard in trial.draws.sample(shards, N_UNITS // 2):
            shard.unlink()


def _is_running_after_a_while(trial: Trial, command: Command) -> bool:
    end = time.monotonic() + trial.draws.uniform(0, _LONGEST_SECONDS)
    while command.is_running and time.monotonic() < end:
        trial.watch()
        time.sleep(0.1)
    return command.is_running


def _kill_one_kind(trial: Trial, command: Command) -> None:
    """Kill the processes of a kind drawn among those that live; of the workers, one."""
    family = trial.family()
    living = {name: list(filter(is_victim, family)) for name, is_victim in _VICTIMS.items()}
    living["driver"] = [process for process in family if process.pid == command.process.pid]
    there = sorted(name for name, victims in living.items() if victims)
    if there:
        name = trial.draws.choice(there)
        trial.injected[f"{name} killed"] += bool(kill(living[name][:1] if name == "worker" else living[name]))


FAULT = Fault("chaos", kill_at_random, "0, 3, or -9 where the driver was killed; resumed: 0")
