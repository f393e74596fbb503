"""Rows of one key on one dataset, read from JSON or Parquet files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.dataset.layout import parse_architecture_id
from robust201.tasks.columns import fields_of


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Values of networks under one key on one dataset, one row per network and strength.

    Attributes:
        architectures: (N,) indices (int64) or names (objects).
        weights: (N,) names of the weights (objects); None if the file does not name them.
        strengths: (N,) float64.
        n_images: (N,) float64, the number of images, NaN if unknown; None if the file does not contain it.
        columns: array (N, …) of each column of the measurement (see `tasks.columns`), with NaN for missing numbers.
    """

    architectures: NDArray[Any]
    weights: NDArray[Any] | None
    strengths: NDArray[np.float64]
    n_images: NDArray[np.float64] | None
    columns: Mapping[str, NDArray[Any]]

    def take(self, selection: NDArray[Any]) -> "RowBlock":
        """Return the rows that a mask or an array of indices selects."""
        weights = None if self.weights is None else self.weights[selection]
        n_images = None if self.n_images is None else self.n_images[selection]
        columns = {name: array[selection] for name, array in self.columns.items()}
        return RowBlock(self.architectures[selection], weights, self.strengths[selection], n_images, columns)

    def __len__(self) -> int:
        return len(self.strengths)

    def nested_values(self, measurement: str) -> list[Any]:
        """Return each row's value as in JSON files: numbers, nested lists, or an object with the measurement's fields.

        NaN becomes None.
        """
        fields = fields_of(measurement)
        lists = {field: _to_nested(self.columns[name]) for field, name in fields.items()}
        if "" in lists:
            return lists[""]
        return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def concatenate(blocks: Sequence[RowBlock], measurement: str) -> RowBlock:
    """Return the rows of a file as one block; the measurement is a single column, whose integers become float64."""
    if not blocks:
        empty = np.zeros(0)
        return RowBlock(empty.astype(np.int64), None, empty, None, {measurement: empty})
    values = np.concatenate([block.columns[measurement] for block in blocks])
    weights, n_images = (
        None if first is None else np.concatenate([getattr(block, name) for block in blocks])
        for name, first in (("weights", blocks[0].weights), ("n_images", blocks[0].n_images))
    )
    return RowBlock(
        np.concatenate([block.architectures for block in blocks]),
        weights,
        np.concatenate([block.strengths for block in blocks]),
        n_images,
        {measurement: values.astype(np.float64) if values.dtype.kind in "iu" else values},
    )


def _to_nested(array: NDArray[Any]) -> list[Any]:
    if array.dtype.kind == "f" and np.isnan(array).any():
        objects = array.astype(object)
        objects[np.isnan(array)] = None
        array = objects
    values: list[Any] = array.tolist()
    return values


def make_ids(identifiers: Sequence[Any]) -> NDArray[Any]:
    """Return ids of architectures as int64, or as objects if any is a name."""
    texts = list(map(str, identifiers))
    if all(map(str.isdecimal, texts)):
        return np.array(list(map(int, texts)), np.int64)
    return np.array([parse_architecture_id(text) for text in texts], object)
