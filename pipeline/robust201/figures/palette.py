"""Colours and short labels of figures, in files and on the page.

All colours except `spaces.cell_space.INK` and `GRID` are legible on light and dark backgrounds.
"""

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.result_files import kind_of, task_of

if TYPE_CHECKING:
    import pandas as pd

GRID = "#d6dbe1"
"""Colour of grid lines; the page replaces it, like `INK`."""

CLEAN_COLOUR = "#8b949e"
CHANCE_COLOUR = "#e0403f"
OTHER_COLOUR = "#6e7781"
KEY_COLOURS = {
    "clean": CLEAN_COLOUR,
    "aa_apgd-ce": "#d55e00",
    "aa_square": "#b9770e",
    "fgsm": "#1f83c4",
    "pgd": "#009e73",
}
CORRUPTION_GROUPS = {
    "noise": ("#1f83c4", ("gaussian_noise", "impulse_noise", "shot_noise")),
    "blur": ("#009e73", ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")),
    "weather": ("#b9770e", ("brightness", "fog", "frost", "snow")),
    "digital": ("#c2679b", ("contrast", "elastic_transform", "jpeg_compression", "pixelate")),
}
"""Groups of corruptions as in Hendrycks and Dietterich, ICLR 2019, each with its colour."""

CONFIDENCE_COLOURS = ("#009e73", "#d55e00", "#1f83c4")
"""Colours in the order of `class_summaries.CONFIDENCES`."""

CLASS_CONFIDENCE_COLOURS = ("#1f83c4", "#b9770e")
"""Colours in the order of `class_summaries.CLASS_CONFIDENCES`."""

FEW_NETWORKS = 11
"""Up to this many networks, figures show each one by name; more are summarised by boxes and rank correlations."""

NETWORK_COLOURS = (
    *("#1f83c4", "#d55e00", "#009e73", "#c2679b", "#b9770e", "#56a8e0"),
    *("#7f5fc4", "#a0522d", "#7fa83a", "#1b9aaa", "#8b949e"),
)
"""Colours in the order of a figure's networks, starting with those of Okabe and Ito without black and yellow."""

NETWORK_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
"""Symbols that networks cycle through, so that neighbours in the legend differ without colour too."""

CORRELATION = "redblue"
"""RdBu of ColorBrewer (Brewer, 2003), reversed: red above zero, blue below."""

CHANGE = "redblue"
"""Scheme of changes: gains are blue, losses red."""

BLUES = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""Blues of ColorBrewer; the built-in scheme of that name starts darker."""

SIZE_COLOURS = ("#4a6fd8", "#1b9aaa", "#7fa83a", "#d99a1c", "#e0503f")
"""Colours from small cells to large ones, chosen to be visible on both backgrounds."""

SEQUENTIAL = "viridis"


CURRENT_OPERATION = "•"
"""Symbol for a cell's current operation in a figure of changes."""

MAX_WRITTEN_CLASSES = 12
"""Maximum number of classes of a confusion matrix whose fields show numbers."""


def key_colour(key: str) -> str:
    """Return the colour of clean images, of an attack, or of a corruption's group."""
    groups = {member: colour for colour, members in CORRUPTION_GROUPS.values() for member in members}
    return KEY_COLOURS.get(key, groups.get(key, OTHER_COLOUR))


def key_group(key: str) -> str:
    """Return the name of a corruption's group; other keys form groups of their own."""
    return {member: name for name, (_, members) in CORRUPTION_GROUPS.items() for member in members}.get(key, key)


def sort_by_group(keys: list[str]) -> list[str]:
    """Sort keys so that corruptions of a group are adjacent; other keys come first, in their order."""
    order = [key for _, members in CORRUPTION_GROUPS.values() for key in members]
    return sorted(keys, key=lambda key: order.index(key) if key in order else -1)


def tick_labels(strengths: Iterable[float], *, begins_clean: bool) -> list[str]:
    """Return labels of strengths below boxes; 0 is labelled as clean unless it is an ordinary strength."""
    return ["clean" if begins_clean and strength == CLEAN_STRENGTH else f"{strength:g}" for strength in strengths]


def strength_axis_title(key: str) -> str:
    """Return the axis title of a key's strengths, with the unit of its constraint; empty for clean images."""
    row = task_of(key)
    if row is not None and row.constraint is not None:
        return row.constraint.axis.replace("epsilon", "ε")
    return {"corruption": "severity", "clean": ""}.get(kind_of(key), "strength")


def agreement_text(rows: "pd.DataFrame") -> str:
    """Return the rank correlations of a measure and key (rows of `measures_against`); empty for a few networks."""
    if len(rows) <= FEW_NETWORKS:
        return ""
    return f"Spearman {short_number(rows['spearman'].iloc[0])}, Kendall {short_number(rows['kendall'].iloc[0])}"


def spans_magnitudes(values: "pd.Series") -> bool:
    """Return whether numbers are positive and span two orders of magnitude, so that a logarithmic axis suits them."""
    return bool(values.min() > 0 and values.max() > 100 * values.min())


def share_texts(shares: NDArray[np.float64]) -> list[list[str]] | None:
    """Return a confusion matrix's fractions in percent, blank below half a percent; None if there are many classes."""
    if len(shares) > MAX_WRITTEN_CLASSES:
        return None
    return [[f"{100 * share:.0f}" if share >= 0.005 else "" for share in row] for row in shares]


def correlation_texts(tau: NDArray[np.float64]) -> list[list[str]]:
    """Return the labels of a heat map of correlations (see `short_number`)."""
    return [[short_number(value) for value in row] for row in tau]


def change_texts(changes: NDArray[np.float64], operations: list[int], digits: int) -> list[list[str]]:
    """Return changes with their sign, zero without a sign, and a dot at each row's current operation."""
    # Python's option z turns -0.00 into 0.00; only gains have a plus sign.
    zero = f"{0:+.{digits}f}"
    signed = [["" if np.isnan(value) else f"{value:+z.{digits}f}" for value in row] for row in changes]
    texts = [[text.removeprefix("+") if text == zero else text for text in row] for row in signed]
    for row, column in zip(texts, operations, strict=True):
        row[column] = CURRENT_OPERATION
    return texts


def tie_note(tied: int) -> str:
    """Return the note on equally accurate architectures, such as ``, one of 9``; empty for a unique one."""
    return "" if tied == 1 else f", one of {tied:,}"


def rank_texts(cells: "pd.DataFrame") -> list[str]:
    """Return the ranks of cells (columns `rank` and `tied`), with ``=`` in front of shared ranks."""
    return [f"{'' if tied == 1 else '='}{rank}" for rank, tied in zip(cells["rank"], cells["tied"], strict=True)]


def unseen_note(count: int) -> str:
    """Return the note on cells that do not fit in a figure and are as accurate as the last one in it."""
    return f"{count:,} more {'is' if count == 1 else 'are'} as accurate as the last"


def json_text(value: object) -> str:
    """Return a value as a literal of Vega's expression language."""
    return json.dumps(value, ensure_ascii=False)


def short_number(value: float) -> str:
    """Return a correlation in four characters: ``.87``, ``-.03``, ``1.00``, or ``–`` for NaN."""
    return "–" if math.isnan(value) else f"{value:.2f}".replace("0.", ".", 1)
