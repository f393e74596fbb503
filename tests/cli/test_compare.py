"""`robust201 compare` and `curves`: a user's networks on the same images."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from robust201.analysis.evaluation import Evaluation

NETWORK = """
import torch
from torch import nn

def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))

def other():
    return build(1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NETWORK)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 3))
    for name in ("a", "b"):
        torch.save(network.state_dict(), tmp_path / f"{name}.pth")
        network[1].weight.data.neg_()
    with torch.no_grad():
        labels = network(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255).argmax(1).numpy()
    np.savez(tmp_path / "test.npz", images=pixels, labels=labels)
    return tmp_path


def test_compare_prints_and_writes_differences(folder, robust201):
    options = ("--data", folder / "test.npz", "--keys", "clean,fgsm", "--set", "fgsm.epsilons=1/255,8/255")
    networks = (f"{folder}/net.py:build", f"{folder}/net.py:other")
    result = robust201("compare", *networks, *options, "--out", folder / "table.csv")
    assert result.code == 0, result.err
    notice = f"{networks[1]} classifies 0 of 40 images correctly"
    assert result.err.count(notice) == 1
    assert notice not in result.out
    assert result.out.startswith(f"{networks[0]} is significantly more accurate in ")
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["key"], float(row["strength"])) for row in rows] == [("clean", 0.0), ("fgsm", 1.0), ("fgsm", 8.0)]
    payload = json.loads(robust201("compare", *networks, *options, "--json").out)
    assert [row["difference"] for row in payload["comparisons"]] == [float(row["difference"]) for row in rows]
    assert payload["summary"][0].startswith(notice)


def test_commands_reject_incomparable_networks_with_one_error_line(folder, robust201):
    network, data = f"{folder}/net.py:build", ("--data", folder / "test.npz")
    for name, keys, count in (("long", "clean,fgsm:8/255", 6), ("short", "clean", 6), ("few", "clean", 4)):
        options = (*data, "--keys", keys, "--images", count, "--save", folder / name)
        assert robust201("evaluate", network, *options).code == 0
    assert "short was not evaluated under fgsm:8/255." in robust201("compare", folder / "long", folder / "short").out
    saved = (folder / "long", folder / "short")
    for command, arguments, subject in (
        ("compare", (network, network, *data), network),
        ("compare", (network, *data), "expected two or more networks"),
        ("compare", (network, f"other={network}"), "--data"),
        ("compare", (folder / "long", folder / "few"), "(long on 6, few on 4 images)"),
        ("compare", ("nothere", folder / "short"), "'nothere'"),
        ("compare", (folder / "net.py", network, *data), f"Append the function: {folder}/net.py:FUNCTION"),
        ("compare", (*saved, "--seed", 1), "--seed"),
        ("compare", (*saved, *data), "data="),
        ("curves", (*saved, *data), "failed for data"),
        ("curves", (*saved, "--set", "fmn.steps=2"), "--set"),
        ("curves", (network, *data, "--keys", "pgd"), "'pgd'"),
        ("curves", (network, *data, "--out", folder / "c.jpg"), ".pdf, .csv."),
        ("compare", (*saved, "--keys", "fog"), "Known: clean, fgsm:8/255, fgsm."),
    ):
        result = robust201(command, *arguments)
        assert subject in result.error_line(exit_code=2)
        assert "Executing" not in result.err


def test_saved_evaluations_can_be_compared_and_resumed(folder, robust201):
    networks = {name: f"{folder}/net.py:build,weights={folder}/{name}.pth" for name in ("a", "b")}
    data = ("--data", folder / "test.npz", "--keys", "clean,fgsm:8/255,fmn:1")
    for name, network in networks.items():
        assert robust201("evaluate", network, *data, "--save", folder / name).code == 0
    repeated = robust201("evaluate", networks["a"], *data, "--save", folder / "a", "--json")
    rows = json.loads(repeated.out)["rows"]
    assert [row["seconds"] for row in rows] == Evaluation.load(folder / "a").table["seconds"].tolist()
    payload = json.loads(robust201("compare", folder / "a", folder / "b", "--keys", "fgsm:8/255", "--json").out)
    (row,) = payload["comparisons"]
    assert (row["first"], row["second"], row["unit"]) == ("a", "b", "/255")
    evaluated = robust201("compare", *(f"{name}={network}" for name, network in networks.items()), *data, "--json")
    assert row["difference"] == json.loads(evaluated.out)["comparisons"][1]["difference"]
    curves = json.loads(robust201("curves", folder / "a", folder / "b", "--json").out)["networks"]
    assert [row["network"] for row in curves] == ["a", "b"]
    other_network = robust201("evaluate", networks["b"], *data, "--save", folder / "a")
    assert "but these differ: network" in other_network.error_line(exit_code=2)


def test_curves_write_figure_and_distances(folder, robust201):
    options = ("--data", folder / "test.npz", "--images", 12)
    networks = (f"{folder}/net.py:build", f"{folder}/net.py:other")
    result = robust201("curves", *networks, *options, "--out", folder / "curves.svg")
    assert result.code == 0, result.err
    assert result.out.splitlines()[0].startswith(f"{networks[0]}: accuracy 100.0%")
    assert "median distance" in result.out
    assert "epsilon in 1/255" in (folder / "curves.svg").read_text()
    result = robust201("curves", networks[0], *options, "--keys", "fmn_l1", "--out", folder / "one.csv", "--json")
    (row,) = json.loads(result.out)["networks"]
    assert row["n_images"] == 12
    assert row["median_distance"] == pytest.approx(pd.read_csv(folder / "one.csv")[networks[0]].median())
