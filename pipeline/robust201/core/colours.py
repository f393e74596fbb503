"""Colours of figures, reports and drawings of cells.

All colours except `INK`, `PAPER`, `GRID` and the ends of `BLUES` are visible on light and dark backgrounds.
"""

INK = "#22272e"
"""Colour of text and lines; report pages replace it with their text colour."""

PAPER = "#ffffff"
"""Colour of the background."""

GRID = "#d6dbe1"
"""Colour of grid lines; report pages replace it, like `INK`."""

CLEAN = "#8b949e"
CHANCE = "#e0403f"

GROUPS = {"noise": "#1f83c4", "blur": "#009e73", "weather": "#b9770e", "digital": "#c2679b"}
"""Colour of each group of corruptions."""

CONFIDENCES = ("#009e73", "#d55e00", "#1f83c4")
"""Colours in the order of `class_summaries.CONFIDENCES`."""

CLASS_CONFIDENCES = ("#1f83c4", "#b9770e")
"""Colours in the order of `class_summaries.CLASS_CONFIDENCES`."""

NETWORKS = (
    *("#1f83c4", "#d55e00", "#009e73", "#c2679b", "#b9770e", "#56a8e0"),
    *("#7f5fc4", "#a0522d", "#7fa83a", "#1b9aaa", "#8b949e"),
)
"""Colours of networks and attacks, in order of use; the first six are adapted from Okabe and Ito's palette."""

CELL_SIZES = ("#4a6fd8", "#1b9aaa", "#7fa83a", "#d99a1c", "#e0503f")
"""Colours of cells by number of kernel parameters, from small to large."""

BLUES = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""ColorBrewer's scheme "Blues"; Vega's scheme of this name starts with a darker colour."""
