"""Compute all measures of trained networks, and of the same networks at initialisation, on test and train images.

    ROBUST201_DATA=FOLDER python -m benchmarks.measures
    ROBUST201_DATA=FOLDER python -m benchmarks.measures --networks 0 309 --images 32

The data folder holds `cifar10/test.parquet`, `cifar10/train.parquet` and trained NAS-Bench-201 networks in
`checkpoints/NATS-tss-v1_0-3ffb9-full`. Each measure is computed as a sweep does, on `--images` images, in
one process; times are its CPU seconds. It prints Markdown: the numbers, and what each measure took.
"""

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.trained import load_trained
from robust201.core.records import ImageSet, Split
from robust201.engine.classifier import Classifier
from robust201.engine.context import Context, Request
from robust201.images import load_images, select
from robust201.spaces.nasbench201.network import build_network
from robust201.tasks import TASKS

NETWORKS = (0, 9, 21, 309, 991, 13714)
SPLITS: tuple[Split, ...] = ("test", "train")
SEED = 0
MEASURES = [key for key, row in TASKS.items() if row.kind == "measure"]


def classifiers(folder: Path, index: int, images: ImageSet) -> Iterator[tuple[str, Classifier]]:
    """Load a network with its trained weights, and build it with random ones."""
    trained, spec = load_trained(folder, index, n_classes=images.n_classes)
    torch.manual_seed(SEED)
    random = build_network(spec, n_classes=images.n_classes)
    for weights, network in (("trained", trained), ("random", random)):
        yield weights, Classifier(network, images.normalisation, images.n_classes)


def measure(key: str, classifier: Classifier, images: ImageSet) -> list[float]:
    """Compute one measure on all images of a selection: its columns in order."""
    row = TASKS[key]
    wanted = {"images": len(images)} | ({"batch": len(images)} if "batch" in row.parameters.model_fields else {})
    context = Context(classifier, SEED, len(images), key=key, engine="fused")
    request = Request((0.0,), torch.from_numpy(images.images), torch.from_numpy(images.labels), images.indices)
    found = row.load("fused")(context, row.parameters(**wanted), request)
    return [float(found[column]) for column in row.columns]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, nargs="+", default=list(NETWORKS))
    parser.add_argument("--images", type=int, default=12, help="images per split, evenly over the classes")
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=MEASURES)
    options = parser.parse_args()
    folder = Path(os.environ["ROBUST201_DATA"])
    images = {
        split: select(load_images("cifar10", path=folder / "cifar10", split=split), count=options.images, seed=SEED)
        for split in SPLITS
    }
    rows: dict[str, list[list[str]]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for index in options.networks:
        for weights, classifier in classifiers(folder, index, images["test"]):
            for split in SPLITS:
                for key in options.measures:
                    start = time.process_time()
                    found = measure(key, classifier, images[split])
                    seconds[key].append(time.process_time() - start)
                    print(f"#{index} {weights} {split} {key}: {seconds[key][-1]:.1f} s", file=sys.stderr, flush=True)
                    rows[key].append([f"#{index}", weights, split, *(f"{value:.4g}" for value in found)])
    for key, filled in rows.items():
        taken = ", ".join(f"{value:.1f}" for value in (min(seconds[key]), max(seconds[key])))
        print(f"`{key}`, {options.images} images, CPU seconds per row (least, most): {taken}\n")
        print(table(["network", "weights", "images", *TASKS[key].columns], filled), end="\n\n")


if __name__ == "__main__":
    main()
