"""Networks whose linear layers require images of 32x32 pixels: LeNet-5, VGG-16, and a network with one hidden layer.

LeNet-5: LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document Recognition", 1998, in the
usual modern form: ReLUs, max-pooling without parameters, convolutions over all input maps, and a linear last layer.

VGG-16: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015,
configuration D, in its form for CIFAR with BatchNorm after each of the 13 convolutions, five max-pooling layers, and
one linear layer instead of three.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from robust201.networks.zoo import scale_count


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
        x = self.features(x).flatten(1).to(self.linear.weight.dtype)
        logits: torch.Tensor = self.linear(self.hidden2(self.hidden1(x).relu()).relu())
        return logits


class FullyConnected(nn.Module):
    """A network with one hidden layer of `width` ReLUs: 23,122,510 parameters with 7,500 units and ten classes."""

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * 32 * 32, width)
        self.linear = nn.Linear(width, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(self.hidden(x.flatten(1).to(self.linear.weight.dtype)).relu())
        return logits


class Vgg(nn.Module):
    """VGG. VGG-16 has 14,728,266 parameters with ten classes.

    Args:
        stages: channels and number of convolutions of each stage; stages end with max-pooling.
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
        logits: torch.Tensor = self.linear(self.features(x).flatten(1).to(self.linear.weight.dtype))
        return logits


def build_vgg16(width: int, n_classes: int) -> Vgg:
    """Build VGG-16, whose first stage has `width` channels."""
    return Vgg([(width, 2), (2 * width, 2), (4 * width, 3), (8 * width, 3), (8 * width, 3)], n_classes)


def build_lenet5(width: int, n_classes: int) -> LeNet5:
    """Build LeNet-5, whose first convolution has `width` channels."""
    first, second, third, fourth = (scale_count(published, width, 6) for published in (6, 16, 120, 84))
    return LeNet5(n_classes, channels=(first, second), hidden=(third, fourth))
