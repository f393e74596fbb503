"""LeNet-5 and a network of one hidden layer.

Sources: LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document Recognition", 1998, as it is
usual today: ReLUs, max-pooling without parameters, all maps connected to all, a linear last layer.
"""

from collections import OrderedDict

import torch
from torch import nn

from robust201.spaces.zoo.image_size import require_32


class LeNet5(nn.Module):
    """LeNet-5: 62,006 parameters with channels (6, 16), hidden units (120, 84) and ten classes."""

    def __init__(
        self, n_classes: int, *, channels: tuple[int, int] = (6, 16), hidden: tuple[int, int] = (120, 84)
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(3, channels[0], 5),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(channels[0], channels[1], 5),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
            )
        )
        self.hidden1 = nn.Linear(25 * channels[1], hidden[0])
        self.hidden2 = nn.Linear(*hidden)
        self.linear = nn.Linear(hidden[1], n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        require_32(self, x)
        x = self.features(x).flatten(1).to(self.linear.weight.dtype)
        logits: torch.Tensor = self.linear(self.hidden2(self.hidden1(x).relu()).relu())
        return logits


class FullyConnected(nn.Module):
    """One hidden layer of ReLUs: 23,122,510 parameters with 7,500 units and ten classes."""

    def __init__(self, n_classes: int, *, width: int = 7500) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * 32 * 32, width)
        self.linear = nn.Linear(width, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        require_32(self, x)
        logits: torch.Tensor = self.linear(self.hidden(x.flatten(1).to(self.linear.weight.dtype)).relu())
        return logits
