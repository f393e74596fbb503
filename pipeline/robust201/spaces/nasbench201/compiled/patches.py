"""Feature maps that are kept from proposal to proposal, and what a proposal changes of them."""

from typing import Final, NamedTuple, cast

import torch

from robust201.spaces.nasbench201.compiled.blocks import Needs, Value
from robust201.spaces.nasbench201.compiled.regions import Region

_CHANNELS_LAST: Final = torch.channels_last

_BORDER = Region(-1, -1, -1, -1)
"""Where a padded map's first pixel lies."""


class Patch(NamedTuple):
    """The part of a feature map that a proposal changes: where it lies, and (B, C, h, w) in the forms that are read."""

    region: Region
    value: Value


class KeptMap:
    """One form of a feature map: as accepted, with a border of zeros, and a proposal's patch over it.

    `accepted` is (B, C, H, W); None where nobody reads beyond the patch.
    """

    def __init__(self, accepted: torch.Tensor | None) -> None:
        self._padded: torch.Tensor | None = None
        if accepted is not None:
            n_images, channels, height, width = accepted.shape
            self._padded = torch.empty(
                n_images, channels, height + 2, width + 2, memory_format=_CHANNELS_LAST, device=accepted.device
            ).zero_()
            self._padded[:, :, 1:-1, 1:-1] = accepted
        self._region = Region(0, 0, 0, 0)
        self._patch: torch.Tensor | None = None

    def propose(self, region: Region, patch: torch.Tensor | None) -> None:
        """Put a proposal's patch over the map, in place of the one before."""
        self._region, self._patch = region, patch

    def read(self, region: Region) -> torch.Tensor:
        """Get the proposal's pixels of a region that holds the patch: (B, C, h, w), channels_last."""
        patch = cast("torch.Tensor", self._patch)
        if region == self._region:
            return patch
        padded = cast("torch.Tensor", self._padded)
        rows, columns = region.around(0).within(_BORDER)
        pixels = torch.empty(*padded.shape[:2], *region.size, memory_format=_CHANNELS_LAST, device=padded.device)
        pixels.copy_(padded[:, :, rows, columns])
        rows, columns = self._region.within(region)
        pixels[:, :, rows, columns] = patch
        return pixels

    def accept(self, images: torch.Tensor) -> None:
        """Write the patch into the kept map of some images: (n,) int64."""
        if self._padded is not None and self._patch is not None:
            rows, columns = self._region.within(_BORDER)
            self._padded[images, :, rows, columns] = self._patch[images]


class KeptValue:
    """A feature map in the forms that are read, kept where somebody reads more than the patch."""

    def __init__(self, value: Value, keep: Needs) -> None:
        self._raw = KeptMap(value.raw if keep.raw else None)
        self._rectified = KeptMap(value.rectified if keep.rectified else None)
        self.height, self.width = value.any_form.shape[2:]
        self.region = Region(0, 0, 0, 0)

    def propose(self, patch: Patch) -> None:
        self.region = patch.region
        self._raw.propose(patch.region, patch.value.raw)
        self._rectified.propose(patch.region, patch.value.rectified)

    def raw(self, region: Region) -> torch.Tensor:
        return self._raw.read(region)

    def rectified(self, region: Region) -> torch.Tensor:
        return self._rectified.read(region)

    def accept(self, images: torch.Tensor) -> None:
        self._raw.accept(images)
        self._rectified.accept(images)
