"""The switches of torch that decide the arithmetic: equal inputs give equal bytes on equal device types."""

import os

import torch

from robust201.core.errors import ConfigError
from robust201.core.host import MAX_THREADS
from robust201.core.memory import collect_as_usual
from robust201.core.precision import Precision, check_precision


def configure_torch(threads: int, precision: Precision = "fp32") -> None:
    """Set torch so that equal inputs give equal bytes on equal device types.

    The number of threads is set because it decides how the CPU splits its sums. cuDNN neither tries out algorithms nor
    takes nondeterministic ones, and an operation without a deterministic form raises. TF32 is on with ``tf32`` and off
    with every other precision; these switches are the process's, and a second call sets them anew. Garbage is looked
    for as usual from now on (`core.memory`).

    Args:
        threads: CPU threads of one operation, 1 to `MAX_THREADS`.
        precision: a name from `core.precision.PRECISIONS`, which defines them. Whether the device has it is for
            whoever knows the device to check (`core.precision.check_precision`).

    Raises:
        ConfigError: unknown precision, no threads, or an environment variable that changes the arithmetic behind torch.
    """
    collect_as_usual()
    check_precision(precision)
    _refuse_overrides(precision)
    if not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"Setting up torch failed for threads: expected 1 to {MAX_THREADS}, got {threads}.")
    torch.set_num_threads(threads)
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    # By default cuBLAS may add partial sums of bfloat16 products in bfloat16; 1x1 convolutions can be such products.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # cuBLAS reads it when it is first used; without it, deterministic algorithms refuse matrix products on CUDA.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # `torch.use_deterministic_algorithms` by its other name, which does not import the compiler: that takes seconds.
    torch.set_deterministic_debug_mode("error")
    # Every tensor is written before it is read here; filling them first would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


_ARITHMETIC_OVERRIDES = {
    "NVIDIA_TF32_OVERRIDE": "0",
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
    "DNNL_DEFAULT_FPMATH_MODE": "STRICT",
}
"""Variables by which cuBLAS, cuDNN and oneDNN compute in another precision than they are asked for, with the value that
leaves float32 as it is."""


def _refuse_overrides(precision: Precision) -> None:
    for name, neutral in _ARITHMETIC_OVERRIDES.items():
        value = os.environ.get(name, "")
        # NVIDIA's switches TF32 off, which is neutral unless TF32 is what is wanted.
        is_neutral = value.upper() == neutral and not (neutral == "0" and precision == "tf32")
        if value and not is_neutral:
            raise ConfigError(
                f"Setting up torch failed for the environment variable {name}: expected it unset, got {value!r}. "
                "Unset it: the sweep's `precision` alone decides the arithmetic."
            )
