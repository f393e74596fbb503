"""The plain parts that figures of studies and searches are made of, by Matplotlib: panels and their legend.

Widths are in inches and text is in points, of the same size at every width: a file is made to be printed as wide as it
is.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import PercentFormatter

from robust201.figures.palette import GRID
from robust201.figures.panels import SMALL, TEXT, count_columns, inches
from robust201.spaces.cell_space import INK

METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""By format: what would make equal results give unequal bytes, taken out."""


def make_axes_grid(
    n: int,
    width: float,
    least: float,
    height: float,
    *,
    label: str = "accuracy",
    limits: tuple[float, float] = (0, 1),
    below: float = 0.25,
) -> tuple[Figure, list[Axes]]:
    """Make a grid of panels that share the axis of a fraction.

    Args:
        n: panels.
        width: of the figure, in inches.
        least: width of a panel, in inches, below which fewer stand side by side.
        height: of a panel.
        label: of the axis.
        limits: of the axis.
        below: height of what stands below or above the panels.
    """
    n_columns = count_columns(n, width, least)
    figure = Figure(figsize=(width, height * -(-n // n_columns) + below), layout="constrained")
    panels = make_panels(figure, n, n_columns, sharey=True)
    for position, axes in enumerate(panels):
        style(axes)
        axes.set_ylim(*limits)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="y", color=GRID, linewidth=0.5)
        axes.tick_params(axis="y", length=0)
        if position % n_columns == 0:
            axes.set_ylabel(label, color=INK, fontsize=TEXT)
    return figure, panels


def make_panels(figure: FigureBase, n: int, n_columns: int, *, sharey: bool = False) -> list[Axes]:
    """Divide a figure into panels, some side by side; what is left over of the last row is hidden."""
    grid: list[Axes] = list(figure.subplots(-(-n // n_columns), n_columns, sharey=sharey, squeeze=False).flat)
    for axes in grid[n:]:
        axes.set_visible(False)
    return grid[:n]


def draw_legend(figure: Figure, handles: Sequence[Any]) -> Any:
    """Draw a legend above all panels, in as many columns as there is room for."""
    widest = max(len(handle.get_label()) for handle in handles)
    n_columns = count_columns(len(handles), figure.get_figwidth(), inches(widest, SMALL) + 0.55)
    return figure.legend(
        handles=list(handles),
        loc="outside upper center",
        ncols=n_columns,
        frameon=False,
        labelcolor=INK,
        fontsize=SMALL,
    )


def style(axes: Axes) -> None:
    """Give axes the colours and size of the text, and no frame."""
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelcolor=INK, labelsize=SMALL, length=2, width=0.6, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(False)
