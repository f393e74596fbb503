"""Compare `aa_standard` with AutoAttack's own standard evaluation on one trained network: outcomes, stages, times.

    ROBUST201_DATA=FOLDER python -m benchmarks.standard --network 21 --images 100 --epsilon 1

The data folder holds `cifar10/test.parquet` and trained NAS-Bench-201 networks in
`checkpoints/NATS-tss-v1_0-3ffb9-full`. Three runs on the same images, each timed by the thread's CPU clock:

- library: `AutoAttack(version="standard").run_standard_evaluation`, on the published network;
- replayed: `aa_standard` of the fused engine on the published network with the library's draws and batches, which must
  give the library's images to the bit;
- fused: `engine: fused` as it is, on the compiled network with draws of its own, so single images differ by chance:
  McNemar's exact test on the images that only one of the two fools.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pyautoattack import AutoAttack
from scipy.stats import binomtest

from benchmarks.trained import load_trained
from robust201.core.noise import derived_seed
from robust201.core.records import ImageSet
from robust201.engine.arithmetic import configure_torch
from robust201.engine.attack_job import AttackJob
from robust201.engine.batching import Batching
from robust201.engine.classifier import Classifier
from robust201.engine.context import Context, Perturbed, Request, to_float
from robust201.engine.model import Model
from robust201.engine.replay import ReplayedDraws
from robust201.images import load_images, select
from robust201.spaces.nasbench201.compiled import compile_network
from robust201.tasks import TASKS
from robust201.tasks.parameters import StandardParameters
from robust201.tasks.perturbations.contract import perturb

ROW = TASKS["aa_standard"]
SEED = 0
STAGES = ("wrong", "APGD-CE", "APGD-T", "FAB-T", "Square", "resist")


class Outcome:
    """What one run made of the images."""

    def __init__(self, images: torch.Tensor, right: NDArray[np.bool_], stages: NDArray[np.int64] | None = None) -> None:
        self.images = images
        self.right = right
        self.stages = stages


def gather(batches: Iterable[Perturbed], model: Model, images: torch.Tensor, labels: torch.Tensor) -> Outcome:
    """Put a perturbation's batches together, and classify them."""
    found, stages = torch.full(images.shape, torch.nan), np.zeros(len(images), np.int64)
    for batch in batches:
        found[batch.positions] = batch.images
        stages[batch.positions.numpy()] = batch.stage
    with torch.inference_mode():
        right = (model.logits(found).argmax(dim=1) == labels).numpy()
    stages[right] = len(STAGES) - 1
    return Outcome(found, right, stages)


def run_library(classifier: Classifier, pixels: torch.Tensor, labels: torch.Tensor, epsilon: float) -> Outcome:
    """Run AutoAttack's own evaluation, in one batch."""
    seed = derived_seed(SEED, ROW.key, 0)
    adversary = AutoAttack(classifier, eps=epsilon / 255, norm="Linf", seed=seed, version="standard")
    adversary.verbose = False
    with torch.random.fork_rng():
        found, _ = adversary.run_standard_evaluation(pixels, labels, batch_size=len(pixels))
    return Outcome(found, (classifier.logits(found).argmax(dim=1) == labels).numpy())


def run_replayed(classifier: Classifier, images: ImageSet, epsilon: float) -> Outcome:
    """Run the fused attack with the library's draws."""
    pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    job = AttackJob(
        model=classifier,
        batching=Batching(samples=1, pool=1, as_library=True),
        draws=ReplayedDraws(derived_seed(SEED, ROW.key, 0)),
        images=pixels,
        labels=labels,
        indices=images.indices,
        epsilons=(epsilon / 255,),
    )
    return gather(ROW.load("fused")(job, StandardParameters(epsilons_255=(epsilon,))), classifier, pixels, labels)


def run_fused(classifier: Classifier, model: Model, images: ImageSet, epsilon: float) -> Outcome:
    """Run the fused engine as a sweep does."""
    pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    context = Context(classifier, SEED, len(images), key=ROW.key, engine="fused", model=model)
    request = Request((epsilon,), pixels, labels, images.indices)
    return gather(perturb(ROW, context, StandardParameters(epsilons_255=(epsilon,)), request), model, pixels, labels)


def main() -> None:
    """Run all three, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", type=int, default=21)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=1.0, help="in units of 1/255")
    chosen = parser.parse_args()
    configure_torch(threads=1)
    folder = Path(os.environ["ROBUST201_DATA"])
    images = select(load_images("cifar10", path=folder / "cifar10"), count=chosen.images, seed=SEED)
    network, spec = load_trained(folder, chosen.network, n_classes=images.n_classes)
    classifier = Classifier(network, images.normalisation, images.n_classes)
    compiled = compile_network(network, spec, images.normalisation, n_classes=images.n_classes)
    pixels, labels = to_float(torch.from_numpy(images.images)), torch.from_numpy(images.labels)
    runs: dict[str, Callable[[], Outcome]] = {
        "library": lambda: run_library(classifier, pixels, labels, chosen.epsilon),
        "replayed": lambda: run_replayed(classifier, images, chosen.epsilon),
        "fused": lambda: run_fused(classifier, compiled, images, chosen.epsilon),
    }
    outcomes: dict[str, Outcome] = {}
    for name, run in runs.items():
        start = time.thread_time()
        outcomes[name] = run()
        seconds, found = time.thread_time() - start, outcomes[name]
        counted = "" if found.stages is None else np.bincount(found.stages, minlength=len(STAGES)).tolist()
        print(f"{name}: {found.right.sum()} of {len(images)} right, {seconds:.0f} CPU s {counted}", flush=True)
    library, replayed, fused = (outcomes[name] for name in runs)
    differing = int((library.images != replayed.images).flatten(1).any(dim=1).sum())
    print(f"stages: {', '.join(STAGES)}")
    print(f"images that differ between library and replayed: {differing}")
    one, other = int((library.right & ~fused.right).sum()), int((~library.right & fused.right).sum())
    p_value = binomtest(one, one + other).pvalue if one + other else 1.0
    print(f"right after one of library and fused only: {one} {other}, McNemar p {p_value:.2f}")


if __name__ == "__main__":
    main()
