"""Memory of this process: when garbage is collected, and whether freed memory is returned to the operating system."""

import ctypes
import gc
import sys
from functools import cache
from typing import Any, Final

_DEFAULT_THRESHOLDS: Final = gc.get_threshold()
_STARTUP_THRESHOLDS: Final = (20_000, *_DEFAULT_THRESHOLDS[1:])
"""Thresholds of Python's three generations. The first is the number of new objects that triggers a collection of the
youngest generation; the others are the numbers of collections of one generation that trigger one of the next."""

# Parameters of glibc's mallopt (malloc.h). M_MMAP_THRESHOLD is capped at 32 MiB on 64-bit machines.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 32 * 2**20
_TRIM_BYTES = 2**30


def reduce_gc_frequency() -> None:
    """Collect garbage only after every 20,000 new objects, while a process of robust201 starts.

    Imports create about 200,000 tracked objects that live until exit. Scanning them during the imports and at exit took
    a quarter of the time of a short run.
    """
    gc.set_threshold(*_STARTUP_THRESHOLDS)


def restore_gc_thresholds() -> None:
    """Undo `reduce_gc_frequency` before a computation, which may leave large objects for the collector.

    Objects that already exist are never scanned again (`gc.freeze`). Thresholds that other code has set are kept.
    """
    if gc.get_threshold() == _STARTUP_THRESHOLDS:
        gc.freeze()
        gc.set_threshold(*_DEFAULT_THRESHOLDS)


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory in this process instead of returning it to the operating system.

    Feature maps of a few MiB are allocated and freed with every batch. By default glibc returns them to the kernel,
    which must map and zero every page again; that takes up to a third of the time of a gradient computation. The
    setting is process-wide, so the reference engine benefits from it, too. It does not affect results.

    Returns:
        Whether glibc accepted the setting; False if there is no glibc.
    """
    mallopt = _glibc_function("mallopt")
    if mallopt is None:
        return False
    # Setting only the trim threshold would keep the mmap threshold at its small default.
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


@cache
def _glibc_function(function_name: str) -> Any:
    """Return a function of malloc.h; None if there is no glibc."""
    return getattr(ctypes.CDLL(None), function_name, None) if sys.platform.startswith("linux") else None
