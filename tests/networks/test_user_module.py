"""Modules that cannot be evaluated are rejected with the remedy."""

import os
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from robust201.core.errors import NetworkError
from robust201.networks.user_module import _ONE_EVALUATION, as_classifier

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
    with pytest.raises(NetworkError, match=f"Pass the module that you gave to {name}"), as_classifier(model, PIXELS):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer versions of Python warn of forks with threads
def test_forked_process_does_not_wait_for_an_evaluation_in_its_parent() -> None:
    is_held, is_done = threading.Event(), threading.Event()

    def evaluate() -> None:
        with _ONE_EVALUATION:
            is_held.set()
            is_done.wait()

    thread = threading.Thread(target=evaluate)
    thread.start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if _ONE_EVALUATION.acquire(timeout=2) else 1)
    is_done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
