"""Whether all rows counted the same images: the rows of every confusion matrix sum to the images of each class."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from robust201.shards.inventory import Inventory

_NOT_SEEN = -1


class ClassCounts:
    """Images of each true class, by row of an inventory.

    What the classes of a dataset should count is not asked of the images, which may be elsewhere, but of the rows: all
    that were measured on the same images agree, and one that does not stands out.

    Args:
        inventory: the rows.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._groups: dict[tuple[str, str, int, int], int] = {}
        self._counts: dict[tuple[int, ...], int] = {}
        self._group = np.full(len(inventory), _NOT_SEEN, dtype=np.int32)
        self._count = np.full(len(inventory), _NOT_SEEN, dtype=np.int32)
        self._images: dict[str, str] = {}

    def add(self, row: int, cm: NDArray[np.int32]) -> None:
        """Note a row of the inventory.

        Args:
            row: its position in the inventory.
            cm: (C, C) its confusion matrix.
        """
        unit = self._inventory.units[self._inventory.row_column("unit")[row]]
        start, stop = (int(self._inventory.row_column(name)[row]) for name in ("start", "stop"))
        group = (unit.dataset, self._images_of(unit.protocol), start, stop)
        self._group[row] = self._groups.setdefault(group, len(self._groups))
        self._count[row] = self._counts.setdefault(tuple(cm.sum(axis=1).tolist()), len(self._counts))

    def _images_of(self, protocol: str) -> str:
        """Name the images of a protocol: by their hash, where the folder knows it."""
        if protocol not in self._images:
            images = self._inventory.protocol(protocol).get("images", {})
            self._images[protocol] = str(images.get("sha256", protocol))
        return self._images[protocol]

    def find_unlike(self) -> Iterator[tuple[int, str]]:
        """Find the rows that count other images than most rows of their dataset, images and range.

        Yields:
            Row of the inventory, and what was expected and got.
        """
        known = list(self._counts)
        for group in range(len(self._groups)):
            rows = np.flatnonzero(self._group == group)
            counted = Counter(self._count[rows].tolist())
            usual = max(counted, key=lambda count: (counted[count], -count))
            for row in rows[self._count[rows] != usual].tolist():
                got = list(known[self._count[row]])
                told = f"as in {counted[usual]} other rows, got {got}. Evaluate it again."
                yield row, f"expected rows of cm to count {list(known[usual])} images, {told}"
