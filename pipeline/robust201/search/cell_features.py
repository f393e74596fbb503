"""Features of cells from which accuracies are predicted: operations on edges, paths, and size."""

import itertools

import numpy as np
from numpy.typing import NDArray

from robust201.spaces.cell_space import CellSpace

_Floats = NDArray[np.float64]

NONE, SKIP = "none", "skip_connect"
"""Operations that do not count in a path: `NONE` interrupts the path, and `SKIP` is the identity."""


def make_cell_features(space: CellSpace) -> _Floats:
    """Return the features of all cells of a space.

    There are four groups of features:

    - the operation on each edge (one-hot),
    - the number of paths from the input to the output with each sequence of operations (square root),
    - the number of edges with each operation,
    - the number of kernel parameters (logarithm).

    Sequences omit `skip_connect`, and paths with `none` are not counted, so isomorphic cells have equal path counts.

    Returns:
        (n, F) float64; each column has mean 0 over the cells, and each group of columns has total variance 1.
    """
    codes = encode_operations(space)
    one_hot = (codes[:, :, None] == np.arange(len(space.operations))).astype(np.float64)
    size = np.log1p([[space.kernel_parameters(spec)] for spec in space.specs()])
    groups = (one_hot.reshape(len(codes), -1), np.sqrt(_count_paths(space, codes)), one_hot.sum(axis=1), size)
    return np.concatenate([_scale_group(group) for group in groups], axis=1)


def encode_operations(space: CellSpace) -> NDArray[np.int64]:
    """Return the operation on each edge of all cells: (n, edges) indices into the space's `operations`."""
    codes = {name: code for code, name in enumerate(space.operations)}
    return np.array([[codes[name] for name in space.parse(spec)] for spec in space.specs()])


def _count_paths(space: CellSpace, codes: NDArray[np.int64]) -> _Floats:
    operation_names = space.operations
    path_operations = [code for code, name in enumerate(operation_names) if name not in (NONE, SKIP)]
    output_node = max(target for _, target in space.edges)
    n_paths: dict[tuple[int, ...], _Floats] = {
        sequence: np.zeros(len(codes))
        for length in range(output_node + 1)
        for sequence in itertools.product(path_operations, repeat=length)
    }
    for path in _list_paths(space, output_node):
        for operations in itertools.product(range(len(operation_names)), repeat=len(path)):
            if any(operation_names[code] == NONE for code in operations):
                continue
            sequence = tuple(code for code in operations if operation_names[code] != SKIP)
            n_paths[sequence] += (codes[:, path] == operations).all(axis=1)
    return np.stack(list(n_paths.values()), axis=1)


def _list_paths(space: CellSpace, output_node: int) -> list[tuple[int, ...]]:
    """Return the paths from the input to the output, each as a tuple of edge positions."""
    complete_paths: list[tuple[int, ...]] = []
    partial_paths: list[tuple[tuple[int, ...], int]] = [((), 0)]
    while partial_paths:
        path, node = partial_paths.pop()
        if node == output_node:
            complete_paths.append(path)
        partial_paths += [
            ((*path, edge), target) for edge, (source, target) in enumerate(space.edges) if source == node
        ]
    return complete_paths


def _scale_group(group: _Floats) -> _Floats:
    """Centre a group of columns, and scale them by a common factor to a total variance of 1."""
    centred = group - group.mean(axis=0)
    total = centred.var(axis=0).sum()
    scaled: _Floats = centred / np.sqrt(total if total > 0 else 1.0)
    return scaled
