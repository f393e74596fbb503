"""Regions of feature maps that a window of the image affects. Does not import torch."""

from collections.abc import Iterator
from typing import NamedTuple


class Region(NamedTuple):
    """Rows top to bottom and columns left to right of a feature map, `bottom` and `right` excluded.

    A region that is read may extend beyond the map by one pixel of padding.
    """

    top: int
    bottom: int
    left: int
    right: int

    @property
    def size(self) -> tuple[int, int]:
        return self.bottom - self.top, self.right - self.left

    def around(self, reach: int) -> "Region":
        """Return the region that a kernel reads to compute this region."""
        return Region(self.top - reach, self.bottom + reach, self.left - reach, self.right + reach)

    def spread(self, reach: int, height: int, width: int) -> "Region":
        """Return the region of a kernel's output, of this height and width, that is affected by this region."""
        wide = self.around(reach)
        return Region(max(wide.top, 0), min(wide.bottom, height), max(wide.left, 0), min(wide.right, width))

    def spread_by_two(self, height: int, width: int) -> "Region":
        """Return the affected output region of a 3x3 kernel with stride 2 and padding 1; the output has this size.

        Output pixel o depends on input pixels 2o - 1 to 2o + 1.
        """
        return Region(self.top // 2, min(self.bottom // 2 + 1, height), self.left // 2, min(self.right // 2 + 1, width))

    def doubled(self, before: int = 0) -> "Region":
        """Return the same pixels on a map of twice the height and width, with `before` more rows and columns before."""
        return Region(2 * self.top - before, 2 * self.bottom, 2 * self.left - before, 2 * self.right)

    def within(self, outer: "Region") -> tuple[slice, slice]:
        """Return the rows and columns of this region relative to the start of another."""
        return (
            slice(self.top - outer.top, self.bottom - outer.top),
            slice(self.left - outer.left, self.right - outer.left),
        )

    def edges(self, height: int, width: int) -> Iterator[tuple[int, int]]:
        """Yield axis and index (0 or -1) of each side on the border of a map (B, C, height, width)."""
        for axis, start, stop, size in ((2, self.top, self.bottom, height), (3, self.left, self.right, width)):
            if start == 0:
                yield axis, 0
            if stop == size:
                yield axis, -1


def union(regions: list[Region]) -> Region:
    """Return the smallest region that contains the given regions, at least one."""
    tops, bottoms, lefts, rights = zip(*regions, strict=True)
    return Region(min(tops), max(bottoms), min(lefts), max(rights))
