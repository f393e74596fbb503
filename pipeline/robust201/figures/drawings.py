"""Basic drawings of DataFrames, which all figures use. They compute no results. Sizes are in points."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt
import pandas as pd

from robust201.core import colours
from robust201.figures.panels import MIN_NUMBER_SIZE, NUMBER_SIZE, SMALL_SIZE, Chart, Layout, text_width

Limits = tuple[float, float]

SINGLE_WIDTH = 400.0
"""Width of figures with one panel per row, on the page."""

EQUALITY = "as accurate as clean"

SHORT_NUMBER = "replace(format(datum.value, '.2f'), '0.', '.')"
"""Vega expression of a correlation in at most four characters, such as ``.87`` or ``-.03``."""

Axis = Callable[..., Any]
"""A function that returns a field's encoding channel with a fixed axis and scale."""


def layered(layers: Sequence[Chart], height: float) -> alt.LayerChart:
    """Draw charts on top of each other, in a panel of this height."""
    return alt.LayerChart(layer=list(layers), height=height)


def fraction_axis(layout: Layout, title: str, limits: Limits = (0, 1)) -> Axis:
    """Return a vertical axis of fractions between limits; only the leftmost panels show labels."""
    # Other panels have blank labels instead of none, so that the titles of all panels are aligned.
    labels = {"title": title} if layout.is_leftmost else {"title": None, "labelExpr": "' '"}
    axis = alt.Axis(format=".0%", tickCount=5, grid=True, **labels)
    return partial(alt.Y, axis=axis, scale=alt.Scale(domain=list(limits), nice=False, zero=False))


def name_axis(layout: Layout, field: str, names: Sequence[str], title: str | None, **scale: Any) -> Axis:
    """Return a horizontal axis of names in the given order; names are rotated if they do not fit."""
    is_rotated = max(text_width(len(name) + 1, SMALL_SIZE) for name in names) > layout.width / max(1, len(names))
    alignment: dict[str, Any] = {"labelAlign": "right", "labelBaseline": "middle"} if is_rotated else {}
    axis = alt.Axis(title=title, labelAngle=-90 if is_rotated else 0, **alignment)
    return partial(alt.X, f"{field}:N", axis=axis, scale=alt.Scale(domain=list(names), **scale), sort=None)


def named_colours(field: str, by_name: Mapping[str, str], title: str | None = None, **legend: Any) -> alt.Color:
    """Return the colour channel of a field of names, with its legend above all panels."""
    scale = alt.Scale(domain=list(by_name), range=list(by_name.values()))
    top = alt.Legend(orient="top", direction="horizontal", title=title, titleAnchor="middle", **legend)
    return alt.Color(f"{field}:N", scale=scale, legend=top)


def number_colours(
    field: str, limits: Limits, names: Sequence[str] | str, title: str | None, *, reverse: bool = False
) -> alt.Color:
    """Return the colour channel of a field of numbers, with its legend below all panels unless `title` is None."""
    steps = {"scheme": names} if isinstance(names, str) else {"range": list(names), "interpolate": "rgb"}
    scale = alt.Scale(domain=list(limits), reverse=reverse, **steps)
    bottom = alt.Legend(orient="bottom", direction="horizontal", title=title, titleAnchor="middle", gradientLength=170)
    return alt.Color(f"{field}:Q", scale=scale, legend=None if title is None else bottom)


def chance_line(y: Axis, chance: float | None, limits: Limits, *, is_label_right: bool = False) -> list[Chart]:
    """Return a labelled line at the chance accuracy; empty if this accuracy is unknown or outside the limits."""
    low, high = limits
    if chance is None or not low <= chance <= high:
        return []
    is_above = chance < (low + high) / 2  # the side of the line that has more space
    base = alt.Chart(pd.DataFrame({"chance": [chance]})).encode(y=y("chance:Q"))
    line = base.mark_rule(color=colours.CHANCE, strokeDash=[3, 2], strokeWidth=0.9)
    position: dict[str, Any] = {"align": "right", "dx": -2} if is_label_right else {"align": "left", "dx": 2}
    position |= {"baseline": "bottom", "dy": -1} if is_above else {"baseline": "top", "dy": 1}
    text = base.mark_text(text="chance", color=colours.CHANCE, **position)
    return [line, text.encode(x=alt.XValue("width" if is_label_right else 0))]


def tooltip(**titles: str) -> list[alt.Tooltip]:
    """Return the lines of a tooltip: title by field, with the format after a vertical bar, such as ``median|.2%``."""
    lines = []
    for field, text in titles.items():
        title, _, number_format = text.partition("|")
        lines.append(alt.Tooltip(f"{field}:{'Q' if number_format else 'N'}", title=title, format=number_format))
    return lines


def box_plots(boxes: pd.DataFrame, x: Axis, y: Axis, colour: alt.Color) -> list[Chart]:
    """Draw box plots.

    Args:
        boxes: one row per box (see `boxes.accuracy_boxes`), with `tick`, its position on the horizontal axis.
        x: horizontal axis of names, for the field `tick`.
        y: vertical axis.
        colour: colour of the boxes.
    """
    base = alt.Chart(boxes.drop(columns="outliers").round(5)).encode(x=x())

    def line(column: str, width: float, stroke_width: float) -> Chart:
        ends = {"x": x(bandPosition=0.5 - width / 2), "x2": alt.X2("tick", bandPosition=0.5 + width / 2)}
        rule: Chart = base.mark_rule(strokeWidth=stroke_width).encode(y=y(f"{column}:Q"), **ends)
        return rule

    texts = {"high": "upper whisker", "q3": "upper quartile", "median": "median", "q1": "lower quartile"}
    texts |= {"low": "lower whisker"}
    lines = tooltip(tick="at", **{column: f"{title}|.2%" for column, title in texts.items()}, n="architectures|,")
    bar = base.mark_bar(stroke=colours.INK, strokeWidth=0.6, fillOpacity=0.85, width=alt.RelativeBandSize(band=0.62))
    outliers = boxes.explode("outliers").dropna(subset="outliers").astype({"outliers": float}).round(5)
    dots = alt.Chart(outliers).mark_point(color=colours.INK, size=3)
    return [
        base.mark_rule().encode(y=y("low:Q"), y2=alt.Y2("q1")),
        base.mark_rule().encode(y=y("q3:Q"), y2=alt.Y2("high")),
        line("low", 0.32, 0.6),
        line("high", 0.32, 0.6),
        bar.encode(y=y("q1:Q"), y2=alt.Y2("q3"), color=colour, tooltip=lines),
        line("median", 0.62, 1.1),
        dots.encode(x=x(), y=y("outliers:Q"), tooltip=tooltip(outliers="accuracy|.2%")),
    ]


def curves(
    rows: pd.DataFrame, x: Any, y: Axis, columns: tuple[str, str, str], colour: alt.Color, texts: Mapping[str, str]
) -> list[Chart]:
    """Draw one line per colour through a middle column, with a band between a lower and an upper column.

    Args:
        rows: the points.
        x: channel of the horizontal position.
        y: vertical axis.
        columns: the lower, the middle and the upper column.
        colour: colour of the curves.
        texts: see `tooltip`; if there are no texts, no points are drawn.
    """
    low, middle, high = columns
    base = alt.Chart(rows.round(5)).encode(x=x, color=colour)
    layers: list[Chart] = [
        base.mark_area(line=False).encode(y=y(f"{low}:Q"), y2=alt.Y2(high)),
        base.mark_line().encode(y=y(f"{middle}:Q")),
    ]
    if texts:
        layers.append(base.mark_point(size=8).encode(y=y(f"{middle}:Q"), tooltip=tooltip(**texts)))
    return layers


def heat_map(
    tiles: pd.DataFrame,
    names: tuple[Sequence[str], Sequence[str]],
    layout: Layout,
    colour: alt.Color,
    texts: Mapping[str, str],
    *,
    size: tuple[float, float],
    number: str = SHORT_NUMBER,
    letters: int = 4,
    axes: tuple[str | None, str | None] = (None, None),
    shares_labels: bool = False,
) -> alt.LayerChart:
    """Draw a matrix as coloured tiles.

    Args:
        tiles: one line per tile, with its `row`, its `column`, its number `value` and the fields of the tooltip. Tiles
            without a line in this table, and tiles with NaN, are empty.
        names: names of the rows and of the columns, in order.
        layout: layout of the panel.
        colour: colour of the field `value`.
        texts: see `tooltip`.
        size: width and height of a tile.
        number: Vega expression of the text in a tile; tiles that are too small have none.
        letters: maximum number of characters in a tile's text.
        axes: titles of the horizontal and the vertical axis.
        shares_labels: whether all panels of the figure have the same rows and columns, so that only outer panels label
            them.
    """
    rows, columns = names
    number_size = min(NUMBER_SIZE, 0.95 * size[0] / text_width(letters, 1))
    is_rotated = max(text_width(len(name), SMALL_SIZE) for name in columns) > size[0]
    is_steep = is_rotated and size[0] < 2 * SMALL_SIZE
    angle: dict[str, Any] = {"labelAngle": 0}
    if is_rotated:
        angle = {"labelAngle": -90 if is_steep else -45, "labelAlign": "right"}
        angle |= {"labelBaseline": "middle" if is_steep else "top"}
    x_axis = alt.Axis(title=axes[0], labels=layout.is_at_bottom or not shares_labels, **_tile_axis(size[0]), **angle)
    y_axis = alt.Axis(title=axes[1], labels=layout.is_leftmost or not shares_labels, **_tile_axis(size[1]))
    base = alt.Chart(tiles.round(4)).encode(
        x=alt.X("column:N", axis=x_axis, scale=alt.Scale(domain=list(columns)), sort=None),
        y=alt.Y("row:N", axis=y_axis, scale=alt.Scale(domain=list(rows)), sort=None),
    )
    has_numbers = number_size >= MIN_NUMBER_SIZE
    border: dict[str, Any] = {"stroke": "white", "strokeWidth": 0.5} if has_numbers else {}
    marks = base.transform_filter("isValid(datum.value)").mark_rect(**border)
    layers = [marks.encode(color=colour, tooltip=tooltip(**texts))]
    if has_numbers:
        # Use the text colour with the larger contrast (WCAG 2.2).
        is_dark = "luminance(scale('color', datum.value)) < 0.179"
        ink = alt.ColorValue("#1c2128", condition={"test": is_dark, "value": "#fefefe"})
        numbers = base.transform_filter("isValid(datum.value)").transform_calculate(text=number)
        layers.append(numbers.mark_text(fontSize=number_size).encode(text=alt.Text("text:N"), color=ink))
    return layered(layers, size[1] * len(rows))


def matrix_tiles(matrix: pd.DataFrame) -> pd.DataFrame:
    """Return the tiles of a matrix, for `heat_map`."""
    return matrix.rename_axis(index="row").reset_index().melt("row", var_name="column", value_name="value")


def _tile_axis(length: float) -> dict[str, Any]:
    """Return the style of an axis of tiles of this length; if the tiles are small, only some have a label."""
    is_small = length < MIN_NUMBER_SIZE
    font_size = max(MIN_NUMBER_SIZE, min(SMALL_SIZE, length))
    return {"ticks": False, "grid": False, "labelOverlap": "greedy" if is_small else False, "labelFontSize": font_size}


def points(rows: pd.DataFrame, x: alt.X, y: alt.Y, colour: Any, size: float, texts: Mapping[str, str]) -> Chart:
    """Draw points."""
    mark = alt.Chart(rows.round(5)).mark_point(strokeWidth=0, size=size)
    chart: Chart = mark.encode(x=x, y=y, color=colour, tooltip=tooltip(**texts))
    return chart


def line_of_equality(x: Axis, y: Axis, x_limits: Limits, y_limits: Limits) -> list[Chart]:
    """Draw the line on which both coordinates are equal, with its label; empty if it is outside the limits."""
    start, end = max(x_limits[0], y_limits[0]), min(x_limits[1], y_limits[1])
    if start >= end:
        return []
    ends = pd.DataFrame({"start": [start], "end": [end], "name": [EQUALITY]})
    legend = alt.Legend(orient="top", title=None, symbolType="stroke")
    dash = alt.StrokeDash("name:N", scale=alt.Scale(domain=[EQUALITY], range=[[1, 2]]), legend=legend)
    rule = alt.Chart(ends).mark_rule(strokeWidth=0.8)
    return [rule.encode(x=x("start:Q"), y=y("start:Q"), x2=alt.X2("end"), y2=alt.Y2("end"), strokeDash=dash)]


def ranges(
    rows: pd.DataFrame,
    x: Any,
    shift: alt.XOffset,
    y: Axis,
    columns: tuple[str, str, str],
    colour: alt.Color,
    texts: Mapping[str, str],
) -> list[Chart]:
    """Draw a dot at a middle column, and a line between a lower and an upper column, for each row."""
    low, middle, high = columns
    base = alt.Chart(rows.round(5)).encode(x=x, xOffset=shift, color=colour)
    return [
        base.mark_rule(strokeWidth=1.4, opacity=0.5).encode(y=y(f"{low}:Q"), y2=alt.Y2(high)),
        base.mark_point(size=9).encode(y=y(f"{middle}:Q"), tooltip=tooltip(**texts)),
    ]


def cell_tiles(
    tiles: pd.DataFrame, layout: Layout, edges: Sequence[str], by_operation: Mapping[str, str]
) -> alt.LayerChart:
    """Draw cells as columns of coloured tiles, one per edge, with their ranks above.

    Args:
        tiles: one row per cell and edge: `cell` (its label), `accuracy`, `rank`, `edge`, `operation`.
        layout: layout of the panel.
        edges: labels of the edges.
        by_operation: colour of each operation, by its label.
    """
    cells = tiles.drop_duplicates("cell")
    x = name_axis(layout, "cell", list(cells["cell"]), None)()
    x["axis"]["ticks"] = False
    y = alt.Y("edge:N", axis=alt.Axis(title=None), scale=alt.Scale(domain=list(edges)), sort=None)
    colour = named_colours("operation", by_operation, symbolType="square")
    lines = tooltip(cell="cell", accuracy="accuracy|.2%", rank="rank", edge="edge", operation="operation")
    above: dict[str, Any] = {"baseline": "bottom", "dy": -2}
    layers = [
        alt.Chart(tiles).mark_rect(stroke="white", strokeWidth=1).encode(x=x, y=y, color=colour, tooltip=lines),
        alt.Chart(cells).mark_text(**above).encode(x=x, y=alt.YValue(0), text=alt.Text("rank:N")),
        alt.Chart(alt.InlineData(values=[{}]))
        .mark_text(text="rank", align="right", dx=-3, **above)
        .encode(x=alt.XValue(0), y=alt.YValue(0)),
    ]
    return layered(layers, 72)
