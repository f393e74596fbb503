"""Networks that others trained, as a space of robust201: `space: {file: jobs/papers/controls/networks.py}`.

All take pixels in [0, 1]. This file does not import robust201.
"""

import torch
from pyautoattack.examples.resnet import ResNet18
from torch import nn


class LeNet5(nn.Module):
    """LeNet5 of advertorch 0.2.3 (advertorch/test_utils.py), for grey images of 28x28 pixels.

    It reads the first channel only, so that it also takes grey images whose three channels are equal. The gradient of
    the other two channels is exactly 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.linear1 = nn.Linear(7 * 7 * 64, 200)
        self.linear2 = nn.Linear(200, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, 10) of images (B, 1 or 3, 28, 28)."""
        features = self.pool(self.conv1(images[:, :1]).relu())
        features = self.pool(self.conv2(features).relu())
        logits: torch.Tensor = self.linear2(self.linear1(features.flatten(1)).relu())
        return logits


class KerasCNN(nn.Module):
    """The network of cifar-10-model 7.4.0 (cifar_10_model/model.py), for images of 32x32 pixels.

    BatchNorm follows ReLU, with Keras's epsilon. The last layer has a ReLU, too: no logit is negative. Dropout and the
    last pooling, over single pixels, change nothing at evaluation and are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        channels = [3, 64, 64, 128, 128, 64, 64]
        self.convolutions = nn.ModuleList(nn.Conv2d(channels[i], channels[i + 1], kernel_size=3) for i in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width, eps=1e-3) for width in channels[1:])
        self.pool = nn.MaxPool2d(2)
        self.dense = nn.ModuleList([nn.Linear(64, 1024), nn.Linear(1024, 512), nn.Linear(512, 10)])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, 10) of images (B, 3, 32, 32)."""
        features = 255 * images  # it was trained on pixels from 0 to 255
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            features = norm(convolution(features).relu())
            if number in {1, 3}:
                features = self.pool(features)
        features = features.flatten(1)
        for layer in self.dense:
            features = layer(features).relu()
        return features


SWEEPS = {"mnist": ("lenet-plain", "lenet-robust"), "keras": ("keras-cnn",), "resnet18": ("resnet18",)}
"""The networks by sweep: `jobs/papers/controls/SWEEP.yaml`."""

NETWORKS: dict[str, type[nn.Module]] = {
    "lenet-plain": LeNet5,
    "lenet-robust": LeNet5,
    "keras-cnn": KerasCNN,
}


def build(architecture: str, n_classes: int) -> nn.Module:
    """Build a network without weights; `prepare.py` writes these. All have ten classes."""
    if n_classes != 10:
        raise ValueError(f"these networks have 10 classes, not {n_classes}")
    return ResNet18() if architecture == "resnet18" else NETWORKS[architecture]()
