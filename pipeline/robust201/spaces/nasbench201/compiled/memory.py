"""Keeping freed memory, so that the next batch finds its pages mapped."""

import ctypes
import sys
from functools import cache

# Parameters of glibc's mallopt (malloc.h). The first is capped at 32 MiB on 64-bit machines.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 32 * 2**20
_TRIM_BYTES = 2**30


@cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep up to 1 GiB of freed memory in this process instead of giving it back.

    Feature maps of a few MiB come and go with every batch. By default glibc returns them to the kernel, which then has
    to map and zero every page again: up to a third of a gradient's time. The setting holds for the whole process, so
    the reference engine gains from it too. It changes no number.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Without the first, setting the second would fix the first at its small default.
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
