"""Detect and undo changes to a network's parameters, buffers and modes."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from robust201.core.errors import EvaluationError


class NetworkGuard:
    """Copies a network's parameters, buffers and modes, to detect and undo changes; `requires_grad` is only restored.

    The values are copied, because PyTorch's version counters do not count changes through ``.data``.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._modes = [(module, module.training) for module in network.modules()]
        self._tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in named_tensors(network)}
        self._gradient_flags = [(parameter, parameter.requires_grad) for parameter in network.parameters()]

    @contextmanager
    def check_unchanged(self, caller: str) -> Iterator[None]:
        """Check that the code in a `with` block does not change the network, and undo changes for later code.

        `caller` is the name of this code in the message.

        Raises:
            EvaluationError: the code changed the network.
        """
        try:
            yield
        finally:
            changed_names = self.restore()
        if changed_names:
            further_changes = f" and {len(changed_names) - 1:,} more tensors or modes" if len(changed_names) > 1 else ""
            raise EvaluationError(
                f"Calling {caller} failed: it changed the network ({changed_names[0]}{further_changes}). Change a copy "
                "instead (copy.deepcopy)."
            )

    def restore(self) -> list[str]:
        """Undo all changes, and return the names of what was changed."""
        current_tensors = dict(named_tensors(self._network))
        changed_names = [name for name in current_tensors if name not in self._tensors]
        for name, (tensor, original) in self._tensors.items():
            if current_tensors.get(name) is not tensor or not has_same_bits(tensor, original):
                changed_names.append(name)
                owner = self._network.get_submodule(name.rpartition(".")[0])
                if tensor.shape == original.shape and tensor.dtype == original.dtype:
                    tensor.data.copy_(original)  # in place, because other tensors may share the memory
                else:
                    tensor.data = original.clone()
                setattr(owner, name.rpartition(".")[2], tensor)
        for module, was_training in self._modes:
            if module.training != was_training:
                changed_names.append("mode (train or eval)")
                module.training = was_training
        for parameter, requires_grad in self._gradient_flags:
            parameter.requires_grad_(requires_grad)
        return changed_names


def named_tensors(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a network with their names."""
    return chain(network.named_parameters(), network.named_buffers())


def has_same_bits(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype, device and bytes."""
    if tensor.shape != original.shape or tensor.dtype != original.dtype or tensor.device != original.device:
        return False
    # The bytes are compared, because a buffer may contain NaN, which is not equal to itself.
    return torch.equal(*(values.detach().contiguous().view(-1).view(torch.uint8) for values in (tensor, original)))
