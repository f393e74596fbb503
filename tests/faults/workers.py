"""Workers that run out of memory, that a unit kills each time, or that take longer than there is time."""

import json
import signal
import time

from tests.faults.trial import ARCHITECTURES, KEYS, Trial
from tests.faults.verdict import export

POISON = (ARCHITECTURES[1], "pgd")
_DRAIN_SECONDS = 2.0


def run_out_of_memory(trial: Trial) -> dict[str, bool]:
    """Let memory run out above eight images at once; the micro-batch halves, and the run goes on by itself."""
    trial.write_sweep()
    trial.order(memory={"images": 8})
    trial.run("--executor", "inline")
    trial.injected["allocations refused"] += len(trial.claims("memory-"))
    trial.fail_unless(trial.injected["allocations refused"], "no allocation was refused")
    return {"tolerant": True}


def poison_unit(trial: Trial) -> None:
    """Let one unit kill its worker whenever it is tried; all others are computed, it is listed, and the run ends in 3.

    Once it kills no more, the same command completes the sweep.
    """
    trial.write_sweep()
    trial.order(poison=[POISON])
    poisoned = trial.run(expected={3})
    trial.injected["workers killed by the unit"] += len(trial.claims("poison-"))
    trial.fail_unless(trial.injected["workers killed by the unit"] >= 3, "given up too early")
    index, key = POISON
    trial.fail_unless(f"#{index} digits {key}" in poisoned.text(), f"not named: {poisoned.text()[-400:]}")
    failures = [json.loads(line) for line in (trial.results / "failures.jsonl").read_text().splitlines()]
    trial.fail_unless([failure["kind"] for failure in failures] == ["killed"], f"other failures: {failures}")
    _expect_all_but_the_poison(trial)
    trial.order()
    trial.run()


def _expect_all_but_the_poison(trial: Trial) -> None:
    """Every other evaluation must have the bytes of the undisturbed run: those of its row in each file."""
    index, key = str(POISON[0]), POISON[1]
    found = export(trial.results, trial.folder / "partial", partial=True)
    for name, content in trial.undisturbed.items():
        if not name.startswith("digits/"):
            continue
        expected, got = _rows(content), _rows(found.get(name, b"{}"))
        lacking = {row for row in expected if row not in got}
        trial.fail_unless(
            lacking == ({index} if f"/{key}_" in name else set()), f"{name} lacks the rows {sorted(lacking)}"
        )
        trial.fail_unless(all(expected[row] == got[row] for row in got), f"{name} differs in a row")


def _rows(content: bytes) -> dict[str, str]:
    """Text of each architecture's row, however deep it lies in the JSON."""
    rows: dict[str, str] = {}

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if str(name).isdigit():
                    rows[name] = json.dumps(inner)
                else:
                    walk(inner)

    walk(json.loads(content))
    return rows


def drain_past_deadline(trial: Trial) -> None:
    """Send SIGTERM while a part takes far longer than `drain_seconds`; the run ends in order, and can be resumed."""
    _drain(trial)


def drain_past_deadline_inline(trial: Trial) -> None:
    """The same where the driver itself computes."""
    _drain(trial, "--executor", "inline")


def _drain(trial: Trial, *options: str) -> None:
    trial.write_sweep(drain_seconds=_DRAIN_SECONDS)
    slow = next(reversed(KEYS))
    trial.order(slow={"key": slow, "seconds": 3600})
    command = trial.start_run(*options)
    trial.wait_until(lambda: trial.claims("slow-"), command, f"a part of {slow}")
    trial.family()
    command.process.send_signal(signal.SIGTERM)
    trial.injected["SIGTERM in a part of an hour"] += 1
    trial.finish(command, {3}, seconds=90)
    trial.fail_unless(
        "ran out" in command.text(), f"the end of the time to finish is not told: {command.text()[-300:]}"
    )
    state = json.loads((trial.results / "progress.json").read_text())["state"]
    trial.fail_unless(state == "drained", f"progress.json says {state}")
    trial.order()
    trial.resume(*options)


def interrupt_twice(trial: Trial) -> None:
    """Send SIGTERM twice while a part takes an hour; the run ends at once, and can be resumed."""
    trial.write_sweep()
    slow = next(reversed(KEYS))
    trial.order(slow={"key": slow, "seconds": 3600})
    command = trial.start_run()
    trial.wait_until(lambda: trial.claims("slow-"), command, f"a part of {slow}")
    trial.family()
    for _ in range(2):
        command.process.send_signal(signal.SIGTERM)
        trial.injected["SIGTERM in a part of an hour"] += 1
        time.sleep(1)
    trial.finish(command, {3}, seconds=90)
    trial.order()
    trial.resume()
