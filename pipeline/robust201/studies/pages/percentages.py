"""Percentages beside printed ones, as the pages on robust features have them."""

from collections.abc import Mapping
from typing import Any

from robust201.studies.markdown import show_number

SINGLE_RUNS = (
    "Printed numbers (theirs) are from single runs, without error bars. Ours are means over seeds with Student's 95 % "
    "interval (none for a single seed). Numbers are percentages."
)


def show_percent(value: float, *, signed: bool = False) -> str:
    """Write a fraction as a percentage with two decimals; a dash for NaN."""
    return show_number(100 * value, 2, signed=signed)


def show_percent_interval(row: Mapping[Any, Any]) -> str:
    """Write `low` and `high` of a row."""
    return f"[{show_percent(row['low'])}, {show_percent(row['high'])}]"


def beside_printed(row: Mapping[Any, Any]) -> list[str]:
    """Write `mean` with its interval, `printed` and `difference` of a row."""
    return [
        show_percent(row["mean"]),
        show_percent_interval(row),
        show_percent(row["printed"]),
        show_percent(row["difference"], signed=True),
    ]
