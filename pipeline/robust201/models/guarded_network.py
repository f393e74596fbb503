"""Protection of a network that is passed to user code: changes are detected and undone."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from robust201.core.errors import EvaluationError


class KeptNetwork:
    """Copies of a network's parameters, buffers and modes.

    Version counters would miss changes through ``.data``, so the values themselves are copied.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._modes = [(module, module.training) for module in network.modules()]
        self._tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in _tensors(network)}

    @contextmanager
    def unchanged(self, by: str) -> Iterator[None]:
        """Check that a block does not change the network, and undo any changes, because later parts use it, too.

        Raises:
            EvaluationError: `by` changed the network.
        """
        try:
            yield
        finally:
            changed = self._restore()
        if changed:
            raise EvaluationError(
                f"Calling {by} failed: expected it to leave the network as it is, got another {changed[0]}"
                f"{f' and {len(changed) - 1:,} more' if len(changed) > 1 else ''}. Change a copy (copy.deepcopy)."
            )

    def _restore(self) -> list[str]:
        current = dict(_tensors(self._network))
        changed = [name for name in current if name not in self._tensors]
        for name, (tensor, before) in self._tensors.items():
            if current.get(name) is not tensor or not _has_same_bits(tensor, before):
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
    # Compare bytes, because a buffer may contain NaN, which differs from itself.
    return torch.equal(*(values.detach().contiguous().view(-1).view(torch.uint8) for values in (tensor, before)))
