"""Drawing of NAS-Bench-201 cells: four nodes, and six edges with one operation each."""

import itertools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from robust201.networks.colours import INK, PAPER
from robust201.networks.nb201.cells import EDGES, NODE_NAMES, OPERATIONS, parse

if TYPE_CHECKING:
    import altair as alt

OPERATION_COLOURS = {
    "none": "#8b949e",
    "skip_connect": "#8a63d2",
    "nor_conv_1x1": "#1b9aaa",
    "nor_conv_3x3": "#2577c8",
    "avg_pool_3x3": "#d0651f",
}
OPERATION_LABELS = {
    "none": "none",
    "skip_connect": "skip",
    "nor_conv_1x1": "conv 1×1",
    "nor_conv_3x3": "conv 3×3",
    "avg_pool_3x3": "avg pool 3×3",
}
"""Labels of the operations in figures."""

NODES = {0: (0.0, 0.0), 1: (1.0, 0.85), 2: (1.45, -0.3), 3: (3.2, 0.0)}
"""Centres of the nodes."""

NODE_RADIUS = 0.21
BOUNDS = (-0.4, 3.6, -1.1, 1.3)
MIN_FONT_SIZE = 5.0
"""Minimum font size in points."""

_BENDS = {(0, 1): -0.15, (0, 2): 0.0, (0, 3): 0.5, (1, 2): 0.0, (1, 3): -0.15, (2, 3): 0.0}
"""Distance of each edge's control point from the midpoint between its nodes, as a fraction of the distance between the
nodes; positive to the right of the edge."""

_CURVE_SEGMENTS = 40

Point = tuple[float, float]


class EdgeParts(NamedTuple):
    """Drawing of an operation on an edge: a curve with an arrow head, and a label.

    Attributes:
        edge: index in `cells.EDGES`.
        operation: name of the operation.
        text: text of the label.
        colour: colour of curve, arrow and label.
        curve: points of the curve, from the source node to the target node.
        angle: angle of the arrow in degrees, anticlockwise from the right.
        label_centre: centre of the label.
    """

    edge: int
    operation: str
    text: str
    colour: str
    curve: list[Point]
    angle: float
    label_centre: Point


class CellParts(NamedTuple):
    """Parts of the drawing of a cell; the y axis points upwards.

    Attributes:
        edges: the edges, which are drawn behind the nodes.
        nodes: centre of each node, by name.
        radius: radius of a node.
        bounds: left, right, bottom and top of the drawing.
    """

    edges: list[EdgeParts]
    nodes: dict[str, Point]
    radius: float
    bounds: tuple[float, float, float, float]


def cell_parts(spec: str) -> CellParts:
    """Return the parts of a cell's drawing."""
    return _parts_of(enumerate(parse(spec)))


def all_edge_parts() -> CellParts:
    """Return the parts for all operations on every edge. A page draws a cell by hiding all but six of them."""
    return _parts_of(itertools.product(range(len(EDGES)), OPERATIONS))


def _parts_of(operations: Iterable[tuple[int, str]]) -> CellParts:
    edges = [edge_parts(edge, operation) for edge, operation in operations]
    return CellParts(edges, {NODE_NAMES[node]: centre for node, centre in NODES.items()}, NODE_RADIUS, BOUNDS)


def edge_parts(edge: int, operation: str) -> EdgeParts:
    """Return the parts of an edge's drawing. The curve is quadratic, and ends at the circles of its nodes."""
    source, target = EDGES[edge]
    (x0, y0), (x1, y1) = NODES[source], NODES[target]
    bend = _BENDS[source, target]
    control = (x0 + x1) / 2 + bend * (y1 - y0), (y0 + y1) / 2 - bend * (x1 - x0)

    def curve_point(t: float) -> Point:
        weights = (1 - t) ** 2, 2 * t * (1 - t), t**2
        x, y = (
            sum(weight * value for weight, value in zip(weights, values, strict=True))
            for values in ((x0, control[0], x1), (y0, control[1], y1))
        )
        return x, y

    curve_points = [curve_point(step / _CURVE_SEGMENTS) for step in range(_CURVE_SEGMENTS + 1)]
    curve = [p for p in curve_points if min(math.dist(p, NODES[source]), math.dist(p, NODES[target])) >= NODE_RADIUS]
    (before_x, before_y), (tip_x, tip_y) = curve[-2:]
    angle = math.degrees(math.atan2(tip_y - before_y, tip_x - before_x))
    return EdgeParts(
        edge, operation, OPERATION_LABELS[operation], OPERATION_COLOURS[operation], curve, angle, curve_point(0.5)
    )


def draw_cell(spec: str, title: str = "", width: float = 200.0) -> "alt.LayerChart":
    """Draw a cell: its nodes, and its edges with their operations, with a title above.

    Args:
        spec: the cell string.
        title: text above the cell; empty for none.
        width: width in points.
    """
    import altair as alt
    import pandas as pd

    font_size = max(MIN_FONT_SIZE, width / 25)
    parts = cell_parts(spec)
    left, right, bottom, top = parts.bounds

    def scale(*ends: float) -> dict[str, Any]:
        return {"axis": None, "scale": alt.Scale(domain=list(ends), nice=False, zero=False)}

    position = {"x": alt.X("x:Q", **scale(left, right)), "y": alt.Y("y:Q", **scale(bottom, top))}
    colour = alt.Color("colour:N", scale=None, legend=None)
    # Segments of the curves. An edge without an operation has only every second segment, so that it looks dashed.
    segments = [
        (*start, *end, edge.colour)
        for edge in parts.edges
        for step, (start, end) in enumerate(itertools.pairwise(edge.curve))
        if edge.operation != "none" or step % 2
    ]
    lines = alt.Chart(pd.DataFrame(segments, columns=["x", "y", "to_x", "to_y", "colour"]).round(4))
    ends = [(*edge.curve[-1], 90 - edge.angle, edge.colour) for edge in parts.edges]
    arrows = alt.Chart(pd.DataFrame(ends, columns=["x", "y", "angle", "colour"]).round(4))
    label_rows = [(*edge.label_centre, edge.text, edge.colour) for edge in parts.edges]
    labels = alt.Chart(pd.DataFrame(label_rows, columns=["x", "y", "text", "colour"]).round(4))
    node_rows = [(x, y, name) for name, (x, y) in parts.nodes.items()]
    nodes = alt.Chart(pd.DataFrame(node_rows, columns=["x", "y", "text"]))
    diameter = 2 * parts.radius * width / (right - left)
    halo = labels.mark_text(fontSize=font_size, stroke=PAPER, strokeWidth=2.5, color=PAPER)
    circle = nodes.mark_point(fill=PAPER, stroke=INK, strokeWidth=0.8, size=math.pi / 4 * diameter**2)
    head = arrows.mark_point(shape="M0,0L-0.4,1.1L0.4,1.1Z", size=30, strokeWidth=0)
    angle = alt.Angle("angle:Q", scale=None, legend=None)
    layers = [
        lines.mark_rule(strokeWidth=1, strokeCap="round").encode(**position, x2="to_x", y2="to_y", color=colour),
        head.encode(**position, color=colour, angle=angle),
        halo.encode(**position, text="text:N"),
        labels.mark_text(fontSize=font_size).encode(**position, text="text:N", color=colour),
        circle.encode(**position),
        nodes.mark_text(fontSize=1.2 * font_size, color=INK).encode(**position, text="text:N"),
    ]
    heading: dict[str, Any] = {"title": title} if title else {}
    return alt.LayerChart(layer=layers, width=width, height=width * (top - bottom) / (right - left), **heading)
