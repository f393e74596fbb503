"""Compare the fused engine with the libraries: what a step of each attack costs, and the whole suite.

    python -m benchmarks.engine --networks 13714 1462 21 991 309 0 --sample 24

Within one round every measurement is made once for each form of the reference (Foolbox and pyautoattack on the
published network, once an epsilon, in PyTorch's default layout and in channels_last) and once for the fused engine, and
medians are taken over the rounds. Ratios are to the layout whose suite is faster. An
attack's cost is marginal: the difference of two run lengths, so that what is done once an attack drops out. On a CPU
the clock is the thread's CPU time, which other processes disturb less than they disturb the clock on the wall.

Square's windows shrink over a run, and on a CPU the fused engine's work with them: each stage of the run is measured by
itself and weighed by the queries that are made in it (`square_stages.py`).

Weights are random: they decide no time. Epsilons are so small that no image is ever fooled, so that every step is made
for every image; the share of Square's queries that a sweep really makes is measured by `active_share.py`.

The clock on a GPU is another one: `python -m benchmarks.gpu`. Whole processes: `python -m benchmarks.user_loop`.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine_case import (
    CLASSES,
    FULL_LENGTHS,
    HARMLESS_EPSILON_255,
    IMAGE_SIZE,
    N_PAPER_EPSILONS,
    Case,
    Clock,
    ConvolutionLimit,
    make_clock,
    measurements_of,
    stratified_sample,
    suite_seconds,
)
from benchmarks.square_stages import ACTIVE_SHARE_FILE, Stage, mean_query_seconds, search_seconds, stages_of
from robust201.engine.arithmetic import configure_torch
from robust201.engine.attack_job import CPU_SAMPLES
from robust201.engine.context import to_float

LAYOUTS = {"reference": "default", "channels_last": "channels_last"}
"""Forms of the published network that the libraries attack, and what tables call them."""


def measure_searches(case: Case, n_samples: int, stages: list[Stage], clock: Clock) -> dict[int, float]:
    """Measure the stages of Square in which the fused engine looks at the window alone: side to seconds an image."""
    n_repeats = -(-n_samples // len(case.images))
    pixels = to_float(case.images).repeat(n_repeats, 1, 1, 1)[:n_samples]
    found = {stage.side: search_seconds(case.compiled, pixels, stage, clock) for stage in stages}
    return {side: seconds for side, seconds in found.items() if seconds is not None}


def measure(index: int, options: argparse.Namespace, square_share: float) -> dict[str, Any]:
    device = torch.device("cpu")
    clock = make_clock(device)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (options.images, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8, generator=generator)
    case = Case(index, device, images.to(device))
    limit = ConvolutionLimit(case.spec, options.images, device)
    # Two epsilons fill the fused engine's batches as seven do; the reference attacks one after the other anyway.
    epsilons: dict[str, tuple[float, ...]] = dict.fromkeys(LAYOUTS, (HARMLESS_EPSILON_255,))
    epsilons["fused"] = (HARMLESS_EPSILON_255, 2 * HARMLESS_EPSILON_255)
    tasks = [
        (what, engine, task) for engine in epsilons for what, task in measurements_of(case, engine, epsilons[engine])
    ]
    found: dict[tuple[str, str], list[float]] = {(what, engine): [] for what, engine, _ in tasks}
    stages = stages_of(FULL_LENGTHS["aa_square"], IMAGE_SIZE, options.square_share)
    limits, searches = [], []
    for warming_up in (True, *[False] * options.rounds):
        for what in dict.fromkeys(what for what, _, _ in tasks):
            for name, engine, task in tasks:
                if name == what and not (warming_up and name not in {"forward", "gradient", "fgsm"}):
                    seconds = task(clock)
                    if not warming_up:
                        found[what, engine].append(seconds)
        if not warming_up:
            limits.append(limit.seconds(clock))
            searches.append(measure_searches(case, CPU_SAMPLES, stages, clock))
    costs = {
        engine: {what: median(values) for (what, by), values in found.items() if by == engine} for engine in epsilons
    }
    suites = {engine: suite_seconds(costs[engine], square_share) for engine in costs}
    suites["whole"] = suites["fused"]
    local = {side: median(search[side] for search in searches) for side in searches[0]}
    whole = costs["fused"]["aa_square"]
    costs["fused"]["aa_square"] = mean_query_seconds(stages, whole, costs["fused"]["forward"], local)
    suites["fused"] = suite_seconds(costs["fused"], square_share)
    return {
        "index": index,
        "seconds": costs,
        "best": min(LAYOUTS, key=suites.__getitem__),
        "square_whole": whole,
        "square_local": local,
        "suite": suites,
        "limit": median(limits),
        "limit_gflops": limit.flops / median(limits) / 1e9,
    }


def print_header() -> None:
    print(
        "| network | faster layout | forward | + gradient | FGSM × 11 | PGD | APGD-CE | Square, whole passes | Square "
        "| **suite, whole passes** | **suite** | suite, against the default layout | fused forward, µs "
        "| convolutions alone, µs (GFLOP/s) | share of that limit | suite of whole passes at it |\n"
        + "|---" * 16
        + "|",
        flush=True,
    )


def print_row(row: dict[str, Any], square_share: float) -> None:
    reference, fused, suite = row["seconds"][row["best"]], row["seconds"]["fused"], row["suite"]
    ratios = [reference[what] / fused[what] for what in reference]
    ratios.insert(-1, reference["aa_square"] / row["square_whole"])
    best = suite[row["best"]]
    # Square is most of the suite and, with whole passes, forward passes; what one could save is what the suite could.
    saved = N_PAPER_EPSILONS * FULL_LENGTHS["aa_square"] * square_share * (fused["forward"] - row["limit"])
    name = f"#{row['index']} ({CLASSES[row['index']]})" if row["index"] in CLASSES else f"#{row['index']}"
    cells = [name, LAYOUTS[row["best"]], *(f"{ratio:.2f}" for ratio in ratios)]
    cells += [f"**{best / suite['whole']:.2f}**", f"**{best / suite['fused']:.2f}**"]
    cells += [f"{suite['reference'] / suite['fused']:.2f}", f"{fused['forward'] * 1e6:.0f}"]
    cells += [f"{row['limit'] * 1e6:.0f} ({row['limit_gflops']:.0f})", f"{row['limit'] / fused['forward']:.0%}"]
    cells.append(f"{best / (suite['whole'] - saved):.2f}")
    print(f"| {' | '.join(cells)} |", flush=True)


def read_square_share() -> float:
    """Read the mean share of Square's queries that are made, as `active_share.py` measured it."""
    if not ACTIVE_SHARE_FILE.exists():
        raise SystemExit(
            f"Reading Square's active share failed: expected {ACTIVE_SHARE_FILE}, got no such file. "
            "Run `python -m benchmarks.active_share`, or give --square-share."
        )
    share: float = json.loads(ACTIVE_SHARE_FILE.read_text())["mean_share"]
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", type=int, nargs="*", default=list(CLASSES), help="indices")
    parser.add_argument("--sample", type=int, default=0, help="networks of the stratified sample, 0 for none")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--square-share", type=float, help="share of Square's queries that are made, in place of the measured one"
    )
    parser.add_argument("--json", type=Path, help="also write everything measured here")
    options = parser.parse_args()
    configure_torch(threads=1)
    share = read_square_share() if options.square_share is None else options.square_share
    print(
        f"Ratios libraries / fused of the cost an image and step; {options.images} images, {options.rounds} rounds, "
        f"torch {torch.__version__}, one thread; {share:.1%} of Square's queries are made\n"
    )
    print_header()
    rows = []
    for index in options.networks:
        rows.append(measure(index, options, share))
        print_row(rows[-1], share)
    sample = []
    for index in stratified_sample(options.sample) if options.sample else []:
        sample.append(measure(index, options, share))
        print_row(sample[-1], share)
    if sample:
        best = sum(row["suite"][row["best"]] for row in sample)
        default, whole, ours = (sum(row["suite"][form] for row in sample) for form in ("reference", "whole", "fused"))
        print(
            f"\nWhole suite over the sample of {len(sample)}, weighted by cost: {best / ours:.2f}, with whole passes "
            f"{best / whole:.2f}; against the default layout {default / ours:.2f} and {default / whole:.2f}"
        )
    if options.json:
        options.json.write_text(
            json.dumps({"networks": rows, "sample": sample, "square_share": share}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
