"""Read third-party pickles without executing code that they name.

A pickle is a program that imports every global it names. `load_torch` reads `torch.save` files with PyTorch's own list
of allowed globals (``weights_only=True``). `load_pickle` has a short list for the other published pickles: NATS-Bench
records (`NATS-tss-v1_0-3ffb9-full/{index:06d}.pickle.pbz2`), whose tensors contain whole `torch.save` files, and the
Python 2 pickles of CIFAR and ImageNet16.
"""

import io
import pickle
import re
import warnings
from typing import Any, BinaryIO

import numpy as np

from robust201.core.errors import CheckpointError, InputError, one_line

_ALLOWED_GLOBALS = frozenset(
    {
        "_codecs.encode",
        "collections.OrderedDict",
        "numpy.dtype",
        "numpy.ndarray",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "torch._utils._rebuild_tensor_v2",
    }
)


class _AllowListUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # NumPy 2 renamed numpy.core; a file contains the name used by the NumPy that wrote it.
        module = re.sub(r"^numpy\.core\b", "numpy._core", module)
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            # The published records contain a whole torch.save file here, which PyTorch would load without restriction.
            return lambda raw: _load_tensors(io.BytesIO(raw))
        if f"{module}.{name}" not in _ALLOWED_GLOBALS or "." in name:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")
        return super().find_class(module, name)


def _load_tensors(stream: BinaryIO) -> Any:
    import torch

    with warnings.catch_warnings():
        # torch warns about pickle protocols newer than its own; it raises an error for files it cannot read.
        warnings.simplefilter("ignore", UserWarning)
        return torch.load(stream, map_location="cpu", weights_only=True)


def _describe_damage(error: BaseException) -> str:
    """Describe why reading failed: a forbidden global, or a damaged file with the first line of the error."""
    if match := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return f"a file that names {match[1].rstrip('.')}, whose code would be executed"
    return f"a truncated, damaged or unrelated file ({one_line((str(error).splitlines() or [''])[0] or error)})"


def load_pickle(
    stream: BinaryIO, *, name: str, error: type[InputError] = CheckpointError, encoding: str = "ASCII"
) -> Any:
    """Read one pickle of containers, arrays and CPU tensors from a decompressed stream.

    `encoding` is for Python 2 strings: ``"latin1"`` for CIFAR and ImageNet16.

    Raises:
        InputError (its subclass `error`): the pickle, or a tensor nested in it, names a global that is not allowed; or
            the pickle is truncated or damaged.
    """
    try:
        content = io.BytesIO(stream.read())  # to the end, where a compressed file has its checksum
        return _AllowListUnpickler(content, encoding=encoding).load()
    except Exception as damage:  # a damaged pickle can raise any error of the allowed functions
        raise error(
            f"Unpickling failed for {name}: expected a pickle of arrays and tensors, got {_describe_damage(damage)}. "
            "Get the file again from its publisher."
        ) from damage


_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE_PROTOCOLS = (b"\x02", b"\x03", b"\x04", b"\x05")
TORCH_MAGIC_BYTES = 8
"""Number of leading bytes by which `is_torch_file` recognises a file."""


def is_torch_file(head: bytes) -> bool:
    """Return whether a file that begins with `head` looks like a `torch.save` file.

    Such a file is a zip archive or, before PyTorch 1.6, a pickle. A safetensors file begins with an eight-byte length.
    The first four bytes of the length may look like either format, but the other four are 0.
    """
    is_pickle = head[:1] == pickle.PROTO and head[1:2] in _PICKLE_PROTOCOLS
    return any(head[4:TORCH_MAGIC_BYTES]) and (is_pickle or head.startswith(_ZIP_MAGIC))


def load_torch(stream: BinaryIO, name: str) -> Any:
    """Read a `torch.save` file that contains only containers, tensors and NumPy float64 scalars.

    Tensors are loaded to the CPU. The scalars occur in NAS-Bench-201's records (`params`). NumPy 2 renamed the module
    of their constructor, but the published files contain the old name. The stream must be seekable and at the beginning
    of the file.

    Raises:
        CheckpointError: the file names any other global, is TorchScript, or is truncated or damaged.
    """
    import torch

    scalar_constructor = np.float64(0).__reduce__()[0]
    numpy_globals: list[Any] = [
        (scalar_constructor, "numpy.core.multiarray.scalar"),
        (scalar_constructor, "numpy._core.multiarray.scalar"),
        np.dtype,
        np.dtypes.Float64DType,
    ]
    try:
        with torch.serialization.safe_globals(numpy_globals):
            return _load_tensors(stream)
    except Exception as damage:  # PyTorch raises errors of many types for damaged files
        raise CheckpointError(
            f"Reading weights failed for {name}: expected a torch.save file of containers and tensors, got "
            f"{_describe_damage(damage)}. In a program that can load the file, save only its tensors (for a network: "
            "torch.save(network.state_dict(), 'weights.pth')), and use the new file."
        ) from damage
