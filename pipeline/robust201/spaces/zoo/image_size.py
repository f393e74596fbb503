"""The image size of networks whose linear layers see positions: 32x32 and no other."""

import torch
from torch import nn

from robust201.core.errors import NetworkError


def require_32(network: nn.Module, images: torch.Tensor) -> None:
    """Check that images (B, C, H, W) are of 32x32 pixels.

    Raises:
        NetworkError: they are not.
    """
    if images.shape[-2:] != (32, 32):
        height, width = images.shape[-2:]
        raise NetworkError(
            f"Classifying images failed for {type(network).__name__}: expected 32x32 pixels, since its linear layers "
            f"see positions, got {height}x{width}. Choose another network, or other images."
        )
