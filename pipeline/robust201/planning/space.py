"""From a sweep to its space of architectures."""

from collections.abc import Mapping

from robust201.core.user_code import UserFunction
from robust201.planning.config import SpaceFile, SweepConfig
from robust201.spaces.base import Space
from robust201.spaces.nasbench201.space import NasBench201
from robust201.spaces.user_file import UserFileSpace
from robust201.spaces.zoo.space import Zoo


def space_of(config: SweepConfig, code: Mapping[str, str]) -> Space:
    """Make the space that a sweep names; a file's networks can be built only if `code` has its hash (see `Facts`)."""
    if isinstance(config.space, SpaceFile):
        function = UserFunction(config.space.file, config.space.function, code.get("space", ""))
        return UserFileSpace(function, config.space.gmacs)
    if config.space == "zoo":
        return Zoo()
    return NasBench201(config.network.channels, config.network.cells)
