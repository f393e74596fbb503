"""Weights of one file into a network."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import CheckpointError, one_line
from robust201.weights.published.base import read_network_file
from robust201.weights.published.state_dicts import parse_weights

if TYPE_CHECKING:
    import torch
    from torch import nn

_SHOWN_NAMES = 3


def read_weights(path: Path | str, say: Callable[[str], None] = lambda _line: None) -> "dict[str, torch.Tensor]":
    """Read a safetensors file or a PyTorch file of a state_dict: CPU tensors by name, all finite.

    PyTorch files are opened with `weights_only` and may hold the state_dict as an entry of a checkpoint. Prefixes of
    wrappers such as ``module.`` are dropped. `say` receives a line if either applies.

    Raises:
        CheckpointError: it cannot be read, is truncated or of another format, would execute code, or has NaN or
            infinity.
    """
    return parse_weights(read_network_file(Path(path)), str(path), say)


def fill_network(
    network: "nn.Module",
    tensors: "Mapping[str, torch.Tensor]",
    name: str,
    advice: str = "Give the weights of this network.",
) -> None:
    """Load tensors into a network that has exactly these; messages name their source and what to do.

    Raises:
        CheckpointError: the network's tensors are others; the message has their number and the first names.
    """
    try:
        network.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        differences = _describe_differences(network.state_dict(), tensors) or one_line(error)
        raise CheckpointError(
            f"Loading weights failed for {name}: expected the tensors of {type(network).__name__}, got others "
            f"({differences}). {advice}"
        ) from error


def _describe_differences(expected: "Mapping[str, torch.Tensor]", got: "Mapping[str, torch.Tensor]") -> str:
    """Describe differences in names and shapes, such as ``2 of 14 missing: fc.weight, fc.bias``; empty without one."""
    shapes = [
        f"{name} {tuple(got[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in got and got[name].shape != tensor.shape
    ]
    kinds = {
        f"{{}} of {len(expected):,} missing": [name for name in expected if name not in got],
        f"{{}} of {len(got):,} unknown": [name for name in got if name not in expected],
        "{} of another shape": shapes,
    }
    return "; ".join(
        f"{kind.format(f'{len(names):,}')}: {', '.join(names[:_SHOWN_NAMES])}{', …' * (len(names) > _SHOWN_NAMES)}"
        for kind, names in kinds.items()
        if names
    )
