"""Comparisons of groups of networks in the study of image distributions, for published numbers and for our own.

A group consists of the networks of one architecture, trained on one set of images with one set of labels. Seven pairs
of groups are compared for each of three networks at six epochs: 126 tests. The paper does not correct for their number.

Source: Kunhardt, Deza and Poggio, "The Effects of Image Distribution and Task on Adversarial Robustness", CBMM memo
116 (2021), tables 1 to 18.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.statistics.groups import hedges_g, make_groups, paired_test, welch_test
from robust201.statistics.significance import holm_adjust

LEVEL = 0.05
"""Significance level of the paper's tests."""

BORDERLINE = (0.01, 0.09)
"""Range of p-values in which the rounding of published numbers might change a decision."""

_PUBLISHED = Path(__file__).parent / "published"


class Comparison(NamedTuple):
    """A pair of groups that are compared for every network and epoch.

    Attributes:
        experiment: the experiment's name in docs/image-distribution.md.
        marker: letter of the significance marker in `published/image_distribution.json`.
        first: group that is more robust according to the claim, if the claim has a direction.
        second: the other group.
        is_two_sided: whether the second group gets the marker if that group is the more robust one.
    """

    experiment: str
    marker: str
    first: str
    second: str
    is_two_sided: bool = False

    @property
    def claim(self) -> str:
        """The claim as text, such as ``MNIST > CIFAR-10``."""
        relation = "against" if self.is_two_sided else ">"
        return f"{GROUPS[self.first]} {relation} {GROUPS[self.second]}"


GROUPS: Mapping[str, str] = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_to_mnist": "CIFAR-10 → MNIST",
    "mnist_to_cifar10": "MNIST → CIFAR-10",
    "fusion_digit": "fusion, digit",
    "fusion_object": "fusion, object",
}
"""Labels of the groups, in the order of the published tables. The arrow means pretraining on the dataset before it."""

COMPARISONS = (
    Comparison("E1", "s", "mnist", "cifar10"),
    Comparison("E2a", "t", "fusion_digit", "fusion_object"),
    Comparison("E2b", "z", "mnist", "fusion_digit"),
    Comparison("E2b", "z", "cifar10", "fusion_object"),
    Comparison("E3a", "d", "cifar10_to_mnist", "mnist", is_two_sided=True),
    Comparison("E3b", "d", "mnist_to_cifar10", "cifar10", is_two_sided=True),
    Comparison("E3c", "b", "cifar10_to_mnist", "mnist_to_cifar10"),
)


@cache
def _published_content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_PUBLISHED / "image_distribution.json").read_text())
    return content


def published_tables() -> pd.DataFrame:
    """Return tables 1 to 18 as published.

    Returns:
        One row per table cell: `table`, `network`, `group`, `epoch`, `mean` and `sd` of R (NaN if not published), `n`
        networks, `marks` (letters of its markers), and `certain` (whether the epoch of the number is certain).
    """
    content = _published_content()
    rows = [
        {"table": table["table"], "network": table["network"], "group": table["group"], "n": content["models"]}
        | {"certain": True}
        | cell
        for table in content["tables"]
        for cell in table["cells"]
    ]
    frame = pd.DataFrame(rows).astype({"mean": float, "sd": float})
    return frame[["table", "network", "group", "epoch", "mean", "sd", "n", "marks", "certain"]]


def compare_groups(
    summaries: pd.DataFrame, r_by_group: Mapping[tuple[str, str, int], "pd.Series[float]"] | None = None
) -> pd.DataFrame:
    """Perform all comparisons whose two groups are in the summaries.

    Args:
        summaries: one row per `network`, `group` and `epoch` with `mean`, `sd` (ddof 1) and `n`.
        r_by_group: R of each trained network by (network, group, epoch), indexed by seed, for tests that pair networks
            by seed.

    Returns:
        One row per comparison, network and epoch with both groups: `experiment`, `claim`, `first`, `second`, `network`,
        `epoch`, `mean_first`, `mean_second`, `difference`, `t`, `degrees` (of freedom), `p`, `p_holm` (over all rows;
        a row without a test counts as p = 1), `g` (Hedges' g) with its interval `g_low` to `g_high`, `higher` (the
        side, ``first`` or ``second``, with the significantly higher mean, or ``""``; level 0.05 without correction) and
        `higher_holm` (the same after correction). With `r_by_group`, also `p_paired`, `p_paired_holm` and `n_pairs`.
    """
    indexed = summaries.set_index(["network", "group", "epoch"])[["mean", "sd", "n"]]
    rows = [
        {"experiment": comparison.experiment, "claim": comparison.claim, "first": comparison.first}
        | {"second": comparison.second, "network": network, "epoch": epoch}
        for comparison in COMPARISONS
        for network, group, epoch in indexed.index
        if group == comparison.first and (network, comparison.second, epoch) in indexed.index
    ]
    frame = pd.DataFrame(rows, columns=["experiment", "claim", "first", "second", "network", "epoch"])
    groups = [
        make_groups(*indexed.loc[list(zip(frame["network"], frame[side], frame["epoch"], strict=True))].to_numpy().T)
        if len(frame)
        else make_groups([], [], [])
        for side in ("first", "second")
    ]
    test, effect = welch_test(groups[0], groups[1]), hedges_g(groups[0], groups[1])
    frame["mean_first"], frame["mean_second"] = groups[0].mean, groups[1].mean
    frame["difference"], frame["t"], frame["degrees"] = test.difference, test.statistic, test.df
    frame["p"], frame["p_holm"] = test.p_value, _adjust_p_values(test.p_value)
    frame["g"], frame["g_low"], frame["g_high"] = effect
    frame["higher"] = _find_more_robust_sides(frame["difference"], frame["p"])
    frame["higher_holm"] = _find_more_robust_sides(frame["difference"], frame["p_holm"])
    if r_by_group is not None:
        pairs = [
            pd.concat(
                [r_by_group[row.network, group, row.epoch] for group in (row.first, row.second)], axis=1
            ).to_numpy()
            for row in iterate_rows(frame)
        ]
        paired_p_values = [paired_test(pair[:, 0], pair[:, 1]).p_value for pair in pairs]
        frame["n_pairs"] = [int((~np.isnan(pair).any(axis=1)).sum()) for pair in pairs]
        frame["p_paired"] = np.array(paired_p_values, np.float64)
        frame["p_paired_holm"] = _adjust_p_values(frame["p_paired"].to_numpy())
    return frame


def _adjust_p_values(p_values: Any) -> Any:
    """Return p-values after Holm's correction; NaN counts as 1 in the correction, and stays NaN."""
    is_missing = np.isnan(p_values)
    return np.where(is_missing, np.nan, holm_adjust(np.where(is_missing, 1.0, p_values)))


def _find_more_robust_sides(differences: "pd.Series[float]", p_values: "pd.Series[float]") -> list[str]:
    """Return the side with the significantly higher mean in each row, or ``""`` if there is none."""
    return [
        "" if np.isnan(p) or p >= LEVEL else "first" if mean_difference > 0 else "second"
        for mean_difference, p in zip(differences, p_values, strict=True)
    ]


@dataclass(frozen=True)
class PublishedCheck:
    """Published significance markers, compared with markers recomputed from the published means and deviations.

    Attributes:
        comparisons: `compare_groups` of the published tables, and four more columns: `certain`, whether the epochs of
            the numbers are certain; `printed`, the side with the published marker, or ``""``; `marked`, the side that
            should have the marker according to our test; and `agrees`, whether `printed` and `marked` are equal.
        claims: one row per claim and network, with numbers of epochs: `printed` (with a published marker), and among
            these `tested` (with published numbers), `recomputed` (significant when recomputed) and `after_holm`
            (significant after Holm's correction). `lost` lists the epochs that are no longer significant after it.
    """

    comparisons: pd.DataFrame
    claims: pd.DataFrame

    @property
    def certain_comparisons(self) -> pd.DataFrame:
        """Comparisons of numbers whose epochs are certain."""
        return self.comparisons[self.comparisons["certain"]]

    @property
    def exceptions(self) -> pd.DataFrame:
        """Certain comparisons whose published marker disagrees with the test of the published numbers."""
        return self.certain_comparisons[~self.certain_comparisons["agrees"]]

    @property
    def borderline(self) -> pd.DataFrame:
        """Comparisons whose p-values are in `BORDERLINE`, ordered by p."""
        is_borderline = self.comparisons["p"].between(*BORDERLINE)
        return self.comparisons[is_borderline].sort_values("p", kind="stable")

    @property
    def marked_comparisons(self) -> pd.DataFrame:
        """Comparisons with a published marker and published numbers."""
        return self.comparisons[(self.comparisons["printed"] != "") & self.comparisons["p"].notna()]

    @property
    def significant_after_holm(self) -> pd.DataFrame:
        """The comparisons in `marked_comparisons` that remain significant after Holm's correction."""
        return self.marked_comparisons[self.marked_comparisons["printed"] == self.marked_comparisons["higher_holm"]]

    def to_payload(self) -> dict[str, Any]:
        return {
            "source": _published_content()["source"],
            "level": LEVEL,
            "comparisons_checked": len(self.certain_comparisons),
            "marks_that_follow": int(self.certain_comparisons["agrees"].sum()),
            "marks_with_numbers": len(self.marked_comparisons),
            "marks_after_holm": len(self.significant_after_holm),
            "exceptions": to_json_rows(self.exceptions),
            "borderline": to_json_rows(self.borderline),
            "claims": to_json_rows(self.claims),
            "comparisons": to_json_rows(self.comparisons),
        }


def check_published_marks() -> PublishedCheck:
    """Recompute the markers of the published tables from means and standard deviations of 20 networks per group."""
    tables = published_tables()
    frame = compare_groups(tables)
    cells = {(row.network, row.group, row.epoch): row for row in iterate_rows(tables)}
    comparisons_by_groups = {(comparison.first, comparison.second): comparison for comparison in COMPARISONS}
    are_epochs_certain: list[bool] = []
    published_sides: list[str] = []
    computed_sides: list[str] = []
    for row in iterate_rows(frame):
        comparison = comparisons_by_groups[row.first, row.second]
        first, second = (cells[row.network, group, row.epoch] for group in (row.first, row.second))
        are_epochs_certain.append(bool(first.certain and second.certain))
        second_side = "second" if comparison.is_two_sided and comparison.marker in second.marks else ""
        published_sides.append("first" if comparison.marker in first.marks else second_side)
        computed_sides.append(row.higher if comparison.is_two_sided or row.higher == "first" else "")
    frame = frame.assign(certain=are_epochs_certain, printed=published_sides, marked=computed_sides)
    frame["agrees"] = frame["printed"] == frame["marked"]
    return PublishedCheck(frame, _count_markers(frame))


def _count_markers(frame: pd.DataFrame) -> pd.DataFrame:
    """Count the published markers of each comparison and network, and the markers that remain after correction."""
    rows = []
    for (first, second, network), comparisons in frame.groupby(["first", "second", "network"], sort=False):
        for side in ("first", "second"):
            marked_rows = comparisons[comparisons["printed"] == side]
            if not len(marked_rows):
                continue
            more_robust, less_robust = (first, second) if side == "first" else (second, first)
            is_tested = marked_rows["p"].notna()
            is_significant_after_holm = marked_rows["higher_holm"] == side
            rows.append(
                {
                    "experiment": comparisons["experiment"].iloc[0],
                    "claim": f"{GROUPS[str(more_robust)]} > {GROUPS[str(less_robust)]}",
                    "network": network,
                    "printed": len(marked_rows),
                    "tested": int(is_tested.sum()),
                    "recomputed": int((marked_rows["higher"] == side).sum()),
                    "after_holm": int(is_significant_after_holm.sum()),
                    "lost": ", ".join(
                        str(epoch) for epoch in marked_rows["epoch"][is_tested & ~is_significant_after_holm]
                    ),
                }
            )
    return pd.DataFrame(rows)


def iterate_rows(frame: pd.DataFrame) -> Iterable[Any]:
    """Iterate over a table's rows; each row has the columns as attributes."""
    return frame.itertuples(index=False)


def to_json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert a table's rows to values for JSON: Python numbers instead of NumPy's, and None for NaN and infinity."""
    rows: list[dict[Any, Any]] = frame.astype(object).to_dict("records")
    return [{str(name): _to_json_value(value) for name, value in row.items()} for row in rows]


def _to_json_value(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
