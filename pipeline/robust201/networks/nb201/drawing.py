"""Drawing of NAS-Bench-201 cells: four nodes, and six edges with one operation each."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from robust201.core.colours import INK, PAPER
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


class Edge(NamedTuple):
    """Drawing of an operation on an edge: a curve with an arrow head, and a label.

    Attributes:
        edge: index in `cells.EDGES`.
        operation: name of the operation.
        curve: points of the curve, from the source node to the target node.
        angle: angle of the arrow in degrees, clockwise from the top.
        label: centre of the label.
    """

    edge: int
    operation: str
    curve: list[Point]
    angle: float
    label: Point


def edge_parts(edge: int, operation: str) -> Edge:
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
    angle = 90 - math.degrees(math.atan2(tip_y - before_y, tip_x - before_x))
    return Edge(edge, operation, curve, angle, curve_point(0.5))


def draw_cell(spec: str | None, title: str = "", width: float = 200.0) -> "alt.LayerChart":
    """Draw a cell: its nodes, and its edges with their operations, with a title above.

    Args:
        spec: the cell string; None draws the cell whose operations are the value of Vega-Lite's parameter `operations`,
            which the caller adds to the specification.
        title: text above the cell; empty for none.
        width: width in points.
    """
    import altair as alt
    import pandas as pd

    font_size = max(MIN_FONT_SIZE, width / 25)
    left, right, bottom, top = BOUNDS
    edges = [
        edge_parts(edge, operation)
        for edge in range(len(EDGES))
        for operation in (OPERATIONS if spec is None else [parse(spec)[edge]])
    ]

    def scale(*ends: float) -> dict[str, Any]:
        return {"axis": None, "scale": alt.Scale(domain=list(ends), nice=False, zero=False)}

    position: dict[str, Any] = {"x": alt.X("x:Q", **scale(left, right)), "y": alt.Y("y:Q", **scale(bottom, top))}
    colour = alt.Color("colour:N", scale=None, legend=None)

    def chart(rows: Sequence[tuple[object, ...]], *names: str) -> alt.Chart:
        frame = pd.DataFrame(rows, columns=["edge", "operation", *names]).round(4)
        frame["colour"] = frame["operation"].map(OPERATION_COLOURS)
        base = alt.Chart(frame).encode(**position)
        return base.transform_filter("operations[datum.edge] === datum.operation") if spec is None else base

    # Segments of the curves. An edge without an operation has only every second segment, so that it looks dashed.
    segments = [
        (each.edge, each.operation, *start, *end)
        for each in edges
        for step, (start, end) in enumerate(itertools.pairwise(each.curve))
        if each.operation != "none" or step % 2
    ]
    lines = chart(segments, "x", "y", "to_x", "to_y")
    arrows = chart([(*each[:2], *each.curve[-1], each.angle) for each in edges], "x", "y", "angle")
    texts = [(*each[:2], *each.label, OPERATION_LABELS[each.operation]) for each in edges]
    labels = chart(texts, "x", "y", "text")
    node_rows = [(*NODES[node], name) for node, name in enumerate(NODE_NAMES)]
    nodes = alt.Chart(pd.DataFrame(node_rows, columns=["x", "y", "text"])).encode(**position)
    diameter = 2 * NODE_RADIUS * width / (right - left)
    layers = [
        lines.mark_rule(strokeWidth=1, strokeCap="round").encode(x2="to_x", y2="to_y", color=colour),
        arrows.mark_point(shape="M0,0L-0.4,1.1L0.4,1.1Z", size=30, filled=True).encode(
            color=colour, angle=alt.Angle("angle:Q", scale=None, legend=None)
        ),
        labels.mark_text(fontSize=font_size, stroke=PAPER, strokeWidth=4, color=PAPER).encode(text="text:N"),
        labels.mark_text(fontSize=font_size).encode(text="text:N", color=colour),
        nodes.mark_point(fill=PAPER, stroke=INK, strokeWidth=0.8, size=math.pi / 4 * diameter**2),
        nodes.mark_text(fontSize=1.2 * font_size, color=INK).encode(text="text:N"),
    ]
    heading: dict[str, Any] = {"title": title} if title else {}
    return alt.LayerChart(layer=layers, width=width, height=width * (top - bottom) / (right - left), **heading)
