"""Which rows make up an evaluation: disjoint ranges of images that cover as many as they can."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Slice(NamedTuple):
    """One row of the inventory: image positions [start, stop), and where its values are."""

    start: int
    stop: int
    row: int


def choose_slices(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Choose disjoint slices that cover the most images, with the fewest slices among those.

    Sums over parts that overlap would count images twice, so a cover is disjoint. Among equal slices the first wins.

    Args:
        slices: in order of start, stop and shard name.

    Returns:
        The choice, by ascending start.
    """
    if len(slices) <= 1:
        return tuple(slices)
    # Weighted interval scheduling: best[i] is the best choice among the slices that begin at or after slices[i].
    best: list[tuple[int, int, tuple[Slice, ...]]] = [(0, 0, ())] * (len(slices) + 1)
    starts = [item.start for item in slices]
    for i in range(len(slices) - 1, -1, -1):
        item = slices[i]
        following = bisect_left(starts, item.stop)
        images, negative_count, rest = best[following]
        taken = images + item.stop - item.start, negative_count - 1, (item, *rest)
        best[i] = taken if taken[:2] >= best[i + 1][:2] else best[i + 1]
    return best[0][2]


def gaps(chosen: Sequence[Slice], n_images: int) -> list[tuple[int, int]]:
    """Ranges of [0, n_images) that disjoint slices leave open, ascending."""
    open_ranges, position = [], 0
    for item in chosen:
        if item.start > position:
            open_ranges.append((position, item.start))
        position = item.stop
    if position < n_images:
        open_ranges.append((position, n_images))
    return open_ranges
