"""Figures of the papers' pages: our numbers as lines with bands, published numbers as hollow points."""

from collections.abc import Sequence
from pathlib import Path

import altair as alt
import pandas as pd

COLOURS = ["#1f83c4", "#d55e00", "#009e73", "#c2679b", "#6e7781", "#4a6fd8", "#b9770e"]


def draw_lines(
    frame: pd.DataFrame,
    path: Path,
    *,
    x: str,
    y: str,
    colour: str,
    panel: str,
    band: Sequence[str] = (),
    published: str | None = None,
    chance: str | None = None,
    columns: int = 3,
) -> None:
    """Write an SVG with one panel per value of the column `panel`, and one line per value of `colour`.

    Args:
        frame: the numbers; columns other than `x`, `y`, `band`, `published` and `chance` are text.
        path: file to write.
        x: column of the horizontal axis: numbers, or text in the order of the rows. Column names are axis titles.
        y: column of our numbers.
        colour: column that names the lines.
        panel: column that names the panels.
        band: columns with the ends of an interval, which is drawn as a band.
        published: column with the published numbers (NaN if there is none).
        chance: column with the accuracy of random guessing, drawn as a dashed line.
        columns: number of panels per row.
    """
    is_text = not pd.api.types.is_numeric_dtype(frame[x])
    axis = alt.X(f"{x}:O", sort=[*frame[x].unique()]) if is_text else alt.X(f"{x}:Q")
    names = [*frame[colour].unique()]
    base = alt.Chart(frame).encode(
        x=axis,
        color=alt.Color(f"{colour}:N", scale=alt.Scale(domain=names, range=COLOURS), sort=names, title=None),
    )
    layers = [base.mark_line(strokeWidth=1.3, point={"size": 12}).encode(y=alt.Y(f"{y}:Q"))]
    if band:
        layers.insert(0, base.mark_area(opacity=0.2).encode(y=alt.Y(f"{band[0]}:Q", title=y), y2=f"{band[1]}:Q"))
    if published is not None:
        layers.append(base.mark_point(size=22, strokeWidth=1).encode(y=alt.Y(f"{published}:Q", title=y)))
    if chance is not None:
        layers.append(base.mark_line(strokeDash=[2, 2], strokeWidth=0.8).encode(y=alt.Y(f"{chance}:Q", title=y)))
    chart = alt.layer(*layers).properties(width=190, height=140)
    panels = [*frame[panel].unique()]
    chart.facet(facet=alt.Facet(f"{panel}:N", sort=panels, title=None), columns=columns).save(path)
