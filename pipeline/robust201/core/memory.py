"""Memory of this process: when it looks for garbage, and what it keeps or gives back of what was freed."""

import ctypes
import gc
import sys
from functools import cache
from typing import Any, Final

_USUAL: Final = gc.get_threshold()
_RARE: Final = (20_000, *_USUAL[1:])
"""Thresholds of Python's three generations: new objects before a look at the youngest, then looks before one at older
objects."""

# Parameters of glibc's mallopt (malloc.h). The first is capped at 32 MiB on 64-bit machines.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 32 * 2**20
_TRIM_BYTES = 2**30


def collect_rarely() -> None:
    """Look for garbage only after 20,000 new objects: in processes of robust201's own, until they compute.

    Imports make some 200,000 objects that the collector tracks, all of which stay: looking for garbage among them,
    while they are made and when the process ends, was a quarter of a short run.
    """
    gc.set_threshold(*_RARE)


def collect_as_usual() -> None:
    """End `collect_rarely`, if it was called: what a process that computes or reads shards drops may hold much memory.

    What was made before is never looked at again.
    """
    if gc.get_threshold() == _RARE:
        gc.freeze()
        gc.set_threshold(*_USUAL)


def give_back_freed_memory() -> None:
    """Give memory that Arrow and glibc keep for later back to the system.

    Arrow's allocator (mimalloc) keeps whatever it once had, several times what a reader of row groups uses, and glibc
    keeps freed blocks below the last one in use. Both are meant for programs that will soon ask for as much again.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = _glibc_function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep up to 1 GiB of freed memory in this process instead of giving it back.

    Feature maps of a few MiB come and go with every batch. By default glibc returns them to the kernel, which then has
    to map and zero every page again: up to a third of a gradient's time. The setting holds for the whole process, so
    the reference engine gains from it too. It changes no number.
    """
    mallopt = _glibc_function("mallopt")
    if mallopt is None:
        return False
    # Without the first, setting the second would fix the first at its small default.
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


@cache
def _glibc_function(name: str) -> Any:
    """Return a function of malloc.h; None where there is no glibc."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
