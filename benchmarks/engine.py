"""Compare the fused engine with the libraries: cost of a step of each attack, and of the whole suite.

    python -m benchmarks.engine --networks 13714 1462 21 991 309 0 --sample 24

In each round, everything is measured once for each layout of the reference (Foolbox and pyautoattack on the published
network, called once per epsilon, in PyTorch's default layout and in channels_last) and once for the fused engine; the
medians over rounds are reported. Ratios are relative to the layout whose suite is faster. An attack's cost is the
difference between two run lengths, so that fixed costs cancel. The clock is the thread's CPU time, which other
processes affect less than wall time.

Weights are random, as times do not depend on them. Epsilons are so small that no image is fooled, so every step runs on
every image. For Square, the first queries are measured, which compute whole images. Later queries may compute only the
part that a window changes; `python -m benchmarks.user_loop --queries 5000` measures whole runs. GPU: `benchmarks.gpu`.
"""

import argparse
from statistics import median
from typing import Any

import torch

from benchmarks.engine_case import (
    CLASSES,
    HARMLESS_EPSILON_255,
    IMAGE_SIZE,
    Case,
    make_clock,
    measurements_of,
    stratified_sample,
    suite_seconds,
)
from robust201.models.arithmetic import configure_torch

LAYOUTS = {"reference": "default", "channels_last": "channels_last"}
"""Memory layouts of the published network that the libraries attack, and their names in tables."""

ONE, TWO = (HARMLESS_EPSILON_255,), (HARMLESS_EPSILON_255, 2 * HARMLESS_EPSILON_255)
"""Epsilons. Two fill the fused engine's batches as well as seven; the libraries attack one after the other anyway."""

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
    """Measure seconds per image of passes, steps and the suite for one network, by engine."""
    clock, case = make_clock(CPU), make_case(index, n_images)
    engines = dict.fromkeys(LAYOUTS, ONE) | {"fused": TWO}
    tasks = {engine: dict(measurements_of(case, engine, epsilons)) for engine, epsilons in engines.items()}
    times: dict[str, dict[str, list[float]]] = {engine: {task: [] for task in tasks[engine]} for engine in engines}
    for engine in engines:
        for task in ("forward", "gradient", "fgsm"):  # warm-up
            tasks[engine][task](clock)
    for _ in range(n_rounds):
        for task in tasks["fused"]:
            for engine in engines:
                times[engine][task].append(tasks[engine][task](clock))
    seconds = {
        engine: {task: median(values) for task, values in task_times.items()} for engine, task_times in times.items()
    }
    suite = {engine: suite_seconds(costs) for engine, costs in seconds.items()}
    return {"index": index, "seconds": seconds, "suite": suite, "best": min(LAYOUTS, key=suite.__getitem__)}


def name_of(index: int) -> str:
    return f"#{index} ({CLASSES[index]})" if index in CLASSES else f"#{index}"


def print_row(row: dict[str, Any]) -> None:
    best, fused, suite = row["seconds"][row["best"]], row["seconds"]["fused"], row["suite"]
    cells = [name_of(row["index"]), LAYOUTS[row["best"]], *(f"{best[what] / fused[what]:.2f}" for what in fused)]
    cells += [f"**{suite[row['best']] / suite['fused']:.2f}**", f"{suite['reference'] / suite['fused']:.2f}"]
    print(f"| {' | '.join(cells)} | {fused['forward'] * 1e6:.0f} |", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, nargs="*", default=list(CLASSES), help="indices")
    parser.add_argument("--sample", type=int, default=0, help="number of networks in the stratified sample, 0 for none")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    configure_torch(threads=1)
    print(f"{options.images} images, {options.rounds} rounds, torch {torch.__version__}, one thread; CPU time\n")
    sample = stratified_sample(options.sample) if options.sample else []
    print(f"Ratios libraries / fused of the cost per image and step\n\n{HEADER}", flush=True)
    rows = []
    for index in (*options.networks, *sample):
        rows.append(measure(index, options.images, options.rounds))
        print_row(rows[-1])
    if sample:
        suites = [row["suite"] for row in rows[len(options.networks) :]]
        ours = sum(suite["fused"] for suite in suites)
        best = sum(min(suite[form] for form in LAYOUTS) for suite in suites) / ours
        default = sum(suite["reference"] for suite in suites) / ours
        print(f"\nOver the sample, weighted by cost: {best:.2f}; against the default layout {default:.2f}")


if __name__ == "__main__":
    main()
