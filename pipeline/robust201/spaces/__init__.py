"""Architecture spaces: names of architectures, costs, networks, and what readers of results may ask of a space."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from robust201.spaces.for_readers import Offerings

DEFAULT_SPACE = "nasbench201"
"""The space of a dataset that tells of none, as the published one."""


def offerings(space: str) -> "Offerings | None":
    """Find what a space offers to those who read its results; None where its architectures are no cells."""
    if space != DEFAULT_SPACE:
        return None
    from robust201.spaces.nasbench201.offerings import OFFERINGS

    return OFFERINGS
