"""NAS-Bench-201: 15,625 cells in the published order, their strings, isomorphism classes and costs. No torch.

A cell is a graph of four nodes; each of its six edges carries one of five operations, and a node is the sum of what its
edges bring. Node 0 is the cell's input, node 3 its output (Dong and Yang, "NAS-Bench-201: Extending the Scope of
Reproducible Neural Architecture Search", ICLR 2020).
"""

import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from pipeline.errors import ArchitectureError, closest
from pipeline.records import Architecture

SPACE = "nasbench201"

N_ARCHITECTURES = 15_625

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
"""The five operations, in the order in which the published enumeration goes through them."""

EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
"""The six edges as (source, target) nodes, in the order of the cell string and of the network's `layers`."""

N_NODES = 4

_ORDER_SEED = 88
_ZERO = "#"
_KERNEL_SIZES = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}
_TERM = re.compile(r"([^|+~\s]+)~(\d+)")


@cache
def specs() -> tuple[str, ...]:
    """List the cell strings of all architectures.

    The published order is the product of the operations over the edges, shuffled by Python's `random` with seed 88
    (`meta_archs` of NAS-Bench-201 and NATS-Bench tss; the first digits of its hash stand in the tests).

    Returns:
        15,625 strings; position i holds architecture i.
    """
    enumeration = [format_spec(operations) for operations in itertools.product(OPERATIONS, repeat=len(EDGES))]
    random.Random(_ORDER_SEED).shuffle(enumeration)
    return tuple(enumeration)


@cache
def _indices_by_spec() -> dict[str, int]:
    return {spec: index for index, spec in enumerate(specs())}


@cache
def isomorphs() -> tuple[int, ...]:
    """List the representative of each architecture's isomorphism class.

    Returns:
        15,625 indices: position i holds the lowest index of the class of architecture i. There are 6,466 classes.
    """
    representatives: dict[str, int] = {}
    return tuple(representatives.setdefault(_canonical_form(spec), index) for index, spec in enumerate(specs()))


@cache
def evaluated_indices() -> tuple[int, ...]:
    """List the architectures that represent their class: the 6,466 that get evaluated, ascending."""
    return tuple(index for index, isomorph in enumerate(isomorphs()) if index == isomorph)


def _canonical_form(spec: str) -> str:
    """Name a cell's isomorphism class as the published benchmark does (`to_unique_str(True)` in NAS-Bench-201).

    Zero terms stay in a sum, and a node's sum is not sorted anew when skip connections pull another node's terms into
    it. Removing either quirk merges more cells (4,930 classes), but the dataset is defined by the 6,466 of this form.
    """
    nodes = ["0"] + [""] * (N_NODES - 1)
    operations = iter(parse(spec))
    for target in range(1, N_NODES):
        terms = []
        for source in range(target):
            operation = next(operations)
            if operation == "none" or nodes[source] == _ZERO:
                terms.append(_ZERO)
            elif operation == "skip_connect":
                terms.append(nodes[source])
            else:
                terms.append(f"({nodes[source]})@{operation}")
        nodes[target] = "+".join(sorted(terms))
    return nodes[-1]


def architecture(index: int) -> Architecture:
    """Look up an architecture by its index.

    Args:
        index: 0 to 15,624.

    Returns:
        The architecture with its cell string and the representative of its class.

    Raises:
        ArchitectureError: the index is out of range.
    """
    if not 0 <= index < N_ARCHITECTURES:
        nearest = 0 if index < 0 else N_ARCHITECTURES - 1
        raise ArchitectureError(
            f"Looking up an architecture failed for index {index}: expected 0 to {N_ARCHITECTURES - 1}, got {index}. "
            f"The closest index is {nearest}."
        )
    return Architecture(SPACE, int(index), specs()[index], isomorphs()[index])


def resolve(name: int | str) -> Architecture:
    """Look up an architecture by whatever names it.

    Args:
        name: an index, its decimal digits, or a cell string.

    Returns:
        The architecture.

    Raises:
        ArchitectureError: it names none; the message says what is wrong and names the closest match.
    """
    if isinstance(name, int):
        return architecture(name)
    text = name.strip()
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return architecture(int(text))
    return architecture(_indices_by_spec()[format_spec(parse(text))])


def parse(spec: str) -> tuple[str, ...]:
    """Split a cell string into its operations.

    Args:
        spec: such as ``|nor_conv_3x3~0|+|none~0|skip_connect~1|+|none~0|none~1|avg_pool_3x3~2|``.

    Returns:
        Six operations, one an edge in the order of `EDGES`.

    Raises:
        ArchitectureError: the string is no cell of this space; the message names the closest one.
    """
    operations = tuple(term.partition("~")[0] for term in spec.replace("+", "").strip("|").split("||"))
    # Writing the operations back and comparing is the strictest check there is, and quick for the many good strings.
    flat = tuple(operation for chunk in spec.split("+") for operation in _terms(chunk))
    if len(flat) == len(EDGES) and all(operation in OPERATIONS for operation in flat) and format_spec(flat) == spec:
        return flat
    del operations
    raise ArchitectureError(
        f"Parsing a cell string failed for {spec!r}: expected six edges like '{format_spec(('none',) * 6)}', "
        f"got {_defect(spec)}.{_suggestion(spec)}"
    )
