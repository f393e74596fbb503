"""NAS-Bench-201: the 15,625 cells in the published order, with their strings, isomorphism classes and costs.

This module does not import torch.

A cell is a graph of four nodes and six edges. Each edge has one of five operations, and a node is the sum of the
outputs of its incoming edges. Node 0 is the cell's input, and node 3 is its output (Dong and Yang, "NAS-Bench-201:
Extending the Scope of Reproducible Neural Architecture Search", ICLR 2020).
"""

import functools
import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from robust201.core.errors import ArchitectureError, did_you_mean

SPACE: Final = "nasbench201"

N_ARCHITECTURES = 15_625

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
"""The five operations, in the order of the published enumeration."""

EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
"""The six edges as (source, target) nodes, in the order of the cell string and of the network's `layers`."""

N_NODES = 4

_SHUFFLE_SEED = 88
_ZERO = "#"
"""A zero term in canonical forms."""

KERNEL_SIZES = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}
_SHAPE = re.compile(re.escape("|?~0|+|?~0|?~1|+|?~0|?~1|?~2|").replace(r"\?", "([^|+~]+)"))


@cache
def specs() -> tuple[str, ...]:
    """Return the 15,625 cell strings by index.

    The published order is the product of the operations over the edges, shuffled by Python's `random` with seed 88
    (`meta_archs` of NAS-Bench-201 and NATS-Bench tss; a test checks the hash of the strings).
    """
    enumeration = [format_spec(operations) for operations in itertools.product(OPERATIONS, repeat=len(EDGES))]
    return tuple(enumeration[position] for position in _positions())


@cache
def _positions() -> tuple[int, ...]:
    """Return, by cell index, the cell's position in the product of the operations over the edges."""
    order = list(range(N_ARCHITECTURES))
    random.Random(_SHUFFLE_SEED).shuffle(order)
    return tuple(order)


@cache
def _indices_by_spec() -> dict[str, int]:
    return {spec: index for index, spec in enumerate(specs())}


@cache
def isomorphs() -> tuple[int, ...]:
    """Return, by cell index, the lowest index in the cell's isomorphism class. There are 6,466 classes."""
    representatives: dict[str, int] = {}
    forms = _canonical_forms()
    return tuple(representatives.setdefault(forms[position], index) for index, position in enumerate(_positions()))


@cache
def evaluated_indices() -> tuple[int, ...]:
    """Return the indices of the 6,466 evaluated architectures, one per isomorphism class, ascending."""
    return tuple(index for index, isomorph in enumerate(isomorphs()) if index == isomorph)


def _canonical_forms() -> list[str]:
    """Return one text per cell, in enumeration order. Cells of the same isomorphism class have equal texts.

    The classes equal those of the published benchmark (`to_unique_str(True)` in NAS-Bench-201), which has two
    peculiarities: sums keep zero terms, and a node's sum is not sorted again when skip connections insert the terms of
    another node. Without these peculiarities, there would be 4,930 classes instead of the dataset's 6,466.
    """
    # Each tuple has the canonical forms of the first nodes, for one assignment of operations to the edges among them.
    node_assignments: list[tuple[str, ...]] = [("0",)]
    for _ in range(1, N_NODES):
        extended_assignments = []
        for nodes in node_assignments:
            terms_by_source = [[_format_term(node, operation) for operation in OPERATIONS] for node in nodes]
            extended_assignments += [(*nodes, "+".join(sorted(terms))) for terms in itertools.product(*terms_by_source)]
        node_assignments = extended_assignments
    return [nodes[-1] for nodes in node_assignments]


def _format_term(node: str, operation: str) -> str:
    if operation == "none" or node == _ZERO:
        return _ZERO
    return node if operation == "skip_connect" else f"({node})@{operation}"


def resolve(name: int | str) -> int:
    """Return the index of a cell, 0 to 15,624, given the index, the index as text, or the cell string.

    Raises:
        ArchitectureError: there is no such architecture; the message may suggest a similar one.
    """
    stripped_name = str(name).strip()
    if not re.fullmatch(r"-?[0-9]{1,9}", stripped_name):
        return _indices_by_spec()[format_spec(parse(stripped_name))]
    index = int(stripped_name)
    if not 0 <= index < N_ARCHITECTURES:
        nearest = 0 if index < 0 else N_ARCHITECTURES - 1
        raise ArchitectureError(
            f"Looking up an architecture failed for index {index}: it must be from 0 to {N_ARCHITECTURES - 1}. "
            f"The closest index is {nearest}."
        )
    return index


def parse(spec: str) -> tuple[str, ...]:
    """Return the six operations of a cell string, in the order of `EDGES`.

    Raises:
        ArchitectureError: the string is not a cell of this space; the message may suggest a similar operation.
    """
    match = _SHAPE.fullmatch(spec)
    if match is None:
        raise ArchitectureError(
            f"Parsing a cell string failed for {spec!r}: it is neither an index nor six edges in the form "
            f"|op~0|+|op~0|op~1|+|op~0|op~1|op~2|. An example is {specs()[0]!r}, which is architecture 0."
        )
    operations = match.groups()
    for operation, (source, target) in zip(operations, EDGES, strict=True):
        if operation not in OPERATIONS:
            raise ArchitectureError(
                f"Parsing a cell string failed for {spec!r}: expected one of {', '.join(OPERATIONS)} on the edge from "
                f"node {source} to node {target}, got {operation!r}.{did_you_mean(operation, OPERATIONS)}"
            )
    return operations


def format_spec(operations: Sequence[str]) -> str:
    """Return the cell string of six operations in the order of `EDGES`.

    Raises:
        ArchitectureError: there are not six operations, or one of them is unknown.
    """
    if len(operations) != len(EDGES) or not set(operations) <= set(OPERATIONS):
        raise ArchitectureError(
            f"Formatting a cell failed for {list(operations)}: a cell needs {len(EDGES)} operations, one per edge, "
            f"each of them one of {', '.join(OPERATIONS)}."
        )
    a, b, c, d, e, f = operations
    return f"|{a}~0|+|{b}~0|{c}~1|+|{d}~0|{e}~1|{f}~2|"


def constant_nodes(spec: str) -> frozenset[int]:
    """Return the nodes that are not connected to the cell's input; edges with `none` do not connect.

    If the output is one of these nodes, the network's logits are constant and its gradients are zero. There are 341
    such architectures; 5 of them are evaluated: 10, 12, 74, 172 and 879.
    """
    connected = {0}
    for operation, (source, target) in zip(parse(spec), EDGES, strict=True):
        if operation != "none" and source in connected:
            connected.add(target)
    return frozenset(range(N_NODES)) - connected


def parameter_count(spec: str, *, channels: int, cells: int, n_classes: int) -> int:
    """Return the number of trainable parameters of a cell's network (see `networks.nb201.network`).

    The first of three stages has `channels` channels, and each later stage has twice as many as the previous one. Each
    stage has `cells` cells. Edges that do not reach the output are also counted, as in the published network.
    """
    kernel_areas = _kernel_areas(spec)
    widths = [channels, 2 * channels, 4 * channels]
    stem = 27 * channels + 2 * channels
    cell_parameters = sum(cells * (area * width + 2) * width for width in widths for area in kernel_areas)
    # A reduction has two 3x3 convolutions with BatchNorm, and a 1x1 convolution without BatchNorm.
    reductions = sum((9 * width + 2 + 9 * 2 * width + 2 + width) * 2 * width for width in widths[:-1])
    return stem + cell_parameters + reductions + 2 * widths[-1] + (widths[-1] + 1) * n_classes


def multiply_accumulates(spec: str, *, channels: int, cells: int, n_classes: int, image_size: int) -> int:
    """Return the multiply-accumulates of one image's forward pass, as the published benchmark counts FLOPs.

    Convolutions and the classifier with its bias are counted; BatchNorm, ReLU and pooling are not. `channels` and
    `cells` are as in `parameter_count`; images have `image_size` by `image_size` pixels.
    """
    kernel_areas = _kernel_areas(spec)
    widths = [channels, 2 * channels, 4 * channels]
    areas = [(image_size // stride) ** 2 for stride in (1, 2, 4)]
    stem = 27 * channels * areas[0]
    cell_macs = sum(
        cells * kernel * width**2 * area for width, area in zip(widths, areas, strict=True) for kernel in kernel_areas
    )
    reductions = sum(
        (9 * width + 9 * 2 * width + width) * 2 * width * area
        for width, area in zip(widths[:-1], areas[1:], strict=True)
    )
    return stem + cell_macs + reductions + (widths[-1] + 1) * n_classes


def _kernel_areas(spec: str) -> list[int]:
    return [KERNEL_SIZES[operation] ** 2 for operation in parse(spec) if operation in KERNEL_SIZES]


def meta_text(epsilons: Mapping[str, Sequence[float]]) -> str:
    """Return the content of `meta.json` in the format of the published dataset, without a final newline.

    `epsilons` are in units of 1/255, by key. Keys are not changed or reordered. The content is ``{"ids": {"0":
    {"nb201-string": …, "isomorph": "0"}, …}, "epsilons": {key: […]}}``. With the published epsilons and keys
    (``pgd@Linf``), the text equals the published file byte for byte.
    """
    ids = {
        str(index): {"nb201-string": spec, "isomorph": str(isomorph)}
        for index, (spec, isomorph) in enumerate(zip(specs(), isomorphs(), strict=True))
    }
    return json.dumps({"ids": ids, "epsilons": {key: list(map(float, values)) for key, values in epsilons.items()}})


NODE_NAMES = ("in", "1", "2", "out")
"""Names of the nodes in figures."""

EDGE_LABELS = tuple(f"{NODE_NAMES[source]}→{NODE_NAMES[target]}" for source, target in EDGES)
"""Names of the edges in figures, such as ``in→1``, in the order of `EDGES`."""


@functools.lru_cache(maxsize=N_ARCHITECTURES)  # figures need the numbers of all cells many times
def kernel_parameters(spec: str) -> int:
    """Return the number of kernel parameters of a cell's convolutions for one channel, 0 to 54.

    A 3x3 convolution has 9 and a 1x1 convolution has 1. Only edges that reach the output are counted, so that 408 of
    the 6,466 cells have 18 parameters, as stated by Jung, Lukasik and Keuper (ICLR 2023, section 4.3). If all edges
    were counted, 405 cells would have 18.
    """
    # Visit edges into later nodes first, because an edge counts only if its target is known to reach the output.
    connected = {N_NODES - 1}
    total = 0
    for operation, (source, target) in sorted(zip(parse(spec), EDGES, strict=True), key=lambda edge: -edge[1][1]):
        if target in connected and operation != "none":
            connected.add(source)
            total += KERNEL_SIZES.get(operation, 0) ** 2
    return total


def edit_distance(spec: str, other_spec: str) -> int:
    """Return the number of edges on which two cells have different operations: 0 to 6."""
    return sum(
        operation != other_operation for operation, other_operation in zip(parse(spec), parse(other_spec), strict=True)
    )


def neighbours(spec: str) -> list[tuple[int, str, str]]:
    """Return the 24 cells at edit distance 1, ordered by edge, and then by `OPERATIONS`.

    Some of them may be isomorphic to each other, or to the cell itself.

    Returns:
        For each neighbour, the index in `EDGES` of the edge that differs, the new operation, and the cell string.
    """
    operations = parse(spec)
    return [
        (edge, operation, format_spec([*operations[:edge], operation, *operations[edge + 1 :]]))
        for edge in range(len(EDGES))
        for operation in OPERATIONS
        if operation != operations[edge]
    ]


Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(spec: str, *, channels: int, cells: int, n_classes: int) -> Shapes:
    """Return the shapes of a network's state_dict by name (see `networks.nb201.network.Network`)."""
    operations = parse(spec)
    shapes: Shapes = {"stem.0.weight": (channels, 3, 3, 3)}
    _add_norm(shapes, "stem.1", channels)
    block = 0
    for stage in range(3):
        width = channels * 2**stage
        if stage:
            _add_convolution(shapes, f"cells.{block}.conv_a.op", width // 2, width, 3)
            _add_convolution(shapes, f"cells.{block}.conv_b.op", width, width, 3)
            shapes[f"cells.{block}.downsample.1.weight"] = width, width // 2, 1, 1
            block += 1
        for cell_position in range(block, block + cells):
            for edge, operation in enumerate(operations):
                if operation in KERNEL_SIZES:
                    name = f"cells.{cell_position}.layers.{edge}.op"
                    _add_convolution(shapes, name, width, width, KERNEL_SIZES[operation])
        block += cells
    _add_norm(shapes, "lastact.0", 4 * channels)
    shapes["classifier.weight"] = n_classes, 4 * channels
    shapes["classifier.bias"] = (n_classes,)
    return shapes


def _add_convolution(shapes: Shapes, name: str, c_in: int, c_out: int, kernel_size: int) -> None:
    shapes[f"{name}.1.weight"] = c_out, c_in, kernel_size, kernel_size
    _add_norm(shapes, f"{name}.2", c_out)


def _add_norm(shapes: Shapes, name: str, channels: int) -> None:
    for tensor_name in ("weight", "bias", "running_mean", "running_var"):
        shapes[f"{name}.{tensor_name}"] = (channels,)
    shapes[f"{name}.num_batches_tracked"] = ()
