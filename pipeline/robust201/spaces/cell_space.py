"""Spaces whose architectures are cells: what readers of results ask of them, such as classes, sizes and drawings."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from robust201.spaces.base import Space

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#22272e"
"""Text and lines of drawings and figures; the report's page replaces it by the colour of its text."""

PAPER = "#ffffff"
"""What lies behind labels and in nodes; the page replaces it by its own background."""


class Neighbour(NamedTuple):
    """A cell that differs from another on one edge, given by its position in `CellSpace.edges`."""

    edge: int
    operation: str
    spec: str


Point = tuple[float, float]


class EdgeParts(NamedTuple):
    """An operation on an edge, as it is drawn: its curve ends in an arrow of some angle, in degrees.

    Attributes:
        edge: its position in `CellSpace.edges`.
        operation: its name.
        text: its name for people.
        colour: of all.
        curve: points from node to node.
        angle: of the arrow at the end, anticlockwise from the right.
        label: the middle of the text.
    """

    edge: int
    operation: str
    text: str
    colour: str
    curve: list[Point]
    angle: float
    label: Point


class CellParts(NamedTuple):
    """What a drawing of a cell consists of, y upwards.

    Attributes:
        edges: below the nodes.
        nodes: centres by name.
        radius: of a node.
        bounds: left, right, bottom, top of the drawing.
    """

    edges: list[EdgeParts]
    nodes: dict[str, Point]
    radius: float
    bounds: tuple[float, float, float, float]


class CellSpace(Space):
    """A space of cells with ids 0, 1, … without a gap.

    Attributes:
        operations: what an edge may carry.
        edges: (source, target) nodes, in the order of the operations of a cell.
        isomorphs: the index of the evaluated architecture of each one's isomorphism class.
        meta: the content of ``meta.json``, given epsilons by key.
        parse: a cell string to its operations, one per edge; an `ArchitectureError` says what is wrong with it.
        format_spec: operations, one per edge, to a cell string, likewise.
        kernel_parameters: size of a cell, by its string.
        max_kernel_parameters: the largest there is.
        reference_kernel_parameters: the size at which figures compare cells.
        edit_distance: on how many edges two cells differ, by their strings.
        neighbours: cells that differ on one edge.
        read_json_table: a table that others published of the space, from parsed JSON: numbers by dataset, index and
            column; None where it is none.
        read_pickle_table: the same from the path of a pickle, a `ResultsError` where it is none.
        draw_cell: draws a cell, (axes, string, title).
        cell_parts: what a drawing of a cell consists of, by its string.
        every_edge: the same with all operations on every edge.
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
    format_spec: Callable[[Sequence[str]], str]
    kernel_parameters: Callable[[str], int]
    max_kernel_parameters: int
    reference_kernel_parameters: int
    edit_distance: Callable[[str, str], int]
    neighbours: Callable[[str], list[Neighbour]]
    read_json_table: Callable[[Any], dict[str, dict[int, dict[str, float]]] | None]
    read_pickle_table: Callable[[Path], dict[str, dict[int, dict[str, float]]]]
    draw_cell: "Callable[..., Axes]"
    cell_parts: Callable[[str], CellParts]
    every_edge: Callable[[], CellParts]
