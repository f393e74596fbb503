"""Numbers with intervals, and tables of them as text and as LaTeX (which needs no packages)."""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def format_percent(
    fraction: float, low: float = math.nan, high: float = math.nan, *, decimals: int = 1, unit: str = "", sign: str = ""
) -> str:
    """Return a fraction in percent with its interval, such as ``95.1 [94.1, 96.0]``.

    Args:
        fraction: the fraction, or a difference of fractions.
        low: lower end of the interval; NaN if it is unknown.
        high: upper end of the interval.
        decimals: number of decimals.
        unit: text after the number, such as ``%``.
        sign: ``+`` to write the sign of positive numbers.
    """
    return format_estimate(100 * fraction, 100 * low, 100 * high, decimals=decimals, unit=unit, sign=sign)


def format_estimate(
    number: float, low: float = math.nan, high: float = math.nan, *, decimals: int = 2, unit: str = "", sign: str = ""
) -> str:
    """Return a number with its interval, such as ``0.52 [0.40, 0.61]`` (see `format_percent`); ``-`` for NaN."""
    if math.isnan(number):
        return "-"
    text, *ends = (f"{value:{sign}z.{decimals}f}" for value in (number, low, high))
    return text + unit + ("" if math.isnan(low) else f" [{', '.join(ends)}]")


def format_range(counts: "pd.Series[Any]") -> str:
    """Return the smallest and the largest count, such as ``40 to 80``; if they are equal, return one number."""
    return " to ".join(f"{count:,.0f}" for count in sorted({counts.min(), counts.max()}))


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: the text, such as a number with its interval.
        is_best: whether the number is the best of its row or column, or tied with it.
    """

    text: str
    is_best: bool = False


def text_table(header: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, n_left: int) -> str:
    """Return a table as text, with an asterisk before the best numbers.

    Args:
        header: headings of the columns.
        rows: cells.
        n_left: number of columns that are aligned left; the others are aligned right.
    """
    lines = [list(header), *([_mark_best(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if position < n_left else text.rjust(width)
            for position, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def latex_table(header: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, n_left: int, caption: str) -> str:
    """Return a table as a LaTeX float with a caption; the best numbers are bold (see `text_table`)."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(caption)}}}",
        rf"\begin{{tabular}}{{{'l' * n_left}{'r' * (len(header) - n_left)}}}",
        r"\hline",
        _latex_line(list(map(_escape, header))),
        r"\hline",
        *(_latex_line(list(map(_latex_cell, row))) for row in rows),
        r"\hline",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _mark_best(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else f"{'*' if cell.is_best else ''}{cell.text}"


def _latex_cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return _escape(cell)
    number, _, interval = cell.text.partition(" ")
    text = rf"\textbf{{{_escape(number)}}}" if cell.is_best else _escape(number)
    return rf"{text} {{\scriptsize {_escape(interval)}}}" if interval else text


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escape(text: str) -> str:
    return re.sub("[" + re.escape("".join(_ESCAPES)) + "]", lambda match: _ESCAPES[match[0]], text)
