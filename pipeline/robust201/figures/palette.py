"""Colours and short labels of figures, in files and on the page.

All colours except `networks.colours.INK` and `GRID` are visible on light and dark backgrounds.
"""

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import kind_of, task_of
from robust201.tasks import TASKS

if TYPE_CHECKING:
    import pandas as pd

GRID = "#d6dbe1"
"""Colour of grid lines; the page replaces it, like `INK`."""

CLEAN_COLOUR = "#8b949e"
CHANCE_COLOUR = "#e0403f"
OTHER_COLOUR = "#6e7781"

_GROUP_COLOURS = {"noise": "#1f83c4", "blur": "#009e73", "weather": "#b9770e", "digital": "#c2679b"}

CORRUPTION_GROUPS = {
    group: (colour, tuple(task.key for task in TASKS.values() if task.group == group))
    for group, colour in _GROUP_COLOURS.items()
}
"""Colour and keys of each group of corruptions."""

CONFIDENCE_COLOURS = ("#009e73", "#d55e00", "#1f83c4")
"""Colours in the order of `class_summaries.CONFIDENCES`."""

CLASS_CONFIDENCE_COLOURS = ("#1f83c4", "#b9770e")
"""Colours in the order of `class_summaries.CLASS_CONFIDENCES`."""

MAX_NAMED_NETWORKS = 11
"""Maximum number of networks that figures show by name; more are summarised by boxes and rank correlations."""

NETWORK_COLOURS = (
    *("#1f83c4", "#d55e00", "#009e73", "#c2679b", "#b9770e", "#56a8e0"),
    *("#7f5fc4", "#a0522d", "#7fa83a", "#1b9aaa", "#8b949e"),
)
"""Colours of networks, in order; the first are the colours of Okabe and Ito, without black and yellow."""

_ATTACKS = list(dict.fromkeys(task.attack for task in TASKS.values() if task.attack))

NETWORK_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
"""Symbols of networks, used cyclically, so that neighbours in the legend differ in shape as well as in colour."""

CORRELATION_SCHEME = "redblue"
"""Colour scheme of correlations: RdBu of ColorBrewer (Brewer, 2003), reversed, with red above zero."""

CHANGE_SCHEME = "redblue"
"""Colour scheme of changes: gains are blue, losses are red."""

BLUES = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""ColorBrewer's scheme "Blues"; Vega's scheme of this name starts with a darker colour."""

SIZE_COLOURS = ("#4a6fd8", "#1b9aaa", "#7fa83a", "#d99a1c", "#e0503f")
"""Colours of cells by number of kernel parameters, from small to large."""

FRACTION_SCHEME = "viridis"
"""Colour scheme of the fractions in confusion matrices."""


CURRENT_OPERATION_SYMBOL = "•"
"""Symbol that marks a cell's own operation in a figure of changes."""

MAX_WRITTEN_CLASSES = 12
"""Maximum number of classes for which the tiles of a confusion matrix show numbers."""


def key_colour(key: str) -> str:
    """Return the colour of clean images, of an attack in any norm, or of a corruption's group."""
    task = task_of(key)
    if task is None:
        return OTHER_COLOUR
    if task.attack:
        return NETWORK_COLOURS[_ATTACKS.index(task.attack) % len(NETWORK_COLOURS)]
    return _GROUP_COLOURS.get(task.group, CLEAN_COLOUR)


def key_group(key: str) -> str:
    """Return the group of a corruption; for any other key, return the key itself."""
    task = task_of(key)
    return key if task is None else task.group or key


def sort_by_group(keys: list[str]) -> list[str]:
    """Sort keys so that corruptions of a group are adjacent; other keys come first, in their order."""
    corruption_order = [key for _, members in CORRUPTION_GROUPS.values() for key in members]
    return sorted(keys, key=lambda key: corruption_order.index(key) if key in corruption_order else -1)


def tick_labels(strengths: Iterable[float], *, starts_with_clean: bool) -> list[str]:
    """Return the axis labels of strengths; strength 0 is labelled "clean" if `starts_with_clean`."""
    return ["clean" if starts_with_clean and strength == CLEAN_STRENGTH else f"{strength:g}" for strength in strengths]


def strength_axis_title(key: str) -> str:
    """Return the title of a key's axis of strengths, with the unit of its constraint; empty for clean images."""
    task = task_of(key)
    if task is not None and task.constraint is not None:
        return task.constraint.axis.replace("epsilon", "ε")
    return {"corruption": "severity", "clean": ""}.get(kind_of(key), "strength")


def fraction_texts(fractions: NDArray[np.float64]) -> list[list[str]] | None:
    """Return fractions in percent as texts, blank below half a percent; None for more than `MAX_WRITTEN_CLASSES`."""
    if len(fractions) > MAX_WRITTEN_CLASSES:
        return None
    return [[f"{100 * fraction:.0f}" if fraction >= 0.005 else "" for fraction in row] for row in fractions]


def correlation_texts(tau: NDArray[np.float64]) -> list[list[str]]:
    """Return the labels of a heat map of correlations (see `short_number`)."""
    return [[short_number(correlation) for correlation in row] for row in tau]


def change_texts(changes: NDArray[np.float64], operations: list[int], decimals: int) -> list[list[str]]:
    """Return changes as texts: signed unless they round to zero, with a dot at each row's current operation."""
    # The format option z turns -0.00 into +0.00; the plus sign of a zero is removed below.
    zero = f"{0:+.{decimals}f}"
    signed_texts = [["" if np.isnan(value) else f"{value:+z.{decimals}f}" for value in row] for row in changes]
    texts = [
        [signed_text.removeprefix("+") if signed_text == zero else signed_text for signed_text in row]
        for row in signed_texts
    ]
    for row, column in zip(texts, operations, strict=True):
        row[column] = CURRENT_OPERATION_SYMBOL
    return texts


def tie_note(n_tied: int) -> str:
    """Return a note on equally accurate architectures, such as ``, one of 9``; empty if there are none."""
    return "" if n_tied == 1 else f", one of {n_tied:,}"


def rank_texts(cells: "pd.DataFrame") -> list[str]:
    """Return the ranks of cells (columns `rank` and `tied`), with ``=`` in front of shared ranks."""
    return [f"{'' if n_tied == 1 else '='}{rank}" for rank, n_tied in zip(cells["rank"], cells["tied"], strict=True)]


def omitted_note(n_omitted: int) -> str:
    """Return a note on cells that a figure omits although they are as accurate as its last cell."""
    return f"{n_omitted:,} more {'is' if n_omitted == 1 else 'are'} as accurate as the last"


def json_text(value: object) -> str:
    """Return a value as a literal of Vega's expression language."""
    return json.dumps(value, ensure_ascii=False)


def short_number(correlation: float) -> str:
    """Return a correlation in at most five characters: ``.87``, ``-.03``, ``1.00``, or ``–`` for NaN."""
    return "–" if math.isnan(correlation) else f"{correlation:.2f}".replace("0.", ".", 1)
