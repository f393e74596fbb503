"""Drawing the cell of a NAS-Bench-201 architecture: four nodes, six edges, one operation an edge."""

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch

NODES = {0: (0.0, 0.0), 1: (1.0, 0.85), 2: (1.55, -0.3), 3: (3.0, 0.0)}
NODE_NAMES = {0: "in", 1: "1", 2: "2", 3: "out"}
NODE_RADIUS = 0.21


class OperationStyle(NamedTuple):
    """How an operation looks.

    Attributes:
        label: short name.
        colour: of the edge.
        dashes: line style of matplotlib.
    """

    label: str
    colour: str
    dashes: str


OPERATIONS = {
    "nor_conv_3x3": OperationStyle("conv 3×3", "#0b5fa5", "-"),
    "nor_conv_1x1": OperationStyle("conv 1×1", "#1b9aaa", "-"),
    "avg_pool_3x3": OperationStyle("avg pool 3×3", "#c2571a", "-"),
    "skip_connect": OperationStyle("skip", "#4d4d4d", "-"),
    "none": OperationStyle("none", "#9a9a9a", ":"),
}
"""The five operations of NAS-Bench-201 (Dong and Yang, ICLR 2020)."""

_BENDS = {(0, 1): -0.15, (0, 2): 0.0, (0, 3): 0.5, (1, 2): 0.0, (1, 3): -0.15, (2, 3): 0.0}


def draw_cell(axes: Axes, spec: str, title: str = "") -> Axes:
    """Draw a cell.

    Args:
        axes: where to draw; its limits, ticks and frame are set.
        spec: cell string of NAS-Bench-201, such as ``|nor_conv_3x3~0|+|…|+|…|``.
        title: text above the cell.

    Returns:
        The axes.
    """
    for target, group in enumerate(spec.split("+"), start=1):
        for edge in group.strip("|").split("|"):
            operation, source = edge.split("~")
            _draw_edge(axes, int(source), target, OPERATIONS[operation])
    for node, centre in NODES.items():
        axes.add_patch(Circle(centre, NODE_RADIUS, facecolor="white", edgecolor="black", linewidth=1.5, zorder=3))
        axes.text(*centre, NODE_NAMES[node], ha="center", va="center", color="black", fontsize=10, zorder=4)
    axes.set(xlim=(-0.4, 3.4), ylim=(-1.1, 1.3), xticks=[], yticks=[], aspect="equal", title=title)
    axes.set_frame_on(False)
    return axes


def _draw_edge(axes: Axes, source: int, target: int, style: OperationStyle) -> None:
    (x0, y0), (x1, y1) = NODES[source], NODES[target]
    bend = _BENDS[source, target]
    axes.add_patch(
        FancyArrowPatch(
            (x0, y0),
            (x1, y1),
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=13,
            linewidth=1.6,
            linestyle=style.dashes,
            color=style.colour,
            shrinkA=0,
            # A node's circle is given in data units and an arrow's gap in points: patchA and patchB clip exactly.
            patchA=Circle((x0, y0), NODE_RADIUS, transform=axes.transData),
            patchB=Circle((x1, y1), NODE_RADIUS, transform=axes.transData),
            shrinkB=0,
            zorder=1,
        )
    )
    # The middle of the quadratic curve that arc3 draws: its control point lies `bend` times the chord to the side.
    x = (x0 + x1) / 2 + bend * (y1 - y0) / 2
    y = (y0 + y1) / 2 - bend * (x1 - x0) / 2
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    axes.text(x, y, style.label, ha="center", va="center", fontsize=9, color=style.colour, zorder=2, bbox=box)
