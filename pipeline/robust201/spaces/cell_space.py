"""Base class of spaces of cells: isomorphism classes, sizes, neighbours and drawings.

A cell is a small graph whose edges are operations; a network repeats the cell. Isomorphic cells compute the same
function, so only one cell of each isomorphism class is evaluated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from robust201.spaces.base import Space

if TYPE_CHECKING:
    import altair as alt

INK = "#22272e"
"""Colour of text and lines in drawings and figures; report pages replace it with their text colour."""

PAPER = "#ffffff"
"""Background colour of labels and nodes; report pages replace it with their background colour."""


class Neighbour(NamedTuple):
    """A cell that differs from another cell on one edge.

    Attributes:
        edge: index of the edge in `CellSpace.edges`.
        operation: the neighbour's operation on this edge.
        spec: the neighbour's cell string.
    """

    edge: int
    operation: str
    spec: str


Point = tuple[float, float]


class EdgeParts(NamedTuple):
    """Drawing of an operation on an edge: a curve with an arrow head, and a label.

    Attributes:
        edge: index in `CellSpace.edges`.
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


class CellSpace(Space):
    """A space of cells, identified by indices 0, 1, 2 and so on.

    Attributes:
        title: name of the space in reports.
        about: sentence in reports that describes the space's networks.
        operations: possible operations of an edge.
        operation_labels: label of each operation in figures and tables.
        operation_colours: colour of each operation in figures.
        edges: (source, target) nodes, in the order of a cell's operations.
        edge_labels: label of each edge in figures and tables.
        isomorphs: returns, by cell index, the index of the evaluated architecture of the same isomorphism class.
        specs: returns all cell strings, by cell index.
        meta: returns the content of ``meta.json``, given the epsilons of each key.
        parse: converts a cell string to its operations, one per edge; raises ArchitectureError if it is invalid.
        kernel_parameters: returns the number of kernel parameters of a cell's convolutions, given the cell string.
        max_kernel_parameters: the largest number of kernel parameters of a cell.
        reference_kernel_parameters: number of kernel parameters for figures that compare cells of equal size.
        edit_distance: returns the number of edges on which two cell strings differ.
        neighbours: returns the cells that differ from a cell string on one edge.
        draw_cell: draws a cell, given its string, a title and the width in points.
        all_edge_parts: returns the parts of a drawing of all operations on every edge.
    """

    title: str
    about: str
    operations: tuple[str, ...]
    operation_labels: Mapping[str, str]
    operation_colours: Mapping[str, str]
    edges: tuple[tuple[int, int], ...]
    edge_labels: tuple[str, ...]
    specs: Callable[[], Sequence[str]]
    isomorphs: Callable[[], Sequence[int]]
    meta: Callable[[Mapping[str, Sequence[float]]], dict[str, Any]]
    parse: Callable[[str], tuple[str, ...]]
    kernel_parameters: Callable[[str], int]
    max_kernel_parameters: int
    reference_kernel_parameters: int
    edit_distance: Callable[[str, str], int]
    neighbours: Callable[[str], list[Neighbour]]
    draw_cell: "Callable[..., alt.LayerChart]"
    all_edge_parts: Callable[[], CellParts]
