"""LeNet-5 for the 28x28 pixels and the single channel of the original MNIST images.

The first convolution pads the image by two pixels of background: LeCun et al. (1998) put the 28x28 digits into 32x32
pixels in the same way. All later layers equal those of the zoo's `lenet5`, which takes 32x32 pixels in three channels.
"""

import torch
from torch import nn


class LeNet28(nn.Module):
    """LeNet-5 with one input channel: 61,706 parameters for ten classes."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.hidden1 = nn.Linear(16 * 5 * 5, 120)
        self.hidden2 = nn.Linear(120, 84)
        self.linear = nn.Linear(84, n_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, C) of images (B, 1, 28, 28)."""
        hidden = self.hidden1(self.features(images).flatten(1)).relu()
        logits: torch.Tensor = self.linear(self.hidden2(hidden).relu())
        return logits


def build(architecture: str, n_classes: int) -> nn.Module:
    """Return the network; the sweep names it `lenet28`."""
    if architecture != "lenet28":
        raise ValueError(f"{architecture}: this file has only lenet28.")
    return LeNet28(n_classes)
