"""`robust201 compare`: a user's networks on the same images."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

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
    assert notice.startswith(f"{networks[1]}: Sequential classifies 0 of 40 images correctly")
    assert comparison.startswith(f"{networks[0]} is significantly more accurate in ")
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["key"], float(row["strength"])) for row in rows] == [("clean", 0.0), ("fgsm", 1.0), ("fgsm", 8.0)]
    payload = json.loads(robust201("compare", *networks, *options, "--json").out)
    assert [row["difference"] for row in payload["comparisons"]] == [float(row["difference"]) for row in rows]
    assert len(payload["summary"]) == 2


def test_compare_pairs_one_network_with_two_weights_files(folder: Path, robust201: RunCommand) -> None:
    options = ("--data", folder / "test.npz", "--keys", "clean", "--json")
    weights = ("--weights", folder / "a.pth", "--weights", folder / "b.pth")
    (row,) = json.loads(robust201("compare", f"{folder}/net.py:build", *weights, *options).out)["comparisons"]
    assert (row["first"], row["second"]) == ("a.pth", "b.pth")
    assert row["first_accuracy"] > row["second_accuracy"]


@pytest.mark.parametrize(
    ("n_networks", "n_weights_files", "message"),
    [
        (1, 0, "got 1 network and 0 --weights"),
        (3, 2, "got 3 networks and 2 --weights"),
        (2, 0, "a network is listed more than once"),
    ],
)
def test_compare_rejects_unpaired_or_repeated_networks(
    folder: Path, robust201: RunCommand, n_networks: int, n_weights_files: int, message: str
) -> None:
    names = [f"{folder}/net.py:build"] * n_networks
    weights_options = [argument for _ in range(n_weights_files) for argument in ("--weights", folder / "a.pth")]
    assert message in robust201("compare", *names, *weights_options, "--data", folder / "test.npz").error_line(2)


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
        assert table_path.read_text().startswith("\\begin{tabular}")
        assert table_path.read_text().count("FGSM") == 11  # one row per default epsilon
