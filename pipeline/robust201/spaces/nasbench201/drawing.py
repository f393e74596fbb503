"""Drawing of NAS-Bench-201 cells: four nodes, and six edges with one operation each."""

import math
from typing import TYPE_CHECKING, Any

from robust201.spaces.cell_space import INK, PAPER, CellParts, EdgeParts, Point
from robust201.spaces.nasbench201.cells import EDGES, NODE_NAMES, OPERATIONS, parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
FONT_SIZE = 9.0
"""Font size in points."""

_BENDS = {(0, 1): -0.15, (0, 2): 0.0, (0, 3): 0.5, (1, 2): 0.0, (1, 3): -0.15, (2, 3): 0.0}
"""Distance of each edge's control point from the midpoint between its nodes, as a fraction of the distance between the
nodes; positive to the right of the edge."""

_CURVE_SEGMENTS = 40


def cell_parts(spec: str) -> CellParts:
    """Return the parts of a cell's drawing."""
    return CellParts(
        [edge_parts(edge, operation) for edge, operation in enumerate(parse(spec))],
        {NODE_NAMES[node]: centre for node, centre in NODES.items()},
        NODE_RADIUS,
        BOUNDS,
    )


def all_edge_parts() -> CellParts:
    """Return the parts for all operations on every edge. A page draws a cell by hiding all but six of them."""
    edges = [edge_parts(edge, operation) for edge in range(len(EDGES)) for operation in OPERATIONS]
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


def draw_cell(axes: "Axes", spec: str, title: str = "") -> "Axes":
    """Draw a cell with a title above it. This also sets the axes' limits, ticks and frame."""
    from matplotlib.patches import Circle, FancyArrowPatch

    parts = cell_parts(spec)
    for edge in parts.edges:
        line_style = ":" if edge.operation == "none" else "-"
        axes.plot(*zip(*edge.curve, strict=True), color=edge.colour, linewidth=1.6, linestyle=line_style, zorder=1)
        arrow_head = FancyArrowPatch(
            edge.curve[-3],
            edge.curve[-1],
            arrowstyle="-|>",
            color=edge.colour,
            mutation_scale=13,
            shrinkA=0,
            shrinkB=0,
        )
        axes.add_patch(arrow_head)
        label_box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
        label_style: Any = {"fontsize": FONT_SIZE, "color": edge.colour, "zorder": 2, "bbox": label_box}
        axes.text(*edge.label_centre, edge.text, ha="center", va="center", **label_style)
    for name, centre in parts.nodes.items():
        circle_style: Any = {"facecolor": PAPER, "edgecolor": INK, "linewidth": 1.5, "zorder": 3, "clip_on": False}
        axes.add_patch(Circle(centre, parts.radius, **circle_style))
        axes.text(*centre, name, ha="center", va="center", fontsize=FONT_SIZE + 1, color=INK, zorder=4)
    left, right, bottom, top = parts.bounds
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], aspect="equal")
    axes.set_frame_on(False)
    axes.set_title(title, color=INK, fontsize=FONT_SIZE + 2, parse_math=False)
    return axes
