"""Measure how far compiled networks are from the published ones, on trained weights and real images.

    ROBUST201_DATA=FOLDER python -m benchmarks.compiled

The data folder is that of `benchmarks.agreement`.
"""

import argparse
import os
from pathlib import Path

import torch

from benchmarks.trained import load_trained
from robust201.core.records import ImageSet
from robust201.engine.arithmetic import configure_torch
from robust201.engine.classifier import Classifier
from robust201.engine.context import to_float
from robust201.images import load_images, select
from robust201.spaces.nasbench201.compiled import compile_network

SEED = 0


def print_row(folder: Path, index: int, images: ImageSet) -> None:
    """Compare logits, gradients and predictions of one network."""
    network, spec = load_trained(folder, index, n_classes=images.n_classes)
    published = Classifier(network, images.normalisation, images.n_classes)
    compiled = compile_network(network, spec, images.normalisation, n_classes=images.n_classes)
    pixels, labels = to_float(torch.from_numpy(images.images)), torch.from_numpy(images.labels)
    expected, _, gradient = published.loss_and_gradient(pixels, labels)
    found, _, near = compiled.loss_and_gradient(pixels, labels)
    cells = [
        f"#{index}",
        f"{float(expected.abs().max()):.1f}",
        f"{float((found - expected).abs().max()):.1e}",
        f"{float((near - gradient).norm() / gradient.norm()):.1e}",
        f"{float((near.sign() != gradient.sign()).float().mean()):.1e}",
        f"{int((found.argmax(dim=1) != expected.argmax(dim=1)).sum())}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ROBUST201_DATA", "data")))
    parser.add_argument("--networks", type=int, nargs="+", default=[0, 9, 21, 309, 991, 13714], help="indices")
    parser.add_argument("--images", type=int, default=100, help="CIFAR-10 test images, spread over the classes")
    options = parser.parse_args()
    configure_torch(threads=1)
    images = select(load_images("cifar10", path=options.data / "cifar10"), count=options.images, seed=SEED)
    print(
        "| network | largest logit | largest difference | gradient, relative (L2) | share of the gradient's signs "
        "that differ | predictions that differ |\n" + "|---" * 6 + "|"
    )
    for index in options.networks:
        print_row(options.data, index, images)


if __name__ == "__main__":
    main()
