"""Read third-party pickles without executing their code: only allow-listed globals are accepted.

A pickle is a program that imports every global it names. `load_pickle` looks each name up in a table of safe
constructors and rejects all others, so a file cannot import anything. The constructors check their arguments, because
a file may request a harmless type with a huge size.

`load_pickle` reads NATS-Bench records (`NATS-tss-v1_0-3ffb9-full/{index:06d}.pickle.pbz2`), whose tensors contain
whole `torch.save` files, and the Python 2 pickles of CIFAR and ImageNet16. `load_torch` reads `torch.save` files under
the same restriction.
"""

import io
import math
import pickle
import re
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import CheckpointError, InputError

# Placeholder for numpy.ndarray in pickles; unlike the class, it is immutable and not callable.
_NDARRAY = "numpy.ndarray"
_ALLOWED_DTYPE_KINDS = "biuf"

# A function's __call__ is an immutable object, while a pickle's BUILD opcode could change the attributes of a function.
_make_immutable: Callable[[Callable[..., Any]], Any] = attrgetter("__call__")

# Errors that the unpickler, NumPy and torch raise on a damaged or malicious file.
_DAMAGED_FILE_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    RuntimeError,
    ImportError,
    AssertionError,
    struct.error,
)


class _ForbiddenGlobalError(Exception):
    """A pickle names a global that is not allowed."""


class _TooLargeError(Exception):
    """A pickle is larger than the caller allows."""


class _Dtype:
    """A numeric dtype under construction.

    NumPy's own dtypes are not used, because they accept layouts that point outside the array.
    """

    __slots__ = ("_dtype",)

    def __init__(self, spec: str | bytes) -> None:
        dtype = np.dtype(spec.decode("ascii") if isinstance(spec, bytes) else spec)
        if dtype.kind not in _ALLOWED_DTYPE_KINDS:
            raise ValueError(f"arrays of dtype {dtype} are not supported")
        self._dtype = dtype

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order, *layout_fields = state[1:5]
        if any(field is not None for field in layout_fields):
            raise ValueError("structured dtypes are not supported")
        if order in {">", b">"}:
            self._dtype = self._dtype.newbyteorder(">")

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype


def _dtype_of(dtype: object) -> np.dtype[Any]:
    if not isinstance(dtype, _Dtype):
        raise TypeError("an array without a numeric dtype")
    return dtype.dtype


class _Array(np.ndarray[Any, np.dtype[Any]]):
    """An array under construction, whose pickled state contains a `_Dtype`."""

    def __setstate__(self, state: Any, /) -> None:
        shape, dtype, is_fortran, raw = state[-4:]
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        super().__setstate__((1, shape, _dtype_of(dtype), int(is_fortran), raw))  # type: ignore[arg-type]


def _reconstruct_array(array_type: object, shape: object, _typecode: object) -> _Array:
    if array_type != _NDARRAY or shape != (0,):
        raise ValueError(f"an array of unsupported type {array_type} or initial shape {shape}")
    return _Array((0,), dtype=np.uint8)


def _array_from_buffer(raw: bytes | bytearray, dtype: object, shape: tuple[int, ...], order: str) -> NDArray[Any]:
    return np.frombuffer(bytearray(raw), _dtype_of(dtype)).reshape(shape, order="F" if order == "F" else "C")


def _numpy_dtype(spec: str | bytes, _align: object = False, _copy: object = True) -> _Dtype:
    return _Dtype(spec)


def _numpy_scalar(dtype: object, raw: bytes | str) -> Any:
    return np.frombuffer(raw.encode("latin1") if isinstance(raw, str) else raw, _dtype_of(dtype), count=1)[0]


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding not in {"latin1", "latin-1"}:
        raise ValueError(f"bytes in the unsupported encoding {encoding}")
    return text.encode("latin1")


def _load_storage(raw: bytes) -> Any:
    # The published records contain a whole torch.save file here; PyTorch itself would unpickle it without restriction.
    import torch

    try:
        return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        forbidden = _forbidden_torch_global(error)
        if forbidden is None:
            raise ValueError("a tensor's bytes cannot be read") from error
        raise _ForbiddenGlobalError(forbidden) from error


def _rebuild_tensor(storage: Any, offset: int, size: Any, stride: Any, *_ignored: object) -> Any:
    import torch

    if not isinstance(storage, torch.storage.TypedStorage):
        raise TypeError("a tensor without a storage")
    n_values = storage._size()  # type: ignore[no-untyped-call]  # the public len() warns
    if offset < 0 or offset + math.prod(size) > n_values:
        raise ValueError(f"a tensor of shape {tuple(size)} in a storage of {n_values} values")
    return torch._utils._rebuild_tensor_v2(storage, offset, size, stride, False, OrderedDict())  # type: ignore[no-untyped-call]


def _forbidden_torch_global(error: BaseException) -> str | None:
    """Return the name of the global that made `torch.load(…, weights_only=True)` fail; None for other errors."""
    match = re.search(r"GLOBAL ([\w.]+)", str(error))
    return None if match is None else match.group(1).rstrip(".")


def _numpy_1_and_2_globals(module: str, name: str, constructor: Any) -> dict[tuple[str, str], Any]:
    # NumPy 2 renamed numpy.core to numpy._core; a file contains the name used by the NumPy that wrote it.
    return {(f"numpy.{package}.{module}", name): constructor for package in ("core", "_core")}


NUMPY_GLOBALS: Mapping[tuple[str, str], Any] = MappingProxyType(
    {
        ("numpy", "ndarray"): _NDARRAY,
        ("numpy", "dtype"): _make_immutable(_numpy_dtype),
        ("_codecs", "encode"): _make_immutable(_encode_latin1),
        **_numpy_1_and_2_globals("multiarray", "_reconstruct", _make_immutable(_reconstruct_array)),
        **_numpy_1_and_2_globals("multiarray", "scalar", _make_immutable(_numpy_scalar)),
        **_numpy_1_and_2_globals("numeric", "_frombuffer", _make_immutable(_array_from_buffer)),
    }
)
"""Globals of numeric arrays and scalars, for CIFAR's Python version and ImageNet16 (with ``encoding="latin1"``)."""

NATS_GLOBALS: Mapping[tuple[str, str], Any] = MappingProxyType(
    {
        ("collections", "OrderedDict"): OrderedDict,
        ("numpy", "dtype"): _make_immutable(_numpy_dtype),
        **_numpy_1_and_2_globals("multiarray", "scalar", _make_immutable(_numpy_scalar)),
        ("torch._utils", "_rebuild_tensor_v2"): _make_immutable(_rebuild_tensor),
        ("torch.storage", "_load_from_bytes"): _make_immutable(_load_storage),
    }
)
"""Globals of NATS-Bench records: ordered dictionaries, NumPy scalars and CPU tensors."""


class _AllowListUnpickler(pickle._Unpickler):
    """Unpickler in Python, because nine bytes can make the C implementation allocate 64 GB for its memo."""

    def __init__(self, stream: BinaryIO, allowed: Mapping[tuple[str, str], Any], encoding: str) -> None:
        super().__init__(stream, encoding=encoding)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[module, name]
        except KeyError:
            raise _ForbiddenGlobalError(f"{module}.{name}") from None


class _BoundedStream(io.RawIOBase):
    """Stream that limits the number of bytes read, because a small compressed file could exhaust the memory."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        super().__init__()
        self._read: Callable[[int], bytes] = stream.read
        self._n_remaining = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        chunk = self._read(len(buffer))
        self._n_remaining -= len(chunk)
        if self._n_remaining < 0:
            raise _TooLargeError
        buffer[: len(chunk)] = chunk
        return len(chunk)


def _replace_array_subclasses(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.view(np.ndarray)
    if type(value) is dict:
        return {key: _replace_array_subclasses(item) for key, item in value.items()}
    return value


def load_pickle(
    stream: BinaryIO,
    *,
    name: str,
    allowed: Mapping[tuple[str, str], Any] = NATS_GLOBALS,
    error: type[InputError] = CheckpointError,
    encoding: str = "ASCII",
    max_bytes: int = 1 << 33,
) -> Any:
    """Read one pickle from a decompressed stream without executing any code that it names.

    `allowed` maps ``(module, name)`` to the object that the pickle receives for it: `NATS_GLOBALS` or `NUMPY_GLOBALS`.
    `encoding` is for Python 2 strings: ``"latin1"`` for CIFAR and ImageNet16. `max_bytes` limits the decompressed
    size. Numeric arrays at the top level and in nested dictionaries are returned as `numpy.ndarray`, not a subclass.

    Raises:
        InputError (its subclass `error`): the pickle, or a tensor nested in it, names a global that is not allowed; or
            the pickle is truncated, damaged or larger than `max_bytes`.
    """
    bounded = io.BufferedReader(_BoundedStream(stream, max_bytes), buffer_size=1 << 16)
    try:
        return _replace_array_subclasses(_AllowListUnpickler(bounded, allowed, encoding).load())
    except _ForbiddenGlobalError as forbidden:
        allowed_names = ", ".join(sorted({".".join(key) for key in allowed}))
        raise error(
            f"Unpickling failed for {name}: it names {forbidden}, but only these globals are allowed: {allowed_names}. "
            "Other globals could execute code of the file. Get the file again from its publisher."
        ) from None
    except _TooLargeError:
        raise error(
            f"Unpickling failed for {name}: it has more than {max_bytes:,} bytes after decompression. "
            "Get the file again from its publisher."
        ) from None
    except _DAMAGED_FILE_ERRORS as damage:
        reason = (str(damage).splitlines() or [""])[0] or type(damage).__name__
        raise error(
            f"Unpickling failed for {name}: the pickle is truncated or damaged ({reason}). Get the file again."
        ) from damage


_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE_PROTOCOLS = range(2, 6)
TORCH_MAGIC_BYTES = 8
"""Number of leading bytes by which `is_torch_file` recognises a file."""


def is_torch_file(head: bytes) -> bool:
    """Return whether a file that begins with `head` looks like a `torch.save` file.

    Such a file is a zip archive or, before PyTorch 1.6, a pickle. A safetensors file begins with an eight-byte length.
    Its first four bytes may look like either format, but its other four bytes are 0.
    """
    is_pickle = head[:1] == pickle.PROTO and head[1] in _PICKLE_PROTOCOLS
    return any(head[4:TORCH_MAGIC_BYTES]) and (is_pickle or head.startswith(_ZIP_MAGIC))


def _check_torch_archive(stream: BinaryIO) -> str | None:
    """Return the reason to reject a zip archive (it is TorchScript or compressed), or None."""
    if stream.read(len(_ZIP_MAGIC)) != _ZIP_MAGIC:
        return None
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
    if any(PurePosixPath(member.filename).name == "constants.pkl" for member in members):
        return _TORCHSCRIPT
    # torch.save never compresses.
    if sum(member.file_size for member in members) > stream.seek(0, io.SEEK_END):
        return "a compressed archive"
    return None


_TORCHSCRIPT = "a TorchScript archive, which contains code"
_SAVE_TENSORS = (
    "In a program that can load the file, save only its tensors (for a network: torch.save(network.state_dict(), "
    "'weights.pth')), and use the new file"
)


def load_torch(stream: BinaryIO, name: str, *, what: str = "weights", error: type[InputError] = CheckpointError) -> Any:
    """Read a `torch.save` file that contains only containers, tensors and NumPy float64 scalars.

    Tensors are loaded to the CPU. The scalars occur in NAS-Bench-201's records (`params`). NumPy 2 renamed the module
    of their constructor, but the published files contain the old name. The stream must be seekable and at the beginning
    of the file. `what` names the content in error messages.

    Raises:
        InputError (its subclass `error`): the file names any other global, is TorchScript, or is compressed, truncated
            or damaged.
    """
    import torch

    message_start = f"Reading {what} failed for {name}: expected a torch.save file of containers and tensors, got"
    scalar_constructor = np.float64(0).__reduce__()[0]
    numpy_globals: list[Any] = [
        (scalar_constructor, "numpy.core.multiarray.scalar"),
        (scalar_constructor, "numpy._core.multiarray.scalar"),
        np.dtype,
        np.dtypes.Float64DType,
    ]
    try:
        problem = _check_torch_archive(stream)
        if problem is None:
            stream.seek(0)
            with torch.serialization.safe_globals(numpy_globals), warnings.catch_warnings():
                # torch warns about pickle protocols newer than its own; it raises an error for files it cannot read.
                warnings.simplefilter("ignore", UserWarning)
                return torch.load(stream, map_location="cpu", weights_only=True)
    except (*_DAMAGED_FILE_ERRORS, zipfile.BadZipFile) as damage:
        forbidden = _forbidden_torch_global(damage)
        if forbidden is None:
            raise error(
                f"{message_start} a truncated, damaged or unrelated file. Get or save the file again."
            ) from damage
        raise error(
            f"{message_start} a file that names {forbidden}, whose code would be executed. {_SAVE_TENSORS}. Never load "
            "other people's files without weights_only=True."
        ) from damage
    advice = f"{_SAVE_TENSORS}." if problem == _TORCHSCRIPT else "Get the file again from its publisher."
    raise error(f"{message_start} {problem}. {advice}")
