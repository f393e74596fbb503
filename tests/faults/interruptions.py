"""Various faults: too little memory, a unit that kills its worker, signals, clocks that jump, and a second driver."""

import json
import re
import signal
import subprocess
import time

import pytest

from tests.faults.trial import ARCHITECTURES, INLINE, KEYS, Command, Trial
from tests.faults.verdict import export

POISONOUS_UNIT = (ARCHITECTURES[1], "pgd")
_SLOW_KEY = next(reversed(KEYS))

HOUR = 3600.0
CLOCK_JUMPS = (0.0, 3 * HOUR, -2 * HOUR, 72 * HOUR, -48 * HOUR, 1.5)
"""Offsets in seconds from the real time. Each reading of the clock by a process uses the next offset, cyclically."""

_OTHER_HOST_WRAPPER = (
    *("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", 'hostname robust201-other && exec "$0" "$@"'),
)
"""Beginning of a command line that runs a command as if on another host."""


def run_out_of_memory(trial: Trial) -> None:
    """Make batches of more than eight images run out of memory; micro-batches are halved, and the run continues."""
    trial.write_sweep()
    trial.set_faults(memory={"images": 8})
    trial.run(*INLINE)
    trial.injection_counts["failed allocations"] += len(trial.occurrences("memory-"))


def poison_unit(trial: Trial) -> None:
    """Make a unit kill its worker on every attempt.

    The unit is reported, all other units are computed, and the exit code is 3. Without the fault, the same command then
    completes the sweep.
    """
    trial.write_sweep()
    trial.set_faults(poison=[POISONOUS_UNIT])
    command = trial.run(expected_codes={3})
    trial.injection_counts["workers killed by the unit"] += len(trial.occurrences("poison-"))
    assert trial.injection_counts["workers killed by the unit"] >= 3, "the unit was given up too early"
    index, key = POISONOUS_UNIT
    command.expect_output(f"#{index} digits {key}")
    failures = [json.loads(line) for line in (trial.results / "failures.jsonl").read_text().splitlines()]
    assert [failure["kind"] for failure in failures] == ["killed"], f"other failures: {failures}"
    _check_other_evaluations(trial)
    trial.set_faults()
    trial.run()


def _check_other_evaluations(trial: Trial) -> None:
    """Check that the rows of all units except `POISONOUS_UNIT` equal those of the undisturbed run."""
    index, key = str(POISONOUS_UNIT[0]), POISONOUS_UNIT[1]
    exported = export(trial.results, trial.folder / "partial", partial=True)
    for name, content in trial.expected_files.items():
        if name.startswith("digits/"):
            expected = _rows(json.loads(content))
            if f"/{key}_" in name:
                del expected[index]
            assert _rows(json.loads(exported.get(name, b"{}"))) == expected, name


def _rows(content: dict[str, object]) -> dict[str, str]:
    """Return the JSON text of each architecture's row, which may be at any depth."""
    rows = {name: json.dumps(value) for name, value in content.items() if name.isdigit()}
    for name, value in content.items():
        if isinstance(value, dict) and name not in rows:
            rows |= _rows(value)
    return rows


def drain_past_deadline(trial: Trial, *options: str) -> None:
    """Send SIGTERM while a part takes much longer than `drain_seconds`; the run still ends and can be resumed."""
    trial.write_sweep(drain_seconds=2.0)
    command = _start_slow_part(trial, *options)
    _terminate(trial, command)
    trial.finish(command, {3}, seconds=90)
    command.expect_output("ran out")
    assert json.loads((trial.results / "progress.json").read_text())["state"] == "drained"
    trial.set_faults()
    trial.resume(*options)


def drain_past_deadline_inline(trial: Trial) -> None:
    drain_past_deadline(trial, *INLINE)


def interrupt_twice(trial: Trial) -> None:
    """Send SIGTERM twice while a part takes an hour; the run ends immediately and can be resumed."""
    trial.write_sweep()
    command = _start_slow_part(trial)
    for _ in range(2):
        _terminate(trial, command)
        time.sleep(1)
    trial.finish(command, {3}, seconds=90)
    trial.set_faults()
    trial.resume()


def _start_slow_part(trial: Trial, *options: str) -> Command:
    trial.set_faults(slow={"key": _SLOW_KEY, "seconds": HOUR})
    command = trial.start_run(*options)
    trial.wait_until(lambda: trial.occurrences("slow-"), command, f"a part of {_SLOW_KEY}")
    return command


def _terminate(trial: Trial, command: Command) -> None:
    trial.live_processes()  # records the driver's children for `check_zombies`
    command.process.send_signal(signal.SIGTERM)
    trial.injection_counts["SIGTERM during a slow part"] += 1


def jump_clock(trial: Trial) -> None:
    """Make the wall clock jump whenever it is read, in a run and in simultaneous commands.

    If the clock of `merge --compact` is three days ahead, all grace periods are over. It may then delete files, but
    must not lose results.
    """
    trial.write_sweep()
    trial.set_faults(clock=CLOCK_JUMPS, seconds_per_part=0.5)
    run = trial.start_run(*INLINE)
    trial.wait_for_shards(4, run)
    _check_status(trial, is_running=True)
    for _ in range(1 + trial.repeats):
        trial.set_faults(clock=[72 * HOUR])
        trial.finish(trial.start("merge", str(trial.results), "--compact"), {0})
        trial.injection_counts["compactions three days ahead"] += 1
    trial.finish(run, {0})
    assert not re.search(r"\s-\d", run.text()), f"a negative rate or time: {run.text()[-300:]}"
    trial.injection_counts["clock jumps"] += len(trial.occurrences("jump-"))
    trial.set_faults(clock=[-48 * HOUR])
    _check_status(trial, is_running=False)
    trial.finish(trial.start("merge", str(trial.results), "--compact"), {0})
    trial.run(*INLINE)
    trial.set_faults()


def _check_status(trial: Trial, *, is_running: bool) -> None:
    """Check that `status` reports no negative rates or times, and does not report a run that has ended as running."""
    command = trial.start("status", str(trial.results), "--json")
    trial.finish(command, {0})
    status = json.loads(command.text())
    for name in ("evaluations_per_second", "seconds_left", "worker_seconds"):
        assert (status[name] or 0) >= 0, f"{name} is {status[name]}"
    assert is_running or not status["running"], "a run that has ended counts as running"


def start_second_driver(trial: Trial) -> None:
    """Start a second driver on the same host; it is rejected while the first driver is alive, even if suspended."""
    first_driver = _start_first_driver(trial)
    _expect_rejection(trial, ())
    first_driver.process.send_signal(signal.SIGSTOP)
    _expect_rejection(trial, ())
    first_driver.process.send_signal(signal.SIGCONT)
    trial.wait_for_shards(trial.count_shards() + 2, first_driver)
    trial.kill_driver(first_driver)
    trial.run(*INLINE)


def start_second_driver_elsewhere(trial: Trial) -> None:
    """Start a second driver on another host; it is rejected until the first driver is killed."""
    _require_namespaces()
    first_driver = _start_first_driver(trial)
    _expect_rejection(trial, _OTHER_HOST_WRAPPER)
    trial.kill_driver(first_driver)
    trial.set_faults()
    second_driver = trial.start_run(*INLINE, wrapper=_OTHER_HOST_WRAPPER)
    trial.finish(second_driver, {0})
    second_driver.expect_output("watching its heartbeat")


def suspend_driver_until_takeover(trial: Trial) -> None:
    """Suspend the first driver until a driver on another host takes over; when resumed, the first driver stops."""
    _require_namespaces()
    first_driver = _start_first_driver(trial)
    first_driver.process.send_signal(signal.SIGSTOP)
    trial.injection_counts["drivers suspended"] += 1
    second_driver = trial.start_run(*INLINE, wrapper=_OTHER_HOST_WRAPPER)
    trial.wait_for_shards(trial.count_shards() + 1, second_driver)
    first_driver.process.send_signal(signal.SIGCONT)
    trial.finish(first_driver, {4})
    first_driver.expect_output("Keeping the lease failed")
    lease = json.loads((trial.results / "lease.json").read_text(encoding="utf-8"))
    assert lease["host_id"]["host"] == "robust201-other", "the lease changed hands again"
    trial.finish(second_driver, {0})


def _start_first_driver(trial: Trial) -> Command:
    trial.write_sweep()
    trial.set_faults(seconds_per_part=1.5)
    first_driver = trial.start_run(*INLINE)
    trial.wait_for_shards(2, first_driver)
    return first_driver


def _expect_rejection(trial: Trial, wrapper: tuple[str, ...]) -> None:
    second_driver = trial.start_run(*INLINE, wrapper=wrapper)
    trial.finish(second_driver, {4})
    trial.injection_counts["second drivers rejected"] += 1
    second_driver.expect_output("which is alive")


def _require_namespaces() -> None:
    result = subprocess.run([*_OTHER_HOST_WRAPPER, "true"], check=False, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"namespaces cannot be created: {result.stderr.strip()}")
