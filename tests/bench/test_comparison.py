"""`robust201 bench`: a user's loop and `run` give equal results, and their times are measured and compared."""

import json
import math
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from robust201.bench.comparison import (
    AttackBudget,
    ContenderTimes,
    Loop,
    Machine,
    RunTime,
    Subject,
    Sweep,
    TimeComparison,
    make_loops,
    run_timed,
)
from robust201.bench.generated import random_subjects
from robust201.cli import bench as bench_command
from robust201.core.errors import EvaluationError
from robust201.core.records import Normalisation
from tests.conftest import RunCommand

SHORT_ATTACKS = AttackBudget((1.0, 8.0), (1.0, 8.0), pgd_steps=2, apgd_steps=2, queries=3)
NO_FILE = Path("nowhere")


def make_times(contender: Loop | Sweep, start: float, total: float, accuracy: float = 0.5) -> ContenderTimes:
    """Return the times of a contender whose CPU time is ten times its wall time."""
    starts, totals = ([RunTime(seconds, 10 * seconds)] for seconds in (start, total))
    return ContenderTimes(contender, starts, totals, {"clean": {0.0: accuracy}})


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    """Return a tiny network with random weights, and four digits, written to files."""
    (subject,) = random_subjects(["309"], 4, tmp_path, channels=4, cells=1)
    return subject


def test_ratio_is_relative_to_best_loop() -> None:
    subject = Subject("309", NO_FILE, NO_FILE, 4, 32, 10, Normalisation((0, 0, 0), (1, 1, 1)))
    slow_loop, fast_loop = Loop("default", 4), Loop("channels_last", 4)
    comparison = TimeComparison(
        subject, (make_times(slow_loop, 1, 11), make_times(fast_loop, 1, 5, 0.75), make_times(Sweep(), 3, 5))
    )
    assert comparison.best("wall").contender == fast_loop
    assert comparison.ratio("wall") == comparison.ratio("cpu") == pytest.approx(4 / 2)
    assert comparison.ratio("wall", with_start_up=True) == pytest.approx(5 / 5)
    assert comparison.largest_difference == pytest.approx(0.25)


def test_ratio_is_nan_for_attacks_too_short_to_measure() -> None:
    subject = Subject("309", NO_FILE, NO_FILE, 4, 32, 10, Normalisation((0, 0, 0), (1, 1, 1)))
    comparison = TimeComparison(subject, (make_times(Loop("default", 4), 1, 11), make_times(Sweep(), 5, 4.9)))
    assert math.isnan(comparison.ratio("wall"))
    assert comparison.ratio("wall", with_start_up=True) == pytest.approx(11 / 4.9)


def test_make_loops_lists_each_batch_size_once() -> None:
    assert [loop.batch for loop in make_loops(24) if loop.layout == "default"] == [24]
    assert [loop.batch for loop in make_loops(500) if loop.layout == "default"] == [50, 250, 500]


def test_run_timed_includes_child_processes(tmp_path: Path) -> None:
    child_code = "import time\nend = time.process_time() + .2\nwhile time.process_time() < end: pass\nprint('done')"
    parent_code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child_code!r}], check=True)"
    run_time, output = run_timed([sys.executable, "-c", parent_code], os.environ, tmp_path / "log")
    assert output == "done\n"
    assert min(run_time) > 0.2


def test_run_timed_error_shows_last_lines_of_failed_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such luck')"]
    with pytest.raises(EvaluationError, match="it ended with exit code 1: no such luck"):
        run_timed(command, os.environ, tmp_path / "log")


def test_loop_and_reference_engine_give_equal_accuracies(
    subject: Subject,
    robust201: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Accuracies of attacks without random numbers are compared exactly."""
    from robust201.tasks.perturbations.foolbox_engine import foolbox  # This import suppresses Foolbox's warning.

    user_loop = import_module("robust201.bench.user_loop")
    assert user_loop.foolbox is foolbox
    loop_command = Loop("channels_last", 3).command(subject, SHORT_ATTACKS, Machine(), tmp_path, with_attacks=True)
    monkeypatch.setattr(sys, "argv", loop_command[2:])
    user_loop.run_loop()
    accuracies = Loop("channels_last", 3).read(tmp_path, capsys.readouterr().out)
    sweep = Sweep(engine="reference")
    command = sweep.command(subject, SHORT_ATTACKS, Machine(), tmp_path, with_attacks=True)
    assert command[1:3] == ["-m", "robust201"]
    assert robust201(*command[3:]).code == 0
    sweep_accuracies = sweep.read(tmp_path, "")
    assert {key: list(by_strength) for key, by_strength in accuracies.items()} == {
        key: list(by_strength) for key, by_strength in sweep_accuracies.items()
    }
    assert accuracies["clean"] == sweep_accuracies["clean"] == {0.0: 1.0}
    assert accuracies["fgsm"] == sweep_accuracies["fgsm"]


def test_bench_prints_table_and_writes_times(
    robust201: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = []

    def fake_run_timed(command: list[str], environment: dict[str, str], log: Path) -> tuple[RunTime, str]:
        commands.append(command)
        assert environment["OMP_NUM_THREADS"] == "2"
        # The option without values means no attacks.
        has_attacks = "--attacks" in command and command[-1] != "--attacks"
        is_loop = "robust201.bench.user_loop" in command
        wall = 1.0 + has_attacks * (8.0 if "default" in command else 4.0) if is_loop else 2.0
        return RunTime(wall, 1.0), '{"clean": {"0": 1}}'

    monkeypatch.setattr("robust201.bench.comparison.run_timed", fake_run_timed)
    monkeypatch.setattr(Sweep, "read", lambda *_: {"clean": {0.0: 1.0}})
    json_file = tmp_path / "bench.json"
    repeated_architecture = "309,0309"
    result = robust201(
        "bench", "--architectures", repeated_architecture, "--count", 4, "--threads", 2, "--out", json_file
    )
    assert result.code == 0, result.err
    assert "#309" in result.out
    assert result.err.startswith("Timing 1 network, ")
    assert "random" in result.out
    (comparison,) = json.loads(json_file.read_text())
    assert {label.split(",")[0] for label in comparison["seconds"]} == {"loop", "robust201"}
    assert comparison["images"] == 4
    # The first loop runs without attacks, to measure the start-up, and with attacks; the second loop only with attacks,
    # because its start-up is the same; the sweep runs without and with attacks.
    assert len(commands) == 2 + 1 + 2
    queries = commands[1][commands[1].index("--queries") + 1]
    assert int(queries) * bench_command.PAPER_BUDGET_DIVISOR == 5000


def test_bench_rejects_unknown_devices_and_architectures(robust201: RunCommand) -> None:
    assert "--device" in robust201("bench", "--device", "tpu").error_line(2)
    assert "309x" in robust201("bench", "--architectures", "309x").error_line(2)
