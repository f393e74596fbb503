"""Measure how many images Square still attacks after each query: what the suite cost of `engine.py` is made of.

    ROBUST201_DATA=FOLDER python -m benchmarks.active_share

The folder holds `cifar10/test.parquet` and trained NAS-Bench-201 networks in `checkpoints/NATS-tss-v1_0-3ffb9-full`.
Square makes its full number of queries only on images that resist. The share of (image, epsilon) pairs that a query is
made for falls from the clean accuracy to the robust accuracy, and its mean over all queries is what a sweep pays for.
"""

import argparse
import itertools
import json
import os
from pathlib import Path

import numpy as np
import torch

from benchmarks.trained import load_trained
from robust201.engine.arithmetic import configure_torch
from robust201.engine.attack_job import AttackJob
from robust201.engine.batching import Batching
from robust201.engine.draws import CounterDraws
from robust201.engine.model import Model
from robust201.images import load_images, select
from robust201.spaces.nasbench201.compiled import compile_network
from robust201.tasks.parameters import PAPER_EPSILONS_255, SquareParameters
from robust201.tasks.perturbations.square import fused

SEED = 0
DEFAULT_OUTPUT = Path(__file__).with_name("square_active_share.json")
SHOWN_QUERIES = (1, 3, 10, 30, 100, 300, 1000, 2000, 3000, 4000, 5000)


class CountingModel:
    """Notes how many images each call shows."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.loss_and_gradient = model.loss_and_gradient
        self.value_and_gradient = model.value_and_gradient
        self.sizes: list[int] = []

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classify and count."""
        self.sizes.append(len(pixels))
        return self._model.logits(pixels)


def active_images(job: AttackJob, model: CountingModel, parameters: SquareParameters) -> np.ndarray:
    """Run Square at one epsilon: (queries,) images that each query is made for."""
    for _ in fused(job, parameters):
        pass
    # Clean images, the stripes; then the queries; then what was found, twice.
    queries = model.sizes[2:-2]
    assert len(queries) <= parameters.queries
    assert all(after <= before for before, after in itertools.pairwise(queries))
    return np.array(queries + [0] * (parameters.queries - len(queries)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ROBUST201_DATA", "data")))
    parser.add_argument("--architecture", type=int, default=309)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    configure_torch(threads=1)
    images = select(load_images("cifar10", path=arguments.data), count=arguments.images, seed=SEED)
    network, spec = load_trained(arguments.data, arguments.architecture, n_classes=images.n_classes)
    compiled = compile_network(network, spec, images.normalisation, n_classes=images.n_classes)
    parameters = SquareParameters(queries=arguments.queries)
    curves, means = {}, {}
    for epsilon_255 in PAPER_EPSILONS_255:
        model = CountingModel(compiled)
        job = AttackJob(
            model=model,
            batching=Batching(len(images), len(images), as_library=True),
            draws=CounterDraws(SEED, "aa_square"),
            images=torch.from_numpy(images.images),
            labels=torch.from_numpy(images.labels),
            indices=images.indices,
            epsilons=(epsilon_255 / 255,),
        )
        active = active_images(job, model, parameters) / len(images)
        means[f"{epsilon_255:g}"] = round(float(active.mean()), 4)
        shown = [query for query in SHOWN_QUERIES if query <= arguments.queries]
        curves[f"{epsilon_255:g}"] = [round(float(active[query - 1]), 4) for query in shown]
        print(f"epsilon {epsilon_255:g}/255: mean active share {active.mean():.3f}, last {active[-1]:.3f}", flush=True)
    overall = float(np.mean(list(means.values())))
    print(f"mean over epsilons: {overall:.3f}")
    content = {
        "dataset": "cifar10",
        "architecture": arguments.architecture,
        "images": len(images),
        "queries": arguments.queries,
        "mean_share": round(overall, 4),
        "mean_share_by_epsilon_255": means,
        "shown_queries": shown,
        "active_share_by_epsilon_255": curves,
    }
    arguments.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
