"""Sheets of enlarged images with captions."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from robust201.core.colours import INK, PAPER
from robust201.figures.panels import FONT, POINTS_PER_INCH, SMALL_SIZE, Chart

WIDTH = 5.0 * POINTS_PER_INCH
"""Width of a sheet, in points."""

_LINE_HEIGHT = 11.0
"""Height of a line of text, in points."""

_MIN_SIDE = 256
"""Minimum length of an enlarged image's longer side, in pixels; viewers would smooth smaller images."""


Tile = tuple[NDArray[np.float32], str]
"""An image (C, H, W) in [0, 1], with C of 1 or 3, and the caption below it."""


def draw_image_grid(
    rows: Sequence[Sequence[Tile]], *, column_labels: Sequence[str], row_labels: Sequence[str]
) -> alt.LayerChart:
    """Draw rows of images, all of the same length, with a label above each column and to the left of each row."""
    side = WIDTH / (len(column_labels) + 1)
    row_height = side + _LINE_HEIGHT + 4
    tiles = pd.DataFrame(
        [
            {
                "x": (column + 1) * side,
                "y": _LINE_HEIGHT + row_number * row_height,
                "middle": (column + 1.5) * side,
                "below": _LINE_HEIGHT + row_number * row_height + side,
                "url": _encode_png(pixels),
                "caption": caption,
            }
            for row_number, row in enumerate(rows)
            for column, (pixels, caption) in enumerate(row)
        ]
    )
    heads = pd.DataFrame({"x": side * (np.arange(len(column_labels)) + 1.5), "text": list(column_labels)})
    sides = pd.DataFrame({"y": _LINE_HEIGHT + row_height * np.arange(len(rows)) + side / 2, "text": list(row_labels)})
    images = alt.Chart(tiles).mark_image(width=0.97 * side, height=0.97 * side, align="left", baseline="top")
    captions = _text(tiles, baseline="top", dy=1)
    layers: list[Chart] = [
        images.encode(x=_position("x"), y=_position("y"), url="url:N"),
        captions.encode(x=_position("middle"), y=_position("below"), text=alt.Text("caption:N")),
        _text(heads, baseline="top").encode(x=_position("x"), y=alt.YValue(0), text=alt.Text("text:N")),
        _text(sides, baseline="middle").encode(x=alt.XValue(side / 2), y=_position("y"), text=alt.Text("text:N")),
    ]
    config = alt.Config(background=PAPER, view=alt.ViewConfig(stroke=None), font=FONT)
    return alt.LayerChart(layer=layers, config=config, width=WIDTH, height=_LINE_HEIGHT + row_height * len(rows))


def _text(rows: pd.DataFrame, **position: Any) -> alt.Chart:
    chart: alt.Chart = alt.Chart(rows).mark_text(align="center", fontSize=SMALL_SIZE, color=INK, **position)
    return chart


def _position(field: str) -> dict[str, Any]:
    """Return the position channel of a field in points from the top left corner."""
    return {"field": field, "type": "quantitative", "scale": None, "axis": None}


def _encode_png(pixels: NDArray[np.float32]) -> str:
    """Return an image as the URL of an enlarged PNG."""
    values = np.round(255 * np.clip(pixels, 0, 1)).astype(np.uint8)
    picture = Image.fromarray(values[0] if len(values) == 1 else np.ascontiguousarray(values.transpose(1, 2, 0)))
    factor = -(-_MIN_SIDE // max(picture.size))
    picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
