"""Modules that cannot be evaluated are rejected with the remedy."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from robust201.core.errors import NetworkError
from robust201.networks.user_module import as_classifier

PIXELS = torch.rand(4, 3, 8, 8)


def _freeze(model: nn.Module) -> nn.Module:
    frozen: nn.Module = torch.jit.freeze(torch.jit.trace(model, PIXELS))
    return frozen


def _export(model: nn.Module) -> nn.Module:
    return torch.export.export(model, (PIXELS,)).module()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("convert", "name"), [(_freeze, "torch.jit.freeze"), (_export, "torch.export")])
def test_module_with_a_fixed_mode_is_rejected(convert: Callable[[nn.Module], nn.Module], name: str) -> None:
    model = convert(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval())
    with pytest.raises(NetworkError, match=f"no evaluation mode.*{name}"), as_classifier(model, PIXELS):
        pass
