"""Processes that are killed: workers, also in a commit, the driver, and Ray, in part or whole, also while it starts."""

import time
from collections.abc import Callable

import psutil

from robust201.cli.console import show_count
from robust201.core.files import WRITE_STEPS
from tests.faults.processes import is_head, is_link, is_ray, is_raylet, is_worker, kill
from tests.faults.trial import INLINE, N_UNITS, Command, Trial

_WITHOUT_RAY_SECONDS = 90.0
"""Time for a driver to end whose Ray is dead: it looks for it for 20 s, and collects none of its processes."""

_PACE = 1.0
"""Seconds that each part is held up, so that there is a middle to be killed in."""

_LONGEST_SECONDS = 25.0
"""Largest pause between two random kills: by then a start is over, on a machine that is not overloaded."""

_VICTIMS: dict[str, Callable[[psutil.Process], bool]] = {
    "raylet": is_raylet,
    "head": is_head,
    "link": is_link,
    "all of Ray": is_ray,
}


def kill_worker(trial: Trial) -> None:
    """Kill one worker at a time; the run goes on by itself."""
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
    """Kill the driver; its workers must end too, and the same command completes the sweep."""
    trial.write_sweep()
    trial.order(pace=_PACE)
    for _ in range(trial.repeats):
        trial.kill_driver(trial.start_in_the_middle())
    trial.resume()


def kill_raylet(trial: Trial) -> None:
    _kill_ray(trial, "raylet")


def kill_head(trial: Trial) -> None:
    """Kill every process of Ray at once."""
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
    trial.resume(*INLINE)  # starts of Ray after a kill are `kill_while_starting`'s


def kill_while_starting(trial: Trial) -> None:
    """Kill raylet, head, the process connected to them, or all of Ray in each second of its start, once and twice.

    Killed once, Ray is started again and the run goes on; killed twice, it ends in 3 and one line.
    """
    trial.zombie_seconds = _WITHOUT_RAY_SECONDS
    trial.write_sweep(workers=1)
    victims = list(_VICTIMS.values())
    for second in range(trial.repeats):
        command = trial.start_run("--keys", "clean")
        for _ in range(second % 2 + 1):
            if not _kill_when_there(trial, command, victims[second % len(victims)], second):
                break  # it was up and had computed everything, or had ended, before that second
        code = trial.finish(command, {0, 3})
        assert "Traceback" not in command.text(), command.text()[-400:]
        assert code == 0 or "--executor inline" in command.text().splitlines()[-1]
    trial.resume()


def _kill_when_there(
    trial: Trial, command: Command, is_victim: Callable[[psutil.Process], bool], seconds: float
) -> bool:
    """Kill some processes of a command so many seconds after they appeared; False if it ended before."""
    while command.is_running and not any(map(is_victim, trial.family())):
        time.sleep(0.1)
    _pause(trial, command, seconds)
    victims = list(filter(is_victim, trial.family()))
    trial.injected["starts killed"] += bool(kill(victims))
    psutil.wait_procs(victims, timeout=10)
    return bool(victims)


def _pause(trial: Trial, command: Command, seconds: float) -> bool:
    """Let a command run for some time; return whether it still runs."""
    end = time.monotonic() + seconds
    while command.is_running and time.monotonic() < end:
        trial.watch()
        time.sleep(0.1)
    return command.is_running


def kill_while_committing(trial: Trial) -> None:
    """Kill the worker at each step of writing a shard (or some), once each; the run goes on by itself."""
    steps = trial.draws.sample(WRITE_STEPS, min(trial.repeats, len(WRITE_STEPS)))
    trial.write_sweep(max_attempts=len(steps) + 1)
    trial.order(die_at_steps=steps)
    trial.run()
    killed = trial.claims("died-")
    trial.injected["workers killed at a step"] += len(killed)
    assert len(killed) == len(steps), f"killed at {killed} only, of {steps}"


def kill_at_random(trial: Trial) -> None:
    """Kill driver, link, head, raylet, a worker or all of Ray at random moments; resume until complete."""
    trial.zombie_seconds = _WITHOUT_RAY_SECONDS
    trial.write_sweep()
    trial.order(pace=_PACE)
    while trial.injected.total() < trial.repeats:
        shards = sorted((trial.results / "shards").rglob("[!.]*.parquet"))
        if len(shards) > N_UNITS // 2:  # there must always be something to be killed in
            for shard in trial.draws.sample(shards, N_UNITS // 2):
                shard.unlink()
        command = trial.start_run()
        while trial.injected.total() < trial.repeats and _pause(
            trial, command, trial.draws.uniform(0, _LONGEST_SECONDS)
        ):
            _kill_one_kind(trial, command)
        trial.finish(command, {0, 3, -9})
        assert "Traceback" not in command.text(), command.text()[-400:]
    trial.order()
    trial.resume()


def _kill_one_kind(trial: Trial, command: Command) -> None:
    """Kill the processes of a kind drawn among those that live; of the workers, one."""
    family = trial.family()
    living = {name: list(filter(is_victim, family)) for name, is_victim in _VICTIMS.items()}
    living["worker"] = list(filter(is_worker, family))[:1]
    living["driver"] = [process for process in family if process.pid == command.process.pid]
    name = trial.draws.choice(sorted(name for name, victims in living.items() if victims) or ["driver"])
    trial.injected[f"{name} killed"] += bool(kill(living[name]))
