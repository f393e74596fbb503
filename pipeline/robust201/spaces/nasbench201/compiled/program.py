"""Simplification of a cell to live nodes and merged terms. Does not import torch.

A cell string lists the operation of each edge; a program lists the kernels to run. Edges that do not reach the output
are removed, skip connections are replaced by the terms of their source if that saves work, and all convolutions from
one node to another are merged, because a sum of convolutions of the same input is one convolution. A program has no
weights; it names the edges whose weights are to be summed.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from robust201.spaces.nasbench201.cells import EDGES, N_NODES, constant_nodes, parse

OUTPUT_NODE = N_NODES - 1

# Relative costs of one pass at the first stage, measured on one AVX-512 core (docs/internals/engine.md). They are only
# used to rank programs of the same cell.
_COSTS = {"nor_conv_3x3": 20.0, "nor_conv_1x1": 3.0, "pool": 3.5, "add": 1.0, "relu": 1.0}


@dataclass(frozen=True)
class Term:
    """The contribution of one source to a node.

    Attributes:
        source: the source node.
        skips: multiplicity of its value.
        pools: multiplicity of its 3x3 average pooling.
        convolutions: edges whose convolutions of its ReLU are added: positions in `EDGES`, ascending, repeated if an
            edge counts more than once.
    """

    source: int
    skips: int = 0
    pools: int = 0
    convolutions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Node:
    """A node as the sum of its terms.

    Attributes:
        index: the node's number in the cell, 1 to 3.
        terms: one per source, ascending by source.
        constants: edges with a constant map, which depends on the weights but not on the image.
    """

    index: int
    terms: tuple[Term, ...]
    constants: tuple[int, ...] = ()


@dataclass(frozen=True)
class CellProgram:
    """A cell after pruning and merging.

    Attributes:
        spec: the cell string.
        nodes: the nodes to compute, in order, without node 0, the input.
        output: node of the cell's output: 0 if the cell returns its input, None if the output is independent of it.
    """

    spec: str
    nodes: tuple[Node, ...]
    output: int | None

    def reads_raw(self, node: int) -> bool:
        """Return whether a skip connection or a pooling inside the cell reads this node's raw value."""
        return any(term.source == node and (term.skips or term.pools) for _, term in self._terms())

    def reads_rectified(self, node: int) -> bool:
        """Return whether a convolution inside the cell reads this node's ReLU."""
        return any(term.source == node and term.convolutions for _, term in self._terms())

    def _terms(self) -> Iterator[tuple[Node, Term]]:
        return ((node, term) for node in self.nodes for term in node.terms)

    def cost(self) -> float:
        """Return the estimated time of one pass in arbitrary units, to rank programs of the same cell."""
        operations = parse(self.spec)
        total = 0.0
        for node, term in self._terms():
            total += _COSTS["pool"] * bool(term.pools) + _COSTS["add"] * bool(term.skips)
            total += max((_COSTS[operations[edge]] for edge in term.convolutions), default=0.0)
            total += _COSTS["add"] * (len(node.terms) > 1)
        both = [
            node
            for node in range(N_NODES)
            if self.reads_rectified(node) and (self.reads_raw(node) or node == self.output)
        ]
        return total + _COSTS["relu"] * len(both)


@cache
def plan_cell(spec: str) -> CellProgram:
    """Return the cheapest program of a cell; of equal costs, the one with the fewest replaced skip connections.

    Each skip connection from an inner node can remain an addition or be replaced by the terms of that node. Replacing
    it lets convolutions merge, and may make the inner node unnecessary, but may also repeat work. There are at most
    three such edges, so all combinations are tried.

    Raises:
        ArchitectureError: the string is not a cell.
    """
    operations = parse(spec)
    if OUTPUT_NODE in constant_nodes(spec):
        return CellProgram(spec, (), None)
    inner = [edge for edge, (source, _) in enumerate(EDGES) if operations[edge] == "skip_connect" and source]
    choices = [frozenset(inlined) for size in range(len(inner) + 1) for inlined in itertools.combinations(inner, size)]
    return min((_write(spec, inlined) for inlined in choices), key=CellProgram.cost)


class _Sum:
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

    def frozen(self, index: int) -> Node:
        terms = tuple(self.terms[source] for source in sorted(self.terms))
        return Node(index, terms, tuple(sorted(self.constants)))


def _write(spec: str, inlined: frozenset[int]) -> CellProgram:
    """Return a cell's program with some of its skip connections replaced by the terms of their sources."""
    operations = parse(spec)
    constant = constant_nodes(spec)
    zero = _zero_nodes(operations, constant)
    nodes: dict[int, Node] = {}
    names = {0: 0}  # a node that equals an earlier one is replaced by it
    for target in range(1, N_NODES):
        if target in constant:
            continue
        total = _Sum()
        for edge, (source, edge_target) in enumerate(EDGES):
            operation = operations[edge]
            if edge_target != target or operation == "none":
                continue
            if source in constant:
                if operation.startswith("nor_conv") or source not in zero:
                    total.constants.append(edge)
                continue
            name = names[source]
            if edge in inlined and name in nodes:
                for term in nodes[name].terms:
                    total.add(term)
                total.constants.extend(nodes[name].constants)
            else:
                total.add(_term(operation, name, edge))
        names[target] = _name(total.frozen(target), nodes)
    return CellProgram(spec, _prune(nodes, names[OUTPUT_NODE]), names[OUTPUT_NODE])


def _term(operation: str, source: int, edge: int) -> Term:
    if operation == "skip_connect":
        return Term(source, skips=1)
    if operation == "avg_pool_3x3":
        return Term(source, pools=1)
    return Term(source, convolutions=(edge,))


def _name(node: Node, nodes: dict[int, Node]) -> int:
    """Return an existing node with the same value, or add the node."""
    if not node.constants and len(node.terms) == 1 and node.terms[0] == Term(node.terms[0].source, skips=1):
        return node.terms[0].source
    for other in nodes.values():
        if (other.terms, other.constants) == (node.terms, node.constants):
            return other.index
    nodes[node.index] = node
    return node.index


def _zero_nodes(operations: tuple[str, ...], constant: frozenset[int]) -> frozenset[int]:
    """Return the constant nodes that are zero; a convolution's batch normalisation maps zeros to its shift."""
    zero: set[int] = set()
    for node in sorted(constant):
        incoming = [(operations[edge], source) for edge, (source, target) in enumerate(EDGES) if target == node]
        if all(name == "none" or (not name.startswith("nor_conv") and source in zero) for name, source in incoming):
            zero.add(node)
    return frozenset(zero)


def _prune(nodes: dict[int, Node], output: int) -> tuple[Node, ...]:
    """Return the nodes that the output depends on, in order."""
    live = {output}
    for index in sorted(nodes, reverse=True):
        if index in live:
            live.update(term.source for term in nodes[index].terms)
    return tuple(nodes[index] for index in sorted(nodes) if index in live)
