"""Checks of the number of workers and of weights before anything is computed."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from robust201.core.errors import ConfigError
from robust201.networks.nb201.cell_space import NasBench201
from robust201.run.environment import check_machine
from robust201.sweep.config import ExecutionSection
from tests.conftest import read_tree

CELLS = NasBench201(channels=4, cells=1)
MODELS = """
from torch import nn

def build(architecture, n_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, {"narrow": 4, "wide": 8}[architecture]), nn.Linear(4, n_classes))
"""


# --- workers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine with two CPU cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1})


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("execution", [{"workers": 3, "cpus_per_worker": 0.7}, {"cpus_per_worker": 4}, {"workers": 3}])
def test_check_machine_rejects_workers_that_need_more_cores(execution):
    with pytest.raises(ConfigError, match="this machine has 2 in total"):
        check_machine(ExecutionSection(**execution), "fp32")


# --- shapes of weights ------------------------------------------------------------------------------------------------


def shapes_of(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("architecture", [0, 21, 309, 1462, 13714, 15624])
@pytest.mark.parametrize("space", [CELLS, NasBench201(channels=8, cells=3)], ids=["small", "larger"])
def test_tensor_shapes_match_built_cell(space, architecture):
    with torch.device("meta"):
        network = space.build(architecture, n_classes=7)
    assert space.tensor_shapes(architecture, n_classes=7) == shapes_of(network)


@pytest.mark.parametrize("command", ["run", "doctor", "plan"])
@pytest.mark.parametrize("damage", ["another cell", "other classes", "truncated"])
@pytest.mark.slow_combinations
def test_wrong_weights_are_reported_before_anything_is_computed(robust201, write_sweep, tmp_path, command, damage):
    files = {}
    for architecture in (0, 21):
        is_damaged = architecture == 21
        built_architecture = 0 if is_damaged and damage == "another cell" else architecture
        n_classes = 9 if is_damaged and damage == "other classes" else 10
        files[str(architecture)] = str(tmp_path / f"{architecture}.safetensors")
        save_file(CELLS.build(built_architecture, n_classes=n_classes).state_dict(), files[str(architecture)])
    if damage == "truncated":
        os.truncate(files["21"], 2000)
    sweep = write_sweep(architectures=[0, 21], checkpoints=None, weights={"files": files}, keys={"clean": {}})
    result = robust201(command, sweep, *(["--check"] if command == "plan" else []))
    assert result.code == 2, result.err
    output = result.out + result.err
    assert "21.safetensors" in output.replace("\n", "")
    assert "Traceback" not in output
    assert not [*(tmp_path / "results").rglob("*.parquet")]


def test_wrong_weights_of_user_network_are_reported_by_workers(robust201, write_sweep, tmp_path):
    (tmp_path / "my_models.py").write_text(MODELS)
    save_file(
        {"1.weight": torch.zeros(8, 192), "1.bias": torch.zeros(8), "2.weight": torch.zeros(10, 8)},
        tmp_path / "narrow.safetensors",
    )
    sweep = write_sweep(
        space={"file": str(tmp_path / "my_models.py")},
        architectures=["narrow"],
        network={},
        checkpoints=None,
        weights={"files": {"narrow": str(tmp_path / "narrow.safetensors")}},
        keys={"clean": {}},
    )
    result = robust201("run", "--allow-code", sweep)
    assert result.code == 3
    assert "CheckpointError: Loading weights failed for narrow digits" in result.err
    assert not list((tmp_path / "results").rglob("*.parquet"))
    # Planning does not execute the file, so it cannot check the shapes.
    assert robust201("plan", "--check", sweep).code == 0


@pytest.mark.parametrize("field", ["weights", "checkpoints"])
def test_filtered_run_needs_only_the_weights_of_its_networks(robust201, write_sweep, tiny_weights, tmp_path, field):
    sources = {"weights": None, "checkpoints": None} | {field: {"path": str(tiny_weights)}}
    sweep = write_sweep(architectures=[0, 9, 21], keys={"clean": {}}, **sources)
    assert "#9" in robust201("run", sweep).error_line(exit_code=2)
    assert not (tmp_path / "results").exists()
    selection = ("--architectures", "0,21")
    assert robust201("run", sweep, *selection).code == 0
    tree_before = read_tree(tmp_path / "results")
    for options in ((), ("--share", "1/1")):
        assert "#9" in robust201("run", sweep, *options).error_line(exit_code=2)
    assert read_tree(tmp_path / "results") == tree_before
    assert robust201("run", sweep, *selection, "--share", "1/1").code == 0
    summary = json.loads(robust201("plan", sweep, "--json").out)
    assert [summary[field] for field in ("architectures", "evaluations", "evaluations_done")] == [3, 3, 2]
    assert json.loads(robust201("status", sweep, "--json").out)["complete"] is False
    export = ("export", tmp_path / "results", "--out", tmp_path / "dataset")
    assert robust201(*export).code == 3
    partial_result = robust201(*export, "--partial")
    assert (partial_result.code, partial_result.err) == (3, "missing: 1 evaluation of digits clean\n")
    assert robust201("verify", tmp_path / "results", "--export", tmp_path / "dataset").code == 3
