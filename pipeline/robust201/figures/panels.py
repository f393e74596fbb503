"""Figures as Vega-Lite specifications: panels, their arrangement, and the style of text and lines.

A specification is plain JSON (https://vega.github.io/vega-lite/docs/, schema version 6). Files and the page draw the
same panels; only the number of columns and the number of pixels per point differ.
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
MIN_NUMBER = 5.0
"""Text sizes in points: titles of panels, axes, ticks, numbers in fields, and the minimum of these."""

POINTS = 72.0
"""Points per inch."""

_LETTER = 0.58
"""Approximate width of a letter, relative to its height."""

_GAP = 7.0
"""Space between panels, in points."""


class PanelLayout(NamedTuple):
    """Layout of a panel in its figure.

    Attributes:
        width: width inside the axes, in points.
        left: whether it is the leftmost panel of its row, which labels the vertical axis.
        bottom: whether no panel is below it.
        page: whether it is drawn on the page, which has tooltips and holds the points' numbers.
    """

    width: float
    left: bool = True
    bottom: bool = True
    page: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel of a figure.

    Attributes:
        label: the panel's entry in the page's menu, and its title if `title` is None.
        draw: function that returns the specification for a layout, in points.
        title: lines above the panel.
        in_file: whether files show it; the page shows all panels.
        first: whether the page's menu opens with it.
        column: the accuracies on the vertical axis, as (key, strength) or a name of `SCORES`, if the page takes them
            from the explorer's numbers; None if the panel holds its own numbers.
        limits: limits of the vertical axis, if `column` is set.
    """

    label: str
    draw: Callable[[PanelLayout], Spec]
    title: tuple[str, ...] | None = None
    in_file: bool = True
    first: bool = False
    column: tuple[str, float] | str | None = None
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """A figure: panels side by side in rows.

    Attributes:
        panels: the panels, at least one.
        least: minimum width of a panel in points, which limits the number of columns.
        menu: whether the page shows one panel at a time.
        page_width: width of a panel on the page, in points; None is as wide as the page.
        label: text below all panels.
        notes: text below the label, in files.
        above: a figure of cells drawn above these panels in files; the page draws cells itself.
    """

    panels: Sequence[Panel]
    least: float
    menu: bool = False
    page_width: float | None = None
    label: str = ""
    notes: tuple[str, ...] = field(default=())
    above: "Figure | None" = None


def inches(n_letters: int, size: float) -> float:
    """Estimate the width of a text in inches, from its font size in points."""
    return text_width(n_letters, size) / POINTS


def text_width(n_letters: int, size: float) -> float:
    """Estimate the width of a text in points, from its font size in points."""
    return n_letters * _LETTER * size


def count_columns(n: int, width: float, least: float) -> int:
    """Return the number of columns: as many as are at least `least` wide, in rows of about equal length."""
    most = max(1, min(n, int(width / least)))
    n_rows = -(-n // most)
    return -(-n // n_rows)


def arrange(figure: Figure, panels: Sequence[Panel], width: float, spare: float, *, page: bool = False) -> Spec:
    """Arrange panels of a figure in rows.

    Args:
        figure: the figure.
        panels: the panels to show.
        width: total width, in points.
        spare: width of axes and gaps, in points.
        page: see `PanelLayout`.
    """
    n_columns = count_columns(len(panels), width, figure.least)
    inner = (width - spare) / n_columns
    drawn = []
    for index, panel in enumerate(panels):
        layout = PanelLayout(inner, index % n_columns == 0, index + n_columns >= len(panels), page)
        lines = panel.title if panel.title is not None else (panel.label,)
        size = max(MIN_NUMBER, min(TITLE, inner / text_width(max(map(len, lines)), 1))) if any(lines) else TITLE
        has_title = any(lines) and not (page and figure.menu)
        title = {"title": {"text": list(lines), "fontSize": size}} if has_title else {}
        drawn.append(title | panel.draw(layout))
    _fold_legends(drawn, width)
    return {"concat": drawn, "columns": n_columns, "spacing": {"row": 6, "column": _GAP}}


def _fold_legends(part: object, width: float) -> None:
    """Limit the columns of legends above panels, and the length of lines in their titles, to the available width."""
    if isinstance(part, dict):
        legend = part.get("legend")
        if isinstance(legend, dict) and legend.get("orient") == "top":
            names = legend.get("values", part["scale"]["domain"])
            widest = text_width(max(map(len, names)), SMALL) + 25
            legend["columns"] = count_columns(len(names), width, widest)
            legend["title"] = [line for text in legend["title"] or () for line in wrap(text, width)] or None
        part = list(part.values())
    if isinstance(part, list):
        for child in part:
            _fold_legends(child, width)


def write_spec(
    bodies: Sequence[Spec], config: Spec, *, label: str = "", notes: Sequence[str] = (), title: str = ""
) -> Spec:
    """Return the complete specification of arranged panels, with text above and below and the configured style."""
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
    """Break a note into lines that are at most `width` points wide."""
    return textwrap.wrap(text, max(20, int(width / text_width(1, NUMBER))))


def configure(background: str | None) -> Spec:
    """Return the colours and sizes of text and lines, in points."""
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
