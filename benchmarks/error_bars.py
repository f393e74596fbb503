"""What error bars cost: the bootstrap of a space of networks, and keeping the outcome of every image.

    python -m benchmarks.error_bars                                  6,466 networks, 10,000 images, 1,000 draws
    python -m benchmarks.error_bars --architectures 200 --draws 50   a trial

The networks are simulated: whether one classifies an image correctly depends on the network's accuracy, on how hard the
image is for all of them, and on chance. Recording is what a worker does with the logits of one evaluation until its
shard is on disk; it is timed with and without predictions, in turn. CPU seconds of one thread.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from robust201.core.records import EvaluationResult, Part, Unit, content_digest
from robust201.engine.arithmetic import configure_torch
from robust201.shards import ShardStore
from robust201.spaces import SPACES
from robust201.statistics.bootstrap import (
    binomial_draws,
    image_draws,
    kendall_estimate,
    median_estimate,
    rank_intervals,
)
from robust201.statistics.outcomes import Packed, count_correct, pack_outcomes
from robust201.statistics.significance import ties_with_best
from robust201.tasks.measurements import Accumulator, check_values

MEASUREMENTS = ("accuracy", "confidence", "cm")
N_CLASSES = 10
BATCH = 250
SMALLEST = 3
"""The demo's network with the fewest parameters."""

T = TypeVar("T")


def timed(what: str, compute: Callable[[], T]) -> T:
    """Compute something, and print the CPU seconds."""
    start = time.process_time()
    found = compute()
    print(f"{what}: {time.process_time() - start:.1f} s", flush=True)
    return found


def simulate(n_networks: int, n_images: int) -> tuple[Packed, Packed]:
    """Outcomes (A, ⌈N/8⌉) of networks on clean images, and under an attack that halves their accuracies."""
    rng = np.random.default_rng(0)
    # Roughly as the published accuracies are spread, of which the highest is 94.68 %; times do not depend on it.
    clean = rng.normal(0.91, 0.02, n_networks).clip(0.1, 0.947)
    hardness = rng.normal(size=n_images)
    under: list[Packed] = []
    for accuracies in (clean, clean * 0.5 + rng.normal(0, 0.01, n_networks)):
        rows = [pack_outcomes(0.8 * hardness + 0.6 * rng.normal(size=n_images) < ndtri(one)) for one in accuracies]
        under.append(np.stack(rows))
    return under[0], under[1]


def time_bootstrap(n_networks: int, n_images: int, n_draws: int) -> None:
    """Time what `metrics --bootstrap` and `rank(ties=...)` compute."""
    clean, attacked = simulate(n_networks, n_images)
    first, second = (count_correct(one) / n_images for one in (clean, attacked))
    print(f"{n_networks:,} networks, {n_images:,} images, {n_draws:,} draws:")
    timed("  draws from accuracies alone", lambda: binomial_draws(first, n_images, n_draws=n_draws))
    drawn, drawn_attacked = (
        timed(f"  draws of images, {name}", partial(image_draws, held, n_images, n_draws=n_draws))
        for name, held in (("clean", clean), ("attacked", attacked))
    )
    timed("  ranks", lambda: rank_intervals(drawn))
    timed("  median", lambda: median_estimate(first, drawn, n_images))
    timed("  Kendall's tau", lambda: kendall_estimate(first, second, drawn, drawn_attacked))
    timed("  ties with the best, paired", lambda: ties_with_best(first, n_images, outcomes=clean))


def record(
    store: ShardStore, logits: torch.Tensor, labels: torch.Tensor, measurements: Sequence[str], name: str
) -> float:
    """Measure and store an evaluation, given its logits; give the CPU seconds."""
    unit = Unit(content_digest(name), 0, "cifar10", "clean", (0.0,), len(labels), "p" * 32, "c" * 64)
    positions = torch.arange(len(labels))
    start = time.process_time()
    accumulator = Accumulator(measurements, N_CLASSES, "cpu", len(labels))
    for first in range(0, len(labels), BATCH):
        batch = positions[first : first + BATCH]
        accumulator.update(batch, logits[batch], labels[batch])
    values = accumulator.finalise()
    check_values(values, len(labels))
    store.commit([EvaluationResult(Part(unit, unit.strengths, 0, len(labels)), 0.0, values, 1.0)])
    return time.process_time() - start


def time_recording(n_images: int, repeats: int) -> None:
    """Compare an evaluation's recording with and without predictions, and both with a small network's forward pass."""
    rng = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(n_images, N_CLASSES, generator=rng), torch.arange(n_images) % N_CLASSES
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        store = ShardStore.create(Path(folder))
        for repeat in range(repeats + 1):
            for name, more in (("without", ()), ("with", ("predictions",))):
                taken = record(store, logits, labels, (*MEASUREMENTS, *more), f"{name} {repeat}")
                if repeat:  # the first one warms up
                    seconds[name].append(taken)
    without, with_them = (statistics.median(seconds[name]) for name in seconds)
    forward = time_forward(n_images)
    print(f"recording {n_images:,} images, median of {repeats}: {without * 1e3:.1f} ms, ", end="")
    print(f"with predictions {with_them * 1e3:.1f} ms")
    print(f"forward pass of the smallest demo network: {forward:.2f} s, ", end="")
    print(f"to which predictions add {(with_them - without) / (forward + without):.2%}")


def time_forward(n_images: int) -> float:
    """CPU seconds of a forward pass of images through the demo's network with the fewest parameters, as published."""
    space = SPACES["nasbench201"].sized(channels=4, cells=1)
    network = space.build(SMALLEST, n_classes=N_CLASSES).eval()
    images: NDArray[np.float32] = np.random.default_rng(0).random((BATCH, 3, 32, 32), np.float32)
    shown = torch.from_numpy(images)
    with torch.inference_mode():
        network(shown)
        start = time.process_time()
        for _ in range(-(-n_images // BATCH)):
            network(shown)
        return time.process_time() - start


def main() -> None:
    """Run both, and print CPU seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", type=int, default=6466)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=20, help="of recording")
    options = parser.parse_args()
    configure_torch(threads=1)
    time_recording(options.images, options.repeats)
    time_bootstrap(options.architectures, options.images, options.draws)


if __name__ == "__main__":
    main()
