"""The zoo as a `Space`: networks by name, in the form that 32x32 images need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from robust201.core.errors import ArchitectureError, ConfigError, closest
from robust201.core.records import ArchitectureId
from robust201.spaces.base import Space

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ZooNetwork:
    """One row of the table.

    Attributes:
        macs_at_32: multiply-accumulates of one 32x32 image with ten classes.
    """

    build: "Callable[[int], nn.Module]"
    macs_at_32: int


def _resnet18(n_classes: int) -> "nn.Module":
    from robust201.spaces.zoo.resnet import ResNet

    return ResNet((2, 2, 2, 2), n_classes)


NETWORKS: dict[str, ZooNetwork] = {"resnet18": ZooNetwork(_resnet18, 555_422_720)}
"""Name to network."""


class Zoo(Space):
    """Networks of the table, by name."""

    name = "zoo"
    channels_last = True
    """A CPU computes residual networks 1.1 to 1.3 times as fast in this layout."""

    def select(self, selection: str | Sequence[int | str]) -> tuple[str, ...]:
        """Resolve names (see `Space`)."""
        if selection == "evaluated":
            return tuple(NETWORKS)
        names = self._names(selection)
        for name in names:
            if name not in NETWORKS:
                raise ArchitectureError(
                    f"Looking up an architecture failed for {name!r}: expected a network of the zoo "
                    f"({', '.join(NETWORKS)}), got another name.{closest(str(name), NETWORKS)}"
                )
        if not names:
            raise ConfigError(
                "Selecting architectures failed for an empty list: expected at least one network of the zoo, got none. "
                f"Name some of {', '.join(NETWORKS)}."
            )
        return tuple(name for name in NETWORKS if name in names)

    def macs(self, architecture: ArchitectureId, *, n_classes: int, image_size: int) -> float:
        """Scale the count at 32x32 pixels (see `Space`)."""
        del n_classes  # the last layer is a thousandth of it
        return NETWORKS[str(architecture)].macs_at_32 * (image_size / 32) ** 2

    def build(self, architecture: ArchitectureId, *, n_classes: int) -> "nn.Module":
        """Build a network (see `Space`)."""
        return NETWORKS[self.select([architecture])[0]].build(n_classes)
