"""Benchmark against a user's loop: the loop and `run` give equal results."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.comparison import AttackBudget, Loop, Machine, Subject, Sweep
from benchmarks.generated import random_network, write_subject
from robust201.images import load_images

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
