"""Confidences (softmax probabilities): medians over networks, with the range between the quartiles."""

from collections.abc import Mapping
from functools import partial

import altair as alt
import pandas as pd

from robust201.analysis.class_summaries import CLASS_CONFIDENCES, CONFIDENCES
from robust201.analysis.dataset_results import DatasetResults
from robust201.core import colours
from robust201.dataset.layout import CLEAN
from robust201.figures import drawings
from robust201.figures.definition import FigureDefinition
from robust201.figures.keys import key_panels, reference_columns, sort_by_group, strength_title, with_ticks
from robust201.figures.panels import Chart, Figure, Layout, Panel

SHOWN_CLASS = 0
"""Class in the figure of the confidences in a single class."""

CLASS_WIDTH = 11.0
"""Horizontal space for each class in a figure of confidences by class."""

_QUARTILES = ("q1", "median", "q3")

_TOOLTIP = {column: f"{column}|.2%" for column in _QUARTILES} | {"n": "architectures|,"}


def confidence_curves(results: DatasetResults) -> pd.DataFrame:
    """Summarise confidences over the architectures.

    Returns:
        One row per point: `key`, `strength`, `confidence` (a name in `CONFIDENCES`), `q1`, `median`, `q3` and `n`
        (number of architectures that have images to average over). The confidence in the true class is computed for the
        images of each class and then averaged over classes.
    """
    rows = results.confidences
    return rows[rows["confidence"].isin(CONFIDENCES)].drop(columns="class").reset_index(drop=True)


def class_confidences(results: DatasetResults) -> pd.DataFrame:
    """Summarise the confidences in every class over the architectures, at one strength per key.

    Returns:
        One row per point: `key`, `strength` (see `reference_columns`), `confidence` (a name in `CLASS_CONFIDENCES`),
        `class` (its number), `q1`, `median`, `q3` and `n` (number of architectures that have images to average over).
    """
    rows = results.confidences
    rows = rows[rows["confidence"].isin(CLASS_CONFIDENCES)]
    columns = pd.MultiIndex.from_frame(rows[["key", "strength"]])
    return rows[columns.isin(reference_columns(list(dict.fromkeys(columns))))].reset_index(drop=True)


def one_class_confidence(results: DatasetResults) -> pd.DataFrame:
    """Summarise the confidences in one class, `SHOWN_CLASS`, at all strengths; rows are as in `class_confidences`."""
    rows = results.confidences
    return rows[rows["class"] == SHOWN_CLASS].reset_index(drop=True)


def rows_of_key(frame: pd.DataFrame, key: str, results: DatasetResults) -> pd.DataFrame:
    """Select a key's rows; rows of clean images come first, unless the key itself was evaluated at strength 0."""
    clean_keys = [CLEAN] if results.starts_with_clean(key) else []
    return frame[frame["key"].isin([*clean_keys, key])].sort_values("strength", kind="stable")


def draw_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw `confidence_curves`, with one panel per key."""
    by_name = dict(zip(CONFIDENCES, colours.CONFIDENCES, strict=True))
    return _draw_curves(frame, results, by_name, "confidence in the")


def draw_one_class_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw `one_class_confidence`, with one panel per key."""
    by_name = dict(zip(CLASS_CONFIDENCES, colours.CLASS_CONFIDENCES, strict=True))
    name = results.class_names(results.n_classes or SHOWN_CLASS + 1)[SHOWN_CLASS]
    return _draw_curves(frame, results, by_name, f"confidence in class {SHOWN_CLASS} ({name}), over the")


def _draw_curves(frame: pd.DataFrame, results: DatasetResults, by_name: Mapping[str, str], title: str) -> Figure:
    colour = drawings.named_colours("confidence", by_name, title, symbolType="stroke")
    texts = {"confidence": title, "tick": "at"} | _TOOLTIP

    def draw(layout: Layout, key: str) -> Chart:
        rows, ticks = with_ticks(rows_of_key(frame, key, results), key, results)
        x = drawings.name_axis(layout, "tick", ticks, strength_title(key, results), type="point", padding=0.3)
        y = drawings.fraction_axis(layout, "confidence")
        return drawings.layered(drawings.curves(rows, x(), y, _QUARTILES, colour, texts), 62)

    # Clean images are the first point of every panel.
    keys = sort_by_group([key for key in frame["key"].unique() if key != CLEAN]) or [CLEAN]
    return Figure(key_panels(keys, draw), 108)


def draw_class_confidences(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw `class_confidences`, with one panel per key."""
    n_classes = int(frame["class"].max()) + 1
    names = dict(enumerate(results.class_names(n_classes)))
    by_name = dict(zip(CLASS_CONFIDENCES, colours.CLASS_CONFIDENCES, strict=True))
    colour = drawings.named_colours("confidence", by_name, "confidence in a class, over the", symbolOpacity=1)
    texts = {"name": "class", "confidence": "over the"} | _TOOLTIP
    shift = alt.XOffset("confidence:N", scale=alt.Scale(type="band", paddingOuter=0.4, domain=list(by_name)))

    def draw(layout: Layout, rows: pd.DataFrame) -> Chart:
        rows = rows.assign(tick=rows["class"].astype(str), name=rows["class"].map(names))
        title = "class" if layout.is_at_bottom else None
        numbers = [str(number) for number in range(n_classes)]
        x = drawings.name_axis(layout, "tick", numbers, title, type="band", paddingOuter=0.1)
        y = drawings.fraction_axis(layout, "confidence")
        return drawings.layered(drawings.ranges(rows, x(), shift, y, _QUARTILES, colour, texts), 62)

    panels = []
    for key in sort_by_group(list(frame["key"].unique())):
        rows = frame[frame["key"] == key]
        strength = float(rows["strength"].iloc[0])
        panels.append(Panel((results.column_label(key, strength),), partial(draw, rows=rows)))
    min_width = max(108.0, CLASS_WIDTH * n_classes)
    return Figure(panels, min_width, max(165.0, min_width))


_RANGE = "median over architectures, and range between the quartiles"

FIGURES = (
    FigureDefinition(
        "confidence",
        "Confidence",
        "Mean confidence (softmax probability) of an architecture in its prediction, where the prediction is right and "
        f"where it is wrong, and in the true class: {_RANGE}. AutoAttack (aa_) returns the clean image if it fails. "
        "Its curve “where right” therefore describes the clean images that withstood the attack, which are fewer and "
        "more confident at larger ε, whereas fgsm and pgd perturb all images. If few images are misclassified, “where "
        "wrong” is based on these few.",
        "Figs. 13 (bottom) and 15",
        "the measurement confidence",
        confidence_curves,
        draw_confidence,
    ),
    FigureDefinition(
        "class-confidence",
        "Confidence, class by class",
        "Mean confidence of an architecture in a class, over the images of this class and over the images that are "
        f"predicted as this class: {_RANGE}. Attacks are at the epsilon nearest to 1/255 (for norms other than Linf, "
        "nearest to 1), and corruptions at the severity nearest to 3.",
        "Fig. 13 (top and middle)",
        "the measurement confidence",
        class_confidences,
        draw_class_confidences,
    ),
    FigureDefinition(
        "one-class-confidence",
        "Confidence in one class",
        f"Mean confidence of an architecture in a single class (class {SHOWN_CLASS}) at all strengths, over the images "
        f"of this class and over the images that are predicted as this class: {_RANGE}. If few images under an attack "
        "are predicted as this class, the confidence over them is based on these few.",
        "Fig. 14",
        "the measurement confidence",
        one_class_confidence,
        draw_one_class_confidence,
    ),
)
