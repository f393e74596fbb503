"""Claims about the distribution of accuracies and confidences over cells, with bootstrap intervals over cells."""

import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jobs.papers.dataset.results import ATTACKS, CLEAN, Results, kernel_parameters
from jobs.papers.verdicts import (
    UNDECIDED,
    Claim,
    Estimate,
    bootstrap_difference,
    bootstrap_estimate,
    decide,
    mean_estimate,
)

N_SAMPLES = 500
"""Number of bootstrap samples of `bootstrap`, whose statistics take long."""

MAX_CELLS = 300
"""`bootstrap` computes statistics on at most this number of cells, drawn at random (seed 0)."""

MIN_DISTINCT = 10
"""Minimum number of distinct accuracies for a rank correlation."""

MIN_CELLS = 8

WEAK_TAU = 0.2
"""Rank correlations between -0.2 and 0.2 count as no correlation."""

LARGEST_EPSILON = 8.0
"""Largest epsilon at which confidences are tested: FGSM at 255/255 destroys the image."""

SEVERITY = 3.0
"""Severity of the paper's figure 5."""

UPPER_QUANTILE = 0.9
"""Quantile over cells that replaces the maximum, whose bootstrap intervals have the wrong coverage."""


def claims_about_distributions(results: Results) -> Iterator[Claim]:
    yield from claims_about_gaps(results)
    yield claim_within_and_between_attacks(results)
    yield claim_uncorrelated_corruptions(results)
    yield claim_kernel_parameters(results)
    yield claim_linearity(results)
    yield from claims_about_confidences(results)
    yield Claim(
        "The rankings of cells on different datasets correlate less the stronger the attack is.",
        "A.7, figure 17",
        "",
        "one dataset",
        results.data,
        UNDECIDED,
        "results on CIFAR-100 or ImageNet16-120",
    )


def rank_correlations(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Kendall's tau-b between all columns of values (cells, columns), with a weight for each cell."""
    first, second = np.triu_indices(len(values), 1)
    signs = np.sign(values[first] - values[second])
    products = (signs * (weights[first] * weights[second])[:, None]).T @ signs
    norms = np.sqrt(np.diag(products))
    tau: NDArray[np.float64] = products / np.outer(norms, norms)
    return tau


def bootstrap(
    accuracies: pd.DataFrame, statistic: Callable[[NDArray[np.float64], NDArray[np.float64]], float]
) -> Estimate:
    """Return a statistic, a function of (values, weights of the cells), with an interval over cells."""
    values = accuracies.dropna().sample(frac=1, random_state=0).iloc[:MAX_CELLS].to_numpy(np.float64)
    n = len(values)
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), N_SAMPLES).astype(np.float64)
    replicates = [statistic(values, weights) for weights in counts]
    return bootstrap_estimate(statistic(values, np.ones(n)), replicates, n)


def cell_claim(
    results: Results, claim: str, place: str, ours: str, estimates: Iterable[Estimate], published: str = ""
) -> Claim:
    return decide(claim, place, published, ours, results.data, estimates, "cells", len(results.cells))


def too_few_results(results: Results, claim: str, place: str) -> Claim:
    return Claim(claim, place, "", "too few results", results.data, UNDECIDED, f"results of at least {MIN_CELLS} cells")


def upper_gap(accuracies: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    gap: NDArray[np.float64] = np.quantile(accuracies, UPPER_QUANTILE, axis=axis) - accuracies.mean(axis=axis)
    return gap


def claims_about_gaps(results: Results) -> Iterator[Claim]:
    """Test whether the best cells are further above the mean where accuracies are lower."""
    by_severity = [[column for column in results.corruption_columns if column[1] == severity] for severity in (5, 1)]
    for claim, place, pairs in (
        (
            "The gap between mean and maximum (here: 90% quantile) of cells is larger at 1/255 than on clean images.",
            "Figure 2",
            {ATTACKS[key]: [[(key, 1.0)], [CLEAN]] for key in results.attacks},
        ),
        (
            "The gap between mean and maximum (here: 90% quantile) of cells is larger at severity 5 than at 1.",
            "Figure 4",
            {"mean over corruptions": by_severity},
        ),
    ):
        frames = {
            name: pd.concat([results.mean(columns) for columns in pair], axis=1).dropna()
            for name, pair in pairs.items()
            if all(columns and {*columns} <= {*results.accuracies} for columns in pair)
        }
        if not frames or min(map(len, frames.values())) < MIN_CELLS:
            yield too_few_results(results, claim, place)
            continue
        estimates = {name: bootstrap_difference(frame, upper_gap, len(frames)) for name, frame in frames.items()}
        gaps = {name: (frame.max() - frame.mean()).tolist() for name, frame in frames.items()}
        ours = "; ".join(
            f"{name}: {gaps[name][0]:.3f} against {gaps[name][1]:.3f}, with the 90% quantile a difference of {estimate}"
            for name, estimate in estimates.items()
        )
        yield cell_claim(results, claim, place, ours, estimates.values())


def claim_within_and_between_attacks(results: Results) -> Claim:
    """Test whether rankings at two epsilons agree more under the same attack than under different attacks."""
    claim = "Rankings of cells at two epsilons agree more under one attack than under two attacks."
    place = "Section 3.2, figure 3"
    columns = [
        column
        for column in results.adversarial_columns
        if column[0] in results.attacks and results.accuracies[column].nunique() >= MIN_DISTINCT
    ]
    strength_sets = [{strength for key, strength in columns if key == attack} for attack in results.attacks]
    strengths = set.intersection(*strength_sets) if strength_sets else set()
    columns = [column for column in columns if column[1] in strengths]
    pairs = [
        (first, second)
        for first, second in itertools.combinations(range(len(columns)), 2)
        if columns[first][1] != columns[second][1]
    ]
    within = [pair for pair in pairs if columns[pair[0]][0] == columns[pair[1]][0]]
    between = [pair for pair in pairs if columns[pair[0]][0] != columns[pair[1]][0]]
    if not within or not between or len(results.accuracies) < MIN_CELLS:
        return too_few_results(results, claim, place)

    def mean_tau(tau: NDArray[np.float64], column_pairs: list[tuple[int, int]]) -> float:
        return float(np.mean([tau[pair] for pair in column_pairs]))

    def difference(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
        tau = rank_correlations(values, weights)
        return mean_tau(tau, within) - mean_tau(tau, between)

    accuracies = results.accuracies[columns].dropna()
    tau = rank_correlations(accuracies.to_numpy(), np.ones(len(accuracies)))
    estimate = bootstrap(accuracies, difference)
    ours = (
        f"mean Kendall's tau {mean_tau(tau, within):.2f} over {len(within)} pairs under one attack, "
        f"{mean_tau(tau, between):.2f} over {len(between)} pairs under two; difference {estimate}"
    )
    return cell_claim(results, claim, place, ours, [estimate])


def claim_uncorrelated_corruptions(results: Results) -> Claim:
    claim = "Most pairs of corruptions have rankings of cells that are uncorrelated."
    place = "Section 3.3, figure 5"
    columns = [column for column in results.corruption_columns if column[1] == SEVERITY]
    if len(columns) < 2 or len(results.accuracies) < MIN_CELLS:
        return too_few_results(results, claim, place)

    def excess_fraction(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
        tau = rank_correlations(values, weights)[np.triu_indices(len(columns), 1)]
        return float(np.mean(np.abs(tau) < WEAK_TAU)) - 0.5

    estimate = bootstrap(results.accuracies[columns], excess_fraction)
    n_pairs = len(columns) * (len(columns) - 1) // 2
    ours = (
        f"Kendall's tau is between -{WEAK_TAU:g} and {WEAK_TAU:g} for "
        f"{estimate.value + 0.5:.0%} of {n_pairs} pairs at severity {SEVERITY:g}; fraction minus 0.5: {estimate}"
    )
    return cell_claim(results, claim, place, ours, [estimate])


def claim_kernel_parameters(results: Results) -> Claim:
    claim = "Cells with more kernel parameters are more robust."
    place = "B.2, figure 28"
    accuracies = results.mean(results.adversarial_columns)
    if len(accuracies) < MIN_CELLS:
        return too_few_results(results, claim, place)
    sizes = [kernel_parameters(results.cells[index]) for index in accuracies.index]
    frame = pd.DataFrame({"size": sizes, "accuracy": accuracies.to_numpy()})
    estimate = bootstrap(frame, lambda values, weights: float(rank_correlations(values, weights)[0, 1]))
    ours = f"Kendall's tau with mean adversarial accuracy {estimate}"
    return cell_claim(results, claim, place, ours, [estimate])


def claim_linearity(results: Results) -> Claim:
    claim = "Clean accuracy predicts mean corruption accuracy more linearly than mean adversarial accuracy."
    place = "B.2, figure 27"
    groups = {
        "clean": [CLEAN],
        "corrupted": results.corruption_columns,
        "attacked": results.adversarial_columns,
    }
    if not all(column in results.accuracies for columns in groups.values() for column in columns) or not all(
        groups.values()
    ):
        return too_few_results(results, claim, place)
    frame = pd.DataFrame({name: results.mean(columns) for name, columns in groups.items()})
    if len(frame.dropna()) < MIN_CELLS:
        return too_few_results(results, claim, place)

    def r_squared(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        covariance = np.cov(values.T, aweights=weights)
        result: NDArray[np.float64] = covariance[0, 1:] ** 2 / (covariance[0, 0] * np.diag(covariance)[1:])
        return result

    estimate = bootstrap(frame, lambda values, weights: float(r_squared(values, weights) @ [1, -1]))
    corrupted, attacked = r_squared(frame.dropna().to_numpy(), np.ones(len(frame.dropna())))
    ours = f"R² {corrupted:.2f} (corrupted), {attacked:.2f} (adversarial); difference {estimate}"
    return cell_claim(results, claim, place, ours, [estimate])


def claims_about_confidences(results: Results) -> Iterator[Claim]:
    """Test figure 15 for FGSM: the mean confidence of right and of wrong predictions by epsilon."""
    right_claim = (
        "Under FGSM, the mean confidence of right predictions falls from each epsilon to the next, up to 8/255."
    )
    wrong_claim = "Under FGSM, the mean confidence of wrong predictions rises first, and falls again up to 8/255."
    place = "A.5, figure 15"
    confidences = results.confidences("fgsm")
    if confidences is None or len(confidences[0]) < MIN_CELLS:
        yield from (too_few_results(results, claim, place) for claim in (right_claim, wrong_claim))
        return
    right, wrong = (frame.loc[:, :LARGEST_EPSILON] for frame in confidences)
    epsilons = [*right.columns]
    steps = [
        mean_estimate((right[low] - right[high]).dropna(), len(epsilons) - 1)
        for low, high in itertools.pairwise(epsilons)
    ]
    n_falling = sum(step.low > 0 for step in steps)
    ours = f"falls at {n_falling} of {len(steps)} steps; smallest fall {min(steps)}"
    yield cell_claim(results, right_claim, place, ours, steps)
    peak = wrong.mean().idxmax()
    drops = [mean_estimate((wrong[peak] - wrong[end]).dropna(), 2) for end in (epsilons[0], epsilons[-1])]
    ours = f"highest at {peak:g}/255: above clean images by {drops[0]}, above 8/255 by {drops[1]}"
    yield cell_claim(results, wrong_claim, place, ours, drops)
