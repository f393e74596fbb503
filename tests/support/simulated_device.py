"""A simulated accelerator. Its tensors wrap CPU tensors, so results are real; it counts how often the host waits.

An operation that mixes tensors of this device and the CPU raises an error, as on a GPU. So does a nondeterministic
operation if PyTorch's deterministic mode is "error". An operation waits if the host needs a tensor's value, a copy of
it, or the number of true elements of a mask from the device. It cannot test what depends on a real GPU: the
kernels' rounding and determinism, graphs, streams, memory, TF32 and speed.

This module registers a device in Python (`PrivateUse1`) with private functions of PyTorch; tested with PyTorch 2.13.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "simulated"

WAITING_OPERATIONS = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::repeat_interleave",
}
"""Operations whose results, or shapes of results, must be transferred from the device to the host."""

NONDETERMINISTIC_OPERATIONS = {"aten::cumsum", "aten::put_", "aten::kthvalue", "aten::grid_sampler_2d_backward"}
"""Operations that attacks might use, and that have no deterministic CUDA implementation in PyTorch.

Source: the documentation of `torch.use_deterministic_algorithms`.
"""

_MAY_MIX_DEVICES = {"aten::_to_copy", "aten::copy_", "aten::index", "aten::index_put_", "aten::_index_put_impl_"}
"""Operations that take tensors of two devices: copies, and indexing by positions on the host."""

_waits: list[str] = []


@contextmanager
def count_waits() -> Iterator[list[str]]:
    """Yield a list; at the end of the block, the operations that waited in it are appended in order."""
    start = len(_waits)
    waits: list[str] = []
    try:
        yield waits
    finally:
        waits.extend(_waits[start:])
        del _waits[start:]


@contextmanager
def enable_device() -> Iterator[None]:
    """Replace PyTorch functions that fail for tensors of a Python subclass, until the end of the block.

    `torch.inference_mode` becomes `torch.no_grad`, and `torch.tensor` makes a CPU tensor and copies it to the device.
    """
    make_tensor = torch.tensor

    def enter(context):
        context.guard = torch.no_grad() if context.mode else nullcontext()
        context.guard.__enter__()

    def leave(context, *error):
        context.guard.__exit__(*error)

    def copy_from_host(data, *, device=None, **kwargs):
        return make_tensor(data, **kwargs).to(device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.inference_mode, "__enter__", enter)
        patch.setattr(torch.inference_mode, "__exit__", leave)
        patch.setattr(torch, "tensor", copy_from_host)
        yield


class _DeviceTensor(torch.Tensor):
    """A tensor of the device, which holds the CPU tensor `on_host` with its data."""

    on_host: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "_DeviceTensor":
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        tensor.on_host = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override] # PyTorch's stub lacks `func`
        return _run(func, args, kwargs or {})


def _run(func, args, kwargs):
    name = func.name().split(".")[0]
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    on_device = [tensor for tensor in tensors if isinstance(tensor, _DeviceTensor)]
    on_host = [tensor for tensor in tensors if not isinstance(tensor, _DeviceTensor) and tensor.dim() > 0]
    if on_device and on_host and name not in _MAY_MIX_DEVICES:
        raise RuntimeError(f"{name}: expected all tensors on one device, got {NAME} and cpu")
    is_deterministic = torch.get_deterministic_debug_mode() > 1
    if on_device and is_deterministic and name in NONDETERMINISTIC_OPERATIONS and on_device[0].is_floating_point():
        raise RuntimeError(f"{name} does not have a deterministic implementation")
    requested = kwargs.get("device")
    is_result_on_device = bool(on_device) if requested is None else torch.device(requested).type == NAME
    _record_wait(name, args, bool(on_device), copies_to_host=requested is not None and not is_result_on_device)
    host_args, host_kwargs = pytree.tree_map(_to_host, (args, kwargs))
    result = func(*host_args, **host_kwargs)
    if "out" in kwargs:
        return kwargs["out"]
    if name.endswith("_") and isinstance(args[0], torch.Tensor):
        return args[0]
    return pytree.tree_map(_to_device, result) if is_result_on_device else result


def _record_wait(name, args, is_on_device, *, copies_to_host):
    if not is_on_device:
        return
    is_copy_to_host = (name == "aten::_to_copy" and copies_to_host) or (
        name == "aten::copy_" and not isinstance(args[0], _DeviceTensor)
    )
    if name in WAITING_OPERATIONS or is_copy_to_host or _has_mask(name, args):
        _waits.append("copy to the host" if is_copy_to_host else name)


def _has_mask(name, args):
    """Return whether an operation indexes by a boolean mask, whose number of true elements the host needs."""
    if name not in ("aten::index", "aten::index_put_", "aten::_index_put_impl_"):
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _to_host(value):
    if isinstance(value, _DeviceTensor):
        return value.on_host
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _to_device(value):
    return _DeviceTensor(value) if isinstance(value, torch.Tensor) else value


class _BackendModule(_DummyBackendModule):
    """PyTorch's placeholder for the functions of a device, with a generator that has no state.

    Random numbers of the device are drawn by the CPU's generator.
    """

    def is_available(self) -> bool:
        return False  # so that code outside these tests does not choose the device

    def get_rng_state(self, _device: int) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def set_rng_state(self, _state: torch.Tensor, _device: int) -> None:
        """Do nothing."""


_setup_privateuseone_for_python_backend(NAME, _BackendModule())
_fallback = torch.library.Library("_", "IMPL")
_fallback.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")
# PyTorch computes these by resizing an empty tensor, but the size of a device tensor is fixed.
_factories = torch.library.Library("aten", "IMPL")
for _name in ("arange", "arange.start", "arange.start_step", "linspace", "randperm"):
    _packet, _, _overload = _name.partition(".")
    _operation = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
    _factories.impl(_name, lambda *args, _op=_operation, **kwargs: _run(_op, args, kwargs), "PrivateUse1")
