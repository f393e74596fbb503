"""Measure Square's window-local search against whole passes, query by query in one run.

    ROBUST201_DATA=FOLDER python -m benchmarks.windows --architecture 21 --images 40 --epsilons 0.1 0.5

The folder holds `cifar10/test.parquet` and trained NAS-Bench-201 networks in `checkpoints/NATS-tss-v1_0-3ffb9-full`.
Every query that a search answers locally is answered by a whole pass, too, in alternating order. Their logits must have
the same bits; their CPU times are added up by the side of the window, with the time that preparing and accepting take.

    ROBUST201_DATA=FOLDER python -m benchmarks.windows --architecture 309 --images 40 --whole-attack

makes the whole attack at the paper's epsilons with whole passes and as the engine runs, in turn, and compares CPU times
and images; `--rounds` sets how often, by default twice.
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.trained import load_trained
from robust201.engine.arithmetic import configure_torch
from robust201.engine.attack_job import CPU_SAMPLES, AttackJob
from robust201.engine.batching import Batching
from robust201.engine.draws import CounterDraws
from robust201.engine.model import Model
from robust201.images import load_images, select
from robust201.spaces.nasbench201.compiled import InferenceNetwork, compile_network
from robust201.tasks.parameters import PAPER_EPSILONS_255, SquareParameters
from robust201.tasks.perturbations.square import fused

SEED = 0

_Answer = TypeVar("_Answer")


@dataclass
class Times:
    """CPU seconds of the queries with one side; `local` has the whole passes where a search chose them."""

    queries: int = 0
    answered_locally: int = 0
    whole: float = 0.0
    local: float = 0.0
    kept: float = 0.0


class TimedSearch:
    """Answers each proposal both ways."""

    def __init__(
        self, network: InferenceNetwork, pixels: torch.Tensor, sides: Sequence[int], times: dict[int, Times]
    ) -> None:
        self._network, self._pixels, self._times = network, pixels, times
        start = time.thread_time()
        self._search = network.window_search(pixels, sides)
        for side in sides:
            times[side].kept += (time.thread_time() - start) / len(sides)
        self._last = times[sides[0]]

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        """Classify both ways and compare."""
        times = self._last = self._times[window.shape[2]]
        times.queries += 1
        if self._search is None:
            seconds, logits = timed(self._network.logits, self._pixels)
            times.whole += seconds
            times.local += seconds
            return logits
        times.answered_locally += 1
        if times.queries % 2:
            whole, logits = timed(self._network.logits, self._pixels)
            local, found = timed(self._search.logits, row, column, window)
        else:
            local, found = timed(self._search.logits, row, column, window)
            whole, logits = timed(self._network.logits, self._pixels)
        times.whole += whole
        times.local += local
        assert torch.equal(logits, found)
        return logits

    def accept(self, accepted: torch.Tensor) -> None:
        """Accept, and time it."""
        if self._search is not None:
            self._last.kept += timed(self._search.accept, accepted)[0]


class TimedModel:
    """A network whose searches are timed."""

    def __init__(self, network: InferenceNetwork) -> None:
        self._network = network
        self.loss_and_gradient = network.loss_and_gradient
        self.value_and_gradient = network.value_and_gradient
        self.times: dict[int, Times] = defaultdict(Times)

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classify."""
        return self._network.logits(pixels)

    def window_search(self, pixels: torch.Tensor, sides: Sequence[int]) -> TimedSearch:
        """Start a search that answers both ways."""
        return TimedSearch(self._network, pixels, sides, self.times)


class WholePasses:
    """A network that offers no window-local search."""

    def __init__(self, network: InferenceNetwork) -> None:
        self.logits = network.logits
        self.loss_and_gradient = network.loss_and_gradient
        self.value_and_gradient = network.value_and_gradient


def compare_attacks(network: InferenceNetwork, job: AttackJob, parameters: SquareParameters, rounds: int) -> None:
    """Make the whole attack both ways, in turn."""

    def found_by(model: Model) -> dict[tuple[int, int], torch.Tensor]:
        return {
            (batch.strength, position): image
            for batch in fused(replace(job, model=model), parameters)
            for position, image in zip(batch.positions.tolist(), batch.images, strict=True)
        }

    for _ in range(rounds):
        whole, expected = timed(found_by, WholePasses(network))
        local, found = timed(found_by, network)
        differing = sum(not torch.equal(image, expected[sample]) for sample, image in found.items())
        print(
            f"{len(found)} samples: whole passes {whole:.1f} s, windows {local:.1f} s, ratio {whole / local:.2f}, "
            f"{differing} images differ",
            flush=True,
        )


def timed(function: Callable[..., _Answer], *arguments: object) -> tuple[float, _Answer]:
    """Call a function: CPU seconds, and what it returned."""
    start = time.thread_time()
    answer = function(*arguments)
    return time.thread_time() - start, answer


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ROBUST201_DATA", "data")))
    parser.add_argument("--architecture", type=int, default=309)
    parser.add_argument("--images", type=int, default=46)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.5])
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=2, help="of whole attacks")
    parser.add_argument("--whole-attack", action="store_true", help="compare whole attacks at the paper's epsilons")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    configure_torch(threads=1)
    images = select(load_images("cifar10", path=arguments.data), count=arguments.images, seed=SEED)
    network, spec = load_trained(arguments.data, arguments.architecture, n_classes=images.n_classes)
    compiled = compile_network(network, spec, images.normalisation, n_classes=images.n_classes)
    model = TimedModel(compiled)
    epsilons_255 = PAPER_EPSILONS_255 if arguments.whole_attack else arguments.epsilons
    parameters = SquareParameters(queries=arguments.queries)
    job = AttackJob(
        model=model,
        batching=Batching(CPU_SAMPLES, 4096),
        draws=CounterDraws(SEED, "aa_square"),
        images=torch.from_numpy(images.images),
        labels=torch.from_numpy(images.labels),
        indices=images.indices,
        epsilons=tuple(epsilon / 255 for epsilon in epsilons_255),
    )
    if arguments.whole_attack:
        print(f"#{arguments.architecture}, {arguments.queries} queries")
        compare_attacks(compiled, job, parameters, arguments.rounds)
        return
    for _ in fused(job, parameters):
        pass
    print(f"#{arguments.architecture}\nside  batches  local  whole, s  local, s  kept, s  ratio")
    for side, times in sorted(model.times.items(), reverse=True):
        print(
            f"{side:4}  {times.queries:7}  {times.answered_locally:5}  {times.whole:8.2f}  {times.local:8.2f}  "
            f"{times.kept:7.2f}  {times.whole / (times.local + times.kept):5.2f}"
        )
    whole = sum(times.whole for times in model.times.values())
    local = sum(times.local + times.kept for times in model.times.values())
    print(f"all: {whole:.1f} s against {local:.1f} s, ratio {whole / local:.2f}")


if __name__ == "__main__":
    main()
