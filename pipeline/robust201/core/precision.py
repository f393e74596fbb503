"""The precision of a network's arithmetic: fp32, tf32 or bf16.

The precision affects results, so it is part of the protocol: results in one precision never replace those in another.
"""

from typing import TYPE_CHECKING, Final, Literal, get_args

from robust201.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "tf32", "bf16"]

PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
"""Names of the precisions. Images, attacks, softmax, loss and measurements are float32 in each of them.

- ``fp32``: IEEE float32 throughout, on every device. TF32 is off.
- ``tf32``: float32 tensors; convolutions and matrix products on CUDA reduce their inputs to TF32 (float32's range, 10
  mantissa bits instead of 23) and accumulate the products in float32. It requires a CUDA device of compute capability
  8.0 or higher; other devices reject it.
- ``bf16``: inputs and weights of convolutions, and the feature maps from the first convolution to the last cell's
  output, are bfloat16 (float32's range, 7 mantissa bits), and so are the gradients in the backward pass through them.
  Convolutions accumulate in float32; each kernel rounds its output once. BatchNorm, if not folded into a convolution,
  computes in float32 and rounds its output. After the last cell, BatchNorm, pooling and classifier are float32 with
  TF32 off; the gradient of the pixels is returned as float32.

Sources: PyTorch's notes "CUDA semantics" (TensorFloat-32, reduced precision reduction in BF16 GEMMs) and "Numerical
accuracy" (docs.pytorch.org/docs/stable/notes/cuda.html, .../numerical_accuracy.html).
"""

_MIN_TF32_CAPABILITY: Final = (8, 0)
"""Minimum compute capability of a CUDA device that supports TF32."""


def check_precision(name: str, device: "torch.device | None" = None) -> None:
    """Check that a precision exists, and that the device, if there is one, supports it.

    Raises:
        ConfigError: there is no such precision (the message suggests the closest name), or the device does not support
            the precision.
    """
    if name not in PRECISIONS:
        raise ConfigError(
            f"Choosing the arithmetic failed for precision {name!r}: no such precision.{did_you_mean(name, PRECISIONS)}"
        )
    if name != "tf32" or device is None:
        return
    # A device without TF32 ignores PyTorch's TF32 settings and computes in float32, so the results
    # would be wrongly labelled tf32.
    device_description = _describe_device_without_tf32(device)
    if device_description:
        raise ConfigError(
            "Choosing the arithmetic failed for precision tf32: expected a CUDA device of compute capability 8.0 or "
            f"higher, got {device_description}. Set `precision` to fp32 or bf16, or use such a device."
        )


def _describe_device_without_tf32(device: "torch.device") -> str:
    """Describe a device that does not support TF32; return an empty string for a device that does."""
    import torch

    if device.type != "cuda" or torch.version.cuda is None:
        return "a CPU" if device.type == "cpu" else f"{device.type} without CUDA"
    capability = torch.cuda.get_device_capability(device)
    return "" if capability >= _MIN_TF32_CAPABILITY else f"{capability[0]}.{capability[1]}"


def has_avx512() -> bool:
    """Return whether this CPU has AVX-512 and PyTorch uses it."""
    import torch

    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def check_gradients(precision: Precision, device: "torch.device") -> None:
    """Check that a device computes gradients correctly in a precision.

    On CPUs without AVX-512, PyTorch 2.13's transposed convolutions in bfloat16 are wrong
    (docs/protocol/images-and-processors.md).

    Raises:
        ConfigError: the gradients would be wrong.
    """
    if precision == "bf16" and device.type == "cpu" and not has_avx512():
        raise ConfigError(
            "Choosing the arithmetic failed for precision bf16: this CPU has no AVX-512, and without it PyTorch "
            "computes wrong gradients in bfloat16. Set `precision` to fp32, or compute on a GPU or a CPU with AVX-512."
        )


def feature_map_dtype(precision: Precision) -> "torch.dtype":
    """Return the dtype of feature maps and convolution weights: bfloat16 or float32."""
    import torch

    return torch.bfloat16 if precision == "bf16" else torch.float32
