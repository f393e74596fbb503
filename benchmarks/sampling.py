"""Simulate estimates from chosen images: coverage and half-widths of 95% intervals.

    python -m benchmarks.sampling DATASET [DATASET ...] [--keys pgd,aa_apgd-ce,aa_square] [--draws 1000]

DATASET is an export with the outcomes of all networks on all images. Pilots are random sets of networks. For each
pilot, images are chosen, and the accuracies of the other networks are estimated from their outcomes on these images and
from `clean` and `fgsm` on all images. Each image counts `--repeats` times, so that 500 images are sampled like 10,000.
docs/sampling.md shows a command and its table.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201 import Dataset
from robust201.statistics.image_samples import Pilot, choose_sample, estimate_accuracies
from robust201.statistics.intervals import accuracy_intervals

CHEAP_KEYS = ("clean", "fgsm")
SAMPLE_SIZES = {"pgd": (424, 1174, 2674), "aa_apgd-ce": (267, 738, 1680), "aa_square": (106, 293, 668)}
"""Sample sizes, out of 10,000 images, for 2.5%, 5% and 10% of the paper's cost, including cheap keys and 20 pilots."""

EXTREME_MARGIN = 0.02
"""Coverage omits accuracies closer than this to 0 or 1; strengths with mostly such accuracies are left out."""

_Bools = NDArray[np.bool_]
_Floats = NDArray[np.float64]


class Draw(NamedTuple):
    """True accuracies and interval bounds of T networks at S strengths, each (T, S), from one sample."""

    truth: _Floats
    accuracy: _Floats
    low: _Floats
    high: _Floats


def read_outcomes(data: Dataset, dataset: str, keys: Sequence[str]) -> _Bools:
    """Return the outcomes (A, S, N) of the common networks at all strengths of all keys."""
    tables = [data.outcomes(dataset, key, strength) for key in keys for strength in data.strengths(dataset, key)]
    names = sorted(set.intersection(*({str(name) for name in table.architectures} for table in tables)))
    rows = [[[str(name) for name in table.architectures].index(name) for name in names] for table in tables]
    return np.stack([table.correct[order] for table, order in zip(tables, rows, strict=True)], axis=1)


def simulate(outcomes: _Bools, cheap: _Bools, n: int, arguments: argparse.Namespace) -> Iterator[Draw]:
    """Yield the true accuracies and the estimates of each sample."""
    generator = np.random.default_rng(arguments.seed)
    for pilot_number in range(arguments.draws // arguments.samples):
        order = generator.permutation(len(outcomes))
        members, others = order[: arguments.pilot], order[arguments.pilot :]
        pilot = Pilot(outcomes[members], cheap[members])
        predicted = [np.tile(pilot.predict(cheap[network]), arguments.repeats) for network in others]
        repeated = [np.tile(outcomes[network], arguments.repeats) for network in others]
        full, fitted = np.tile(pilot.outcomes, arguments.repeats), np.tile(pilot.fitted, arguments.repeats)
        for number in range(arguments.samples):
            sample = choose_sample(full, fitted, n, seed=pilot_number * arguments.samples + number)
            estimates = [
                estimate_accuracies(sample, correct[:, sample.chosen], probabilities, pilot.variance_factors)
                for correct, probabilities in zip(repeated, predicted, strict=True)
            ]
            columns = [np.stack(column) for column in zip(*estimates, strict=True)]
            yield Draw(outcomes[others].mean(axis=2), columns[0], columns[2], columns[3])


def summarise(draws: Sequence[Draw]) -> dict[str, Any]:
    """Return coverage range, median half-width, largest bias, true accuracies, for strengths that are not extreme."""
    truth, accuracy, low, high = (np.stack(arrays) for arrays in zip(*draws, strict=True))
    is_used = (truth > EXTREME_MARGIN) & (truth < 1 - EXTREME_MARGIN)
    strengths = is_used.mean(axis=(0, 1)) > 0.5
    is_covered = (low <= truth + 1e-12) & (truth <= high + 1e-12)
    coverage = (is_covered & is_used).sum(axis=(0, 1))[strengths] / is_used.sum(axis=(0, 1))[strengths]
    return {
        "coverage": (float(coverage.min()), float(coverage.max())),
        "half_width": float(np.median(((high - low) / 2)[..., strengths])),
        "bias": float(np.abs((accuracy - truth).mean(axis=(0, 1))[strengths]).max()),
        "truths": truth[..., strengths],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", metavar="DATASET", help="exports with per-image outcomes")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--keys", default=",".join(SAMPLE_SIZES), help="keys to estimate, separated by commas")
    parser.add_argument("--pilot", type=int, default=7, help="number of networks in the pilot")
    parser.add_argument("--draws", type=int, default=1000, help="number of samples per row")
    parser.add_argument("--samples", type=int, default=20, help="number of samples per pilot")
    parser.add_argument("--repeats", type=int, default=20, help="number of times that each image counts")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.draws < arguments.samples:
        parser.error("--draws must be at least --samples")
    data = Dataset(*arguments.folders)
    cheap = read_outcomes(data, arguments.dataset, CHEAP_KEYS)
    print("| budget | key | images | coverage, by strength | half-width | random | largest bias |\n" + "|---" * 7 + "|")
    for index, budget in enumerate((0.025, 0.05, 0.1)):
        for key in arguments.keys.split(","):
            outcomes, n = read_outcomes(data, arguments.dataset, [key]), SAMPLE_SIZES[key][index]
            row = summarise(list(simulate(outcomes, cheap, n, arguments)))
            random_low, random_high = accuracy_intervals(
                row["truths"], round(budget * arguments.repeats * outcomes.shape[2])
            )
            entries = (f"{budget:.1%}", f"`{key}`", f"{n:,}", "{:.1%} to {:.1%}".format(*row["coverage"]))
            percentages = (row["half_width"], float(np.median(random_high - random_low)) / 2, row["bias"])
            print("| " + " | ".join([*entries, *(f"{100 * value:.2f}" for value in percentages)]) + " |", flush=True)


if __name__ == "__main__":
    main()
