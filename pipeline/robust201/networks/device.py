"""The device that computes: its choice, memory, arithmetic, random state, copies from the host, and CUDA graphs.

Other modules name CUDA only as a device in settings, and change no setting of PyTorch but the number of threads
(`tests/project/test_source_rules.py`).
"""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Final

import torch

from robust201.core.errors import ConfigError
from robust201.core.precision import MAX_THREADS, Precision, check_precision

# --- choice -----------------------------------------------------------------------------------------------------------


def choose_device(setting: str, precision: Precision) -> torch.device:
    """Return this process's device for the setting `execution.device`, after checking that it supports the precision.

    Raises:
        ConfigError: PyTorch cannot use a GPU that the setting requires, or see `check_device` and `check_gradients`.
    """
    is_available = torch.cuda.is_available()
    if setting == "cuda" and not is_available:
        raise ConfigError(
            "Starting a worker failed for execution.device cuda: PyTorch cannot use a GPU on this machine. Set "
            "execution.device to auto or cpu, or install a CUDA build of PyTorch."
        )
    device = torch.device("cuda" if is_available and setting != "cpu" else "cpu")
    check_device(device, precision)
    check_gradients(device, precision)
    return device


def available_device(device: torch.device | str) -> torch.device:
    """Return a device, with its index, after checking that it is available; ``auto`` is a GPU if PyTorch can use one.

    Raises:
        ConfigError: the device is not available.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen_device = torch.device(device)
        torch.ones(1, device=chosen_device).item()  # fails on `meta`, which computes only shapes
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Choosing a device failed for {str(device)!r}: PyTorch cannot use it "
            f"({str(error).splitlines()[0].rstrip('.')}). Choose another device, such as cpu."
        ) from error
    # A device type without an index means the current device. A tensor on it shows the index.
    return torch.empty(0, device=chosen_device).device


def is_gpu(device: torch.device) -> bool:
    """Return whether a device is a GPU that PyTorch uses through CUDA."""
    return device.type == "cuda"


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU's model, or the CPU's architecture."""
    return torch.cuda.get_device_name(device) if is_gpu(device) else platform.machine()


def gpu_names() -> list[str]:
    """Return the names of the GPUs that PyTorch can use."""
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def cuda_version() -> str | None:
    """Return the version of CUDA for which PyTorch was built; None for a build without CUDA."""
    return torch.version.cuda


def check_device(device: torch.device, precision: Precision) -> None:
    """Check that a precision exists and that a device supports it.

    Raises:
        ConfigError: there is no such precision, or the device does not support it. A device without TF32 would ignore
            PyTorch's settings and compute in float32, so its results would be wrongly labelled tf32.
    """
    check_precision(precision)
    if precision == "tf32" and not _has_tf32(device):
        got = "a CPU" if device.type == "cpu" else describe_device(device)
        raise ConfigError(
            "Choosing the arithmetic failed for precision tf32: expected a CUDA device of compute capability 8.0 or "
            f"higher, got {got}. Set `precision` to fp32 or bf16, or use such a device."
        )


def _has_tf32(device: torch.device) -> bool:
    return is_gpu(device) and torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def has_avx512() -> bool:
    """Return whether this CPU has AVX-512 and PyTorch uses it."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def check_gradients(device: torch.device, precision: Precision) -> None:
    """Check that a device computes gradients correctly in a precision.

    On CPUs without AVX-512, PyTorch 2.13's transposed convolutions in bfloat16 are wrong
    (docs/protocol/images-and-processors.md).

    Raises:
        ConfigError: the gradients would be wrong.
    """
    if precision == "bf16" and device.type == "cpu" and not has_avx512():
        raise ConfigError(
            "Choosing the arithmetic failed for precision bf16: this CPU has no AVX-512, and without it PyTorch "
            "computes wrong gradients in bfloat16. Set `precision` to fp32, or compute on a GPU or a CPU with AVX-512."
        )


def feature_map_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of feature maps and convolution weights: bfloat16 or float32."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


# --- memory -----------------------------------------------------------------------------------------------------------


def device_memory(device: torch.device) -> tuple[int, int] | None:
    """Return the GPU memory that is available to this process and the GPU's total memory, in bytes; None for a CPU."""
    if not is_gpu(device):
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return free_bytes + torch.cuda.memory_reserved(device), total_bytes


def peak_bytes(device: torch.device, compute: Callable[[], object]) -> int:
    """Return a function's peak GPU memory in bytes, beyond the memory that is already allocated."""
    torch.cuda.reset_peak_memory_stats(device)
    n_allocated = torch.cuda.memory_allocated(device)
    compute()
    return torch.cuda.max_memory_allocated(device) - n_allocated


def free_cached_memory(device: torch.device) -> None:
    """Return PyTorch's cached memory to the GPU."""
    if is_gpu(device):
        torch.cuda.empty_cache()


_OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED", "unable to find an engine")
"""Parts of the messages of RuntimeErrors raised by torch's CPU allocator, the CUDA runtime, cuBLAS and cuDNN. The last
one means that no cuDNN execution plan had enough workspace."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or any error in its chain of `__context__`, was caused by a lack of memory."""
    if error is None:
        return False
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _OUT_OF_MEMORY_TEXTS):
        return True
    return is_out_of_memory(error.__context__)


# --- copies and random state ------------------------------------------------------------------------------------------


def copy_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the host to a device. Copies to a GPU use pinned memory, and the host does not wait."""
    return tensor.pin_memory().to(device, non_blocking=True) if is_gpu(device) else tensor.to(device)


@contextmanager
def restored_random_state(device: torch.device) -> Iterator[None]:
    """Restore PyTorch's random state after a block.

    Seeding also seeds every GPU, so a block that computes on a GPU restores all of them. A block that computes on the
    CPU must not initialise CUDA.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if is_gpu(device) else ()):
        yield


# --- arithmetic -------------------------------------------------------------------------------------------------------

_PRECISION_SETTINGS: Final = (
    ("generic", "all"),
    *((backend, operation) for operation in ("all", "conv", "rnn", "matmul") for backend in ("cuda", "mkldnn")),
)
"""Pairs of backend and operation, outer settings first. The backend "cuda" includes cuDNN and cuBLAS.

Since version 2.9, PyTorch stores one setting for everything, one per backend and one per operation of a backend. An
inner setting of "none" inherits the outer one. Two older settings exist beside them: PyTorch refuses to return them
while they disagree with the newer settings."""

# The public attributes are not enough: in PyTorch 2.13, setting `torch.backends.mkldnn.fp32_precision` sets the generic
# setting. Before 2.9, both functions are missing.
_get_setting: Any = getattr(torch._C, "_get_fp32_precision_getter", None)
_change_setting: Any = getattr(torch._C, "_set_fp32_precision_setter", None)


def set_precision(precision: Precision) -> Callable[[], None]:
    """Set the precision of float32 arithmetic on all devices; return a function that restores all previous settings.

    Convolutions, recurrent layers and matrix products on CUDA use TF32 for ``tf32``; everything else is IEEE float32,
    whatever the caller has set.
    """
    settings = {}
    for setting in _PRECISION_SETTINGS if _get_setting else ():
        settings[setting] = _get_setting(*setting)
        _change_setting(*setting, "none")  # so that the inner settings, read later, do not inherit this one
    matmul_precision, allows_cudnn_tf32 = torch.get_float32_matmul_precision(), _allows_cudnn_tf32()
    is_tf32 = precision == "tf32"
    _set_older_settings("high" if is_tf32 else "highest", allows_cudnn_tf32=is_tf32)
    for backend, operation in settings:
        _change_setting(backend, operation, "tf32" if is_tf32 and backend == "cuda" else "ieee")

    def restore() -> None:
        _set_older_settings(matmul_precision, allows_cudnn_tf32=allows_cudnn_tf32)
        for setting, value in settings.items():
            _change_setting(*setting, value)

    return restore


def _allows_cudnn_tf32() -> bool:
    """Return cuDNN's older setting. The newer settings must not request TF32 at this time."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # it disagrees with the newer settings, so it allows TF32
        return True


def _set_older_settings(matmul_precision: str, *, allows_cudnn_tf32: bool) -> None:
    # PyTorch also changes the newer settings of these operations.
    torch.set_float32_matmul_precision(matmul_precision)
    torch.backends.cudnn.allow_tf32 = allows_cudnn_tf32


def configure_torch(threads: int, precision: Precision = "fp32") -> None:
    """Configure torch so that equal inputs give equal bytes on equal device types.

    The number of threads determines how the CPU splits its sums, so it affects results. Operations without a
    deterministic implementation raise an error. TF32 is on for ``tf32`` and off for every other precision. The settings
    are process-wide, and another call replaces them. The default thresholds of garbage collection are restored
    (`core.memory`).

    Args:
        threads: number of CPU threads per operation, 1 to `MAX_THREADS`.
        precision: a name from `core.precision.PRECISIONS`. The caller checks that the device supports it
            (`check_device`).

    Raises:
        ConfigError: the precision is unknown, the number of threads is invalid, or an environment variable overrides
            the arithmetic.
    """
    from robust201.core.memory import restore_gc_thresholds

    restore_gc_thresholds()
    check_precision(precision)
    _reject_overrides(precision)
    if not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"Setting up torch failed for threads: expected 1 to {MAX_THREADS}, got {threads}.")
    torch.set_num_threads(threads)
    set_precision(precision)
    _set_determinism("error")


_DETERMINISTIC_SETTINGS: Final[tuple[tuple[Any, str, bool], ...]] = (
    # By default, cuBLAS may accumulate bfloat16 products in bfloat16, also in 1x1 convolutions.
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    (torch.backends.cudnn, "enabled", True),
    (torch.backends.cudnn, "benchmark", False),
    (torch.backends.cudnn, "deterministic", True),
    # Every tensor is written before it is read, so filling new tensors would only take time.
    (torch.utils.deterministic, "fill_uninitialized_memory", False),
)
"""Settings that make results reproducible: module, name and value."""


def _set_determinism(mode: str) -> None:
    """Use deterministic algorithms; `mode` is what happens if an operation has none: error or warn."""
    for module, name, value in _DETERMINISTIC_SETTINGS:
        setattr(module, name, value)
    # cuBLAS reads this variable on first use. Without it, deterministic mode rejects matrix products on CUDA.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # This has the effect of `torch.use_deterministic_algorithms`, which would import the compiler and take seconds.
    torch.set_deterministic_debug_mode(mode)


@contextmanager
def worker_settings(device: torch.device, precision: Precision = "fp32", *, mode: str = "warn") -> Iterator[None]:
    """Compute in a block with a worker's settings, except for the number of threads; restore the settings afterwards.

    Gradients are available, autocast is off, arithmetic has the precision, and algorithms are deterministic. `mode` is
    what happens if an operation has no deterministic algorithm: error or warn.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        for device_type in sorted({"cpu", device.type}):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        for module, name, _ in _DETERMINISTIC_SETTINGS:
            stack.callback(setattr, module, name, getattr(module, name))
        stack.callback(set_precision(precision))
        _set_determinism(mode)
        yield


_ARITHMETIC_OVERRIDES = {
    "NVIDIA_TF32_OVERRIDE": "0",
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
    "DNNL_DEFAULT_FPMATH_MODE": "STRICT",
}
"""Environment variables that override the precision of cuBLAS, cuDNN or oneDNN, with the value that keeps float32."""


def _reject_overrides(precision: Precision) -> None:
    for name, neutral_value in _ARITHMETIC_OVERRIDES.items():
        value = os.environ.get(name, "")
        # NVIDIA's variable switches TF32 off, which has no effect unless TF32 is requested.
        is_neutral = value.upper() == neutral_value and not (neutral_value == "0" and precision == "tf32")
        if value and not is_neutral:
            raise ConfigError(
                f"Setting up torch failed for the environment variable {name}: its value {value!r} overrides the "
                "precision. Unset it; the `precision` of the sweep must determine the arithmetic."
            )


def cumulative_sum(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the cumulative sum along a dimension, like `torch.cumsum`, which is not deterministic on CUDA.

    On CPU and CUDA, sums are computed in float64 and rounded once, so almost all values have the same bits on both.
    """
    if values.device.type == "cpu":
        return values.cumsum(dim)
    sums, length, shift = values.double(), values.shape[dim], 1
    while shift < length:
        first, others = sums.narrow(dim, 0, shift), sums.narrow(dim, shift, length - shift)
        sums = torch.cat((first, others + sums.narrow(dim, 0, length - shift)), dim)
        shift *= 2
    return sums.to(values.dtype)


# --- CUDA graphs ------------------------------------------------------------------------------------------------------

Pass = Callable[[], tuple[torch.Tensor, ...]]
"""Function that runs one pass. It reads fixed buffers, and returns tensors that the next call may overwrite."""

_WARM_UP_PASSES = 2


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for the warm-up and capture of all graphs of this process.

    With one stream, cuBLAS allocates its workspace only once, and from the ordinary pool instead of a graph's pool.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class GraphCapture:
    """Records passes as CUDA graphs, which launch all kernels of a pass at once. All graphs share one memory pool.

    For small batches on a fast device, launching kernels one by one takes most of the time. Graphs of one pool may
    overwrite each other's results. That is safe here, because a result is copied on the same stream before another
    graph is replayed. Sharing limits the pool to the memory of the largest pass.

    Source: PyTorch's notes on CUDA semantics, "CUDA Graphs" and "Graph memory management".
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _side_stream(device)
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def __call__(self, compute: Pass) -> Pass:
        """Record a pass.

        Args:
            compute: pass that reads fixed memory and never synchronises with the host. It is called a few times before
                it is recorded, so that libraries choose their kernels, and constant feature maps are created, outside
                the graph.

        Returns:
            A function that replays the pass.
        """
        # The caller may be in inference mode, but the results are used inside and outside of it.
        with torch.cuda.device(self._device), torch.inference_mode(mode=False), torch.no_grad():
            caller_stream = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(caller_stream)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UP_PASSES):
                    compute()
            caller_stream.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Entering the context frees the memory that the warm-up left in the cache.
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    outputs = compute()
            finally:
                torch.cuda.set_stream(caller_stream)  # if ending a capture fails, torch leaves its stream current
        self._graphs.append(graph)

        def replay() -> tuple[torch.Tensor, ...]:
            graph.replay()
            return outputs

        return replay

    def release(self) -> None:
        """Free the graphs and their pool. Prepared passes must not be called afterwards."""
        if self._graphs:
            torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        # PyTorch frees a pool that no graph uses any more, so its handle must not be reused.
        self._pool = torch.cuda.graph_pool_handle()
