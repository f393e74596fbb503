"""A figure of searches: regret against the number of queries."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import ScalarFormatter

from robust201.core.errors import ConfigError
from robust201.core.files import atomic_write, check_output_file
from robust201.figures.formats import parse_width
from robust201.figures.matplotlib_parts import METADATA, draw_legend, make_panels, style_axes
from robust201.figures.palette import GRID
from robust201.figures.panels import SMALL_SIZE, TEXT_SIZE, TITLE_SIZE, count_columns
from robust201.figures.vega_files import PNG_DPI
from robust201.search.methods import METHODS
from robust201.search.repeated_searches import RepeatedSearch
from robust201.spaces.cell_space import INK

COLOURS = {"bananas": "#b8860b", "local": "#0969da", "random": "#57606a", "evolution": "#cf222e"}
"""Colours by search method."""

_PANEL_WIDTH, _PANEL_HEIGHT = 2.6, 2.1
"""Minimum width and height of a panel, in inches."""


def check_figure_file(out: Path) -> None:
    """Check that a figure can be written to a file, before anything is computed."""
    if out.suffix.lstrip(".") not in METADATA:
        raise ConfigError(
            f"Drawing regret failed for {out}: the file name must end in .{', .'.join(METADATA)}. Choose another "
            "file name."
        )
    check_output_file(out)


def save_regret_curves(searches: Sequence[RepeatedSearch], out: Path, *, width: str | float = "page") -> Path:
    """Draw the mean regret over runs after each query, with its 95% interval.

    There is one panel per objective. The axis of regrets is logarithmic.
    """
    from matplotlib.figure import Figure

    check_figure_file(out)
    inches = parse_width(width)
    n_columns = count_columns(len(searches), inches, _PANEL_WIDTH)
    settings: Any = {"svg.hashsalt": "regret", "svg.fonttype": "none", "pdf.fonttype": 42}
    with rc_context(settings):
        height = _PANEL_HEIGHT * -(-len(searches) // n_columns) + 0.4
        figure = Figure(figsize=(inches, height), layout="constrained")
        handles: dict[str, Any] = {}
        for axes, search in zip(make_panels(figure, len(searches), n_columns), searches, strict=True):
            style_axes(axes)
            queries = np.arange(1, search.n_queries + 1)
            positive_regrets = (result.regret[result.regret > 0] for result in search.results)
            min_regret = min((float(np.nanmin(regrets, initial=1)) for regrets in positive_regrets), default=1)
            min_bound = 100 * min_regret / 2
            for method_result in search.results:
                colour = COLOURS.get(method_result.method, INK)
                # A logarithmic axis has no zero, so a line ends once all runs have found the optimum.
                mean = np.where(method_result.regret > 0, 100 * method_result.regret, np.nan)
                low, high = (
                    np.where(method_result.regret > 0, np.maximum(100 * bound, min_bound), np.nan)
                    for bound in (method_result.low, method_result.high)
                )
                (handles[method_result.method],) = axes.plot(queries, mean, color=colour, linewidth=1.1)
                axes.fill_between(queries, low, high, color=colour, alpha=0.2, linewidth=0)
            # A logarithmic axis needs a positive number.
            if any((method_result.regret > 0).any() for method_result in search.results):
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.grid(axis="y", color=GRID, linewidth=0.5)
            axes.tick_params(labelsize=SMALL_SIZE)
            axes.set_title(search.objective, fontsize=TITLE_SIZE, color=INK, parse_math=False)
            axes.set_xlabel("queries", fontsize=TEXT_SIZE, color=INK)
            axes.set_ylabel("regret (percentage points)", fontsize=TEXT_SIZE, color=INK)
        for name, line in handles.items():
            line.set_label(METHODS[name].title)
        draw_legend(figure, list(handles.values()))
        with atomic_write(out) as stream:
            file_format = out.suffix.lstrip(".")
            figure.savefig(stream, format=file_format, dpi=PNG_DPI, metadata=METADATA[file_format])
    return out
