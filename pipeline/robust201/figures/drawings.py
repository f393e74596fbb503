"""The drawings of which all figures are variants. They draw frames of `figures.figure_data` and compute no results.

Sizes are in points.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from robust201.figures import palette
from robust201.figures.panels import MIN_NUMBER_SIZE, NUMBER_SIZE, SMALL_SIZE, Chart, Layout, text_width
from robust201.networks.colours import INK

Limits = tuple[float, float]

_ROW = alt.InlineData(values=[{}])
"""Data of marks whose position is a constant."""


def layered(layers: Sequence[Chart], height: float) -> alt.LayerChart:
    """Draw charts on top of each other, in a panel of this height."""
    return alt.LayerChart(layer=list(layers), height=height)


def fraction_axis(layout: Layout, field: str, title: str, limits: Limits = (0, 1)) -> alt.Y:
    """Return a vertical axis of fractions between limits; only the leftmost panels show labels."""
    # Other panels have blank labels instead of none, so that the titles of all panels are aligned.
    labels = {"title": title} if layout.is_leftmost else {"title": None, "labelExpr": "' '"}
    axis = alt.Axis(format=".0%", tickCount=5, grid=True, **labels)
    return alt.Y(f"{field}:Q", axis=axis, scale=alt.Scale(domain=list(limits), nice=False, zero=False))


def category_axis(layout: Layout, field: str, names: Sequence[str], title: str | None, **scale: Any) -> alt.X:
    """Return a horizontal axis of names in the given order; names are rotated if they do not fit."""
    is_rotated = max(text_width(len(name), SMALL_SIZE) for name in names) > layout.width / max(1, len(names))
    turned: dict[str, Any] = {"labelAlign": "right", "labelBaseline": "middle"} if is_rotated else {}
    axis = alt.Axis(title=title, labelAngle=-90 if is_rotated else 0, **turned)
    return alt.X(f"{field}:N", axis=axis, scale=alt.Scale(domain=list(names), **scale), sort=None)


def strength_axis(field: str, strengths: Sequence[float], tick_labels: Sequence[str], title: str | None) -> alt.X:
    """Return a linear horizontal axis of strengths, which shows as many tick labels as fit."""
    names = {f"{strength:g}": name for strength, name in zip(strengths, tick_labels, strict=True)}
    scale = alt.Scale(domain=[min(strengths), max(strengths)], nice=False, zero=False, padding=6)
    expression = f"{palette.json_text(names)}[format(datum.value, '~g')]"
    axis = alt.Axis(title=title, values=list(strengths), labelExpr=expression, labelOverlap="greedy", labelSeparation=2)
    return alt.X(f"{field}:Q", axis=axis, scale=scale)


def named_colours(field: str, colours: Mapping[str, str], title: str | None = None, **legend: Any) -> alt.Color:
    """Return the colour channel of a field of names, with its legend above all panels."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    top = alt.Legend(orient="top", direction="horizontal", title=title, titleAnchor="middle", **legend)
    return alt.Color(f"{field}:N", scale=scale, legend=top)


def number_colours(
    field: str, limits: Limits, colours: Sequence[str] | str, title: str | None, *, reverse: bool = False, **legend: Any
) -> alt.Color:
    """Return the colour channel of a field of numbers, with its legend below all panels unless `title` is None."""
    names = {"scheme": colours} if isinstance(colours, str) else {"range": list(colours), "interpolate": "rgb"}
    scale = alt.Scale(domain=list(limits), reverse=reverse, **names)
    bottom = alt.Legend(
        orient="bottom", direction="horizontal", title=title, titleAnchor="middle", gradientLength=170, **legend
    )
    return alt.Color(f"{field}:Q", scale=scale, legend=None if title is None else bottom)


def chance_line(y: alt.Y, chance: float | None, limits: Limits, *, is_label_right: bool = False) -> list[Chart]:
    """Return a labelled line at the accuracy of guessing; empty if this accuracy is unknown or outside the limits.

    Args:
        y: the panel's vertical axis.
        chance: accuracy of guessing, or None.
        limits: limits of the axis.
        is_label_right: whether the label is at the right end of the line instead of the left one.
    """
    low, high = limits
    if chance is None or not low <= chance <= high:
        return []
    is_above = chance < (low + high) / 2  # the side of the line that has more space
    base = alt.Chart(pd.DataFrame({"chance": [chance]})).encode(y=_with_field(y, "chance"))
    line = base.mark_rule(color=palette.CHANCE_COLOUR, strokeDash=[3, 2], strokeWidth=0.9)
    place: dict[str, Any] = {"align": "right", "dx": -2} if is_label_right else {"align": "left", "dx": 2}
    place |= {"baseline": "bottom", "dy": -1} if is_above else {"baseline": "top", "dy": 1}
    text = base.mark_text(text="chance", color=palette.CHANCE_COLOUR, **place)
    return [line, text.encode(x=alt.value("width" if is_label_right else 0))]


def _with_field(channel: Any, field: str) -> Any:
    """Return a copy of a channel with another field, and the same axis and scale."""
    return type(channel)(
        f"{field}:{'N' if str(channel['shorthand']).endswith(':N') else 'Q'}",
        **{name: value for name, value in channel._kwds.items() if name != "shorthand" and value is not alt.Undefined},
    )


def _tooltip(**titles: str) -> list[alt.Tooltip]:
    """Return the lines of a tooltip: title by field, with the format after a vertical bar, such as ``median|.2%``."""
    lines = []
    for field, text in titles.items():
        title, _, number_format = text.partition("|")
        lines.append(alt.Tooltip(f"{field}:{'Q' if number_format else 'N'}", title=title, format=number_format))
    return lines


# ---- 1: boxes ------------------------------------------------------------------------------------------------------


def box_plots(boxes: pd.DataFrame, x: alt.X, y: alt.Y, colour: alt.Color, limits: Limits) -> list[Chart]:
    """Draw box plots.

    Args:
        boxes: one row per box (see `figure_data.accuracy_boxes`), with the column that `colour` uses.
        x: horizontal axis of names.
        y: vertical axis.
        colour: colour of the boxes.
        limits: limits of the vertical axis; the numbers of values beyond them are shown at the border.
    """
    base = alt.Chart(boxes.drop(columns="outliers").round(5)).encode(x=x)
    position = str(x["shorthand"])

    def line(column: str, fraction: float, stroke_width: float) -> Chart:
        ends = {
            "x": alt.X(position, bandPosition=0.5 - fraction / 2, axis=x["axis"], scale=x["scale"], sort=None),
            "x2": alt.X2(position.removesuffix(":N"), bandPosition=0.5 + fraction / 2),
        }
        rule: Chart = base.mark_rule(strokeWidth=stroke_width).encode(y=_with_field(y, column), **ends)
        return rule

    tooltip = _tooltip(
        **{position.removesuffix(":N"): "at"},
        high="upper whisker|.2%",
        q3="upper quartile|.2%",
        median="median|.2%",
        q1="lower quartile|.2%",
        low="lower whisker|.2%",
        n="architectures|,",
    )
    bar = base.mark_bar(stroke=INK, strokeWidth=0.6, fillOpacity=0.85, width=alt.RelativeBandSize(band=0.62))
    layers: list[Chart] = [
        base.mark_rule().encode(y=_with_field(y, "low"), y2="q1"),
        base.mark_rule().encode(y=_with_field(y, "q3"), y2="high"),
        line("low", 0.32, 0.6),
        line("high", 0.32, 0.6),
        bar.encode(y=_with_field(y, "q1"), y2="q3", color=colour, tooltip=tooltip),
        line("median", 0.62, 1.1),
    ]
    outliers = boxes.explode("outliers").dropna(subset="outliers").astype({"outliers": float})
    outliers = outliers[outliers["outliers"].between(*limits)].round(5)
    if len(outliers):
        dots = alt.Chart(outliers).mark_point(color=INK, size=3)
        layers.append(dots.encode(x=x, y=_with_field(y, "outliers"), tooltip=_tooltip(outliers="accuracy|.2%")))
    borders: Any = ("n_below", "▼", "height", "bottom"), ("n_above", "▲", 0, "top")
    for column, arrow, height, baseline in borders:
        hidden = boxes[boxes[column] > 0]
        if len(hidden):
            rows = hidden.drop(columns="outliers").assign(text=[f"{arrow}{n:,}" for n in hidden[column]])
            text = alt.Chart(rows).mark_text(baseline=baseline)
            layers.append(text.encode(x=x, y=alt.value(height), text="text:N"))
    return layers


def diamonds(base: alt.Chart, y: alt.Y, columns: Mapping[str, str]) -> Chart:
    """Draw diamonds at the first of these columns; tooltips show all of them with their titles."""
    field, *_ = columns
    diamond = base.mark_point(shape="diamond", size=14, fill="#ffffff", stroke=INK)
    tooltip = _tooltip(**{name: f"{title}|.2%" for name, title in columns.items()})
    chart: Chart = diamond.encode(y=_with_field(y, field), tooltip=tooltip)
    return chart


# ---- 2: curves with bands ------------------------------------------------------------------------------------------


def curves(
    rows: pd.DataFrame,
    x: alt.X,
    y: alt.Y,
    columns: tuple[str, str, str],
    colour: alt.Color,
    tooltip: Mapping[str, str],
    *,
    shapes: Mapping[str, str] | None = None,
) -> list[Chart]:
    """Draw one line per colour through a middle column, with a band between a lower and an upper column.

    Args:
        rows: the points.
        x: horizontal axis.
        y: vertical axis.
        columns: the lower, the middle and the upper column.
        colour: colour of the curves.
        tooltip: see `_tooltip`; without one, no points are drawn.
        shapes: symbol of each curve's points, by name.
    """
    low, middle, high = columns
    base = alt.Chart(rows.round(5)).encode(x=x, color=colour)
    layers: list[Chart] = [
        base.mark_area(line=False).encode(y=_with_field(y, low), y2=high),
        base.mark_line().encode(y=_with_field(y, middle)),
    ]
    if tooltip:
        points = base.mark_point(size=8 if shapes is None else 14)
        points = points.encode(y=_with_field(y, middle), tooltip=_tooltip(**tooltip))
        if shapes is not None:
            scale = alt.Scale(domain=list(shapes), range=list(shapes.values()))
            points = points.encode(shape=alt.Shape(str(colour["shorthand"]), scale=scale, legend=None))
        layers.append(points)
    return layers


# ---- 3: heat maps --------------------------------------------------------------------------------------------------


def heat_map(
    matrix: pd.DataFrame,
    texts: Sequence[Sequence[str]] | None,
    layout: Layout,
    colour: alt.Color,
    titles: tuple[str, str, str],
    *,
    size: tuple[float, float],
    hover: Sequence[Sequence[str]] | None = None,
    axes: tuple[str | None, str | None] = (None, None),
    shares_labels: bool = False,
) -> alt.LayerChart:
    """Draw a matrix as coloured tiles.

    Args:
        matrix: the numbers; NaN is left empty.
        texts: text in each tile; None for no texts. Tiles that are too small have none.
        layout: layout of the panel.
        colour: colour of the field `value`.
        titles: titles in tooltips of the row, the column and the number.
        size: width and height of a tile.
        hover: text in each tile's tooltip; None shows the number.
        axes: titles of the horizontal and the vertical axis.
        shares_labels: whether all panels of the figure have the same rows and columns, so that only outer panels name
            them.
    """
    row_names, column_names = [str(name) for name in matrix.index], [str(name) for name in matrix.columns]
    longest = max((len(text) for row in texts or () for text in row), default=0)
    font_size = min(NUMBER_SIZE, 0.95 * size[0] / text_width(max(1, longest), 1))
    has_texts = texts is not None and font_size >= MIN_NUMBER_SIZE
    rows, columns = np.indices(matrix.shape)
    tiles = pd.DataFrame(
        {
            "row": np.array(row_names, object)[rows.ravel()],
            "column": np.array(column_names, object)[columns.ravel()],
            "value": np.round(matrix.to_numpy(np.float64).ravel(), 4),
        }
    )
    for name, labels in (("text", texts if has_texts else None), ("hover", hover)):
        if labels is not None:
            tiles[name] = [text for row in labels for text in row]
    is_turned = max(text_width(len(name), SMALL_SIZE) for name in column_names) > size[0]
    is_vertical = is_turned and size[0] < 2 * SMALL_SIZE
    angle: dict[str, Any] = {"labelAngle": 0}
    if is_turned:
        angle = {"labelAngle": -90 if is_vertical else -45, "labelAlign": "right"}
        angle |= {"labelBaseline": "middle" if is_vertical else "top"}
    style: dict[str, Any] = {"ticks": False, "labelOverlap": False, "grid": False}
    # A scale of names has no room for the outermost panels' labels, so they are hidden instead of blank.
    x_font, y_font = (min(SMALL_SIZE, length) for length in size)
    has_x_labels, has_y_labels = layout.is_at_bottom or not shares_labels, layout.is_leftmost or not shares_labels
    x_axis = alt.Axis(title=axes[0], labels=has_x_labels, labelFontSize=x_font, **style, **angle)
    y_axis = alt.Axis(title=axes[1], labels=has_y_labels, labelFontSize=y_font, **style)
    base = alt.Chart(tiles).encode(
        x=alt.X("column:N", axis=x_axis, scale=alt.Scale(domain=column_names), sort=None),
        y=alt.Y("row:N", axis=y_axis, scale=alt.Scale(domain=row_names), sort=None),
    )
    number = {"value": f"{titles[2]}|.3~f"} if hover is None else {"hover": titles[2]}
    border: dict[str, Any] = {"stroke": "white", "strokeWidth": 0.5} if has_texts else {}
    tile_marks = base.transform_filter("isValid(datum.value)").mark_rect(**border)
    layers = [tile_marks.encode(color=colour, tooltip=_tooltip(row=titles[0], column=titles[1], **number))]
    if has_texts:
        # Use the text colour with the larger contrast (WCAG 2.2).
        is_dark = "isValid(datum.value) && luminance(scale('color', datum.value)) < 0.179"
        ink = alt.condition(is_dark, alt.value("#fefefe"), alt.value("#1c2128"))
        layers.append(base.mark_text(fontSize=font_size).encode(text="text:N", color=ink))
    return layered(layers, size[1] * len(row_names))


def boundaries(positions: Sequence[float], length: float) -> list[Chart]:
    """Draw horizontal and vertical lines across a heat map, at distances from its top left corner."""
    rule = alt.Chart(_ROW).mark_rule(strokeWidth=1)
    ends = {"x": alt.value(0), "x2": alt.value(length)}, {"y": alt.value(0), "y2": alt.value(length)}
    return [
        *(rule.encode(y=alt.value(position), **ends[0]) for position in positions),
        *(rule.encode(x=alt.value(position), **ends[1]) for position in positions),
    ]


# ---- 4: points -----------------------------------------------------------------------------------------------------

_SIDES: Any = {
    "◀": ("triangle-left", "left", "middle"),
    "▶": ("triangle-right", "right", "middle"),
    "▼": ("triangle-down", "center", "bottom"),
    "▲": ("triangle-up", "center", "top"),
}
"""By side of a panel: symbol of the points beyond it, and alignment of the label that states their number."""


def points(
    rows: pd.DataFrame,
    x: alt.X,
    y: alt.Y,
    colour: Any,
    size: float,
    tooltip: Mapping[str, str],
    panel_size: tuple[float, float],
) -> list[Chart]:
    """Draw points; those beyond the axes are arrows at the border, with their number.

    Args:
        rows: points with `side` (see `figure_data.move_to_axes`).
        x: horizontal axis.
        y: vertical axis.
        colour: colour channel or value.
        size: area of a point.
        tooltip: see `_tooltip`.
        panel_size: width and height of the panel.
    """
    shapes = alt.Scale(domain=["", *_SIDES], range=["circle", *(symbol for symbol, _, _ in _SIDES.values())])
    layers: list[Chart] = [
        alt.Chart(rows.round(5))
        .mark_point(strokeWidth=0)
        .encode(
            x=x,
            y=y,
            color=colour,
            shape=alt.Shape("side:N", scale=shapes, legend=None),
            size=alt.condition("datum.side !== ''", alt.value(max(12, size)), alt.value(size)),
            tooltip=_tooltip(**tooltip),
        )
    ]
    width, height = panel_size
    places = {"left": 0, "right": width, "center": width / 2}, {"top": 0, "bottom": height, "middle": height / 2}
    for side, (_, align, baseline) in _SIDES.items():
        if n := int((rows["side"] == side).sum()):
            text = f"{n:,} {side}" if align == "right" else f"{side} {n:,}"
            offset: dict[str, Any] = {
                "dx": {"left": 4, "right": -4}.get(align, 0),
                "dy": {"bottom": -4, "top": 4}.get(baseline, 0),
            }
            mark = alt.Chart(_ROW).mark_text(text=text, align=align, baseline=baseline, **offset)
            layers.append(mark.encode(x=alt.value(places[0][align]), y=alt.value(places[1][baseline])))
    return layers


def line_of_equality(x: alt.X, y: alt.Y, name: str, stroke: alt.Stroke, dash: alt.StrokeDash) -> Chart:
    """Draw the line on which both coordinates are equal."""
    ends = pd.DataFrame({"x": [0.0], "y": [0.0], "to_x": [1.0], "to_y": [1.0], "name": [name]})
    rule = alt.Chart(ends).mark_rule(strokeWidth=0.8, clip=True)
    chart: Chart = rule.encode(x=x, y=y, x2="to_x", y2="to_y", stroke=stroke, strokeDash=dash)
    return chart


def front(rows: pd.DataFrame, x: alt.X, y: alt.Y, name: str, stroke: alt.Stroke, size: float) -> list[Chart]:
    """Draw the points of a Pareto front as rings on a line."""
    base = alt.Chart(rows.assign(name=name).round(5)).encode(x=x, y=y)
    rings = base.mark_point(filled=False, size=4 * size, color=INK, clip=True)
    return [
        base.mark_line(strokeWidth=0.8, clip=True).encode(stroke=stroke),
        rings.encode(tooltip=_tooltip(architecture="Pareto front")),
    ]


# ---- 5: medians and their ranges by class --------------------------------------------------------------------------


def ranges(
    rows: pd.DataFrame,
    x: alt.X,
    shift: alt.XOffset,
    y: alt.Y,
    columns: tuple[str, str, str],
    colour: alt.Color,
    tooltip: Mapping[str, str],
) -> list[Chart]:
    """Draw a dot at a middle column, and a line between a lower and an upper column, for each row."""
    low, middle, high = columns
    base = alt.Chart(rows.round(5)).encode(x=x, xOffset=shift, color=colour)
    return [
        base.mark_rule(strokeWidth=1.4, opacity=0.5).encode(y=_with_field(y, low), y2=high),
        base.mark_point(size=9).encode(y=_with_field(y, middle), tooltip=_tooltip(**tooltip)),
    ]


# ---- 6: effects with intervals -------------------------------------------------------------------------------------


def intervals(base: alt.Chart, y: alt.Y, columns: tuple[str, str], cap: float) -> list[Chart]:
    """Draw intervals as vertical lines with caps of the given width."""
    low, high = columns
    tick = base.mark_tick(size=cap, thickness=0.6, color=INK, orient="horizontal", clip=True)
    return [
        base.mark_rule(strokeWidth=0.9, clip=True).encode(y=_with_field(y, low), y2=high),
        *(tick.encode(y=_with_field(y, column)) for column in columns),
    ]


# ---- 7: the operations of several cells ----------------------------------------------------------------------------


def cell_tiles(
    tiles: pd.DataFrame, ranks: Sequence[str], edges: Sequence[str], colours: Mapping[str, str], tile_width: float
) -> alt.LayerChart:
    """Draw cells as columns of coloured tiles, one per edge, with their ranks above.

    Args:
        tiles: one row per cell and edge: `cell` (its label), `architecture`, `accuracy`, `rank`, `edge`, `operation`.
        ranks: rank of each cell, in the order of the cells.
        edges: labels of the edges.
        colours: colour of each operation, by its label.
        tile_width: width of a tile.
    """
    cells = list(dict.fromkeys(tiles["cell"]))
    layout = Layout(tile_width * len(cells))
    x = category_axis(layout, "cell", cells, None)
    x["axis"]["ticks"] = False
    y = alt.Y("edge:N", axis=alt.Axis(title=None), scale=alt.Scale(domain=list(edges)), sort=None)
    colour = named_colours("operation", colours, symbolType="square")
    tooltip = _tooltip(cell="cell", accuracy="accuracy|.2%", rank="rank", edge="edge", operation="operation")
    rank_rows = pd.DataFrame({"cell": cells, "text": list(ranks)})
    text: dict[str, Any] = {"baseline": "bottom", "dy": -2}
    layers = [
        alt.Chart(tiles).mark_rect(stroke="white", strokeWidth=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
        alt.Chart(rank_rows).mark_text(**text).encode(x=x, y=alt.value(0), text="text:N"),
        alt.Chart(_ROW).mark_text(text="rank", align="right", dx=-3, **text).encode(x=alt.value(0), y=alt.value(0)),
    ]
    return layered(layers, 72)
