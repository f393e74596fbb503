"""Compare the fused engine with the libraries: cost of a step of each attack, and of the suite of the paper's attacks.

    python -m benchmarks.engine --networks 13714 1462 21 991 309 0 --sample 24

Each round measures everything once with the fused engine and once with each memory layout of the reference: Foolbox and
pyautoattack on the published network, called once per epsilon, in PyTorch's default layout and in channels_last. The
medians over rounds are reported. Ratios are relative to the layout with the faster suite. An attack's cost is the
difference between two run lengths, so that fixed costs cancel. The clock is the thread's CPU time, because other
processes affect it less than wall time.

Weights are random, because times do not depend on them. Epsilons are so small that no image is fooled, so every step
runs on every image. For Square, only the first queries are measured, which compute whole images. Later queries may
compute only the part that a window changes; `python -m benchmarks.user_loop --queries 5000` measures whole runs.
`benchmarks.gpu` is the benchmark for GPUs.
"""

import argparse
from statistics import median
from typing import Any

import torch

from benchmarks.engine_case import (
    COST_LEVELS,
    HARMLESS_EPSILON_255,
    IMAGE_SIZE,
    Case,
    make_clock,
    measurements_of,
    stratified_sample,
    suite_seconds,
)
from robust201.networks.device import configure_torch

LAYOUTS = {"reference": "default", "channels_last": "channels_last"}
"""Memory layouts of the published network, as they are called in tables, by engine name."""

ONE_EPSILON, TWO_EPSILONS = (HARMLESS_EPSILON_255,), (HARMLESS_EPSILON_255, 2 * HARMLESS_EPSILON_255)
"""Epsilons in units of 1/255.

Two fill the fused engine's batches as well as the paper's seven would. One suffices for the libraries, which attack at
one epsilon at a time.
"""

CPU = torch.device("cpu")
HEADER = (
    "| network | faster layout | forward | + gradient | FGSM × 11 | PGD | APGD-CE | Square | **suite** "
    "| suite, against the default layout | fused forward, µs |\n" + "|---" * 11 + "|"
)


def make_case(index: int, n_images: int) -> Case:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n_images, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8, generator=generator)
    return Case(index, CPU, images)


def measure(index: int, n_images: int, n_rounds: int) -> dict[str, Any]:
    """Measure seconds per image of the passes, steps and suite of one network, with each engine."""
    clock, case = make_clock(CPU), make_case(index, n_images)
    epsilons_by_engine = dict.fromkeys(LAYOUTS, ONE_EPSILON) | {"fused": TWO_EPSILONS}
    measurements = {
        engine: dict(measurements_of(case, engine, epsilons)) for engine, epsilons in epsilons_by_engine.items()
    }
    times: dict[str, dict[str, list[float]]] = {
        engine: {task: [] for task in measurements[engine]} for engine in epsilons_by_engine
    }
    for engine in epsilons_by_engine:
        for task in ("forward", "gradient", "fgsm"):  # warm-up
            measurements[engine][task](clock)
    for _ in range(n_rounds):
        for task in measurements["fused"]:
            for engine in epsilons_by_engine:
                times[engine][task].append(measurements[engine][task](clock))
    seconds = {
        engine: {task: median(task_seconds) for task, task_seconds in task_times.items()}
        for engine, task_times in times.items()
    }
    suite = {engine: suite_seconds(costs) for engine, costs in seconds.items()}
    return {"index": index, "seconds": seconds, "suite": suite, "fastest_layout": min(LAYOUTS, key=suite.__getitem__)}


def label_of(index: int) -> str:
    return f"#{index} ({COST_LEVELS[index]})" if index in COST_LEVELS else f"#{index}"


def print_row(result: dict[str, Any]) -> None:
    layout, suite = result["fastest_layout"], result["suite"]
    library, fused = result["seconds"][layout], result["seconds"]["fused"]
    cells = [label_of(result["index"]), LAYOUTS[layout], *(f"{library[task] / fused[task]:.2f}" for task in fused)]
    cells += [f"**{suite[layout] / suite['fused']:.2f}**", f"{suite['reference'] / suite['fused']:.2f}"]
    print(f"| {' | '.join(cells)} | {fused['forward'] * 1e6:.0f} |", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, nargs="*", default=list(COST_LEVELS), help="indices of architectures")
    parser.add_argument("--sample", type=int, default=0, help="number of networks in the stratified sample, 0 for none")
    parser.add_argument("--images", type=int, default=32, help="number of images per network")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, whose medians are reported")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    configure_torch(threads=1)
    print(f"{options.images} images, {options.rounds} rounds, torch {torch.__version__}, one thread; CPU time\n")
    sample = stratified_sample(options.sample) if options.sample else []
    print(f"Ratios libraries / fused of the cost per image and step\n\n{HEADER}", flush=True)
    results = []
    for index in (*options.networks, *sample):
        results.append(measure(index, options.images, options.rounds))
        print_row(results[-1])
    if sample:
        suites = [result["suite"] for result in results[len(options.networks) :]]
        fused_seconds = sum(suite["fused"] for suite in suites)
        best_ratio = sum(min(suite[layout] for layout in LAYOUTS) for suite in suites) / fused_seconds
        default_ratio = sum(suite["reference"] for suite in suites) / fused_seconds
        print(
            f"\nRatio for the whole sample: {best_ratio:.2f} against the faster layout of each network, "
            f"{default_ratio:.2f} against the default layout"
        )


if __name__ == "__main__":
    main()
