"""Documented benchmark commands have valid options; the GPU and plain-loop benchmarks run."""

import argparse
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.comparison import AttackBudget, Loop, Machine, Subject, Sweep
from benchmarks.generated import random_network, write_subject
from robust201.images import load_images
from tests.conftest import REPOSITORY
from tests.project.test_documents import documents

# Foolbox, which a benchmark imports, uses a deprecated name in SciPy.
pytestmark = pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning")

MODULES = sorted(f"benchmarks.{path.stem}" for path in (REPOSITORY / "benchmarks").glob("*.py"))
COMMAND = re.compile(r"(?:[A-Z0-9_]+=\S+ +)*(?:\S*/)?python -m (benchmarks\b[.\w]*)(.*)")


class OptionsParsed(Exception):
    """Raised by a command after it has parsed its options."""


def parse_options(monkeypatch: pytest.MonkeyPatch, module: str, argv: list[str]) -> None:
    """Run a command until it has parsed its options.

    Raises:
        OptionsParsed: the options are valid.
        SystemExit: the options are invalid or include --help.
    """
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser) -> None:
        parse_args(parser)
        raise OptionsParsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [module, *argv])
    import_module(module).main()


def find_commands(text: str) -> list[tuple[str, list[str]]]:
    """Return the module and the options of each benchmark command in a text."""
    lines = [line.strip() for line in text.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    inline_code = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    matches = [match.groups() for line in (*lines, *inline_code) if (match := COMMAND.fullmatch(line))]
    # In docstrings, brackets enclose optional parts, and an explanation may follow after several spaces.
    calls = [(module, re.sub(r"[\[\]]", "", re.split(r"\s{3,}", options)[0])) for module, options in matches]
    return [(module, shlex.split(options, comments=True)) for module, options in calls]


def list_sources() -> list[str]:
    """Return the paths of all documents and of the benchmark modules, whose docstrings contain commands."""
    return [*documents(), *(f"{name.replace('.', '/')}.py" for name in MODULES)]


@pytest.mark.parametrize(
    "document", [document for document in list_sources() if find_commands((REPOSITORY / document).read_text())]
)
def test_documented_benchmark_commands_have_valid_options(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, argv in find_commands((REPOSITORY / document).read_text()):
        with monkeypatch.context() as patch, pytest.raises(OptionsParsed):
            parse_options(patch, module, argv)


@pytest.mark.slow
@pytest.mark.parametrize("name", gpu.STEPS)
def test_gpu_step_is_measured(name):
    result = gpu.measure_in_process(name, "cpu")
    assert "error" not in result
    assert result["rows"]
    assert all(row.get("exit_code", 0) in (0, 5) for row in result["rows"])  # 5: no tests
    assert all(row["bits_of_compiled"] for row in result["rows"] if row.get("variant") == "compiled")


def test_gpu_step_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setitem(gpu.STEPS, "precision", gpu.Step(gpu.measure_precision, 0))
    assert "more than" in gpu.measure_in_process("precision", "cpu")["error"]


SHORT_ATTACKS = AttackBudget((1.0, 8.0), (1.0, 8.0), pgd_steps=2, apgd_steps=2, queries=3)


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    """Return a tiny network with random weights, and four digits, written to files."""
    size = {"channels": 4, "cells": 1}
    network, images = random_network("309", load_images("digits", count=4), **size)
    return write_subject("309", network, images, tmp_path, **size)


def test_loop_and_reference_engine_give_equal_accuracies(subject, robust201, monkeypatch, capsys, tmp_path):
    """Accuracies of attacks without random numbers are compared exactly."""
    from robust201.attacks.reference import foolbox  # This import suppresses Foolbox's warning.

    plain_loop = import_module("benchmarks.plain_loop")
    assert plain_loop.foolbox is foolbox
    loop_command = Loop("channels_last", 3).command(subject, SHORT_ATTACKS, Machine(), tmp_path, with_attacks=True)
    monkeypatch.setattr(sys, "argv", loop_command[2:])
    plain_loop.main()
    accuracies = Loop("channels_last", 3).read_accuracies(tmp_path, capsys.readouterr().out)
    sweep = Sweep(engine="reference")
    command = sweep.command(subject, SHORT_ATTACKS, Machine(), tmp_path, with_attacks=True)
    assert command[1:3] == ["-m", "robust201"]
    assert robust201(*command[3:]).code == 0
    sweep_accuracies = sweep.read_accuracies(tmp_path, "")
    assert {key: list(by_strength) for key, by_strength in accuracies.items()} == {
        key: list(by_strength) for key, by_strength in sweep_accuracies.items()
    }
    assert accuracies["clean"] == sweep_accuracies["clean"] == {0.0: 1.0}
    assert accuracies["fgsm"] == sweep_accuracies["fgsm"]
