"""Accuracies over strengths, network by network."""

from collections.abc import Mapping
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import DatasetResults
from robust201.core.colours import NETWORKS
from robust201.dataset.layout import kind_of
from robust201.figures import drawings
from robust201.figures.definition import MAX_NAMED_NETWORKS, FigureDefinition
from robust201.figures.keys import axis_titles, fraction_limits, key_panels, shown_strengths, sort_by_group, with_ticks
from robust201.figures.panels import Chart, Figure, Layout, Panel
from robust201.statistics.intervals import accuracy_intervals


def accuracy_curves(results: DatasetResults, kind: str) -> pd.DataFrame:
    """Return the accuracies of all networks at the strengths of each key.

    Returns:
        One row per point: `network` (see `DatasetResults.network_label`), `key`, `strength` (0 means clean images; a
        clean point precedes the points of every key that was not itself evaluated at 0), `accuracy`, and the ends
        `low` and `high` of its 95% interval (see `accuracy_intervals`), NaN if the number of images is unknown.
    """
    names = [results.network_label(architecture) for architecture in results.architectures]
    frames = [pd.DataFrame(columns=["network", "key", "strength", "accuracy", "low", "high"])]
    for key in results.keys(kind):
        for strength, evaluation in shown_strengths(results, key):
            accuracies = results.column(*evaluation).to_numpy()
            low, high = accuracy_intervals(accuracies, results.image_counts[evaluation].to_numpy(np.float64))
            columns = {"network": names, "key": key, "strength": strength, "accuracy": accuracies}
            frames.append(pd.DataFrame(columns | {"low": low, "high": high}))
    return pd.concat(frames[1:] or frames, ignore_index=True).dropna(subset="accuracy")


def draw_accuracy_curves(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies with 95% intervals against strengths, with one panel per key and one curve per network."""
    keys = sort_by_group(list(frame["key"].unique()))
    limits = fraction_limits(frame["accuracy"], frame["low"], frame["high"])
    shared_title, titles = axis_titles(keys, results)
    colour = _network_colours(frame)
    texts = {"network": "network", "tick": "at", "accuracy": "accuracy|.2%", "low": "low|.2%", "high": "high|.2%"}

    def draw(layout: Layout, key: str) -> Chart:
        rows, ticks = with_ticks(frame[frame["key"] == key], key, results)
        x = drawings.name_axis(layout, "tick", ticks, titles[key], type="point", padding=0.3)
        y = drawings.fraction_axis(layout, "accuracy", limits)
        layers = drawings.curves(rows, x(), y, ("low", "accuracy", "high"), colour, texts)
        layers += drawings.chance_line(y, results.chance_level, limits, is_label_right=True)
        return drawings.layered(layers, 88)

    return Figure(key_panels(keys, draw), 90 if kind_of(keys[0]) == "corruption" else 150, label=shared_title)


def draw_security_curves(rows: pd.DataFrame, ends: drawings.Limits, axis_title: str, note: str) -> Figure:
    """Draw one curve of accuracies over epsilon per network, with a band of 95% intervals.

    Args:
        rows: see `SecurityCurves.accuracy`.
        ends: limits of the horizontal axis.
        axis_title: title of the horizontal axis.
        note: text below the figure.
    """

    def draw(layout: Layout) -> Chart:
        scale = alt.Scale(domain=list(ends), nice=False)
        x = alt.X("epsilon:Q", axis=alt.Axis(title=axis_title, tickCount=6), scale=scale)
        y = drawings.fraction_axis(layout, "accuracy")
        layers = drawings.curves(rows, x, y, ("low", "accuracy", "high"), _network_colours(rows), {})
        return drawings.layered(layers, 120)

    return Figure([Panel((), draw)], 150, notes=(note,))


def _network_colours(rows: pd.DataFrame) -> alt.Color:
    names = list(map(str, rows["network"].unique()))
    by_name: Mapping[str, str] = {name: NETWORKS[index % len(NETWORKS)] for index, name in enumerate(names)}
    return drawings.named_colours("network", by_name, symbolType="stroke")


FIGURES = (
    FigureDefinition(
        "attack-curves",
        "Accuracy over epsilon, network by network",
        "Accuracy of each network at the epsilons of each attack, evenly spaced, starting with clean images. Bands are "
        "95% intervals over images; the dashed line is the chance accuracy.",
        "",
        "an attack",
        partial(accuracy_curves, kind="attack"),
        draw_accuracy_curves,
        max_networks=MAX_NAMED_NETWORKS,
    ),
    FigureDefinition(
        "corruption-curves",
        "Accuracy over severity, network by network",
        "Accuracy of each network at the severities of each corruption, starting with clean images; bands are 95% "
        "intervals over images.",
        "",
        "a corruption",
        partial(accuracy_curves, kind="corruption"),
        draw_accuracy_curves,
        max_networks=MAX_NAMED_NETWORKS,
    ),
)
