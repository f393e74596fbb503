"""Read and set all of PyTorch's settings for the precision of float32 arithmetic."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from robust201.networks.device import set_precision

_GET: Any = getattr(torch._C, "_get_fp32_precision_getter", None)
_SET: Any = getattr(torch._C, "_set_fp32_precision_setter", None)

_BACKENDS: Any = torch.backends

OPERATIONS = [(backend, name) for backend in ("cuda", "mkldnn") for name in ("conv", "rnn", "matmul")] if _GET else []
SETTINGS = [("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), *OPERATIONS] if _GET else []

FP32_SETTINGS = (*["ieee"] * len(SETTINGS), "highest", False)
"""Value of `effective_settings` for an evaluation in fp32."""


def change_setting(backend: str, operation: str, value: str) -> None:
    _SET(backend, operation, value)


def effective_settings() -> tuple[str | bool, ...]:
    """Return the effective `fp32_precision` settings and the two older settings; PyTorch raises if they disagree."""
    newer_settings = [_GET(*setting) for setting in SETTINGS]
    return (*newer_settings, torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)


def raw_settings() -> list[str]:
    """Return the `fp32_precision` settings without inheritance, and the two older ones; leave the former at "none"."""
    values = []
    for setting in SETTINGS:
        values.append(_GET(*setting))
        _SET(*setting, "none")
    values.append(torch.get_float32_matmul_precision())
    try:
        values.append(str(torch.backends.cudnn.allow_tf32))
    except RuntimeError as error:
        values.append(str(error))
    return values


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restore all settings at the end of a test."""
    restore = set_precision("fp32")
    restore()
    try:
        yield
    finally:
        restore()


@contextmanager
def tf32_everywhere() -> Iterator[None]:
    """Request TF32 as a user would, through PyTorch's global settings."""
    with settings_restored():
        torch.set_float32_matmul_precision("high")
        _BACKENDS.fp32_precision = "tf32"
        yield
