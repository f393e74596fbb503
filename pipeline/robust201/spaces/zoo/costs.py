"""Multiply-accumulates of the zoo's networks for one image. Only convolutions and linear layers are counted.

This module does not import torch.
"""

from collections.abc import Sequence


def convolution(c_in: int, c_out: int, kernel_size: int, n_positions: int) -> int:
    """Return the multiply-accumulates of a convolution with a square kernel at `n_positions` output positions."""
    return c_in * c_out * kernel_size**2 * n_positions


def halve_rounding_up(size: int) -> int:
    """Return the output height or width of a layer with stride 2 and `same` padding."""
    return (size + 1) // 2


def resnet(
    blocks: Sequence[int],
    widths: Sequence[int],
    n_classes: int,
    size: int,
    *,
    has_bottlenecks: bool = False,
    has_imagenet_stem: bool = False,
) -> int:
    """Return the multiply-accumulates of a residual network.

    `blocks` are the stages' numbers of blocks, and `widths` their channels before a bottleneck's expansion.
    """
    if has_imagenet_stem:
        size = halve_rounding_up(size)
        total = convolution(3, widths[0], 7, size**2)
        size = halve_rounding_up(size)
    else:
        total = convolution(3, widths[0], 3, size**2)
    c_in = widths[0]
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            is_strided = stage > 0 and block == 0
            input_area, size = size**2, halve_rounding_up(size) if is_strided else size
            output_area = size**2
            if has_bottlenecks:
                c_out = 4 * width
                total += convolution(c_in, width, 1, input_area) + convolution(width, width, 3, output_area)
                total += convolution(width, c_out, 1, output_area)
            else:
                c_out = width
                total += convolution(c_in, width, 3, output_area) + convolution(width, width, 3, output_area)
            if is_strided or c_in != c_out:
                total += convolution(c_in, c_out, 1, output_area)
            c_in = c_out
    return total + c_in * n_classes


def narrow_resnet(widths: Sequence[int], n_units: int, n_classes: int, size: int) -> int:
    """Return the multiply-accumulates of the narrow residual network; each stage has `n_units` units."""
    total = convolution(3, widths[0], 3, size**2)
    c_in = widths[0]
    for stage, width in enumerate(widths):
        size = size // 2 if stage else size
        total += convolution(c_in, width, 3, size**2) + (2 * n_units - 1) * convolution(width, width, 3, size**2)
        c_in = width
    return total + c_in * n_classes


def vgg(stages: Sequence[tuple[int, int]], n_classes: int) -> int:
    """Return the multiply-accumulates of VGG with stages (channels, convolutions), for 32x32 pixels."""
    total, c_in, size = 0, 3, 32
    for width, count in stages:
        total += convolution(c_in, width, 3, size**2) + (count - 1) * convolution(width, width, 3, size**2)
        c_in, size = width, size // 2
    return total + c_in * n_classes


def spatial_transformer(channels: int, hidden: int) -> int:
    """Return the multiply-accumulates of a spatial transformer at 32x32 pixels; resampling is not counted."""
    total = convolution(3, channels, 3, 32**2)
    total += sum(convolution(channels, channels, 3, size**2) for size in (32, 16, 8))
    return total + 16 * channels * hidden + 6 * hidden


def polar_transformer(filters: int, size: int) -> int:
    """Return the multiply-accumulates of a polar transformer; resampling is not counted."""

    # Two strided 5x5 convolutions; then, along each predicted axis, a 1D convolution of length 5 over the maxima.
    def predictor(height: int, width: int, n_axes: int) -> int:
        height, width = halve_rounding_up(height), halve_rounding_up(width)
        total = convolution(3, filters, 5, height * width)
        height, width = halve_rounding_up(height), halve_rounding_up(width)
        return total + convolution(filters, filters, 5, height * width) + 5 * filters * (width + (n_axes - 1) * height)

    return predictor(size, size, 2) + predictor(size, 4 * halve_rounding_up(size), 1)


def lenet5(channels: tuple[int, int], hidden: tuple[int, int], n_classes: int) -> int:
    """Return the multiply-accumulates of LeNet-5 at 32x32 pixels."""
    total = convolution(3, channels[0], 5, 28**2) + convolution(*channels, 5, 10**2)
    return total + 25 * channels[1] * hidden[0] + hidden[0] * hidden[1] + hidden[1] * n_classes
