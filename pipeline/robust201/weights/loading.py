"""Reading a weights file, and loading its tensors into a network."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import CheckpointError, one_line
from robust201.core.records import ArchitectureId, show_architecture
from robust201.core.user_code import describe_failure
from robust201.spaces.base import Space
from robust201.weights.published.base import read_network_file
from robust201.weights.published.state_dicts import parse_weights

if TYPE_CHECKING:
    import torch
    from torch import nn

_SHOWN_NAMES = 3
_COUNTER = ".num_batches_tracked"


def read_weights(path: Path | str, say: Callable[[str], None] = lambda _line: None) -> "dict[str, torch.Tensor]":
    """Return the CPU tensors by name, all finite, of a safetensors file or a PyTorch file with a state_dict.

    PyTorch files are opened with `weights_only`; the state_dict may be an entry of a checkpoint. Prefixes of wrappers
    such as ``module.`` are removed. `say` receives a line if either applies.

    Raises:
        CheckpointError: the file cannot be read, is truncated, has an unknown format, would execute code, or contains
            NaN or infinity.
    """
    return parse_weights(read_network_file(Path(path)), str(path), say)


def check_shapes(
    space: Space,
    architecture: ArchitectureId,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    n_classes: int,
    name: str,
    advice: str,
) -> None:
    """Check names and shapes of a network's weights; the network is built only if its space does not know them."""
    expected = space.tensor_shapes(architecture, n_classes=n_classes)
    if expected is None:
        _check_by_building(space, architecture, shapes, n_classes, name, advice)
        return
    # PyTorch accepts weights without batch counters, which old versions did not have.
    counters = {tensor for tensor in expected if tensor.endswith(_COUNTER)}
    differences = _describe_differences(
        *(
            {tensor: shape for tensor, shape in tensors.items() if tensor not in counters}
            for tensors in (expected, shapes)
        )
    )
    if differences:
        raise CheckpointError(
            f"Loading weights failed for {name}: expected the tensors of {show_architecture(architecture)} with "
            f"{n_classes} classes, got others ({differences}). {advice}"
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

    # User code may need values of its tensors, which do not exist on the meta device.
    device = torch.device("cpu" if space.executes_code else "meta")
    with torch.random.fork_rng(devices=[]), device:
        network = space.build(architecture, n_classes=n_classes)
        try:
            fill_network(network, {tensor: torch.zeros(shape) for tensor, shape in shapes.items()}, name, advice)
        except CheckpointError:
            raise
        except Exception as error:  # loading may execute user code
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
    """Load tensors into a network strictly; `name` and `advice` are the source and the remedy in messages."""
    try:
        network.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        expected, got = (
            {tensor: tuple(values.shape) for tensor, values in state_dict.items()}
            for state_dict in (network.state_dict(), tensors)
        )
        differences = _describe_differences(expected, got) or one_line(error)
        raise CheckpointError(
            f"Loading weights failed for {name}: expected the tensors of {type(network).__name__}, got others "
            f"({differences}). {advice}"
        ) from error


def _describe_differences(expected: Mapping[str, tuple[int, ...]], got: Mapping[str, tuple[int, ...]]) -> str:
    """Describe differences in names and shapes, such as ``2 of 14 missing: fc.weight, fc.bias``; empty without one."""
    shapes = [
        f"{name} {got[name]} instead of {shape}"
        for name, shape in expected.items()
        if name in got and got[name] != shape
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
