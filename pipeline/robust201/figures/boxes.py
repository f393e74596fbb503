"""Box plots: accuracies of many networks by key and strength, and mean accuracies by the size of cells."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import SCORE_KINDS, SCORES, DatasetResults, quartiles
from robust201.core import colours
from robust201.dataset.layout import kind_of
from robust201.figures import drawings
from robust201.figures.definition import MIN_SUMMARISED_NETWORKS, FigureDefinition
from robust201.figures.keys import (
    axis_titles,
    fraction_limits,
    group_of,
    key_panels,
    shown_strengths,
    sort_by_group,
    with_ticks,
)
from robust201.figures.panels import Chart, Figure, Layout, Panel

FENCE = 1.5
"""Whiskers end at the most extreme accuracy within this many interquartile ranges of the box (Tukey)."""

MAX_SHOWN_OUTLIERS = 15
"""Maximum number of outliers that are shown at either end of a box."""


def accuracy_boxes(results: DatasetResults, kind: str) -> pd.DataFrame:
    """Summarise accuracies for box plots.

    Returns:
        One row per box: `key`, `strength` (0 means clean images; a clean box precedes the boxes of every key that was
        not evaluated at strength 0), `low` and `high` (ends of the whiskers, see `FENCE`), `q1`, `median`, `q3`,
        `outliers` (a tuple of distinct accuracies beyond the whiskers, at most `MAX_SHOWN_OUTLIERS` at either end) and
        `n` (number of architectures).
    """
    groups: dict[tuple[object, ...], pd.Series] = {
        (key, strength): results.column(*evaluation)
        for key in results.keys(kind)
        for strength, evaluation in shown_strengths(results, key)
    }
    return _summarise(groups, ["key", "strength"])


def size_boxes(results: DatasetResults) -> pd.DataFrame:
    """Summarise mean accuracies by the cell's number of kernel parameters, for box plots.

    Returns:
        One row per box as in `accuracy_boxes`, with `score` (a key of `SCORE_KINDS`) and `kernel_parameters`
        (ascending) instead of key and strength.
    """
    groups: dict[tuple[object, ...], pd.Series] = {}
    if results.space is not None:
        sizes = np.array([results.space.kernel_parameters(results.spec(index)) for index in results.architectures])
        groups = {
            (score, int(size)): results.scores[score][sizes == size]
            for score in SCORE_KINDS
            if score in results.scores
            for size in np.unique(sizes)
        }
    return _summarise(groups, ["score", "kernel_parameters"])


def _summarise(groups: Mapping[tuple[object, ...], pd.Series], names: Sequence[str]) -> pd.DataFrame:
    rows = []
    for group, column in groups.items():
        values = column.dropna().to_numpy(np.float64)
        if len(values):
            q1, median, q3 = quartiles(values)
            fence = FENCE * (q3 - q1)
            inside = values[(values >= q1 - fence) & (values <= q3 + fence)]
            low, high = min(q1, inside.min()), max(q3, inside.max())
            below, above = np.unique(values[values < low]), np.unique(values[values > high])
            outliers = (*below[:MAX_SHOWN_OUTLIERS].tolist(), *above[-MAX_SHOWN_OUTLIERS:].tolist())
            rows.append((*group, low, q1, median, q3, high, outliers, len(values)))
    return pd.DataFrame(rows, columns=[*names, "low", "q1", "median", "q3", "high", "outliers", "n"])


def box_limits(boxes: pd.DataFrame) -> drawings.Limits:
    """Return axis limits that include all boxes and outliers."""
    outliers = boxes["outliers"].explode().astype(float)
    return fraction_limits(boxes["low"], boxes["high"], outliers)


def draw_accuracy_boxes(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of accuracies (see `accuracy_boxes`), with one panel per key and one box per strength."""
    keys = sort_by_group(list(frame["key"].unique()))
    are_corruptions = kind_of(keys[0]) == "corruption"
    limits = box_limits(frame)
    shared_title, titles = axis_titles(keys, results)
    names = {key: group_of(key) or key for key in keys}
    groups = [group for group in colours.GROUPS if group in names.values()]
    by_name = dict(zip(names.values(), colours.NETWORKS * len(keys), strict=False)) | colours.GROUPS
    by_name = {"clean": colours.CLEAN} | {name: by_name[name] for name in names.values()}
    colour = drawings.named_colours("group", by_name, values=groups, symbolType="square")
    if not groups:
        colour = colour.legend(None)

    def draw(layout: Layout, key: str) -> Chart:
        rows, ticks = with_ticks(frame[frame["key"] == key], key, results)
        rows = rows.assign(group=np.where(rows["tick"] == "clean", "clean", names[key]))
        x = drawings.name_axis(layout, "tick", ticks, titles[key], type="band", paddingOuter=0.1)
        y = drawings.fraction_axis(layout, "accuracy", limits)
        layers = drawings.box_plots(rows, x, y, colour)
        layers += drawings.chance_line(y, results.chance_level, limits)
        return drawings.layered(layers, 62 if are_corruptions else 88)

    return Figure(key_panels(keys, draw), 90 if are_corruptions else 187, label=shared_title)


def draw_size_boxes(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of mean accuracies by kernel parameters (see `size_boxes`), with one panel per mean."""
    sizes = (0, results.cell_space.max_kernel_parameters)
    colour = drawings.number_colours("kernel_parameters", sizes, colours.CELL_SIZES, None)

    def draw(layout: Layout, score: str) -> Chart:
        rows = frame[frame["score"] == score]
        rows, limits = rows.assign(tick=rows["kernel_parameters"].astype(str)), box_limits(rows)
        x = drawings.name_axis(layout, "tick", list(rows["tick"]), None, type="band", paddingOuter=0.1)
        y = drawings.fraction_axis(Layout(layout.width), "accuracy", limits)
        layers = drawings.box_plots(rows, x, y, colour) + drawings.chance_line(y, results.chance_level, limits)
        return drawings.layered(layers, 88)

    panels = [Panel((SCORES[score],), partial(draw, score=score)) for score in frame["score"].unique()]
    return Figure(panels, 187, 300, label="kernel parameters of the cell")


_BOXES = (
    "Boxes span the quartiles. Whiskers end at the furthest accuracy within 1.5 interquartile ranges of the box, and "
    "dots lie beyond (if there are many, only the furthest are shown). The dashed line is the chance accuracy."
)

FIGURES = (
    FigureDefinition(
        "attacks",
        "Accuracy under attack",
        f"Accuracies of the evaluated architectures by attack and epsilon. {_BOXES}",
        "Fig. 2",
        "an attack",
        partial(accuracy_boxes, kind="attack"),
        draw_accuracy_boxes,
        min_networks=MIN_SUMMARISED_NETWORKS,
    ),
    FigureDefinition(
        "corruptions",
        "Accuracy under corruption",
        "Accuracies of the evaluated architectures by corruption and severity, next to the clean accuracy; boxes are "
        "as in the figure of attacks.",
        "Fig. 4",
        "a corruption",
        partial(accuracy_boxes, kind="corruption"),
        draw_accuracy_boxes,
        min_networks=MIN_SUMMARISED_NETWORKS,
    ),
    FigureDefinition(
        "kernel-parameters",
        "Mean accuracy by kernel parameters",
        "Mean adversarial and mean corruption accuracies of cells by their number of kernel parameters: 9 for each 3×3 "
        "and 1 for each 1×1 convolution that reaches the output. Boxes are as in the figure of attacks.",
        "Fig. 28",
        "an attack or a corruption on architectures that are cells",
        size_boxes,
        draw_size_boxes,
        shows_means=True,
        min_networks=MIN_SUMMARISED_NETWORKS,
    ),
)
