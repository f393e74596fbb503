"""The plain parts that figures in files are made of: panels, heat maps, the chance line, marks beyond the axes.

Widths are in inches and text is in points, of the same size at every width: a file is made to be printed as wide as it
is.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

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

TITLE = 8.0
TEXT = 7.5
SMALL = 6.5
NUMBER = 6.0
LEAST_NUMBER = 5.0
"""Sizes of text in points: titles of panels, axes, ticks, numbers in fields and the smallest of these."""

POINTS = 72.0
"""Points an inch."""

_LETTER = 0.58
"""Width of a letter over its height, about."""


def inches(n_letters: int, size: float) -> float:
    """Estimate the width of a text of some points."""
    return n_letters * _LETTER * size / POINTS


def count_columns(n: int, width: float, least: float) -> int:
    """Return how many panels stand side by side: as many as are at least so wide, in rows of about equal length."""
    most = max(1, min(n, int(width / least)))
    n_rows = -(-n // most)
    return -(-n // n_rows)


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


def draw_heat_map(
    axes: Axes,
    matrix: pd.DataFrame,
    texts: Sequence[Sequence[str]] | None,
    limits: tuple[float, float],
    *,
    colours: str | Colormap,
    field: float,
    squares: bool = True,
) -> None:
    """Draw a frame as coloured fields, its first row on top; NaN stays empty.

    Args:
        axes: where to.
        matrix: the numbers.
        texts: what is written in the fields, as far as there is room; nothing if None.
        limits: numbers of the first and last colour.
        colours: a colour map.
        field: width of a field in inches, about.
        squares: whether fields are as high as they are wide.
    """
    numbers = matrix.to_numpy(np.float64)
    longest = max((len(text) for row in texts or () for text in row), default=0)
    size = min(NUMBER, field / inches(max(1, longest), 1))
    written = texts is not None and size >= LEAST_NUMBER
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(numbers),
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
        edgecolors="white" if written else "none",
        linewidth=0.5,
        rasterized=numbers.size > RASTER_FIELDS,
    )
    for (i, j), value in np.ndenumerate(numbers if written else np.empty((0, 0))):
        red, green, blue, _ = mesh.cmap(mesh.norm(value))
        # Rec. 601 luma decides whether black or white is read on the square.
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        colour = INK if np.isnan(value) else "#1c2128" if light else "#fefefe"
        text = texts[i][j] if texts else ""
        axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=size, color=colour)
    style(axes)
    axes.set_xticks(np.arange(matrix.shape[1]) + 0.5, [str(name) for name in matrix.columns])
    axes.set_yticks(np.arange(matrix.shape[0]) + 0.5, [str(name) for name in matrix.index])
    # A turned label would be aligned by its middle.
    widest = max((len(str(name)) for name in matrix.columns), default=0)
    if inches(widest, SMALL) > field:
        steep = field < 2 * SMALL / POINTS
        for label in axes.get_xticklabels():
            label.set(rotation=90 if steep else 45, ha="center" if steep else "right", rotation_mode="anchor")
            if steep:
                label.set(ha="right", va="center")
    axes.tick_params(length=0, labelsize=SMALL if field >= SMALL / POINTS else field * POINTS)
    axes.invert_yaxis()
    axes.set_aspect("equal" if squares else "auto")


RASTER_FIELDS = 2_000
"""Heat maps of more fields are pictures inside an SVG or PDF."""


def draw_chance(axes: Axes, chance: float | None, *, right: bool = False) -> None:
    """Draw the accuracy of guessing, where it is known and shown; its word at the right or at the left."""
    low, high = axes.get_ylim()
    if chance is None or not low <= chance <= high:
        return
    axes.axhline(chance, color=CHANCE_COLOUR, linewidth=0.9, linestyle="--", zorder=1)
    # Below the line at the top of a panel, where nothing else is below.
    above = chance < (low + high) / 2
    axes.annotate(
        "chance",
        (1 if right else 0, chance),
        xycoords=("axes fraction", "data"),
        xytext=(-2 if right else 2, 1.5 if above else -1.5),
        ha="right" if right else "left",
        va="bottom" if above else "top",
        textcoords="offset points",
        fontsize=NUMBER,
        color=CHANCE_COLOUR,
    )


def draw_beyond(axes: Axes, place: float, count: int, *, top: bool) -> None:
    """Mark at the lower or upper border, at a place of the horizontal axis, how many numbers are beyond it."""
    if not count:
        return
    spot: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "annotation_clip": False}
    text, offset = (f"▲{count:,}", -1) if top else (f"▼{count:,}", 1)
    va = "top" if top else "bottom"
    axes.annotate(text, (place, float(top)), (0, offset), ha="center", va=va, fontsize=NUMBER, color=INK, **spot)


def draw_points(axes: Axes, x: pd.Series, y: pd.Series, limits: Sequence[tuple[float, float]], **looks: Any) -> Any:
    """Draw points within the limits of both axes; those beyond are arrows at the border, with their number."""
    (left, right), (low, high) = limits
    shown_x, shown_y = x.clip(left, right), y.clip(low, high)
    colours = looks.pop("c", None)
    drawn = None
    within = (x >= left) & (x <= right)
    sides = {"<": x < left, ">": x > right, "v": within & (y < low), "^": within & (y > high)}
    beyond = np.logical_or.reduce([side.to_numpy() for side in sides.values()])
    groups = [("o", ~beyond), *((marker, side.to_numpy()) for marker, side in sides.items())]
    for marker, chosen in groups:
        if not chosen.any():
            continue
        if colours is not None:
            looks["c"] = colours[chosen]
        own = looks if marker == "o" else looks | {"s": 12, "clip_on": False, "zorder": 3}
        points = axes.scatter(shown_x[chosen], shown_y[chosen], marker=marker, **own)
        drawn = drawn or points
    notes: dict[str, tuple[str, float, float, str, str]] = {
        "<": ("◀ {}", 0, 0.5, "left", "center"),
        ">": ("{} ▶", 1, 0.5, "right", "center"),
        "v": ("▼ {}", 0.5, 0, "center", "bottom"),
        "^": ("▲ {}", 0.5, 1, "center", "top"),
    }
    for marker, side in sides.items():
        if side.any():
            text, at_x, at_y, ha, va = notes[marker]
            text = text.format(f"{int(side.sum()):,}")
            offset = (4 * (0.5 - at_x) * 2, 4 * (0.5 - at_y) * 2)
            spot: Any = {"xycoords": "axes fraction", "textcoords": "offset points"}
            axes.annotate(text, (at_x, at_y), offset, ha=ha, va=va, fontsize=NUMBER, color=INK, **spot)
    return drawn


def draw_group_legend(figure: Figure, keys: Sequence[str]) -> None:
    """Return the colours of the groups of corruptions."""
    shown = {key_colour(key) for key in keys}
    patches = [Patch(color=colour, label=group) for group, (colour, _) in CORRUPTION_GROUPS.items() if colour in shown]
    draw_legend(figure, patches)


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


def draw_colour_bar(figure: Figure, colours: ScalarMappable, panels: Sequence[Axes], label: str) -> None:
    """Draw the legend of the colours of some panels below them."""
    width = figure.get_figwidth()
    bar = figure.colorbar(
        colours, ax=panels, location="bottom", shrink=min(1.0, 2.4 / width), fraction=0.05, pad=0.01, aspect=30
    )
    bar.set_label(label, color=INK, fontsize=SMALL)
    bar.ax.tick_params(colors=INK, labelsize=SMALL)
    bar.outline.set_visible(False)


def add_note(figure: Figure, text: str) -> None:
    """Write a note below a figure, below its label if it has one."""
    label = figure.get_supxlabel()
    size = SMALL if label else NUMBER
    lines = textwrap.wrap(text, max(20, int(figure.get_figwidth() / inches(1, size))))
    figure.supxlabel("\n".join([label, *lines] if label else lines), fontsize=size, color=INK)
    figure.set_figheight(figure.get_figheight() + len(lines) * 1.25 * size / POINTS)


def style(axes: Axes) -> None:
    """Give axes the colours and size of the text, and no frame."""
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelcolor=INK, labelsize=SMALL, length=2, width=0.6, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(False)
