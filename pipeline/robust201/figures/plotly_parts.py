"""The plain parts that figures of the page are made of, as plotly's JSON: panels, heat maps, axes, the chance line."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robust201.analysis.labels import key_label
from robust201.figures.palette import CHANCE_COLOUR, GRID, strength_word
from robust201.spaces.cell_space import INK

PlotlyFigure = dict[str, Any]

_TITLE = 30
_ROW_GAP = 60
_PANEL_SHARE = 0.92
_SMALL_TEXT_FROM = 24

_RED_WHITE_BLUE = (
    *("#67001f", "#b2182b", "#d6604d", "#f4a582", "#fddbc7", "#f7f7f7"),
    *("#d1e5f0", "#92c5de", "#4393c3", "#2166ac", "#053061"),
)
DIVERGING = [[place / 10, colour] for place, colour in enumerate(_RED_WHITE_BLUE)]
"""RdBu of ColorBrewer (Brewer, 2003), which matplotlib has under that name and plotly's page has not."""

BLUES = [[place / 4, colour] for place, colour in enumerate(("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b"))]
"""Blues of ColorBrewer likewise."""

_LINES = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False}
_AXIS = _LINES | {"automargin": True, "ticks": "", "ticklabelstandoff": 4}
TEMPLATE = {
    "layout": {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 12, "family": "system-ui, sans-serif"},
        "margin": {"l": 60, "r": 16, "t": 36, "b": 48},
        "boxmode": "overlay",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": INK, "activecolor": INK},
    }
}
"""How all figures of the page look; `INK` and `GRID` are replaced by the page's colours."""


def make_plotly_panels(keys: Sequence[str], n_columns: int) -> tuple[PlotlyFigure, list[dict[str, str]]]:
    """Make an empty figure with a grid of panels, one a key; also give for each what puts a trace into it."""
    height = 170 if n_columns > 2 else 230
    n_columns = min(n_columns, len(keys))
    n_rows = -(-len(keys) // n_columns)
    names = ["" if place == 0 else str(place + 1) for place in range(len(keys))]
    inside = n_rows * height + (n_rows - 1) * _ROW_GAP
    top, bottom = _TITLE + 6, 56
    layout: dict[str, Any] = {
        "showlegend": False,
        "height": inside + top + bottom,
        "meta": {"width": 900 if n_columns > 1 else 460, "grows": n_columns > 1, "columns": n_columns},
        "margin": {"l": 60, "r": 16, "t": top, "b": bottom},
        "shapes": [],
        "annotations": [
            {
                "text": plain(key_label(key)),
                "x": 0.5,
                "y": 1,
                "xref": f"x{name} domain",
                "yref": f"y{name} domain",
                "xanchor": "center",
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 13},
            }
            for key, name in zip(keys, names, strict=True)
        ],
    }
    for place, name in enumerate(names):
        row, column = divmod(place, n_columns)
        across = [column / n_columns, (column + _PANEL_SHARE) / n_columns]
        ceiling = 1 - row * (height + _ROW_GAP) / inside
        up = [max(0.0, ceiling - height / inside), ceiling]
        layout[f"xaxis{name}"] = {"domain": across, "anchor": f"y{name}", "fixedrange": True}
        layout[f"yaxis{name}"] = {"domain": up, "anchor": f"x{name}", "fixedrange": True}
        if column > 0:
            layout[f"yaxis{name}"]["showticklabels"] = False
    return {"data": [], "layout": layout}, [{"xaxis": f"x{name}", "yaxis": f"y{name}"} for name in names]


def fraction_axis(figure: PlotlyFigure, label: str, limits: tuple[float, float] = (0, 1)) -> None:
    """Let the vertical axes of all panels show fractions between limits, and name those at the left."""
    for name, axis in figure["layout"].items():
        if name.startswith("yaxis"):
            axis |= {"range": list(limits), "tickformat": ".0%"}
            if "showticklabels" not in axis:
                axis["title"] = {"text": label}


def strength_axes(figure: PlotlyFigure, keys: Sequence[str], ticks: Sequence[Sequence[str]]) -> None:
    """Let each panel's horizontal axis show its strengths as written; a label that all share stands below the last."""
    axes = [axis for name, axis in figure["layout"].items() if name.startswith("xaxis")]
    named = [strength_word(key) for key in keys]
    for place, (axis, order, label) in enumerate(zip(axes, ticks, named, strict=True), start=1):
        if len(set(named)) > 1 or place + figure["layout"]["meta"]["columns"] > len(axes):
            axis["title"] = {"text": label, "standoff": 6}
        axis |= {"type": "category", "categoryorder": "array", "categoryarray": list(order), "tickangle": 0}
        axis |= {"showgrid": False}


def chance_parts(figure: PlotlyFigure, chance: float | None, axes: Sequence[str], *, outside: bool = False) -> None:
    """Draw the accuracy of guessing, where it is known, across panels; its word inside at the left, or outside."""
    if chance is None:
        return
    line = {"color": CHANCE_COLOUR, "width": 1.2, "dash": "dash"}
    for axis in axes:
        across = {"xref": axis.replace("y", "x") + " domain", "yref": axis}
        ends = {"x0": 0, "x1": 1, "y0": chance, "y1": chance}
        figure["layout"]["shapes"].append({"type": "line", "line": line} | ends | across)
        figure["layout"]["annotations"].append(
            {
                "text": "chance",
                "x": 1 if outside else 0,
                "y": chance,
                "xanchor": "left",
                "yanchor": "middle" if outside else "bottom",
                "showarrow": False,
                "font": {"color": CHANCE_COLOUR, "size": 10},
            }
            | across
        )


def heat_map(
    matrix: pd.DataFrame,
    texts: list[list[str]] | None,
    limits: tuple[float, float],
    colours: Any,
    unit: str,
    *,
    digits: int,
    hover: str,
    size: tuple[int, int],
    squares: bool = True,
) -> PlotlyFigure:
    """Make a heat map of some decimals, the first row on top; NaN stays empty, and without texts nothing is written."""
    trace = {
        "type": "heatmap",
        "z": [rounded(row, digits) for row in matrix.to_numpy(np.float64)],
        "x": [plain(str(name)) for name in matrix.columns],
        "y": [plain(str(name)) for name in matrix.index],
        "zmin": limits[0],
        "zmax": limits[1],
        "colorscale": colours,
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 14, "outlinewidth": 0},
        "hoverongaps": False,
        "hovertemplate": f"{hover}<extra></extra>",
    }
    if texts is not None:
        font_size = 11 if len(matrix) < _SMALL_TEXT_FROM else 8
        trace |= {"text": texts, "texttemplate": "%{text}", "textfont": {"size": font_size}, "xgap": 1, "ygap": 1}
    axis = {"type": "category", "showgrid": False, "constrain": "domain", "fixedrange": len(matrix) < _SMALL_TEXT_FROM}
    layout = {
        "showlegend": False,
        "height": size[1],
        "meta": {"width": size[0]},
        "xaxis": axis | {"tickangle": -45 if max(len(name) for name in trace["x"]) > 3 else 0},
        "yaxis": axis | {"autorange": "reversed"} | ({"scaleanchor": "x"} if squares else {}),
    }
    return {"data": [trace], "layout": layout}


def rounded(numbers: Iterable[float], digits: int) -> list[float | None]:
    """Round numbers for JSON; None stands for NaN."""
    return [None if np.isnan(number) else round(float(number), digits) for number in numbers]


def plain(text: str) -> str:
    """Keep plotly from reading a text as its markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
