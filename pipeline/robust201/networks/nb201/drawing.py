"""Drawing of NAS-Bench-201 cells: four nodes, and six edges with one operation each."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from robust201.core.colours import INK, PAPER
from robust201.networks.nb201.cells import EDGES, NODE_NAMES, OPERATIONS, parse

if TYPE_CHECKING:
    import altair as alt
    import numpy as np
    from numpy.typing import NDArray

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


def edge_curve(edge: int) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """Return the points (n, 2) of an edge's curve, and the centre (2,) of its label.

    The curve is quadratic, and leads from the circle of the source node to the circle of the target node.
    """
    import numpy as np

    source, target = EDGES[edge]
    start, end = np.array(NODES[source]), np.array(NODES[target])
    to_the_right = np.array([end[1] - start[1], start[0] - end[0]])
    control = (start + end) / 2 + _BENDS[source, target] * to_the_right
    t = np.arange(_CURVE_SEGMENTS + 1)[:, None] / _CURVE_SEGMENTS
    curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end
    is_outside = [np.linalg.norm(curve - centre, axis=1) >= NODE_RADIUS for centre in (start, end)]
    return curve[np.all(is_outside, axis=0)], curve[_CURVE_SEGMENTS // 2]


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
        (edge, operation, *edge_curve(edge))
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
        (edge, operation, *start, *end)
        for edge, operation, curve, _ in edges
        for step, (start, end) in enumerate(itertools.pairwise(curve.tolist()))
        if operation != "none" or step % 2
    ]
    lines = chart(segments, "x", "y", "to_x", "to_y")
    # Angles of the arrow heads are in degrees, clockwise from the top.
    arrows = chart(
        [
            (edge, operation, *curve[-1], 90 - math.degrees(math.atan2(*(curve[-1] - curve[-2])[::-1])))
            for edge, operation, curve, _ in edges
        ],
        "x",
        "y",
        "angle",
    )
    texts = [(edge, operation, *label, OPERATION_LABELS[operation]) for edge, operation, _, label in edges]
    labels = chart(texts, "x", "y", "text")
    node_rows = [(*NODES[node], name) for node, name in enumerate(NODE_NAMES)]
    nodes = alt.Chart(pd.DataFrame(node_rows, columns=["x", "y", "text"])).encode(**position)
    diameter = 2 * NODE_RADIUS * width / (right - left)
    layers = [
        lines.mark_rule(strokeWidth=1, strokeCap="round").encode(x2=alt.X2("to_x"), y2=alt.Y2("to_y"), color=colour),
        arrows.mark_point(shape="M0,0L-0.4,1.1L0.4,1.1Z", size=30, filled=True).encode(
            color=colour, angle=alt.Angle("angle:Q", scale=None, legend=None)
        ),
        labels.mark_text(fontSize=font_size, stroke=PAPER, strokeWidth=4, color=PAPER).encode(text=alt.Text("text:N")),
        labels.mark_text(fontSize=font_size).encode(text=alt.Text("text:N"), color=colour),
        nodes.mark_point(fill=PAPER, stroke=INK, strokeWidth=0.8, size=math.pi / 4 * diameter**2),
        nodes.mark_text(fontSize=1.2 * font_size, color=INK).encode(text=alt.Text("text:N")),
    ]
    heading: dict[str, Any] = {"title": title} if title else {}
    return alt.LayerChart(layer=layers, width=width, height=width * (top - bottom) / (right - left), **heading)
