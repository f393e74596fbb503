"""Figures of the page, as plotly's JSON: the page gives them the colours of light and dark.

Every function draws the frame of `figures.figure_data` that the table of figures pairs it with. Figures are
plain dicts because plotly's objects take a tenth of a second each to build; tests hold every one to plotly's schema.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import ADVERSARIAL, SCORES, DatasetResults
from robust201.analysis.labels import column_label, strength_label
from robust201.core.records import CLEAN_STRENGTH
from robust201.figures import figure_data, palette
from robust201.figures import plotly_parts as parts
from robust201.reader.result_files import kind_of
from robust201.spaces.cell_space import INK, CellSpace

COLOUR_SCALE = "Viridis"

ALL_STRENGTHS_UP_TO_CLASSES = 50
"""Confusion matrices of more classes are on the page at one strength a key only, for its size."""

_MANY_POINTS = 500

_WRITTEN_COLUMNS = 30
"""Correlations of more columns have no numbers in their fields."""


class View(NamedTuple):
    """What a figure shows when its menu stands at one entry.

    Attributes:
        label: the entry; empty where there is but one.
        figure: `data` and `layout` of plotly; views may share one.
        column: (key, strength), or a name of `SCORES`, of the accuracies that the page puts on the vertical axis, from
            the numbers it holds for the explorer anyway; None where the figure holds its own.
        limits: with a column, the ends of the vertical axis; points beyond are arrows at the border.
        first: whether the menu stands at it when the page opens; else at the first.
    """

    label: str
    figure: parts.PlotlyFigure
    column: tuple[str, float] | str | None = None
    limits: tuple[float, float] | None = None
    first: bool = False


def views_of_boxes(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw box plots of accuracy: one panel per key, a box per strength, and the chance line (see `accuracy_boxes`)."""
    keys = palette.grouped(list(frame["key"].unique()))
    corrupted = kind_of(keys[0]) == "corruption"
    figure, axes = parts.make_plotly_panels(keys, 5 if corrupted else 2)
    panels = [frame[frame["key"] == key] for key in keys]
    places = [
        palette.ticks(boxes["strength"], begins_clean=results.begins_clean(key))
        for key, boxes in zip(keys, panels, strict=True)
    ]
    for key, boxes, ticks, on in zip(keys, panels, places, axes, strict=True):
        clean = (boxes["strength"] == CLEAN_STRENGTH) & results.begins_clean(key)
        figure["data"] += [
            _box_trace(boxes[clean], palette.CLEAN_COLOUR, ticks[: clean.sum()]) | on,
            _box_trace(boxes[~clean], palette.key_colour(key), ticks[clean.sum() :]) | on,
            _outlier_trace(boxes, ticks) | on,
        ]
    parts.strength_axes(figure, keys, places)
    parts.fraction_axis(figure, "accuracy", figure_data.box_range(frame))
    for boxes, ticks, on in zip(panels, places, axes, strict=True):
        _mark_beyond(figure, ticks, boxes, on)
    parts.chance_parts(figure, results.chance, [axis["yaxis"] for axis in axes])
    return [View("", figure)]


def views_of_kernel_parameters(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw box plots of mean adversarial accuracy by kernel parameters (see `accuracy_by_kernel_parameters`)."""
    figure, (on,) = parts.make_plotly_panels([""], 1)
    places = [str(size) for size in frame["kernel_parameters"]]
    figure["data"] = [
        _box_trace(frame, palette.KEY_COLOURS["fgsm"], places) | on,
        _outlier_trace(frame, places) | on,
        _mean_trace(frame, places) | on,
    ]
    figure["layout"]["meta"] |= {"width": 900, "grows": True}
    figure["layout"]["xaxis"] |= {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": places,
        "title": {"text": "kernel parameters of the cell", "standoff": 6},
        "showgrid": False,
    }
    parts.fraction_axis(figure, f"{SCORES[ADVERSARIAL]} accuracy", figure_data.box_range(frame))
    _mark_beyond(figure, places, frame, on)
    parts.chance_parts(figure, results.chance, [on["yaxis"]])
    return [View("", figure)]


def views_of_rank_correlation(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw Kendall's tau between every two columns as heat maps, one per view (see `key_correlations`)."""
    del results
    views = []
    for view in frame.index.get_level_values("view").unique():
        tau = figure_data.square(frame, view)
        texts = palette.correlation_texts(tau.to_numpy())
        hover, size = "%{y}<br>%{x}<br>τ = %{z:.3f}", (330 + 30 * len(tau), 220 + 26 * len(tau))
        figure = parts.heat_map(tau, texts, (-1, 1), parts.DIVERGING, "Kendall's τ", digits=3, hover=hover, size=size)
        figure["data"][0]["reversescale"] = True
        views.append(View(str(view), figure, first=view == strength_label("fog", figure_data.REFERENCE_SEVERITY)))
    return views


def views_of_dataset_correlation(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw Kendall's tau between the columns of all datasets as one heat map (see `dataset_correlations`)."""
    del results
    columns: list[Any] = list(frame.columns)
    names = figure_data.dataset_column_names(columns)
    tau = frame.set_axis(names, axis=0).set_axis(names, axis=1)
    side, few = 340 + max(9, min(30, 900 // len(tau))) * len(tau), len(tau) <= _WRITTEN_COLUMNS
    texts = palette.correlation_texts(tau.to_numpy()) if few else None
    hover, size = "%{y}<br>%{x}<br>τ = %{z:.3f}", (side, side - 110)
    figure = parts.heat_map(tau, texts, (-1, 1), parts.DIVERGING, "Kendall's τ", digits=3, hover=hover, size=size)
    figure["data"][0]["reversescale"] = True
    figure["layout"]["xaxis"]["tickangle"] = -90
    for axis in ("xaxis", "yaxis"):
        figure["layout"][axis]["tickfont"] = {"size": 11 if few else 8}
    return [View("", figure)]


def views_of_confidence(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw median confidences with their quartiles, one panel per key (see `confidence_curves`)."""
    views: list[View] = []
    groups = (("attack", "attacks", 2), ("corruption", "corruptions", 5), ("other", "others", 2), ("clean", "clean", 1))
    for kind, label, n_columns in groups:
        keys = palette.grouped([key for key in frame["key"].unique() if kind_of(key) == kind])
        if not keys or (kind == "clean" and views):
            continue
        figure, axes = parts.make_plotly_panels(keys, n_columns)
        places = []
        for key, on in zip(keys, axes, strict=True):
            rows = figure_data.curves_of(frame, key, results)
            begins_clean = results.begins_clean(key)
            places.append(palette.ticks(rows["strength"].unique(), begins_clean=begins_clean))
            for name, colour in zip(figure_data.CONFIDENCES, palette.CONFIDENCE_COLOURS, strict=True):
                curve = rows[rows["confidence"] == name]
                x = palette.ticks(curve["strength"], begins_clean=begins_clean)
                named = {"legendgroup": name, "showlegend": on is axes[0]}
                figure["data"] += [trace | on for trace in _band_traces(x, curve, name, colour, named)]
        parts.strength_axes(figure, keys, places)
        parts.fraction_axis(figure, "confidence")
        legend = {"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top"}
        margin = figure["layout"]["margin"]
        figure["layout"] |= {"showlegend": True, "legend": legend, "margin": margin | {"t": margin["t"] + 30}}
        views.append(View(label, figure))
    return views


def views_of_confusion(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw summed confusion matrices, rows as shares, one per view (see `confusion_sums`)."""
    n_classes = frame.shape[1]
    columns = figure_data.confusion_columns(frame)
    if n_classes > ALL_STRENGTHS_UP_TO_CLASSES:
        columns = figure_data.reference_columns(columns)
    names = results.class_names(n_classes)
    views = []
    for key, strength in columns:
        shares = figure_data.confusion_shares(frame, key, strength).set_axis(names, axis=0).set_axis(names, axis=1)
        texts = palette.share_texts(shares.to_numpy())
        hover, unit = "true %{y}<br>predicted %{x}<br>%{z:.2%}", "share of the true class"
        figure = parts.heat_map(shares, texts, (0, 1), COLOUR_SCALE, unit, digits=4, hover=hover, size=(720, 600))
        figure["data"][0]["colorbar"]["tickformat"] = ".0%"
        figure["layout"]["xaxis"]["title"] = {"text": "predicted class"}
        figure["layout"]["yaxis"]["title"] = {"text": "true class"}
        views.append(View(column_label(key, strength, results.strengths(key)), figure))
    return views


def views_of_clean_against(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw accuracy under a key against clean accuracy, coloured by kernel parameters, one view per key and strength.

    The points are the page's (see `View.column`); of the frame (see `clean_against`) only keys and ranges are used.
    """
    space = results.space
    bar = {"title": {"text": "kernel parameters", "side": "right"}, "thickness": 14, "outlinewidth": 0, "x": 1.09}
    size = 5 if len(results.accuracies) > _MANY_POINTS else 9
    scale = [[place / (len(palette.SIZE_COLOURS) - 1), colour] for place, colour in enumerate(palette.SIZE_COLOURS)]
    marker: dict[str, Any] = {"size": size, "color": palette.OTHER_COLOUR}
    # The page writes the texts: numbers of points at the border are not those of their place.
    hover = "%{customdata}<br>%{text}"
    if space is not None:
        marker = {"size": size, "cmin": 0, "cmax": space.max_kernel_parameters, "colorscale": scale, "colorbar": bar}
        hover = f"#{hover}<br>kernel parameters %{{marker.color}}"
    bulk = figure_data.bulk_range(frame["clean"])
    across = _widened(bulk)
    axis = {"title": {"text": "clean accuracy"}, "tickformat": ".0%", "range": list(across)}
    figure = _scatter_plot(
        {"name": "clean", "marker": marker, "hovertemplate": f"{hover}<extra></extra>"}, axis, results
    )
    figure["layout"]["meta"]["fractions"] = True
    line = {"color": INK, "width": 1, "dash": "dot"}
    diagonal = {"type": "line", "x0": 0, "y0": 0, "x1": 1, "y1": 1, "line": line, "layer": "below"}
    figure["layout"]["shapes"].insert(0, diagonal)
    front = frame[frame["front"]].sort_values(["clean", "accuracy"])
    marked = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "Pareto front",
        "x": parts.rounded(front["clean"], 5),
        "y": parts.rounded(front["accuracy"], 5),
        "customdata": front["architecture"].tolist(),
        "line": {"color": INK, "width": 1.5},
        "marker": {"symbol": "circle-open", "color": INK, "size": size + 4},
        "hovertemplate": "Pareto front: %{customdata}<br>clean %{x:.2%}<br>%{y:.2%}<extra></extra>",
    }
    with_front = {"data": [*figure["data"], marked], "layout": figure["layout"]}
    labels = {label: score for score, label in SCORES.items()}
    views = []
    groups: Any = frame.groupby(["key", "strength"], sort=False)
    for (key, strength), rows in groups:
        score = labels.get(key)
        # What is beyond one axis must not stretch the other.
        near = rows[rows["clean"].between(*bulk)]
        limits = _widened(figure_data.bulk_range((near if len(near) else rows)["accuracy"]))
        drawn = figure if score is None else with_front
        views.append(View(column_label(key, strength, results.strengths(key)), drawn, score or (key, strength), limits))
    return [views[0]._replace(first=True), *views[1:]]


def _widened(limits: tuple[float, float]) -> tuple[float, float]:
    margin = max(0.01, 0.05 * (limits[1] - limits[0]))
    return round(max(0.0, limits[0] - margin), 5), round(min(1.0, limits[1] + margin), 5)


def views_of_measures_against(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw accuracies against the numbers of measures, a view per measure and key (see `measures_against`)."""
    views = []
    groups: Any = frame.groupby(["measure", "key"], sort=False)
    for (measure, key), rows in groups:
        label = column_label(key, rows["strength"].iloc[0], results.strengths(key))
        points = {
            "x": [float(f"{value:.6g}") for value in rows["value"]],
            "y": parts.rounded(rows["accuracy"], 5),
            "customdata": rows["architecture"].tolist(),
            "marker": {"size": 5 if len(rows) > _MANY_POINTS else 9, "color": palette.key_colour(key)},
            "name": parts.plain(measure),
            "hovertemplate": "#%{customdata}<br>%{text}<extra></extra>",
        }
        logarithmic = palette.spans_magnitudes(rows["value"])
        axis: dict[str, Any] = {
            "title": {"text": f"{parts.plain(measure)} ({palette.agreement_words(rows)})"},
            "type": "log" if logarithmic else "linear",
        }
        across = figure_data.bulk_range(rows["value"], logarithmic=logarithmic)
        if across != (rows["value"].min(), rows["value"].max()):
            ends = np.log10(across) if logarithmic else np.array(across)
            margin = 0.03 * (ends[1] - ends[0])
            axis["range"] = [float(f"{ends[0] - margin:.6g}"), float(f"{ends[1] + margin:.6g}")]
        figure = _scatter_plot(points, axis, results)
        limits = _widened(figure_data.bulk_range(rows["accuracy"]))
        figure["layout"]["yaxis"] |= {"title": {"text": f"accuracy, {parts.plain(label)}"}, "range": list(limits)}
        views.append(View(f"{measure}, {label}", figure))
    return views


def _scatter_plot(points: dict[str, Any], axis: dict[str, Any], results: DatasetResults) -> parts.PlotlyFigure:
    layout = {
        "showlegend": False,
        "height": 500,
        "meta": {"width": 680, "cells": results.space is not None},
        "xaxis": axis,
        "yaxis": {"tickformat": ".0%"},
        "shapes": [],
        "annotations": [],
    }
    figure = {"data": [{"type": "scattergl", "mode": "markers"} | points], "layout": layout}
    # Outside the panel, where no point and not the diagonal is.
    parts.chance_parts(figure, results.chance, ["y"], outside=True)
    return figure


def views_of_measure_correlations(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw Kendall's tau of measures with accuracies as a heat map (see `measure_correlations`)."""
    del results
    tau = figure_data.correlation_matrix(frame)
    few = tau.shape[1] <= _WRITTEN_COLUMNS
    texts = palette.correlation_texts(tau.to_numpy()) if few else None
    hover, size = "%{y}<br>%{x}<br>τ = %{z:.3f}", (380 + 30 * tau.shape[1], 240 + 26 * len(tau))
    figure = parts.heat_map(
        tau, texts, (-1, 1), parts.DIVERGING, "Kendall's τ", digits=3, hover=hover, size=size, squares=False
    )
    figure["data"][0]["reversescale"] = True
    return [View("", figure)]


def views_of_operation_effects(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw what each operation adds on each edge with its interval, one view per score (see `effects_by_score`)."""
    space = results.cells
    views = []
    for score, rows in frame.groupby("score", sort=False):
        traces = []
        for operation, name in zip(space.operations, figure_data.operation_names(space), strict=True):
            own = 100 * rows[rows["operation"] == name].set_index("edge")[["effect", "low", "high"]]
            ends = [f"{low:+z.2f} to {high:+z.2f}" for low, high in zip(own["low"], own["high"], strict=True)]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": list(own.index),
                    "y": parts.rounded(own["effect"], 3),
                    "error_y": _error_bars(own["effect"], own["low"], own["high"], 3),
                    "customdata": ends,
                    "marker": {"color": space.operation_colours[operation], "size": 8},
                    "hovertemplate": f"%{{x}} {name}: %{{y:+.2f}} (%{{customdata}})<extra></extra>",
                }
            )
        layout = {
            "height": 380,
            "meta": {"width": 760},
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top"},
            "scattermode": "group",
            "xaxis": {"type": "category", "showgrid": False, "fixedrange": True},
            "yaxis": {
                "title": {"text": "percentage points"},
                "zeroline": True,
                "zerolinecolor": INK,
                "fixedrange": True,
            },
        }
        views.append(View(f"{SCORES[str(score)]} accuracy", {"data": traces, "layout": layout}))
    return views


def views_of_top_cells(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw the operations of the best cells, one column per cell, one row per edge (see `top_cells`)."""
    space = results.cells
    n_operations = len(space.operations)
    steps = np.linspace(0, 1, n_operations + 1)
    colours = [space.operation_colours[operation] for operation in space.operations]
    scale = [pair for i, colour in enumerate(colours) for pair in ((steps[i], colour), (steps[i + 1], colour))]
    labels = figure_data.operation_names(space)
    place = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "font": {"size": 10}}
    views = []
    for (among, score), rows in frame.groupby(["among", "score"], sort=False):
        codes = figure_data.operation_codes(rows, space)
        cells = rows.drop_duplicates("architecture")
        ids = codes.columns.tolist()
        ranks = palette.rank_texts(cells)
        heads = [
            f"#{i}, {accuracy:.2%}, rank {rank}"
            for i, accuracy, rank in zip(ids, cells["accuracy"], ranks, strict=True)
        ]
        hovers = [
            [f"{head}<br>{labels[code]}" for head, code in zip(heads, line, strict=True)] for line in codes.to_numpy()
        ]
        named = codes.set_axis(space.edge_labels).rename(columns="#{}".format)
        limits, size = (-0.5, n_operations - 0.5), (260 + 36 * len(ids), 320)
        figure = parts.heat_map(named, None, limits, scale, "", digits=0, hover="%{text}", size=size, squares=False)
        figure["data"][0] |= {"xgap": 3, "ygap": 3, "customdata": [ids] * len(codes), "text": hovers}
        figure["data"][0]["colorbar"] |= {"tickvals": list(range(n_operations)), "ticktext": labels}
        figure["layout"]["meta"]["cells"] = True
        figure["layout"]["annotations"] = [
            {"x": column, "text": rank} | place for column, rank in zip(named.columns, ranks, strict=True)
        ]
        if unseen := figure_data.n_unseen_ties(rows):
            figure["layout"]["xaxis"]["title"] = {"text": palette.unseen_words(unseen)}
        views.append(View(f"{SCORES[str(score)]}, {among}", figure))
    return views


def views_of_best_cells(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw the edit distances between the best cells; the page draws the cells below (see `best_cells`)."""
    distances = frame[list(frame.index)]
    texts = distances.to_numpy().astype(str).tolist()
    limits, size = (0, len(results.cells.edges)), (360 + 40 * len(frame), 220 + 32 * len(frame))
    hover = "%{y}<br>%{x}<br>%{z} edges differ"
    figure = parts.heat_map(distances, texts, limits, parts.BLUES, "edges", digits=0, hover=hover, size=size)
    return [View("", figure)]


def views_of_neighbours(frame: pd.DataFrame, results: DatasetResults) -> list[View]:
    """Draw what one changed edge of the best cells gains or loses, in percentage points (see `neighbour_changes`)."""
    views = []
    for (best, score), rows in frame.groupby(["best", "score"], sort=False):
        changes = figure_data.change_matrix(rows, results.cells)
        architecture, own, tied = figure_data.changed_cell(rows, results)
        texts = palette.change_texts(changes.to_numpy(), own, 2)
        for edge, operation in enumerate(own):
            # A text is read on a coloured field only.
            changes.iloc[edge, operation] = 0.0
        named = f"#{architecture}{palette.tie_words(tied)}"
        label = f"best by {SCORES[str(best)]} ({named}): change of {SCORES[str(score)]}"
        figure = _change_map(changes, texts)
        known: Any = rows[rows["low"].notna()][["edge", "operation", "low", "high"]].to_numpy().tolist()
        for edge, operation, low, high in known:
            line = figure["data"][0]["hovertext"][edge]
            line[results.cells.operations.index(operation)] += f" ({100 * low:+.2f} to {100 * high:+.2f})"
        views.append(View(label, figure))
    return views


def draw_empty_changes(space: CellSpace) -> parts.PlotlyFigure:
    """Draw the heat map of changes that the page's explorer fills."""
    blank = pd.DataFrame(0.0, space.edge_labels, figure_data.operation_names(space))
    return _change_map(blank, [[""] * blank.shape[1]] * len(blank))


def _change_map(changes: pd.DataFrame, texts: list[list[str]]) -> parts.PlotlyFigure:
    reach = max(1.0, float(np.nanmax(np.abs(changes.to_numpy()), initial=0)))
    limits, unit, hover = (-reach, reach), "percentage points", "edge %{y}: %{x}<br>%{hovertext}"
    figure = parts.heat_map(
        changes, texts, limits, parts.DIVERGING, unit, digits=3, hover=hover, size=(640, 320), squares=False
    )
    figure["layout"]["xaxis"]["tickangle"] = 0
    figure["data"][0]["hovertext"] = [
        ["the cell's own operation" if text == palette.OWN_OPERATION else f"{text} percentage points" for text in row]
        for row in texts
    ]
    return figure


def _box_trace(rows: pd.DataFrame, colour: str, places: list[str]) -> dict[str, Any]:
    numbers = {"lowerfence": "low", "q1": "q1", "median": "median", "q3": "q3", "upperfence": "high"}
    return {
        "type": "box",
        "x": places,
        **{name: parts.rounded(rows[column], 5) for name, column in numbers.items()},
        "fillcolor": colour,
        "line": {"color": INK, "width": 1},
        "hoverinfo": "y",
        "yhoverformat": ".2%",
    }


def _mean_trace(boxes: pd.DataFrame, places: list[str]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": places,
        "y": parts.rounded(boxes["mean"], 5),
        "error_y": _error_bars(boxes["mean"], boxes["mean_low"], boxes["mean_high"], 5),
        "marker": {"symbol": "diamond", "size": 6, "color": "#ffffff", "line": {"color": INK, "width": 1}},
        "hovertemplate": "mean %{y:.2%}<extra></extra>",
    }


def _error_bars(middle: pd.Series, low: pd.Series, high: pd.Series, digits: int) -> dict[str, Any]:
    ends = {"array": parts.rounded(high - middle, digits), "arrayminus": parts.rounded(middle - low, digits)}
    return {"type": "data", "symmetric": False, "color": INK, "thickness": 1, "width": 3} | ends


def _outlier_trace(boxes: pd.DataFrame, places: list[str]) -> dict[str, Any]:
    dots = boxes.assign(place=places)[["place", "outliers"]].explode("outliers").dropna()
    return {
        "type": "scatter",
        "mode": "markers",
        "x": dots["place"].tolist(),
        "y": parts.rounded(dots["outliers"], 5),
        "marker": {"color": INK, "size": 4},
        "hovertemplate": "%{y:.2%}<extra></extra>",
    }


def _mark_beyond(figure: parts.PlotlyFigure, places: list[str], boxes: pd.DataFrame, on: Mapping[str, str]) -> None:
    """Mark at the ends of a panel's axis how many accuracies are beyond them (see `box_range`)."""
    for column, arrow, y, anchor in (("n_below", "▼", 0, "bottom"), ("n_above", "▲", 1, "top")):
        for place, count in zip(places, boxes[column], strict=True):
            if count:
                figure["layout"]["annotations"].append(
                    {
                        "text": f"{arrow}{count:,}",
                        "x": place,
                        "y": y,
                        "xref": on["xaxis"],
                        "yref": f"{on['yaxis']} domain",
                        "yanchor": anchor,
                        "showarrow": False,
                        "font": {"size": 10},
                    }
                )


def _band_traces(
    x: list[str], curve: pd.DataFrame, name: str, colour: str, named: Mapping[str, Any]
) -> list[dict[str, Any]]:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    edge = {"type": "scatter", "x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    edge |= dict(named) | {"showlegend": False}
    return [
        edge | {"y": parts.rounded(curve["q1"], 5)},
        edge | {"y": parts.rounded(curve["q3"], 5), "fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.2)"},
        {
            "type": "scatter",
            "x": x,
            "y": parts.rounded(curve["median"], 5),
            "name": name,
            "mode": "lines+markers",
            "line": {"color": colour, "width": 2},
            "customdata": [f"{n:,} architecture{'' if n == 1 else 's'}" for n in curve["n"]],
            "hovertemplate": f"{name}: %{{y:.2%}}, median of %{{customdata}}<extra></extra>",
            **named,
        },
    ]
