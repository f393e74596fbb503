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
TITLE_SIZE = 8.0
TEXT_SIZE = 7.5
SMALL_SIZE = 6.5
NUMBER_SIZE = 6.0
MIN_NUMBER_SIZE = 5.0
"""Text sizes in points, in this order: titles of panels, titles of axes, tick labels, numbers in heat maps, and the
minimum size of these numbers."""

POINTS_PER_INCH = 72.0

_LETTER_WIDTH = 0.58
"""Approximate width of a letter, relative to its height."""

_GAP = 7.0
"""Space between panels, in points."""


class PanelLayout(NamedTuple):
    """Layout of a panel in its figure.

    Attributes:
        width: width inside the axes, in points.
        is_leftmost: whether the panel is the leftmost of its row; only such panels label the vertical axis.
        is_at_bottom: whether no panel is below it.
        is_on_page: whether the panel is drawn on the report's page, which has tooltips, instead of in a file.
    """

    width: float
    is_leftmost: bool = True
    is_at_bottom: bool = True
    is_on_page: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel of a figure.

    Attributes:
        label: the panel's entry in the page's menu, and its title if `title` is None.
        draw: function that returns the specification for a layout, in points.
        title: lines above the panel.
        is_in_file: whether files show the panel; the page shows all panels.
        is_initial: whether the page's menu initially selects the panel.
        column: the accuracies on the vertical axis, as (key, strength) or a name of `SCORES`, if the page reads them
            from the data of the explorer; None if the panel contains its numbers.
        limits: limits of the vertical axis, if `column` is set.
    """

    label: str
    draw: Callable[[PanelLayout], Spec]
    title: tuple[str, ...] | None = None
    is_in_file: bool = True
    is_initial: bool = False
    column: tuple[str, float] | str | None = None
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """A figure: panels side by side in rows.

    Attributes:
        panels: the panels, at least one.
        min_panel_width: minimum width of a panel in points; it limits the number of columns.
        has_menu: whether the page shows one panel at a time, which a menu selects.
        page_width: width of a panel on the page, in points; None for the width of the page.
        label: text below all panels.
        notes: text below the label, in files.
        above: a figure of cells that files show above these panels; on the page, a script draws the cells.
    """

    panels: Sequence[Panel]
    min_panel_width: float
    has_menu: bool = False
    page_width: float | None = None
    label: str = ""
    notes: tuple[str, ...] = field(default=())
    above: "Figure | None" = None


def text_width_in_inches(n_letters: int, size: float) -> float:
    """Estimate the width of a text in inches; `size` is the font size in points."""
    return text_width(n_letters, size) / POINTS_PER_INCH


def text_width(n_letters: int, size: float) -> float:
    """Estimate the width of a text in points; `size` is the font size in points."""
    return n_letters * _LETTER_WIDTH * size


def count_columns(n: int, width: float, min_width: float) -> int:
    """Return the number of columns for `n` panels that are at least `min_width` wide, in rows of similar length."""
    max_columns = max(1, min(n, int(width / min_width)))
    n_rows = -(-n // max_columns)
    return -(-n // n_rows)


def arrange(
    figure: Figure, panels: Sequence[Panel], width: float, axes_width: float, *, is_on_page: bool = False
) -> Spec:
    """Arrange panels of a figure in rows.

    Args:
        figure: the figure.
        panels: the panels to show.
        width: total width, in points.
        axes_width: width of axes and gaps, in points.
        is_on_page: see `PanelLayout`.
    """
    n_columns = count_columns(len(panels), width, figure.min_panel_width)
    panel_width = (width - axes_width) / n_columns
    panel_specs = []
    for index, panel in enumerate(panels):
        layout = PanelLayout(panel_width, index % n_columns == 0, index + n_columns >= len(panels), is_on_page)
        lines = panel.title if panel.title is not None else (panel.label,)
        size = (
            max(MIN_NUMBER_SIZE, min(TITLE_SIZE, panel_width / text_width(max(map(len, lines)), 1)))
            if any(lines)
            else TITLE_SIZE
        )
        has_title = any(lines) and not (is_on_page and figure.has_menu)
        title = {"title": {"text": list(lines), "fontSize": size}} if has_title else {}
        panel_specs.append(title | panel.draw(layout))
    _wrap_legends(panel_specs, width)
    return {"concat": panel_specs, "columns": n_columns, "spacing": {"row": 6, "column": _GAP}}


def _wrap_legends(spec_part: object, width: float) -> None:
    """Limit the number of columns in legends above panels, and wrap the legends' titles, to fit the available width."""
    if isinstance(spec_part, dict):
        legend = spec_part.get("legend")
        if isinstance(legend, dict) and legend.get("orient") == "top":
            names = legend.get("values", spec_part["scale"]["domain"])
            widest = text_width(max(map(len, names)), SMALL_SIZE) + 25
            legend["columns"] = count_columns(len(names), width, widest)
            legend["title"] = [
                wrapped_line for title_line in legend["title"] or () for wrapped_line in wrap(title_line, width)
            ] or None
        spec_part = list(spec_part.values())
    if isinstance(spec_part, list):
        for child in spec_part:
            _wrap_legends(child, width)


def complete_spec(
    bodies: Sequence[Spec], config: Spec, *, label: str = "", notes: Sequence[str] = (), title: str = ""
) -> Spec:
    """Return the complete specification of arranged panels, with the title above and the label and notes below."""
    spec: Spec = {"$schema": VEGA_LITE, "config": config, "vconcat": list(bodies), "spacing": 10, "center": True}
    if label or notes:
        position: Spec = {"orient": "bottom", "anchor": "middle", "frame": "bounds", "offset": 4}
        label_and_notes = {"text": label, "fontSize": TEXT_SIZE, "subtitle": list(notes)}
        spec["title"] = position | (label_and_notes if label else {"text": list(notes), "fontSize": NUMBER_SIZE})
    if title:
        title_spec = {
            "text": title.split("\n"),
            "fontWeight": "bold",
            "anchor": "middle",
            "frame": "bounds",
            "offset": 6,
        }
        spec["vconcat"][0] = bodies[0] | {"title": title_spec}
    return spec


def wrap(text: str, width: float) -> list[str]:
    """Break a note into lines that are at most `width` points wide."""
    return textwrap.wrap(text, max(20, int(width / text_width(1, NUMBER_SIZE))))


def vega_config(background: str | None) -> Spec:
    """Return Vega-Lite's configuration: colours, and sizes of text and lines in points."""
    normal_text = {"fontWeight": "normal", "color": INK}
    return {
        "font": FONT,
        "background": background,
        "padding": 2,
        "view": {"stroke": None},
        "axis": {
            "domain": False,
            "labelColor": INK,
            "labelFontSize": SMALL_SIZE,
            "labelLimit": 0,
            "labelPadding": 2,
            "tickColor": INK,
            "tickSize": 2,
            "tickWidth": 0.6,
            "titleColor": INK,
            "titleFontSize": TEXT_SIZE,
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
            "labelFontSize": SMALL_SIZE,
            "labelLimit": 0,
            "titleColor": INK,
            "titleFontSize": SMALL_SIZE,
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
        "title": normal_text
        | {"fontSize": TITLE_SIZE, "offset": 3, "limit": 0, "subtitleColor": INK}
        | {"subtitleFontSize": NUMBER_SIZE, "subtitlePadding": 2},
        "text": {"color": INK, "fontSize": NUMBER_SIZE},
        "rule": {"color": INK, "strokeWidth": 0.6},
        "point": {"filled": True, "opacity": 1, "size": 5, "strokeWidth": 0.6},
        "line": {"strokeWidth": 1.1},
        "area": {"opacity": 0.2},
    }
