"""Grids of enlarged images with captions, drawn with Matplotlib."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from robust201.figures import matplotlib_parts as parts
from robust201.figures.panels import SMALL_SIZE
from robust201.spaces.cell_space import INK

_LINE_HEIGHT = 0.16
"""Height of a line of text, in inches."""


class Tile(NamedTuple):
    """An image in a grid.

    Attributes:
        pixels: (C, H, W) in [0, 1], with C of 1 or 3.
        caption: text below the image.
    """

    pixels: NDArray[np.float32]
    caption: str = ""


def draw_image_grid(
    rows: Sequence[Sequence[Tile]], *, column_labels: Sequence[str], row_labels: Sequence[str], width: float
) -> Figure:
    """Draw rows of images.

    Args:
        rows: rows of images, all of the same length.
        column_labels: text above each column.
        row_labels: text to the left of each row; an empty text means that the row belongs to the row above.
        width: width of the figure, in inches.
    """
    n_columns = len(column_labels)
    has_captions = any(tile.caption for row in rows for tile in row)
    tile_size = width / (n_columns + 1)
    height = len(rows) * (tile_size + (2 * _LINE_HEIGHT if has_captions else 0)) + 2 * _LINE_HEIGHT
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = iter(parts.make_panels(figure, len(rows) * n_columns, n_columns))
    for row_number, (row, label) in enumerate(zip(rows, row_labels, strict=True)):
        for column_number, tile in enumerate(row):
            axes = next(panels)
            axes.imshow(_as_picture(tile.pixels), interpolation="nearest", cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            parts.style_axes(axes)
            axes.set_xlabel(tile.caption, fontsize=SMALL_SIZE, color=INK)
            if row_number == 0:
                axes.set_title(column_labels[column_number], fontsize=SMALL_SIZE, color=INK)
            if column_number == 0:
                axes.set_ylabel(label, fontsize=SMALL_SIZE, color=INK)
    return figure


def _as_picture(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    return pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)


def change_to_image(change: NDArray[np.float32], max_change: float) -> NDArray[np.float32]:
    """Convert the change of an image's pixels to an image in which grey means no change.

    A change of ±`max_change` becomes white or black.
    """
    scaled_change: NDArray[np.float32] = np.clip(0.5 + change / (2 * max(max_change, 1e-9)), 0, 1)
    return scaled_change
