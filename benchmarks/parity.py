"""Prove that the fused attacks are Foolbox's and AutoAttack's, to the last bit, on whole trained networks.

    ROBUST201_DATA=FOLDER python -m benchmarks.parity

The folder holds `cifar10/test.parquet` and trained NAS-Bench-201 networks in `checkpoints/NATS-tss-v1_0-3ffb9-full`.
Each attack runs with the paper's parameters and epsilons (Square with 500 queries) on one batch of images: by the
library, once an epsilon, and by the fused attack, all epsilons together, with the library's draws replayed and in its
batches. The table counts the bits in which images and logits differ. The exit status is 0 if there are none.

`309/100` is network #309 with a random head of 100 classes; its labels are its own predictions, every fourth one moved.
On a GPU: `python -m benchmarks.gpu --only parity`.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from benchmarks.trained import load_trained
from robust201.bench.generated import random_network
from robust201.core.records import ImageSet
from robust201.engine.arithmetic import configure_torch
from robust201.engine.classifier import Classifier
from robust201.engine.context import to_float
from robust201.images import load_images, select
from robust201.tasks import TASKS
from tests.support.library_parity import Difference, compare

NETWORKS = ("0", "9", "21", "309", "309/100", "991", "13714")
ATTACKS = ("fgsm", "pgd", "pgd_l2", "aa_apgd-ce", "aa_square")
HEAD_CLASSES = 100


def load_network(folder: Path, name: str, images: ImageSet) -> tuple[Classifier, torch.Tensor, torch.Tensor]:
    """Load a trained network with the images and labels that it is attacked on."""
    index, _, head = name.partition("/")
    network, _ = load_trained(folder, int(index), n_classes=10)
    pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    if not head:
        return Classifier(network, images.normalisation, 10), pixels, labels
    torch.manual_seed(0)
    trained = network.classifier
    assert isinstance(trained, nn.Linear)
    network.classifier = nn.Linear(trained.in_features, HEAD_CLASSES)
    nn.init.normal_(network.classifier.weight)
    classifier = Classifier(network, images.normalisation, HEAD_CLASSES)
    with torch.no_grad():
        labels = classifier(to_float(pixels)).argmax(dim=1)
    labels[3::4] = (labels[3::4] + 1) % HEAD_CLASSES
    return classifier, pixels, labels


def compare_random(
    name: str, device: torch.device, *, n_images: int, steps: int | None, queries: int, size: tuple[int, int]
) -> Iterator[tuple[str, list[int], list[int]]]:
    """Compare on digits and random weights, which need no data.

    Args:
        name: index of the network.
        device: where to compute.
        n_images: images of the batch.
        steps: of the attacks by gradient; None for the paper's.
        queries: of Square.
        size: channels and cells of the network.

    Yields:
        Attack, images correct and differing bits at each epsilon.
    """
    digits = select(load_images("digits"), count=n_images, seed=0)
    network, images = random_network(name, digits, channels=size[0], cells=size[1])
    classifier = Classifier(network, images.normalisation, images.n_classes, device=device)
    pixels, labels = torch.from_numpy(images.images).to(device), torch.from_numpy(images.labels.copy())
    labels[3::4] = (labels[3::4] + 1) % images.n_classes
    for key in ATTACKS:
        changes = {"queries": queries} if key == "aa_square" else {}
        if steps is not None and key not in ("fgsm", "aa_square"):
            changes = {"steps": steps}
        parameters = TASKS[key].parameters(**changes)
        found = compare(key, classifier, pixels, labels.to(device), parameters, seed=1).values()
        yield key, [one.correct for one in found], [one.image_bits + one.logit_bits for one in found]


def print_row(network: str, attack: str, found: dict[float, Difference]) -> int:
    differing = [difference.image_bits + difference.logit_bits for difference in found.values()]
    correct = " ".join(str(difference.correct) for difference in found.values())
    bits = " ".join(str(bits) for bits in differing)
    print(f"| #{network} | `{attack}` | {correct} | {bits} |", flush=True)
    return sum(differing)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=ATTACKS)
    parser.add_argument("--images", type=int, default=16, help="images in the batch")
    parser.add_argument("--queries", type=int, default=500, help="queries of Square")
    options = parser.parse_args()
    folder = Path(os.environ.get("ROBUST201_DATA", "data"))
    configure_torch(threads=1)
    images = select(load_images("cifar10", path=folder / "cifar10"), count=options.images, seed=0)
    print(
        f"{len(images)} images a batch, torch {torch.__version__}, foolbox {version('foolbox')}, "
        f"pyautoattack {version('pyautoattack')}\n\n"
        "| network | attack | correct at each epsilon | differing bits at each epsilon |\n|---|---|---|---|",
        flush=True,
    )
    total = 0
    for name in options.networks:
        classifier, pixels, labels = load_network(folder, name, images)
        for key in options.attacks:
            changes = {"queries": options.queries} if key == "aa_square" else {}
            parameters = TASKS[key].parameters(**changes)
            total += print_row(name, key, compare(key, classifier, pixels, labels, parameters, seed=1))
    print(f"\n{total} differing bits")
    return 0 if total == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
