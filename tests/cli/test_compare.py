"""`robust201 compare`: a user's networks on the same images."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from robust201.analysis.evaluation import Evaluation
from tests.conftest import RunCommand

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


def test_compare_prints_and_writes_differences(folder: Path, robust201: RunCommand) -> None:
    options = (
        "--data",
        folder / "test.npz",
        "--keys",
        "clean,fgsm",
        "--set",
        "fgsm.epsilons=1/255,8/255",
    )
    networks = (f"{folder}/net.py:build", f"{folder}/net.py:other")
    result = robust201("compare", *networks, *options, "--out", folder / "table.csv")
    assert result.code == 0, result.err
    notice, comparison, *_ = result.out.splitlines()
    assert notice.startswith(f"{networks[1]} classifies 0 of 40 images correctly")
    assert comparison.startswith(f"{networks[0]} is significantly more accurate in ")
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["key"], float(row["strength"])) for row in rows] == [("clean", 0.0), ("fgsm", 1.0), ("fgsm", 8.0)]
    payload = json.loads(robust201("compare", *networks, *options, "--json").out)
    assert [row["difference"] for row in payload["comparisons"]] == [float(row["difference"]) for row in rows]
    assert len(payload["summary"]) == 2


def test_networks_have_their_own_names_and_weights(folder: Path, robust201: RunCommand) -> None:
    options = ("--data", folder / "test.npz", "--keys", "clean", "--json")
    networks = (f"{name}={folder}/net.py:build,weights={folder}/{name}.pth" for name in ("a", "b"))
    (row,) = json.loads(robust201("compare", *networks, *options).out)["comparisons"]
    assert (row["first"], row["second"]) == ("a", "b")
    assert row["first_accuracy"] > row["second_accuracy"]


def test_compare_rejects_repeated_networks(folder: Path, robust201: RunCommand) -> None:
    networks = [f"{folder}/net.py:build"] * 2
    data = ("--data", folder / "test.npz")
    assert "it is listed more than once" in robust201("compare", *networks, *data).error_line(2)
    assert "expected two or more networks" in robust201("compare", networks[0], *data).error_line(2)


def test_saved_evaluations_are_compared_and_continued(folder: Path, robust201: RunCommand) -> None:
    networks = {name: f"{folder}/net.py:build,weights={folder}/{name}.pth" for name in ("a", "b")}
    data = ("--data", folder / "test.npz", "--keys", "clean,fgsm:8/255,fmn:1")
    for name, network in networks.items():
        assert robust201("evaluate", network, *data, "--save", folder / name).code == 0
    again = robust201("evaluate", networks["a"], *data, "--save", folder / "a", "--json")
    rows = json.loads(again.out)["rows"]
    assert [row["seconds"] for row in rows] == Evaluation.load(folder / "a").table["seconds"].tolist()
    saved = json.loads(robust201("compare", folder / "a", folder / "b", "--keys", "fgsm:8/255", "--json").out)
    (row,) = saved["comparisons"]
    assert (row["first"], row["second"], row["unit"]) == ("a", "b", "/255")
    evaluated = robust201("compare", *(f"{name}={network}" for name, network in networks.items()), *data, "--json")
    assert row["difference"] == json.loads(evaluated.out)["comparisons"][1]["difference"]
    curves = json.loads(robust201("curves", folder / "a", folder / "b", "--json").out)["networks"]
    assert [row["network"] for row in curves] == ["a", "b"]
    other_network = robust201("evaluate", networks["b"], *data, "--save", folder / "a")
    assert "got other network" in other_network.error_line(2)
    for command in ("compare", "curves"):
        for option in (("--seed", 1), ("--data", folder / "test.npz")):
            rejected = robust201(command, folder / "a", folder / "b", *option).error_line(2)
            assert "it applies only to FILE:FUNCTION" in rejected


def test_evaluate_and_compare_write_latex(robust201, tmp_path):
    network_file = tmp_path / "mine.py"
    network_file.write_text(
        "import torch\nfrom torch import nn\ndef a():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\ndef b():\n    torch.manual_seed(1)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\n"
    )
    options = ("--data", "digits", "--images", "20", "--keys", "clean,fgsm")
    for arguments in (("evaluate", f"{network_file}:a"), ("compare", f"{network_file}:a", f"{network_file}:b")):
        table_path = tmp_path / f"{arguments[0]}.tex"
        assert robust201(*arguments, *options, "--out", table_path).code == 0
        assert table_path.read_text().startswith("\\begin{table}")
        assert table_path.read_text().count("FGSM") == 11  # one row per default epsilon


def test_compare_says_what_cannot_be_compared(folder: Path, robust201: RunCommand) -> None:
    network = f"{folder / 'net.py'}:build"
    for name, keys, count in (("long", "clean,fgsm:8/255", 6), ("short", "clean", 6), ("few", "clean", 4)):
        options = ("--data", folder / "test.npz", "--keys", keys, "--images", count, "--save", folder / name)
        assert robust201("evaluate", network, *options).code == 0
    assert "short was not evaluated under fgsm:8/255." in robust201("compare", folder / "long", folder / "short").out
    error = robust201("compare", folder / "long", folder / "few").error_line(2)
    assert "(long on 6, few on 4 images)" in error
    error = robust201("compare", "nothere", folder / "short").error_line(2)
    assert "'nothere'" in error
    assert "saved evaluation" in error


def test_interrupted_evaluation_says_what_is_saved(folder: Path, robust201: RunCommand) -> None:
    code = "    if len(images) > 8:  # more than those on which passes are counted\n        raise KeyboardInterrupt\n"
    (folder / "stop.py").write_text(f"def perturb(model, images, labels, epsilon):\n{code}    return images\n")
    keys = ("--keys", f"clean,{folder / 'stop.py'}", "--set", "stop.strengths=8", "--set", "stop.norm=Linf")
    command = ("evaluate", f"{folder / 'net.py'}:build", "--data", folder / "test.npz", *keys)
    result = robust201(*command, "--save", folder / "stopped")
    assert result.code == 3
    assert f"Saved in {folder / 'stopped'}: clean. The same command computes the rest." in result.err
    assert "Nothing is saved" in robust201(*command).err
