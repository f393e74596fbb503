"""Faults that kill workers, the driver or Ray's processes, even while a worker commits or Ray starts."""

import time
from collections.abc import Callable

import psutil

from robust201.cli.console import format_count
from robust201.core.files import WRITE_STEPS
from tests.faults.processes import is_connecting_child, is_head, is_ray, is_raylet, is_worker, kill
from tests.faults.trial import INLINE, N_UNITS, Command, Trial

_ZOMBIE_SECONDS_WITHOUT_RAY = 90.0
"""Time within which a parent must reap dead children if Ray was killed: a driver searches for Ray for 20 s."""

_SECONDS_PER_PART = 1.0
"""Delay of each part in seconds, so that processes can be killed in the middle of a run."""

_MAX_PAUSE_SECONDS = 25.0
"""Maximum time between two random kills. A run needs less time to start, unless the machine is overloaded."""

_VICTIMS: dict[str, Callable[[psutil.Process], bool]] = {
    "raylet": is_raylet,
    "head": is_head,
    "connecting child": is_connecting_child,
    "all of Ray": is_ray,
}


def kill_worker(trial: Trial) -> None:
    """Kill one worker at a time; the run continues."""
    trial.write_sweep()
    trial.set_faults(seconds_per_part=_SECONDS_PER_PART)
    command = trial.run_to_middle()
    for _ in range(trial.repeats):
        trial.injection_counts["workers killed"] += kill(trial.workers()[:1])
        n_shards = trial.count_shards()
        if n_shards + 4 >= N_UNITS:  # too little work remains for another kill
            break
        trial.wait_for_shards(n_shards + 2, command)
    trial.finish(command, {0})
    command.expect_output(f"{format_count(trial.injection_counts['workers killed'], 'worker')} died")


def kill_driver(trial: Trial) -> None:
    """Kill the driver; its workers must end too, and the same command completes the sweep."""
    trial.write_sweep()
    trial.set_faults(seconds_per_part=_SECONDS_PER_PART)
    for _ in range(trial.repeats):
        trial.kill_driver(trial.run_to_middle())
    trial.resume()


def kill_raylet(trial: Trial) -> None:
    _kill_ray(trial, "raylet")


def kill_all_of_ray(trial: Trial) -> None:
    """Kill all processes of Ray at the same time."""
    _kill_ray(trial, "all of Ray")


def _kill_ray(trial: Trial, victim: str) -> None:
    trial.zombie_seconds = _ZOMBIE_SECONDS_WITHOUT_RAY
    trial.write_sweep()
    trial.set_faults(seconds_per_part=_SECONDS_PER_PART)
    for _ in range(trial.repeats):
        command = trial.run_to_middle()
        trial.injection_counts[f"{victim} killed"] += bool(kill(filter(_VICTIMS[victim], trial.live_processes())))
        trial.finish(command, {3}, seconds=120)
    trial.set_faults()
    trial.resume(*INLINE)  # `kill_while_starting` tests starting Ray after a kill


def kill_while_starting(trial: Trial) -> None:
    """Kill the raylet, the head, the connecting child or all of Ray while Ray starts.

    In each run, the first kill comes one second later than in the run before. Every second run has a second kill. After
    one kill, Ray is restarted and the run continues. After two kills, the run ends with exit code 3 and a one-line
    error.
    """
    trial.zombie_seconds = _ZOMBIE_SECONDS_WITHOUT_RAY
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
    """Kill a command's victims `seconds` after the first has appeared; return False if none is alive then."""
    while command.is_running and not any(map(is_victim, trial.live_processes())):
        time.sleep(0.1)
    _pause(trial, command, seconds)
    victims = list(filter(is_victim, trial.live_processes()))
    trial.injection_counts["starts killed"] += bool(kill(victims))
    psutil.wait_procs(victims, timeout=10)
    return bool(victims)


def _pause(trial: Trial, command: Command, seconds: float) -> bool:
    """Wait while a command runs, for at most `seconds`; return whether it is still running."""
    deadline = time.monotonic() + seconds
    while command.is_running and time.monotonic() < deadline:
        trial.check_zombies()
        time.sleep(0.1)
    return command.is_running


def kill_while_committing(trial: Trial) -> None:
    """Kill the worker once at each of several steps of writing a shard; the run continues."""
    steps = trial.rng.sample(WRITE_STEPS, min(trial.repeats, len(WRITE_STEPS)))
    trial.write_sweep(max_attempts=len(steps) + 1)
    trial.set_faults(die_at_write_steps=steps)
    trial.run()
    deaths = trial.occurrences("died-")
    trial.injection_counts["workers killed at a step"] += len(deaths)
    assert len(deaths) == len(steps), f"workers were killed at {deaths}, but not at all of {steps}"


def kill_at_random(trial: Trial) -> None:
    """Kill a worker, the driver, the connecting child, head, raylet or all of Ray at random times; then resume."""
    trial.zombie_seconds = _ZOMBIE_SECONDS_WITHOUT_RAY
    trial.write_sweep()
    trial.set_faults(seconds_per_part=_SECONDS_PER_PART)
    while trial.injection_counts.total() < trial.repeats:
        shards = sorted((trial.results / "shards").rglob("[!.]*.parquet"))
        if len(shards) > N_UNITS // 2:  # enough work must remain for the next kill
            for shard in trial.rng.sample(shards, N_UNITS // 2):
                shard.unlink()
        command = trial.start_run()
        while trial.injection_counts.total() < trial.repeats and _pause(
            trial, command, trial.rng.uniform(0, _MAX_PAUSE_SECONDS)
        ):
            _kill_random_processes(trial, command)
        trial.finish(command, {0, 3, -9})
        assert "Traceback" not in command.text(), command.text()[-400:]
    trial.set_faults()
    trial.resume()


def _kill_random_processes(trial: Trial, command: Command) -> None:
    """Kill all live processes that have a randomly chosen role, or one of the workers."""
    live_processes = trial.live_processes()
    processes_by_role = {role: list(filter(is_victim, live_processes)) for role, is_victim in _VICTIMS.items()}
    processes_by_role["worker"] = list(filter(is_worker, live_processes))[:1]
    processes_by_role["driver"] = [process for process in live_processes if process.pid == command.process.pid]
    role = trial.rng.choice(sorted(role for role, victims in processes_by_role.items() if victims) or ["driver"])
    trial.injection_counts[f"{role} killed"] += bool(kill(processes_by_role[role]))
