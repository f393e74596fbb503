"""Cells of NAS-Bench-201 as the figures compare them: how large they are, how far apart, and what lies beside them."""

import functools

from robust201.spaces.cell_space import Neighbour
from robust201.spaces.nasbench201.cells import EDGES, N_ARCHITECTURES, N_NODES, OPERATIONS, format_spec, parse

NODE_NAMES = ("in", "1", "2", "out")
"""What figures call the nodes of a cell."""

EDGE_LABELS = tuple(f"{NODE_NAMES[source]}→{NODE_NAMES[target]}" for source, target in EDGES)
"""What figures call the edges of a cell, such as ``in→1``, in the order of `spaces.nasbench201.cells.EDGES`."""

_KERNEL_AREAS = {"nor_conv_1x1": 1, "nor_conv_3x3": 9}


@functools.lru_cache(maxsize=N_ARCHITECTURES)  # figures ask for those of all cells a dozen times
def kernel_parameters(spec: str) -> int:
    """Count the kernel parameters of a cell's convolutions, 9 for a 3x3 and 1 for a 1x1, one channel each: 0 to 54.

    Only edges from which the output can be reached count. Then 408 of the 6,466 cells have 18, the number that Jung,
    Lukasik and Keuper (ICLR 2023, section 5.3) give; with dead edges it would be 405.
    """
    reaching = {N_NODES - 1}
    total = 0
    for operation, (source, target) in sorted(zip(parse(spec), EDGES, strict=True), key=lambda edge: -edge[1][1]):
        if target in reaching and operation != "none":
            reaching.add(source)
            total += _KERNEL_AREAS.get(operation, 0)
    return total


def edit_distance(one: str, other: str) -> int:
    """Count the edges on which two cells carry different operations: 0 to 6."""
    return sum(left != right for left, right in zip(parse(one), parse(other), strict=True))


def neighbours(spec: str) -> list[Neighbour]:
    """List the 24 cells at edit distance 1, by edge and then in the order of `OPERATIONS`.

    Some may be isomorphic to one another or to the cell.
    """
    own = parse(spec)
    return [
        Neighbour(edge, operation, format_spec([*own[:edge], operation, *own[edge + 1 :]]))
        for edge in range(len(EDGES))
        for operation in OPERATIONS
        if operation != own[edge]
    ]
