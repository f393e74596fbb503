"""Small networks of the zoo."""

from robust201.networks.zoo.zoo_space import NETWORKS

SMALL_WIDTHS = {
    "resnet50": 2,
    "stn-resnet18": 8,
    "ptn-resnet18": 8,
    "lenet5": 3,
    "fc7500": 16,
}
"""Widths of the networks that tests do not build with width 4."""

SMALL_NETWORKS = [f"{name}-w{SMALL_WIDTHS.get(name, 4)}" for name in NETWORKS if not name.endswith("34")]
"""The zoo's networks with small widths, without the 34-layer variants of 18-layer networks."""
