"""Blends the test images of MNIST and CIFAR-10, labelled with the digit and with the object.

python -m jobs.papers.image_distribution.fuse DATA OUT

DATA is a folder with mnist/ and cifar10/; OUT gets the folders fusion-digit and fusion-object. Training makes its own
blends of training images (`data: {fusion: …}` in the YAMLs).
"""

import sys
from pathlib import Path

from robust201.images import load_images
from robust201.images.fusion import write_fusion


def main(data: Path, out: Path) -> None:
    mnist, cifar10 = (load_images(name, path=data / name) for name in ("mnist", "cifar10"))
    write_fusion(out / "fusion-digit", mnist, cifar10, split="test", alpha=0.5, label="first", seed=0)
    write_fusion(out / "fusion-object", mnist, cifar10, split="test", alpha=0.5, label="second", seed=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
