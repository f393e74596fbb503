"""Giving freed memory back, so that what a process holds is what it uses."""

import ctypes
import sys
from functools import cache
from typing import Any

import pyarrow as pa


def give_back_freed_memory() -> None:
    """Give memory that Arrow and glibc keep for later back to the system.

    Arrow's allocator (mimalloc) keeps whatever it once had, several times what a reader of row groups uses, and glibc
    keeps freed blocks below the last one in use. Both are meant for programs that will soon ask for as much again.
    """
    pa.default_memory_pool().release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    """`malloc_trim` of glibc (malloc.h); None where there is no glibc."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
