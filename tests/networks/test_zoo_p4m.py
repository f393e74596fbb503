"""Group convolutions match loops over the group, and are equivariant to its eight symmetries."""

import itertools

import pytest
import torch
from torch.nn import functional

from robust201.networks.zoo.p4m import (
    ORIENTATIONS,
    P4mBatchNorm,
    expand_group_kernels,
    expand_lifting_kernels,
    orient,
    relative_orientation,
)
from robust201.networks.zoo.zoo_space import Zoo

every_symmetry = pytest.mark.parametrize("symmetry", range(ORIENTATIONS))


def matrix(orientation):
    """Return an orientation as a 2x2 integer matrix that acts on (row, column) about the centre.

    Quarter turns are counter-clockwise. A reflection exchanges left and right, and precedes the quarter turns.
    """
    quarter_turn, reflection, product_matrix = ((0, -1), (1, 0)), ((1, 0), (0, -1)), ((1, 0), (0, 1))
    if orientation >= 4:
        product_matrix = product(reflection, product_matrix)
    for _ in range(orientation % 4):
        product_matrix = product(quarter_turn, product_matrix)
    return product_matrix


def product(a, b):
    return tuple(tuple(sum(a[i][k] * b[k][j] for k in range(2)) for j in range(2)) for i in range(2))


def inverse(a):
    return tuple(zip(*a, strict=True))  # the matrices are orthogonal


MATRICES = {matrix(orientation): orientation for orientation in range(ORIENTATIONS)}


def transform(a, row, column):
    """Return a matrix times a vector (row, column)."""
    return a[0][0] * row + a[0][1] * column, a[1][0] * row + a[1][1] * column


def transform_features(features, symmetry):
    """Return feature maps on the group transformed by a symmetry, which moves pixels and permutes orientations."""
    maps = features.unflatten(1, (-1, ORIENTATIONS))
    order = [relative_orientation(symmetry, orientation) for orientation in range(ORIENTATIONS)]
    return orient(maps[:, :, order], symmetry).flatten(1, 2)


def test_relative_orientation_matches_matrix_products():
    assert len(MATRICES) == ORIENTATIONS
    for base, orientation in itertools.product(range(ORIENTATIONS), repeat=2):
        expected = MATRICES[product(inverse(matrix(base)), matrix(orientation))]
        assert relative_orientation(base, orientation) == expected


@every_symmetry
def test_orient_moves_pixels_like_the_matrix(symmetry):
    picture = torch.arange(9.0).view(3, 3)
    oriented_picture = orient(picture, symmetry)
    for row, column in itertools.product((-1, 0, 1), repeat=2):
        target = transform(matrix(symmetry), row, column)
        assert oriented_picture[target[0] + 1, target[1] + 1] == picture[row + 1, column + 1]


def test_expanded_kernels_match_sums_over_the_group():
    # The reference implementation has loops over outputs, orientations, inputs and offsets, as in Cohen and Welling.
    size = 3
    lifting, group = torch.randn(2, 3, 3, 3).double(), torch.randn(2, 8 * 2, 3, 3).double()
    image = torch.randn(1, 3, size, size).double()
    offsets = list(itertools.product((-1, 0, 1), repeat=2))

    def correlate(maps, kernel_at):
        """Return the sum over offsets y of maps(x + y) * kernel(s⁻¹ y)."""
        sums = torch.zeros(2, ORIENTATIONS, size, size, dtype=torch.float64)
        map_values = maps[0].tolist()
        for o, s, row, column in itertools.product(range(2), range(ORIENTATIONS), range(size), range(size)):
            for row_offset, column_offset in offsets:
                y, x = row + row_offset, column + column_offset
                if 0 <= y < size and 0 <= x < size:
                    kernel_offset = transform(inverse(matrix(s)), row_offset, column_offset)
                    sums[o, s, row, column] += sum(
                        map_values[i][y][x] * kernel_at(o, s, i, kernel_offset) for i in range(len(map_values))
                    )
        return sums.flatten(0, 1)[None]

    lifting_values, group_values = lifting.tolist(), group.tolist()
    lifted = correlate(image, lambda o, _s, i, offset: lifting_values[o][i][offset[0] + 1][offset[1] + 1])
    torch.testing.assert_close(functional.conv2d(image, expand_lifting_kernels(lifting), padding=1), lifted)
    relative_orientations = {
        (s, t): MATRICES[product(inverse(matrix(s)), matrix(t))]
        for s, t in itertools.product(range(ORIENTATIONS), repeat=2)
    }

    def group_kernel(o, s, i, offset):
        channel, t = divmod(i, ORIENTATIONS)
        return group_values[o][ORIENTATIONS * channel + relative_orientations[s, t]][offset[0] + 1][offset[1] + 1]

    expected = correlate(lifted, group_kernel)
    torch.testing.assert_close(functional.conv2d(lifted, expand_group_kernels(group), padding=1), expected)


@every_symmetry
@pytest.mark.parametrize("is_training", [True, False])
def test_group_network_is_equivariant(symmetry, is_training):
    # Features are equivariant after each stage for 33x33 pixels, because this size remains odd when it is halved.
    network = Zoo().build("gresnet18-w2", n_classes=10).double()
    network(torch.randn(8, 3, 9, 9).double())  # change the initial running statistics
    network.train(is_training)
    image = torch.randn(2, 3, 33, 33).double()
    features, oriented_features = network.stem(image), network.stem(orient(image, symmetry))
    for stage in range(5):
        torch.testing.assert_close(oriented_features, transform_features(features, symmetry), rtol=1e-9, atol=1e-9)
        if symmetry:
            assert not torch.allclose(oriented_features, features, rtol=1e-2, atol=1e-2)
        if stage < 4:
            layer = network.get_submodule(f"layer{stage + 1}")
            features, oriented_features = layer(features), layer(oriented_features)
    assert features.shape == (2, 8 * 16, 5, 5)


def test_batch_norm_shares_statistics_between_orientations():
    norm = P4mBatchNorm(3).double()
    features = torch.randn(4, 24, 5, 5).double() * 3 + 1
    normalised = norm(features).unflatten(1, (3, 8))
    torch.testing.assert_close(normalised.mean(dim=(0, 2, 3, 4)), torch.zeros(3).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(norm.running_mean, 0.1 * features.unflatten(1, (3, 8)).mean(dim=(0, 2, 3, 4)))
    # The means of some single orientations are not zero.
    assert (normalised.mean(dim=(0, 3, 4)).abs() > 1e-3).any()
