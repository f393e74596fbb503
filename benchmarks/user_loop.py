"""How many times as fast as a user's own loop `robust201 run` is: whole processes, on trained or random networks.

    ROBUST201_DATA=FOLDER python -m benchmarks.user_loop --networks 13714 1462 21 991 309 0 --images 24 --queries 200
    python -m benchmarks.user_loop --sample 24 --images 12 --queries 200

The loop is `robust201.bench.user_loop`: the published network, Foolbox and AutoAttack called once per epsilon, in
PyTorch's default layout and in channels_last, at batches of 50, 250 and of all images. Every ratio is to the fastest of
these. Networks of the data folder are trained, the others and those of the sample random, labelled as they answer;
images are CIFAR-10 test images of the folder, else scikit-learn's digits. Either side is started once without attacks,
which gives the start-up. Processes run in turn, in alternating order. Other programs lengthen wall time, so on a busy
machine only CPU time counts.

`--threads 0` uses all cores.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from math import exp, log
from pathlib import Path

from benchmarks.engine_case import ARCHIVE, CLASSES, load_trained, stratified_sample
from robust201.bench.comparison import Compared, Lengths, Machine, Subject, Sweep, Way, compare, loops
from robust201.bench.generated import random_network, write_subject
from robust201.core.records import ImageSet
from robust201.images import load_images, select

PAPER = Lengths()


def read_images(folder: Path, count: int) -> ImageSet:
    """CIFAR-10 test images of the data folder; digits where there are none."""
    if (folder / "cifar10").exists():
        return select(load_images("cifar10", path=folder / "cifar10"), count=count, seed=0)
    return select(load_images("digits"), count=count, seed=0)


def make_subject(name: str, images: ImageSet, data: Path, folder: Path) -> tuple[Subject, bool]:
    """Write a network: trained where the data folder has it."""
    is_trained = name.isdigit() and (data / ARCHIVE / f"{int(name):06d}.pickle.pbz2").exists()
    if is_trained:
        network, _ = load_trained(data, int(name), n_classes=images.n_classes)
        return write_subject(name, network, images, folder), True
    return write_subject(name, *random_network(name, images), folder), False


def print_header(ways: Sequence[Way]) -> None:
    columns = ["network", "weights", *(f"{way.label}, s" for way in ways), "**times as fast**", "by wall time"]
    columns += ["with start-up", "accuracies differ by at most"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)


def print_row(one: Compared, *, is_trained: bool, clock: str) -> None:
    name = one.subject.label
    if name.startswith("#") and int(one.subject.name) in CLASSES:
        name += f" ({CLASSES[int(one.subject.name)]})"
    seconds = [getattr(timed.attacks, clock) for timed in one.ways]
    cells = [name, "trained" if is_trained else "random", *(f"{value:.1f}" for value in seconds)]
    ratios = one.ratio("wall"), one.ratio(clock, start_up=True), one.largest_difference
    cells += [f"**{one.ratio(clock):.2f}**", *(f"{value:.2f}" for value in ratios)]
    print(f"| {' | '.join(cells)} |", flush=True)


def print_summary(compared: Sequence[Compared], clock: str) -> None:
    """The whole sample: its cost with the best loops over its cost with robust201, and the mean of the ratios."""
    loop = sum(getattr(one.best(clock).attacks, clock) for one in compared)
    ours = sum(getattr(one.sweeps[0].attacks, clock) for one in compared)
    mean = exp(sum(log(one.ratio(clock)) for one in compared) / len(compared))
    print(f"\n{len(compared)} networks: {loop / ours:.2f} by cost, {mean:.2f} in the geometric mean ({clock} time)")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=[str(index) for index in CLASSES], help="indices, or resnet18")
    parser.add_argument("--sample", type=int, default=0, help="networks of the stratified sample, 0 for none")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--epsilons", type=float, nargs="+", default=PAPER.epsilons, help="in 1/255")
    parser.add_argument("--fgsm-epsilons", type=float, nargs="+", default=PAPER.fgsm_epsilons)
    parser.add_argument("--pgd-steps", type=int, default=PAPER.pgd_steps)
    parser.add_argument("--apgd-steps", type=int, default=PAPER.apgd_steps)
    parser.add_argument("--queries", type=int, default=200, help="of Square; the paper makes 5,000")
    parser.add_argument("--batches", type=int, nargs="*", default=[50, 250], help="of the loop, besides all images")
    parser.add_argument("--threads", type=int, default=1, help="0 for all cores")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ROBUST201_DATA", "data")))
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    lengths = Lengths(
        tuple(options.epsilons), tuple(options.fgsm_epsilons), options.pgd_steps, options.apgd_steps, options.queries
    )
    machine = Machine(options.threads or len(os.sched_getaffinity(0)), options.device)
    ways: list[Way] = [*loops(options.images, options.batches), Sweep()]
    images = read_images(options.data, options.images)
    clock = "wall" if options.device == "cuda" else "cpu"
    sample = [str(index) for index in stratified_sample(options.sample)] if options.sample else []
    print(
        f"{clock} time of the attacks, excluding start-up; {options.images} images of "
        f"{images.dataset}, {options.queries} queries of Square, threads: {machine.threads}, {options.device}, "
        f"rounds: {options.rounds}\n"
    )
    print_header(ways)
    compared: dict[str, Compared] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in dict.fromkeys([*options.networks, *sample]):
            subject, is_trained = make_subject(name, images, options.data, Path(folder))
            compared[name] = compare(
                subject,
                ways,
                lengths,
                machine,
                Path(folder) / name,
                rounds=options.rounds,
                tell=lambda line: print(line, file=sys.stderr, flush=True),
            )
            print_row(compared[name], is_trained=is_trained, clock=clock)
    if sample:
        print_summary([compared[name] for name in sample], clock)


if __name__ == "__main__":
    main()
