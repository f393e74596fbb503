"""Figures as specifications in Vega-Lite: panels, how they are arranged, and how text and lines look.

A specification is plain JSON (https://vega.github.io/vega-lite/docs/, schema version 6). Files and the page draw the
same panels; they differ in how many stand side by side and in the pixels a point.
"""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from robust201.figures.palette import GRID
from robust201.spaces.cell_space import INK

Spec = dict[str, Any]

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v6.json"

FONT = "DejaVu Sans"
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

_GAP = 7.0
"""Points between panels."""


class PanelPlace(NamedTuple):
    """Where a panel stands.

    Attributes:
        width: of what is inside its axes, in points.
        left: whether no panel is at its left, so that it names the vertical axis.
        bottom: whether no panel is below.
        page: whether it is drawn on the page, which shows texts under the pointer and has the numbers of points.
    """

    width: float
    left: bool = True
    bottom: bool = True
    page: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel of a figure.

    Attributes:
        label: what it shows: its entry in the page's menu, and its title where `title` is None.
        draw: makes it, in points, for a place.
        title: lines above it.
        in_file: whether files show it; the page shows all.
        first: whether the page's menu opens with it.
        column: (key, strength), or a name of `SCORES`, of the accuracies that the page puts on the vertical axis, from
            the numbers it holds for the explorer anyway; None where the panel holds its own.
        limits: with a column, the ends of the vertical axis.
    """

    label: str
    draw: Callable[[PanelPlace], Spec]
    title: tuple[str, ...] | None = None
    in_file: bool = True
    first: bool = False
    column: tuple[str, float] | str | None = None
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """Panels of a figure, side by side in rows.

    Attributes:
        panels: at least one.
        least: width of a panel in points below which fewer stand side by side.
        menu: whether the page shows one panel at a time.
        page_width: of a panel on the page, in points; as wide as the page if None.
        label: below all panels.
        notes: below that, in files.
        above: a figure of cells that stands above these panels in files; the page draws cells itself.
    """

    panels: Sequence[Panel]
    least: float
    menu: bool = False
    page_width: float | None = None
    label: str = ""
    notes: tuple[str, ...] = field(default=())
    above: "Figure | None" = None


def inches(n_letters: int, size: float) -> float:
    """Estimate the width of a text of some points."""
    return text_width(n_letters, size) / POINTS


def text_width(n_letters: int, size: float) -> float:
    """Estimate the width of a text of some points, in points."""
    return n_letters * _LETTER * size


def count_columns(n: int, width: float, least: float) -> int:
    """Return how many panels stand side by side: as many as are at least so wide, in rows of about equal length."""
    most = max(1, min(n, int(width / least)))
    n_rows = -(-n // most)
    return -(-n // n_rows)


def arrange(figure: Figure, panels: Sequence[Panel], width: float, spare: float, *, page: bool = False) -> Spec:
    """Arrange panels of a figure in rows.

    Args:
        figure: the figure.
        panels: those of it to show.
        width: of all, in points.
        spare: of this, what axes and gaps take.
        page: see `PanelPlace`.
    """
    n_columns = count_columns(len(panels), width, figure.least)
    inner = (width - spare) / n_columns
    drawn = []
    for place, panel in enumerate(panels):
        where = PanelPlace(inner, place % n_columns == 0, place + n_columns >= len(panels), page)
        lines = panel.title if panel.title is not None else (panel.label,)
        size = max(LEAST_NUMBER, min(TITLE, inner / text_width(max(map(len, lines)), 1))) if any(lines) else TITLE
        titled = {"title": {"text": list(lines), "fontSize": size}} if any(lines) and not (page and figure.menu) else {}
        drawn.append(titled | panel.draw(where))
    _fold_legends(drawn, width)
    return {"concat": drawn, "columns": n_columns, "spacing": {"row": 6, "column": _GAP}}


def _fold_legends(part: object, width: float) -> None:
    """Let legends above panels have only as many columns, and their titles as long lines, as there is room for."""
    if isinstance(part, dict):
        legend = part.get("legend")
        if isinstance(legend, dict) and legend.get("orient") == "top":
            names = legend.get("values", part["scale"]["domain"])
            widest = text_width(max(map(len, names)), SMALL) + 25
            legend["columns"] = count_columns(len(names), width, widest)
            legend["title"] = [line for one in legend["title"] or () for line in wrap(one, width)] or None
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            _fold_legends(one, width)


def write_spec(
    bodies: Sequence[Spec], config: Spec, *, label: str = "", notes: Sequence[str] = (), title: str = ""
) -> Spec:
    """Complete arranged panels by texts above and below, and by how text and lines look."""
    spec: Spec = {"$schema": VEGA_LITE, "config": config, "vconcat": list(bodies), "spacing": 10, "center": True}
    if label or notes:
        below: Spec = {"orient": "bottom", "anchor": "middle", "frame": "bounds", "offset": 4}
        words = {"text": label, "fontSize": TEXT, "subtitle": list(notes)}
        spec["title"] = below | (words if label else {"text": list(notes), "fontSize": NUMBER})
    if title:
        head = {"text": title.split("\n"), "fontWeight": "bold", "anchor": "middle", "frame": "bounds", "offset": 6}
        spec["vconcat"][0] = bodies[0] | {"title": head}
    return spec


def wrap(text: str, width: float) -> list[str]:
    """Cut a note into lines that are at most so many points wide."""
    return textwrap.wrap(text, max(20, int(width / text_width(1, NUMBER))))


def configure(background: str | None) -> Spec:
    """Give text and lines their colours and sizes, in points."""
    plain = {"fontWeight": "normal", "color": INK}
    return {
        "font": FONT,
        "background": background,
        "padding": 2,
        "view": {"stroke": None},
        "axis": {
            "domain": False,
            "labelColor": INK,
            "labelFontSize": SMALL,
            "labelLimit": 0,
            "labelPadding": 2,
            "tickColor": INK,
            "tickSize": 2,
            "tickWidth": 0.6,
            "titleColor": INK,
            "titleFontSize": TEXT,
            "titleFontWeight": "normal",
            "titleLimit": 0,
            "titlePadding": 4,
            "gridColor": GRID,
            "gridWidth": 0.5,
        },
        "axisX": {"grid": False, "labelOverlap": False},
        "axisY": {"ticks": False},
        "legend": {
            "labelColor": INK,
            "labelFontSize": SMALL,
            "labelLimit": 0,
            "titleColor": INK,
            "titleFontSize": SMALL,
            "titleFontWeight": "normal",
            "titleLimit": 0,
            "titlePadding": 3,
            "columnPadding": 10,
            "rowPadding": 1,
            "symbolSize": 40,
            "symbolStrokeWidth": 1.2,
            "gradientThickness": 6,
            "gradientStrokeColor": None,
            "offset": 6,
            "layout": {"top": {"anchor": "middle"}, "bottom": {"anchor": "middle"}},
        },
        "title": plain
        | {"fontSize": TITLE, "offset": 3, "limit": 0, "subtitleColor": INK}
        | {"subtitleFontSize": NUMBER, "subtitlePadding": 2},
        "text": {"color": INK, "fontSize": NUMBER},
        "rule": {"color": INK, "strokeWidth": 0.6},
        "point": {"filled": True, "opacity": 1, "size": 5, "strokeWidth": 0.6},
        "line": {"strokeWidth": 1.1},
        "area": {"opacity": 0.2},
    }
