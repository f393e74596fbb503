"""A network that code of a user's own is called with: what it must not change, and what is put back if it does."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from robust201.core.errors import EvaluationError


class KeptNetwork:
    """Parameters, buffers and modes of a network as they are now.

    Version counters would miss what is written through ``.data``, so the values themselves are kept.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._modes = [(module, module.training) for module in network.modules()]
        self._tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in _tensors(network)}

    @contextmanager
    def unchanged(self, by: str) -> Iterator[None]:
        """Hold a block to leaving the network as it is; what it changed is put back, as later parts use it, too.

        Raises:
            EvaluationError: `by` changed it.
        """
        try:
            yield
        finally:
            changed = self._put_back()
        if changed:
            raise EvaluationError(
                f"Calling {by} failed: expected it to leave the network as it is, got another {changed[0]}"
                f"{f' and {len(changed) - 1:,} more' if len(changed) > 1 else ''}. Change a copy (copy.deepcopy)."
            )

    def _put_back(self) -> list[str]:
        now = dict(_tensors(self._network))
        changed = [name for name in now if name not in self._tensors]
        for name, (tensor, before) in self._tensors.items():
            if now.get(name) is not tensor or not _has_same_bits(tensor, before):
                changed.append(name)
                owner = self._network.get_submodule(name.rpartition(".")[0])
                tensor.data = before.clone()
                setattr(owner, name.rpartition(".")[2], tensor)
        for module, training in self._modes:
            if module.training != training:
                changed.append("mode (train or eval)")
                module.training = training
        return changed


def _tensors(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return chain(network.named_parameters(), network.named_buffers())


def _has_same_bits(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    if tensor.shape != before.shape or tensor.dtype != before.dtype or tensor.device != before.device:
        return False
    # As bytes, because NaN, which a buffer may hold, differs from itself.
    return torch.equal(*(one.detach().contiguous().view(-1).view(torch.uint8) for one in (tensor, before)))
