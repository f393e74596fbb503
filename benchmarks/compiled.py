"""Measure how far compiled networks are from the published ones, on trained weights and real images.

    ROBUST201_DATA=FOLDER python -m benchmarks.compiled
    ROBUST201_DATA=FOLDER python -m benchmarks.compiled --layouts

The data folder is that of `benchmarks.agreement`. With --layouts the published network is compared with itself in
channels_last instead, and under the reference engine's PGD and APGD-CE, whose draws are then the same.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.trained import load_trained
from robust201.core.records import ImageSet
from robust201.engine.arithmetic import configure_torch
from robust201.engine.classifier import Classifier
from robust201.engine.context import Context, Request, to_float
from robust201.images import load_images, select
from robust201.spaces.nasbench201.compiled import compile_network
from robust201.tasks import TASKS
from robust201.tasks.perturbations.contract import perturb

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


def print_layouts_row(folder: Path, index: int, images: ImageSet, epsilon_255: float) -> None:
    """Compare the published network in PyTorch's default layout with itself in channels_last."""
    forms = []
    for channels_last in (False, True):
        network, _ = load_trained(folder, index, n_classes=images.n_classes)
        forms.append(Classifier(network, images.normalisation, images.n_classes, channels_last=channels_last))
    pixels, labels = to_float(torch.from_numpy(images.images)), torch.from_numpy(images.labels)
    (expected, _, gradient), (found, _, near) = (form.loss_and_gradient(pixels, labels) for form in forms)
    cells = [
        f"#{index}",
        f"{float((found != expected).float().mean()):.0%}",
        f"{float((found - expected).abs().max()):.1e}",
        f"{float((near.sign() != gradient.sign()).float().mean()):.1e}",
    ]
    radii: dict[str, Any] = {"epsilons_255": (epsilon_255,)}
    request = Request((epsilon_255,), torch.from_numpy(images.images), labels, images.indices)
    for key in ("pgd", "aa_apgd-ce"):
        parameters = TASKS[key].parameters(**radii)
        contexts = [Context(form, SEED, len(images), key=key) for form in forms]
        attacked = [next(iter(perturb(TASKS[key], context, parameters, request))).images for context in contexts]
        one, other = (form.logits(image) for form, image in zip(forms, attacked, strict=True))
        cells += [
            f"{int((attacked[0] != attacked[1]).flatten(1).any(dim=1).sum())}",
            f"{int((one.argmax(dim=1) != other.argmax(dim=1)).sum())}",
        ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ROBUST201_DATA", "data")))
    parser.add_argument("--networks", type=int, nargs="+", default=[0, 9, 21, 309, 991, 13714], help="indices")
    parser.add_argument("--images", type=int, default=100, help="CIFAR-10 test images, spread over the classes")
    parser.add_argument("--layouts", action="store_true", help="compare the layouts of the published network")
    parser.add_argument("--epsilon", type=float, default=1.0, help="with --layouts: of the attacks, in 1/255")
    options = parser.parse_args()
    configure_torch(threads=1)
    images = select(load_images("cifar10", path=options.data / "cifar10"), count=options.images, seed=SEED)
    if options.layouts:
        print(
            "| network | logits whose bits differ | largest difference | share of the gradient's signs that differ "
            "| PGD: images that differ | predictions | APGD-CE: images that differ | predictions |\n" + "|---" * 8 + "|"
        )
        for index in options.networks:
            print_layouts_row(options.data, index, images, options.epsilon)
        return
    print(
        "| network | largest logit | largest difference | gradient, relative (L2) | share of the gradient's signs "
        "that differ | predictions that differ |\n" + "|---" * 6 + "|"
    )
    for index in options.networks:
        print_row(options.data, index, images)


if __name__ == "__main__":
    main()
