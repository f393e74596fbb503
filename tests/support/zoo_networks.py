"""Small networks of the zoo."""

from robust201.networks.zoo.zoo_space import NETWORKS

SMALL_WIDTHS = {
    "resnet50": 2,
    "stn-resnet18": 8,
    "ptn-resnet18": 8,
    "lenet5": 3,
    "fc7500": 16,
}
"""Widths in tests where they differ from 4."""

SMALL_NETWORKS = [f"{name}-w{SMALL_WIDTHS.get(name, 4)}" for name in NETWORKS if not name.endswith("34")]
"""One network of each type, with a small width."""
