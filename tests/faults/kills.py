"""Faults that kill processes: workers (also during a commit), the driver, and Ray's processes (also while starting)."""

import time
from collections.abc import Callable

import psutil

from robust201.cli.console import show_count
from robust201.core.files import WRITE_STEPS
from tests.faults.processes import is_head, is_link, is_ray, is_raylet, is_worker, kill
from tests.faults.trial import INLINE, N_UNITS, Command, Trial

_WITHOUT_RAY_SECONDS = 90.0
"""Time for a driver without Ray to end: it searches for Ray for 20 s, and does not collect dead children meanwhile."""

_PACE = 1.0
"""Delay of each part in seconds, so that processes can be killed in the middle of a run."""

_MAX_PAUSE_SECONDS = 25.0
"""Maximum time between two random kills; starting takes less, unless the machine is overloaded."""

_VICTIMS: dict[str, Callable[[psutil.Process], bool]] = {
    "raylet": is_raylet,
    "head": is_head,
    "link": is_link,
    "all of Ray": is_ray,
}


def kill_worker(trial: Trial) -> None:
    """Kill one worker at a time; the run continues."""
    trial.write_sweep()
    trial.order(pace=_PACE)
    command = trial.start_in_the_middle()
    for _ in range(trial.repeats):
        trial.injected["workers killed"] += kill(trial.workers()[:1])
        shards = trial.count_shards()
        if shards + 4 >= N_UNITS:
            break
        trial.wait_for_shards(shards + 2, command)
    trial.finish(command, {0})
    command.expect(f"{show_count(trial.injected['workers killed'], 'worker')} died")


def kill_driver(trial: Trial) -> None:
    """Kill the driver; its workers must end as well, and the same command completes the sweep."""
    trial.write_sweep()
    trial.order(pace=_PACE)
    for _ in range(trial.repeats):
        trial.kill_driver(trial.start_in_the_middle())
    trial.resume()


def kill_raylet(trial: Trial) -> None:
    _kill_ray(trial, "raylet")


def kill_head(trial: Trial) -> None:
    """Kill all processes of Ray at the same time."""
    _kill_ray(trial, "all of Ray")


def _kill_ray(trial: Trial, victim: str) -> None:
    trial.zombie_seconds = _WITHOUT_RAY_SECONDS
    trial.write_sweep()
    trial.order(pace=_PACE)
    for _ in range(trial.repeats):
        command = trial.start_in_the_middle()
        trial.injected[f"{victim} killed"] += bool(kill(filter(_VICTIMS[victim], trial.family())))
        trial.finish(command, {3}, seconds=120)
    trial.order()
    trial.resume(*INLINE)  # `kill_while_starting` tests starting Ray after a kill


def kill_while_starting(trial: Trial) -> None:
    """Kill raylet, head, the connected process, or all of Ray at each second of its start, once and twice.

    If it is killed once, Ray is restarted and the run continues. If it is killed twice, the run ends with exit code 3
    and a one-line error.
    """
    trial.zombie_seconds = _WITHOUT_RAY_SECONDS
    trial.write_sweep(workers=1)
    victims = list(_VICTIMS.values())
    for second in range(trial.repeats):
        command = trial.start_run("--keys", "clean")
        for _ in range(second % 2 + 1):
            if not _kill_after_appearance(trial, command, victims[second % len(victims)], second):
                break  # the command had finished before that second
        code = trial.finish(command, {0, 3})
        assert "Traceback" not in command.text(), command.text()[-400:]
        assert code == 0 or "--executor inline" in command.text().splitlines()[-1]
    trial.resume()


def _kill_after_appearance(
    trial: Trial, command: Command, is_victim: Callable[[psutil.Process], bool], seconds: float
) -> bool:
    """Kill some processes of a command `seconds` after they appear; return False if it ends before."""
    while command.is_running and not any(map(is_victim, trial.family())):
        time.sleep(0.1)
    _pause(trial, command, seconds)
    victims = list(filter(is_victim, trial.family()))
    trial.injected["starts killed"] += bool(kill(victims))
    psutil.wait_procs(victims, timeout=10)
    return bool(victims)


def _pause(trial: Trial, command: Command, seconds: float) -> bool:
    """Wait while a command runs, for at most `seconds`; return whether it is still running."""
    end = time.monotonic() + seconds
    while command.is_running and time.monotonic() < end:
        trial.watch()
        time.sleep(0.1)
    return command.is_running


def kill_while_committing(trial: Trial) -> None:
    """Kill the worker once at each of several steps of writing a shard; the run continues."""
    steps = trial.draws.sample(WRITE_STEPS, min(trial.repeats, len(WRITE_STEPS)))
    trial.write_sweep(max_attempts=len(steps) + 1)
    trial.order(die_at_steps=steps)
    trial.run()
    claimed = trial.claims("died-")
    trial.injected["workers killed at a step"] += len(claimed)
    assert len(claimed) == len(steps), f"killed only at {claimed}, expected {steps}"


def kill_at_random(trial: Trial) -> None:
    """Kill driver, link, head, raylet, a worker or all of Ray at random moments; resume until complete."""
    trial.zombie_seconds = _WITHOUT_RAY_SECONDS
    trial.write_sweep()
    trial.order(pace=_PACE)
    while trial.injected.total() < trial.repeats:
        shards = sorted((trial.results / "shards").rglob("[!.]*.parquet"))
        if len(shards) > N_UNITS // 2:  # there must be enough work left for the next kill
            for shard in trial.draws.sample(shards, N_UNITS // 2):
                shard.unlink()
        command = trial.start_run()
        while trial.injected.total() < trial.repeats and _pause(
            trial, command, trial.draws.uniform(0, _MAX_PAUSE_SECONDS)
        ):
            _kill_random_kind(trial, command)
        trial.finish(command, {0, 3, -9})
        assert "Traceback" not in command.text(), command.text()[-400:]
    trial.order()
    trial.resume()


def _kill_random_kind(trial: Trial, command: Command) -> None:
    """Kill all live processes of a random kind; in the case of workers, only one."""
    family = trial.family()
    living = {name: list(filter(is_victim, family)) for name, is_victim in _VICTIMS.items()}
    living["worker"] = list(filter(is_worker, family))[:1]
    living["driver"] = [process for process in family if process.pid == command.process.pid]
    name = trial.draws.choice(sorted(name for name, victims in living.items() if victims) or ["driver"])
    trial.injected[f"{name} killed"] += bool(kill(living[name]))
