"""VGG-16 in the form for CIFAR: 13 convolutions with BatchNorm, five max-poolings, one linear layer.

Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015,
configuration D, with BatchNorm behind each convolution and without the two hidden linear layers.
"""

from collections.abc import Sequence

import torch
from torch import nn

from robust201.spaces.zoo.image_size import require_32


class Vgg(nn.Module):
    """VGG; VGG-16 has 14,728,266 parameters at ten classes.

    Args:
        stages: channels and convolutions of the five stages; a max-pooling ends each.
        n_classes: number of classes.
    """

    def __init__(self, stages: Sequence[tuple[int, int]], n_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        c_in = 3
        for width, count in stages:
            for _ in range(count):
                layers += [nn.Conv2d(c_in, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                c_in = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(c_in, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        require_32(self, x)
        logits: torch.Tensor = self.linear(self.features(x).flatten(1).to(self.linear.weight.dtype))
        return logits
