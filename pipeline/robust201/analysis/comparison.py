"""The result of `robust201.compare`: paired differences between networks on the same images."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from robust201.analysis.evaluation import Evaluation, different_fields
from robust201.analysis.labels import key_label, strength_label
from robust201.analysis.tables import Cell, format_percent, format_range, latex_table, text_table
from robust201.core.errors import ConfigError
from robust201.statistics.outcomes import pack_outcomes
from robust201.statistics.significance import holm_adjust, paired_differences
from robust201.tasks.strengths import format_strength, format_term

LEVEL = 0.05
"""Adjusted p-value below which a difference counts as significant."""

_TEST = f"McNemar's exact test, Holm's correction, level {LEVEL:g}"

_COLUMNS = ("first", "second", "key", "strength", "unit", "first_accuracy", "second_accuracy", "difference", "low")
_TEST_COLUMNS = ("high", "only_first", "only_second", "p_value", "adjusted_p_value", "n_images")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Result of `robust201.compare`, whose documentation describes the table.

    Attributes:
        table: one row per pair of networks, key and strength.
        notices: warnings that a network's accuracies are doubtful, by network.
        missing: for each network, the evaluations that it lacks and another network has; empty if keys were requested.
    """

    table: pd.DataFrame
    notices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """One sentence per pair of networks: which one is significantly more accurate, how often, and by how much.

        Notices and missing evaluations come first.
        """
        pairs = self.table.groupby(["first", "second"], sort=False)
        return "\n".join(
            [
                notice if notice.startswith(f"{name} ") else f"{name}: {notice}"
                for name, notices in self.notices.items()
                for notice in notices
            ]
            + [f"{name} was not evaluated under {', '.join(terms)}." for name, terms in self.missing.items()]
            + [_describe_pair(str(first), str(second), rows) for (first, second), rows in pairs]
        )

    def latex(self) -> str:
        """Return a LaTeX table of accuracies in percent; the best accuracy, and those tied with it, are bold.

        Networks with doubtful accuracies are not bold, and are marked in the header.
        """
        networks = list(dict.fromkeys([*self.table["first"], *self.table["second"]]))
        groups: Any = self.table.groupby(["key", "strength", "unit"], sort=False)
        rows: list[list[str | Cell]] = [
            [key_label(key), strength_label(strength, unit), *self._accuracy_cells(pairs, networks)]
            for (key, strength, unit), pairs in groups
        ]
        headings = [f"{name} (doubtful)" if name in self.notices else name for name in networks]
        caption = (
            f"Accuracy in percent on {format_range(self.table['n_images'])} images. Bold: best, or not significantly "
            f"different from the best ({_TEST})."
        )
        return latex_table(["Key", "Strength", *headings], rows, n_left=2, caption=caption)

    def _accuracy_cells(self, pairs: pd.DataFrame, networks: Sequence[str]) -> list[Cell]:
        accuracies = dict(zip(pairs["first"], pairs["first_accuracy"], strict=True))
        accuracies |= dict(zip(pairs["second"], pairs["second_accuracy"], strict=True))
        best = max(accuracies, key=lambda name: accuracies[name])
        ties = pairs[((pairs["first"] == best) | (pairs["second"] == best)) & (pairs["adjusted_p_value"] >= LEVEL)]
        bold = {best, *ties["first"], *ties["second"]} - {*self.notices}
        return [Cell(format_percent(accuracies.get(name, math.nan)), name in bold) for name in networks]

    def __str__(self) -> str:
        """Return the summary, and the accuracies and differences as text."""
        rows = [
            [
                row["first"],
                row["second"],
                row["key"],
                format_strength(row["strength"], row["unit"]),
                f"{format_percent(row['first_accuracy'])}, {format_percent(row['second_accuracy'])}",
                format_percent(row["difference"], row["low"], row["high"], sign="+"),
                f"{row['adjusted_p_value']:.2g}",
            ]
            for row in self.table.to_dict("records")
        ]
        header = ["first", "second", "key", "strength", "accuracies, %", "difference", "adjusted p"]
        return f"{self.summary}\n{text_table(header, rows, n_left=4)}"

    __repr__ = __str__


def compare_evaluations(evaluations: Mapping[str, Evaluation], keys: Sequence[str] | None = None) -> Comparison:
    """Compare each pair of evaluations, on the same images and under their common keys and strengths.

    Args:
        evaluations: two or more evaluations, by network name.
        keys: keys, or keys at a strength such as ``pgd:8/255``, to compare; None compares all.

    Raises:
        ConfigError: the images differ, or two evaluations have no key and strength in common, or use different
            parameters for a key.
    """
    check_same_images(evaluations)
    tables = [_compare_pair(first, second, evaluations, keys) for first, second in combinations(evaluations, 2)]
    rows = pd.concat(tables, ignore_index=True)
    rows["adjusted_p_value"] = holm_adjust(rows["p_value"])
    notices = {name: evaluation.notices for name, evaluation in evaluations.items() if evaluation.notices}
    return Comparison(rows[[*_COLUMNS, *_TEST_COLUMNS]], notices, _find_missing(evaluations) if keys is None else {})


def _find_missing(evaluations: Mapping[str, Evaluation]) -> dict[str, list[str]]:
    """Return the evaluations, such as ``pgd:8/255``, that each network lacks and another network has."""
    terms = {
        (key, strength): format_term(key, strength, evaluation.unit_of(key))
        for evaluation in evaluations.values()
        for key, strength in evaluation.evaluations
    }
    missing = {
        name: [term for key_and_strength, term in terms.items() if key_and_strength not in evaluation.evaluations]
        for name, evaluation in evaluations.items()
    }
    return {name: missing_terms for name, missing_terms in missing.items() if missing_terms}


def check_same_images(evaluations: Mapping[str, Evaluation]) -> None:
    """Check that all evaluations have the same images and labels."""
    digests = {evaluation.images_sha256 for evaluation in evaluations.values()}
    if len(digests) > 1:
        counts = ", ".join(f"{name} on {len(evaluation.positions):,}" for name, evaluation in evaluations.items())
        raise ConfigError(
            f"Comparing networks failed for {', '.join(evaluations)}: they were evaluated on {len(digests)} different "
            f"sets of images and labels ({counts} images). Evaluate all networks on the same images."
        )


def check_protocols(first: str, second: str, evaluations: Mapping[str, Evaluation], keys: Iterable[str]) -> None:
    """Check that two evaluations have the same protocols for some keys."""
    for key in keys:
        if fields := different_fields(*(evaluations[network].protocols[key] for network in (first, second))):
            raise ConfigError(
                f"Comparing networks failed for {first} and {second}: {key} has different parameters "
                f"({', '.join(fields)}). Evaluate both with the same parameters."
            )


def _compare_pair(
    first: str, second: str, evaluations: Mapping[str, Evaluation], requested: Sequence[str] | None
) -> pd.DataFrame:
    first_outcomes, second_outcomes = evaluations[first].evaluations, evaluations[second].evaluations
    pairs = list(first_outcomes) if requested is None else evaluations[first].find(requested)
    common_pairs = [pair for pair in pairs if pair in second_outcomes]
    if not common_pairs:
        raise ConfigError(
            f"Comparing networks failed for {first} and {second}: they have no evaluated key and strength in common. "
            "Evaluate both with the same keys."
        )
    keys, strengths = zip(*common_pairs, strict=True)
    check_protocols(first, second, evaluations, dict.fromkeys(keys))
    n_images = len(evaluations[first].positions)
    outcomes = [np.stack([by_pair[pair] for pair in common_pairs]) for by_pair in (first_outcomes, second_outcomes)]
    differences = paired_differences(pack_outcomes(outcomes[0]), pack_outcomes(outcomes[1]), n_images)
    return pd.DataFrame(
        {
            "first": first,
            "second": second,
            "key": keys,
            "strength": strengths,
            "unit": [evaluations[first].unit_of(key) for key in keys],
            "first_accuracy": outcomes[0].mean(axis=1),
            "second_accuracy": outcomes[1].mean(axis=1),
            **differences._asdict(),
            "n_images": n_images,
        }
    )


def _describe_pair(first: str, second: str, rows: pd.DataFrame) -> str:
    is_significant = rows["adjusted_p_value"] < LEVEL
    evaluations = f"{len(rows)} evaluation{'s' if len(rows) > 1 else ''}"
    basis = f"({format_range(rows['n_images'])} images, {_TEST})"
    findings = []
    for network, better in (
        (first, rows[is_significant & (rows["difference"] < 0)]),
        (second, rows[is_significant & (rows["difference"] > 0)]),
    ):
        if len(better):
            largest = _describe_difference(better.iloc[int(better["difference"].abs().argmax())])
            findings.append(
                f"{network} is significantly more accurate in {len(better)} of {evaluations}, with the largest "
                f"difference for {largest}"
            )
    if findings:
        return f"{'; '.join(findings)} {basis}."
    is_same = not (rows["only_first"] + rows["only_second"]).any()
    hint = " They have the same outcome on every image, as if they were the same network." if is_same else ""
    any_of = "any of " if len(rows) > 1 else ""
    return f"{first} and {second} do not differ significantly in {any_of}{evaluations} {basis}.{hint}"


def _describe_difference(row: "pd.Series[Any]") -> str:
    difference, low, high = (float(row[name]) for name in ("difference", "low", "high"))
    ends = (low, high) if difference > 0 else (-high, -low)
    points = format_percent(abs(difference), *ends, unit=" points")
    return f"{format_term(row['key'], float(row['strength']), row['unit'])} ({points})"
