"""Read drawn figures: the panels of an SVG by Vega, with the marks of each panel in the coordinates of its data.

Data coordinates follow from the labels of the axes alone, as for a reader of the figure.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.etree import ElementTree as ET

import numpy as np

_SVG = "{http://www.w3.org/2000/svg}"
_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


class Mark(NamedTuple):
    """A drawn mark.

    Attributes:
        kind: Vega's name of the mark, such as ``rule``, ``symbol``, ``rect``, ``line``, ``area`` or ``text``.
        points: (M, 2) pixels: both ends of a rule, two opposite corners of a rect, all vertices of a line or an area,
            the centre of a symbol, the anchor of a text.
        text: the text; empty for other marks.
        style: attributes of the SVG element.
    """

    kind: str
    points: "np.ndarray[tuple[int, int], np.dtype[np.float64]]"
    text: str
    style: dict[str, str]


@dataclass
class Axis:
    """An axis: the pixel of each label's tick. Axes are linear, or logarithmic if `is_logarithmic` says so."""

    pixels: dict[str, float] = field(default_factory=dict)
    is_logarithmic: bool = False

    @property
    def values(self) -> list[float]:
        """Numbers of the labels; NaN for labels that are names."""
        return [read_number(label) for label in self.pixels]

    def to_data(self, pixel: float) -> float:
        """Return the number at a pixel."""
        numbers, pixels = np.array(self.values), np.array(list(self.pixels.values()))
        is_number = np.isfinite(numbers)
        assert is_number.sum() > 1, f"an axis needs two numbers, got {list(self.pixels)}"
        scaled = np.log(numbers[is_number]) if self.is_logarithmic else numbers[is_number]
        slope, start = np.polyfit(pixels[is_number], scaled, 1)
        deviations = scaled - (start + slope * pixels[is_number])
        assert np.abs(deviations).max() < 1e-6 * max(1e-9, np.ptp(scaled)), f"uneven axis: {self.pixels}"
        value = float(start + slope * pixel)
        return math.exp(value) if self.is_logarithmic else value

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

    def find(self, kind: str, **style: str) -> list[Mark]:
        """Return the marks of a kind whose SVG attributes have these values (``stroke_width`` for ``stroke-width``)."""
        wanted = {name.replace("_", "-"): value for name, value in style.items()}
        return [
            mark
            for mark in self.marks
            if mark.kind == kind and wanted.items() <= mark.style.items() and len(mark.points)
        ]

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


def read_number(label: str) -> float:
    """Return the number that a label states: ``80%`` is 0.8, ``−3`` is -3, and a name is NaN."""
    text = label.replace("−", "-").replace(",", "")
    match = re.fullmatch(rf"({_NUMBER})([%km]?)", text)
    if match is None:
        return math.nan
    return float(match[1]) * {"%": 0.01, "k": 1000, "m": 0.001, "": 1}[match[2]]


def read_panels(svg: str) -> list[DrawnPanel]:
    """Return the panels that have marks.

    Panels without labels on the vertical axis have the axis of the panel beside them whose top and height are equal.
    """
    panels = [panel for panel in _walk(ET.fromstring(svg), 0, 0, None) if panel.marks]
    for panel in panels:
        if not any(label.strip() for label in panel.y.pixels):
            rows = [other for other in panels if (other.top, other.height) == (panel.top, panel.height)]
            panel.y = next((other.y for other in rows if any(label.strip() for label in other.y.pixels)), panel.y)
    return panels


def _walk(element: ET.Element, x: float, y: float, panel: DrawnPanel | None) -> Iterator[DrawnPanel]:
    for child in element:
        role, (dx, dy) = child.get("class", ""), _translation(child)
        if "role-axis" in role and "mark-group" in role:
            if panel is not None:
                _read_axis(child, x, y, panel)
        elif "role-title" in role:
            if panel is not None:
                panel.title = "\n".join(_texts(child))
        elif "role-legend" in role:
            continue
        elif "role-mark" in role and "mark-group" not in role:
            if panel is not None:
                panel.marks += _read_marks(child, x, y)
        else:
            background = child.find(f"{_SVG}path[@class='background']") if child.tag == f"{_SVG}g" else None
            size = None if background is None or panel is not None else _panel_size(background.get("d", ""))
            if size is None:
                yield from _walk(child, x + dx, y + dy, panel)
            else:
                new_panel = DrawnPanel(x + dx, y + dy, *size)
                yield from _walk(child, x + dx, y + dy, new_panel)
                yield new_panel


def _panel_size(path: str) -> tuple[float, float] | None:
    match = re.fullmatch(rf"M({_NUMBER}),({_NUMBER})h({_NUMBER})v({_NUMBER})h-?{_NUMBER}Z", path)
    if match is None or float(match[3]) <= 0 or float(match[4]) <= 0:
        return None
    return float(match[3]), float(match[4])


def _translation(element: ET.Element) -> tuple[float, float]:
    match = re.match(rf"translate\(({_NUMBER}),({_NUMBER})\)", element.get("transform", ""))
    return (0.0, 0.0) if match is None else (float(match[1]), float(match[2]))


def _texts(element: ET.Element) -> list[str]:
    return [part.text for part in element.iter() if part.text and part.tag in (f"{_SVG}text", f"{_SVG}tspan")]


def _read_axis(element: ET.Element, x: float, y: float, panel: DrawnPanel) -> None:
    """Add the labels of an axis to a panel. The axis itself is shifted by half a pixel, which data are not."""
    ((group, (dx, dy)),) = [(child, _translation(child)) for child in element if child.tag == f"{_SVG}g"]
    is_horizontal = dy > 1
    axis = panel.x if is_horizontal else panel.y
    for labels in group.iter(f"{_SVG}g"):
        if "role-axis-label" in labels.get("class", ""):
            for text in labels.iter(f"{_SVG}text"):
                if text.get("opacity") == "0":
                    continue
                (left, top), size = _translation(text), float(text.get("font-size", "0px").removesuffix("px"))
                # Vega lowers a text that is centred vertically by 0.3 of its size, in whole pixels.
                is_turned = "rotate" in text.get("transform", "")
                pixel = x + dx - 0.5 + left if is_horizontal else y + dy - 0.5 + top
                if not is_horizontal and not is_turned:
                    pixel -= math.floor(0.3 * size + 0.5)
                axis.pixels["".join(_texts(text))] = pixel


def _read_marks(element: ET.Element, x: float, y: float) -> list[Mark]:
    kind = element.get("class", "").split()[0].removeprefix("mark-")
    marks = []
    for child in element:
        dx, dy = _translation(child)
        left, top = x + dx, y + dy
        points: list[tuple[float, float]] = []
        if child.tag == f"{_SVG}line":
            points = [(left, top), (left + float(child.get("x2", 0)), top + float(child.get("y2", 0)))]
        elif child.tag == f"{_SVG}text" or kind == "symbol":
            points = [(left, top)]
        elif child.tag == f"{_SVG}path":
            points = [(left + px, top + py) for px, py in _vertices(child.get("d", ""))]
        marks.append(
            Mark(kind, np.array(points, np.float64).reshape(-1, 2), "".join(_texts(child)), dict(child.attrib))
        )
    return marks


def _vertices(path: str) -> list[tuple[float, float]]:
    """Return the vertices of a path of straight lines."""
    vertices: list[tuple[float, float]] = []
    x = y = 0.0
    for command, arguments in re.findall(rf"([MLHVhvZ])((?:{_NUMBER}|,|\s)*)", path):
        numbers = [float(number) for number in re.findall(_NUMBER, arguments)]
        if command == "Z":
            continue
        if command in "ML":
            x, y = numbers[:2]
        elif command == "H":
            (x,) = numbers
        elif command == "V":
            (y,) = numbers
        elif command == "h":
            x += numbers[0]
        else:
            y += numbers[0]
        vertices.append((x, y))
    return vertices
