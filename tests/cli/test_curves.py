"""`robust201 curves`: accuracy of a user's networks as a function of epsilon."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.conftest import RunCommand

NETWORK = """
import torch
from torch import nn

def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.Tanh(), nn.Linear(16, 3))

def other():
    return build(1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NETWORK)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    )
    with torch.no_grad():
        labels = network(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255).argmax(1).numpy()
    np.savez(tmp_path / "test.npz", images=pixels, labels=labels)
    return tmp_path


def test_curves_writes_figure_and_distances(folder: Path, robust201: RunCommand) -> None:
    options = ("--data", folder / "test.npz")
    networks = (f"{folder}/net.py:build", f"{folder}/net.py:other")
    result = robust201("curves", *networks, *options, "--out", folder / "curves.svg")
    assert result.code == 0, result.err
    assert result.out.splitlines()[0].startswith(f"{networks[0]}: accuracy 100.0%")
    assert "median distance" in result.out
    assert "epsilon in 1/255" in (folder / "curves.svg").read_text()
    payload = json.loads(robust201("curves", *networks, *options, "--out", folder / "distances.csv", "--json").out)
    distances = pd.read_csv(folder / "distances.csv")
    assert [row["median_distance"] for row in payload["networks"]] == pytest.approx(
        [distances[name].median() for name in networks]
    )


def test_curves_accepts_a_single_network(folder: Path, robust201: RunCommand) -> None:
    options = ("--data", folder / "test.npz", "--json")
    settings = ("--keys", "fmn_l1")
    result = robust201("curves", f"{folder}/net.py:build", *options, *settings)
    assert result.code == 0, result.err
    (row,) = json.loads(result.out)["networks"]
    assert row["n_images"] == 12


def test_curves_checks_options_before_executing_the_file(folder: Path, robust201: RunCommand) -> None:
    (folder / "net.py").write_text("raise SystemExit('executed')")
    result = robust201("curves", f"{folder}/net.py:build", "--data", folder / "test.npz", "--keys", "pgd")
    assert result.code == 2
    assert "'pgd'" in result.err
    result = robust201("curves", f"{folder}/net.py:build", "--data", folder / "test.npz", "--out", folder / "c.jpg")
    assert result.code == 2
    assert ".jpg" in result.err
