"""A user's loop compared with `run`: equal results, and the ratio to the best loop."""

import json
import math
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from robust201.bench.comparison import (
    Compared,
    Lengths,
    Loop,
    Machine,
    RunTime,
    Subject,
    Sweep,
    Timed,
    loops,
    run_timed,
)
from robust201.bench.generated import random_subjects
from robust201.cli import bench as verb
from robust201.core.errors import EvaluationError
from robust201.core.records import Normalisation
from tests.conftest import RunCommand

SHORT = Lengths((1.0, 8.0), (1.0, 8.0), pgd_steps=2, apgd_steps=2, queries=3)
NOWHERE = Path("nowhere")


def timed(way: Loop | Sweep, start: float, total: float, accuracy: float = 0.5) -> Timed:
    """Return times of a way whose CPU time is ten times its wall time."""
    starts, totals = ([RunTime(seconds, 10 * seconds)] for seconds in (start, total))
    return Timed(way, starts, totals, {"clean": {0.0: accuracy}})


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    """Write a tiny network with four digits."""
    (subject,) = random_subjects(["309"], 4, tmp_path, channels=4, cells=1)
    return subject


def test_ratio_compares_with_the_best_loop() -> None:
    subject = Subject("309", NOWHERE, NOWHERE, 4, 32, 10, Normalisation((0, 0, 0), (1, 1, 1)))
    slow, fast = Loop("default", 4), Loop("channels_last", 4)
    compared = Compared(subject, (timed(slow, 1, 11), timed(fast, 1, 5, 0.75), timed(Sweep(), 3, 5)))
    assert compared.best("wall").way == fast
    assert compared.ratio("wall") == compared.ratio("cpu") == pytest.approx(4 / 2)
    assert compared.ratio("wall", start_up=True) == pytest.approx(5 / 5)
    assert compared.largest_difference == pytest.approx(0.25)


def test_ratio_is_nan_for_attacks_too_short_to_measure() -> None:
    subject = Subject("309", NOWHERE, NOWHERE, 4, 32, 10, Normalisation((0, 0, 0), (1, 1, 1)))
    compared = Compared(subject, (timed(Loop("default", 4), 1, 11), timed(Sweep(), 5, 4.9)))
    assert math.isnan(compared.ratio("wall"))
    assert compared.ratio("wall", start_up=True) == pytest.approx(11 / 4.9)


def test_loops_contain_equal_batch_sizes_once() -> None:
    assert [loop.batch for loop in loops(24) if loop.layout == "default"] == [24]
    assert [loop.batch for loop in loops(500) if loop.layout == "default"] == [50, 250, 500]


def test_run_timed_includes_child_processes(tmp_path: Path) -> None:
    burn = "import time\nend = time.process_time() + .2\nwhile time.process_time() < end: pass\nprint('done')"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], check=True)"
    cost, output = run_timed([sys.executable, "-c", parent], os.environ, tmp_path / "log")
    assert output == "done\n"
    assert min(cost) > 0.2


def test_run_timed_reports_a_failed_process_with_its_last_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such luck')"]
    with pytest.raises(EvaluationError, match="expected exit code 0, got 1: no such luck"):
        run_timed(command, os.environ, tmp_path / "log")


def test_loop_and_reference_engine_give_equal_accuracies(
    subject: Subject,
    robust201: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Accuracies are compared exactly for the attacks without random draws."""
    from robust201.tasks.perturbations.foolbox_engine import foolbox  # This import suppresses Foolbox's warning.

    user_loop = import_module("robust201.bench.user_loop")
    assert user_loop.foolbox is foolbox
    loop_command = Loop("channels_last", 3).command(subject, SHORT, Machine(), tmp_path, attacks=True)
    monkeypatch.setattr(sys, "argv", loop_command[2:])
    user_loop.run_loop()
    accuracies = Loop("channels_last", 3).read(tmp_path, capsys.readouterr().out)
    sweep = Sweep(engine="reference")
    command = sweep.command(subject, SHORT, Machine(), tmp_path, attacks=True)
    assert command[1:3] == ["-m", "robust201"]
    assert robust201(*command[3:]).code == 0
    expected = sweep.read(tmp_path, "")
    assert {key: list(values) for key, values in accuracies.items()} == {key: list(by) for key, by in expected.items()}
    assert accuracies["clean"] == expected["clean"] == {0.0: 1.0}
    assert accuracies["fgsm"] == expected["fgsm"]


def test_bench_prints_a_table_and_writes_its_times(
    robust201: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = []

    def run_timed_fake(command: list[str], environment: dict[str, str], log: Path) -> tuple[RunTime, str]:
        commands.append(command)
        assert environment["OMP_NUM_THREADS"] == "2"
        attacks = "--attacks" in command and command[-1] != "--attacks"
        is_loop = "robust201.bench.user_loop" in command
        wall = 1.0 + attacks * (8.0 if "default" in command else 4.0) if is_loop else 2.0
        return RunTime(wall, 1.0), '{"clean": {"0": 1}}'

    monkeypatch.setattr("robust201.bench.comparison.run_timed", run_timed_fake)
    monkeypatch.setattr(Sweep, "read", lambda *_: {"clean": {0.0: 1.0}})
    json_file = tmp_path / "bench.json"
    result = robust201("bench", "--architectures", "309,0309", "--count", 4, "--threads", 2, "--out", json_file)
    assert result.code == 0, result.err
    assert "#309" in result.out
    assert result.err.startswith("Timing 1 network, ")
    assert "random" in result.out
    (one,) = json.loads(json_file.read_text())
    assert {way.split(",")[0] for way in one["seconds"]} == {"loop", "robust201"}
    assert one["images"] == 4
    # The start-up is measured once for both layouts.
    assert len(commands) == 2 + 1 + 2
    queries = commands[1][commands[1].index("--queries") + 1]
    assert int(queries) * verb.PAPER_BUDGET_DIVISOR == 5000


def test_bench_rejects_unknown_devices_and_architectures(robust201: RunCommand) -> None:
    assert "--device" in robust201("bench", "--device", "tpu").refusal(2)
    assert "309x" in robust201("bench", "--architectures", "309x").refusal(2)
