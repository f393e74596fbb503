"""A spatial transformer before a residual network: six numbers of an affine map, predicted from the image.

Source: Jaderberg, Simonyan, Zisserman and Kavukcuoglu, "Spatial Transformer Networks", NeurIPS 2015, in the form of
PyTorch's tutorial, with the layers of the paper on robust features.
"""

import torch
from torch import nn

from robust201.spaces.zoo.image_size import require_32
from robust201.spaces.zoo.resnet import ResNet
from robust201.spaces.zoo.sampling import image_points, sample


class SpatialTransformer(nn.Module):
    """Moves images by the affine map that it predicts; before training, by none: (B, 3, 32, 32) to the same."""

    def __init__(self, *, channels: int = 32, hidden: int = 1024) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for c_in, is_pooled in ((3, False), (channels, True), (channels, True), (channels, True)):
            layers += [nn.Conv2d(c_in, channels, 3, padding=1, bias=False), nn.ReLU()]
            if is_pooled:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Linear(16 * channels, hidden)
        self.affine = nn.Linear(hidden, 6)
        nn.init.zeros_(self.affine.weight)
        with torch.no_grad():
            self.affine.bias.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def affine_maps(self, images: torch.Tensor) -> torch.Tensor:
        """Predict the maps from coordinates of the result to those of the image: (B, 2, 3)."""
        features = self.features(images).flatten(1).to(self.hidden.weight.dtype)
        maps: torch.Tensor = self.affine(self.hidden(features).relu()).view(-1, 2, 3)
        return maps

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        require_32(self, images)
        maps = self.affine_maps(images)
        points = image_points(32, 32, like=maps) @ maps[:, :, :2].transpose(1, 2) + maps[:, None, :, 2]
        return torch.unflatten(sample(images, points), 2, (32, 32)).to(images.dtype)


class TransformedResNet(nn.Module):
    """A residual network that is shown what a transformer makes of an image."""

    def __init__(self, transformer: nn.Module, resnet: ResNet) -> None:
        super().__init__()
        self.transformer = transformer
        self.resnet = resnet

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify normalised images: (B, 3, H, W) to (B, n_classes)."""
        logits: torch.Tensor = self.resnet(self.transformer(x))
        return logits
