"""Regions of feature maps that a window of the image affects. This module does not import torch."""

from typing import NamedTuple


class Region(NamedTuple):
    """Rows [top, bottom) and columns [left, right) of a feature map."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.bottom - self.top, self.right - self.left

    def spread(self, reach: int, height: int, width: int) -> "Region":
        """Return the part of a kernel's output that depends on this region; the output has size (height, width)."""
        rows = max(self.top - reach, 0), min(self.bottom + reach, height)
        return Region(*rows, max(self.left - reach, 0), min(self.right + reach, width))

    def spread_with_stride_2(self, height: int, width: int) -> "Region":
        """Return the part of the output of a 3x3 kernel with stride 2 and padding 1 that this region affects.

        `height` and `width` are the size of the output. Output pixel o depends on input pixels 2o - 1 to 2o + 1.
        """
        return Region(self.top // 2, min(self.bottom // 2 + 1, height), self.left // 2, min(self.right // 2 + 1, width))

    def halve(self) -> "Region":
        """Return the part of the output of a 2x2 kernel with stride 2 that this region affects."""
        return Region(self.top // 2, (self.bottom + 1) // 2, self.left // 2, (self.right + 1) // 2)


def union(regions: list[Region]) -> Region:
    """Return the smallest region that contains one or more given regions."""
    tops, bottoms, lefts, rights = zip(*regions, strict=True)
    return Region(min(tops), max(bottoms), min(lefts), max(rights))
