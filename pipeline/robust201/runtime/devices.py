"""The device of a worker: which it is, what memory it has, and whether an error says that it ran out."""

import torch

from robust201.core.errors import ConfigError
from robust201.core.precision import Precision, check_gradients, check_precision


def choose_device(choice: str, precision: Precision) -> torch.device:
    """Choose where this process computes, by `execution.device` and the precision."""
    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        raise ConfigError(
            "Starting a worker failed for execution.device cuda: expected a GPU that PyTorch can use, got none. "
            "Set it to auto or cpu, or install a CUDA build of PyTorch."
        )
    device = torch.device("cuda" if available and choice != "cpu" else "cpu")
    check_precision(precision, device)
    check_gradients(precision, device)
    return device


def device_memory(device: torch.device) -> tuple[int, int] | None:
    """Bytes of a GPU that are free for this process and bytes that it has; None for a CPU, whose batches are small."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device), total


_SIGNS_OF_NO_MEMORY = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED", "unable to find an engine")
"""What torch's CPU allocator, the CUDA runtime, cuBLAS and cuDNN say in plain RuntimeErrors; the last, where no plan of
cuDNN's finds room to work."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Say whether memory ran out, be it in an error that another one followed."""
    if error is None:
        return False
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS_OF_NO_MEMORY):
        return True
    return is_out_of_memory(error.__context__)
