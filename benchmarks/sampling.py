"""Replay sampled sweeps: coverage and widths of intervals, and rankings.

    python -m benchmarks.sampling DATASET [DATASET ...] --draws 1000 --figure sampling.svg

A replay draws samples from outcomes that are known for all images. DATASET is an export with per-image outcomes
(docs/statistics.md); several exports are merged. In each repetition, models are fitted to a random pilot of networks.
The other networks are estimated from samples of the images, and the estimates are compared with the full outcomes. The
baseline is simple random sampling of equal cost. The cost is forward passes times images, for a sweep of 6,466 networks
that includes a pilot of 20 networks and the keys evaluated on all images (`clean`, `fgsm` and corruptions).

`--population 10000` repeats each image, so that a set of 500 images is sampled like one of 10,000 with the same
distribution of outcomes. The costs of keys are taken from the paper's sweep (`jobs/paper.yaml`). docs/sampling.md has
tables of this benchmark, with the commands that print them.
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

PAPER_SWEEP_YAML = Path(__file__).parent.parent / "jobs" / "paper.yaml"
CHEAP_KEYS = ("clean", "fgsm")
EXTREME_MARGIN = 0.02
"""Accuracies closer than this to 0 or 1 do not distinguish networks, so they are excluded from coverage and gain.

Strengths at which at least half of the accuracies are that close are excluded from all columns.
"""
N_NETWORKS = 6466
N_PILOT_NETWORKS = 20
"""Numbers of networks in the paper's sweep and in its pilot, for the costs; the replays have smaller pilots."""

_Floats = NDArray[np.float64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Population:
    """Outcomes of A networks on N images.

    Attributes:
        expensive_outcomes: (A, S, N) outcomes at S strengths, by expensive key.
        cheap_outcomes: (A, C, N) outcomes at the C strengths of all cheap keys together.
        repeats: number of times that each image counts.
    """

    expensive_outcomes: Mapping[str, _Bools]
    cheap_outcomes: _Bools
    repeats: int

    @property
    def n_images(self) -> int:
        return int(self.cheap_outcomes.shape[2]) * self.repeats


def read_population(
    folders: Sequence[str], dataset: str, expensive_keys: Sequence[str] | None, size: int | None
) -> Population:
    """Read the networks that have outcomes for all keys; each of the N images counts `size` / N times."""
    data = RobustnessDataset(*folders)
    keys = data.keys_all if expensive_keys is None else [*CHEAP_KEYS, *expensive_keys]
    tables = {
        (key, strength): data.outcomes(dataset, key, strength)
        for key in keys
        for strength in data.strengths(dataset, key)
    }
    common_networks = sorted(
        set.intersection(*({str(name) for name in table.architectures} for table in tables.values()))
    )
    outcomes: dict[str, list[_Bools]] = {}
    for (key, _), table in tables.items():
        rows = [[str(name) for name in table.architectures].index(name) for name in common_networks]
        outcomes.setdefault(key, []).append(table.correct[rows])
    arrays = {key: np.stack(arrays_of_key, axis=1) for key, arrays_of_key in outcomes.items()}
    cheap_outcomes = np.concatenate([arrays.pop(key) for key in CHEAP_KEYS], axis=1)
    n_images = cheap_outcomes.shape[2]
    if size is not None and size % n_images:
        raise SystemExit(f"--population must be a multiple of the dataset's {n_images} images, not {size}.")
    return Population(arrays, cheap_outcomes, (size or n_images) // n_images)


def count_passes(sweep: Path) -> dict[str, float]:
    """Return the forward passes per image, summed over strengths, by key of a sweep."""
    os.environ.setdefault("ROBUST201_DATA", ".")  # the YAML requires it, but nothing is read
    config = load_config(sweep)
    return {
        key: TASKS[key].passes(parameters, 10) * max(1, len(parameters.strengths))
        for key, parameters in config.parameters.items()
    }


def is_sampled(key: str) -> bool:
    """Return whether a sweep with a budget samples the images under a key, which it does only for expensive attacks."""
    return TASKS[key].kind == "attack" and key not in CHEAP_KEYS


def sample_sizes(cost: float, passes: Mapping[str, float], n_images: int) -> dict[str, int]:
    """Return sample sizes by key for a fraction `cost` of the full cost, including the pilot and fully evaluated keys.

    Sizes of sampled keys are proportional to 1 / sqrt(passes), as in a sweep with a budget. A real sweep evaluates
    corruptions on all images; here they get the sample size of the random baseline.

    Raises:
        SystemExit: the pilot and the fully evaluated keys cost more than `cost`.
    """
    full_passes, pilot_fraction = sum(passes.values()), N_PILOT_NETWORKS / N_NETWORKS
    unsampled_fraction = sum(n_passes for key, n_passes in passes.items() if not is_sampled(key)) / full_passes
    remaining_fraction = (cost - pilot_fraction) / (1 - pilot_fraction) - unsampled_fraction
    if remaining_fraction <= 0:
        raise SystemExit(
            f"--costs: {cost:.1%} is too low. The pilot and the fully evaluated keys alone cost "
            f"{pilot_fraction + unsampled_fraction:.1%}."
        )
    roots = {key: n_passes**0.5 for key, n_passes in passes.items() if is_sampled(key)}
    factor = remaining_fraction * full_passes * n_images / sum(roots.values())
    sizes = {key: min(n_images, round(factor / root)) for key, root in roots.items()}
    return {key: sizes.get(key, round(cost * n_images)) for key in passes}


@dataclass
class Tally:
    """Results for one key and cost. Each list has one array per sample, for T estimated networks at S strengths.

    The attributes `simple_…` have the results of simple random samples.
    """

    truth: list[_Floats] = field(default_factory=list)  # (T, S)
    is_not_extreme: list[_Bools] = field(default_factory=list)  # (T, S), see `EXTREME_MARGIN`
    is_covered: list[_Bools] = field(default_factory=list)  # (T, S), whether the interval contains the truth
    half_width: list[_Floats] = field(default_factory=list)
    error: list[_Floats] = field(default_factory=list)
    simple_half_width: list[_Floats] = field(default_factory=list)
    simple_error: list[_Floats] = field(default_factory=list)
    rankings: list[_Floats] = field(default_factory=list)  # (4, S), see `compare_rankings`

    def summarise(self) -> dict[str, Any]:
        """Return the values of one row of the table."""
        from scipy.special import ndtr

        is_not_extreme = np.stack(self.is_not_extreme)
        n_not_extreme = is_not_extreme.sum(axis=(0, 1))
        is_included = n_not_extreme > 0.5 * is_not_extreme.shape[0] * is_not_extreme.shape[1]
        coverage = (np.stack(self.is_covered) & is_not_extreme).sum(axis=(0, 1))[is_included] / n_not_extreme[
            is_included
        ]
        variance_ratio = self._sum_of_squares(self.simple_error, is_not_extreme) / self._sum_of_squares(
            self.error, is_not_extreme
        )
        truth, error = np.stack(self.truth), np.stack(self.error)
        first, second = np.triu_indices(truth.shape[1], 1)
        deviation = np.sqrt(((error[:, first] - error[:, second]) ** 2).mean(axis=(0, 1)))
        z_scores = np.abs(truth[:, first] - truth[:, second]) / np.maximum(deviation, 1e-12)
        expected_tau = (2 * ndtr(z_scores) - 1)[:, :, is_included].mean()
        tau, simple_tau, best_found, best_tied = np.nanmean(np.stack(self.rankings)[:, :, is_included], axis=(0, 2))
        return {
            "coverage": (coverage.min(), coverage.max()),
            "half-width": np.median(np.stack(self.half_width)[:, :, is_included]),
            "widest": np.median(np.stack(self.half_width)[:, :, is_included], axis=(0, 1)).max(),
            "simple half-width": np.median(np.stack(self.simple_half_width)[:, :, is_included]),
            "gain": np.median(variance_ratio[is_included]),
            "tau": tau,
            "simple tau": simple_tau,
            "expected tau": expected_tau,
            "best found": best_found,
            "best tied": best_tied,
        }

    @staticmethod
    def _sum_of_squares(errors: list[_Floats], is_not_extreme: _Bools) -> _Floats:
        squares: _Floats = (np.stack(errors) ** 2 * is_not_extreme).sum(axis=(0, 1))
        return np.maximum(squares, 1e-300)


def compare_rankings(
    truth: _Floats, estimates: _Floats, simple_estimates: _Floats, low: _Floats, high: _Floats
) -> _Floats:
    """Compare the rankings by estimates and by simple random samples with the true ranking, at each strength.

    Args:
        truth: (T, S) accuracies.
        estimates: (T, S) estimated accuracies.
        simple_estimates: (T, S) estimates from simple random samples.
        low: (T, S) lower bounds of the estimates' intervals.
        high: (T, S) upper bounds.

    Returns:
        (4, S): Kendall's tau-b of both rankings with the true one (NaN if all networks have the same accuracy), whether
        the network with the highest estimate is the best, and whether the best is tied with it by the intervals.
    """
    first, second = np.triu_indices(len(truth), 1)
    signs = [np.sign(np.round(a[first] - a[second], 12)) for a in (truth, estimates, simple_estimates)]
    norms = [np.sqrt((sign**2).sum(axis=0)) for sign in signs]
    with np.errstate(invalid="ignore", divide="ignore"):
        taus = [(signs[0] * signs[i]).sum(axis=0) / (norms[0] * norms[i]) for i in (1, 2)]
    is_best = truth >= truth.max(axis=0) - 1e-12
    columns = np.arange(truth.shape[1])
    estimated_best = estimates.argmax(axis=0)
    is_tied = high >= low[estimated_best, columns]
    return np.stack([*taus, is_best[estimated_best, columns], (is_best & is_tied).any(axis=0)])


def design_samples(
    population: Population,
    key: str,
    sizes_by_cost: Mapping[float, Mapping[str, int]],
    n_strata: int,
    pilot: NDArray[Any],
    seed: int,
) -> Iterator[tuple[float, SampleDesign, "Networks"]]:
    """Fit the model on a pilot, and yield, for each cost, a sample design with the networks to estimate."""
    outcomes, repeats = population.expensive_outcomes[key], population.repeats
    network_indices = np.setdiff1d(np.arange(len(outcomes)), pilot)
    cheap_outcomes = population.cheap_outcomes
    pilot_inputs = pilot_features(outcomes[pilot], cheap_outcomes[pilot])
    model = OutcomeModel().fit(pilot_inputs, outcomes[pilot])
    repeated_outcomes = np.tile(outcomes[pilot], repeats)
    expected_outcomes = np.tile(predict_pilots(model, pilot_inputs), repeats)
    design = stratify(repeated_outcomes, n_strata=n_strata, seed=seed, name=key, predicted=expected_outcomes)
    predicted = [
        model.predict(features(outcomes[pilot], cheap_outcomes[network], cheap_outcomes[pilot]))
        for network in network_indices
    ]
    networks = Networks(outcomes[network_indices], np.concatenate(predicted), repeats)
    for cost, size_by_key in sizes_by_cost.items():
        yield cost, allocate(design, repeated_outcomes, size_by_key[key], expected_outcomes), networks


@dataclass(frozen=True)
class Networks:
    """T networks to estimate at S strengths: their outcomes (T, S, N) and the model's predictions (T * S, N)."""

    outcomes: _Bools
    predicted: _Floats
    repeats: int

    def add_samples(self, tally: Tally, design: SampleDesign, simple_size: int, n_samples: int, seed: int) -> None:
        """Add the results of samples of the design and of simple random samples (`simple_size` images) to a tally."""
        n_networks, n_strengths, n_images = self.outcomes.shape
        shape = (n_networks, n_strengths)
        correct = self.outcomes.reshape(-1, n_images)
        sums = sum_strata(design, np.tile(self.predicted, self.repeats))
        truth = self.outcomes.mean(axis=2)
        generator = np.random.default_rng(seed)
        for _ in range(n_samples):
            sample = replace(design, order=generator.permutation(design.n_images))
            images = sample.positions % n_images
            estimate = estimate_with_sums(sample, correct[:, images], self.predicted[:, images], sums)
            estimates, low, high = (array.reshape(shape) for array in (estimate.value, estimate.low, estimate.high))
            simple_images = generator.choice(design.n_images, simple_size, replace=False) % n_images
            n_simple_correct = correct[:, simple_images].sum(axis=1).reshape(shape)
            simple_low, simple_high = accuracy_intervals(n_simple_correct / simple_size, simple_size)
            tally.truth.append(truth)
            tally.is_not_extreme.append((truth > EXTREME_MARGIN) & (truth < 1 - EXTREME_MARGIN))
            tally.is_covered.append((low <= truth + 1e-12) & (truth <= high + 1e-12))
            tally.half_width.append((high - low) / 2)
            tally.error.append(estimates - truth)
            tally.simple_half_width.append((simple_high - simple_low) / 2)
            tally.simple_error.append(n_simple_correct / simple_size - truth)
            tally.rankings.append(compare_rankings(truth, estimates, n_simple_correct / simple_size, low, high))


def run_replay(
    population: Population, sizes_by_cost: Mapping[float, Mapping[str, int]], arguments: argparse.Namespace
) -> dict[tuple[str, float], Tally]:
    """Replay all keys with the same pilots."""
    n_pilots = -(-arguments.draws // arguments.samples)
    generator = np.random.default_rng(arguments.seed)
    n_networks = len(population.cheap_outcomes)
    pilots = [generator.permutation(n_networks)[: arguments.pilot] for _ in range(n_pilots)]
    tallies: dict[tuple[str, float], Tally] = {}
    for key in population.expensive_outcomes:
        start = time.monotonic()
        for pilot_seed, pilot in enumerate(pilots):
            for cost, design, networks in design_samples(
                population, key, sizes_by_cost, arguments.strata, pilot, pilot_seed
            ):
                tally = tallies.setdefault((key, cost), Tally())
                simple_size = round(cost * population.n_images)
                networks.add_samples(tally, design, simple_size, arguments.samples, seed=pilot_seed)
        print(f"{key}: replayed in {time.monotonic() - start:.0f} s", flush=True)
    return tallies


HEADER = (
    "| cost | images | key | coverage, by strength | half-width, points | widest strength "
    "| random half-width | gain | tau | random tau | expected tau | best found | best tied "
    "| spread between networks, points |\n" + "|---" * 14 + "|"
)


def format_row(cost: float, sample_size: int, key: str, row: Mapping[str, Any], spread: float) -> str:
    lowest, highest = row["coverage"]
    points = " | ".join(f"{100 * row[name]:.1f}" for name in ("half-width", "widest", "simple half-width"))
    fractions = " | ".join(f"{row[name]:.2f}" for name in ("tau", "simple tau", "expected tau"))
    return (
        f"| {cost:.1%} | {sample_size:,} | `{key}` | {lowest:.1%} to {highest:.1%} | {points} "
        f"| {row['gain']:.1f} | {fractions} | {row['best found']:.0%} | {row['best tied']:.0%} "
        f"| {100 * spread:.1f} |"
    )


def accuracy_spread(outcomes: _Bools) -> float:
    """Return the standard deviation of accuracies between networks (A, S, N), as the median over strengths."""
    accuracy = outcomes.mean(axis=2)
    is_not_extreme = ((accuracy > EXTREME_MARGIN) & (accuracy < 1 - EXTREME_MARGIN)).all(axis=0)
    return float(np.median(accuracy.std(axis=0, ddof=1)[is_not_extreme]))


def draw_figure(path: Path, rows: Mapping[tuple[str, float], Mapping[str, Any]]) -> None:
    """Draw half-widths and tau against cost: a thin line for each key, a thick one for the median."""
    from matplotlib.figure import Figure

    costs = sorted({cost for _, cost in rows})
    keys = sorted({key for key, _ in rows})
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    width_axes, tau_axes = figure.subplots(1, 2)
    panels = ((width_axes, "half-width", "simple half-width", 100), (tau_axes, "tau", "simple tau", 1))
    for axes, sampled_column, simple_column, factor in panels:
        for column, colour, label in (
            (sampled_column, "#0072b2", "sampled and predicted"),
            (simple_column, "#d55e00", "simple random"),
        ):
            curves = np.array([[rows[key, cost][column] * factor for cost in costs] for key in keys])
            axes.plot(np.multiply(costs, 100), curves.T, color=colour, alpha=0.25, linewidth=0.8)
            axes.plot(np.multiply(costs, 100), np.median(curves, axis=0), color=colour, marker="o", label=label)
        axes.set_xscale("log")
        axes.set_xticks([100 * cost for cost in costs], [f"{100 * cost:g}%" for cost in costs])
        axes.minorticks_off()
        axes.set_xlabel("cost, relative to all images of all networks")
        axes.spines[["top", "right"]].set_visible(False)
    width_axes.set_ylabel("half-width of the 95% interval, points")
    width_axes.set_ylim(bottom=0)
    tau_axes.set_ylabel("Kendall's tau with the full ranking")
    width_axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", metavar="DATASET", help="exports with per-image outcomes")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--keys", help="expensive keys, separated by commas; default: all")
    parser.add_argument(
        "--population", type=int, help="number of images, a multiple of the export's; each image is then repeated"
    )
    parser.add_argument("--pilot", type=int, default=7, help="number of networks in the pilot")
    parser.add_argument("--strata", type=int, default=10, help="number of strata of the images")
    parser.add_argument("--draws", type=int, default=1000, help="number of samples per key and cost")
    parser.add_argument("--samples", type=int, default=20, help="number of samples per pilot")
    parser.add_argument("--costs", default="0.025,0.05,0.1", help="costs of samples, as fractions of the full cost")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, help="file for the figure: .svg, .png or .pdf")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keys = arguments.keys.split(",") if arguments.keys else None
    population = read_population(arguments.folders, arguments.dataset, keys, arguments.population)
    passes_per_image = count_passes(PAPER_SWEEP_YAML)
    n_images = population.n_images
    costs = [float(text) for text in arguments.costs.split(",")]
    sizes_by_cost = {cost: sample_sizes(cost, passes_per_image, n_images) for cost in costs}
    n_networks = len(population.cheap_outcomes)
    print(
        f"{n_networks} networks, a pilot of {arguments.pilot}; {n_images:,} images (each of "
        f"{population.cheap_outcomes.shape[2]:,} {population.repeats} times); {arguments.strata} strata; "
        f"{arguments.draws:,} samples, {arguments.samples} per pilot; seed {arguments.seed}; "
        f"passes per image of {PAPER_SWEEP_YAML.name}"
    )
    tallies = run_replay(population, sizes_by_cost, arguments)
    rows = {key_and_cost: tally.summarise() for key_and_cost, tally in tallies.items()}
    spread_by_key = {key: accuracy_spread(outcomes) for key, outcomes in population.expensive_outcomes.items()}
    print(f"\n{HEADER}")
    for cost in costs:
        for key in population.expensive_outcomes:
            print(format_row(cost, sizes_by_cost[cost][key], key, rows[key, cost], spread_by_key[key]))
    if arguments.figure:
        draw_figure(arguments.figure, rows)


if __name__ == "__main__":
    main()
