"""Group convolutions match loops over the group and are equivariant; the narrow network is as published."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from jobs.papers.robust_features.networks import (
    ORIENTATIONS,
    P4mBatchNorm,
    P4mConvolution,
    P4mLifting,
    build,
    expand_group_kernels,
    expand_lifting_kernels,
    orient,
    relative_orientation,
    standardise,
)

for_each_symmetry = pytest.mark.parametrize("symmetry", range(ORIENTATIONS))


@pytest.fixture(autouse=True)
def fixed_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


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


@for_each_symmetry
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


@for_each_symmetry
@pytest.mark.parametrize("is_training", [True, False])
def test_group_network_is_equivariant(symmetry, is_training):
    # Features are equivariant after each stage for 33x33 pixels, because this size remains odd when it is halved.
    network = build("gresnet18-w2", 10).double()
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


@pytest.mark.parametrize("layer", [P4mLifting(3, 2, 3), P4mConvolution(2, 3, 1, 1)])
def test_convolutions_support_channels_last_and_bfloat16(layer):
    inputs = torch.randn(2, layer.in_channels, 6, 6)
    expected = layer(inputs)
    assert expected.shape[1] == ORIENTATIONS * layer.out_channels
    layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    output = layer(inputs.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    output = layer.bfloat16()(inputs.bfloat16())
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("name", "expected"), [("gresnet18", 11_201_415), ("gresnet34", 21_350_863), ("resnet32-narrow", 464_154)]
)
def test_networks_have_the_expected_number_of_parameters(name, expected):
    assert sum(parameter.numel() for parameter in build(name, 10).parameters()) == expected


@pytest.mark.parametrize("name", ["gresnet18-w1", "resnet32-narrow-w2"])
def test_gradients_are_finite_and_do_not_depend_on_the_memory_format(name):
    network, labels = build(name, 10).double().eval(), torch.tensor([0, 3])
    gradients = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        inputs = torch.full((2, 3, 32, 32), 0.5).double()  # images of one colour
        inputs[1] = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(1)).double()
        inputs = inputs.contiguous(memory_format=memory_format).requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(network(inputs), labels), inputs)
        assert gradient.isfinite().all()
        gradients.append(gradient)
    assert torch.equal(*gradients)


# --- the narrow network -----------------------------------------------------------------------------------------------


def test_narrow_network_standardises_images():
    network = build("resnet32-narrow-w4", 10).double().eval()
    inputs = torch.rand(4, 3, 32, 32).double()
    expected = network(inputs)
    scale = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=torch.float64).view(4, 1, 1, 1)
    torch.testing.assert_close(network(inputs * scale - 0.3), expected, rtol=1e-9, atol=1e-9)
    standardised = standardise(inputs).flatten(1)
    torch.testing.assert_close(standardised.mean(dim=1), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(standardised.std(dim=1, correction=0), torch.ones(4, dtype=torch.float64))


def test_narrow_network_has_the_published_initial_weights():
    network = build("resnet32-narrow", 10)
    weights = network.stage3[0].conv1.weight  # 32 to 64 channels: 18,432 random numbers
    assert weights.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.03)
    assert network.linear.weight.abs().max() <= (3 / 64) ** 0.5
    assert (network.linear.bias == 0).all()


def test_narrow_network_shortcuts_pool_pixels_and_pad_channels():
    unit = build("resnet32-narrow-w4", 10).stage2[0].eval()
    nn.init.zeros_(unit.conv2.weight)
    inputs = torch.randn(2, 4, 8, 8)
    output = unit(inputs)
    assert output.shape == (2, 8, 4, 4)
    assert (output[:, [0, 1, 6, 7]] == 0).all()
    torch.testing.assert_close(output[:, 2:6], functional.avg_pool2d(inputs, 2))


def test_narrow_network_pads_after_the_last_pixel():
    # As in TensorFlow, output column i depends on input columns 2i to 2i + 2.
    unit = build("resnet32-narrow-w4", 10).stage2[0].eval()
    inputs = torch.randn(1, 4, 8, 8)
    changed_inputs = inputs.clone()
    changed_inputs[..., 3] += 1.0
    outputs = []
    unit.conv1.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    unit(inputs)
    unit(changed_inputs)
    is_column_changed = (outputs[0] != outputs[1]).any(dim=1).any(dim=1)[0]
    assert is_column_changed.tolist() == [False, True, False, False]
