"""Checks whether the dataset paper's claims hold for results other than the paper's.

Source: Jung, Lukasik, Keuper, "Neural Architecture Design and Robustness: A Dataset" (ICLR 2023). Edges are numbered as
in the paper: 1 is 0→1, 2 is 0→2, 3 is 1→2, 4 is 0→3, 5 is 1→3, 6 is 2→3.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from robust201.analysis.dataset_results import ADVERSARIAL, CORRUPTION, SCORES, DatasetResults
from robust201.core.errors import ResultsError
from robust201.figures.figure_data import accuracy_interval, neighbour_changes
from robust201.reader.value_checks import CLEAN
from robust201.spaces.cell_space import CellSpace
from robust201.statistics.intervals import mean_intervals

_PUBLISHED = Path(__file__).parent / "published" / "dataset.json"

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "cannot be tested"

ATTACKS = ("aa_apgd-ce", "pgd", "fgsm", "aa_square")
"""Keys of the attacks in the paper."""

CLEAR_DIFFERENCE = 0.01
"""Minimum difference between published medians for their order to be checked.

The published medians were read from figures, to within 0.004.
"""

N_TOP_CELLS = 20
"""Number of the best cells about which the paper makes claims."""

MAX_ALMOST_NONE = 2
"""Maximum number of the `N_TOP_CELLS` best cells that counts as "almost none"."""

CONVOLUTIONS = ("nor_conv_1x1", "nor_conv_3x3")
DROPPED_OR_SKIPPED = ("none", "skip_connect")
POOLING = "avg_pool_3x3"


class Claim(NamedTuple):
    """A claim of the paper, with the verdict on other results.

    Attributes:
        place: section, figure or table in the paper.
        claim: the claim, as a sentence.
        printed: the paper's numbers.
        ours: the numbers in the other results, or a text about missing results.
        verdict: `HOLDS`, `FAILS` or `UNTESTED`.
    """

    place: str
    claim: str
    printed: str
    ours: str
    verdict: str


@cache
def published_dataset_numbers() -> dict[str, Any]:
    """Return the published numbers; accuracies are fractions, except for percentages in table 1."""
    content: dict[str, Any] = json.loads(_PUBLISHED.read_text())
    return content


def check_claims(results: DatasetResults, correlations: pd.DataFrame) -> list[Claim]:
    """Check every claim; a claim is `UNTESTED` if the results do not suffice to check it.

    Args:
        results: results of one dataset, on cells of NAS-Bench-201.
        correlations: correlations of measures with accuracies, from `figure_data.measure_correlations`; may be empty.

    Raises:
        ResultsError: the architectures are not cells.
    """
    if results.space is None:
        raise ResultsError(
            f"Checking the paper's claims failed for {results.name}: its architectures are not cells of the "
            "paper's space. Choose a dataset of that space."
        )
    return [
        *_check_cell_counts(results.space),
        *_check_order_of_attacks(results),
        *_check_pgd_against_apgd(results),
        *_check_range_at_same_size(results, results.space),
        *_check_top_cells(results, results.space),
        *_check_ranks_of_best_cells(results),
        *_check_search_claim(results),
        *_check_neighbour_claims(results, results.space),
        *_check_jacobian_correlations(correlations),
    ]


def compare_medians(results: DatasetResults) -> pd.DataFrame:
    """Compare medians over architectures with the published medians.

    Returns:
        One row per `key` and `strength` with a published median and results: the number `n` of architectures, the
        medians `ours` and `printed`, and their `difference`.
    """
    rows = []
    for key, by_strength in published_dataset_numbers()["medians"].get(results.name, {}).items():
        for strength, published_median in _with_float_strengths(by_strength).items():
            if (key, strength) in results.accuracies:
                accuracies = results.column(key, strength).dropna()
                rows.append(
                    (
                        key,
                        strength,
                        len(accuracies),
                        accuracies.median(),
                        published_median,
                        accuracies.median() - published_median,
                    )
                )
    return pd.DataFrame(rows, columns=["key", "strength", "n", "ours", "printed", "difference"])


def compare_curves(results: DatasetResults) -> pd.DataFrame:
    """Compare accuracies of single architectures with the published ones.

    The paper has such accuracies only for CIFAR-10.

    Returns:
        The columns of `compare_medians`, with `architecture` instead of `n`; no rows for other datasets.
    """
    rows = []
    for name, curves in published_dataset_numbers()["curves"].items() if results.name == "cifar10" else ():
        for key, by_strength in curves.items():
            for strength, published_accuracy in _with_float_strengths(by_strength).items():
                if (key, strength) in results.accuracies and int(name) in results.architectures:
                    accuracy = float(results.column(key, strength)[int(name)])
                    rows.append(
                        (f"#{name}", key, strength, accuracy, published_accuracy, accuracy - published_accuracy)
                    )
    return pd.DataFrame(rows, columns=["architecture", "key", "strength", "ours", "printed", "difference"])


def _with_float_strengths(by_strength: Mapping[str, float]) -> dict[float, float]:
    return {float(strength): number for strength, number in by_strength.items()}


def _check_cell_counts(space: CellSpace) -> Iterator[Claim]:
    published = published_dataset_numbers()
    representatives = sorted(set(space.isomorphs()))
    specs = space.specs()
    n_parameters = published["same_size"]["kernel_parameters"]
    count = sum(space.kernel_parameters(specs[index]) == n_parameters for index in representatives)
    is_equal = (len(representatives), count) == (published["classes"], published["same_size"]["cells"])
    yield Claim(
        "Sections 3.1, 4.3",
        f"The space has {published['classes']:,} non-isomorphic cells, of which {published['same_size']['cells']} have "
        f"{n_parameters} kernel parameters.",
        f"{published['classes']:,}; {published['same_size']['cells']}",
        f"{len(representatives):,}; {count}",
        HOLDS if is_equal else FAILS,
    )


def _check_order_of_attacks(results: DatasetResults) -> Iterator[Claim]:
    table = compare_medians(results)
    medians = table[table["key"].isin(ATTACKS)].set_index(["strength", "key"])[["printed", "ours"]]
    n_ordered, swapped_pairs = 0, []
    for strength in dict.fromkeys(medians.index.get_level_values("strength")):
        medians_at_strength = medians.loc[strength]
        for first, second in itertools.combinations(medians_at_strength.index, 2):
            published_difference, our_difference = medians_at_strength.loc[first] - medians_at_strength.loc[second]
            if abs(published_difference) > CLEAR_DIFFERENCE:
                n_ordered += 1
                if published_difference * our_difference <= 0:
                    swapped_pairs.append(f"{first} and {second} at {strength:g}/255")
    ours = f"{n_ordered - len(swapped_pairs)} of these pairs have the published order"
    yield Claim(
        "Figure 2",
        "At each epsilon, the median accuracies under the attacks have the published order.",
        f"{n_ordered} pairs of attacks at the same epsilon have medians that differ by more than {CLEAR_DIFFERENCE:g}",
        ours + (f"; exceptions: {', '.join(swapped_pairs)}" if swapped_pairs else "")
        if n_ordered
        else "there are results for fewer than two of the attacks",
        UNTESTED if not n_ordered else FAILS if swapped_pairs else HOLDS,
    )


def _check_pgd_against_apgd(results: DatasetResults) -> Iterator[Claim]:
    attacks = [("pgd", 1.0), ("aa_apgd-ce", 1.0)]
    medians = published_dataset_numbers()["medians"].get(results.name)
    if medians is None:
        return
    labels = {"pgd": "PGD", "aa_apgd-ce": "APGD-CE"}
    published = ", ".join(f"{labels[key]} {medians[key]['1']:.3f}" for key, _ in attacks)
    claim = "At epsilon 1/255, the median accuracy under APGD-CE is lower than under PGD."
    if not all(column in results.accuracies for column in attacks):
        yield Claim("Figure 2", claim, published, "there are no results for one of the attacks", UNTESTED)
        return
    accuracies = results.accuracies[attacks].dropna()
    mean, low, high = mean_intervals((accuracies[attacks[0]] - accuracies[attacks[1]]).to_numpy())
    ours = ", ".join(f"{labels[column[0]]} {accuracies[column].median():.3f}" for column in attacks)
    yield Claim(
        "Figure 2",
        claim,
        published,
        f"{ours}; mean difference {mean:.3f}, 95% interval over {len(accuracies)} cells [{low:.3f}, {high:.3f}]",
        HOLDS if low > 0 else FAILS,
    )


def _same_size_accuracies(results: DatasetResults, space: CellSpace) -> "pd.Series[float]":
    """Return the mean adversarial accuracies of cells with the number of kernel parameters that the paper examines."""
    n_parameters = published_dataset_numbers()["same_size"]["kernel_parameters"]
    if ADVERSARIAL not in results.scores:
        return pd.Series(dtype=float)
    accuracies = results.scores[ADVERSARIAL].dropna()
    return accuracies[[space.kernel_parameters(results.spec(index)) == n_parameters for index in accuracies.index]]


def _check_range_at_same_size(results: DatasetResults, space: CellSpace) -> Iterator[Claim]:
    published = published_dataset_numbers()["same_size"]
    accuracies = _same_size_accuracies(results, space)
    ours = f"{len(accuracies)} of {published['cells']} cells evaluated"
    verdict = UNTESTED
    if len(accuracies):
        ours += f": {accuracies.min():.2f} to {accuracies.max():.2f}"
        has_factor_of_two = accuracies.max() >= published["highest"] / published["lowest"] * accuracies.min()
        verdict = HOLDS if has_factor_of_two else FAILS if len(accuracies) >= published["cells"] else UNTESTED
    yield Claim(
        "Abstract, section 4.3",
        f"Cells with {published['kernel_parameters']} kernel parameters differ by a factor of two in mean adversarial "
        "accuracy.",
        f"{published['lowest']:.2f} to {published['highest']:.2f}",
        ours,
        verdict,
    )


def _check_top_cells(results: DatasetResults, space: CellSpace) -> Iterator[Claim]:
    accuracies = _same_size_accuracies(results, space)
    n_cells = published_dataset_numbers()["same_size"]["cells"]
    claim = (
        f"Of the {N_TOP_CELLS} most robust of these cells, almost none has a convolution on edge 2 or on edge 4, and "
        "none has “none” or a skip connection on edge 1."
    )
    if len(accuracies) < n_cells:
        yield Claim("Figure 7", claim, "", f"{len(accuracies)} of {n_cells} cells evaluated", UNTESTED)
        return
    cells = [
        space.parse(results.spec(top.architecture)) for top in results.rank_architectures(accuracies)[:N_TOP_CELLS]
    ]
    n_convolved = [sum(cell[edge] in CONVOLUTIONS for cell in cells) for edge in (1, 3)]
    n_dropped_or_skipped = sum(cell[0] in DROPPED_OR_SKIPPED for cell in cells)
    yield Claim(
        "Figure 7",
        claim,
        "",
        f"convolution on edge 2: {n_convolved[0]} cells, on edge 4: {n_convolved[1]}; “none” or skip connection on "
        f"edge 1: {n_dropped_or_skipped}",
        HOLDS if max(n_convolved) <= MAX_ALMOST_NONE and not n_dropped_or_skipped else FAILS,
    )


def _check_ranks_of_best_cells(results: DatasetResults) -> Iterator[Claim]:
    for cell in published_dataset_numbers()["best_cells"]:
        claim = f"Architecture #{cell} has the highest clean, mean adversarial or mean corruption accuracy."
        if cell not in results.architectures or results.scores.empty:
            yield Claim("Figure 26", claim, "", "not evaluated", UNTESTED)
            continue
        ranks, is_best, is_near = [], False, False
        for score in results.scores:
            ranked = results.rank_architectures(results.scores[score])
            for ranked_cell in ranked:
                if ranked_cell.architecture == cell:
                    low, _ = accuracy_interval(results, ranked[0].accuracy)
                    is_best |= ranked_cell.rank == 1
                    is_near |= ranked_cell.accuracy >= low
                    ranks.append(f"{SCORES[str(score)]} rank {ranked_cell.rank} of {len(ranked)}")
        ours = ", ".join(ranks)
        if is_near and not is_best:
            ours += ", within the 95% interval of the best cell"
        yield Claim("Figure 26", claim, "", ours, HOLDS if is_best else UNTESTED if is_near else FAILS)


def _check_search_claim(results: DatasetResults) -> Iterator[Claim]:
    objective = ("fgsm", 1.0)
    attacked_columns = [column for column in ((key, 1.0) for key in ATTACKS) if column in results.accuracies]
    claim = (
        "The best cell under FGSM at 1/255 is more robust to the attacks, and less accurate on clean images, than the "
        "best cell on clean images."
    )
    if objective not in results.accuracies or CLEAN not in results.scores or len(results.architectures) < N_TOP_CELLS:
        yield Claim("Table 1", claim, "", f"{len(results.architectures)} cells evaluated", UNTESTED)
        return
    best_clean_cell = results.rank_architectures(results.scores[CLEAN])[0].architecture
    best_attacked_cell = results.rank_architectures(results.column(*objective))[0].architecture
    gains = [
        results.column(*column)[best_attacked_cell] - results.column(*column)[best_clean_cell]
        for column in attacked_columns
    ]
    clean_change = results.column(CLEAN)[best_attacked_cell] - results.column(CLEAN)[best_clean_cell]
    gains_text = ", ".join(f"{key} {gain:+.3f}" for (key, _), gain in zip(attacked_columns, gains, strict=True))
    yield Claim(
        "Table 1",
        claim,
        "",
        f"accuracy of #{best_attacked_cell} minus that of #{best_clean_cell}: {gains_text}, clean {clean_change:+.3f}",
        HOLDS if clean_change < 0 and all(gain > 0 for gain in gains) else FAILS,
    )


def _check_neighbour_claims(results: DatasetResults, space: CellSpace) -> Iterator[Claim]:
    """Check the claims about changes of one edge of the best cell.

    The paper does not name this cell; the cell with the highest clean accuracy is used.
    """
    changes = neighbour_changes(results)
    changes = changes[changes["best"] == CLEAN]
    n_neighbours = len(space.edges) * (len(space.operations) - 1)
    for score, claim in (
        (ADVERSARIAL, "Average pooling on edge 3 of the best cell raises its mean adversarial accuracy."),
        (CORRUPTION, "Every change of one edge of the best cell lowers its mean corruption accuracy."),
    ):
        rows = changes[changes["score"] == score]
        if len(rows) < n_neighbours:
            ours = f"{len(rows)} of the {n_neighbours} cells that differ from the best cell on one edge evaluated"
            yield Claim("Figure 30", claim, "", ours, UNTESTED)
        elif score == CORRUPTION:
            n_lower = int((rows["change"] < 0).sum())
            verdict = HOLDS if n_lower == n_neighbours else FAILS
            yield Claim("Figure 30", claim, "", f"{n_lower} of {n_neighbours} changes lower the accuracy", verdict)
        else:
            pooling_changes = rows[(rows["edge"] == 2) & (rows["operation"] == POOLING)]["change"]
            unchanged_cell_text = "the best cell already has pooling on edge 3"
            ours = f"{pooling_changes.iloc[0]:+.3f}" if len(pooling_changes) else unchanged_cell_text
            verdict = UNTESTED if pooling_changes.empty else HOLDS if pooling_changes.iloc[0] > 0 else FAILS
            yield Claim("Figure 30", claim, "", ours, verdict)


def _check_jacobian_correlations(correlations: pd.DataFrame) -> Iterator[Claim]:
    claim = "The norm of the Jacobian predicts accuracy under PGD better at 1/255 than at the largest epsilon."
    rows = pd.DataFrame()
    if len(correlations):
        is_norm = correlations["measure"].str.startswith("Jacobian norm") & (correlations["key"] == "pgd")
        rows = correlations[is_norm].dropna(subset="kendall")
    if rows.empty:
        yield Claim("Figure 6", claim, "", "fewer than eight cells have Jacobian norms", UNTESTED)
    for measure, measure_rows in rows.groupby("measure", sort=False) if len(rows) else ():
        by_strength = measure_rows.set_index("strength")["kendall"].sort_index()
        taus_text = ", ".join(f"{tau:.2f} at {strength:g}/255" for strength, tau in by_strength.items())
        verdict = UNTESTED
        if 1.0 in by_strength.index and len(by_strength) > 1:
            verdict = HOLDS if abs(by_strength[1.0]) > abs(by_strength.iloc[-1]) else FAILS
        yield Claim("Figure 6", claim, "", f"{measure}, Kendall's tau by epsilon: {taus_text}", verdict)
