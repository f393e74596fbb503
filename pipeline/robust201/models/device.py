"""PyTorch's settings for the precision of float32 arithmetic.

Since version 2.9, PyTorch stores one setting for everything, one per backend and one per operation of a backend. An
inner setting of "none" inherits the outer one. Two older settings exist beside them: PyTorch refuses to return them
while they disagree with the newer settings.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from robust201.core.precision import Precision

_SETTINGS: Final = (
    ("generic", "all"),
    *((backend, operation) for operation in ("all", "conv", "rnn", "matmul") for backend in ("cuda", "mkldnn")),
)
"""Pairs of backend and operation, outer settings first; the settings of cuDNN and cuBLAS are those of "cuda"."""

# The public attributes are not enough: in PyTorch 2.13, setting `torch.backends.mkldnn.fp32_precision` sets the generic
# setting. Before 2.9, both functions are missing.
_get_setting: Any = getattr(torch._C, "_get_fp32_precision_getter", None)
_change_setting: Any = getattr(torch._C, "_set_fp32_precision_setter", None)


def set_precision(precision: Precision) -> Callable[[], None]:
    """Set the precision of float32 arithmetic on all devices; return a function that restores all previous settings.

    Convolutions, recurrent layers and matrix products on CUDA use TF32 for ``tf32``; everything else is IEEE float32,
    whatever the caller has set.
    """
    settings = {}
    for setting in _SETTINGS if _get_setting else ():
        settings[setting] = _get_setting(*setting)
        _change_setting(*setting, "none")  # so that the inner settings, read later, do not inherit this one
    matmul_precision, allows_cudnn_tf32 = torch.get_float32_matmul_precision(), _allows_cudnn_tf32()
    is_tf32 = precision == "tf32"
    _set_older_settings("high" if is_tf32 else "highest", allows_cudnn_tf32=is_tf32)
    for backend, operation in settings:
        _change_setting(backend, operation, "tf32" if is_tf32 and backend == "cuda" else "ieee")

    def restore() -> None:
        _set_older_settings(matmul_precision, allows_cudnn_tf32=allows_cudnn_tf32)
        for setting, value in settings.items():
            _change_setting(*setting, value)

    return restore


def _allows_cudnn_tf32() -> bool:
    """Return cuDNN's older setting while the newer settings do not request TF32."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the settings disagree
        return True


def _set_older_settings(matmul_precision: str, *, allows_cudnn_tf32: bool) -> None:
    # PyTorch also changes the newer settings of these operations.
    torch.set_float32_matmul_precision(matmul_precision)
    torch.backends.cudnn.allow_tf32 = allows_cudnn_tf32


@contextmanager
def use_precision(precision: Precision) -> Iterator[None]:
    """Set the precision as `set_precision` does, and restore the caller's settings afterwards."""
    restore = set_precision(precision)
    try:
        yield
    finally:
        restore()
