"""The generated sections of a paper's page: tables and sentences between comments such as `<!-- claims -->`."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from jobs.papers.verdicts import FAILS, HOLDS, UNDECIDED, Claim


def fill(page: Path, texts: Mapping[str, str]) -> None:
    """Replace the text between `<!-- NAME -->` and `<!-- end -->` for each generated section of a page.

    Raises:
        ValueError: the page does not have exactly these sections.
    """
    text = page.read_text()
    pattern = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->\n", re.S)
    if {*pattern.findall(text)} != {*texts}:
        raise ValueError(f"Filling {page} failed: it has the sections {pattern.findall(text)}, expected {[*texts]}.")
    page.write_text(
        pattern.sub(
            lambda match: f"<!-- {match[1]} -->\n\n{texts[match[1]].strip()}\n\n<!-- end -->\n",
            text,
        )
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Return a Markdown table; columns after the first `text_columns` are right-aligned."""
    alignments = ["---"] * text_columns + ["--:"] * (len(columns) - text_columns)
    lines = (columns, alignments, *rows)
    return "".join("| " + " | ".join(entry.replace("|", "\\|") for entry in line) + " |\n" for line in lines)


def number(value: float, decimals: int = 3, *, signed: bool = False) -> str:
    """Format a number, without a minus sign for zero; NaN becomes a dash."""
    return "–" if math.isnan(value) else f"{value:{'+' if signed else ''}z.{decimals}f}"


def p_value(value: float) -> str:
    return "–" if math.isnan(value) else "< 1e-12" if value < 1e-12 else f"{value:.2g}"


def claims_table(claims: Sequence[Claim]) -> str:
    """Return a table of claims, with the number of claims of each verdict above it."""
    counts = Counter(claim.verdict for claim in claims)
    tally = ", ".join(f"{verdict} ({counts[verdict]})" for verdict in (HOLDS, FAILS, UNDECIDED))
    sentence = f"Verdicts on {len(claims)} claims: {tally}."
    columns = ["claim", "location in the paper", "published", "ours", "data", "verdict", "needed to decide"]
    return f"{sentence}\n\n{table(columns, [[entry or '–' for entry in claim] for claim in claims], len(columns))}"


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as CSV, with twelve significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False, float_format="%.12g", lineterminator="\n")
