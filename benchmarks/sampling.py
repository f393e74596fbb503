"""Replay sampled evaluations on full outcomes: coverage and widths of intervals, and rankings.

    python -m benchmarks.sampling DATASET [DATASET ...] --draws 1000 --figure sampling.svg

DATASET is an export with per-image outcomes (docs/statistics.md); several are merged. In each repetition, models are
fitted on a random pilot of networks. The other networks are estimated from samples of the images, and the estimates are
compared with the full outcomes. The alternative is simple random sampling of images at equal cost: passes times images,
for a sweep of 6,466 networks with a pilot of 20, and with the keys that are counted on all images (`clean`, `fgsm` and
corruptions).

`--population 10000` repeats each image, so that a set of 500 images is sampled like one of 10,000 with the same
distribution of outcomes. Costs of keys are those of the paper's sweep (`jobs/paper.yaml`). The tables of
docs/sampling.md are the output of

    python -m benchmarks.sampling benchmark_data/cells-cifar10 benchmark_data/cells-cifar10-more --population 10000
"""

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201 import RobustnessDataset
from robust201.planning.loading import load_config
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.sampling import (
    OutcomeModel,
    SampleDesign,
    allocate,
    estimate_with_sums,
    features,
    pilot_features,
    predict_pilots,
    stratify,
    sum_strata,
)
from robust201.tasks import TASKS

PAPER = Path(__file__).parent.parent / "jobs" / "paper.yaml"
CHEAP = ("clean", "fgsm")
EXTREME = 0.02
"""Accuracies closer than this to 0 or 1 are excluded from all columns, as there is nothing to rank."""
SPACE = 6466
PILOT_OF_SPACE = 20
"""Number of networks in the paper's sweep and in its pilot, for costs; replays have smaller pilots."""

_Floats = NDArray[np.float64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Population:
    """Outcomes of A networks on N images: (A, S, N) for each expensive key, (A, C, N) for all cheap keys together."""

    expensive: Mapping[str, _Bools]
    cheap: _Bools
    repeats: int

    @property
    def n_images(self) -> int:
        return int(self.cheap.shape[2]) * self.repeats


def read_population(
    folders: Sequence[str], dataset: str, expensive_keys: Sequence[str] | None, size: int | None
) -> Population:
    """Read the networks that have outcomes for all keys; each image counts `size` / N times."""
    data = RobustnessDataset(*folders)
    keys = data.keys_all if expensive_keys is None else [*CHEAP, *expensive_keys]
    tables = {
        (key, strength): data.outcomes(dataset, key, strength)
        for key in keys
        for strength in data.strengths(dataset, key)
    }
    common = sorted(set.intersection(*({str(name) for name in table.architectures} for table in tables.values())))
    outcomes: dict[str, list[_Bools]] = {}
    for (key, _), table in tables.items():
        rows = [[str(name) for name in table.architectures].index(name) for name in common]
        outcomes.setdefault(key, []).append(table.correct[rows])
    arrays = {key: np.stack(arrays_of_key, axis=1) for key, arrays_of_key in outcomes.items()}
    cheap = np.concatenate([arrays.pop(key) for key in CHEAP], axis=1)
    n_images = cheap.shape[2]
    if size is not None and size % n_images:
        raise SystemExit(f"--population: expected a multiple of the dataset's {n_images} images, got {size}")
    return Population(arrays, cheap, (size or n_images) // n_images)


def count_passes(sweep: Path) -> dict[str, float]:
    """Return forward passes per image by key of a sweep, over all strengths."""
    os.environ.setdefault("ROBUST201_DATA", ".")  # the YAML requires it, but nothing is read
    config = load_config(sweep)
    return {
        key: TASKS[key].passes(parameters, 10) * max(1, len(parameters.strengths))
        for key, parameters in config.parameters.items()
    }


def is_sampled(key: str) -> bool:
    """Return whether a sweep with a budget samples a key: only expensive attacks."""
    return TASKS[key].kind == "attack" and key not in CHEAP


def sample_sizes(cost: float, passes: Mapping[str, float], n_images: int) -> dict[str, int]:
    """Return sample sizes by key for a fraction `cost` of the whole sweep, including the pilot and counted keys.

    Sizes of sampled keys are proportional to 1 / sqrt(passes), as in a sweep with a budget. Such a sweep counts
    corruptions; here they have the sample size of simple random sampling.

    Raises:
        SystemExit: the pilot and the counted keys cost more than `cost`.
    """
    whole, pilot = sum(passes.values()), PILOT_OF_SPACE / SPACE
    counted = sum(number for key, number in passes.items() if not is_sampled(key)) / whole
    remaining = (cost - pilot) / (1 - pilot) - counted
    if remaining <= 0:
        raise SystemExit(
            f"--costs: expected more than {pilot + counted:.1%}, for the pilot and counted keys, got {cost}"
        )
    roots = {key: number**0.5 for key, number in passes.items() if is_sampled(key)}
    factor = remaining * whole * n_images / sum(roots.values())
    sizes = {key: min(n_images, round(factor / root)) for key, root in roots.items()}
    return {key: sizes.get(key, round(cost * n_images)) for key in passes}


@dataclass
class Tally:
    """Results of the samples for one key and cost, one array per sample, with those of simple random samples."""

    truth: list[_Floats] = field(default_factory=list)  # (T, S)
    inside: list[_Bools] = field(default_factory=list)  # (T, S), accuracies that are not extreme
    covered: list[_Bools] = field(default_factory=list)
    half_width: list[_Floats] = field(default_factory=list)
    error: list[_Floats] = field(default_factory=list)
    simple_half_width: list[_Floats] = field(default_factory=list)
    simple_error: list[_Floats] = field(default_factory=list)
    pairs: list[_Floats] = field(default_factory=list)  # (4, S): tau, simple tau, best found, best tied

    def rows(self) -> dict[str, Any]:
        """Return the values of the table's row."""
        from scipy.special import ndtr

        inside = np.stack(self.inside)
        weight = inside.sum(axis=(0, 1))
        counted = weight > 0.5 * inside.shape[0] * inside.shape[1]
        covered = (np.stack(self.covered) & inside).sum(axis=(0, 1))[counted] / weight[counted]
        ratio = self._mean_square(self.simple_error, inside) / self._mean_square(self.error, inside)
        truth, error = np.stack(self.truth), np.stack(self.error)
        first, second = np.triu_indices(truth.shape[1], 1)
        deviation = np.sqrt(((error[:, first] - error[:, second]) ** 2).mean(axis=(0, 1)))
        certain = np.abs(truth[:, first] - truth[:, second]) / np.maximum(deviation, 1e-12)
        expected_tau = (2 * ndtr(certain) - 1)[:, :, counted].mean()
        tau, simple_tau, found, tied = np.nanmean(np.stack(self.pairs)[:, :, counted], axis=(0, 2))
        return {
            "coverage": (covered.min(), covered.max()),
            "half-width": np.median(np.stack(self.half_width)[:, :, counted]),
            "widest": np.median(np.stack(self.half_width)[:, :, counted], axis=(0, 1)).max(),
            "simple half-width": np.median(np.stack(self.simple_half_width)[:, :, counted]),
            "gain": np.median(ratio[counted]),
            "tau": tau,
            "simple tau": simple_tau,
            "expected tau": expected_tau,
            "found": found,
            "tied": tied,
        }

    @staticmethod
    def _mean_square(errors: list[_Floats], inside: _Bools) -> _Floats:
        squares: _Floats = (np.stack(errors) ** 2 * inside).sum(axis=(0, 1))
        return np.maximum(squares, 1e-300)


def compare_orders(truth: _Floats, value: _Floats, simple: _Floats, low: _Floats, high: _Floats) -> _Floats:
    """Return Kendall's tau-b of both methods with the full ranking, and whether the best network is found or tied.

    Args:
        truth: (T, S) accuracies.
        value: (T, S) estimates.
        simple: (T, S) estimates from simple random samples.
        low: (T, S) lower bounds of the estimates' intervals.
        high: (T, S) upper bounds.

    Returns:
        (4, S), NaN if all networks have the same accuracy.
    """
    first, second = np.triu_indices(len(truth), 1)
    signs = [np.sign(np.round(numbers[first] - numbers[second], 12)) for numbers in (truth, value, simple)]
    norms = [np.sqrt((sign**2).sum(axis=0)) for sign in signs]
    with np.errstate(invalid="ignore", divide="ignore"):
        taus = [(signs[0] * signs[i]).sum(axis=0) / (norms[0] * norms[i]) for i in (1, 2)]
    best = truth >= truth.max(axis=0) - 1e-12
    columns = np.arange(truth.shape[1])
    leader = value.argmax(axis=0)
    tied = high >= low[leader, columns]
    return np.stack([*taus, best[leader, columns], (best & tied).any(axis=0)])


def replay_key(
    population: Population,
    key: str,
    sizes: Mapping[float, Mapping[str, int]],
    n_strata: int,
    pilot: NDArray[Any],
    seed: int,
) -> Iterator[tuple[float, SampleDesign, "Networks"]]:
    """Fit the model on a pilot, and yield a design for each cost with the networks to estimate."""
    outcomes, repeats = population.expensive[key], population.repeats
    rest = np.setdiff1d(np.arange(len(outcomes)), pilot)
    cheap = population.cheap
    values = pilot_features(outcomes[pilot], cheap[pilot])
    model = OutcomeModel().fit(values, outcomes[pilot])
    repeated, expected = np.tile(outcomes[pilot], repeats), np.tile(predict_pilots(model, values), repeats)
    strata = stratify(repeated, n_strata=n_strata, seed=seed, name=key, predicted=expected)
    predicted = [model.predict(features(outcomes[pilot], cheap[network], cheap[pilot])) for network in rest]
    networks = Networks(outcomes[rest], np.concatenate(predicted), repeats)
    for cost, counts in sizes.items():
        yield cost, allocate(strata, repeated, counts[key], expected), networks


@dataclass(frozen=True)
class Networks:
    """Outcomes (T, S, N) of the networks to estimate, and predictions (T S, N) for them."""

    outcomes: _Bools
    predicted: _Floats
    repeats: int

    def add_samples(self, tally: Tally, design: SampleDesign, simple_count: int, n_samples: int, seed: int) -> None:
        """Draw samples of the design and simple random samples, and add their results to the tally."""
        n_networks, n_strengths, n_images = self.outcomes.shape
        shape = (n_networks, n_strengths)
        correct = self.outcomes.reshape(-1, n_images)
        sums = sum_strata(design, np.tile(self.predicted, self.repeats))
        truth = self.outcomes.mean(axis=2)
        generator = np.random.default_rng(seed)
        for _ in range(n_samples):
            sample = replace(design, order=generator.permutation(design.n_images))
            images = sample.positions % n_images
            result = estimate_with_sums(sample, correct[:, images], self.predicted[:, images], sums)
            value, low, high = (numbers.reshape(shape) for numbers in (result.value, result.low, result.high))
            drawn = generator.choice(design.n_images, simple_count, replace=False) % n_images
            counts = correct[:, drawn].sum(axis=1).reshape(shape)
            simple_low, simple_high = accuracy_intervals(counts / simple_count, simple_count)
            tally.truth.append(truth)
            tally.inside.append((truth > EXTREME) & (truth < 1 - EXTREME))
            tally.covered.append((low <= truth + 1e-12) & (truth <= high + 1e-12))
            tally.half_width.append((high - low) / 2)
            tally.error.append(value - truth)
            tally.simple_half_width.append((simple_high - simple_low) / 2)
            tally.simple_error.append(counts / simple_count - truth)
            tally.pairs.append(compare_orders(truth, value, counts / simple_count, low, high))


def run_replay(
    population: Population, sizes: Mapping[float, Mapping[str, int]], arguments: argparse.Namespace
) -> dict[tuple[str, float], Tally]:
    """Replay all keys, with the same pilots for each key."""
    n_pilots = -(-arguments.draws // arguments.samples)
    generator = np.random.default_rng(arguments.seed)
    n_networks = len(population.cheap)
    pilots = [generator.permutation(n_networks)[: arguments.pilot] for _ in range(n_pilots)]
    tallies: dict[tuple[str, float], Tally] = {}
    for key in population.expensive:
        start = time.monotonic()
        for number, pilot in enumerate(pilots):
            for cost, design, networks in replay_key(population, key, sizes, arguments.strata, pilot, number):
                tally = tallies.setdefault((key, cost), Tally())
                simple_count = round(cost * population.n_images)
                networks.add_samples(tally, design, simple_count, arguments.samples, seed=number)
        print(f"{key}: {time.monotonic() - start:.0f} s", flush=True)
    return tallies


HEADER = (
    "| cost | images | key | coverage, by strength | half-width, points | widest strength "
    "| simple random | gain | tau | simple random | by theory | best found | best tied "
    "| spread between networks, points |\n" + "|---" * 14 + "|"
)


def format_row(cost: float, images: int, key: str, numbers: Mapping[str, Any], spread: float) -> str:
    low, high = numbers["coverage"]
    points = " | ".join(f"{100 * numbers[name]:.1f}" for name in ("half-width", "widest", "simple half-width"))
    fractions = " | ".join(f"{numbers[name]:.2f}" for name in ("tau", "simple tau", "expected tau"))
    return (
        f"| {cost:.1%} | {images:,} | `{key}` | {low:.1%} to {high:.1%} | {points} "
        f"| {numbers['gain']:.1f} | {fractions} | {numbers['found']:.0%} | {numbers['tied']:.0%} "
        f"| {100 * spread:.1f} |"
    )


def spread_of(outcomes: _Bools) -> float:
    """Return the standard deviation of accuracies between networks (A, S, N), as the median over strengths."""
    accuracy = outcomes.mean(axis=2)
    inside = ((accuracy > EXTREME) & (accuracy < 1 - EXTREME)).all(axis=0)
    return float(np.median(accuracy.std(axis=0, ddof=1)[inside]))


def draw_figure(path: Path, rows: Mapping[tuple[str, float], Mapping[str, Any]]) -> None:
    """Draw half-widths and tau against cost; thin lines are single keys."""
    from matplotlib.figure import Figure

    costs = sorted({cost for _, cost in rows})
    keys = sorted({key for key, _ in rows})
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    panels = ((left, "half-width", "simple half-width", 100), (right, "tau", "simple tau", 1))
    for axes, name, simple, factor in panels:
        for column, colour, label in ((name, "#0072b2", "sampled and predicted"), (simple, "#d55e00", "simple random")):
            lines = np.array([[rows[key, cost][column] * factor for cost in costs] for key in keys])
            axes.plot(np.multiply(costs, 100), lines.T, color=colour, alpha=0.25, linewidth=0.8)
            axes.plot(np.multiply(costs, 100), np.median(lines, axis=0), color=colour, marker="o", label=label)
        axes.set_xscale("log")
        axes.set_xticks([100 * cost for cost in costs], [f"{100 * cost:g}%" for cost in costs])
        axes.minorticks_off()
        axes.set_xlabel("cost, relative to all images of all networks")
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("half-width of the 95% interval, points")
    left.set_ylim(bottom=0)
    right.set_ylabel("Kendall's tau with the full ranking")
    left.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", metavar="DATASET", help="exports with per-image outcomes")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--keys", help="expensive keys, separated by commas; default: all")
    parser.add_argument(
        "--population", type=int, help="number of images, a multiple of the export's; each then counts several times"
    )
    parser.add_argument("--pilot", type=int, default=7, help="number of networks in the pilot")
    parser.add_argument("--strata", type=int, default=10)
    parser.add_argument("--draws", type=int, default=1000, help="number of samples per key and cost")
    parser.add_argument("--samples", type=int, default=20, help="number of samples per pilot")
    parser.add_argument("--costs", default="0.025,0.05,0.1", help="fractions of the whole sweep's cost")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, help="figure to write: .svg, .png or .pdf")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keys = arguments.keys.split(",") if arguments.keys else None
    population = read_population(arguments.folders, arguments.dataset, keys, arguments.population)
    passes = count_passes(PAPER)
    n_images = population.n_images
    costs = [float(text) for text in arguments.costs.split(",")]
    sizes = {cost: sample_sizes(cost, passes, n_images) for cost in costs}
    n_networks = len(population.cheap)
    print(
        f"{n_networks} networks, a pilot of {arguments.pilot}; {n_images:,} images (each of "
        f"{population.cheap.shape[2]:,} {population.repeats} times); {arguments.strata} strata; "
        f"{arguments.draws:,} samples, {arguments.samples} per pilot; seed {arguments.seed}; "
        f"passes per image of {PAPER.name}"
    )
    tallies = run_replay(population, sizes, arguments)
    rows = {index: tally.rows() for index, tally in tallies.items()}
    spread = {key: spread_of(outcomes) for key, outcomes in population.expensive.items()}
    print(f"\n{HEADER}")
    for cost in costs:
        for key in population.expensive:
            print(format_row(cost, sizes[cost][key], key, rows[key, cost], spread[key]))
    if arguments.figure:
        draw_figure(arguments.figure, rows)


if __name__ == "__main__":
    main()
