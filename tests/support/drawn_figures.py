"""Read drawn figures: the panels of a figure as Vega draws it, with the marks of each panel in coordinates of its data.

Data coordinates follow from the labels of the axes alone, as for a reader of the figure.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import vl_convert


class Mark(NamedTuple):
    """A drawn mark.

    Attributes:
        kind: Vega's name of the mark, such as ``rule``, ``symbol``, ``rect``, ``line``, ``area`` or ``text``.
        points: (M, 2) pixels: both ends of a rule, two opposite corners of a rect, all vertices of a line or an area,
            the centre of a symbol, the anchor of a text.
        text: the text; empty for other marks.
        style: Vega's properties of the mark; for a line or an area, those of its first vertex.
    """

    kind: str
    points: "np.ndarray[tuple[int, int], np.dtype[np.float64]]"
    text: str
    style: Mapping[str, Any]


@dataclass
class Axis:
    """A linear axis: the pixel of each label."""

    pixels: dict[str, float] = field(default_factory=dict)

    def to_data(self, pixel: float) -> float:
        """Return the number at a pixel."""
        numbers, pixels = np.array([*map(read_number, self.pixels)]), np.array([*self.pixels.values()])
        is_number = np.isfinite(numbers)
        assert is_number.sum() > 1, f"an axis needs two numbers, got {list(self.pixels)}"
        slope, start = np.polyfit(pixels[is_number], numbers[is_number], 1)
        deviations = numbers[is_number] - (start + slope * pixels[is_number])
        assert np.abs(deviations).max() < 1e-6 * np.ptp(numbers[is_number]), f"uneven axis: {self.pixels}"
        return float(start + slope * pixel)

    def nearest_label(self, pixel: float) -> str:
        """Return the label nearest to a pixel."""
        return min(self.pixels, key=lambda label: abs(self.pixels[label] - pixel))


@dataclass
class DrawnPanel:
    """A panel: its position and size in pixels, its axes and its marks."""

    left: float
    top: float
    width: float
    height: float
    title: str = ""
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    marks: list[Mark] = field(default_factory=list)

    def find(self, kind: str, **style: object) -> list[Mark]:
        """Return the marks of a kind whose properties have these values."""
        return [mark for mark in self.marks if mark.kind == kind and style.items() <= _hashable(mark.style).items()]

    def is_inside(self, x: float, y: float, margin: float = 0.51) -> bool:
        """Return whether a pixel is inside the panel."""
        return (
            self.left - margin <= x <= self.left + self.width + margin
            and self.top - margin <= y <= self.top + self.height + margin
        )

    def to_data(self, mark: Mark) -> list[tuple[float, float]]:
        """Return the points of a mark in data coordinates."""
        return [(self.x.to_data(x), self.y.to_data(y)) for x, y in mark.points]

    def heights(self, mark: Mark) -> list[float]:
        """Return the vertical data coordinates of a mark's points."""
        return [self.y.to_data(y) for _, y in mark.points]


def _hashable(style: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in style.items()}


def read_number(label: str) -> float:
    """Return the number that a label states: ``80%`` is 0.8, ``−3`` is -3, and a name is NaN."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([%km]?)", label.replace("−", "-").replace(",", ""))
    if match is None:
        return math.nan
    return float(match[1]) * {"%": 0.01, "k": 1000, "m": 0.001, "": 1}[match[2]]


def read_panels(spec: Mapping[str, Any]) -> list[DrawnPanel]:
    """Draw a Vega-Lite specification, and return the panels that have marks.

    A panel without labels on its vertical axis gets the axis of a panel beside it with the same top and height.
    """
    root = vl_convert.vegalite_to_scenegraph(dict(spec))["scenegraph"]
    panels = [panel for panel in _walk(root, 0, 0, None) if panel.marks]
    for panel in panels:
        if not panel.y.pixels:
            rows = [other for other in panels if (other.top, other.height) == (panel.top, panel.height)]
            panel.y = next((other.y for other in rows if other.y.pixels), panel.y)
    return panels


def _walk(group: Mapping[str, Any], x: float, y: float, panel: DrawnPanel | None) -> Iterator[DrawnPanel]:
    """Yield the panels in a group mark; if the group is inside `panel`, add its axes, title and marks to this panel."""
    for item in group["items"]:
        left, top, inner = x + item.get("x", 0), y + item.get("y", 0), panel
        if panel is None and item.get("width", 0) > 0 and item.get("height", 0) > 0:
            inner = DrawnPanel(left, top, item["width"], item["height"])
        for child in item.get("items", ()):
            role, is_group = child.get("role"), child["marktype"] == "group"
            if inner is not None and role == "axis":
                _read_axis(child, left, top, inner)
            elif inner is not None and role == "title":
                inner.title = "\n".join(text for label in _find_items(child, "title-text") for text in label["text"])
            elif inner is not None and role == "mark" and not is_group:
                inner.marks += _read_marks(child, left, top)
            elif is_group and role != "legend":
                yield from _walk(child, left, top, inner)
        if inner is not None and panel is None:
            yield inner


def _find_items(group: Mapping[str, Any], role: str) -> Iterator[Mapping[str, Any]]:
    for item in group["items"]:
        for child in item.get("items", ()):
            if child.get("role") == role:
                yield from child["items"]
            elif child["marktype"] == "group":
                yield from _find_items(child, role)


def _read_axis(axis: Mapping[str, Any], left: float, top: float, panel: DrawnPanel) -> None:
    """Add the visible labels of an axis, without the half pixel by which Vega shifts axes but not data."""
    is_vertical = axis["items"][0]["orient"] == "left"
    for label in _find_items(axis, "axis-label"):
        if label["opacity"] > 0 and label["text"].strip():
            pixel = top + label["y"] if is_vertical else left + label["x"]
            (panel.y if is_vertical else panel.x).pixels[label["text"]] = pixel


def _read_marks(group: Mapping[str, Any], left: float, top: float) -> list[Mark]:
    kind, items = group["marktype"], group["items"]
    if kind in {"line", "area"}:
        points = [(item["x"], item["y"]) for item in items]
        points += [(item["x"], item["y2"]) for item in reversed(items) if kind == "area"]
        return [Mark(kind, np.add(points, (left, top)), "", items[0])]
    return [Mark(kind, np.add(_ends(kind, item), (left, top)), str(item.get("text", "")), item) for item in items]


def _ends(kind: str, item: Mapping[str, Any]) -> list[tuple[float, float]]:
    start = x, y = item.get("x", 0.0), item.get("y", 0.0)
    if kind == "rule":
        return [start, (item.get("x2", x), item.get("y2", y))]
    return [start, (x + item["width"], y + item["height"])] if kind == "rect" else [start]
