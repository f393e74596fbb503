"""Benchmark against a user's loop: the loop and `run` give equal results, and times are compared."""

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.comparison import (
    AttackBudget,
    ContenderTimes,
    Loop,
    Machine,
    RunTime,
    Subject,
    Sweep,
    TimeComparison,
    run_timed,
)
from benchmarks.generated import random_network, write_subject
from robust201.core.errors import EvaluationError
from robust201.core.records import Normalisation
from robust201.images import load_images
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
    size = {"channels": 4, "cells": 1}
    network, images = random_network("309", load_images("digits", count=4), **size)
    return write_subject("309", network, images, tmp_path, **size)


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
    from robust201.attacks.reference import foolbox  # This import suppresses Foolbox's warning.

    plain_loop = import_module("benchmarks.plain_loop")
    assert plain_loop.foolbox is foolbox
    loop_command = Loop("channels_last", 3).command(subject, SHORT_ATTACKS, Machine(), tmp_path, with_attacks=True)
    monkeypatch.setattr(sys, "argv", loop_command[2:])
    plain_loop.main()
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
