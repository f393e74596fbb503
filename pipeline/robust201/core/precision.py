"""The precision of a network's arithmetic (fp32, tf32 or bf16), and the maximum number of threads.

The precision affects results, so it is part of the protocol: results in one precision never replace those in another.
"""

from typing import Final, Literal, get_args

from robust201.core.errors import ConfigError, did_you_mean

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

MAX_THREADS = 1024
"""Maximum number of threads of one operation; with tens of thousands, torch crashes the process."""


def check_precision(name: str) -> None:
    """Check that a precision exists; `networks.device.check_device` checks that a device supports it.

    Raises:
        ConfigError: there is no such precision; the message suggests the closest name.
    """
    if name not in PRECISIONS:
        raise ConfigError(
            f"Choosing the arithmetic failed for precision {name!r}: no such precision.{did_you_mean(name, PRECISIONS)}"
        )
