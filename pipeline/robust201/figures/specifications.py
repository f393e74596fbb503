"""The Vega-Lite specification of each figure, for files and for the report's page.

Each function draws a frame that a function of `figures.figure_data` computes; `figures.table` pairs the functions.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from robust201.analysis.class_summaries import CLASS_CONFIDENCES, CONFIDENCES
from robust201.analysis.dataset_results import ADVERSARIAL, SCORES, DatasetResults
from robust201.analysis.labels import column_label, dataset_label, key_label, strength_label
from robust201.analysis.leaderboard import REFERENCE_SEVERITY, nearest_strength
from robust201.core.records import CLEAN_STRENGTH
from robust201.figures import figure_data, palette
from robust201.figures.marks import (
    SHOWN_POSITION,
    band_layers,
    box_layers,
    category_axis,
    chance_layers,
    clamp_to_axes,
    colour_bar,
    fraction_axis,
    heat_map,
    interval_layers,
    label_outer_axes,
    named_colours,
    point_layers,
    spec_rows,
    strength_axis,
)
from robust201.figures.panels import MIN_NUMBER_SIZE, SMALL_SIZE, Figure, Panel, PanelLayout, Spec
from robust201.reader.result_files import kind_of
from robust201.reader.value_checks import CLEAN
from robust201.spaces.cell_space import INK, PAPER, CellSpace

AUTOATTACK_PREFIX = "aa_"
"""Prefix of the keys of AutoAttack's attacks."""

AUTOATTACK_NOTE = "APGD-CE and Square: correct predictions are on clean images that withstood the attack"
"""Note on AutoAttack in figures of confidences (docs/protocol/attacks.md, "What is measured if an attack fails?")."""

FEW_IMAGES_NOTE = "an architecture may misclassify only a few images"
"""Note on the confidence in wrong predictions, which is then a mean over few images."""

NEIGHBOURS_NOTE = "• marks the cell's own operation; a field is empty if its class was not evaluated"

MAX_CLASSES_WITH_ALL_STRENGTHS = 50
"""Maximum number of classes for which the page has confusion matrices at all strengths; this limits the page's size."""

MAX_LARGE_POINTS = 500
"""Maximum number of networks for which scatter plots have large points."""

PAGE_MAP_WIDTH = 560.0
"""Width of large heat maps on the page, in points."""

CLASS_WIDTH = 11.0
"""Horizontal space for each class in a figure of confidences by class, in points."""

_ONE_PANEL_PER_ROW = 1e9
"""Value of `Figure.min_panel_width` that puts every panel on its own row."""

_QUARTILE_TOOLTIP: list[Spec] = [
    *({"field": name, "format": ".2%"} for name in ("q1", "median", "q3")),
    {"field": "n", "title": "architectures", "format": ","},
]

_TAU_TITLES = {"row": "of", "column": "and", "value": "τ"}
"""Titles in the tooltips of heat maps of rank correlations."""


def specify_boxes(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of accuracies (see `accuracy_boxes`), with one panel per key and one box per strength."""
    keys = palette.sort_by_group(list(frame["key"].unique()))
    are_corruptions = kind_of(keys[0]) == "corruption"
    limits = figure_data.box_range(frame)
    axis_titles = {palette.strength_axis_title(key) for key in keys}
    shared_title = axis_titles.pop() if len(axis_titles) == 1 else ""
    colours = {"clean": palette.CLEAN_COLOUR} | {palette.key_group(key): palette.key_colour(key) for key in keys}
    groups = [group for group in palette.CORRUPTION_GROUPS if group in colours]
    legend_options = {"values": groups, "symbolType": "square"} if are_corruptions and groups else {"has_legend": False}

    def draw(layout: PanelLayout, key: str) -> Spec:
        boxes = frame[frame["key"] == key]
        starts_with_clean = results.starts_with_clean(key)
        tick_labels = palette.tick_labels(boxes["strength"], starts_with_clean=starts_with_clean)
        is_clean = (boxes["strength"] == CLEAN_STRENGTH) & starts_with_clean
        boxes = boxes.assign(group=np.where(is_clean, "clean", palette.key_group(key)))
        axis_title = None if shared_title else palette.strength_axis_title(key)
        encoding = {
            "x": category_axis(layout, tick_labels, axis_title, type="band", paddingOuter=0.1),
            "y": fraction_axis(layout, "accuracy", limits),
            "color": named_colours(colours, **legend_options),
        }
        layers = [*box_layers(boxes, tick_labels, limits), *chance_layers(results.chance_level, limits)]
        return {"width": layout.width, "height": 62 if are_corruptions else 88, "encoding": encoding, "layer": layers}

    panels = [Panel(key_label(key), partial(draw, key=key)) for key in keys]
    return Figure(panels, 90 if are_corruptions else 187, label=shared_title)


def specify_curves(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies with 95% intervals against strengths, with one panel per key and one curve per network.

    If one strength is much larger than the others, such as ε = 255/255, strengths are spaced evenly.
    """
    keys = palette.sort_by_group(list(frame["key"].unique()))
    networks = list(frame["network"].unique())
    colours = dict(zip(networks, palette.NETWORK_COLOURS, strict=False))
    shapes = [palette.NETWORK_SHAPES[index % len(palette.NETWORK_SHAPES)] for index in range(len(networks))]
    has_intervals = frame["low"].notna().all()
    with_intervals = frame if has_intervals else frame.assign(low=frame["accuracy"], high=frame["accuracy"])
    limits = figure_data.curve_range(with_intervals)
    axis_titles = {palette.strength_axis_title(key) for key in keys}
    shared_title = axis_titles.pop() if len(axis_titles) == 1 else ""

    def draw(layout: PanelLayout, key: str) -> Spec:
        rows = with_intervals[with_intervals["key"] == key]
        strengths = sorted(rows["strength"].unique())
        starts_with_clean = results.starts_with_clean(key)
        tick_labels = palette.tick_labels(strengths, starts_with_clean=starts_with_clean)
        rows = rows.assign(tick_label=palette.tick_labels(rows["strength"], starts_with_clean=starts_with_clean)).drop(
            columns="key"
        )
        axis_title = None if shared_title else palette.strength_axis_title(key)
        has_category_axis = len(strengths) == 1 or figure_data.has_far_strength(strengths)
        position_field = "tick_label" if has_category_axis else "strength"
        if has_category_axis:
            x = category_axis(layout, tick_labels, axis_title, type="point", padding=0.3)
        else:
            x = strength_axis(strengths, tick_labels, axis_title)
        tooltip = [{"field": "network"}, {"field": "tick_label", "title": "at"}, {"field": "accuracy", "format": ".2%"}]
        tooltip += [{"field": name, "format": ".2%"} for name in ("low", "high") if has_intervals]
        colour = {"field": "network"}
        layers = band_layers(rows, {"field": position_field}, ("low", "accuracy", "high"), colour, tooltip)
        *_, points = layers[0]["layer"]
        points["mark"] |= {"size": 14}
        points["encoding"] |= {
            "shape": {"field": "network", "scale": {"domain": networks, "range": shapes}, "legend": None}
        }
        encoding = {
            "x": x,
            "y": fraction_axis(layout, "accuracy", limits),
            "color": named_colours(colours, symbolType="stroke"),
        }
        layers += chance_layers(results.chance_level, limits, is_label_right=True)
        return {"width": layout.width, "height": 88, "encoding": encoding, "layer": layers}

    min_panel_width = 90 if kind_of(keys[0]) == "corruption" else 150
    return Figure([Panel(key_label(key), partial(draw, key=key)) for key in keys], min_panel_width, label=shared_title)


def specify_kernel_parameters(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of mean adversarial accuracy by kernel parameters (see `accuracy_by_kernel_parameters`)."""
    limits = figure_data.box_range(frame)
    tick_labels = [str(size) for size in frame["kernel_parameters"]]
    # The layers set the field of the colour channel, so it is removed here.
    colour = {
        name: value for name, value in _size_colours(results.cell_space, has_legend=False).items() if name != "field"
    }
    means = frame.assign(tick_label=tick_labels)[["tick_label", "mean", "mean_low", "mean_high"]]

    def draw(layout: PanelLayout) -> Spec:
        position: Spec = {"x": {"field": "tick_label"}}
        boxes = frame.drop(columns=["mean", "mean_low", "mean_high"]).assign(group=frame["kernel_parameters"])
        diamond = {"type": "point", "shape": "diamond", "size": 14, "fill": "#ffffff", "stroke": INK}
        columns = {"mean": "mean", "mean_low": "low", "mean_high": "high"}
        tooltip = [{"field": name, "title": title, "format": ".2%"} for name, title in columns.items()]
        mean = {"mark": diamond, "encoding": position | {"y": {"field": "mean"}, "tooltip": tooltip}}
        complete_rows = spec_rows(means.dropna())
        layers = [
            *box_layers(boxes, tick_labels, limits),
            *interval_layers(complete_rows, position, ("mean_low", "mean_high"), 3),
            {"data": {"values": spec_rows(means)}} | mean,
            *chance_layers(results.chance_level, limits),
        ]
        label = f"{SCORES[ADVERSARIAL]} accuracy"
        encoding = {
            "x": category_axis(layout, tick_labels, "kernel parameters of the cell", type="band", paddingOuter=0.1),
            "y": fraction_axis(layout, label, limits),
            "color": colour,
        }
        return {
            "width": layout.width,
            "height": min(165, 22 + 0.45 * layout.width),
            "encoding": encoding,
            "layer": layers,
        }

    return Figure([Panel("", draw)], _ONE_PANEL_PER_ROW)


def _size_colours(space: CellSpace, *, has_legend: bool) -> Spec:
    colour = colour_bar((0, space.max_kernel_parameters), palette.SIZE_COLOURS, "kernel parameters of the cell")
    return colour if has_legend else colour | {"legend": None}


def specify_rank_correlation(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau between the rankings under each pair of keys, a heat map per view (see `key_correlations`)."""
    del results
    panels = []
    labels_by_view = [list(rows.index.get_level_values("key")) for _, rows in frame.groupby("view", sort=False)]
    have_same_labels = all(labels == labels_by_view[0] for labels in labels_by_view)
    for view in map(str, frame.index.get_level_values("view").unique()):
        tau = figure_data.correlation_view(frame, view)
        texts = palette.correlation_texts(tau.to_numpy())

        def draw(layout: PanelLayout, tau: pd.DataFrame = tau, texts: list[list[str]] = texts) -> Spec:
            # Larger tiles would not be more legible.
            tile_width = min(34, layout.width / len(tau))
            chart = heat_map(tau, texts, layout, colour=_tau_colours(), titles=_TAU_TITLES, tile_width=tile_width)
            return label_outer_axes(chart, layout) if have_same_labels else chart

        is_initial = view == strength_label("fog", REFERENCE_SEVERITY)  # the label is the same for all corruptions
        panels.append(Panel(str(view), draw, is_initial=is_initial))
    return Figure(panels, 216, has_menu=True, page_width=PAGE_MAP_WIDTH)


def _tau_colours() -> Spec:
    colour = colour_bar((-1, 1), palette.CORRELATION_SCHEME, "Kendall's tau-b")
    colour["scale"]["reverse"] = True
    return colour


def specify_dataset_correlation(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau between the rankings on all datasets as one heat map (see `dataset_correlations`)."""
    del results
    columns: list[Any] = list(frame.columns)
    column_names = figure_data.dataset_column_names(columns)
    tau = frame.set_axis(column_names, axis=0).set_axis(column_names, axis=1)
    texts = palette.correlation_texts(tau.to_numpy())
    groups = [f"{dataset_label(name)}: {key_label(key)}" for name, key, _ in columns]
    group_starts = [index for index in range(len(groups)) if index == 0 or groups[index] != groups[index - 1]]
    group_sizes = np.diff([*group_starts, len(groups)])
    boundaries = [index for index in range(1, len(columns)) if columns[index][0] != columns[index - 1][0]]

    def draw(layout: PanelLayout) -> Spec:
        tile_width = min(34, layout.width / len(tau))
        boundary_lines = [
            {"data": {"values": [{}]}, "mark": {"type": "rule", "strokeWidth": 1}}
            | {
                "encoding": {
                    axis: {"value": tile_width * boundary},
                    other_axis: {"value": 0},
                    f"{other_axis}2": {"value": tile_width * len(tau)},
                }
            }
            for boundary in boundaries
            for axis, other_axis in ("xy", "yx")
        ]
        chart = heat_map(
            tau,
            texts,
            layout,
            colour=_tau_colours(),
            titles=_TAU_TITLES,
            tile_width=tile_width,
            extra_layers=boundary_lines,
        )
        if tile_width < SMALL_SIZE:
            # There is no room for a label on every tile, so each dataset and key has one label in the middle of its
            # tiles, whose strengths ascend. Groups that are too narrow for a label have none.
            starts_by_middle = {
                start + (size - 1) // 2: start
                for start, size in zip(group_starts, group_sizes, strict=True)
                if size * tile_width >= 4.5
            }
            labels = {column_names[middle]: groups[group_start] for middle, group_start in starts_by_middle.items()}
            for axis in ("x", "y"):
                axis_options = chart["encoding"][axis]["axis"]
                axis_options |= {"values": list(labels), "labelExpr": f"{palette.json_text(labels)}[datum.value]"}
                axis_options["labelFontSize"] = MIN_NUMBER_SIZE
        return chart

    note = "the epsilons of each attack are in ascending order" if len(tau) > 60 else ""
    return Figure([Panel("", draw)], _ONE_PANEL_PER_ROW, page_width=PAGE_MAP_WIDTH, label=note)


def specify_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences with their quartiles (see `confidence_curves`), with one panel per key."""
    keys = _confidence_keys(frame)
    notes = [AUTOATTACK_NOTE] if any(key.startswith(AUTOATTACK_PREFIX) for key in keys) else []
    colours = dict(zip(CONFIDENCES, palette.CONFIDENCE_COLOURS, strict=True))
    return _confidence_curves(frame, results, colours, [*notes, FEW_IMAGES_NOTE, "confidence in the"])


def specify_one_class_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences in one class with their quartiles (see `one_class_confidence`)."""
    colours = dict(zip(CLASS_CONFIDENCES, palette.CLASS_CONFIDENCE_COLOURS, strict=True))
    return _confidence_curves(frame, results, colours, [f"confidence in {_describe_class(results)}, over the"])


def _describe_class(results: DatasetResults) -> str:
    class_number = results.shown_class
    class_name = results.class_names(results.n_classes or 0)[class_number : class_number + 1]
    return (
        f"class {class_number} ({class_name[0]})"
        if class_name and class_name[0] != str(class_number)
        else f"class {class_number}"
    )


def _confidence_keys(frame: pd.DataFrame) -> list[str]:
    """Return the keys that get a panel: all except `clean`, which is the first point of every panel."""
    return palette.sort_by_group([key for key in frame["key"].unique() if key != CLEAN]) or [CLEAN]


def _confidence_curves(
    frame: pd.DataFrame, results: DatasetResults, colours: dict[str, str], legend_title: list[str]
) -> Figure:
    colour = named_colours(colours, title=legend_title, symbolType="stroke")
    colour["legend"] |= {"titleAnchor": "middle"}

    def draw(layout: PanelLayout, key: str) -> Spec:
        rows = figure_data.curves_of_key(frame, key, results)
        starts_with_clean = results.starts_with_clean(key)
        tick_labels = palette.tick_labels(sorted(rows["strength"].unique()), starts_with_clean=starts_with_clean)
        rows = rows.assign(tick_label=palette.tick_labels(rows["strength"], starts_with_clean=starts_with_clean))
        tooltip = [{"field": "confidence", "title": legend_title[-1]}, {"field": "tick_label", "title": "at"}]
        tooltip += _QUARTILE_TOOLTIP
        columns = ["tick_label", "confidence", "q1", "median", "q3", "n"]
        layers = band_layers(
            rows[columns], {"field": "tick_label"}, ("q1", "median", "q3"), {"field": "confidence"}, tooltip
        )
        encoding = {
            "x": category_axis(layout, tick_labels, palette.strength_axis_title(key), type="point", padding=0.3),
            "y": fraction_axis(layout, "confidence"),
            "color": colour,
        }
        return {"width": layout.width, "height": 62, "encoding": encoding, "layer": layers}

    return Figure([Panel(key_label(key), partial(draw, key=key)) for key in _confidence_keys(frame)], 108)


def specify_class_confidences(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences with their quartiles by class (see `class_confidences`), with one panel per key."""
    n_classes = int(frame["class"].max()) + 1
    class_names = results.class_names(n_classes)
    colours = dict(zip(CLASS_CONFIDENCES, palette.CLASS_CONFIDENCE_COLOURS, strict=True))
    colour = named_colours(colours, title=["confidence in a class, over the"], symbolOpacity=1)
    strengths = dict(zip(frame["key"], frame["strength"], strict=True))
    keys = [
        *(key for key in strengths if key == CLEAN),
        *palette.sort_by_group([key for key in strengths if key != CLEAN]),
    ]

    def draw(layout: PanelLayout, key: str) -> Spec:
        class_labels = class_names if layout.is_on_page else [str(number) for number in range(n_classes)]
        rows = frame[frame["key"] == key]
        rows = rows.assign(tick_label=[class_labels[number] for number in rows["class"]])
        position = {"x": {"field": "tick_label"}, "xOffset": {"field": "confidence"}}
        tooltip = [{"field": "tick_label", "title": "class"}, {"field": "confidence", "title": "over the"}]
        quartile_rule = {"y": {"field": "q1"}, "y2": {"field": "q3"}, "color": {"field": "confidence"}}
        median = {"y": {"field": "median"}, "color": {"field": "confidence"}, "tooltip": tooltip + _QUARTILE_TOOLTIP}
        encoding = {
            "x": category_axis(
                layout, class_labels, "class" if layout.is_at_bottom else None, type="band", paddingOuter=0.1
            ),
            "xOffset": {"type": "nominal", "scale": {"type": "band", "paddingOuter": 0.4, "domain": list(colours)}},
            "y": fraction_axis(layout, "confidence"),
            "color": colour,
        }
        columns = ["tick_label", "confidence", "q1", "median", "q3", "n"]
        layers: list[Spec] = [
            {"mark": {"type": "rule", "strokeWidth": 1.4, "opacity": 0.5}, "encoding": position | quartile_rule},
            {"mark": {"type": "point", "size": 9}, "encoding": position | median},
        ]
        layer = {"data": {"values": spec_rows(rows[columns])}, "layer": layers}
        return {"width": layout.width, "height": 62, "encoding": encoding, "layer": [layer]}

    panels = [Panel(column_label(key, strengths[key], results.strengths(key)), partial(draw, key=key)) for key in keys]
    return Figure(panels, max(108.0, CLASS_WIDTH * n_classes))


def specify_confusion(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw summed confusion matrices with normalised rows (see `confusion_sums`).

    Files show one strength per key (see `reference_columns`); the page may show all strengths.
    """
    n_classes = frame.shape[1]
    columns = figure_data.confusion_columns(frame)
    reference = figure_data.reference_columns(columns)
    if n_classes > MAX_CLASSES_WITH_ALL_STRENGTHS:
        columns = reference
    class_names = results.class_names(n_classes)
    class_numbers = [str(number) for number in range(n_classes)]
    titles = {"row": "true", "column": "predicted", "value": "fraction of the true class"}
    colour = colour_bar((0, 1), palette.FRACTION_SCHEME, "% of the images of the true class", format=".0%", tickCount=5)

    def draw(layout: PanelLayout, key: str, strength: float) -> Spec:
        fractions = figure_data.confusion_fractions(frame, key, strength)
        class_labels = class_names if layout.is_on_page else class_numbers
        fractions = fractions.set_axis(class_labels, axis=0).set_axis(class_labels, axis=1)
        texts = palette.fraction_texts(fractions.to_numpy())
        map_size = min(175 if not layout.is_on_page else 300, layout.width)
        options: Spec = {
            "colour": colour,
            "titles": titles,
            "decimals": 4,
            "number_format": ".2%",
            "tile_width": map_size / n_classes,
        }
        chart = heat_map(fractions, texts, layout, **options)
        has_labels = n_classes <= palette.MAX_WRITTEN_CLASSES or layout.is_on_page
        chart["encoding"]["x"]["axis"] |= {
            "title": "predicted class" if layout.is_at_bottom else None,
            "labels": has_labels,
        }
        chart["encoding"]["y"]["axis"] |= {"title": "true class" if layout.is_leftmost else None, "labels": has_labels}
        return chart

    panels = [
        Panel(column_label(*column, results.strengths(column[0])), partial(draw, key=column[0], strength=column[1]))
        for column in columns
    ]
    panels = [
        Panel(panel.label, panel.draw, is_in_file=column in reference)
        for panel, column in zip(panels, columns, strict=True)
    ]
    return Figure(panels, 112, has_menu=True, page_width=400)


def specify_clean_and_key_accuracies(frame: pd.DataFrame, results: DatasetResults) -> Figure:  # noqa: PLR0915
    """Draw accuracy under each key against clean accuracy, coloured by kernel parameters."""
    space = results.space
    clean_range = figure_data.bulk_range(frame["clean"])
    clean_limits = _add_margin(clean_range)
    groups: Any = dict(list(frame.groupby(["key", "strength"], sort=False)))
    strengths: Any = frame.groupby("key", sort=False)["strength"].unique()
    evaluations_in_file = {(key, nearest_strength(key, list(values))) for key, values in strengths.items()}
    position_by_key = {key: index for index, key in enumerate(palette.sort_by_group(list(strengths.index)))}
    # Points beyond the limits of the axis of clean accuracies must not extend the vertical axis.
    rows_in_clean_range = {evaluation: rows[rows["clean"].between(*clean_range)] for evaluation, rows in groups.items()}
    ranges = {
        evaluation: figure_data.bulk_range(
            (rows_in_clean_range[evaluation] if len(rows_in_clean_range[evaluation]) else rows)["accuracy"]
        )
        for evaluation, rows in groups.items()
    }
    ranges_in_file = [
        ranges[evaluation] for evaluation in evaluations_in_file if len(rows_in_clean_range[evaluation])
    ] or list(ranges.values())
    shared_limits = _add_margin((min(low for low, _ in ranges_in_file), max(high for _, high in ranges_in_file)))
    scores_by_label = {label: score for score, label in SCORES.items()}
    front = frame[frame["front"]].sort_values(["clean", "accuracy"])[["architecture", "clean", "accuracy"]]
    line_names = [*(["Pareto front"] if len(front) else []), "as accurate as clean"]
    line_legend = named_colours(dict.fromkeys(line_names, INK))
    line_legend["legend"] |= {"symbolType": "stroke"}

    def draw(layout: PanelLayout, evaluation: tuple[str, float]) -> Spec:
        limits = _add_margin(ranges[evaluation]) if layout.is_on_page else shared_limits
        size = (3.0 if len(results.accuracies) > MAX_LARGE_POINTS else 14.0) * (3 if layout.is_on_page else 1)
        height = 260.0 if layout.is_on_page else 72.0
        columns = ["architecture", "clean", "accuracy", *(["kernel_parameters"] if space is not None else [])]
        points_data = {"name": "points"} if layout.is_on_page else {"values": spec_rows(groups[evaluation][columns])}
        colour = {"value": palette.OTHER_COLOUR if layout.is_on_page else palette.key_colour(evaluation[0])}
        if space is not None:
            colour = _size_colours(space, has_legend=True) | {"field": "kernel_parameters"}
        tooltip = [
            {"field": "architecture", "type": "nominal"},
            {"field": "clean_text", "type": "nominal", "title": "clean"},
        ]
        tooltip += [{"field": "accuracy_text", "type": "nominal", "title": "@label"}]
        tooltip += [{"field": "kernel_parameters", "title": "kernel parameters"}] if space is not None else []
        axis_limits = [clean_limits, ("low", "high") if layout.is_on_page else limits]
        axes = ("clean", "accuracy")
        encoding = {"color": colour} | ({"tooltip": tooltip} if layout.is_on_page else {})
        diagonal = {"type": "rule", "strokeDash": [1, 2], "strokeWidth": 0.8, "clip": True}
        diagonal_ends = {"x": {"datum": 0}, "y": {"datum": 0}, "x2": {"datum": 1}, "y2": {"datum": 1}}
        name_channel: Spec = {
            "field": "name",
            "legend": line_legend["legend"],
            "type": "nominal",
            "scale": line_legend["scale"],
        }
        layers: list[Spec] = [
            {"data": {"values": [{"name": "as accurate as clean"}]}, "mark": {**diagonal}}
            | {"encoding": diagonal_ends | {"stroke": name_channel, "strokeDash": _dash_channel(line_legend)}},
            *point_layers(points_data, axes, axis_limits, encoding, size, (layout.width, height)),
        ]
        if evaluation[0] in scores_by_label and len(front):
            hover = {"tooltip": [{"field": "architecture", "title": "Pareto front"}]}
            position = {"x": {"field": "clean"}, "y": {"field": "accuracy"}}
            ring = {"type": "point", "filled": False, "size": 4 * size, "color": INK, "clip": True}
            path = position | {"stroke": name_channel}
            mark = {"type": "line", "strokeWidth": 0.8, "clip": True}
            front_layers = [{"mark": mark, "encoding": path}, {"mark": ring, "encoding": position | hover}]
            layers.append({"data": {"values": spec_rows(front.assign(name="Pareto front"))}, "layer": front_layers})
        if layout.is_on_page:
            ring = {"type": "point", "filled": False, "size": 90, "strokeWidth": 1.5, "color": INK}
            chosen = [{"filter": "datum.architecture === chosen"}, *clamp_to_axes(axes, axis_limits)]
            layers.append({"data": points_data, "transform": chosen, "mark": ring, "encoding": SHOWN_POSITION})
        y = fraction_axis(layout, "@title" if layout.is_on_page else "accuracy", limits)
        x = {
            "type": "quantitative",
            "scale": {"domain": list(clean_limits), "nice": False, "zero": False},
        }
        x["axis"] = {
            "title": "clean accuracy" if layout.is_on_page else None,
            "format": ".0%",
            "grid": True,
            "tickCount": 4,
        }
        spec: Spec = {"width": layout.width, "height": height, "encoding": {"x": x, "y": y}, "layer": layers}
        if layout.is_on_page:
            y["scale"]["domain"] = ["@low", "@high"]
        layers += chance_layers(results.chance_level, limits, is_label_right=True)
        return spec

    panels = []
    for evaluation in sorted(groups, key=lambda column: position_by_key[column[0]]):
        key, strength = evaluation
        label, score = column_label(key, strength, results.strengths(key)), scores_by_label.get(key)
        column, limits = score or evaluation, _add_margin(ranges[evaluation])
        panels.append(
            Panel(
                label,
                partial(draw, evaluation=evaluation),
                is_in_file=evaluation in evaluations_in_file,
                column=column,
                limits=limits,
            )
        )
    return Figure(panels, 108, has_menu=True, page_width=400, label="clean accuracy")


def _dash_channel(line_legend: Spec) -> Spec:
    names = line_legend["scale"]["domain"]
    scale = {"domain": names, "range": [[1, 0] if name == "Pareto front" else [1, 2] for name in names]}
    return {"field": "name", "type": "nominal", "scale": scale, "legend": line_legend["legend"]}


def _add_margin(limits: tuple[float, float]) -> tuple[float, float]:
    margin = max(0.01, 0.05 * (limits[1] - limits[0]))
    return round(max(0.0, limits[0] - margin), 5), round(min(1.0, limits[1] + margin), 5)


def specify_measure_correlations(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau between measures (rows) and accuracies (columns); see `measure_correlations`."""
    del results
    tau = figure_data.correlation_matrix(frame)
    texts = palette.correlation_texts(tau.to_numpy())

    def draw(layout: PanelLayout) -> Spec:
        tile_width = min(43, layout.width / tau.shape[1])
        return heat_map(tau, texts, layout, colour=_tau_colours(), titles=_TAU_TITLES, tile_width=tile_width, height=16)

    return Figure([Panel("", draw)], _ONE_PANEL_PER_ROW)


def specify_operation_effects(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw each operation's effect on each edge with its interval (see `effects_by_score`), one panel per score."""
    space = results.cell_space
    operation_names = figure_data.operation_names(space)
    colours = dict(
        zip(operation_names, [space.operation_colours[operation] for operation in space.operations], strict=True)
    )
    fill = named_colours(colours, symbolType="square") | {"field": "operation"}
    panels = []
    for score, rows in frame.groupby("score", sort=False):
        points = rows.assign(**{name: 100 * rows[name] for name in ("effect", "low", "high")})
        points = points[["edge", "operation", "effect", "low", "high"]]

        def draw(layout: PanelLayout, points: pd.DataFrame = points) -> Spec:
            shift = {"field": "operation", "type": "nominal", "scale": {"domain": operation_names}}
            position = {"x": {"field": "edge"}, "xOffset": shift}
            tooltip = [{"field": "edge"}, {"field": "operation"}]
            tooltip += [{"field": name, "format": "+.2f"} for name in ("effect", "low", "high")]
            dot = {"type": "point", "size": 12, "stroke": INK, "strokeWidth": 0.4}
            effect_rows = spec_rows(points, 3)
            layers: list[Spec] = [
                {"data": {"values": [{}]}, "mark": "rule", "encoding": {"y": {"datum": 0}}},
                *interval_layers(effect_rows, position, ("low", "high"), 3),
                {"data": {"values": effect_rows}, "mark": dot}
                | {"encoding": position | {"y": {"field": "effect"}, "fill": fill, "tooltip": tooltip}},
            ]
            encoding = {
                "x": category_axis(layout, list(space.edge_labels), None, type="band", paddingInner=0.25),
                "y": {"type": "quantitative", "axis": {"title": "percentage points"}},
            }
            encoding["x"]["axis"] |= {"ticks": False}
            return {
                "width": layout.width,
                "height": 260 if layout.is_on_page else 105,
                "encoding": encoding,
                "layer": layers,
            }

        panels.append(Panel(f"{SCORES[str(score)]} accuracy", draw))
    return Figure(panels, _ONE_PANEL_PER_ROW, has_menu=True, page_width=430)


def specify_top_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the operations of the best cells (see `top_cells`), with one column per cell and one row per edge."""
    space = results.cell_space
    operation_names = figure_data.operation_names(space)
    colours = dict(
        zip(operation_names, [space.operation_colours[operation] for operation in space.operations], strict=True)
    )
    panels = []
    for (among, score), rows in frame.groupby(["among", "score"], sort=False):
        n_omitted = figure_data.count_omitted_ties(rows)
        label = f"{SCORES[str(score)]}, {among}"
        title = f"{SCORES[str(score)]} accuracy, {among}{f'; {palette.omitted_note(n_omitted)}' if n_omitted else ''}"

        def draw(layout: PanelLayout, rows: pd.DataFrame = rows, n_omitted: int = n_omitted) -> Spec:
            codes = figure_data.operation_codes(rows, space)
            cells = rows.drop_duplicates("architecture")
            ranks = palette.rank_texts(cells)
            ids = [f"#{index}" for index in codes.columns]
            tiles = [
                {"column": cell, "row": edge, "operation": operation_names[code], "architecture": architecture}
                | {"accuracy": f"{accuracy:.2%}", "rank": rank}
                for edge, codes_of_edge in zip(space.edge_labels, codes.to_numpy(), strict=True)
                for cell, code, architecture, accuracy, rank in zip(
                    ids, codes_of_edge, codes.columns, cells["accuracy"], ranks, strict=True
                )
            ]
            tooltip = [{"field": name} for name in ("column", "accuracy", "rank", "row", "operation")]
            tooltip[0] |= {"title": "cell"}
            tooltip[3] |= {"title": "edge"}
            tile_width = layout.width / figure_data.MAX_TOP_CELLS
            rank_labels = [{"text": rank, "column": cell} for rank, cell in zip(ranks, ids, strict=True)]
            text = {"type": "text", "baseline": "bottom", "dy": -2}
            color = named_colours(colours, symbolType="square") | {"field": "operation"}
            position = {"x": {"field": "column"}, "y": {"value": 0}, "text": {"field": "text"}}
            layers: list[Spec] = [
                {"data": {"values": tiles}, "mark": {"type": "rect", "stroke": "white", "strokeWidth": 1}}
                | {"encoding": {"color": color, "tooltip": tooltip, "y": {"field": "row"}}},
                {"data": {"values": rank_labels}, "mark": text, "encoding": position},
                {"data": {"values": [{"text": "rank"}]}, "mark": text | {"align": "right", "dx": -3}}
                | {"encoding": position | {"x": {"value": 0}}},
            ]
            x = category_axis(layout._replace(width=tile_width * len(ids)), ids, None) | {"field": "column"}
            y = {"type": "nominal", "scale": {"domain": list(space.edge_labels)}, "axis": {"title": None}}
            x["axis"] |= {
                "ticks": False,
                "title": palette.omitted_note(n_omitted) if n_omitted and layout.is_on_page else None,
            }
            return {"width": tile_width * len(ids), "height": 72, "encoding": {"x": x, "y": y}, "layer": layers}

        panels.append(Panel(label, draw, title=(title, "")))
    return Figure(panels, _ONE_PANEL_PER_ROW, has_menu=True, page_width=480)


def specify_best_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the best cell by each criterion, and the edit distances between these cells (see `best_cells`)."""
    space = results.cell_space
    distances = frame[list(frame.index)]
    texts = distances.to_numpy().astype(str).tolist()
    colour = colour_bar((0, len(space.edges)), palette.BLUES, "") | {"legend": None}
    titles = {"row": "from", "column": "to", "value": "edges that differ"}

    def draw(layout: PanelLayout) -> Spec:
        tile_width = min(22, layout.width / len(frame))
        return heat_map(
            distances, texts, layout, colour=colour, titles=titles, tile_width=tile_width, number_format="d"
        )

    cells = []
    for row in frame.itertuples():
        title = f"{row.Index}, {row.accuracy:.1%}", f"#{row.architecture}{palette.tie_note(int(str(row.tied)))}"
        cells.append(Panel(str(row.Index), partial(_draw_cell, space, str(row.spec)), title=title))
    cell_figure = Figure(cells, 112)
    return Figure([Panel("edges on which they differ", draw)], _ONE_PANEL_PER_ROW, page_width=400, above=cell_figure)


def _draw_cell(space: CellSpace, spec: str, layout: PanelLayout) -> Spec:
    drawing = space.cell_parts(spec)
    left, right, bottom, top = drawing.bounds
    height = layout.width * (top - bottom) / (right - left)

    def scale(ends: tuple[float, float]) -> Spec:
        return {"type": "quantitative", "scale": {"domain": list(ends), "nice": False, "zero": False}, "axis": None}

    encoding: Spec = {"x": {"field": "x", **scale((left, right))}, "y": {"field": "y", **scale((bottom, top))}}
    plain_channel = {"type": "nominal", "scale": None, "legend": None}
    colour = {"color": plain_channel | {"field": "colour"}}
    # Segments of the curves. An edge without an operation has only every second segment, so that it looks dashed.
    lines = [
        {"x": round(x, 4), "y": round(y, 4), "to_x": round(to_x, 4), "to_y": round(to_y, 4), "colour": edge.colour}
        for edge in drawing.edges
        for step, ((x, y), (to_x, to_y)) in enumerate(itertools.pairwise(edge.curve))
        if edge.operation != "none" or step % 2
    ]
    path = colour | {"x2": {"field": "to_x"}, "y2": {"field": "to_y"}}
    arrows = [
        {"x": edge.curve[-1][0], "y": edge.curve[-1][1], "angle": 90 - edge.angle, "colour": edge.colour}
        for edge in drawing.edges
    ]
    rotated = colour | {"angle": plain_channel | {"field": "angle", "type": "quantitative"}}
    labels = [
        {"x": edge.label_centre[0], "y": edge.label_centre[1], "text": edge.text, "colour": edge.colour}
        for edge in drawing.edges
    ]
    nodes = [{"x": x, "y": y, "text": name} for name, (x, y) in drawing.nodes.items()]
    text_channel = {"text": {"field": "text"}}
    diameter = 2 * drawing.radius * layout.width / (right - left)
    halo = {"type": "text", "fontSize": MIN_NUMBER_SIZE, "stroke": PAPER, "strokeWidth": 2.5, "color": PAPER}
    circle = {"type": "point", "fill": PAPER, "stroke": INK, "strokeWidth": 0.8, "size": float(np.pi / 4 * diameter**2)}
    arrow_head = {"type": "point", "shape": "M0,0L-0.4,1.1L0.4,1.1Z", "size": 30, "strokeWidth": 0}
    layers: list[Spec] = [
        {"data": {"values": lines}, "mark": {"type": "rule", "strokeWidth": 1, "strokeCap": "round"}, "encoding": path},
        {"data": {"values": arrows}, "mark": arrow_head, "encoding": rotated},
        {"data": {"values": labels}, "mark": halo, "encoding": text_channel},
        {
            "data": {"values": labels},
            "mark": {"type": "text", "fontSize": MIN_NUMBER_SIZE},
            "encoding": text_channel | colour,
        },
        {"data": {"values": nodes}, "mark": circle},
        {"data": {"values": nodes}, "mark": "text", "encoding": text_channel},
    ]
    return {"width": layout.width, "height": height, "encoding": encoding, "layer": layers}


def specify_neighbours(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw how accuracies change if one edge of a best cell is changed (see `neighbour_changes`)."""
    criteria, scores = list(frame["best"].unique()), list(frame["score"].unique())
    panels = []
    # All panels have the same scale, so that equal colours mean equal changes.
    largest_change = max(1.0, 100 * float(np.nanmax(np.abs(frame["change"].to_numpy()), initial=0)))
    for criterion, score in itertools.product(criteria, scores):
        rows = frame[(frame["best"] == criterion) & (frame["score"] == score)]
        if not len(rows):
            continue
        architecture, operations, n_tied = figure_data.base_cell(rows, results)
        changes = figure_data.change_matrix(rows, results.cell_space)
        tooltip_texts = _describe_changes(changes, operations, rows, results.cell_space)
        cell_name = f"#{architecture}{palette.tie_note(n_tied)}"
        label = f"best by {SCORES[str(criterion)]} ({cell_name}): change of {SCORES[str(score)]}"
        title = (
            f"#{architecture}, best by {SCORES[str(criterion)]}{palette.tie_note(n_tied)}:",
            f"change of {SCORES[str(score)]}",
        )
        draw = partial(
            change_map,
            changes=changes,
            operations=operations,
            tooltip_texts=tooltip_texts,
            largest_change=largest_change,
        )
        panels.append(Panel(label, draw, title=title))
    return Figure(panels, 144, has_menu=True, page_width=300, notes=(NEIGHBOURS_NOTE,))


def change_map(
    layout: PanelLayout,
    changes: pd.DataFrame,
    operations: list[int],
    tooltip_texts: Sequence[Sequence[str]],
    largest_change: float,
) -> Spec:
    """Draw changes in percentage points as a heat map, with a dot on the cell's current operations."""
    colour = colour_bar(
        (-largest_change, largest_change), palette.CHANGE_SCHEME, "change of accuracy in percentage points"
    )
    texts = palette.change_texts(changes.to_numpy(), operations, 2 if layout.is_on_page else 1)
    tile_width = layout.width / changes.shape[1]
    titles = {"row": "edge", "column": "operation", "value": "percentage points"}
    chart = heat_map(
        changes,
        texts,
        layout,
        colour=colour,
        titles=titles,
        tile_width=tile_width,
        height=16,
        tooltip_texts=tooltip_texts,
    )
    return label_outer_axes(chart, layout)


def _describe_changes(
    changes: pd.DataFrame, operations: list[int], rows: pd.DataFrame, space: CellSpace
) -> list[list[str]]:
    descriptions = palette.change_texts(changes.to_numpy(), operations, 2)
    for row_descriptions, operation in zip(descriptions, operations, strict=True):
        row_descriptions[operation] = "the cell's own operation"
    changes_with_interval: Any = rows[rows["low"].notna()][["edge", "operation", "low", "high"]].to_numpy().tolist()
    for edge, operation, low, high in changes_with_interval:
        descriptions[edge][space.operations.index(operation)] += f" ({100 * low:+.2f} to {100 * high:+.2f})"
    return descriptions
