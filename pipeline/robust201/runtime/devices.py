"""Chooses a worker's device, measures its available memory and recognises out-of-memory errors."""

import torch

from robust201.core.errors import ConfigError
from robust201.core.precision import Precision, check_gradients, check_precision


def choose_device(setting: str, precision: Precision) -> torch.device:
    """Choose this process's device from the setting `execution.device`, and check that it supports the precision."""
    available = torch.cuda.is_available()
    if setting == "cuda" and not available:
        raise ConfigError(
            "Starting a worker failed for execution.device cuda: PyTorch cannot use a GPU on this machine. Set "
            "execution.device to auto or cpu, or install a CUDA build of PyTorch."
        )
    device = torch.device("cuda" if available and setting != "cpu" else "cpu")
    check_precision(precision, device)
    check_gradients(precision, device)
    return device


def device_memory(device: torch.device) -> tuple[int, int] | None:
    """Return the GPU memory that is available to this process and the GPU's total memory, in bytes; None for a CPU."""
    if device.type != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return free_bytes + torch.cuda.memory_reserved(device), total_bytes


_OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED", "unable to find an engine")
"""Messages of RuntimeErrors raised by torch's CPU allocator, the CUDA runtime, cuBLAS and cuDNN. The last one means
that no cuDNN execution plan had enough workspace."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or any error in its chain of `__context__`, was caused by a lack of memory."""
    if error is None:
        return False
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _OUT_OF_MEMORY_TEXTS):
        return True
    return is_out_of_memory(error.__context__)
