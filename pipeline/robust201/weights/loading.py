"""Read a weights file, and load its tensors into a network."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import CheckpointError, one_line
from robust201.core.records import ArchitectureId, format_architecture
from robust201.networks.space import Space
from robust201.weights.published.base import read_network_file
from robust201.weights.published.state_dicts import parse_weights

if TYPE_CHECKING:
    import torch
    from torch import nn

_MAX_LISTED = 3
_COUNTER_SUFFIX = ".num_batches_tracked"


def read_weights(path: Path | str, print_line: Callable[[str], None] = lambda _line: None) -> "dict[str, torch.Tensor]":
    """Return the tensors of a safetensors file, or of a PyTorch file with a state_dict, by name.

    The tensors are on the CPU and finite. PyTorch files are opened with `weights_only`; the state_dict may be an entry
    of a checkpoint. Prefixes of wrappers such as ``module.`` are removed. `print_line` is called with a message if an
    entry is used or a prefix removed.

    Raises:
        CheckpointError: the file cannot be read, is truncated, has an unknown format, would execute code, or contains
            NaN or infinity.
    """
    return parse_weights(read_network_file(Path(path)), str(path), print_line)


def check_shapes(
    space: Space,
    architecture: ArchitectureId,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    n_classes: int,
    name: str,
    advice: str,
) -> None:
    """Check the names and shapes of a network's weights; the space must not execute a user's code.

    The network is built only if its space cannot compute the shapes without it. `name` and `advice` are the source of
    the weights and the remedy in error messages.
    """
    expected = space.tensor_shapes(architecture, n_classes=n_classes) or _build_shapes(space, architecture, n_classes)
    # PyTorch accepts weights without the batch counters of BatchNorm, which old versions did not save.
    counters = {tensor for tensor in expected if tensor.endswith(_COUNTER_SUFFIX)}
    differences = _describe_differences(
        *(
            {tensor: shape for tensor, shape in tensors.items() if tensor not in counters}
            for tensors in (expected, shapes)
        )
    )
    if differences:
        raise CheckpointError(
            f"Loading weights failed for {name}: the tensors are not those of {format_architecture(architecture)} with "
            f"{n_classes} classes ({differences}). {advice}"
        )


def _build_shapes(space: Space, architecture: ArchitectureId, n_classes: int) -> dict[str, tuple[int, ...]]:
    """Build a network on the meta device, and return the shapes of its tensors by name."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        network = space.build(architecture, n_classes=n_classes)
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def fill_network(
    network: "nn.Module",
    tensors: "Mapping[str, torch.Tensor]",
    name: str,
    advice: str = "Use the weights of this network.",
) -> None:
    """Load tensors into a network strictly.

    `name` and `advice` are the source of the tensors and the remedy in error messages.
    """
    try:
        network.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        expected, got = (
            {tensor: tuple(tensor_values.shape) for tensor, tensor_values in state_dict.items()}
            for state_dict in (network.state_dict(), tensors)
        )
        differences = _describe_differences(expected, got) or one_line(error)
        raise CheckpointError(
            f"Loading weights failed for {name}: the tensors are not those of {type(network).__name__} "
            f"({differences}). {advice}"
        ) from error


def _describe_differences(expected: Mapping[str, tuple[int, ...]], actual: Mapping[str, tuple[int, ...]]) -> str:
    """Describe differences in names and shapes, such as ``2 of 14 missing: fc.weight, fc.bias``.

    Return an empty string if there is no difference.
    """
    shape_differences = [
        f"{name} {actual[name]} instead of {shape}"
        for name, shape in expected.items()
        if name in actual and actual[name] != shape
    ]
    names_by_difference = {
        f"{{}} of {len(expected):,} missing": [name for name in expected if name not in actual],
        f"{{}} of {len(actual):,} unknown": [name for name in actual if name not in expected],
        "{} with a different shape": shape_differences,
    }
    return "; ".join(
        f"{difference.format(f'{len(names):,}')}: {', '.join(names[:_MAX_LISTED])}{', …' * (len(names) > _MAX_LISTED)}"
        for difference, names in names_by_difference.items()
        if names
    )
