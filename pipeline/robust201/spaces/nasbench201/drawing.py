"""Drawing the cell of a NAS-Bench-201 architecture: four nodes, six edges, one operation an edge."""

from typing import TYPE_CHECKING

from robust201.spaces.cell_space import INK, PAPER
from robust201.spaces.nasbench201.cells import EDGES, OPERATIONS, parse
from robust201.spaces.nasbench201.neighbourhood import NODE_NAMES

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
"""The five operations of NAS-Bench-201 (Dong and Yang, ICLR 2020)."""

NODES = {0: (0.0, 0.0), 1: (1.0, 0.85), 2: (1.45, -0.3), 3: (3.2, 0.0)}
NODE_RADIUS = 0.21
FONT_SIZE = 9.0
"""Points; lines and arrows are in proportion to it."""

_BENDS = {(0, 1): -0.15, (0, 2): 0.0, (0, 3): 0.5, (1, 2): 0.0, (1, 3): -0.15, (2, 3): 0.0}


def draw_cell(axes: "Axes", spec: str, title: str = "", *, font_size: float = FONT_SIZE) -> "Axes":
    """Draw a cell with a title above it; the axes' limits, ticks and frame are set, font sizes are in points."""
    for edge, operation in enumerate(parse(spec)):
        _draw_edge(axes, edge, operation, font_size)
    _draw_nodes(axes, font_size + 1)
    axes.set_title(title, color=INK, fontsize=font_size + 2, parse_math=False)
    return axes


def draw_every_edge(axes: "Axes", *, font_size: float = FONT_SIZE) -> "Axes":
    """Draw all operations on every edge on top of one another, each with the gid ``edge-<edge>-<operation>``.

    A page that hides all but six of them shows a cell.
    """
    for edge in range(len(EDGES)):
        for operation in OPERATIONS:
            _draw_edge(axes, edge, operation, font_size)
    _draw_nodes(axes, font_size + 1)
    return axes


def _draw_nodes(axes: "Axes", font_size: float) -> None:
    from matplotlib.patches import Circle

    for node, centre in NODES.items():
        axes.add_patch(
            Circle(
                centre,
                NODE_RADIUS,
                facecolor=PAPER,
                edgecolor=INK,
                linewidth=1.5 * font_size / (FONT_SIZE + 1),
                zorder=3,
                clip_on=False,
            )
        )
        axes.text(*centre, NODE_NAMES[node], ha="center", va="center", color=INK, fontsize=font_size, zorder=4)
    axes.set(xlim=(-0.4, 3.6), ylim=(-1.1, 1.3), xticks=[], yticks=[], aspect="equal")
    axes.set_frame_on(False)


def _draw_edge(axes: "Axes", edge: int, operation: str, font_size: float) -> None:
    from matplotlib.patches import Circle, FancyArrowPatch

    source, target = EDGES[edge]
    (x0, y0), (x1, y1) = NODES[source], NODES[target]
    bend = _BENDS[source, target]
    colour = OPERATION_COLOURS[operation]
    scale = font_size / FONT_SIZE
    arrow = FancyArrowPatch(
        (x0, y0),
        (x1, y1),
        connectionstyle=f"arc3,rad={bend}",
        arrowstyle="-|>",
        mutation_scale=13 * scale,
        linewidth=1.6 * scale,
        linestyle=":" if operation == "none" else "-",
        color=colour,
        shrinkA=0,
        # A node's circle is given in data units and an arrow's gap in points: patchA and patchB clip exactly.
        patchA=Circle((x0, y0), NODE_RADIUS, transform=axes.transData),
        patchB=Circle((x1, y1), NODE_RADIUS, transform=axes.transData),
        shrinkB=0,
        zorder=1,
        clip_on=False,
    )
    arrow.set_gid(f"edge-{edge}-{operation}")
    axes.add_patch(arrow)
    # The middle of the quadratic curve that arc3 draws: its control point lies `bend` times the chord to the side.
    x = (x0 + x1) / 2 + bend * (y1 - y0) / 2
    y = (y0 + y1) / 2 - bend * (x1 - x0) / 2
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
    label = axes.text(
        x,
        y,
        OPERATION_LABELS[operation],
        ha="center",
        va="center",
        fontsize=font_size,
        color=colour,
        zorder=2,
        bbox=box,
    )
    label.set_gid(f"edge-{edge}-{operation}")
