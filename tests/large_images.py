"""Measure time and peak memory of `aa_standard` on images of 224 pixels with robust201 and pyautoattack, on one thread.

    python -m tests.large_images --images 4 --steps 20 --queries 500

Each package runs in a separate process, on the same network (a residual network in torchvision's style with random
weights) and on the same random images, which are labelled with the network's predictions. Epsilon is so small that no
image fools the network, so all four attacks make all steps on every image, which is the most expensive case. Both
packages make fewer than AutoAttack's 100 steps and 5,000 queries. The time is the attack's CPU time. The memory is the
peak of the process without libraries, network and images.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn

PACKAGES = ("robust201", "pyautoattack")
EPSILON_255 = 0.01


class Block(nn.Module):
    """Residual block with two convolutions."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU())
        self.conv2 = nn.Sequential(nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out))
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv2(self.conv1(features)) + self.shortcut(features))


def make_network(n_classes: int) -> nn.Module:
    """Build a network like ResNet-18, with a quarter of the channels and one block per stage."""
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    stages = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2), Block(64, 128, 2)]
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, n_classes)).eval()


def attack(
    package: str, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int, queries: int
) -> None:
    """Attack uint8 images (N, 3, H, W) with a package's implementation of AutoAttack (standard version)."""
    if package == "robust201":
        import robust201

        keys = {"aa_standard": {"epsilons": [f"{EPSILON_255}/255"], "steps": steps, "queries": queries}}
        table = robust201.evaluate(model, images, labels, keys, batch_size=len(images), progress=False)
        assert table.table["accuracy"].tolist() == [1.0]
        return
    from pyautoattack import AutoAttack

    adversary = AutoAttack(model, norm="Linf", eps=EPSILON_255 / 255, version="standard", device="cpu")
    adversary.verbose = False
    for stage in (adversary.apgd, adversary.apgd_targeted, adversary.fab):
        stage.n_iter = steps
    adversary.square.n_queries = queries
    adversary.run_standard_evaluation(images.float() / 255, labels, batch_size=len(images))


def measure(package: str, n_images: int, pixels: int, n_classes: int, steps: int, queries: int) -> None:
    """Attack in this process, and print CPU seconds and bytes of memory per image."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    images = torch.from_numpy(generator.integers(0, 256, (n_images, 3, pixels, pixels), dtype=np.uint8))
    model = make_network(n_classes)
    with torch.no_grad():
        labels = model(images.float() / 255).argmax(dim=1)
    if package == "robust201":
        import robust201.api  # noqa: F401 - imported before the measurement, which must not include libraries
    else:
        import pyautoattack  # noqa: F401
    initial_kilobytes, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    attack(package, model, images, labels, steps, queries)
    seconds = time.process_time() - start
    additional_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - initial_kilobytes)
    print(
        json.dumps(
            {
                "side": package,
                "seconds_per_image": seconds / n_images,
                "bytes_per_image": additional_bytes / n_images,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20, help="steps of both APGD attacks and FAB; 100 in AutoAttack")
    parser.add_argument("--queries", type=int, default=500, help="queries of Square; 5,000 in AutoAttack")
    parser.add_argument("--side", dest="package", choices=PACKAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    settings = (options.images, options.pixels, options.classes, options.steps, options.queries)
    if options.package:
        measure(options.package, *settings)
        return
    for package in PACKAGES:
        subprocess.run([sys.executable, "-m", "tests.large_images", *sys.argv[1:], "--side", package], check=True)


if __name__ == "__main__":
    main()
