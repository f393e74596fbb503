"""Blend the test images of MNIST and CIFAR-10; write the blends once with digit labels and once with object labels.

python -m jobs.papers.image_distribution.fuse DATA OUT

DATA is a folder with mnist/ and cifar10/; OUT gets the folders fusion-digit and fusion-object. Training makes its own
blends of training images (`data: {fusion: …}` in the YAMLs).
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robust201.core.noise import generator
from robust201.core.records import ImageSet
from robust201.images import load_images
from robust201.images.checks import LabelledImages
from robust201.images.fusion import blend
from robust201.images.store import find_generated_split, write_generated_split

ALPHA, SEED = 0.5, 0


def pair(n_first: int, n_second: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair the images of two sets at random, each at most once, so that every image of the smaller set is paired.

    Returns:
        Ascending indices (n,) into the first set, and the indices (n,) into the second set that are paired with them.
    """
    n_pairs = min(n_first, n_second)
    # NumPy guarantees the raw stream of a bit generator across versions, but not the results of `permutation`.
    rows = [
        np.argsort(generator(SEED, "fusion", set_name).bit_generator.random_raw(n_images), kind="stable")[:n_pairs]
        for set_name, n_images in (("first", n_first), ("second", n_second))
    ]
    return np.sort(rows[0]), rows[1]


def write_fusion(folder: Path, first: ImageSet, second: ImageSet, label: str) -> None:
    """Write the blends of two test splits, labelled by the first or second set; keep existing blends."""
    recipe = {
        "kind": "fusion",
        "first": {"dataset": first.dataset, "sha256": first.sha256},
        "second": {"dataset": second.dataset, "sha256": second.sha256},
        "split": "test",
        "alpha": ALPHA,
        "label": label,
        "seed": SEED,
        "rounding": "half up to 8 bits",
    }
    if find_generated_split(folder, "test", recipe) is not None:
        return
    first_rows, second_rows = pair(len(first), len(second))
    source, rows = (first, first_rows) if label == "first" else (second, second_rows)
    images = blend(first.images[first_rows], second.images[second_rows], ALPHA)
    blends = LabelledImages(images, source.labels[rows])
    write_generated_split(
        folder,
        "test",
        blends,
        recipe=recipe,
        n_classes=source.n_classes,
        first_rows=first_rows,
        second_rows=second_rows,
    )


def main(data: Path, out: Path) -> None:
    mnist, cifar10 = (load_images(name, path=data / name) for name in ("mnist", "cifar10"))
    write_fusion(out / "fusion-digit", mnist, cifar10, "first")
    write_fusion(out / "fusion-object", mnist, cifar10, "second")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
