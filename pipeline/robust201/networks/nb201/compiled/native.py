"""Interface to the library compiled from native.c: its path, its structures, and whether it can be used.

Each structure has the same fields as in native.c, in the same order. Some have longer names here: `row_stride`,
`pixel_stride`, `image_stride` and `channel_stride` (in native.c: `row`, `pixel`, `image` and `plane`);
`input_channels` and `output_channels` (`inputs` and `outputs`); `external_number` (`external`); `is_retained` (`kept`);
`border_scaling` (`scaled`); and `n_images` (`group`).
"""

import ctypes
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from robust201.networks.device import has_avx512

LIBRARY: Final = Path(__file__).with_name("_native.so")
C_SOURCE: Final = Path(__file__).with_name("native.c")
LANES: Final = 16  # float32 numbers in a vector of AVX-512
MAX_TAPS: Final = 16
MAX_SOURCES: Final = 8
MAX_EXTERNALS: Final = 64

LOAD, CONVOLVE, SUM, SCALE, HALVE, SHUFFLE = range(6)
"""Kinds of operations, in the order of native.c."""

_Int = ctypes.c_int64


class ViewStruct(ctypes.Structure):
    """Location of an operation's pixels in a map: its buffer, first pixel, and strides in floats (see native.c)."""

    _fields_ = (("buffer", _Int), ("offset", _Int), ("row_stride", _Int), ("pixel_stride", _Int))


class BufferStruct(ctypes.Structure):
    """Memory of a map: an external tensor, or a part of the arena (see native.c)."""

    _fields_ = (("external_number", _Int), ("offset", _Int), ("image_stride", _Int), ("is_retained", _Int))


class OperationStruct(ctypes.Structure):
    """One operation (see native.c and `lowering.Operation`)."""

    _fields_ = (
        *((name, _Int) for name in ("kind", "height", "width", "input_channels", "output_channels", "step")),
        *((name, _Int) for name in ("n_taps", "channel_stride", "n_pools", "n_sources", "border_scaling")),
        *((name, _Int) for name in ("top", "left", "map_height", "map_width")),
        ("taps", _Int * MAX_TAPS),
        ("sources", ViewStruct * MAX_SOURCES),
        *((name, ViewStruct) for name in ("add", "tape", "add_after_mask", "raw", "rectified")),
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("factors", ctypes.c_float * MAX_SOURCES),
    )


class SegmentStruct(ctypes.Structure):
    """Operations `first` to `stop` (excluded), which run together on `n_images` images at a time (see native.c)."""

    _fields_ = (("first", _Int), ("stop", _Int), ("n_images", _Int))


class RegionStruct(ctypes.Structure):
    """The region of an operation's output that is computed (see native.c)."""

    _fields_ = (("top", _Int), ("left", _Int), ("height", _Int), ("width", _Int))


_STRUCTURES: Final = (OperationStruct, BufferStruct, SegmentStruct, RegionStruct)


@cache
def unavailable_reason() -> str | None:
    """Return the reason why the native library cannot be used here, or None if it can."""
    if not LIBRARY.is_file():
        return "it was not compiled when robust201 was installed"
    if not has_avx512():
        return "this processor has no AVX-512, or PyTorch does not use it"
    try:
        if not _is_intact(LIBRARY):
            return f"{LIBRARY} is damaged, or was compiled by an earlier version; install robust201 again"
        library = open_library()
        compiled_sizes = [library.robust201_layout(index) for index in range(len(_STRUCTURES))]
        compiled_hash = library.robust201_source().decode()
        source_hash = hashlib.sha256(C_SOURCE.read_bytes()).hexdigest()
    except (OSError, AttributeError) as error:
        return f"{LIBRARY} cannot be loaded: {error}"
    # Check both: the hash detects changes to native.c, and the sizes detect changes to the structures in this file.
    if compiled_hash != source_hash or compiled_sizes != [ctypes.sizeof(structure) for structure in _STRUCTURES]:
        return f"{LIBRARY} was compiled from another version of {C_SOURCE.name}; install robust201 again"
    return None


def _is_intact(library: Path) -> bool:
    """Return whether a file ends with the hash of the bytes before it; a damaged library could crash the process."""
    content = library.read_bytes()
    digest_size = hashlib.sha256().digest_size
    return hashlib.sha256(content[:-digest_size]).digest() == content[-digest_size:]


@cache
def open_library() -> ctypes.CDLL:
    """Return the library, which must be available (see `unavailable_reason`)."""
    library = ctypes.CDLL(str(LIBRARY))
    library.robust201_layout.restype, library.robust201_layout.argtypes = _Int, (ctypes.c_int,)
    library.robust201_source.restype, library.robust201_source.argtypes = ctypes.c_char_p, ()
    pointer = ctypes.c_void_p
    library.robust201_run.restype = None
    library.robust201_run.argtypes = (pointer, pointer, _Int, pointer, pointer, pointer, pointer, _Int, _Int)
    library.robust201_run_regions.restype = None
    library.robust201_run_regions.argtypes = (
        *(pointer, pointer, _Int, pointer, pointer, pointer, pointer),
        *(pointer, _Int, pointer, _Int, _Int),
    )
    return library
