"""Figures as panels in rows, and the style of text and lines. Sizes are in points.

Panels are Altair charts (https://altair-viz.github.io). Files and the report's page draw the same panels; only the
width of a panel and the number of columns differ.
"""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from robust201.core.colours import GRID, INK

Chart = alt.Chart | alt.LayerChart
Spec = dict[str, Any]

FONT = "DejaVu Sans, Liberation Sans"
"""Font of files; vl-convert contains the second one, for machines without fonts."""

TITLE_SIZE = 8.0
TEXT_SIZE = 7.5
SMALL_SIZE = 6.5
NUMBER_SIZE = 6.0
MIN_NUMBER_SIZE = 5.0
"""Text sizes, in this order: titles of panels, titles of axes, tick labels, numbers in heat maps, and the minimum size
of these numbers."""

POINTS_PER_INCH = 72.0

_LETTER_WIDTH = 0.58
"""Approximate width of a letter, relative to its height."""

_GAP = 7.0
"""Space between panels."""


class Layout(NamedTuple):
    """Layout of a panel in its figure.

    Attributes:
        width: width inside the axes.
        is_leftmost: whether the panel is the leftmost of its row; only such panels label the vertical axis.
        is_at_bottom: whether no panel is below it.
    """

    width: float
    is_leftmost: bool = True
    is_at_bottom: bool = True


class Panel(NamedTuple):
    """A panel: the lines of its title, and the function that draws it."""

    title: Sequence[str]
    draw: Callable[[Layout], Chart]


@dataclass(frozen=True)
class Figure:
    """A figure: panels side by side in rows.

    Attributes:
        panels: the panels, at least one.
        min_width: minimum width of a panel in a file; it limits the number of columns.
        page_width: width of a panel on the page.
        label: text below all panels.
        notes: text below the label, in files.
    """

    panels: Sequence[Panel]
    min_width: float
    page_width: float = 165.0
    label: str = ""
    notes: Sequence[str] = ()


def text_width(n_letters: float, size: float) -> float:
    """Estimate the width of a text in the unit of `size`, its font size."""
    return n_letters * _LETTER_WIDTH * size


def count_columns(n: int, width: float, min_width: float) -> int:
    """Return the number of columns for `n` panels that are at least `min_width` wide, in rows of similar length."""
    max_columns = max(1, min(n, int(width / min_width)))
    n_rows = -(-n // max_columns)
    return -(-n // n_rows)


def specify_file(
    figure: Figure, width: float, axes_width: float, background: str, *, notes: Sequence[str] = ()
) -> Spec:
    """Return the Vega-Lite specification of a file.

    Args:
        figure: the figure.
        width: width of the file. The axes' labels take up `axes_width`; panels and gaps share the rest.
        axes_width: width of the axes' labels.
        background: colour of the background.
        notes: text below the figure.
    """
    columns = count_columns(len(figure.panels), width, figure.min_width)
    spec = _arrange(figure, (width - axes_width) / columns, columns, background, FONT)
    characters = max(20, int(width / text_width(1, NUMBER_SIZE)))
    note_lines = [line for note in (*figure.notes, *notes) for line in textwrap.wrap(note, characters)]
    below = {"orient": "bottom", "anchor": "middle", "frame": "bounds", "offset": 4}
    if figure.label:
        spec["title"] = below | {"text": figure.label, "fontSize": TEXT_SIZE, "subtitle": note_lines}
    elif note_lines:
        spec["title"] = below | {"text": note_lines, "fontSize": NUMBER_SIZE}
    spec["config"]["aria"] = False  # accessibility labels of all marks would double the size of a file
    _wrap_legends(spec, width)
    return spec


def specify_page(figure: Figure) -> Spec:
    """Return the Vega-Lite specification for the report's page.

    The page's script chooses the number of columns by the available width and the width of a column in `usermeta`.
    """
    spec = _arrange(figure, figure.page_width, 1, "transparent", "system-ui, sans-serif")
    if figure.label:
        spec["title"] = {"text": figure.label, "orient": "bottom", "anchor": "middle", "frame": "bounds", "offset": 4}
    _wrap_legends(spec, figure.page_width)
    return spec | {"usermeta": {"columnWidth": figure.page_width + 40}}


def _inline_rows(data: Any) -> Any:
    """Return the data of a chart as rows of a specification; NaN becomes None."""
    if isinstance(data, pd.DataFrame):
        columns = [[None if pd.isna(value) else value for value in data[name].tolist()] for name in data]
        return {"values": [dict(zip(data.columns, row, strict=True)) for row in zip(*columns, strict=True)]}
    return data


alt.data_transformers.register("robust201", _inline_rows)


def _arrange(figure: Figure, panel_width: float, columns: int, background: str, font: str) -> Spec:
    """Arrange panels in rows. Only outer panels label their axes, unless there is a single column.

    The panels are combined as dictionaries, because Altair copies a chart many times when it combines charts.
    """
    specs: list[Spec] = []
    datasets: Spec = {}
    for index, panel in enumerate(figure.panels):
        is_at_bottom = columns == 1 or index + columns >= len(figure.panels)
        chart = panel.draw(Layout(panel_width, index % columns == 0, is_at_bottom))
        with alt.data_transformers.enable("robust201"):
            spec: Spec = {"width": panel_width} | chart.to_dict(validate=False)
        if any(panel.title):
            size = panel_width / text_width(max(map(len, panel.title)), 1)
            spec["title"] = {"text": list(panel.title), "fontSize": max(MIN_NUMBER_SIZE, min(TITLE_SIZE, size))}
        del spec["config"], spec["$schema"]
        datasets |= spec.pop("datasets", {})
        specs.append(spec)
    return {
        "$schema": alt.SCHEMA_URL,
        "config": _config(background) | {"font": font},
        "datasets": datasets,
        "concat": specs,
        "columns": columns,
        "spacing": {"row": 6, "column": _GAP},
    }


def _wrap_legends(part: object, width: float) -> None:
    """Limit the number of columns in legends above panels to the available width."""
    if isinstance(part, dict):
        legend = part.get("legend")
        if isinstance(legend, dict) and legend.get("orient") == "top":
            names = legend.get("values", part["scale"]["domain"])
            legend["columns"] = count_columns(len(names), width, text_width(max(map(len, names)), SMALL_SIZE) + 25)
        part = list(part.values())
    if isinstance(part, list):
        for child in part:
            _wrap_legends(child, width)


def _config(background: str) -> Spec:
    """Return Vega-Lite's configuration: colours, and sizes of text and lines."""
    normal_text = {"fontWeight": "normal", "color": INK}
    axis = {"domain": False, "labelColor": INK, "labelFontSize": SMALL_SIZE, "labelLimit": 0, "labelPadding": 2}
    axis |= {"tickColor": INK, "tickSize": 2, "tickWidth": 0.6, "gridColor": GRID, "gridWidth": 0.5}
    axis |= {"titleColor": INK, "titleFontSize": TEXT_SIZE, "titleFontWeight": "normal", "titleLimit": 0}
    legend = {"labelColor": INK, "labelFontSize": SMALL_SIZE, "labelLimit": 0, "titleColor": INK}
    legend |= {"titleFontSize": SMALL_SIZE, "titleFontWeight": "normal", "titleLimit": 0, "titlePadding": 3}
    legend |= {"columnPadding": 10, "rowPadding": 1, "symbolSize": 40, "symbolStrokeWidth": 1.2, "offset": 6}
    legend |= {"gradientThickness": 6, "gradientStrokeColor": None}
    legend |= {"layout": {"top": {"anchor": "middle"}, "bottom": {"anchor": "middle"}}}
    title = normal_text | {"fontSize": TITLE_SIZE, "offset": 3, "limit": 0, "subtitleColor": INK}
    return {
        "background": background,
        "padding": 2,
        "view": {"stroke": None},
        "axis": axis | {"titlePadding": 4},
        "axisX": {"grid": False, "labelOverlap": False},
        "axisY": {"ticks": False},
        "legend": legend,
        "title": title | {"subtitleFontSize": NUMBER_SIZE, "subtitlePadding": 2},
        "text": {"color": INK, "fontSize": NUMBER_SIZE},
        "rule": {"color": INK, "strokeWidth": 0.6},
        "point": {"filled": True, "opacity": 1, "size": 5, "strokeWidth": 0.6},
        "line": {"strokeWidth": 1.1},
        "area": {"opacity": 0.2},
    }
