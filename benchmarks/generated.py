"""Files of benchmark subjects (networks with images), and networks with random weights, which need no download."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from benchmarks.comparison import Subject
from robust201.attacks.context import to_float
from robust201.core.records import ImageSet
from robust201.networks.classifier import Classifier
from robust201.networks.spaces import find_architecture


def write_subject(name: str, network: nn.Module, images: ImageSet, folder: Path, **size: int) -> Subject:
    """Write a network's weights and images to files that the timed processes read.

    Args:
        name: index in NAS-Bench-201, or a network's name in the zoo.
        network: the network.
        images: images and labels.
        folder: folder for the files.
        size: `channels` and `cells`, if they differ from those of the published networks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights, arrays = folder / f"{name}.safetensors", folder / f"{name}.npz"
    save_file({key: tensor.contiguous() for key, tensor in network.state_dict().items()}, weights)
    np.savez(arrays, images=images.images, labels=images.labels)
    return Subject(
        name, weights, arrays, len(images), images.images.shape[-1], images.n_classes, images.normalisation, **size
    )


def random_network(name: str, images: ImageSet, *, channels: int = 16, cells: int = 5) -> tuple[nn.Module, ImageSet]:
    """Build a network with random weights, and label the images with its predictions, so that its accuracy is 1.

    The running statistics of the BatchNorm layers are set to those of the images; otherwise, the outputs would hardly
    depend on the image.
    """
    space, architecture = find_architecture(int(name) if name.isdigit() else name)
    if space.is_sized:
        space = space.with_size(channels=channels, cells=cells)
    pixels = to_float(torch.from_numpy(images.images))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        network = space.build(architecture, n_classes=images.n_classes)
        mean, std = (
            torch.tensor(per_channel).view(1, 3, 1, 1)
            for per_channel in (images.normalisation.mean, images.normalisation.std)
        )
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
        with torch.no_grad():
            network.train()((pixels - mean) / std)
    classifier = Classifier(network, images.normalisation, images.n_classes)
    labels = classifier.logits(pixels).argmax(dim=1).numpy()
    return network, replace(images, labels=labels)
