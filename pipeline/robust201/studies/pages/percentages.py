"""Percentages beside printed ones, as the pages on robust features have them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from robust201.studies.markdown import show_number

ERROR_BARS = "are 95 % intervals over seeds, or the range of two seeds; circles are printed numbers"
"""End of a caption: what bands and bars show, and what circles are."""


def how_to_compare(n_seeds: "pd.Series[int]") -> str:
    """Say what printed numbers and ours are, for results of so many seeds each."""
    text = (
        "Printed numbers (theirs) are from single runs, without error bars. Ours are means over training seeds with "
        "Student's 95 % interval (none for a single seed), which covers the seeds, not the choice of test images. "
        "Numbers are percentages; a difference is ours minus theirs."
    )
    if (n_seeds == 2).any():
        text += (
            " Intervals of two seeds are wide and may go beyond 0 and 100; where both seeds happen to agree, they have "
            "no width."
        )
    return text


def show_three(ours: float, theirs: float, show: Callable[..., str]) -> str:
    """Write ours / theirs / difference in one cell."""
    return f"{show(ours)} / {show(theirs)} / {show(ours - theirs, signed=True)}"


def show_percent(value: float, *, signed: bool = False) -> str:
    """Write a fraction as a percentage with two decimals; a dash for NaN."""
    return show_number(100 * value, 2, signed=signed)


def show_percent_interval(row: Mapping[Any, Any]) -> str:
    """Write `low` and `high` of a row; a dash where there is no interval."""
    if math.isnan(row["low"]):
        return "–"
    return f"[{show_percent(row['low'])}, {show_percent(row['high'])}]"


def beside_printed(row: Mapping[Any, Any]) -> list[str]:
    """Write `mean` with its interval, `printed` and `difference` of a row."""
    return [
        show_percent(row["mean"]),
        show_percent_interval(row),
        show_percent(row["printed"]),
        show_percent(row["difference"], signed=True),
    ]
