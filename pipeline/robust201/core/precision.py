"""The arithmetic that a network runs in: fp32, tf32 or bf16.

It decides numbers, so it belongs to the protocol: results of one precision never stand in for those of another.
"""

from typing import TYPE_CHECKING, Final, Literal, get_args

from robust201.core.errors import ConfigError, closest

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "tf32", "bf16"]

PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
"""Names of the precisions. Images, attacks, softmax, loss and measurements are float32 in each of them.

- ``fp32``: IEEE float32 throughout, on every device. TF32 is off.
- ``tf32``: float32 tensors; convolutions and matrix products on CUDA reduce their inputs to TF32 (float32's range, 10
  mantissa bits of 23) and add the products up in float32. It exists on CUDA devices of compute capability 8.0 and
  higher; nothing else may compute under this name.
- ``bf16``: what enters a convolution, its weights, and the feature maps from the first convolution to the last cell's
  output are bfloat16 (float32's range, 7 mantissa bits), and so are the gradients on the way back through them.
  Convolutions add up in float32; each kernel rounds its output once. BatchNorm, where it is not folded into a
  convolution, keeps its float32 numbers and rounds its output. Behind the last cell, BatchNorm, pooling and classifier
  are float32, TF32 off; the gradient of the pixels is handed out as float32.

Sources: PyTorch's notes "CUDA semantics" (TensorFloat-32, reduced precision reduction in BF16 GEMMs) and "Numerical
accuracy" (docs.pytorch.org/docs/stable/notes/cuda.html, .../numerical_accuracy.html).
"""

_TF32_CAPABILITY: Final = (8, 0)


def check_precision(name: str, device: "torch.device | None" = None) -> None:
    """Check that a precision exists, and that a device, where one is given, has it.

    Raises:
        ConfigError: there is no such precision (the closest is named), or the device does not have it.
    """
    if name not in PRECISIONS:
        raise ConfigError(
            f"Choosing the arithmetic failed for precision {name!r}: no such precision.{closest(name, PRECISIONS)}"
        )
    if name != "tf32" or device is None:
        return
    # A device without TF32 ignores the switches and computes float32: right numbers under a wrong label.
    found = _what_lacks_tf32(device)
    if found:
        raise ConfigError(
            "Choosing the arithmetic failed for precision tf32: expected a CUDA device of compute capability 8.0 or "
            f"higher, got {found}. Set precision to fp32 or bf16, or compute on such a GPU."
        )


def _what_lacks_tf32(device: "torch.device") -> str:
    """Describe a device that has no TF32; an empty string where it has."""
    import torch

    if device.type != "cuda" or torch.version.cuda is None:
        return "a CPU" if device.type == "cpu" else f"{device.type} without CUDA"
    capability = torch.cuda.get_device_capability(device)
    return "" if capability >= _TF32_CAPABILITY else f"{capability[0]}.{capability[1]}"


def has_avx512() -> bool:
    """Return whether this CPU has AVX-512 and PyTorch uses it."""
    import torch

    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def check_gradients(name: Precision, device: "torch.device") -> None:
    """Check that a device computes correct gradients in a precision.

    Without AVX-512, PyTorch 2.13's transposed convolutions in bfloat16 are wrong (docs/protocol.md).

    Raises:
        ConfigError: it does not.
    """
    if name == "bf16" and device.type == "cpu" and not has_avx512():
        raise ConfigError(
            "Choosing the arithmetic failed for precision bf16: expected a GPU or a CPU with AVX-512, got a CPU "
            "without it, on which PyTorch computes wrong gradients in bfloat16. Set precision to fp32, or compute on a "
            "GPU."
        )


def map_dtype(name: Precision) -> "torch.dtype":
    """Type of the feature maps and of the convolutions' weights: bfloat16 or float32."""
    import torch

    return torch.bfloat16 if name == "bf16" else torch.float32
