"""The plain parts that panels are made of, in Vega-Lite: boxes, bands, points, heat maps, the chance line.

Sizes are in points. Nothing is computed here: expressions only place and colour what a frame holds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robust201.figures import palette
from robust201.figures.panels import LEAST_NUMBER, NUMBER, SMALL, PanelPlace, Spec, text_width
from robust201.spaces.cell_space import INK


def spec_rows(frame: pd.DataFrame, digits: int = 5) -> list[dict[str, Any]]:
    """Write a frame as the rows of a specification; numbers are rounded, and None stands for NaN."""
    numbers = frame.select_dtypes("float")
    held = frame.assign(**numbers.round(digits)).astype(object)
    rows: Any = held.where(frame.notna(), None).to_dict("records")
    found: list[Spec] = rows
    return found


def fraction_axis(place: PanelPlace, label: str, limits: tuple[float, float] = (0, 1)) -> Spec:
    """Let the vertical axis show fractions between limits; only panels at the left have labels."""
    # A blank label is as high as any, so that titles of panels stand at the same height.
    labels = {"title": label} if place.left else {"title": None, "labelExpr": "' '"}
    axis = {"format": ".0%", "tickCount": 5, "grid": True, **labels}
    return {"type": "quantitative", "scale": {"domain": list(limits), "nice": False, "zero": False}, "axis": axis}


def category_axis(place: PanelPlace, names: Sequence[str], title: str | None, **scale: Any) -> Spec:
    """Let the horizontal axis show names in order; they are turned where they have no room."""
    room = place.width / max(1, len(names))
    turned = max(text_width(len(name), SMALL) for name in names) > room
    angle: Spec = {"labelAngle": -90 if turned else 0}
    if turned:
        angle |= {"labelAlign": "right", "labelBaseline": "middle"}
    return {"type": "nominal", "scale": {"domain": list(names), **scale}, "axis": {"title": title, **angle}}


def strength_axis(strengths: Sequence[float], names: Sequence[str], title: str | None) -> Spec:
    """Let the horizontal axis show strengths by their size, with their names as far as there is room."""
    named = dict(zip(map(float, strengths), names, strict=True))
    texts = json.dumps({f"{strength:g}": name for strength, name in named.items()}, ensure_ascii=False)
    scale = {"domain": [min(named), max(named)], "nice": False, "zero": False, "padding": 6}
    axis = {"title": title, "values": list(named), "labelExpr": f"{texts}[format(datum.value, '~g')]"}
    return {"type": "quantitative", "scale": scale, "axis": axis | {"labelOverlap": "greedy", "labelSeparation": 2}}


def chance_layers(chance: float | None, limits: tuple[float, float], *, right: bool = False) -> list[Spec]:
    """Draw the accuracy of guessing, where it is known and shown; its word at the right or at the left."""
    low, high = limits
    if chance is None or not low <= chance <= high:
        return []
    # Below the line at the top of a panel, where nothing else is below.
    above = chance < (low + high) / 2
    at: Spec = {"y": {"datum": chance}}
    spot = {"x": {"value": "width" if right else 0}, **at}
    word: Spec = {
        "type": "text",
        "text": "chance",
        "color": palette.CHANCE_COLOUR,
        "align": "right" if right else "left",
    }
    word |= {"baseline": "bottom" if above else "top", "dx": -2 if right else 2, "dy": -1 if above else 1}
    line = {"type": "rule", "color": palette.CHANCE_COLOUR, "strokeDash": [3, 2], "strokeWidth": 0.9}
    one: Spec = {"values": [{}]}
    return [{"data": one, "mark": line, "encoding": at}, {"data": one, "mark": word, "encoding": spot}]


def box_layers(boxes: pd.DataFrame, names: Sequence[str], limits: tuple[float, float]) -> list[Spec]:
    """Draw boxes (see `figure_data.accuracy_boxes`; with a column `group`, their colour) above names of an axis."""
    low, high = limits
    numbers = boxes.drop(columns="outliers").assign(place=list(names))
    dots = boxes.assign(place=list(names))[["place", "outliers"]].explode("outliers").dropna()
    shown = dots[dots["outliers"].between(low, high)].astype({"outliers": float})
    at = {"field": "place"}
    words = [("high", "upper whisker"), ("q3", "upper quartile"), ("median", "median"), ("q1", "lower quartile")]
    tooltip = [{"field": "place", "title": "at"}]
    tooltip += [{"field": name, "title": text, "format": ".2%"} for name, text in [*words, ("low", "lower whisker")]]
    tooltip += [{"field": "n", "title": "architectures", "format": ","}]

    def across(column: str, share: float, width: float) -> Spec:
        ends = {"x": at | {"bandPosition": 0.5 - share / 2}, "x2": at | {"bandPosition": 0.5 + share / 2}}
        return {"mark": {"type": "rule", "strokeWidth": width}, "encoding": ends | {"y": {"field": column}}}

    bar = {"type": "bar", "stroke": INK, "strokeWidth": 0.6, "fillOpacity": 0.85, "width": {"band": 0.62}}
    box = {"x": at, "y": {"field": "q1"}, "y2": {"field": "q3"}, "color": {"field": "group"}, "tooltip": tooltip}
    layers: list[Spec] = [
        {"mark": "rule", "encoding": {"x": at, "y": {"field": "low"}, "y2": {"field": "q1"}}},
        {"mark": "rule", "encoding": {"x": at, "y": {"field": "q3"}, "y2": {"field": "high"}}},
        across("low", 0.32, 0.6),
        across("high", 0.32, 0.6),
        {"mark": bar, "encoding": box},
        across("median", 0.62, 1.1),
    ]
    layers = [{"data": {"values": spec_rows(numbers)}, "layer": layers}]
    if len(shown):
        hover = {"tooltip": {"field": "outliers", "format": ".2%", "title": "accuracy"}}
        dot: Spec = {
            "mark": {"type": "point", "color": INK, "size": 3},
            "encoding": {"x": at, "y": {"field": "outliers"}},
        }
        layers.append({"data": {"values": spec_rows(shown)}} | dot | {"encoding": dot["encoding"] | hover})
    for column, arrow, y, baseline in (("n_below", "▼", "height", "bottom"), ("n_above", "▲", 0, "top")):
        held = numbers[numbers[column] > 0]
        if len(held):
            texts = [
                {"place": name, "text": f"{arrow}{n:,}"} for name, n in zip(held["place"], held[column], strict=True)
            ]
            spot = {"x": at, "y": {"value": y}, "text": {"field": "text"}}
            mark = {"type": "text", "baseline": baseline}
            layers.append({"data": {"values": texts}, "mark": mark, "encoding": spot})
    return layers


def band_layers(
    rows: pd.DataFrame, x: Spec, columns: tuple[str, str, str], colour: Spec, tooltip: Sequence[Spec] = ()
) -> list[Spec]:
    """Draw lines of a middle column with a band between a lower and an upper one."""
    low, middle, high = columns
    ends = {"x": x, "y": {"field": low}, "y2": {"field": high}, "color": colour}
    line = {"x": x, "y": {"field": middle}, "color": colour}
    return [
        {
            "data": {"values": spec_rows(rows)},
            "layer": [
                {"mark": {"type": "area", "line": False}, "encoding": ends},
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
"""By side of a panel: which points are beyond it, their symbol, and where their number stands."""


def point_layers(
    data: Spec,
    fields: tuple[str, str],
    limits: Sequence[tuple[Any, Any]],
    encoding: Spec,
    size: float,
    sizes: tuple[float, float],
) -> list[Spec]:
    """Draw points within the limits of both axes; those beyond are arrows at the border, with their number.

    Args:
        data: of the points.
        fields: of the horizontal and the vertical axis, whose scales must clamp.
        limits: of the axes, numbers or names of parameters.
        encoding: further channels.
        size: area of a point.
        sizes: width and height of the panel.
    """
    (left, right), (low, high) = limits
    names = {"x": fields[0], "y": fields[1], "left": left, "right": right, "low": low, "high": high}
    side = "''"
    for name, (test, *_) in reversed(_SIDES.items()):
        side = f"{test.format(**names)} ? '{name}' : {side}"
    shape: Spec = {"field": "side", "type": "nominal", "legend": None}
    shape["scale"] = {"domain": ["", *_SIDES], "range": ["circle", *(row[1] for row in _SIDES.values())]}
    at = {"x": {"field": fields[0]}, "y": {"field": fields[1]}}
    valid = f"isValid(datum.{fields[0]}) && isValid(datum.{fields[1]})"
    sides = [{"filter": valid}, {"calculate": side, "as": "side"}]
    area = {"condition": {"test": "datum.side !== ''", "value": max(12, size)}, "value": size}
    points = {"mark": {"type": "point", "strokeWidth": 0}, "encoding": at | {"shape": shape, "size": area} | encoding}
    layers: list[Spec] = [points]
    spots = {"width": sizes[0], "height": sizes[1], "width/2": sizes[0] / 2, "height/2": sizes[1] / 2}
    for name, (_, _, x, y, align, baseline, text) in _SIDES.items():
        counted = [
            {"filter": f"datum.side === '{name}'"},
            {"aggregate": [{"op": "count", "as": "n"}], "groupby": ["side"]},
        ]
        written = {"calculate": text.format(n="format(datum.n, ',')"), "as": "text"}
        mark: Spec = {"type": "text", "align": align, "baseline": baseline}
        mark |= {"dx": {"left": 4, "right": -4}.get(align, 0), "dy": {"bottom": -4, "top": 4}.get(baseline, 0)}
        spot = {"x": {"value": spots.get(str(x), x)}, "y": {"value": spots.get(str(y), y)}, "text": {"field": "text"}}
        layers.append({"transform": [*counted, written], "mark": mark, "encoding": spot})
    return [{"data": data, "transform": sides, "layer": layers}]


def heat_map(
    matrix: pd.DataFrame,
    texts: Sequence[Sequence[str]] | None,
    place: PanelPlace,
    *,
    colour: Spec,
    words: Mapping[str, str],
    field: float,
    height: float | None = None,
    digits: int = 3,
    number: str = ".3f",
    hovers: Sequence[Sequence[str]] | None = None,
    more: Sequence[Spec] = (),
) -> Spec:
    """Draw a frame as coloured fields, its first row on top; NaN stays empty.

    Args:
        matrix: the numbers.
        texts: what is written in the fields, as far as there is room; nothing if None.
        place: of the panel.
        colour: channel of `value`.
        words: titles under the pointer of `row`, `column` and `value`.
        field: width of a field, in points.
        height: of a field; as its width if None.
        digits: of the numbers.
        number: how they are written under the pointer.
        hovers: texts under the pointer in place of the numbers.
        more: further layers.
    """
    shape = matrix.shape
    names = {"row": [str(name) for name in matrix.index], "column": [str(name) for name in matrix.columns]}
    height = field if height is None else height
    longest = max((len(text) for row in texts or () for text in row), default=0)
    size = min(NUMBER, 0.95 * field / text_width(max(1, longest), 1))
    written = texts is not None and size >= LEAST_NUMBER
    rows, columns = np.indices(shape)
    table = {"r": rows.ravel(), "c": columns.ravel(), "value": np.round(matrix.to_numpy(np.float64).ravel(), digits)}
    if written:
        table["text"] = np.array([text for row in texts or () for text in row], object)
    if hovers is not None:
        table["hover"] = np.array([text for row in hovers for text in row], object)
    # A third of the length of rows with names.
    csv = pd.DataFrame(table).to_csv(index=False, lineterminator="\n")
    parse = {"r": "number", "c": "number", "value": "number", "text": "string", "hover": "string"}
    data = {"values": csv, "format": {"type": "csv", "parse": {name: parse[name] for name in table}}}
    named = [
        {"calculate": f"{json.dumps(names[name], ensure_ascii=False)}[datum.{name[0]}]", "as": name} for name in names
    ]
    tooltip: list[Spec] = [{"field": name, "title": words[name]} for name in ("row", "column")]
    if hovers is None:
        tooltip.append({"field": "value", "type": "quantitative", "title": words["value"], "format": number})
    else:
        tooltip.append({"field": "hover", "type": "nominal", "title": words["value"]})
    valid = [{"filter": "isValid(datum.value)"}]
    edge = {"stroke": "white", "strokeWidth": 0.5} if written else {}
    layers: list[Spec] = [
        {"transform": valid, "mark": {"type": "rect", **edge}, "encoding": {"color": colour, "tooltip": tooltip}}
    ]
    if written:
        # The colour of the text that has the larger contrast (WCAG 2.2).
        light = "isValid(datum.value) && luminance(scale('color', datum.value)) < 0.179"
        ink = {"condition": {"test": light, "value": "#fefefe"}, "value": "#1c2128"}
        mark = {"type": "text", "fontSize": size}
        given = [{"filter": "isValid(datum.text)"}]
        layers.append({"transform": given, "mark": mark, "encoding": {"text": {"field": "text"}, "color": ink}})
    x: Spec = {"field": "column"} | category_axis(place, names["column"], None)
    widest = max(text_width(len(name), SMALL) for name in names["column"])
    if widest > field:
        steep = field < 2 * SMALL
        x["axis"] |= {"labelAngle": -90 if steep else -45, "labelAlign": "right"}
        x["axis"] |= {"labelBaseline": "middle" if steep else "top"}
    y: Spec = {"field": "row", "type": "nominal", "scale": {"domain": names["row"]}, "axis": {"title": None}}
    for axis in (x, y):
        axis["axis"] |= {"ticks": False, "labelFontSize": min(SMALL, field), "labelOverlap": False}
    return {
        "width": field * shape[1],
        "height": height * shape[0],
        "data": data,
        "transform": named,
        "encoding": {"x": x, "y": y},
        "layer": [*layers, *more],
    }


def share_axes(drawn: Spec, place: PanelPlace) -> Spec:
    """Name rows and columns at the left and below only, as all panels have the same."""
    drawn["encoding"]["x"]["axis"]["labels"] = place.bottom
    drawn["encoding"]["y"]["axis"]["labels"] = place.left
    return drawn


def colour_bar(limits: tuple[float, float], colours: Sequence[str] | str, title: str, **more: Any) -> Spec:
    """Make the colour channel of numbers, with its legend below all panels."""
    scale: Spec = {"domain": list(limits)}
    scale |= {"scheme": colours} if isinstance(colours, str) else {"range": list(colours), "interpolate": "rgb"}
    legend = {"orient": "bottom", "direction": "horizontal", "title": title, "gradientLength": 170}
    legend |= {"titleAnchor": "middle", **more}
    return {"field": "value", "type": "quantitative", "scale": scale, "legend": legend}


def named_colours(colours: Mapping[str, str], *, title: Sequence[str] = (), legend: bool = True, **more: Any) -> Spec:
    """Make the colour channel of a field's names, with its legend above all panels."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    shown = {"orient": "top", "direction": "horizontal", "title": list(title) or None, **more}
    return {"type": "nominal", "scale": scale, "legend": shown if legend else None}


def interval_layers(rows: Iterable[dict[str, Any]], x: Spec, columns: tuple[str, str], cap: float) -> list[Spec]:
    """Draw intervals as vertical lines with ends of some width."""
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
                *({"mark": tick, "encoding": x | {"y": {"field": end}}} for end in (low, high)),
            ],
        }
    ]
