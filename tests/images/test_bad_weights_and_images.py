"""With damaged weights, commands process the other networks; with damaged images, they write nothing."""

import json
import shutil

import numpy as np
import torch

from robust201.weights.store import CheckpointStore
from tests.conftest import random_state


def test_run_fails_only_the_units_of_a_corrupted_checkpoint(robust201, write_sweep, tiny_weights, tmp_path):
    weights = shutil.copytree(tiny_weights, tmp_path / "weights")
    sweep = write_sweep(checkpoints={"path": str(weights)})
    file = next(weights.rglob("000021*.safetensors"))
    original = file.read_bytes()
    file.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    result = robust201("run", sweep)
    assert result.code == 3
    assert "CheckpointError: Loading weights failed for #21 digits" in result.err
    assert "Traceback" not in result.err
    assert json.loads(robust201("status", "--json", tmp_path / "results").out)["n_done"] == 5
    file.write_bytes(original)
    assert robust201("run", sweep).code == 0


def test_import_weights_continues_after_a_rejected_network(robust201, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = random_state(21)
    state["classifier.weight"][3, 1] = float("nan")
    (tmp_path / "source").mkdir()
    torch.save(state, tmp_path / "source" / "000021.pth")
    torch.save(random_state(0), tmp_path / "source" / "000000.pth")
    options = ("--out", "store", "--datasets", "cifar10")
    result = robust201("import", "source", *options)
    assert (result.code, result.out) == (3, "Imported 1 network into store.\n")
    (error_line,) = result.err.splitlines()
    assert error_line.startswith("rejected: ")
    assert "000021" in error_line
    assert [record.index for record in CheckpointStore(tmp_path / "store").records()] == [0]


def test_commands_reject_damaged_images(robust201, write_sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUST201_DATA", str(tmp_path))
    batches = tmp_path / "cifar10" / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    records = np.zeros((10_000, 1 + 3 * 32 * 32), np.uint8)
    records[7, 0] = 10
    (batches / "test_batch.bin").write_bytes(records.tobytes())
    datasets = {"cifar10": {"path": str(tmp_path / "cifar10"), "corruptions": None}}
    sweep = write_sweep(datasets=datasets, checkpoints=None, weights={"random": {}}, keys={"clean": {}})
    original_paths = sorted(tmp_path.rglob("*"))
    corrupt_command = ("corrupt", "--out", tmp_path / "out", "--data", "cifar10")
    for arguments in (("run", sweep), ("plan", "--check", sweep), corrupt_command):
        assert "cifar10" in robust201(*arguments).error_line(exit_code=2)
    assert sorted(tmp_path.rglob("*")) == original_paths
