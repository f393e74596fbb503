"""Weights of one safetensors file into a network."""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import CheckpointError, one_line
from robust201.weights.published.state_dicts import parse_safetensors

if TYPE_CHECKING:
    import torch
    from torch import nn


def read_weights(path: Path) -> "dict[str, torch.Tensor]":
    """Read a safetensors file: CPU tensors by name, all finite.

    Raises:
        CheckpointError: it cannot be read, is truncated or no safetensors file, or holds NaN or infinity.
    """
    try:
        # A device may have no end, and a pipe no writer.
        raw = path.read_bytes() if stat.S_ISREG(path.stat().st_mode) else None
    except OSError as error:
        raise CheckpointError(
            f"Loading weights failed for {path}: expected a readable file, got {error.strerror}. Correct the path."
        ) from error
    if raw is None:
        raise CheckpointError(
            f"Loading weights failed for {path}: expected a regular file, got a folder or a device. Correct the path."
        )
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
