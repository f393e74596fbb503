"""Images and networks for the training tests."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from robust201.core.records import ImageSet, Normalisation, image_hash
from robust201.networks.nb201.cell_space import NasBench201
from robust201.networks.space import Space
from robust201.training.recipes import Recipe

LIGHT_CELL = 309
"""Index of an architecture whose only convolutions are two 1x1 convolutions, so that training is fast."""

SPACE = NasBench201(channels=4, cells=1)


class SmallSpace(Space):
    """A space with a single network, which has dropout, BatchNorm, a bias and a linear layer."""

    name = "small"
    channels_last = True

    def select(self, selection):
        return ("small",)

    def macs(self, architecture, *, n_classes, image_size):
        return 1.0

    def build(self, architecture, *, n_classes):
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.BatchNorm1d(4),
            nn.Linear(4, n_classes),
        )


def make_images(n_images: int = 20, size: int = 8, seed: int = 0) -> ImageSet:
    """Return images of two classes that differ in brightness, so that a few training steps can separate them."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n_images, dtype=np.int64) % 2
    images = (rng.integers(0, 100, (n_images, 3, size, size)) + 150 * labels[:, None, None, None]).astype(np.uint8)
    indices = np.arange(n_images, dtype=np.int64)
    normalisation = Normalisation((0.5, 0.5, 0.5), (0.3, 0.3, 0.3))
    return ImageSet("bright", images, labels, indices, 2, normalisation, image_hash(images, labels, indices))


IMAGES = make_images()


def make_recipe(**changes: Any) -> Recipe:
    """Return a recipe of two epochs; keyword arguments replace its fields."""
    fields = {"epochs": 2, "batch_size": 8, "learning_rate": 0.1, "weight_decay": 5e-4, "schedule": {"cosine": {}}}
    return Recipe.model_validate(fields | changes)


def weights_hash(state_dict: Mapping[str, torch.Tensor]) -> str:
    return hashlib.sha256(save(dict(state_dict))).hexdigest()
