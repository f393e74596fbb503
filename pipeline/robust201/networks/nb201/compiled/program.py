"""Simplify a cell: remove nodes on which its output does not depend, and merge terms.

A cell string lists the operation of each edge; a program lists the kernels to run. A node is a sum of terms, one per
source. Edges that do not reach the output are removed. A skip connection is replaced by the terms of its source if that
saves work. All convolutions from one node to another are merged, because a sum of convolutions of the same input is one
convolution. A program contains no weights; it names the edges whose weights are summed. This module does not import
torch.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from robust201.networks.nb201.cells import EDGES, N_NODES, constant_nodes, parse

OUTPUT_NODE = N_NODES - 1

# Relative costs in the first stage, measured on one AVX-512 core (docs/internals/engine.md). They are only used to
# rank programs of the same cell.
_COSTS = {"nor_conv_3x3": 20.0, "nor_conv_1x1": 3.0, "pool": 3.5, "add": 1.0, "relu": 1.0}


@dataclass(frozen=True)
class Term:
    """The contribution of one source to a node.

    Attributes:
        source: the source node.
        skips: number of times that the source itself is added.
        pools: number of times that the source's 3x3 average pooling is added.
        convolutions: ascending indices in `EDGES` of the edges whose convolution is applied to the source's ReLU and
            added. An edge may occur more than once.
    """

    source: int
    skips: int = 0
    pools: int = 0
    convolutions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Node:
    """A node, which is the sum of its terms and of its constant edges.

    Attributes:
        index: the node's number in the cell, 1 to 3.
        terms: one term per source, ascending by source.
        constants: indices of the edges whose output depends on the weights but not on the image.
    """

    index: int
    terms: tuple[Term, ...]
    constants: tuple[int, ...] = ()


@dataclass(frozen=True)
class CellProgram:
    """A cell after pruning and merging.

    Attributes:
        spec: the cell string.
        nodes: the nodes to compute, in order; node 0, the input, is not included.
        output_node: node of the cell's output: 0 if the cell returns its input, None if the output does not depend on
            the input.
    """

    spec: str
    nodes: tuple[Node, ...]
    output_node: int | None

    def reads_raw(self, node: int) -> bool:
        """Return whether a skip connection or pooling inside the cell reads this node before its ReLU."""
        return any(term.source == node and (term.skips or term.pools) for _, term in self._terms())

    def reads_rectified(self, node: int) -> bool:
        """Return whether a convolution inside the cell reads this node's ReLU."""
        return any(term.source == node and term.convolutions for _, term in self._terms())

    def _terms(self) -> Iterator[tuple[Node, Term]]:
        return ((node, term) for node in self.nodes for term in node.terms)

    def cost(self) -> float:
        """Return the estimated time of a forward pass in arbitrary units, to rank programs of the same cell."""
        operations = parse(self.spec)
        total = 0.0
        for node, term in self._terms():
            total += _COSTS["pool"] * bool(term.pools) + _COSTS["add"] * bool(term.skips)
            total += max((_COSTS[operations[edge]] for edge in term.convolutions), default=0.0)
            total += _COSTS["add"] * (len(node.terms) > 1)
        nodes_in_both_forms = [
            node
            for node in range(N_NODES)
            if self.reads_rectified(node) and (self.reads_raw(node) or node == self.output_node)
        ]
        return total + _COSTS["relu"] * len(nodes_in_both_forms)


@cache
def plan_cell(spec: str) -> CellProgram:
    """Return the cell's program with the lowest estimated cost; of equal costs, the one with the fewest inlined skips.

    Each skip connection from an inner node can remain an addition, or be inlined: replaced by the terms of that node.
    Inlining allows convolutions to be merged, and may make the inner node unnecessary, but may also repeat work. At
    most three edges start at an inner node, so all combinations are tried.

    Raises:
        ArchitectureError: the string is not a cell.
    """
    operations = parse(spec)
    if OUTPUT_NODE in constant_nodes(spec):
        return CellProgram(spec, (), None)
    inner_skips = [edge for edge, (source, _) in enumerate(EDGES) if operations[edge] == "skip_connect" and source]
    inlined_subsets = [
        frozenset(inlined_skips)
        for size in range(len(inner_skips) + 1)
        for inlined_skips in itertools.combinations(inner_skips, size)
    ]
    return min((_build_program(spec, inlined_skips) for inlined_skips in inlined_subsets), key=CellProgram.cost)


class _NodeSum:
    """Collects the terms of a node. Terms with the same source are merged."""

    def __init__(self) -> None:
        self.terms: dict[int, Term] = {}
        self.constants: list[int] = []

    def add(self, term: Term) -> None:
        previous = self.terms.get(term.source, Term(term.source))
        self.terms[term.source] = Term(
            term.source,
            previous.skips + term.skips,
            previous.pools + term.pools,
            tuple(sorted(previous.convolutions + term.convolutions)),
        )

    def to_node(self, index: int) -> Node:
        terms = tuple(self.terms[source] for source in sorted(self.terms))
        return Node(index, terms, tuple(sorted(self.constants)))


def _build_program(spec: str, inlined_skips: frozenset[int]) -> CellProgram:
    """Return a cell's program, with each skip connection in `inlined_skips` replaced by the terms of its source."""
    operations = parse(spec)
    constant_indices = constant_nodes(spec)
    zero_indices = _zero_nodes(operations, constant_indices)
    nodes: dict[int, Node] = {}
    node_of = {0: 0}  # for each of the cell's nodes, the program's node with the same value
    for target in range(1, N_NODES):
        if target in constant_indices:
            continue
        total = _NodeSum()
        for edge, (source, edge_target) in enumerate(EDGES):
            operation = operations[edge]
            if edge_target != target or operation == "none":
                continue
            if source in constant_indices:
                if operation.startswith("nor_conv") or source not in zero_indices:
                    total.constants.append(edge)
                continue
            program_source = node_of[source]
            if edge in inlined_skips and program_source in nodes:
                for term in nodes[program_source].terms:
                    total.add(term)
                total.constants.extend(nodes[program_source].constants)
            else:
                total.add(_make_term(operation, program_source, edge))
        node_of[target] = _find_or_add_node(total.to_node(target), nodes)
    return CellProgram(spec, _prune(nodes, node_of[OUTPUT_NODE]), node_of[OUTPUT_NODE])


def _make_term(operation: str, source: int, edge: int) -> Term:
    if operation == "skip_connect":
        return Term(source, skips=1)
    if operation == "avg_pool_3x3":
        return Term(source, pools=1)
    return Term(source, convolutions=(edge,))


def _find_or_add_node(node: Node, nodes: dict[int, Node]) -> int:
    """Return the index of an existing node with the same value; if there is none, add the node."""
    if not node.constants and len(node.terms) == 1 and node.terms[0] == Term(node.terms[0].source, skips=1):
        return node.terms[0].source
    for existing in nodes.values():
        if (existing.terms, existing.constants) == (node.terms, node.constants):
            return existing.index
    nodes[node.index] = node
    return node.index


def _zero_nodes(operations: tuple[str, ...], constant_indices: frozenset[int]) -> frozenset[int]:
    """Return the constant nodes that are zero. A convolution of zeros is not zero, because BatchNorm shifts it."""
    zero: set[int] = set()
    for node in sorted(constant_indices):
        incoming = [(operations[edge], source) for edge, (source, target) in enumerate(EDGES) if target == node]
        if all(name == "none" or (not name.startswith("nor_conv") and source in zero) for name, source in incoming):
            zero.add(node)
    return frozenset(zero)


def _prune(nodes: dict[int, Node], output: int) -> tuple[Node, ...]:
    """Return the nodes on which the output depends, in order."""
    live = {output}
    for index in sorted(nodes, reverse=True):
        if index in live:
            live.update(term.source for term in nodes[index].terms)
    return tuple(nodes[index] for index in sorted(nodes) if index in live)
