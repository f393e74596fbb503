"""Weight files of one network (safetensors and PyTorch) are read, and each invalid file gives a clear error."""

import io
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from robust201.core.errors import CheckpointError, RobustWarning
from robust201.core.unpickling import is_torch_file
from robust201.networks.spaces import SPACES
from robust201.weights.loading import read_weights
from tests.support.tiny_networks import TinyNetwork

WEIGHTS = dict(TinyNetwork(seed=3).state_dict())


def torch_bytes(content: Any, *, zipped: bool = True) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


def weights_with_prefix(prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in WEIGHTS.items()}


def assert_weights(path: Path) -> list[str]:
    """Check that a file contains `WEIGHTS`, and return the messages printed while reading it."""
    messages: list[str] = []
    tensors = read_weights(path, messages.append)
    assert sorted(tensors) == sorted(WEIGHTS)
    assert all(torch.equal(tensors[name], WEIGHTS[name]) for name in WEIGHTS)
    return messages


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("content", "expected_note"),
    [
        (WEIGHTS, None),
        ({name: nn.Parameter(tensor, requires_grad=False) for name, tensor in WEIGHTS.items()}, None),
        ({"state_dict": WEIGHTS, "epoch": 3, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}, "state_dict"),
        ({"model": weights_with_prefix("module.")}, "from the entry 'model', with the prefix 'module.' removed"),
        ({"weights_of_mine": WEIGHTS}, "the entry 'weights_of_mine'."),
        (weights_with_prefix("module."), "with the prefix 'module.' removed from names."),
        (weights_with_prefix("module._orig_mod."), "the prefix 'module._orig_mod.' removed"),
    ],
)
def test_read_weights_returns_the_state_dict_of_a_torch_file(tmp_path, content, expected_note, zipped):
    path = tmp_path / "w.pth"
    path.write_bytes(torch_bytes(content, zipped=zipped))
    assert is_torch_file(path.read_bytes())
    messages = assert_weights(path)
    if expected_note is None:
        assert messages == []
    else:
        (message,) = messages
        assert expected_note in message


def test_read_weights_warns_about_several_state_dicts_in_a_torch_file(tmp_path):
    path = tmp_path / "w.pth"
    path.write_bytes(torch_bytes({"ema": {"other": torch.ones(1)}, "model": WEIGHTS}))
    with pytest.warns(RobustWarning, match=r"w\.pth contains several state_dicts: using 'model', not 'ema'\."):
        assert_weights(path)


def test_read_weights_recognises_safetensors_files_with_other_names(tmp_path):
    save_file(WEIGHTS, tmp_path / "w.pth")
    assert assert_weights(tmp_path / "w.pth") == []
    save_file(weights_with_prefix("module."), tmp_path / "wrapped")
    assert "the prefix 'module.' removed" in assert_weights(tmp_path / "wrapped")[0]


# A safetensors file begins with the length of its header. 640 begins like a pickle, and 0x04034B50 like a ZIP archive.
@pytest.mark.parametrize("length", [640, 0x04034B50])
def test_is_torch_file_rejects_safetensors_that_begin_like_a_torch_file(length):
    beginning = length.to_bytes(8, "little")
    assert beginning.startswith((b"\x80\x02", b"PK\x03\x04"))
    assert not any(is_torch_file(beginning[:size]) for size in range(9))


def torchscript_bytes() -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), stream)  # type: ignore[no-untyped-call]
    return stream.getvalue()


INVALID_FILES: dict[str, bytes] = {
    "empty": b"",
    "text": b"weights",
    "a pickled network": torch_bytes(TinyNetwork()),
    "TorchScript": torchscript_bytes(),
    "no tensors": torch_bytes({"epoch": 3}),
    "a list": torch_bytes([torch.ones(1)]),
    "two networks": torch_bytes({"generator": WEIGHTS, "critic": WEIGHTS}),
    "not finite": torch_bytes({"a": torch.tensor([1.0, float("nan")])}),
    "a sparse tensor": torch_bytes({"a": torch.ones(2, 2).to_sparse()}),
    "a tensor without values": torch_bytes({"a": torch.ones(2, device="meta")}),
}


@pytest.mark.parametrize("case", INVALID_FILES)
def test_read_weights_rejects_invalid_files(tmp_path, case):
    path = tmp_path / "w.pth"
    path.write_bytes(INVALID_FILES[case])
    with pytest.raises(CheckpointError, match=rf"Reading weights failed for {path}: "):
        read_weights(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_read_weights_rejects_torch_files_truncated_to_any_length(tmp_path, zipped):
    raw, path = torch_bytes(WEIGHTS, zipped=zipped), tmp_path / "w.pth"
    for length in range(8, len(raw), len(raw) // 20):
        path.write_bytes(raw[:length])
        with pytest.raises(CheckpointError, match="got a truncated, damaged or unrelated file"):
            read_weights(path)


@pytest.mark.parametrize("command", [("run",), ("plan", "--check")])
def test_sweep_rejects_a_torch_file_and_prints_the_conversion_command(write_sweep, robust201, tmp_path, command):
    network = SPACES["zoo"].build("lenet5", n_classes=10)
    path = tmp_path / "it's lenet.pth"
    path.write_bytes(torch_bytes({"state_dict": {f"module.{name}": t for name, t in network.state_dict().items()}}))
    weights = {"files": {"lenet5": str(path)}}
    fields = {"space": "zoo", "network": {}, "checkpoints": None, "architectures": ["lenet5"], "keys": {"clean": {}}}
    sweep = write_sweep(**fields, weights=weights)
    error_line = robust201(*command, sweep).error_line(exit_code=2)
    assert "expected a safetensors file, got a PyTorch file, which is a pickle" in error_line
    assert not (tmp_path / "results").exists()
    match = re.search(r"python -c (.+)$", error_line)
    assert match is not None
    (program,) = shlex.split(match[1])
    exec(program, {})
    converted = load_file(path.with_suffix(".safetensors"))
    assert {name: tensor.tolist() for name, tensor in converted.items()} == {
        name: tensor.tolist() for name, tensor in network.state_dict().items()
    }
