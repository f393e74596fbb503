"""Time and peak memory of `aa_standard` on images of 224 pixels: robust201 beside pyautoattack, on one thread.

    python -m tests.large_images --images 4 --steps 20 --queries 500

Each side runs in a process of its own on the same network, a residual network in torchvision's style with random
weights, and on the same random images, labelled as the network predicts. Epsilon is so small that every image resists,
so each meets all four attacks with all of their steps: no image costs more. Steps and queries other than AutoAttack's
100 and 5,000 shorten both sides alike. Time is CPU time of the attack, memory what the process needs beyond libraries,
network and images.
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

SIDES = ("robust201", "pyautoattack")
EPSILON_255 = 0.01


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out))
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(features)) + self.shortcut(features))


def make_network(n_classes: int) -> nn.Module:
    """Build the network: ResNet-18's stem and stages with a quarter of the channels and one block each."""
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    stages = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2), Block(64, 128, 2)]
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, n_classes)).eval()


def attack(side: str, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int, queries: int) -> None:
    """Attack uint8 images (N, 3, H, W) with AutoAttack's standard version."""
    if side == "robust201":
        import robust201

        keys = {"aa_standard": {"epsilons_255": [EPSILON_255], "steps": steps, "queries": queries}}
        table = robust201.evaluate(model, images, labels, keys, batch_size=len(images), progress=False)
        assert table["accuracy"].tolist() == [1.0]
        return
    from pyautoattack import AutoAttack

    adversary = AutoAttack(model, norm="Linf", eps=EPSILON_255 / 255, version="standard", device="cpu")
    adversary.verbose = False
    for stage in (adversary.apgd, adversary.apgd_targeted, adversary.fab):
        stage.n_iter = steps
    adversary.square.n_queries = queries
    adversary.run_standard_evaluation(images.float() / 255, labels, batch_size=len(images))


def measure(side: str, n_images: int, pixels: int, n_classes: int, steps: int, queries: int) -> None:
    """Attack in this process, and print seconds of CPU time and bytes of memory."""
    torch.set_num_threads(1)
    draws = np.random.default_rng(0)
    images = torch.from_numpy(draws.integers(0, 256, (n_images, 3, pixels, pixels), dtype=np.uint8))
    model = make_network(n_classes)
    with torch.no_grad():
        labels = model(images.float() / 255).argmax(dim=1)
    if side == "robust201":
        import robust201.api  # noqa: F401 - libraries are no part of the measurement
    else:
        import pyautoattack  # noqa: F401
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    attack(side, model, images, labels, steps, queries)
    seconds = time.process_time() - start
    used = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(json.dumps({"side": side, "seconds_per_image": seconds / n_images, "bytes_per_image": used / n_images}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20, help="of both APGD attacks and FAB; AutoAttack makes 100")
    parser.add_argument("--queries", type=int, default=500, help="of Square; AutoAttack makes 5,000")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    lengths = (options.images, options.pixels, options.classes, options.steps, options.queries)
    if options.side:
        measure(options.side, *lengths)
        return
    for side in SIDES:
        subprocess.run([sys.executable, "-m", "tests.large_images", *sys.argv[1:], "--side", side], check=True)


if __name__ == "__main__":
    main()
