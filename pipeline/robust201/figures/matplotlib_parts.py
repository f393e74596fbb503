"""The plain parts that figures in files are made of: panels, heat maps, the chance line."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap
from matplotlib.figure import Figure, FigureBase
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from robust201.figures.palette import CHANCE_COLOUR, CORRUPTION_GROUPS, GRID, key_colour
from robust201.spaces.cell_space import INK


def make_axes_grid(
    n: int, n_columns: int, width: float, height: float, *, label: str = "accuracy"
) -> tuple[Figure, list[Axes]]:
    """Make a grid of panels, sized in inches, that share the axis of a fraction; see `make_panels`."""
    n_columns = min(n, n_columns)
    size = (width * n_columns + (0.6 if n > 1 else 2.4), height * -(-n // n_columns) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = make_panels(figure, n, n_columns, sharey=True)
    for position, axes in enumerate(panels):
        style(axes)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.tick_params(axis="y", length=0)
        if position % n_columns == 0:
            axes.set_ylabel(label, color=INK)
    return figure, panels


def make_panels(figure: FigureBase, n: int, n_columns: int, *, sharey: bool = False) -> list[Axes]:
    """Divide a figure into panels, some side by side; what is left over of the last row is hidden."""
    grid: list[Axes] = list(figure.subplots(-(-n // n_columns), n_columns, sharey=sharey, squeeze=False).flat)
    for axes in grid[n:]:
        axes.set_visible(False)
    return grid[:n]


def draw_heat_map(
    axes: Axes,
    matrix: pd.DataFrame,
    texts: Sequence[Sequence[str]] | None,
    limits: tuple[float, float],
    *,
    colours: str | Colormap,
    font_size: float = 8,
    squares: bool = True,
) -> None:
    """Draw a frame as coloured fields, its first row on top; NaN stays empty, and without texts nothing is written."""
    numbers = matrix.to_numpy(np.float64)
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(numbers),
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
        edgecolors="white" if texts is not None else "none",
        linewidth=0.5,
    )
    for (i, j), value in np.ndenumerate(numbers if texts is not None else np.empty((0, 0))):
        red, green, blue, _ = mesh.cmap(mesh.norm(value))
        # Rec. 601 luma tells whether black or white is read on the square.
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        colour = INK if np.isnan(value) else "#1c2128" if light else "#fefefe"
        axes.text(
            j + 0.5, i + 0.5, texts[i][j] if texts else "", ha="center", va="center", fontsize=font_size, color=colour
        )
    style(axes)
    axes.set_xticks(np.arange(matrix.shape[1]) + 0.5, [str(name) for name in matrix.columns])
    axes.set_yticks(np.arange(matrix.shape[0]) + 0.5, [str(name) for name in matrix.index])
    # A turned label would be aligned by its middle.
    if squares and max((len(str(name)) for name in matrix.columns), default=0) > 3:
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0, labelsize=max(font_size, 7))
    axes.invert_yaxis()
    axes.set_aspect("equal" if squares else "auto")


def draw_chance(axes: Axes, chance: float | None, *, right: bool = False) -> None:
    """Draw the accuracy of guessing, where it is known; its word at the right, away from a diagonal, or at the left."""
    if chance is None:
        return
    axes.axhline(chance, color=CHANCE_COLOUR, linewidth=1.0, linestyle="--", zorder=1)
    axes.annotate(
        "chance",
        (1 if right else 0, chance),
        xycoords=("axes fraction", "data"),
        xytext=(-2 if right else 2, 2),
        ha="right" if right else "left",
        textcoords="offset points",
        fontsize=7.5,
        color=CHANCE_COLOUR,
    )


def draw_group_legend(figure: Figure, keys: Sequence[str]) -> None:
    """Tell the colours of the groups of corruptions."""
    shown = {key_colour(key) for key in keys}
    patches = [Patch(color=colour, label=group) for group, (colour, _) in CORRUPTION_GROUPS.items() if colour in shown]
    figure.legend(handles=patches, loc="outside right upper", frameon=False, labelcolor=INK)


def draw_colour_bar(figure: Figure, colours: ScalarMappable, panels: Sequence[Axes], label: str) -> None:
    """Draw what the colours of some panels stand for, to their right."""
    bar = figure.colorbar(colours, ax=panels, shrink=0.7, pad=0.01, aspect=25)
    bar.set_label(label, color=INK)
    bar.ax.tick_params(colors=INK)
    bar.outline.set_visible(False)


def style(axes: Axes) -> None:
    """Give axes the colours of the text, and no frame."""
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelcolor=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
