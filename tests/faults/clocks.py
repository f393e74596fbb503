"""Clocks that jump by hours and days while a sweep runs, is looked at and is compacted."""

import json
import re

from tests.faults.trial import Trial

HOUR = 3600.0
JUMPS = (0.0, 3 * HOUR, -2 * HOUR, 72 * HOUR, -48 * HOUR, 1.5)
"""Seconds that are added to the wall clock, in turn, each time a process asks for it."""


def jump_clock(trial: Trial) -> None:
    """Let the wall clock jump forward and backward at every look, in a run, its status and compactions beside it.

    Compactions whose clock is three days ahead find every grace period over; they may delete, but must lose nothing.
    """
    trial.write_sweep()
    trial.order(clock=JUMPS, pace=0.5)
    run = trial.start_run("--executor", "inline")
    trial.wait_for_shards(4, run)
    _look(trial, is_running=True)
    for _ in range(1 + trial.repeats):
        trial.order(clock=[72 * HOUR])
        trial.finish(trial.start("compact", str(trial.results)), {0})
        trial.injected["compactions three days ahead"] += 1
    trial.finish(run, {0})
    trial.fail_unless(not re.search(r"\s-\d", run.text()), f"a negative rate or time: {run.text()[-300:]}")
    trial.injected["clock jumps"] += len(trial.claims("jump-"))
    trial.order(clock=[-48 * HOUR])
    _look(trial, is_running=False)
    trial.finish(trial.start("compact", str(trial.results)), {0})
    trial.run("--executor", "inline")
    trial.order()


def _look(trial: Trial, *, is_running: bool) -> None:
    """Ask for the status: no rate and no time may be negative."""
    command = trial.start("status", str(trial.results), "--json")
    trial.finish(command, {0})
    state = json.loads(command.text())
    for name in ("evaluations_per_second", "seconds_left", "worker_seconds"):
        trial.fail_unless((state[name] or 0) >= 0, f"{name} is {state[name]}")
    trial.fail_unless(is_running or not state["running"], "a run that has ended counts as running")
