"""Confusion matrices, summed over networks."""

from functools import partial
from typing import Any

import pandas as pd

from robust201.analysis.dataset_results import DatasetResults
from robust201.figures import drawings
from robust201.figures.definition import FigureDefinition
from robust201.figures.keys import reference_columns
from robust201.figures.panels import Chart, Figure, Layout, Panel

MAX_SIDE = 175.0
"""Largest side of a matrix."""

_PERCENT_EXPRESSION = "datum.value < 0.5 ? '' : format(datum.value, '.0f')"


def confusion_fractions(results: DatasetResults) -> pd.DataFrame:
    """Sum the confusion matrices of all architectures, and divide each row by its sum, at one strength per key.

    Returns:
        Fractions by (key, strength, true class) and predicted class; rows without images are 0.
    """
    sums = results.confusion_sums()
    frames = {column: pd.DataFrame(sums[column]) for column in reference_columns(list(sums))}
    if not frames:
        return pd.DataFrame()
    counts = pd.concat(frames, names=["key", "strength", "true class"])
    totals = counts.sum(axis=1)
    return counts.div(totals.where(totals > 0, 1.0), axis=0)


def draw_confusion(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the matrices (see `confusion_fractions`), in percent."""
    names = [str(number) for number in frame.columns]
    texts = {"row": "true class", "column": "predicted class", "value": "% of the true class|.1f"}
    colour = drawings.number_colours("value", (0, 100), "viridis", "% of the images of the true class")

    def draw(layout: Layout, matrix: pd.DataFrame) -> Chart:
        side = min(MAX_SIDE, layout.width) / len(names)
        axes = ("predicted class" if layout.is_at_bottom else None, "true class" if layout.is_leftmost else None)
        tiles = drawings.matrix_tiles(100 * matrix.set_axis(names, axis=0).set_axis(names, axis=1))
        size = side, side
        return drawings.heat_map(
            tiles, (names, names), layout, colour, texts, size=size, number=_PERCENT_EXPRESSION, letters=3, axes=axes
        )

    panels = []
    groups: Any = frame.groupby(["key", "strength"], sort=False)
    for (key, strength), rows in groups:
        title = results.column_label(key, strength)
        panels.append(Panel((title,), partial(draw, matrix=rows.droplevel(["key", "strength"]))))
    return Figure(panels, 112)


FIGURES = (
    FigureDefinition(
        "confusion",
        "Confusion matrices",
        "Confusion matrices, summed over the evaluated architectures. Each row contains the images of a true class and "
        "sums to 100%. Entries below half a percent have no number. Attacks are at the epsilon nearest to 1/255 (for "
        "norms other than Linf, nearest to 1), and corruptions at the severity nearest to 3.",
        "Fig. 16",
        "the measurement cm",
        confusion_fractions,
        draw_confusion,
    ),
)
