"""Weights of one safetensors file into a network."""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import CheckpointError, one_line
from robust201.core.records import ArchitectureId, show_architecture
from robust201.core.user_code import describe_failure
from robust201.spaces.base import Space
from robust201.weights.published.state_dicts import parse_safetensors

if TYPE_CHECKING:
    import torch
    from torch import nn

_COUNTER = ".num_batches_tracked"


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


def check_shapes(
    space: Space,
    architecture: ArchitectureId,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    n_classes: int,
    name: str,
    advice: str,
) -> None:
    """Check by names and shapes that tensors are a network's weights; a space that does not know them builds it.

    Raises:
        CheckpointError: the network's tensors are others.
        ArchitectureError: the network cannot be built.
    """
    expected = space.tensor_shapes(architecture, n_classes=n_classes)
    if expected is None:
        _check_by_building(space, architecture, shapes, n_classes, name, advice)
        return
    if shapes == expected:
        return
    # PyTorch takes weights without the counters of batches, which old versions did not have.
    different = {
        tensor: (expected.get(tensor), shapes.get(tensor))
        for tensor in dict.fromkeys([*expected, *shapes])
        if expected.get(tensor) != shapes.get(tensor) and not (tensor in expected and tensor.endswith(_COUNTER))
    }
    if different:
        (tensor, (wanted, got)), *others = different.items()
        more = f" and {len(others):,} more" if others else ""
        raise CheckpointError(
            f"Loading weights failed for {name}: expected tensors of {show_architecture(architecture)} with "
            f"{n_classes} classes ({tensor}: {wanted or 'none'}), got {tensor}: {got or 'none'}{more}. {advice}"
        )


def _check_by_building(
    space: Space,
    architecture: ArchitectureId,
    shapes: Mapping[str, tuple[int, ...]],
    n_classes: int,
    name: str,
    advice: str,
) -> None:
    import torch

    # A user's function may do with its tensors what those without values cannot.
    device = torch.device("cpu" if space.executes_code else "meta")
    with torch.random.fork_rng(devices=[]), device:
        network = space.build(architecture, n_classes=n_classes)
        try:
            fill_network(network, {tensor: torch.zeros(shape) for tensor, shape in shapes.items()}, name, advice)
        except CheckpointError:
            raise
        except Exception as error:  # loading may be code of the user's
            raise CheckpointError(
                f"Loading weights failed for {name}: expected the tensors of {type(network).__name__}, got an error "
                f"({describe_failure(error)}). {advice}"
            ) from error


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
