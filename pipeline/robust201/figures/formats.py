"""Formats and widths of figure files."""

from collections.abc import Sequence
from pathlib import Path

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.files import check_output_file

FIGURE_WIDTHS = {"column": 3.25, "page": 6.75}
"""Widths of one column and of the whole text in two-column templates such as those of ICML and CVPR, in inches."""

MIN_WIDTH, MAX_WIDTH = 2.5, 40.0
"""Limits of a figure's width, in inches."""

DRAWN_FORMATS = ("png", "svg", "pdf")

CSV = "csv"

FIGURE_FORMATS = (*DRAWN_FORMATS, CSV)


def parse_width(text: str | float) -> float:
    """Parse a width: ``column``, ``page`` or a number of inches; return it in inches."""
    if text in FIGURE_WIDTHS:
        return FIGURE_WIDTHS[str(text)]
    try:
        width = float(text)
    except ValueError:
        width = 0.0
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        raise ConfigError(
            f"Drawing failed for the width: expected column ({FIGURE_WIDTHS['column']} in), page "
            f"({FIGURE_WIDTHS['page']} in) or {MIN_WIDTH:g} to {MAX_WIDTH:g} inches, got {str(text)[:40]!r}."
            f"{did_you_mean(str(text), FIGURE_WIDTHS)}"
        )
    return width


def check_figure_name(out: Path, formats: Sequence[str] = DRAWN_FORMATS) -> None:
    """Check that a figure can be written to a file, before anything is computed."""
    if out.suffix.removeprefix(".") not in formats:
        raise ConfigError(
            f"Drawing failed for {out}: the file name must end in .{', .'.join(formats)}. Choose another name."
        )
    check_output_file(out)
