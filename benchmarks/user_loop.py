"""Measure the speed-up of `robust201 run` over a plain evaluation loop, by timing whole processes.

    ROBUST201_DATA=FOLDER python -m benchmarks.user_loop --networks 13714 1462 21 991 309 0 --images 24 --queries 200
    python -m benchmarks.user_loop --sample 24 --images 12 --queries 200

The loop is `benchmarks.plain_loop`: Foolbox and AutoAttack attack the network as a user would, once per epsilon, in
PyTorch's default layout and in channels_last, with batches of 50, 250 and all images. Speed-ups are relative to the
fastest of these variants. A network has trained weights if the data folder contains them. Otherwise its weights are
random, and its predictions are used as labels. The images are CIFAR-10 test images if the data folder contains them,
and otherwise scikit-learn's digits. In each round, each program also runs once without attacks, to time its start-up.
Processes run one after the other, every second round in reverse order. On a busy machine, only CPU time is meaningful.

`--threads 0` uses all cores.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from math import exp, log
from pathlib import Path

from benchmarks.comparison import (
    AttackBudget,
    Loop,
    Machine,
    Subject,
    TimeComparison,
    compare,
    make_loops,
)
from benchmarks.engine_case import ARCHIVE, COST_LEVELS, load_trained, stratified_sample
from benchmarks.generated import random_network, write_subject
from robust201.core.records import ImageSet
from robust201.images import load_images, select

PAPER_BUDGET = AttackBudget()


def read_images(folder: Path, count: int) -> ImageSet:
    """Read CIFAR-10 test images from the data folder; return digits if there are none."""
    if (folder / "cifar10").exists():
        return select(load_images("cifar10", path=folder / "cifar10"), count=count, seed=0)
    return select(load_images("digits"), count=count, seed=0)


def make_subject(name: str, images: ImageSet, data_folder: Path, folder: Path) -> tuple[Subject, bool]:
    """Write a network's files; return its `Subject`, and whether it has trained weights."""
    is_trained = name.isdigit() and (data_folder / ARCHIVE / f"{int(name):06d}.pickle.pbz2").exists()
    if is_trained:
        network, _ = load_trained(data_folder, int(name), n_classes=images.n_classes)
        return write_subject(name, network, images, folder), True
    return write_subject(name, *random_network(name, images), folder), False


def print_header(loops: Sequence[Loop]) -> None:
    columns = [
        "network",
        "weights",
        *(f"{loop.label}, s" for loop in loops),
        "robust201, s",
        "**speed-up**",
        "speed-up, wall time",
    ]
    columns += ["speed-up, with start-up", "largest difference in accuracy"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)


def print_row(comparison: TimeComparison, *, is_trained: bool, clock: str) -> None:
    name = comparison.subject.label
    if name.startswith("#") and int(comparison.subject.name) in COST_LEVELS:
        name += f" ({COST_LEVELS[int(comparison.subject.name)]})"
    seconds = [getattr(times.attacks, clock) for times in (*comparison.loops, comparison.sweep)]
    entries = [name, "trained" if is_trained else "random", *(f"{value:.1f}" for value in seconds)]
    ratios = comparison.speed_up("wall"), comparison.speed_up(clock, with_start_up=True), comparison.largest_difference
    entries += [f"**{comparison.speed_up(clock):.2f}**", *(f"{ratio:.2f}" for ratio in ratios)]
    print(f"| {' | '.join(entries)} |", flush=True)


def print_summary(comparisons: Sequence[TimeComparison], clock: str) -> None:
    """Print the speed-up for the networks of the sample: the ratio of total times, and the ratios' geometric mean."""
    loop_seconds = sum(getattr(comparison.fastest_loop(clock).attacks, clock) for comparison in comparisons)
    fused_seconds = sum(getattr(comparison.sweep.attacks, clock) for comparison in comparisons)
    mean_ratio = exp(sum(log(comparison.speed_up(clock)) for comparison in comparisons) / len(comparisons))
    print(
        f"\n{len(comparisons)} networks: speed-up {loop_seconds / fused_seconds:.2f} by total time, "
        f"geometric mean {mean_ratio:.2f} ({clock} time)"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--networks",
        nargs="*",
        default=[str(index) for index in COST_LEVELS],
        help="indices of cells, or names of zoo networks such as resnet18",
    )
    parser.add_argument("--sample", type=int, default=0, help="number of networks in the stratified sample, 0 for none")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--epsilons", type=float, nargs="+", default=PAPER_BUDGET.epsilons, help="in units of 1/255")
    parser.add_argument("--fgsm-epsilons", type=float, nargs="+", default=PAPER_BUDGET.fgsm_epsilons)
    parser.add_argument("--pgd-steps", type=int, default=PAPER_BUDGET.pgd_steps)
    parser.add_argument("--apgd-steps", type=int, default=PAPER_BUDGET.apgd_steps)
    parser.add_argument("--queries", type=int, default=200, help="queries of Square; 5,000 in the paper")
    parser.add_argument(
        "--batches",
        type=int,
        nargs="*",
        default=[50, 250],
        help="batch sizes of the loop, in addition to one batch of all images",
    )
    parser.add_argument("--threads", type=int, default=1, help="0 for all cores")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ROBUST201_DATA", "data")))
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    budget = AttackBudget(
        tuple(options.epsilons), tuple(options.fgsm_epsilons), options.pgd_steps, options.apgd_steps, options.queries
    )
    machine = Machine(options.threads or len(os.sched_getaffinity(0)), options.device)
    loops = make_loops(options.images, options.batches)
    images = read_images(options.data, options.images)
    clock = "wall" if options.device == "cuda" else "cpu"
    sample = [str(index) for index in stratified_sample(options.sample)] if options.sample else []
    print(
        f"{clock} time of the attacks, excluding start-up; {options.images} images of "
        f"{images.dataset}, {options.queries} queries of Square, threads: {machine.threads}, {options.device}, "
        f"rounds: {options.rounds}\n"
    )
    print_header(loops)
    comparisons: dict[str, TimeComparison] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in dict.fromkeys([*options.networks, *sample]):
            subject, is_trained = make_subject(name, images, options.data, Path(folder))
            comparisons[name] = compare(
                subject,
                loops,
                budget,
                machine,
                Path(folder) / name,
                rounds=options.rounds,
                report=lambda line: print(line, file=sys.stderr, flush=True),
            )
            print_row(comparisons[name], is_trained=is_trained, clock=clock)
    if sample:
        print_summary([comparisons[name] for name in sample], clock)


if __name__ == "__main__":
    main()
