"""The basic Matplotlib elements of figures of studies and searches: panels and their legend.

Widths are in inches. Text sizes are in points and do not depend on the figure's width, because files are meant to be
printed at their original size.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import PercentFormatter

from robust201.figures.palette import GRID
from robust201.figures.panels import POINTS_PER_INCH, SMALL_SIZE, TEXT_SIZE, count_columns, text_width
from robust201.spaces.cell_space import INK

METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata fields to remove, by file format: with them, equal results would give different files."""


def make_axes_grid(
    n: int,
    width: float,
    min_panel_width: float,
    height: float,
    *,
    label: str = "accuracy",
    limits: tuple[float, float] = (0, 1),
    extra_height: float = 0.25,
) -> tuple[Figure, list[Axes]]:
    """Create a grid of panels that share a vertical axis of fractions.

    Args:
        n: number of panels.
        width: width of the figure, in inches.
        min_panel_width: minimum width of a panel, in inches; it limits the number of columns.
        height: height of a panel, in inches.
        label: label of the axis.
        limits: limits of the axis.
        extra_height: total height of the elements above and below the panels, in inches.
    """
    n_columns = count_columns(n, width, min_panel_width)
    figure = Figure(figsize=(width, height * -(-n // n_columns) + extra_height), layout="constrained")
    panels = make_panels(figure, n, n_columns, sharey=True)
    for position, axes in enumerate(panels):
        style_axes(axes)
        axes.set_ylim(*limits)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="y", color=GRID, linewidth=0.5)
        axes.tick_params(axis="y", length=0)
        if position % n_columns == 0:
            axes.set_ylabel(label, color=INK, fontsize=TEXT_SIZE)
    return figure, panels


def make_panels(figure: FigureBase, n: int, n_columns: int, *, sharey: bool = False) -> list[Axes]:
    """Divide a figure into panels in rows of `n_columns`, and hide the unused panels of the last row."""
    grid: list[Axes] = list(figure.subplots(-(-n // n_columns), n_columns, sharey=sharey, squeeze=False).flat)
    for axes in grid[n:]:
        axes.set_visible(False)
    return grid[:n]


def draw_legend(figure: Figure, handles: Sequence[Any]) -> Any:
    """Draw a legend above all panels, in as many columns as fit."""
    max_letters = max(len(handle.get_label()) for handle in handles)
    n_columns = count_columns(
        len(handles), figure.get_figwidth(), text_width(max_letters, SMALL_SIZE) / POINTS_PER_INCH + 0.55
    )
    return figure.legend(
        handles=list(handles),
        loc="outside upper center",
        ncols=n_columns,
        frameon=False,
        labelcolor=INK,
        fontsize=SMALL_SIZE,
    )


def style_axes(axes: Axes) -> None:
    """Set the colour and size of the tick labels, and remove the frame."""
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelcolor=INK, labelsize=SMALL_SIZE, length=2, width=0.6, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(False)
