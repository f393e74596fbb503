"""The dataset paper's claims about its results, each with the verdict of other results.

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
from robust201.figures.figure_data import accuracy_ends, neighbour_changes
from robust201.reader.value_checks import CLEAN
from robust201.spaces.cell_space import CellSpace
from robust201.statistics.intervals import mean_intervals

_PUBLISHED = Path(__file__).parent / "published" / "dataset.json"

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "cannot be tested"

ATTACKS = ("aa_apgd-ce", "pgd", "fgsm", "aa_square")

CLEAR_DIFFERENCE = 0.01
"""Minimum difference of published medians to be compared; they were read from figures to within 0.004."""

TOP = 20
FEW = 2
"""Maximum number of the `TOP` best cells that counts as "almost none"."""

CONVOLUTIONS = ("nor_conv_1x1", "nor_conv_3x3")
DROPPED = ("none", "skip_connect")
POOLING = "avg_pool_3x3"


class Claim(NamedTuple):
    """A claim of the paper, with the verdict of other results.

    Attributes:
        place: section, figure or table of the claim.
        claim: the claim, as a sentence.
        printed: the paper's numbers.
        ours: numbers of the other results, or what is missing in them.
        verdict: `HOLDS`, `FAILS` or `UNTESTED`.
    """

    place: str
    claim: str
    printed: str
    ours: str
    verdict: str


@cache
def printed_dataset() -> dict[str, Any]:
    """Return the published numbers; accuracies are fractions, except for percentages in table 1."""
    content: dict[str, Any] = json.loads(_PUBLISHED.read_text())
    return content


def check_claims(results: DatasetResults, correlations: pd.DataFrame) -> list[Claim]:
    """Check every claim that the results suffice for.

    Args:
        results: results of one dataset, on cells of NAS-Bench-201.
        correlations: correlations of measures with accuracies from `figure_data.measure_correlations`; may be empty.

    Raises:
        ResultsError: the architectures are not cells.
    """
    if results.space is None:
        raise ResultsError(
            f"Checking the paper's claims failed for {results.name}: its architectures are not cells of the paper's "
            "space. Name a dataset of that space."
        )
    return [
        *_count_cells(results.space),
        *_order_attacks(results),
        *_compare_pgd_and_apgd(results),
        *_measure_range(results, results.space),
        *_inspect_top_cells(results, results.space),
        *_rank_best_cells(results),
        *_search(results),
        *_change_best_cell(results, results.space),
        *_follow_jacobian(correlations),
    ]


def compare_medians(results: DatasetResults) -> pd.DataFrame:
    """Compare medians over architectures with the published ones.

    Returns:
        One row per `key` and `strength` with a published median and results: `n` architectures, the medians `ours` and
        `printed`, and their `difference`.
    """
    rows = []
    for key, by_strength in printed_dataset()["medians"].get(results.name, {}).items():
        for strength, printed in _by_number(by_strength).items():
            if (key, strength) in results.accuracies:
                values = results.column(key, strength).dropna()
                rows.append((key, strength, len(values), values.median(), printed, values.median() - printed))
    return pd.DataFrame(rows, columns=["key", "strength", "n", "ours", "printed", "difference"])


def compare_curves(results: DatasetResults) -> pd.DataFrame:
    """Compare accuracies of single architectures with the published ones; columns as in `compare_medians`."""
    rows = []
    for name, curves in printed_dataset()["curves"].items() if results.name == "cifar10" else ():
        for key, by_strength in curves.items():
            for strength, printed in _by_number(by_strength).items():
                if (key, strength) in results.accuracies and int(name) in results.architectures:
                    ours = float(results.column(key, strength)[int(name)])
                    rows.append((f"#{name}", key, strength, ours, printed, ours - printed))
    return pd.DataFrame(rows, columns=["architecture", "key", "strength", "ours", "printed", "difference"])


def _by_number(by_strength: Mapping[str, float]) -> dict[float, float]:
    return {float(strength): value for strength, value in by_strength.items()}


def _count_cells(space: CellSpace) -> Iterator[Claim]:
    printed = printed_dataset()
    classes = sorted(set(space.isomorphs()))
    specs = space.specs()
    size = printed["same_size"]["kernel_parameters"]
    count = sum(space.kernel_parameters(specs[index]) == size for index in classes)
    is_equal = (len(classes), count) == (printed["classes"], printed["same_size"]["cells"])
    yield Claim(
        "Sections 3.1, 4.3",
        f"The space has so many non-isomorphic cells, and so many of them {size} kernel parameters.",
        f"{printed['classes']:,}; {printed['same_size']['cells']}",
        f"{len(classes):,}; {count}",
        HOLDS if is_equal else FAILS,
    )


def _order_attacks(results: DatasetResults) -> Iterator[Claim]:
    table = compare_medians(results)
    medians = table[table["key"].isin(ATTACKS)].set_index(["strength", "key"])[["printed", "ours"]]
    n_ordered, swapped = 0, []
    for strength in dict.fromkeys(medians.index.get_level_values("strength")):
        rows = medians.loc[strength]
        for first, second in itertools.combinations(rows.index, 2):
            printed, ours = rows.loc[first] - rows.loc[second]
            if abs(printed) > CLEAR_DIFFERENCE:
                n_ordered += 1
                if printed * ours <= 0:
                    swapped.append(f"{first} and {second} at {strength:g}")
    ours = f"{n_ordered - len(swapped)} of these pairs are in the same order"
    yield Claim(
        "Figure 2",
        "By median accuracy, the attacks have this order at each epsilon.",
        f"{n_ordered} pairs of attacks at one epsilon differ by more than {CLEAR_DIFFERENCE:g}",
        ours + (f", not {', '.join(swapped)}" if swapped else "") if n_ordered else "fewer than two of the attacks",
        UNTESTED if not n_ordered else FAILS if swapped else HOLDS,
    )


def _compare_pgd_and_apgd(results: DatasetResults) -> Iterator[Claim]:
    columns = [("pgd", 1.0), ("aa_apgd-ce", 1.0)]
    medians = printed_dataset()["medians"].get(results.name)
    if medians is None:
        return
    printed = " and ".join(f"{medians[key]['1']:.3f}" for key, _ in columns)
    claim = "At epsilon 1/255, APGD-CE leaves fewer images right than PGD does (medians)."
    if not all(column in results.accuracies for column in columns):
        yield Claim("Figure 2", claim, printed, "an attack is missing", UNTESTED)
        return
    pairs = results.accuracies[columns].dropna()
    mean, low, high = mean_intervals((pairs[columns[0]] - pairs[columns[1]]).to_numpy())
    ours = " and ".join(f"{pairs[column].median():.3f}" for column in columns)
    yield Claim(
        "Figure 2",
        claim,
        printed,
        f"{ours}; mean difference {mean:.3f}, 95% interval over {len(pairs)} cells [{low:.3f}, {high:.3f}]",
        HOLDS if low > 0 else FAILS,
    )


def _same_size(results: DatasetResults, space: CellSpace) -> "pd.Series[float]":
    """Return mean adversarial accuracies of the cells with the kernel parameters of the paper's comparison."""
    size = printed_dataset()["same_size"]["kernel_parameters"]
    if ADVERSARIAL not in results.scores:
        return pd.Series(dtype=float)
    values = results.scores[ADVERSARIAL].dropna()
    return values[[space.kernel_parameters(results.spec(index)) == size for index in values.index]]


def _measure_range(results: DatasetResults, space: CellSpace) -> Iterator[Claim]:
    printed = printed_dataset()["same_size"]
    values = _same_size(results, space)
    ours = f"{len(values)} of {printed['cells']} cells evaluated"
    verdict = UNTESTED
    if len(values):
        ours += f": {values.min():.2f} to {values.max():.2f}"
        doubled = values.max() >= printed["highest"] / printed["lowest"] * values.min()
        verdict = HOLDS if doubled else FAILS if len(values) >= printed["cells"] else UNTESTED
    yield Claim(
        "Abstract, section 4.3",
        f"Cells with {printed['kernel_parameters']} kernel parameters differ by a factor of two in mean adversarial "
        "accuracy.",
        f"{printed['lowest']:.2f} to {printed['highest']:.2f}",
        ours,
        verdict,
    )


def _inspect_top_cells(results: DatasetResults, space: CellSpace) -> Iterator[Claim]:
    values = _same_size(results, space)
    n_cells = printed_dataset()["same_size"]["cells"]
    claim = (
        f"Of the {TOP} best of these cells, almost none has a convolution on edge 2 or on edge 4, and none drops or "
        "skips edge 1."
    )
    if len(values) < n_cells:
        yield Claim("Figure 7", claim, "", f"{len(values)} of {n_cells} cells evaluated", UNTESTED)
        return
    cells = [space.parse(results.spec(top.architecture)) for top in results.ranked(values)[:TOP]]
    convolved = [sum(cell[edge] in CONVOLUTIONS for cell in cells) for edge in (1, 3)]
    dropped = sum(cell[0] in DROPPED for cell in cells)
    yield Claim(
        "Figure 7",
        claim,
        "",
        f"a convolution on edge 2: {convolved[0]}, on edge 4: {convolved[1]}; edge 1 dropped or skipped: {dropped}",
        HOLDS if max(convolved) <= FEW and not dropped else FAILS,
    )


def _rank_best_cells(results: DatasetResults) -> Iterator[Claim]:
    for cell in printed_dataset()["best_cells"]:
        claim = f"Architecture #{cell} is the best by clean, mean adversarial or mean corruption accuracy."
        if cell not in results.architectures or results.scores.empty:
            yield Claim("Figure 26", claim, "", "not evaluated", UNTESTED)
            continue
        ranks, is_best, is_near = [], False, False
        for score in results.scores:
            ranked = results.ranked(results.scores[score])
            for top in ranked:
                if top.architecture == cell:
                    low, _ = accuracy_ends(results, ranked[0].accuracy)
                    is_best |= top.rank == 1
                    is_near |= top.accuracy >= low
                    ranks.append(f"{SCORES[str(score)]} rank {top.rank} of {len(ranked)}")
        ours = ", ".join(ranks)
        if is_near and not is_best:
            ours += ", within the 95% interval of the best"
        yield Claim("Figure 26", claim, "", ours, HOLDS if is_best else UNTESTED if is_near else FAILS)


def _search(results: DatasetResults) -> Iterator[Claim]:
    objective = ("fgsm", 1.0)
    others = [column for column in ((key, 1.0) for key in ATTACKS) if column in results.accuracies]
    claim = (
        "The best cell under FGSM at 1/255 is more robust to the attacks, and less accurate on clean images, than the "
        "best cell on clean images."
    )
    if objective not in results.accuracies or CLEAN not in results.scores or len(results.architectures) < TOP:
        yield Claim("Table 1", claim, "", f"{len(results.architectures)} cells evaluated", UNTESTED)
        return
    by_clean = results.ranked(results.scores[CLEAN])[0].architecture
    by_attack = results.ranked(results.column(*objective))[0].architecture
    gains = [results.column(*column)[by_attack] - results.column(*column)[by_clean] for column in others]
    loss = results.column(CLEAN)[by_attack] - results.column(CLEAN)[by_clean]
    shown = ", ".join(f"{key} {gain:+.3f}" for (key, _), gain in zip(others, gains, strict=True))
    yield Claim(
        "Table 1",
        claim,
        "",
        f"#{by_attack} against #{by_clean}: {shown}, clean {loss:+.3f}",
        HOLDS if loss < 0 and all(gain > 0 for gain in gains) else FAILS,
    )


def _change_best_cell(results: DatasetResults, space: CellSpace) -> Iterator[Claim]:
    """Check the claims on changes of one edge on the best clean cell, since the paper does not name the cell."""
    changes = neighbour_changes(results)
    changes = changes[changes["best"] == CLEAN]
    n_neighbours = len(space.edges) * (len(space.operations) - 1)
    for score, claim in (
        (ADVERSARIAL, "Average pooling on edge 3 of the best cell raises its mean adversarial accuracy."),
        (CORRUPTION, "Every change of one edge of the best cell lowers its mean corruption accuracy."),
    ):
        rows = changes[changes["score"] == score]
        if len(rows) < n_neighbours:
            yield Claim("Figure 30", claim, "", f"{len(rows)} of {n_neighbours} neighbours evaluated", UNTESTED)
        elif score == CORRUPTION:
            n_lower = int((rows["change"] < 0).sum())
            verdict = HOLDS if n_lower == n_neighbours else FAILS
            yield Claim("Figure 30", claim, "", f"{n_lower} of {n_neighbours} changes lower it", verdict)
        else:
            pooled = rows[(rows["edge"] == 2) & (rows["operation"] == POOLING)]["change"]
            ours = f"{pooled.iloc[0]:+.3f}" if len(pooled) else "the best cell has pooling there"
            verdict = UNTESTED if pooled.empty else HOLDS if pooled.iloc[0] > 0 else FAILS
            yield Claim("Figure 30", claim, "", ours, verdict)


def _follow_jacobian(correlations: pd.DataFrame) -> Iterator[Claim]:
    claim = "The Jacobian's norm predicts the accuracy under PGD at 1/255 better than at the largest epsilon."
    rows = pd.DataFrame()
    if len(correlations):
        is_norm = correlations["measure"].str.startswith("Jacobian norm") & (correlations["key"] == "pgd")
        rows = correlations[is_norm].dropna(subset="kendall")
    if rows.empty:
        yield Claim("Figure 6", claim, "", "no norm of Jacobians on eight cells or more", UNTESTED)
    for measure, taus in rows.groupby("measure", sort=False) if len(rows) else ():
        by_strength = taus.set_index("strength")["kendall"].sort_index()
        shown = ", ".join(f"{tau:.2f} at {strength:g}" for strength, tau in by_strength.items())
        verdict = UNTESTED
        if 1.0 in by_strength.index and len(by_strength) > 1:
            verdict = HOLDS if abs(by_strength[1.0]) > abs(by_strength.iloc[-1]) else FAILS
        yield Claim("Figure 6", claim, "", f"{measure}, Kendall's tau: {shown} (1/255)", verdict)
