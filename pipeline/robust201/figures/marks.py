"""The basic Vega-Lite elements of panels: boxes, bands, points, heat maps and the line of chance accuracy.

Sizes are in points. This module computes no results: it only positions and colours the values of frames.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robust201.figures import palette
from robust201.figures.panels import MIN_NUMBER_SIZE, NUMBER_SIZE, SMALL_SIZE, PanelLayout, Spec, text_width
from robust201.spaces.cell_space import INK


def spec_rows(frame: pd.DataFrame, decimals: int = 5) -> list[dict[str, Any]]:
    """Convert a frame to rows of a specification; numbers are rounded, and NaN becomes None."""
    float_columns = frame.select_dtypes("float")
    rounded_frame = frame.assign(**float_columns.round(decimals)).astype(object)
    rows: list[Spec] = rounded_frame.where(frame.notna(), None).to_dict("records")  # type: ignore[assignment]
    return rows


def fraction_axis(layout: PanelLayout, label: str, limits: tuple[float, float] = (0, 1)) -> Spec:
    """Return a vertical axis of fractions between limits; only the leftmost panels show labels."""
    # Other panels have blank labels instead of none, so that the titles of all panels are aligned.
    labels = {"title": label} if layout.is_leftmost else {"title": None, "labelExpr": "' '"}
    axis = {"format": ".0%", "tickCount": 5, "grid": True, **labels}
    return {"type": "quantitative", "scale": {"domain": list(limits), "nice": False, "zero": False}, "axis": axis}


def category_axis(layout: PanelLayout, names: Sequence[str], title: str | None, **scale: Any) -> Spec:
    """Return a horizontal axis of names in the given order; names are rotated if they do not fit."""
    width_per_name = layout.width / max(1, len(names))
    is_rotated = max(text_width(len(name), SMALL_SIZE) for name in names) > width_per_name
    angle: Spec = {"labelAngle": -90 if is_rotated else 0}
    if is_rotated:
        angle |= {"labelAlign": "right", "labelBaseline": "middle"}
    return {"type": "nominal", "scale": {"domain": list(names), **scale}, "axis": {"title": title, **angle}}


def strength_axis(strengths: Sequence[float], tick_labels: Sequence[str], title: str | None) -> Spec:
    """Return a linear horizontal axis of strengths, which shows as many tick labels as fit."""
    names_by_strength = dict(zip(map(float, strengths), tick_labels, strict=True))
    labels_json = json.dumps(
        {f"{strength:g}": name for strength, name in names_by_strength.items()}, ensure_ascii=False
    )
    scale = {"domain": [min(names_by_strength), max(names_by_strength)], "nice": False, "zero": False, "padding": 6}
    axis = {"title": title, "values": list(names_by_strength), "labelExpr": f"{labels_json}[format(datum.value, '~g')]"}
    return {"type": "quantitative", "scale": scale, "axis": axis | {"labelOverlap": "greedy", "labelSeparation": 2}}


def chance_layers(chance: float | None, limits: tuple[float, float], *, is_label_right: bool = False) -> list[Spec]:
    """Return a labelled line at the accuracy of guessing; empty if this accuracy is unknown or outside the limits."""
    low, high = limits
    if chance is None or not low <= chance <= high:
        return []
    # Put the label on the side of the line that has more space.
    is_above = chance < (low + high) / 2
    position: Spec = {"y": {"datum": chance}}
    text_position = {"x": {"value": "width" if is_label_right else 0}, **position}
    label_mark: Spec = {
        "type": "text",
        "text": "chance",
        "color": palette.CHANCE_COLOUR,
        "align": "right" if is_label_right else "left",
    }
    label_mark |= {
        "baseline": "bottom" if is_above else "top",
        "dx": -2 if is_label_right else 2,
        "dy": -1 if is_above else 1,
    }
    rule_mark = {"type": "rule", "color": palette.CHANCE_COLOUR, "strokeDash": [3, 2], "strokeWidth": 0.9}
    single_row: Spec = {"values": [{}]}
    return [
        {"data": single_row, "mark": rule_mark, "encoding": position},
        {"data": single_row, "mark": label_mark, "encoding": text_position},
    ]


def box_layers(boxes: pd.DataFrame, tick_labels: Sequence[str], limits: tuple[float, float]) -> list[Spec]:
    """Return box plots, one per tick label (see `figure_data.accuracy_boxes`); the column `group` sets their colour."""
    low, high = limits
    box_columns = boxes.drop(columns="outliers").assign(tick_label=list(tick_labels))
    outliers = boxes.assign(tick_label=list(tick_labels))[["tick_label", "outliers"]].explode("outliers").dropna()
    outliers_in_range = outliers[outliers["outliers"].between(low, high)].astype({"outliers": float})
    position = {"field": "tick_label"}
    statistics = [("high", "upper whisker"), ("q3", "upper quartile"), ("median", "median"), ("q1", "lower quartile")]
    tooltip = [{"field": "tick_label", "title": "at"}]
    tooltip += [
        {"field": name, "title": title, "format": ".2%"} for name, title in [*statistics, ("low", "lower whisker")]
    ]
    tooltip += [{"field": "n", "title": "architectures", "format": ","}]

    def horizontal_line(column: str, fraction: float, stroke_width: float) -> Spec:
        ends = {
            "x": position | {"bandPosition": 0.5 - fraction / 2},
            "x2": position | {"bandPosition": 0.5 + fraction / 2},
        }
        return {"mark": {"type": "rule", "strokeWidth": stroke_width}, "encoding": ends | {"y": {"field": column}}}

    bar = {"type": "bar", "stroke": INK, "strokeWidth": 0.6, "fillOpacity": 0.85, "width": {"band": 0.62}}
    box = {"x": position, "y": {"field": "q1"}, "y2": {"field": "q3"}, "color": {"field": "group"}, "tooltip": tooltip}
    layers: list[Spec] = [
        {"mark": "rule", "encoding": {"x": position, "y": {"field": "low"}, "y2": {"field": "q1"}}},
        {"mark": "rule", "encoding": {"x": position, "y": {"field": "q3"}, "y2": {"field": "high"}}},
        horizontal_line("low", 0.32, 0.6),
        horizontal_line("high", 0.32, 0.6),
        {"mark": bar, "encoding": box},
        horizontal_line("median", 0.62, 1.1),
    ]
    layers = [{"data": {"values": spec_rows(box_columns)}, "layer": layers}]
    if len(outliers_in_range):
        hover = {"tooltip": {"field": "outliers", "format": ".2%", "title": "accuracy"}}
        dot: Spec = {
            "mark": {"type": "point", "color": INK, "size": 3},
            "encoding": {"x": position, "y": {"field": "outliers"}},
        }
        layers.append({"data": {"values": spec_rows(outliers_in_range)}} | dot | {"encoding": dot["encoding"] | hover})
    for column, arrow, y, baseline in (("n_below", "▼", "height", "bottom"), ("n_above", "▲", 0, "top")):
        boxes_with_hidden_values = box_columns[box_columns[column] > 0]
        if len(boxes_with_hidden_values):
            labels = [
                {"tick_label": name, "text": f"{arrow}{n:,}"}
                for name, n in zip(
                    boxes_with_hidden_values["tick_label"], boxes_with_hidden_values[column], strict=True
                )
            ]
            label_encoding = {"x": position, "y": {"value": y}, "text": {"field": "text"}}
            mark = {"type": "text", "baseline": baseline}
            layers.append({"data": {"values": labels}, "mark": mark, "encoding": label_encoding})
    return layers


def band_layers(
    rows: pd.DataFrame, x: Spec, columns: tuple[str, str, str], colour: Spec, tooltip: Sequence[Spec] = ()
) -> list[Spec]:
    """Return one line per colour through a middle column, with a band between a lower and an upper column.

    `columns` are the lower, the middle and the upper column.
    """
    low, middle, high = columns
    band = {"x": x, "y": {"field": low}, "y2": {"field": high}, "color": colour}
    line = {"x": x, "y": {"field": middle}, "color": colour}
    return [
        {
            "data": {"values": spec_rows(rows)},
            "layer": [
                {"mark": {"type": "area", "line": False}, "encoding": band},
                {"mark": "line", "encoding": line},
                *(
                    [{"mark": {"type": "point", "size": 8}, "encoding": line | {"tooltip": list(tooltip)}}]
                    if tooltip
                    else []
                ),
            ],
        }
    ]


_SIDES = {
    "◀": ("datum.{x} < {left}", "triangle-left", 0, "height/2", "left", "middle", "'◀ ' + {n}"),
    "▶": ("datum.{x} > {right}", "triangle-right", "width", "height/2", "right", "middle", "{n} + ' ▶'"),
    "▼": ("datum.{y} < {low}", "triangle-down", "width/2", "height", "center", "bottom", "'▼ ' + {n}"),
    "▲": ("datum.{y} > {high}", "triangle-up", "width/2", 0, "center", "top", "'▲ ' + {n}"),
}
"""By side of a panel: the test for points beyond it, their symbol, and the position, alignment and text of the label
that states their number."""


def clamp_to_axes(fields: tuple[str, str], limits: Sequence[tuple[Any, Any]]) -> list[Spec]:
    """Return transforms that add `shown_x` and `shown_y`: a point's position, or the nearest position on the border.

    Clamping scales instead would also bend lines that leave the panel.
    """
    return [
        {"calculate": f"clamp(datum.{field}, {low}, {high})", "as": f"shown_{axis}"}
        for axis, field, (low, high) in zip("xy", fields, limits, strict=True)
    ]


SHOWN_POSITION: Spec = {"x": {"field": "shown_x"}, "y": {"field": "shown_y"}}
"""Position channels for the fields of `clamp_to_axes`."""


def point_layers(
    data: Spec,
    fields: tuple[str, str],
    limits: Sequence[tuple[Any, Any]],
    encoding: Spec,
    size: float,
    panel_size: tuple[float, float],
) -> list[Spec]:
    """Return the points of a scatter plot. Points outside the limits are drawn as arrows at the border, with a count.

    Args:
        data: the points.
        fields: fields of the horizontal and the vertical axis.
        limits: limits of the axes, as numbers or names of parameters.
        encoding: additional channels.
        size: area of a point.
        panel_size: width and height of the panel.
    """
    (left, right), (low, high) = limits
    names = {"x": fields[0], "y": fields[1], "left": left, "right": right, "low": low, "high": high}
    side = "''"
    for name, (test, *_) in reversed(_SIDES.items()):
        side = f"{test.format(**names)} ? '{name}' : {side}"
    shape: Spec = {"field": "side", "type": "nominal", "legend": None}
    shape["scale"] = {"domain": ["", *_SIDES], "range": ["circle", *(row[1] for row in _SIDES.values())]}
    valid = f"isValid(datum.{fields[0]}) && isValid(datum.{fields[1]})"
    side_transforms = [{"filter": valid}, {"calculate": side, "as": "side"}, *clamp_to_axes(fields, limits)]
    area = {"condition": {"test": "datum.side !== ''", "value": max(12, size)}, "value": size}
    points = {
        "mark": {"type": "point", "strokeWidth": 0},
        "encoding": SHOWN_POSITION | {"shape": shape, "size": area} | encoding,
    }
    layers: list[Spec] = [points]
    coordinates = {
        "width": panel_size[0],
        "height": panel_size[1],
        "width/2": panel_size[0] / 2,
        "height/2": panel_size[1] / 2,
    }
    for name, (_, _, x, y, align, baseline, text) in _SIDES.items():
        count_transform = [
            {"filter": f"datum.side === '{name}'"},
            {"aggregate": [{"op": "count", "as": "n"}], "groupby": ["side"]},
        ]
        label = {"calculate": text.format(n="format(datum.n, ',')"), "as": "text"}
        mark: Spec = {"type": "text", "align": align, "baseline": baseline}
        mark |= {"dx": {"left": 4, "right": -4}.get(align, 0), "dy": {"bottom": -4, "top": 4}.get(baseline, 0)}
        label_position = {
            "x": {"value": coordinates.get(str(x), x)},
            "y": {"value": coordinates.get(str(y), y)},
            "text": {"field": "text"},
        }
        layers.append({"transform": [*count_transform, label], "mark": mark, "encoding": label_position})
    return [{"data": data, "transform": side_transforms, "layer": layers}]


def heat_map(
    matrix: pd.DataFrame,
    labels: Sequence[Sequence[str]] | None,
    layout: PanelLayout,
    *,
    colour: Spec,
    titles: Mapping[str, str],
    tile_width: float,
    height: float | None = None,
    decimals: int = 3,
    number_format: str = ".3f",
    tooltip_texts: Sequence[Sequence[str]] | None = None,
    extra_layers: Sequence[Spec] = (),
) -> Spec:
    """Draw a frame as a heat map, with one tile (a coloured rectangle) per number and the first row on top.

    Tiles are empty where the number is NaN.

    Args:
        matrix: the numbers.
        labels: texts in the tiles, by row and column, which are drawn if they fit; None for no texts.
        layout: layout of the panel.
        colour: colour channel of the numbers (see `colour_bar`).
        titles: titles of `row`, `column` and `value` in tooltips.
        tile_width: width of a tile, in points.
        height: height of a tile; equal to its width by default.
        decimals: number of decimals to which the numbers are rounded.
        number_format: format of the numbers in tooltips.
        tooltip_texts: texts in tooltips, which replace the numbers.
        extra_layers: additional layers.
    """
    shape = matrix.shape
    names = {"row": [str(name) for name in matrix.index], "column": [str(name) for name in matrix.columns]}
    height = tile_width if height is None else height
    longest_text = max((len(label) for row in labels or () for label in row), default=0)
    size = min(NUMBER_SIZE, 0.95 * tile_width / text_width(max(1, longest_text), 1))
    has_texts = labels is not None and size >= MIN_NUMBER_SIZE
    rows, columns = np.indices(shape)
    table = {"r": rows.ravel(), "c": columns.ravel(), "value": np.round(matrix.to_numpy(np.float64).ravel(), decimals)}
    if has_texts:
        table["text"] = np.array([text for row in labels or () for text in row], object)
    if tooltip_texts is not None:
        table["hover"] = np.array([text for row in tooltip_texts for text in row], object)
    # CSV needs a third of the space of JSON records.
    csv = pd.DataFrame(table).to_csv(index=False, lineterminator="\n")
    parse = {"r": "number", "c": "number", "value": "number", "text": "string", "hover": "string"}
    data = {"values": csv, "format": {"type": "csv", "parse": {name: parse[name] for name in table}}}
    name_transforms = [
        {"calculate": f"{json.dumps(names[name], ensure_ascii=False)}[datum.{name[0]}]", "as": name} for name in names
    ]
    tooltip: list[Spec] = [{"field": name, "title": titles[name]} for name in ("row", "column")]
    if tooltip_texts is None:
        tooltip.append({"field": "value", "type": "quantitative", "title": titles["value"], "format": number_format})
    else:
        tooltip.append({"field": "hover", "type": "nominal", "title": titles["value"]})
    valid = [{"filter": "isValid(datum.value)"}]
    border = {"stroke": "white", "strokeWidth": 0.5} if has_texts else {}
    layers: list[Spec] = [
        {"transform": valid, "mark": {"type": "rect", **border}, "encoding": {"color": colour, "tooltip": tooltip}}
    ]
    if has_texts:
        # Use the text colour with the larger contrast (WCAG 2.2).
        is_dark = "isValid(datum.value) && luminance(scale('color', datum.value)) < 0.179"
        ink = {"condition": {"test": is_dark, "value": "#fefefe"}, "value": "#1c2128"}
        mark = {"type": "text", "fontSize": size}
        text_filter = [{"filter": "isValid(datum.text)"}]
        layers.append({"transform": text_filter, "mark": mark, "encoding": {"text": {"field": "text"}, "color": ink}})
    x: Spec = {"field": "column"} | category_axis(layout, names["column"], None)
    widest_name = max(text_width(len(name), SMALL_SIZE) for name in names["column"])
    if widest_name > tile_width:
        is_vertical = tile_width < 2 * SMALL_SIZE
        x["axis"] |= {"labelAngle": -90 if is_vertical else -45, "labelAlign": "right"}
        x["axis"] |= {"labelBaseline": "middle" if is_vertical else "top"}
    y: Spec = {"field": "row", "type": "nominal", "scale": {"domain": names["row"]}, "axis": {"title": None}}
    for axis in (x, y):
        axis["axis"] |= {"ticks": False, "labelFontSize": min(SMALL_SIZE, tile_width), "labelOverlap": False}
    return {
        "width": tile_width * shape[1],
        "height": height * shape[0],
        "data": data,
        "transform": name_transforms,
        "encoding": {"x": x, "y": y},
        "layer": [*layers, *extra_layers],
    }


def label_outer_axes(chart: Spec, layout: PanelLayout) -> Spec:
    """Show labels of rows only in the leftmost panels and labels of columns only in the bottom panels.

    All panels must have the same labels.
    """
    chart["encoding"]["x"]["axis"]["labels"] = layout.is_at_bottom
    chart["encoding"]["y"]["axis"]["labels"] = layout.is_leftmost
    return chart


def colour_bar(limits: tuple[float, float], colours: Sequence[str] | str, title: str, **options: Any) -> Spec:
    """Return the colour channel of numbers, with its legend below all panels."""
    scale: Spec = {"domain": list(limits)}
    scale |= {"scheme": colours} if isinstance(colours, str) else {"range": list(colours), "interpolate": "rgb"}
    legend = {"orient": "bottom", "direction": "horizontal", "title": title, "gradientLength": 170}
    legend |= {"titleAnchor": "middle", **options}
    return {"field": "value", "type": "quantitative", "scale": scale, "legend": legend}


def named_colours(
    colours: Mapping[str, str], *, title: Sequence[str] = (), has_legend: bool = True, **options: Any
) -> Spec:
    """Return the colour channel of a field of names, with its legend above all panels."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    legend_spec = {"orient": "top", "direction": "horizontal", "title": list(title) or None, **options}
    return {"type": "nominal", "scale": scale, "legend": legend_spec if has_legend else None}


def interval_layers(rows: Iterable[dict[str, Any]], x: Spec, columns: tuple[str, str], cap: float) -> list[Spec]:
    """Return intervals as vertical lines with caps of the given width."""
    low, high = columns
    tick = {"type": "tick", "size": cap, "thickness": 0.6, "color": INK, "orient": "horizontal", "clip": True}
    return [
        {
            "data": {"values": list(rows)},
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 0.9, "clip": True},
                    "encoding": x | {"y": {"field": low}, "y2": {"field": high}},
                },
                *({"mark": tick, "encoding": x | {"y": {"field": limit}}} for limit in (low, high)),
            ],
        }
    ]
