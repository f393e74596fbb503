"""Which part of each feature map a window of the image reaches. Plain Python, no torch."""

from collections.abc import Iterator
from typing import NamedTuple


class Region(NamedTuple):
    """Rows top to bottom and columns left to right of a feature map, `bottom` and `right` excluded.

    Where it is read, it may stick out of the map by one pixel of padding.
    """

    top: int
    bottom: int
    left: int
    right: int

    @property
    def size(self) -> tuple[int, int]:
        return self.bottom - self.top, self.right - self.left

    def around(self, reach: int) -> "Region":
        """What a kernel reads to give this region."""
        return Region(self.top - reach, self.bottom + reach, self.left - reach, self.right + reach)

    def spread(self, reach: int, height: int, width: int) -> "Region":
        """What a kernel changes of a map of this height and width if this region changes."""
        wide = self.around(reach)
        return Region(max(wide.top, 0), min(wide.bottom, height), max(wide.left, 0), min(wide.right, width))

    def spread_by_two(self, height: int, width: int) -> "Region":
        """What a 3x3 kernel with stride 2 and padding 1 changes of a map of this (halved) height and width.

        Output pixel o sees the input's pixels 2o - 1 to 2o + 1.
        """
        return Region(self.top // 2, min(self.bottom // 2 + 1, height), self.left // 2, min(self.right // 2 + 1, width))

    def doubled(self, before: int = 0) -> "Region":
        """The same pixels on a map of twice the height and width, with some rows and columns before them."""
        return Region(2 * self.top - before, 2 * self.bottom, 2 * self.left - before, 2 * self.right)

    def within(self, outer: "Region") -> tuple[slice, slice]:
        """Rows and columns of this region, counted from the first ones of another."""
        return (
            slice(self.top - outer.top, self.bottom - outer.top),
            slice(self.left - outer.left, self.right - outer.left),
        )

    def edges(self, height: int, width: int) -> Iterator[tuple[int, int]]:
        """Find the sides that lie on the border of a map (B, C, height, width): axis, and 0 or -1."""
        for axis, start, stop, size in ((2, self.top, self.bottom, height), (3, self.left, self.right, width)):
            if start == 0:
                yield axis, 0
            if stop == size:
                yield axis, -1


def union(regions: list[Region]) -> Region:
    """The smallest region that holds some regions, at least one."""
    tops, bottoms, lefts, rights = zip(*regions, strict=True)
    return Region(min(tops), max(bottoms), min(lefts), max(rights))
