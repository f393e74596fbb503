"""Settings and operations of torch that make results reproducible: equal inputs give equal bytes on equal devices."""

import os

import torch

from robust201.core.errors import ConfigError
from robust201.core.host import MAX_THREADS
from robust201.core.memory import restore_gc_thresholds
from robust201.core.precision import Precision, check_precision
from robust201.models.device import set_precision


def configure_torch(threads: int, precision: Precision = "fp32") -> None:
    """Configure torch so that equal inputs give equal bytes on equal device types.

    The number of threads determines how the CPU splits its sums, so it affects results. cuDNN neither benchmarks
    algorithms nor uses nondeterministic ones. Operations without a deterministic implementation raise an error. TF32
    is on for ``tf32`` and off for every other precision. The settings are process-wide, and another call replaces them.
    The default thresholds of garbage collection are restored (`core.memory`).

    Args:
        threads: number of CPU threads per operation, 1 to `MAX_THREADS`.
        precision: a name from `core.precision.PRECISIONS`. The caller checks that the device supports it
            (`core.precision.check_precision`).

    Raises:
        ConfigError: the precision is unknown, the number of threads is invalid, or an environment variable overrides
            the arithmetic.
    """
    restore_gc_thresholds()
    check_precision(precision)
    _reject_overrides(precision)
    if not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"Setting up torch failed for threads: expected 1 to {MAX_THREADS}, got {threads}.")
    torch.set_num_threads(threads)
    set_precision(precision)
    # By default, cuBLAS may accumulate bfloat16 products in bfloat16, also in 1x1 convolutions.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # cuBLAS reads this variable on first use. Without it, deterministic mode rejects matrix products on CUDA.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # This has the effect of `torch.use_deterministic_algorithms`, which would import the compiler and take seconds.
    torch.set_deterministic_debug_mode("error")
    # Every tensor is written before it is read, so filling new tensors would only take time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


_ARITHMETIC_OVERRIDES = {
    "NVIDIA_TF32_OVERRIDE": "0",
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
    "DNNL_DEFAULT_FPMATH_MODE": "STRICT",
}
"""Environment variables that override the precision of cuBLAS, cuDNN or oneDNN, with the value that keeps float32."""


def _reject_overrides(precision: Precision) -> None:
    for name, neutral_value in _ARITHMETIC_OVERRIDES.items():
        value = os.environ.get(name, "")
        # NVIDIA's variable switches TF32 off, which has no effect unless TF32 is requested.
        is_neutral = value.upper() == neutral_value and not (neutral_value == "0" and precision == "tf32")
        if value and not is_neutral:
            raise ConfigError(
                f"Setting up torch failed for the environment variable {name}: its value {value!r} overrides the "
                "precision. Unset it; the `precision` of the sweep must determine the arithmetic."
            )


def cumulative_sum(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the cumulative sum along a dimension, like `torch.cumsum`, which is not deterministic on CUDA.

    Both compute in float64 and round each sum once, so almost all values have the same bits as on a CPU.
    """
    if values.device.type == "cpu":
        return values.cumsum(dim)
    sums, length, shift = values.double(), values.shape[dim], 1
    while shift < length:
        first, others = sums.narrow(dim, 0, shift), sums.narrow(dim, shift, length - shift)
        sums = torch.cat((first, others + sums.narrow(dim, 0, length - shift)), dim)
        shift *= 2
    return sums.to(values.dtype)
