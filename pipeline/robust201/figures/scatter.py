"""Clean accuracy against mean accuracy under attack and corruption, one point per network."""

from functools import partial
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import SCORE_KINDS, SCORES, DatasetResults
from robust201.core import colours
from robust201.dataset.layout import CLEAN
from robust201.figures import drawings
from robust201.figures.definition import FigureDefinition
from robust201.figures.panels import Chart, Figure, Layout, Panel

FAR_FENCE = 3.0
"""A point is far from the others if it lies more than this many interquartile ranges from the quartiles (Tukey)."""

MAX_LARGE_POINTS = 500
"""Maximum number of networks for which points are large; if there are more, all points are small."""


def clean_and_mean_accuracies(results: DatasetResults) -> pd.DataFrame:
    """Pair clean accuracies with the mean accuracies under attack and under corruption.

    Returns:
        One row per network and mean: `score` (a key of `SCORE_KINDS`), `architecture`, `clean`, `accuracy` and, if
        architectures are cells, `kernel_parameters`. Rows that lack a number are left out.
    """
    scores = results.scores
    columns: dict[str, Any] = {"architecture": results.architectures}
    if results.space is not None:
        sizes = [results.space.kernel_parameters(results.spec(index)) for index in results.architectures]
        columns["kernel_parameters"] = sizes
    frames = [
        pd.DataFrame({"score": score} | columns | {"clean": scores[CLEAN].array, "accuracy": scores[score].array})
        for score in SCORE_KINDS
        if {CLEAN, score} <= {*scores}
    ]
    return pd.concat(frames, ignore_index=True).dropna() if frames else pd.DataFrame()


def near_limits(values: "pd.Series[float]") -> tuple[float, float]:
    """Return axis limits that include all points except those far from the others (see `FAR_FENCE`)."""
    q1, q3 = np.quantile(values, (0.25, 0.75))
    margin = FAR_FENCE * max(q3 - q1, 0.01)
    near = values[values.between(q1 - margin, q3 + margin)]
    padding = max(0.01, 0.05 * (near.max() - near.min()))
    return round(max(0.0, near.min() - padding), 5), round(min(1.0, near.max() + padding), 5)


def draw_clean_and_mean_accuracies(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the means against clean accuracy, with one panel per mean; cells are coloured by their kernel parameters."""
    texts = {"architecture": "architecture", "clean": "clean|.2%", "accuracy": "mean|.2%"}
    colour: Any = alt.ColorValue(colours.NETWORKS[0])
    if results.space is not None:
        texts |= {"kernel_parameters": "kernel parameters"}
        sizes = (0, results.space.max_kernel_parameters)
        title = "kernel parameters of the cell"
        colour = drawings.number_colours("kernel_parameters", sizes, colours.CELL_SIZES, title)
    point_size = 3.0 if len(results.accuracies) > MAX_LARGE_POINTS else 14.0

    def draw(layout: Layout, rows: pd.DataFrame, x_limits: drawings.Limits, y_limits: drawings.Limits) -> Chart:
        axis = alt.Axis(title=None, format=".0%", grid=True, tickCount=4)
        x = partial(alt.X, axis=axis, scale=alt.Scale(domain=list(x_limits), nice=False, zero=False))
        y = drawings.fraction_axis(Layout(layout.width), "mean accuracy", y_limits)
        layers = drawings.line_of_equality(x, y, x_limits, y_limits)
        layers.append(drawings.points(rows, x("clean:Q"), y("accuracy:Q"), colour, point_size, texts))
        layers += drawings.chance_line(y, results.chance_level, y_limits, is_label_right=True)
        return drawings.layered(layers, 110)

    panels = []
    for score, rows in frame.groupby("score", sort=False):
        x_limits, y_limits = near_limits(rows["clean"]), near_limits(rows["accuracy"])
        shown = rows[rows["clean"].between(*x_limits) & rows["accuracy"].between(*y_limits)]
        n_far = len(rows) - len(shown)
        title = SCORES[str(score)] + (f", {n_far:,} beyond the axes" if n_far else "")
        panels.append(Panel((title,), partial(draw, rows=shown, x_limits=x_limits, y_limits=y_limits)))
    return Figure(panels, 150, 250, label="clean accuracy")


FIGURES = (
    FigureDefinition(
        "clean-vs-robust",
        "Clean against robust accuracy",
        "One point per architecture; the points of cells are coloured by the number of kernel parameters: 9 for each "
        "3×3 and 1 for each 1×1 convolution that reaches the output. On the dotted line, the perturbation would change "
        "nothing; the dashed line is the chance accuracy. Points more than three interquartile ranges from the "
        "quartiles are left out; the panel's title states their number.",
        "Fig. 27",
        "clean accuracies and an attack or a corruption",
        clean_and_mean_accuracies,
        draw_clean_and_mean_accuracies,
        shows_means=True,
    ),
)
