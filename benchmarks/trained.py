"""Trained networks of a data folder, for benchmarks on real weights."""

from pathlib import Path

from torch import nn

from robust201.spaces.nasbench201.cells import architecture
from robust201.spaces.nasbench201.network import build_network
from robust201.weights.published.base import Selection
from robust201.weights.published.formats import open_members

ARCHIVE = Path("checkpoints") / "NATS-tss-v1_0-3ffb9-full"
"""Where a data folder keeps trained networks, in the layout of the official archive."""


def load_trained(folder: Path, index: int, *, n_classes: int) -> tuple[nn.Module, str]:
    """Load a trained network of the published size.

    Args:
        folder: the data folder.
        index: the architecture's.
        n_classes: number of classes.

    Returns:
        The network and its cell string.
    """
    (member,) = open_members(folder / ARCHIVE, [index])[0]
    (weights,) = member(Selection())
    spec = architecture(index).spec
    network = build_network(spec, n_classes=n_classes)
    network.load_state_dict(weights.state_dict, strict=True)
    return network, spec
