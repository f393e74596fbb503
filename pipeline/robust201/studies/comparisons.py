"""Comparisons of groups of networks in the study of image distributions: the published ones recomputed, and our own.

A group consists of the networks of one architecture, trained on one set of images with one set of labels. Seven pairs
of groups are compared for each of three networks at six epochs: 126 tests, without a correction in the paper.

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
"""Range of p-values in which rounding of the published numbers might change the decision."""

_PUBLISHED = Path(__file__).parent / "published"


class Family(NamedTuple):
    """A pair of groups that is compared for every network and epoch.

    Attributes:
        experiment: the experiment's name in docs/image-distribution.md.
        mark: letter of the significance marker in `published/image_distribution.json`.
        first: group that the claim calls more robust.
        second: the other group.
        either: whether the marker may also be on the second group, if that is more robust.
    """

    experiment: str
    mark: str
    first: str
    second: str
    either: bool = False

    @property
    def claim(self) -> str:
        sign = "against" if self.either else ">"
        return f"{GROUPS[self.first]} {sign} {GROUPS[self.second]}"


GROUPS: Mapping[str, str] = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_to_mnist": "CIFAR-10 → MNIST",
    "mnist_to_cifar10": "MNIST → CIFAR-10",
    "fusion_digit": "fusion, digit",
    "fusion_object": "fusion, object",
}
"""Labels of the groups, in the order of the published tables; the arrow means pretraining on the first dataset."""

FAMILIES = (
    Family("E1", "s", "mnist", "cifar10"),
    Family("E2a", "t", "fusion_digit", "fusion_object"),
    Family("E2b", "z", "mnist", "fusion_digit"),
    Family("E2b", "z", "cifar10", "fusion_object"),
    Family("E3a", "d", "cifar10_to_mnist", "mnist", either=True),
    Family("E3b", "d", "mnist_to_cifar10", "cifar10", either=True),
    Family("E3c", "b", "cifar10_to_mnist", "mnist_to_cifar10"),
)


@cache
def _printed() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_PUBLISHED / "image_distribution.json").read_text())
    return content


def printed_tables() -> pd.DataFrame:
    """Return tables 1 to 18 as published.

    Returns:
        One row per cell: `table`, `network`, `group`, `epoch`, `mean` and `sd` of R (NaN if not published), `n`
        networks, `marks`, and `certain` (whether the number's epoch is certain).
    """
    content = _printed()
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
    summaries: pd.DataFrame, values: Mapping[tuple[str, str, int], "pd.Series[float]"] | None = None
) -> pd.DataFrame:
    """Perform every comparison that the summaries allow.

    Args:
        summaries: one row per `network`, `group` and `epoch` with `mean`, `sd` (ddof 1) and `n`.
        values: the networks' numbers by (network, group, epoch), indexed by seed, for tests paired by seed.

    Returns:
        One row per family, network and epoch with both groups: `experiment`, `claim`, `first`, `second`, `network`,
        `epoch`, `mean_first`, `mean_second`, `difference`, `t`, `degrees`, `p`, `p_holm` (over all rows, where a row
        without a test counts as p = 1), `g`, `g_low`, `g_high`, `higher` (``first``, ``second`` or ``""`` at level 0.05
        without correction) and `higher_holm`. With `values`, also `p_paired`, `p_paired_holm` and `n_pairs`.
    """
    indexed = summaries.set_index(["network", "group", "epoch"])[["mean", "sd", "n"]]
    rows = [
        {"experiment": family.experiment, "claim": family.claim, "first": family.first}
        | {"second": family.second, "network": network, "epoch": epoch}
        for family in FAMILIES
        for network, group, epoch in indexed.index
        if group == family.first and (network, family.second, epoch) in indexed.index
    ]
    frame = pd.DataFrame(rows, columns=["experiment", "claim", "first", "second", "network", "epoch"])
    sides = [
        make_groups(*indexed.loc[list(zip(frame["network"], frame[side], frame["epoch"], strict=True))].to_numpy().T)
        if len(frame)
        else make_groups([], [], [])
        for side in ("first", "second")
    ]
    test, effect = welch_test(sides[0], sides[1]), hedges_g(sides[0], sides[1])
    frame["mean_first"], frame["mean_second"] = sides[0].mean, sides[1].mean
    frame["difference"], frame["t"], frame["degrees"] = test.difference, test.statistic, test.degrees
    frame["p"], frame["p_holm"] = test.p_value, _holm(test.p_value)
    frame["g"], frame["g_low"], frame["g_high"] = effect
    frame["higher"] = _higher(frame["difference"], frame["p"])
    frame["higher_holm"] = _higher(frame["difference"], frame["p_holm"])
    if values is not None:
        pairs = [
            pd.concat([values[row.network, group, row.epoch] for group in (row.first, row.second)], axis=1).to_numpy()
            for row in rows_of(frame)
        ]
        paired_p_values = [paired_test(pair[:, 0], pair[:, 1]).p_value for pair in pairs]
        frame["n_pairs"] = [int((~np.isnan(pair).any(axis=1)).sum()) for pair in pairs]
        frame["p_paired"] = np.array(paired_p_values, np.float64)
        frame["p_paired_holm"] = _holm(frame["p_paired"].to_numpy())
    return frame


def _holm(p_values: Any) -> Any:
    missing = np.isnan(p_values)
    return np.where(missing, np.nan, holm_adjust(np.where(missing, 1.0, p_values)))


def _higher(difference: "pd.Series[float]", p_values: "pd.Series[float]") -> list[str]:
    return [
        "" if np.isnan(p) or p >= LEVEL else "first" if change > 0 else "second"
        for change, p in zip(difference, p_values, strict=True)
    ]


@dataclass(frozen=True)
class PublishedCheck:
    """Published significance markers, compared with those that follow from the published means and deviations.

    Attributes:
        comparisons: `compare_groups` of the published tables, with `certain`, `printed` (the group with the published
            marker, or ``""``), `marked` (the group with the marker by our test) and `agrees`.
        claims: one row per claim and network, with numbers of epochs: with a published marker (`printed`), of these
            with numbers to test it (`tested`), significant when recomputed (`recomputed`) and after Holm's correction
            (`after_holm`); and `lost`, the epochs that the correction removes.
    """

    comparisons: pd.DataFrame
    claims: pd.DataFrame

    @property
    def certain(self) -> pd.DataFrame:
        """Comparisons of numbers whose epochs are certain."""
        return self.comparisons[self.comparisons["certain"]]

    @property
    def exceptions(self) -> pd.DataFrame:
        """Certain comparisons whose marker does not follow from the published numbers."""
        return self.certain[~self.certain["agrees"]]

    @property
    def borderline(self) -> pd.DataFrame:
        """Borderline comparisons, ordered by p."""
        is_borderline = self.comparisons["p"].between(*BORDERLINE)
        return self.comparisons[is_borderline].sort_values("p", kind="stable")

    @property
    def marks(self) -> pd.DataFrame:
        """Comparisons with a published marker and numbers to test it."""
        return self.comparisons[(self.comparisons["printed"] != "") & self.comparisons["p"].notna()]

    @property
    def left(self) -> pd.DataFrame:
        """The comparisons in `marks` that remain significant after Holm's correction."""
        return self.marks[self.marks["printed"] == self.marks["higher_holm"]]

    def to_payload(self) -> dict[str, Any]:
        return {
            "source": _printed()["source"],
            "level": LEVEL,
            "comparisons_checked": len(self.certain),
            "marks_that_follow": int(self.certain["agrees"].sum()),
            "marks_with_numbers": len(self.marks),
            "marks_after_holm": len(self.left),
            "exceptions": records(self.exceptions),
            "borderline": records(self.borderline),
            "claims": records(self.claims),
            "comparisons": records(self.comparisons),
        }


def check_published_marks() -> PublishedCheck:
    """Recompute the markers of the published tables from their means, standard deviations and 20 networks per group."""
    tables = printed_tables()
    frame = compare_groups(tables)
    cells = {(row.network, row.group, row.epoch): row for row in rows_of(tables)}
    families = {(family.first, family.second): family for family in FAMILIES}
    certain: list[bool] = []
    printed: list[str] = []
    marked: list[str] = []
    for row in rows_of(frame):
        family = families[row.first, row.second]
        first, second = (cells[row.network, group, row.epoch] for group in (row.first, row.second))
        certain.append(bool(first.certain and second.certain))
        second_side = "second" if family.either and family.mark in second.marks else ""
        printed.append("first" if family.mark in first.marks else second_side)
        marked.append(row.higher if family.either or row.higher == "first" else "")
    frame = frame.assign(certain=certain, printed=printed, marked=marked)
    frame["agrees"] = frame["printed"] == frame["marked"]
    return PublishedCheck(frame, _claims(frame))


def _claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Count each family's and network's published markers, and those that remain after correction."""
    rows = []
    for (first, second, network), group in frame.groupby(["first", "second", "network"], sort=False):
        for side in ("first", "second"):
            marked_rows = group[group["printed"] == side]
            if not len(marked_rows):
                continue
            winner, other = (first, second) if side == "first" else (second, first)
            is_tested = marked_rows["p"].notna()
            left = marked_rows["higher_holm"] == side
            rows.append(
                {
                    "experiment": group["experiment"].iloc[0],
                    "claim": f"{GROUPS[str(winner)]} > {GROUPS[str(other)]}",
                    "network": network,
                    "printed": len(marked_rows),
                    "tested": int(is_tested.sum()),
                    "recomputed": int((marked_rows["higher"] == side).sum()),
                    "after_holm": int(left.sum()),
                    "lost": ", ".join(str(epoch) for epoch in marked_rows["epoch"][is_tested & ~left]),
                }
            )
    return pd.DataFrame(rows)


def rows_of(frame: pd.DataFrame) -> Iterable[Any]:
    """Iterate over a table's rows with their columns as attributes."""
    return frame.itertuples(index=False)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows for JSON, with plain numbers, and null for NaN and infinity."""
    rows: list[dict[Any, Any]] = frame.astype(object).to_dict("records")
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
