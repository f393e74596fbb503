"""Draw the paper's images: sample blends (figure 3), and attacked images with perturbations (figures 8 and 9).

    python -m jobs.papers.image_distribution.pictures blends DATA RUNS OUT.png
    python -m jobs.papers.image_distribution.pictures attacked DATA RUNS OUT.png

DATA is a folder with mnist/ and cifar10/; RUNS is the folder that run.sh wrote, with blends and a store of LeNets.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from robust201 import attack, load_model
from robust201.images import load_images
from robust201.images.store import ArrayFolder

Picture = NDArray[np.float32]
"""Pixels (3, H, W) in [0, 1]."""

EPSILONS = (0.0125, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
ZOOM, GAP, N_BLENDS = 3, 2, 8


def save_grid(rows: Sequence[Sequence[Picture]], path: Path) -> None:
    """Write rows of pictures of equal size as one PNG, enlarged, on white."""
    _, height, width = rows[0][0].shape
    canvas = np.ones((3, len(rows) * (height + GAP), len(rows[0]) * (width + GAP)), np.float32)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            top, left = y * (height + GAP), x * (width + GAP)
            canvas[:, top : top + height, left : left + width] = picture
    pixels = np.rint(255 * canvas).astype(np.uint8).transpose(1, 2, 0).repeat(ZOOM, 0).repeat(ZOOM, 1)
    Image.fromarray(pixels).save(path)


def make_blend_rows(data: Path, runs: Path) -> list[list[Picture]]:
    """Return the first digits, the objects with which they are blended, and the blends."""
    sources = [load_images(name, path=data / name).images for name in ("mnist", "cifar10")]
    blends = ArrayFolder(runs / "fusion-digit/test")
    indices = [blends.read(name)[:N_BLENDS] for name in ("first_rows", "second_rows")]
    grid = [source[source_indices] for source, source_indices in zip(sources, indices, strict=True)]
    grid.append(blends.read("images")[:N_BLENDS])
    return [[image.astype(np.float32) / 255 for image in row] for row in grid]


def make_attack_rows(data: Path, runs: Path, store: Path | None = None) -> list[list[Picture]]:
    """Return the first image of MNIST and of CIFAR-10 under FGSM at each epsilon, and the perturbations on grey."""
    grid = []
    for name in ("mnist", "cifar10"):
        images = load_images(name, path=data / name)
        network = load_model("lenet5", name, store or runs / "store", recipe="plain", seed=0)
        clean = images.images[:1].astype(np.float32) / 255
        perturbed = attack(network, clean, images.labels[:1], "fgsm", epsilon=EPSILONS).numpy()
        pictures = [clean[0], *perturbed.reshape(-1, *clean.shape[1:])]
        changes = np.stack(pictures) - clean[0]
        grid += [pictures, [*(0.5 + changes / (2 * np.abs(changes).max()))]]
    return grid


if __name__ == "__main__":
    figure, data_path, runs_path, out = sys.argv[1], *map(Path, sys.argv[2:])
    save_grid({"blends": make_blend_rows, "attacked": make_attack_rows}[figure](data_path, runs_path), out)
