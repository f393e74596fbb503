"""Weights of one safetensors file into a network."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import CheckpointError, one_line
from robust201.core.files import read_file
from robust201.weights.published.state_dicts import MAX_WEIGHTS_BYTES, parse_safetensors

if TYPE_CHECKING:
    import torch
    from torch import nn


def read_weights(path: Path) -> "dict[str, torch.Tensor]":
    """Read a safetensors file: CPU tensors by name, all finite.

    Raises:
        CheckpointError: it cannot be read, is truncated or no safetensors file, or holds NaN or infinity.
    """
    try:
        raw = read_file(path, MAX_WEIGHTS_BYTES)
    except OSError as error:
        raise CheckpointError(
            f"Loading weights failed for {path}: expected a readable file, got {error.strerror}. Correct the path."
        ) from error
    return parse_safetensors(raw, str(path))


def fill_network(
    network: "nn.Module",
    tensors: "Mapping[str, torch.Tensor]",
    name: str,
    advice: str = "Give the weights of this network.",
) -> None:
    """Load tensors into a network that has exactly these; messages name their source and what to do.

    Raises:
        CheckpointError: the network's tensors are others.
    """
    try:
        network.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"Loading weights failed for {name}: expected the tensors of {type(network).__name__}, got others "
            f"({one_line(error)}). {advice}"
        ) from error
