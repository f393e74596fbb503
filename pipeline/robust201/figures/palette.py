"""Colours and short labels of the figures, in files and on the page.

All colours but `spaces.cell_space.INK` and `GRID` are read on light and dark alike.
"""

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.result_files import kind_of, row_of

if TYPE_CHECKING:
    import pandas as pd

GRID = "#d6dbe1"
"""Grid lines; the page replaces it likewise."""

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
"""Groups of Hendrycks and Dietterich, ICLR 2019, with the colour of each."""

CONFIDENCE_COLOURS = ("#009e73", "#d55e00", "#1f83c4")
"""In the order of `class_summaries.CONFIDENCES`."""

CLASS_CONFIDENCE_COLOURS = ("#1f83c4", "#b9770e")
"""In the order of `class_summaries.CLASS_CONFIDENCES`."""

FEW_NETWORKS = 11
"""Up to so many networks, figures show each by its name; more are summarised by boxes and rank correlations."""

NETWORK_COLOURS = (
    *("#1f83c4", "#d55e00", "#009e73", "#c2679b", "#b9770e", "#56a8e0"),
    *("#7f5fc4", "#a0522d", "#7fa83a", "#1b9aaa", "#8b949e"),
)
"""In the order of a figure's networks; those of Okabe and Ito first, without black and yellow."""

NETWORK_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
"""In turn, so that neighbours in the legend differ in grey too."""

CORRELATION = "redblue"
"""RdBu of ColorBrewer (Brewer, 2003); reversed: red above zero, blue below."""

CHANGE = "redblue"
"""Gains blue, losses red."""

BLUES = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""Of ColorBrewer; the scheme of that name starts at a darker one."""

SIZE_COLOURS = ("#4a6fd8", "#1b9aaa", "#7fa83a", "#d99a1c", "#e0503f")
"""Small cells to large ones: no colour so dark or light that a point is lost on either page."""

SEQUENTIAL = "viridis"


OWN_OPERATION = "•"
"""What stands in a figure of changes where a cell's own operation is."""

WRITTEN_CLASSES = 12
"""Confusion matrices of more classes have no numbers in their fields."""


def key_colour(key: str) -> str:
    """Give the colour of clean images, of an attack, or of a corruption's group."""
    groups = {member: colour for colour, members in CORRUPTION_GROUPS.values() for member in members}
    return KEY_COLOURS.get(key, groups.get(key, OTHER_COLOUR))


def key_group(key: str) -> str:
    """Name the group of a corruption; others are groups of their own."""
    return {member: name for name, (_, members) in CORRUPTION_GROUPS.items() for member in members}.get(key, key)


def grouped(keys: list[str]) -> list[str]:
    """Sort keys so that the corruptions of a group stand together; others keep their order, in front."""
    order = [key for _, members in CORRUPTION_GROUPS.values() for key in members]
    return sorted(keys, key=lambda key: order.index(key) if key in order else -1)


def ticks(strengths: Iterable[float], *, begins_clean: bool) -> list[str]:
    """Write strengths below boxes; 0 stands for clean images, or is a strength as any other."""
    return ["clean" if begins_clean and strength == CLEAN_STRENGTH else f"{strength:g}" for strength in strengths]


def strength_word(key: str) -> str:
    """Name the axis of a key's strengths, with the unit of its constraint; empty for clean images."""
    row = row_of(key)
    if row is not None and row.constraint is not None:
        return row.constraint.axis.replace("epsilon", "ε")
    return {"corruption": "severity", "clean": ""}.get(kind_of(key), "strength")


def agreement_words(rows: "pd.DataFrame") -> str:
    """Write the rank correlations of some rows of `measures_against` of one measure and key; none of a few networks."""
    if len(rows) <= FEW_NETWORKS:
        return ""
    return f"Spearman {short(rows['spearman'].iloc[0])}, Kendall {short(rows['kendall'].iloc[0])}"


def spans_magnitudes(values: "pd.Series") -> bool:
    """Whether numbers are positive and span two orders of magnitude, so that a logarithmic axis shows them better."""
    return bool(values.min() > 0 and values.max() > 100 * values.min())


def share_texts(shares: NDArray[np.float64]) -> list[list[str]] | None:
    """Write the shares of a confusion matrix in %, those of less than half a percent not; None of many classes."""
    if len(shares) > WRITTEN_CLASSES:
        return None
    return [[f"{100 * share:.0f}" if share >= 0.005 else "" for share in row] for row in shares]


def correlation_texts(tau: NDArray[np.float64]) -> list[list[str]]:
    """Write the correlations of a heat map (see `short`)."""
    return [[short(value) for value in row] for row in tau]


def change_texts(changes: NDArray[np.float64], own: list[int], digits: int) -> list[list[str]]:
    """Write changes with their sign, none as zero without one, and a dot where a row has a cell's own operation."""
    # Python's option z makes -0.00 to 0.00; a plus sign belongs to gains only.
    zero = f"{0:+.{digits}f}"
    signed = [["" if np.isnan(value) else f"{value:+z.{digits}f}" for value in row] for row in changes]
    texts = [[text.removeprefix("+") if text == zero else text for text in row] for row in signed]
    for row, column in zip(texts, own, strict=True):
        row[column] = OWN_OPERATION
    return texts


def tie_words(tied: int) -> str:
    """Say after an architecture's number that others are as accurate, such as ``, one of 9``; nothing of one alone."""
    return "" if tied == 1 else f", one of {tied:,}"


def rank_texts(cells: "pd.DataFrame") -> list[str]:
    """Write the ranks of cells (columns `rank` and `tied`), with ``=`` in front of those that others share."""
    return [f"{'' if tied == 1 else '='}{rank}" for rank, tied in zip(cells["rank"], cells["tied"], strict=True)]


def unseen_words(unseen: int) -> str:
    """Say how many cells that a figure has no room for are as accurate as the last it shows."""
    return f"{unseen:,} more {'is' if unseen == 1 else 'are'} as accurate as the last"


def json_text(value: object) -> str:
    """Write a value as a literal of Vega's expressions."""
    return json.dumps(value, ensure_ascii=False)


def short(value: float) -> str:
    """Write a correlation in four characters: ``.87``, ``-.03``, ``1.00``, and ``–`` where there is none."""
    return "–" if math.isnan(value) else f"{value:.2f}".replace("0.", ".", 1)
