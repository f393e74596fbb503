"""Grids of enlarged images with captions, drawn with Matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from robust201.analysis.labels import key_label
from robust201.core.files import atomic_write
from robust201.figures import matplotlib_parts as parts
from robust201.figures.panels import SMALL_SIZE
from robust201.figures.vega_files import PNG_DPI
from robust201.spaces.cell_space import INK

FIGURE_WIDTH = 7.2
"""Width of a sheet of images, in inches."""

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


def draw_corruptions(clean: NDArray[np.float32], corrupted: Mapping[str, NDArray[np.float32]]) -> Figure:
    """Draw one image under corruptions, one row per key, one column per severity, as in the dataset paper's figure 18.

    Args:
        clean: (3, H, W) pixels in [0, 1].
        corrupted: (5, 3, H, W) pixels at severities 1 to 5, by key.
    """
    rows = [[Tile(image) for image in (clean, *severities)] for severities in corrupted.values()]
    columns = ["clean", *(f"severity {severity}" for severity in range(1, 6))]
    return draw_image_grid(
        rows, column_labels=columns, row_labels=[key_label(key) for key in corrupted], width=FIGURE_WIDTH
    )


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format given by the path's suffix; equal figures have equal bytes."""
    settings: Any = {"svg.hashsalt": path.stem, "svg.fonttype": "none", "pdf.fonttype": 42}
    file_format = path.suffix.lstrip(".")
    with rc_context(settings), atomic_write(path) as stream:
        figure.savefig(stream, format=file_format, dpi=PNG_DPI, metadata=parts.METADATA[file_format])
    return path
