"""Test the dataset paper's claims on exported results, and fill the table of claims in README.md.

    python -m jobs.papers.dataset.analyse EXPORT

`--folder` is where tables and page are written, by default this folder.

Source: Jung, Lukasik, Keuper, "Neural Architecture Design and Robustness: A Dataset" (ICLR 2023). Edges are numbered as
in the paper: 1 is 0→1, 2 is 0→2, 3 is 1→2, 4 is 0→3, 5 is 1→3, 6 is 2→3.
"""

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from jobs.papers.dataset.distributions import MIN_CELLS, MIN_DISTINCT, WEAK_TAU, cell_claim, claims_about_distributions
from jobs.papers.dataset.results import (
    ATTACKS,
    CLEAN,
    FOLDER,
    PUBLISHED,
    Column,
    Results,
    kernel_parameters,
    operations,
    read_results,
)
from jobs.papers.page import claims_table, fill, write_table
from jobs.papers.verdicts import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Claim,
    Estimate,
    bootstrap_difference,
    judge,
    mean_estimate,
    normal_estimate,
    sample_needed,
    tau_estimate,
)

CLEAR_DIFFERENCE = 0.01
"""Smallest tested difference between published medians, which were read from box plots, ± 0.004."""

SMALL_EPSILONS = (0.1, 0.5, 1.0)
N_TOP, ALMOST_NONE = 20, 2
"""The paper's claims concern the 20 best cells; at most two of them count as "almost none"."""

BEST_CLEAN, BEST_CORRUPTION = 13714, 3456
"""Indices of the cells that the paper calls the best on clean and on corrupted images."""

N_NEIGHBOURS = 24


def judge_claims(results: Results) -> list[Claim]:
    """Return the paper's claims that results of cells can test, with verdicts."""
    return [
        claim_cell_counts(results),
        claim_order_of_attacks(results),
        claim_pgd_against_apgd(results),
        claim_range_at_same_size(results),
        claim_top_cells(results),
        claim_best_cell(results, BEST_CLEAN, "clean", [CLEAN]),
        claim_best_cell(results, BEST_CORRUPTION, "mean corruption", results.corruption_columns),
        claim_search(results),
        *claims_about_neighbours(results),
        claim_jacobian(results),
        *claims_about_distributions(results),
    ]


def claim_cell_counts(results: Results) -> Claim:
    size = PUBLISHED["same_size"]
    counts = (
        len(results.cells),
        sum(kernel_parameters(cell) == size["kernel_parameters"] for cell in results.cells.values()),
    )
    return Claim(
        "The space has 6,466 non-isomorphic cells, of which 408 have 18 kernel parameters.",
        "Sections 3.1, 4.3",
        "6,466; 408",
        f"{counts[0]:,}; {counts[1]:,}",
        "all 15,625 cells",
        HOLDS if counts == (PUBLISHED["classes"], size["cells"]) else FAILS,
    )


def claim_order_of_attacks(results: Results) -> Claim:
    medians = PUBLISHED["medians"]["cifar10"]
    pairs = []
    for first, second in itertools.combinations(results.attacks, 2):
        for strength in sorted({*medians[first]} & {*medians[second]}, key=float):
            published = medians[first][strength] - medians[second][strength]
            columns = [(first, float(strength)), (second, float(strength))]
            if abs(published) > CLEAR_DIFFERENCE and {*columns} <= {*results.accuracies}:
                pairs.append((columns if published > 0 else columns[::-1], float(strength)))
    estimates = {
        f"{ATTACKS[high[0]]} above {ATTACKS[low[0]]} at {strength:g}/255": bootstrap_difference(
            results.accuracies[[high, low]].dropna(), np.median, len(pairs)
        )
        for (high, low), strength in pairs
    }
    verdicts = {name: judge([estimate]) for name, estimate in estimates.items()}
    n_holding = [*verdicts.values()].count(HOLDS)
    others = [f"{name} ({verdict}: {estimates[name]})" for name, verdict in verdicts.items() if verdict != HOLDS]
    ours = f"{n_holding} of these pairs have this order" + (f"; others: {', '.join(others)}" if others else "")
    omission_note = "" if results.has_full_square else " (pairs with Square are left out: it made fewer queries)"
    claim = "At each epsilon, the median accuracies under the attacks have the published order."
    published = f"{len(pairs)} pairs of attacks differ by more than {CLEAR_DIFFERENCE:g}{omission_note}"
    return cell_claim(results, claim, "Figure 2", ours, estimates.values(), published)


def claim_pgd_against_apgd(results: Results) -> Claim:
    columns: list[Column] = [("pgd", 1.0), ("aa_apgd-ce", 1.0)]
    claim = "At epsilon 1/255, the accuracy under APGD-CE is lower than under PGD."
    medians = PUBLISHED["medians"]["cifar10"]
    published = ", ".join(f"{ATTACKS[key]} {medians[key]['1']:.3f}" for key, _ in columns)
    if not {*columns} <= {*results.accuracies}:
        return Claim(claim, "Figure 2", published, "no results", results.data, UNDECIDED, "results under both attacks")
    accuracies = results.accuracies[columns].dropna()
    difference = mean_estimate((accuracies[columns[0]] - accuracies[columns[1]]).to_numpy())
    ours = ", ".join(f"{ATTACKS[column[0]]} {accuracies[column].median():.3f}" for column in columns)
    ours += f"; mean difference {difference}"
    return cell_claim(results, claim, "Figure 2", ours, [difference], published)


def same_size_accuracies(results: Results) -> "pd.Series[float]":
    """Return the mean adversarial accuracies of the cells with 18 kernel parameters."""
    accuracies = results.mean(results.adversarial_columns)
    n_parameters = PUBLISHED["same_size"]["kernel_parameters"]
    return accuracies[[kernel_parameters(results.cells[index]) == n_parameters for index in accuracies.index]]


def claim_range_at_same_size(results: Results) -> Claim:
    size = PUBLISHED["same_size"]
    accuracies = same_size_accuracies(results)
    ours = f"{len(accuracies)} of {size['cells']} cells evaluated"
    verdict = UNDECIDED
    if len(accuracies) > 1:
        ratio = size["highest"] / size["lowest"]
        lowest, highest = accuracies.min(), accuracies.max()
        # The error of a mean over keys is at most that of a single accuracy.
        errors = [math.sqrt(value * (1 - value) / results.n_images) for value in (lowest, highest)]
        error = math.hypot(errors[1], ratio * errors[0])
        ours += f": {lowest:.2f} to {highest:.2f}"
        verdict = judge([normal_estimate(highest - ratio * lowest, error, results.n_images)])
        if verdict == FAILS and len(accuracies) < size["cells"]:
            verdict = UNDECIDED  # other cells may extend the range
    return Claim(
        "Cells with 18 kernel parameters differ by a factor of 1.9 in mean adversarial accuracy.",
        "Abstract, section 4.3",
        f"{size['lowest']:.2f} to {size['highest']:.2f}",
        ours,
        results.data,
        verdict,
        needed_results(size["cells"] - len(accuracies)) if verdict == UNDECIDED else "",
    )


def needed_results(n_missing: int) -> str:
    return f"results of the other {n_missing} cells" if n_missing else "more images"


def claim_top_cells(results: Results) -> Claim:
    accuracies = same_size_accuracies(results)
    claim = (
        "Of the 20 most robust of these cells, almost none has a convolution on edge 2 or on edge 4, and none has "
        "“none” or a skip connection on edge 1."
    )
    n_cells = PUBLISHED["same_size"]["cells"]
    if len(accuracies) < n_cells:
        ours = f"{len(accuracies)} of {n_cells} cells evaluated"
        return Claim(claim, "Figure 7", "", ours, results.data, UNDECIDED, needed_results(n_cells - len(accuracies)))
    top = [operations(results.cells[index]) for index in accuracies.sort_values(ascending=False).index[:N_TOP]]
    n_conv = [sum("conv" in cell[edge] for cell in top) for edge in (1, 3)]
    n_none_or_skip = sum(cell[0] in {"none", "skip_connect"} for cell in top)
    return Claim(
        claim,
        "Figure 7",
        "",
        f"convolution on edge 2: {n_conv[0]} cells, on edge 4: {n_conv[1]}; “none” or skip connection on edge 1: "
        f"{n_none_or_skip}",
        results.data,
        HOLDS if max(n_conv) <= ALMOST_NONE and not n_none_or_skip else FAILS,
    )


def best_cell(accuracies: "pd.Series[float]") -> int:
    return int(accuracies.index[int(accuracies.argmax())])


def claim_best_cell(results: Results, cell: int, score: str, columns: Sequence[Column]) -> Claim:
    claim = f"Architecture #{cell} has the highest {score} accuracy of all cells."
    accuracies = results.mean(columns) if columns else pd.Series(dtype=float)
    if cell not in accuracies or len(accuracies) < 2:
        return Claim(claim, "Figure 26", "", "not evaluated", results.data, UNDECIDED, "results of this cell")
    rank = int((accuracies > accuracies[cell]).sum()) + 1
    other = best_cell(accuracies.drop(cell))
    # The best of the other cells is chosen by the results, so the intervals of all of them must hold jointly.
    difference = results.compare(cell, other, columns, n_comparisons=len(accuracies) - 1)
    verdict, would_decide = judge_cells(results, [difference])
    if verdict == HOLDS and len(accuracies) < len(results.cells):
        verdict, would_decide = UNDECIDED, "results of the other cells"
    return Claim(
        claim,
        "Figure 26",
        "",
        f"rank {rank} of {len(accuracies)}; difference from #{other}: {difference}",
        results.data,
        verdict,
        would_decide,
    )


def claim_search(results: Results) -> Claim:
    claim = (
        "The best cell under FGSM at 1/255 is more robust to the attacks, and less accurate on clean images, than the "
        "best cell on clean images."
    )
    objective: Column = ("fgsm", 1.0)
    if not {CLEAN, objective} <= {*results.accuracies} or len(results.accuracies) < 2:
        return Claim(claim, "Table 1", "", "no results", results.data, UNDECIDED, "results of cells under FGSM")
    robust, accurate = (best_cell(results.accuracies[column]) for column in (objective, CLEAN))
    columns = [column for column in ((key, 1.0) for key in results.attacks) if column in results.accuracies]
    n_comparisons = len(columns) + 1
    differences = {ATTACKS[column[0]]: results.compare(robust, accurate, [column], n_comparisons) for column in columns}
    differences["loss of clean accuracy"] = results.compare(accurate, robust, [CLEAN], n_comparisons)
    verdict, would_decide = judge_cells(results, [*differences.values()])
    difference_texts = ", ".join(f"{name} {estimate}" for name, estimate in differences.items())
    return Claim(
        claim,
        "Table 1",
        "",
        f"accuracy of #{robust} minus that of #{accurate}: {difference_texts}",
        results.data,
        verdict,
        would_decide,
    )


def judge_cells(results: Results, differences: Sequence[Estimate]) -> tuple[str, str]:
    """Return the verdict on a claim about differences between named cells, and what would decide it."""
    verdict = judge(differences)
    needed = sample_needed(differences, "images") if verdict == UNDECIDED else ""
    if not results.has_paper_network_size:
        verdict, needed = UNDECIDED, "two or more training runs per cell" + (f", {needed}" if needed else "")
    return verdict, needed


def claims_about_neighbours(results: Results) -> Iterator[Claim]:
    """Test the claims about #13714, the best cell on clean images, and the cells that differ from it on one edge."""
    index_by_cell = {tuple(operations(cell)): index for cell, index in results.representatives.items()}
    best = operations(results.cells[BEST_CLEAN])
    choices = sorted({operation for cell in index_by_cell for operation in cell})
    changes = [
        (edge, operation, index_by_cell[*best[:edge], operation, *best[edge + 1 :]])
        for edge in range(len(best))
        for operation in choices
        if operation != best[edge]
    ]
    for score, columns, sentence in (
        ("adversarial", results.adversarial_columns, "Average pooling on edge 3 raises the"),
        ("corruption", results.corruption_columns, "Every change of one edge lowers the"),
    ):
        claim = f"{sentence} mean {score} accuracy of #{BEST_CLEAN}."
        accuracies = results.mean(columns) if columns else pd.Series(dtype=float)
        tested = [
            change
            for change in changes
            if change[2] in accuracies and (score == "corruption" or change[:2] == (2, "avg_pool_3x3"))
        ]
        n_expected = N_NEIGHBOURS if score == "corruption" else 1
        if len(tested) < n_expected or BEST_CLEAN not in accuracies:
            ours = f"{sum(change[2] in accuracies for change in changes)} of the {N_NEIGHBOURS} neighbours evaluated"
            missing = f"the other {n_expected - len(tested)} neighbours" if n_expected > 1 else "that neighbour"
            yield Claim(claim, "B.3, figure 30", "", ours, results.data, UNDECIDED, f"results of {missing}")
            continue
        pairs = [(BEST_CLEAN, index) if score == "corruption" else (index, BEST_CLEAN) for *_, index in tested]
        estimates = [results.compare(*pair, columns, len(pairs)) for pair in pairs]
        verdict, would_decide = judge_cells(results, estimates)
        n_holding = [judge([estimate]) for estimate in estimates].count(HOLDS)
        ours = f"{n_holding} of {len(estimates)} changes do so; smallest effect {min(estimates)}"
        yield Claim(claim, "B.3, figure 30", "", ours, results.data, verdict, would_decide)


def claim_jacobian(results: Results) -> Claim:
    """Test whether all correlations at small epsilons have the same sign, differ from 0, and are not weak."""
    claim = "At small epsilons, the norm of the Jacobian correlates well with the accuracy under PGD."
    pairs = {
        strength: pd.concat([results.jacobian, results.accuracies["pgd", strength]], axis=1, join="inner").dropna()
        for strength in SMALL_EPSILONS
        if ("pgd", strength) in results.accuracies and len(results.jacobian)
    }
    known = {
        strength: tau_estimate(pair.iloc[:, 0], pair.iloc[:, 1], len(SMALL_EPSILONS))
        for strength, pair in pairs.items()
        if len(pair) >= MIN_CELLS and pair.iloc[:, 1].nunique() >= min(MIN_DISTINCT, len(pair))
    }
    if len(known) < len(SMALL_EPSILONS):
        return Claim(
            claim, "Figure 6", "", "too few results", results.data, UNDECIDED, f"PGD and Jacobians of {MIN_CELLS} cells"
        )
    sign = math.copysign(1, known[1.0].value)
    same_sign = [tau if sign > 0 else -tau for tau in known.values()]
    is_weak = any(tau.low > -WEAK_TAU and tau.high < WEAK_TAU for tau in known.values())
    verdict = FAILS if is_weak else judge(same_sign)
    return Claim(
        claim,
        "Figure 6",
        "",
        "Kendall's tau: " + ", ".join(f"{tau} at {strength:g}/255" for strength, tau in known.items()),
        f"{known[1.0].n} cells, training images",
        verdict,
        sample_needed(known.values(), "cells", len(results.cells)) if verdict == UNDECIDED else "",
    )


def compare_medians(results: Results) -> pd.DataFrame:
    """Return our and the published medians over cells, by key and strength."""
    rows = [
        (key, float(strength), results.accuracies[key, float(strength)].median(), published)
        for key, by_strength in PUBLISHED["medians"]["cifar10"].items()
        for strength, published in by_strength.items()
        if (key, float(strength)) in results.accuracies
    ]
    frame = pd.DataFrame(rows, columns=["key", "strength", "ours", "published"])
    return frame.assign(difference=frame["ours"] - frame["published"])


def compare_curves(results: Results) -> pd.DataFrame:
    """Return our and the published accuracies of single cells (figure 11), for the cells that were evaluated."""
    rows = [
        (int(cell), key, float(strength), results.accuracies[key, float(strength)][int(cell)], published)
        for cell, curves in PUBLISHED["curves"].items()
        for key, by_strength in curves.items()
        for strength, published in by_strength.items()
        if (key, float(strength)) in results.accuracies and int(cell) in results.accuracies.index
    ]
    return pd.DataFrame(rows, columns=["architecture", "key", "strength", "ours", "published"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    results = read_results(arguments.export)
    claims = judge_claims(results)
    write_table(arguments.folder / "tables/claims.csv", pd.DataFrame(claims))
    write_table(arguments.folder / "tables/medians.csv", compare_medians(results))
    if len(curves := compare_curves(results)):
        write_table(arguments.folder / "tables/figure-11.csv", curves)
    fill(arguments.folder / "README.md", {"claims": claims_table(claims)})


if __name__ == "__main__":
    main()
