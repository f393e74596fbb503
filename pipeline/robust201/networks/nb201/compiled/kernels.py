"""The operations of an inference network, in channels_last.

Each operation has one or two implementations. The first uses ordinary PyTorch functions, and works on every device. The
second uses oneDNN's fused convolution, which computes a convolution with bias, sum and ReLU in one pass. It consists of
undocumented functions for PyTorch's compiler, which are used on a CPU if they are available and correct (see
`has_fused_convolution`). Feature maps and convolution weights have the same dtype, float32 or bfloat16. Sums inside an
operation are float32.
"""

from functools import cache
from typing import Final

import torch
from torch.nn import functional

from robust201.networks.nb201.compiled.folding import round_once

_CHANNELS_LAST: Final = torch.channels_last
_POOL_SIZE: Final = 3
_TOLERANCES: Final = {torch.float32: 1e-4, torch.bfloat16: 2**-6}
"""Maximum relative and absolute difference between two correct implementations, for sums of 144 products."""


@cache
def has_fused_convolution(dtype: torch.dtype = torch.float32) -> bool:
    """Return whether PyTorch's private functions for oneDNN's fused convolution exist and compute correct results."""
    tolerance = _TOLERANCES[dtype]
    try:
        # Private operators have no stable signature; any error here means that they cannot be used.
        with torch.random.fork_rng(devices=()), torch.inference_mode():
            torch.manual_seed(0)
            x, addend = (torch.randn(2, 16, 6, 6).to(dtype, memory_format=_CHANNELS_LAST) for _ in range(2))
            weight, bias = torch.randn(16, 16, 3, 3, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
            unfused = Convolution(weight, bias, device=torch.device("cpu"), dtype=dtype, fused=False)
            fused = Convolution(weight, bias, device=torch.device("cpu"), dtype=dtype, fused=True)
            return all(
                torch.allclose(
                    unfused(x, add=add, rectify=rectify),
                    fused(x, add=add, rectify=rectify),
                    rtol=tolerance,
                    atol=tolerance,
                )
                for add in (None, addend)
                for rectify in (False, True)
            )
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False


class Convolution:
    """A convolution with folded BatchNorm, an optional addend and an optional ReLU.

    Args:
        weight: (O, I / groups, k, k) float64.
        bias: (O,) float64, or None.
        dtype: type of the feature maps, float32 or bfloat16; weight and bias are rounded to it.
        padding: width of the zero padding; None for the padding that preserves the image size at stride 1.
        fused: whether to use oneDNN's fused convolution; None to use it on a CPU if `has_fused_convolution`.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        fused: bool | None = None,
    ) -> None:
        self._weight = round_once(weight, dtype).to(device).contiguous(memory_format=_CHANNELS_LAST)
        self._bias = None if bias is None else round_once(bias, dtype).to(device)
        self._stride = [stride, stride]
        pad = weight.shape[-1] // 2 if padding is None else padding
        self._padding = [pad, pad]
        self._groups = groups
        self._is_fused = (device.type == "cpu" and has_fused_convolution(dtype)) if fused is None else fused
        self._packed_weight: torch.Tensor | None = None

    @property
    def parameters(self) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        """Weight (O, I / groups, k, k), bias (O,) or None, and padding."""
        return self._weight, self._bias, self._padding[0]

    def __call__(
        self, x: torch.Tensor, *, add: torch.Tensor | None = None, in_place: bool = False, rectify: bool = False
    ) -> torch.Tensor:
        """Convolve `x` (B, I, H, W) to (B, O, H', W'), add `add`, and apply the ReLU if `rectify`.

        All tensors are channels_last. With `in_place`, the result may overwrite `add`.
        """
        if self._is_fused:
            return self._convolve_fused(x, add, in_place=in_place, rectify=rectify)
        output = functional.conv2d(x, self._weight, self._bias, self._stride, self._padding, groups=self._groups)
        if add is not None:
            output = output.add_(add)
        return output.relu_() if rectify else output

    def _convolve_fused(
        self, x: torch.Tensor, add: torch.Tensor | None, *, in_place: bool, rectify: bool
    ) -> torch.Tensor:
        onednn = torch.ops.mkldnn
        if self._packed_weight is None:
            # oneDNN chooses a layout of the weight for an image size. Use the size of the first batch, because the
            # layout hardly depends on it. Other sizes also give correct results; at worst, each call reorders the
            # weight.
            self._packed_weight = onednn._reorder_convolution_weight(
                self._weight.contiguous(), self._padding, self._stride, [1, 1], self._groups, list(x.shape)
            )
        geometry = (self._packed_weight, self._bias, self._padding, self._stride, [1, 1], self._groups)
        output: torch.Tensor
        if add is None:
            output = onednn._convolution_pointwise(x, *geometry, "relu" if rectify else "none", [], "")
            return output
        relu = "relu" if rectify else None
        if in_place:
            output = onednn._convolution_pointwise_.binary(add, x, *geometry, "add", 1.0, relu, [], "")
        else:
            output = onednn._convolution_pointwise.binary(x, add, *geometry, "add", 1.0, relu, [], "")
        return output


class Linear:
    """A linear layer in float32, and its input gradient.

    If oneDNN's fused convolution is available, both are computed as 1x1 convolutions. PyTorch computes matrix products
    with MKL, whose order of summation differs between AMD and Intel processors. oneDNN sums sequentially on both, for
    any batch size.

    Args:
        weight: (O, I).
        bias: (O,).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, *, device: torch.device) -> None:
        self._weight, self._bias = (tensor.detach().to(device, torch.float32) for tensor in (weight, bias))
        self._convolutions: tuple[Convolution, Convolution] | None = None
        if device.type == "cpu" and has_fused_convolution():
            kernel = self._weight.double()[:, :, None, None]
            self._convolutions = (
                Convolution(kernel, self._bias.double(), device=device),
                Convolution(transpose_kernel(kernel), None, device=device),
            )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs (B, O) of inputs (B, I)."""
        if self._convolutions is None:
            return functional.linear(x, self._weight, self._bias)
        return self._convolutions[0](x[:, :, None, None]).flatten(1)

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the inputs, (B, I), given the gradient of the outputs, (B, O)."""
        if self._convolutions is None:
            return gradient @ self._weight
        return self._convolutions[1](gradient[:, :, None, None]).flatten(1)


def transpose_kernel(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight of the convolution that computes the input gradient of a convolution with stride 1."""
    return weight.transpose(0, 1).flip(2, 3)


class StridedGradient:
    """Input gradient of a 3x3 convolution (O, I, 3, 3) with stride 2 and padding 1, on images of even size."""

    def __init__(self, weight: torch.Tensor, *, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._weight = round_once(weight, dtype).to(device).contiguous(memory_format=_CHANNELS_LAST)

    @property
    def weight(self) -> torch.Tensor:
        return self._weight

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the input, (B, I, 2H, 2W), given the gradient of the output, (B, O, H, W)."""
        return functional.conv_transpose2d(gradient, self._weight, stride=2, padding=1, output_padding=1)


class AveragePooling:
    """3x3 average pooling with stride 1, multiplied by `factor`, and its input gradient. Means exclude the padding.

    On a CPU, it is computed as a depthwise convolution, which is nine times as fast as pooling in PyTorch 2.13. Sums
    over windows are divided by nine. Border pixels, whose windows are smaller, are then scaled up. For bfloat16,
    PyTorch's pooling is used, because the rounded 1/9 would be 0.2% too large in every layer.
    """

    def __init__(self, channels: int, factor: int, *, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._factor = float(factor)
        self._mean_of_nine: Convolution | None = None
        if device.type == "cpu" and dtype is torch.float32:
            weight = torch.full((channels, 1, _POOL_SIZE, _POOL_SIZE), factor / _POOL_SIZE**2, dtype=torch.float64)
            self._mean_of_nine = Convolution(weight, None, device=device, groups=channels)
        self._scales: dict[tuple[int, int], torch.Tensor] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the pooled image in new memory; `x` and result are (B, C, H, W), channels_last."""
        if self._mean_of_nine is None:
            pooled = functional.avg_pool2d(x, _POOL_SIZE, 1, 1, count_include_pad=False)
            return pooled if self._factor == 1 else pooled.mul_(self._factor)
        pooled = self._mean_of_nine(x)
        for axis in (2, 3):
            _scale_border(pooled, axis)
        return pooled

    @property
    def weight(self) -> float:
        """Weight of each of the nine pixels of a window, before border pixels are scaled."""
        return self._factor / _POOL_SIZE**2

    def backward(
        self,
        gradient: torch.Tensor,
        *,
        overwrite: bool = False,
        add: torch.Tensor | None = None,
        in_place: bool = False,
    ) -> torch.Tensor:
        """Return the gradient of the image, plus `add`, given the gradient of the pooled image.

        Border pixels are scaled before the sum over windows. All tensors are (B, C, H, W), channels_last. With
        `overwrite`, `gradient` may be overwritten. With `in_place`, the result may overwrite `add`.
        """
        if overwrite:
            scaled = gradient
            for axis in (2, 3):
                _scale_border(scaled, axis)
        else:
            scaled = gradient * self._scale(gradient)
        if self._mean_of_nine is not None:
            return self._mean_of_nine(scaled, add=add, in_place=in_place)
        summed = functional.avg_pool2d(scaled, _POOL_SIZE, 1, 1, count_include_pad=True)
        if self._factor != 1:
            summed.mul_(self._factor)
        return summed if add is None else summed.add_(add)

    def _scale(self, like: torch.Tensor) -> torch.Tensor:
        """Return nine divided by the number of pixels in each window: (1, 1, H, W)."""
        height, width = like.shape[2:]
        if (height, width) not in self._scales:
            scale = torch.ones(1, 1, height, width, dtype=like.dtype, device=like.device)
            for axis in (2, 3):
                _scale_border(scale, axis)
            self._scales[height, width] = scale
        return self._scales[height, width]


def _scale_border(x: torch.Tensor, axis: int) -> None:
    """Multiply each pixel in place by 3 / the number of rows (or columns) in its window."""
    if x.shape[axis] == 1:
        x.mul_(float(_POOL_SIZE))
        return
    for side in (0, -1):
        x.select(axis, side).mul_(_POOL_SIZE / (_POOL_SIZE - 1))


class StridedPooling:
    """2x2 average pooling with stride 2, and its input gradient. The factor 1/4 is exact in every dtype."""

    def __init__(self, channels: int, *, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._depthwise: Convolution | None = None
        if device.type == "cpu":
            weight = torch.full((channels, 1, 2, 2), 0.25, dtype=torch.float64)
            self._depthwise = Convolution(
                weight, None, device=device, dtype=dtype, stride=2, padding=0, groups=channels
            )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Pool images (B, C, H, W) to (B, C, H / 2, W / 2), channels_last."""
        return functional.avg_pool2d(x, 2) if self._depthwise is None else self._depthwise(x)

    @staticmethod
    def backward(gradient: torch.Tensor) -> torch.Tensor:
        """Return four times the input's gradient, given the output's gradient; the caller divides by four."""
        return functional.interpolate(gradient, scale_factor=2, mode="nearest")


def mask_gradient(gradient: torch.Tensor, rectified: torch.Tensor) -> torch.Tensor:
    """Set a gradient to zero in place where the ReLU's output is zero, which gives the gradient of the ReLU's input."""
    masked: torch.Tensor = torch.ops.aten.threshold_backward.grad_input(gradient, rectified, 0, grad_input=gradient)
    return masked
