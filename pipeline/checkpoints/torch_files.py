"""Files written by `torch.save`, read without running code that they name."""

import pickle
import warnings
from typing import Any, BinaryIO

from pipeline.errors import CheckpointError
from pipeline.unpickling import forbidden_torch_global

# What torch.load raises for bytes that it cannot read; each was seen on a cut or overwritten file.
_DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    MemoryError,
    OverflowError,
)


def load_torch(stream: BinaryIO, name: str) -> Any:
    """Read a `torch.save` file: containers, CPU tensors and numpy float64 scalars, nothing else.

    The scalars are in NAS-Bench-201's records (`params`); numpy renamed their constructor's module in version 2, and
    the published files carry the old name.

    Args:
        stream: the file; it has to be seekable.
        name: file for messages.

    Returns:
        What was saved, with tensors on the CPU.

    Raises:
        CheckpointError: the file names another global, or is truncated or damaged.
    """
    import numpy as np
    import torch

    scalar = np.float64(0).__reduce__()[0]
    numpy_names: list[Any] = [
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
        np.dtype,
        np.dtypes.Float64DType,
    ]
    try:
        with torch.serialization.safe_globals(numpy_names), warnings.catch_warnings():
            # torch warns of pickle protocols newer than its own; what it cannot read it refuses.
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(stream, map_location="cpu", weights_only=True)
    except _DAMAGE as error:
        forbidden = forbidden_torch_global(error)
        got = "a truncated, damaged or foreign one" if forbidden is None else f"one that names {forbidden}"
        raise CheckpointError(
            f"Reading weights failed for {name}: expected a torch.save file of containers and tensors, got {got}. "
            "Get the file again from its publisher; never open it without weights_only."
        ) from error
