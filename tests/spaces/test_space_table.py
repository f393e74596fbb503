"""What every space of the table keeps to."""

import pytest
import torch

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.spaces import DEFAULT_SPACE, SPACES, cell_space, find_architecture
from robust201.spaces.base import Space

every_space = pytest.mark.parametrize("space", SPACES.values(), ids=lambda space: space.name)


@every_space
def test_ids_are_of_the_kind_that_the_space_says(space: Space) -> None:
    ids = space.select("evaluated")
    assert len(set(ids)) == len(ids) > 0
    assert all(isinstance(architecture, str if space.has_text_ids else int) for architecture in ids)
    assert all(str(architecture)[0].isalpha() == space.has_text_ids for architecture in ids)
    assert space.resolve(ids[-1]) == ids[-1]
    assert space.select([ids[-1]]) == ids[-1:]
    assert find_architecture(ids[-1]) == (space, ids[-1])
    with pytest.raises(ArchitectureError):
        space.resolve("no-network" if space.has_text_ids else -1)


@every_space
def test_networks_have_as_many_parameters_as_are_counted(space: Space) -> None:
    architecture = space.select("evaluated")[-1]
    assert space.macs(architecture, n_classes=10, image_size=32) > 0
    counted = space.parameter_count(architecture, n_classes=10)
    network = space.build(architecture, n_classes=10).eval()
    assert counted in {None, sum(parameter.numel() for parameter in network.parameters())}
    answer = network(torch.zeros(2, 3, 32, 32))
    assert (answer[1] if isinstance(answer, tuple) else answer).shape == (2, 10)


@every_space
def test_only_spaces_with_a_skeleton_are_sized(space: Space) -> None:
    if space.is_sized:
        assert space.sized(channels=4, cells=1).identity() == {"channels": 4, "cells": 1}
    else:
        with pytest.raises(ConfigError, match=f"space: {space.name}: expected no `network`"):
            space.sized(channels=4, cells=1)


def test_ranges_and_unknown_names_are_no_architecture() -> None:
    assert cell_space(DEFAULT_SPACE) is SPACES[DEFAULT_SPACE]
    for name in ("0-9", "resnet19", "|none~0|"):
        with pytest.raises(ArchitectureError):
            find_architecture(name)
