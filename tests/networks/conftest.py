"""Fixture that seeds PyTorch in the tests of networks."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
