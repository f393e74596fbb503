"""The Vega-Lite specification of each figure, for files and for the page.

Every function draws the frame of `figures.figure_data` that the table of figures pairs it with.
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
    band_layers,
    box_layers,
    category_axis,
    chance_layers,
    colour_bar,
    fraction_axis,
    heat_map,
    interval_layers,
    named_colours,
    point_layers,
    share_axes,
    spec_rows,
    strength_axis,
)
from robust201.figures.panels import MIN_NUMBER, SMALL, Figure, Panel, PanelLayout, Spec
from robust201.reader.result_files import kind_of
from robust201.reader.value_checks import CLEAN
from robust201.spaces.cell_space import INK, PAPER, CellSpace

AUTOATTACK_KEYS = "aa_"
AUTOATTACK_NOTE = "APGD-CE, Square: where right, these are the clean images that resist"
"""Note on AutoAttack in figures of confidences (docs/protocol/attacks.md, "What is measured …?")."""

FEW_NOTE = "where wrong, an architecture may have but a few images"

NEIGHBOURS_NOTE = "•: the cell's own operation; empty: its class was not evaluated"

ALL_STRENGTHS_UP_TO_CLASSES = 50
"""With more classes, the page has confusion matrices at only one strength per key, to limit its size."""

MANY_POINTS = 500
"""Number of points above which points are small."""

_MANY_STEPS = 200
"""Number of steps above which the axis shows their square roots."""

PAGE_MAP = 560.0
"""Width of large heat maps on the page, in points."""

CLASS_WIDTH = 11.0
"""Width of a class in a figure of confidences by class, in points."""

_QUARTILE_TOOLTIP: list[Spec] = [
    *({"field": name, "format": ".2%"} for name in ("q1", "median", "q3")),
    {"field": "n", "title": "architectures", "format": ","},
]

_TAU = {"row": "of", "column": "and", "value": "τ"}


def specify_boxes(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of accuracies: one panel per key, one box per strength, and chance (see `accuracy_boxes`)."""
    keys = palette.sort_by_group(list(frame["key"].unique()))
    are_corruptions = kind_of(keys[0]) == "corruption"
    limits = figure_data.box_range(frame)
    axis_titles = {palette.strength_axis_title(key) for key in keys}
    shared_title = axis_titles.pop() if len(axis_titles) == 1 else ""
    colours = {"clean": palette.CLEAN_COLOUR} | {palette.key_group(key): palette.key_colour(key) for key in keys}
    groups = [group for group in palette.CORRUPTION_GROUPS if group in colours]
    legend = {"values": groups, "symbolType": "square"} if are_corruptions and groups else {"legend": False}

    def draw(layout: PanelLayout, key: str) -> Spec:
        boxes = frame[frame["key"] == key]
        begins_clean = results.begins_clean(key)
        names = palette.tick_labels(boxes["strength"], begins_clean=begins_clean)
        is_clean = (boxes["strength"] == CLEAN_STRENGTH) & begins_clean
        boxes = boxes.assign(group=np.where(is_clean, "clean", palette.key_group(key)))
        axis_title = None if shared_title else palette.strength_axis_title(key)
        encoding = {
            "x": category_axis(layout, names, axis_title, type="band", paddingOuter=0.1),
            "y": fraction_axis(layout, "accuracy", limits),
            "color": named_colours(colours, **legend),
        }
        layers = [*box_layers(boxes, names, limits), *chance_layers(results.chance, limits)]
        return {"width": layout.width, "height": 62 if are_corruptions else 88, "encoding": encoding, "layer": layers}

    panels = [Panel(key_label(key), partial(draw, key=key)) for key in keys]
    return Figure(panels, 90 if are_corruptions else 187, label=shared_title)


def specify_curves(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies with their 95% intervals over strengths: one panel per key, one curve per network.

    If one strength is far beyond the others, such as ε = 255/255, strengths are spaced evenly.
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
        begins_clean = results.begins_clean(key)
        names = palette.tick_labels(strengths, begins_clean=begins_clean)
        rows = rows.assign(place=palette.tick_labels(rows["strength"], begins_clean=begins_clean)).drop(columns="key")
        axis_title = None if shared_title else palette.strength_axis_title(key)
        is_named = len(strengths) == 1 or figure_data.has_far_strength(strengths)
        field = "place" if is_named else "strength"
        if is_named:
            x = category_axis(layout, names, axis_title, type="point", padding=0.3)
        else:
            x = strength_axis(strengths, names, axis_title)
        tooltip = [{"field": "network"}, {"field": "place", "title": "at"}, {"field": "accuracy", "format": ".2%"}]
        tooltip += [{"field": name, "format": ".2%"} for name in ("low", "high") if has_intervals]
        colour = {"field": "network"}
        layers = band_layers(rows, {"field": field}, ("low", "accuracy", "high"), colour, tooltip)
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
        layers += chance_layers(results.chance, limits, right=True)
        return {"width": layout.width, "height": 88, "encoding": encoding, "layer": layers}

    least = 90 if kind_of(keys[0]) == "corruption" else 150
    return Figure([Panel(key_label(key), partial(draw, key=key)) for key in keys], least, label=shared_title)


def specify_step_curves(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies over steps (see `step_curves`): one panel per attack, one curve per network.

    With many steps, the axis shows their square roots, because most images fall early.
    """
    keys = palette.sort_by_group(list(frame["key"].unique()))
    colours = dict(zip(frame["network"].unique(), palette.NETWORK_COLOURS, strict=False))
    limits = figure_data.curve_range(frame)

    def draw(layout: PanelLayout, key: str) -> Spec:
        rows = frame[frame["key"] == key].drop(columns=["key", "strength"])
        last = int(rows["step"].max())
        scale: Spec = {"domain": [0, last], "nice": False}
        if last > _MANY_STEPS:
            scale |= {"type": "sqrt"}
        axis_title = "queries" if "square" in key else "steps"
        encoding = {
            "x": {
                "type": "quantitative",
                "scale": scale,
                "axis": {"title": axis_title, "format": "~s", "tickCount": 5},
            },
            "y": fraction_axis(layout, "accuracy", limits),
            "color": named_colours(colours, symbolType="stroke"),
        }
        layers = band_layers(rows, {"field": "step"}, ("low", "accuracy", "high"), {"field": "network"})
        for layer, mark_type in zip(layers[0]["layer"], ("area", "line"), strict=True):
            layer["mark"] = {"type": mark_type, "interpolate": "step-after"}  # no image falls between two points
        layers += chance_layers(results.chance, limits, right=True)
        return {"width": layout.width, "height": 88, "encoding": encoding, "layer": layers}

    panels = [
        Panel(column_label(key, frame[frame["key"] == key]["strength"].iloc[0], [1.0, 2.0]), partial(draw, key=key))
        for key in keys
    ]
    return Figure(panels, 150)


def specify_kernel_parameters(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of mean adversarial accuracy by kernel parameters (see `accuracy_by_kernel_parameters`)."""
    limits = figure_data.box_range(frame)
    names = [str(size) for size in frame["kernel_parameters"]]
    # Only the layers may set the coloured field.
    colour = {name: part for name, part in _size_colours(results.cells, legend=False).items() if name != "field"}
    means = frame.assign(place=names)[["place", "mean", "mean_low", "mean_high"]]

    def draw(layout: PanelLayout) -> Spec:
        position: Spec = {"x": {"field": "place"}}
        boxes = frame.drop(columns=["mean", "mean_low", "mean_high"]).assign(group=frame["kernel_parameters"])
        mark = {"type": "point", "shape": "diamond", "size": 14, "fill": "#ffffff", "stroke": INK}
        columns = {"mean": "mean", "mean_low": "low", "mean_high": "high"}
        tooltip = [{"field": name, "title": word, "format": ".2%"} for name, word in columns.items()]
        mean = {"mark": mark, "encoding": position | {"y": {"field": "mean"}, "tooltip": tooltip}}
        known_rows = spec_rows(means.dropna())
        layers = [
            *box_layers(boxes, names, limits),
            *interval_layers(known_rows, position, ("mean_low", "mean_high"), 3),
            {"data": {"values": spec_rows(means)}} | mean,
            *chance_layers(results.chance, limits),
        ]
        label = f"{SCORES[ADVERSARIAL]} accuracy"
        encoding = {
            "x": category_axis(layout, names, "kernel parameters of the cell", type="band", paddingOuter=0.1),
            "y": fraction_axis(layout, label, limits),
            "color": colour,
        }
        return {
            "width": layout.width,
            "height": min(165, 22 + 0.45 * layout.width),
            "encoding": encoding,
            "layer": layers,
        }

    return Figure([Panel("", draw)], 1e9)


def _size_colours(space: CellSpace, *, legend: bool) -> Spec:
    colour = colour_bar((0, space.max_kernel_parameters), palette.SIZE_COLOURS, "kernel parameters of the cell")
    return colour if legend else colour | {"legend": None}


def specify_rank_correlation(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau between every two columns as heat maps, one per view (see `key_correlations`)."""
    del results
    panels = []
    names = [list(rows.index.get_level_values("key")) for _, rows in frame.groupby("view", sort=False)]
    have_same_labels = all(labels == names[0] for labels in names)
    for view in map(str, frame.index.get_level_values("view").unique()):
        tau = figure_data.correlation_view(frame, view)
        texts = palette.correlation_texts(tau.to_numpy())

        def draw(layout: PanelLayout, tau: pd.DataFrame = tau, texts: list[list[str]] = texts) -> Spec:
            # Larger fields would not be more legible.
            field = min(34, layout.width / len(tau))
            drawn = heat_map(tau, texts, layout, colour=_tau_colours(), words=_TAU, field=field)
            return share_axes(drawn, layout) if have_same_labels else drawn

        first = view == strength_label("fog", REFERENCE_SEVERITY)
        panels.append(Panel(str(view), draw, first=first))
    return Figure(panels, 216, menu=True, page_width=PAGE_MAP)


def _tau_colours() -> Spec:
    colour = colour_bar((-1, 1), palette.CORRELATION, "Kendall's tau-b")
    colour["scale"]["reverse"] = True
    return colour


def specify_dataset_correlation(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau between the columns of all datasets as one heat map (see `dataset_correlations`)."""
    del results
    columns: list[Any] = list(frame.columns)
    names = figure_data.dataset_column_names(columns)
    tau = frame.set_axis(names, axis=0).set_axis(names, axis=1)
    texts = palette.correlation_texts(tau.to_numpy())
    groups = [f"{dataset_label(name)}: {key_label(key)}" for name, key, _ in columns]
    starts = [index for index in range(len(groups)) if index == 0 or groups[index] != groups[index - 1]]
    sizes = np.diff([*starts, len(groups)])
    boundaries = [index for index in range(1, len(columns)) if columns[index][0] != columns[index - 1][0]]

    def draw(layout: PanelLayout) -> Spec:
        field = min(34, layout.width / len(tau))
        lines = [
            {"data": {"values": [{}]}, "mark": {"type": "rule", "strokeWidth": 1}}
            | {
                "encoding": {
                    axis: {"value": field * boundary},
                    other: {"value": 0},
                    f"{other}2": {"value": field * len(tau)},
                }
            }
            for boundary in boundaries
            for axis, other in ("xy", "yx")
        ]
        chart = heat_map(tau, texts, layout, colour=_tau_colours(), words=_TAU, field=field, more=lines)
        if field < SMALL:
            # There is no room for a label per field, so each dataset and key has one, at its middle, with ascending
            # strengths. Groups of one column have no room either.
            starts_by_middle = {
                start + (size - 1) // 2: start for start, size in zip(starts, sizes, strict=True) if size * field >= 4.5
            }
            labels = {names[middle]: groups[start] for middle, start in starts_by_middle.items()}
            for axis in ("x", "y"):
                axis_options = chart["encoding"][axis]["axis"]
                axis_options |= {"values": list(labels), "labelExpr": f"{palette.json_text(labels)}[datum.value]"}
                axis_options["labelFontSize"] = MIN_NUMBER
        return chart

    note = "epsilons of an attack ascend" if len(tau) > 60 else ""
    return Figure([Panel("", draw)], 1e9, page_width=PAGE_MAP, label=note)


def specify_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences with their quartiles, one panel per key (see `confidence_curves`)."""
    keys = _confidence_keys(frame)
    notes = [AUTOATTACK_NOTE] if any(key.startswith(AUTOATTACK_KEYS) for key in keys) else []
    colours = dict(zip(CONFIDENCES, palette.CONFIDENCE_COLOURS, strict=True))
    return _confidence_curves(frame, results, colours, [*notes, FEW_NOTE, "confidence in the"])


def specify_one_class_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences in one class with their quartiles (see `one_class_confidence`)."""
    colours = dict(zip(CLASS_CONFIDENCES, palette.CLASS_CONFIDENCE_COLOURS, strict=True))
    return _confidence_curves(frame, results, colours, [f"confidence in {_class_words(results)}, over the"])


def _class_words(results: DatasetResults) -> str:
    number = results.shown_class
    name = results.class_names(results.n_classes or 0)[number : number + 1]
    return f"class {number} ({name[0]})" if name and name[0] != str(number) else f"class {number}"


def _confidence_keys(frame: pd.DataFrame) -> list[str]:
    """Return the keys with a panel: all except clean, which is the first point of every panel."""
    return palette.sort_by_group([key for key in frame["key"].unique() if key != CLEAN]) or [CLEAN]


def _confidence_curves(
    frame: pd.DataFrame, results: DatasetResults, colours: dict[str, str], legend: list[str]
) -> Figure:
    colour = named_colours(colours, title=legend, symbolType="stroke")
    colour["legend"] |= {"titleAnchor": "middle"}

    def draw(layout: PanelLayout, key: str) -> Spec:
        rows = figure_data.curves_of_key(frame, key, results)
        begins_clean = results.begins_clean(key)
        names = palette.tick_labels(sorted(rows["strength"].unique()), begins_clean=begins_clean)
        rows = rows.assign(place=palette.tick_labels(rows["strength"], begins_clean=begins_clean))
        tooltip = [{"field": "confidence", "title": legend[-1]}, {"field": "place", "title": "at"}]
        tooltip += _QUARTILE_TOOLTIP
        columns = ["place", "confidence", "q1", "median", "q3", "n"]
        layers = band_layers(
            rows[columns], {"field": "place"}, ("q1", "median", "q3"), {"field": "confidence"}, tooltip
        )
        encoding = {
            "x": category_axis(layout, names, palette.strength_axis_title(key), type="point", padding=0.3),
            "y": fraction_axis(layout, "confidence"),
            "color": colour,
        }
        return {"width": layout.width, "height": 62, "encoding": encoding, "layer": layers}

    return Figure([Panel(key_label(key), partial(draw, key=key)) for key in _confidence_keys(frame)], 108)


def specify_class_confidences(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences with their quartiles by class, one panel per key (see `class_confidences`)."""
    n_classes = int(frame["class"].max()) + 1
    names = results.class_names(n_classes)
    colours = dict(zip(CLASS_CONFIDENCES, palette.CLASS_CONFIDENCE_COLOURS, strict=True))
    colour = named_colours(colours, title=["confidence in a class, over the"], symbolOpacity=1)
    strengths = dict(zip(frame["key"], frame["strength"], strict=True))
    keys = [
        *(key for key in strengths if key == CLEAN),
        *palette.sort_by_group([key for key in strengths if key != CLEAN]),
    ]

    def draw(layout: PanelLayout, key: str) -> Spec:
        class_labels = names if layout.page else [str(number) for number in range(n_classes)]
        rows = frame[frame["key"] == key]
        rows = rows.assign(place=[class_labels[number] for number in rows["class"]])
        position = {"x": {"field": "place"}, "xOffset": {"field": "confidence"}}
        tooltip = [{"field": "place", "title": "class"}, {"field": "confidence", "title": "over the"}]
        quartile_rule = {"y": {"field": "q1"}, "y2": {"field": "q3"}, "color": {"field": "confidence"}}
        median = {"y": {"field": "median"}, "color": {"field": "confidence"}, "tooltip": tooltip + _QUARTILE_TOOLTIP}
        encoding = {
            "x": category_axis(layout, class_labels, "class" if layout.bottom else None, type="band", paddingOuter=0.1),
            "xOffset": {"type": "nominal", "scale": {"type": "band", "paddingOuter": 0.4, "domain": list(colours)}},
            "y": fraction_axis(layout, "confidence"),
            "color": colour,
        }
        columns = ["place", "confidence", "q1", "median", "q3", "n"]
        layers: list[Spec] = [
            {"mark": {"type": "rule", "strokeWidth": 1.4, "opacity": 0.5}, "encoding": position | quartile_rule},
            {"mark": {"type": "point", "size": 9}, "encoding": position | median},
        ]
        layer = {"data": {"values": spec_rows(rows[columns])}, "layer": layers}
        return {"width": layout.width, "height": 62, "encoding": encoding, "layer": [layer]}

    panels = [Panel(column_label(key, strengths[key], results.strengths(key)), partial(draw, key=key)) for key in keys]
    return Figure(panels, max(108.0, CLASS_WIDTH * n_classes))


def specify_confusion(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw summed confusion matrices with normalised rows; files show ε = 1/255 and severity 3 (`confusion_sums`)."""
    n_classes = frame.shape[1]
    columns = figure_data.confusion_columns(frame)
    reference = figure_data.reference_columns(columns)
    if n_classes > ALL_STRENGTHS_UP_TO_CLASSES:
        columns = reference
    names = results.class_names(n_classes)
    numbers = [str(number) for number in range(n_classes)]
    words = {"row": "true", "column": "predicted", "value": "share of the true class"}
    colour = colour_bar((0, 1), palette.SEQUENTIAL, "% of the images of the true class", format=".0%", tickCount=5)

    def draw(layout: PanelLayout, key: str, strength: float) -> Spec:
        shares = figure_data.confusion_shares(frame, key, strength)
        class_labels = names if layout.page else numbers
        shares = shares.set_axis(class_labels, axis=0).set_axis(class_labels, axis=1)
        texts = palette.share_texts(shares.to_numpy())
        side = min(175 if not layout.page else 300, layout.width)
        options: Spec = {"colour": colour, "words": words, "digits": 4, "number": ".2%", "field": side / n_classes}
        chart = heat_map(shares, texts, layout, **options)
        has_labels = n_classes <= palette.MAX_WRITTEN_CLASSES or layout.page
        chart["encoding"]["x"]["axis"] |= {"title": "predicted class" if layout.bottom else None, "labels": has_labels}
        chart["encoding"]["y"]["axis"] |= {"title": "true class" if layout.left else None, "labels": has_labels}
        return chart

    panels = [
        Panel(column_label(*column, results.strengths(column[0])), partial(draw, key=column[0], strength=column[1]))
        for column in columns
    ]
    panels = [
        Panel(panel.label, panel.draw, in_file=column in reference)
        for panel, column in zip(panels, columns, strict=True)
    ]
    return Figure(panels, 112, menu=True, page_width=400)


def specify_clean_against(frame: pd.DataFrame, results: DatasetResults) -> Figure:  # noqa: PLR0915
    """Draw accuracy under each key against clean accuracy, coloured by kernel parameters (see `clean_against`)."""
    space = results.space
    clean_range = figure_data.bulk_range(frame["clean"])
    clean_limits = _widened(clean_range)
    groups: Any = dict(list(frame.groupby(["key", "strength"], sort=False)))
    strengths: Any = frame.groupby("key", sort=False)["strength"].unique()
    in_file = {(key, nearest_strength(key, list(values))) for key, values in strengths.items()}
    order = {key: index for index, key in enumerate(palette.sort_by_group(list(strengths.index)))}
    # Points beyond the limits of one axis must not stretch the other.
    near_points = {evaluation: rows[rows["clean"].between(*clean_range)] for evaluation, rows in groups.items()}
    ranges = {
        evaluation: figure_data.bulk_range(
            (near_points[evaluation] if len(near_points[evaluation]) else rows)["accuracy"]
        )
        for evaluation, rows in groups.items()
    }
    shown_ranges = [ranges[evaluation] for evaluation in in_file if len(near_points[evaluation])] or list(
        ranges.values()
    )
    shared_limits = _widened((min(low for low, _ in shown_ranges), max(high for _, high in shown_ranges)))
    scores = {label: score for score, label in SCORES.items()}
    front = frame[frame["front"]].sort_values(["clean", "accuracy"])[["architecture", "clean", "accuracy"]]
    marks = {"Pareto front": "front"} if len(front) else {}
    lines = named_colours(dict.fromkeys([*marks, "as accurate as clean"], INK))
    lines["legend"] |= {"symbolType": "stroke"}

    def draw(layout: PanelLayout, evaluation: tuple[str, float]) -> Spec:
        limits = _widened(ranges[evaluation]) if layout.page else shared_limits
        size = (3.0 if len(results.accuracies) > MANY_POINTS else 14.0) * (3 if layout.page else 1)
        height = 260.0 if layout.page else 72.0
        columns = ["architecture", "clean", "accuracy", *(["kernel_parameters"] if space is not None else [])]
        data = {"name": "points"} if layout.page else {"values": spec_rows(groups[evaluation][columns])}
        colour = {"value": palette.OTHER_COLOUR if layout.page else palette.key_colour(evaluation[0])}
        if space is not None:
            colour = _size_colours(space, legend=True) | {"field": "kernel_parameters"}
        tooltip = [
            {"field": "architecture", "type": "nominal"},
            {"field": "clean_text", "type": "nominal", "title": "clean"},
        ]
        tooltip += [{"field": "accuracy_text", "type": "nominal", "title": "@label"}]
        tooltip += [{"field": "kernel_parameters", "title": "kernel parameters"}] if space is not None else []
        axis_limits = [clean_limits, ("low", "high") if layout.page else limits]
        axes = ("clean", "accuracy")
        encoding = {"color": colour} | ({"tooltip": tooltip} if layout.page else {})
        diagonal = {"type": "rule", "strokeDash": [1, 2], "strokeWidth": 0.8, "clip": True}
        corner = {"x": {"datum": 0}, "y": {"datum": 0}, "x2": {"datum": 1}, "y2": {"datum": 1}}
        name_channel: Spec = {"field": "name", "legend": lines["legend"], "type": "nominal", "scale": lines["scale"]}
        layers: list[Spec] = [
            {"data": {"values": [{"name": "as accurate as clean"}]}, "mark": {**diagonal}}
            | {"encoding": corner | {"stroke": name_channel, "strokeDash": _dashes(lines)}},
            *point_layers(data, axes, axis_limits, encoding, size, (layout.width, height)),
        ]
        if evaluation[0] in scores and len(front):
            hover = {"tooltip": [{"field": "architecture", "title": "Pareto front"}]}
            position = {"x": {"field": "clean"}, "y": {"field": "accuracy"}}
            ring = {"type": "point", "filled": False, "size": 4 * size, "color": INK}
            path = position | {"stroke": name_channel}
            mark = {"type": "line", "strokeWidth": 0.8}
            front_layers = [{"mark": mark, "encoding": path}, {"mark": ring, "encoding": position | hover}]
            layers.append({"data": {"values": spec_rows(front.assign(name="Pareto front"))}, "layer": front_layers})
        if layout.page:
            ring = {"type": "point", "filled": False, "size": 90, "strokeWidth": 1.5, "color": INK}
            position = {"x": {"field": "clean"}, "y": {"field": "accuracy"}}
            is_chosen = [{"filter": "datum.architecture === chosen"}]
            layers.append({"data": data, "transform": is_chosen, "mark": ring, "encoding": position})
        y = fraction_axis(layout, "@title" if layout.page else "accuracy", limits)
        x = {
            "type": "quantitative",
            "scale": {"domain": list(clean_limits), "nice": False, "zero": False, "clamp": True},
        }
        x["axis"] = {"title": "clean accuracy" if layout.page else None, "format": ".0%", "grid": True, "tickCount": 4}
        y["scale"]["clamp"] = True
        spec: Spec = {"width": layout.width, "height": height, "encoding": {"x": x, "y": y}, "layer": layers}
        if layout.page:
            y["scale"]["domain"] = ["@low", "@high"]
        layers += chance_layers(results.chance, limits, right=True)
        return spec

    panels = []
    for evaluation in sorted(groups, key=lambda column: order[column[0]]):
        key, strength = evaluation
        label, score = column_label(key, strength, results.strengths(key)), scores.get(key)
        column, limits = score or evaluation, _widened(ranges[evaluation])
        panels.append(
            Panel(
                label, partial(draw, evaluation=evaluation), in_file=evaluation in in_file, column=column, limits=limits
            )
        )
    return Figure(panels, 108, menu=True, page_width=400, label="clean accuracy")


def _dashes(lines: Spec) -> Spec:
    names = lines["scale"]["domain"]
    scale = {"domain": names, "range": [[1, 0] if name == "Pareto front" else [1, 2] for name in names]}
    return {"field": "name", "type": "nominal", "scale": scale, "legend": lines["legend"]}


def _widened(limits: tuple[float, float]) -> tuple[float, float]:
    margin = max(0.01, 0.05 * (limits[1] - limits[0]))
    return round(max(0.0, limits[0] - margin), 5), round(min(1.0, limits[1] + margin), 5)


def specify_measures_against(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies against the values of measures, one panel per measure and key (see `measures_against`)."""
    groups: Any = list(frame.groupby(["measure", "key"], sort=False))
    ranges = [figure_data.bulk_range(rows["accuracy"]) for _, rows in groups]
    shared_limits = _widened((min(low for low, _ in ranges), max(high for _, high in ranges)))
    panels = []
    for (measure, key), rows in groups:
        label = column_label(key, rows["strength"].iloc[0], results.strengths(key))

        def draw(
            layout: PanelLayout, rows: pd.DataFrame = rows, measure: str = measure, key: str = key, label: str = label
        ) -> Spec:
            limits = _widened(figure_data.bulk_range(rows["accuracy"])) if layout.page else shared_limits
            logarithmic = palette.spans_magnitudes(rows["value"])
            value_limits = figure_data.bulk_range(rows["value"], logarithmic=logarithmic)
            size = (3.0 if len(rows) > MANY_POINTS else 14.0) * (3 if layout.page else 1)
            height = 260.0 if layout.page else 84.0
            points = rows[["architecture", "value", "accuracy"]]
            tooltip = [
                {"field": "architecture", "type": "nominal"},
                {"field": "value", "title": measure, "format": ".4"},
            ]
            tooltip += [{"field": "accuracy", "title": label, "format": ".2%"}]
            encoding = {"color": {"value": palette.key_colour(key)}, "tooltip": tooltip}
            data = {"values": spec_rows(points.assign(value=[float(f"{value:.6g}") for value in points["value"]]), 9)}
            y = fraction_axis(layout, f"accuracy, {label}" if layout.page else "accuracy", limits)
            scale = {
                "type": "log" if logarithmic else "linear",
                "domain": list(value_limits),
                "clamp": True,
                "nice": False,
            }
            agreement = palette.agreement_text(rows)
            title = f"{measure} ({agreement})" if layout.page and agreement else measure
            axis = {"title": title, "titleFontSize": SMALL, "grid": True, "tickCount": 4, "labelOverlap": True}
            x = {"type": "quantitative", "scale": scale | ({} if logarithmic else {"zero": False}), "axis": axis}
            y["scale"]["clamp"] = True
            sizes = (layout.width, height)
            layers = [
                *point_layers(data, ("value", "accuracy"), [value_limits, limits], encoding, size, sizes),
                *chance_layers(results.chance, limits, right=True),
            ]
            return {"width": layout.width, "height": height, "encoding": {"x": x, "y": y}, "layer": layers}

        panels.append(
            Panel(f"{measure}, {label}", draw, title=tuple(filter(None, (label, palette.agreement_text(rows)))))
        )
    return Figure(panels, 115, menu=True, page_width=400)


def specify_measure_correlations(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau of measures with accuracies: rows are measures, columns are keys (`measure_correlations`)."""
    del results
    tau = figure_data.correlation_matrix(frame)
    texts = palette.correlation_texts(tau.to_numpy())

    def draw(layout: PanelLayout) -> Spec:
        field = min(43, layout.width / tau.shape[1])
        return heat_map(tau, texts, layout, colour=_tau_colours(), words=_TAU, field=field, height=16)

    return Figure([Panel("", draw)], 1e9)


def specify_operation_effects(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw each operation's effect on each edge with its interval, one panel per score (see `effects_by_score`)."""
    space = results.cells
    names = figure_data.operation_names(space)
    colours = dict(zip(names, [space.operation_colours[operation] for operation in space.operations], strict=True))
    fill = named_colours(colours, symbolType="square") | {"field": "operation"}
    panels = []
    for score, rows in frame.groupby("score", sort=False):
        points = rows.assign(**{name: 100 * rows[name] for name in ("effect", "low", "high")})
        points = points[["edge", "operation", "effect", "low", "high"]]

        def draw(layout: PanelLayout, points: pd.DataFrame = points) -> Spec:
            shift = {"field": "operation", "type": "nominal", "scale": {"domain": names}}
            position = {"x": {"field": "edge"}, "xOffset": shift}
            tooltip = [{"field": "edge"}, {"field": "operation"}]
            tooltip += [{"field": name, "format": "+.2f"} for name in ("effect", "low", "high")]
            dot = {"type": "point", "size": 12, "stroke": INK, "strokeWidth": 0.4}
            values = spec_rows(points, 3)
            layers: list[Spec] = [
                {"data": {"values": [{}]}, "mark": "rule", "encoding": {"y": {"datum": 0}}},
                *interval_layers(values, position, ("low", "high"), 3),
                {"data": {"values": values}, "mark": dot}
                | {"encoding": position | {"y": {"field": "effect"}, "fill": fill, "tooltip": tooltip}},
            ]
            encoding = {
                "x": category_axis(layout, list(space.edge_labels), None, type="band", paddingInner=0.25),
                "y": {"type": "quantitative", "axis": {"title": "percentage points"}},
            }
            encoding["x"]["axis"] |= {"ticks": False}
            return {"width": layout.width, "height": 260 if layout.page else 105, "encoding": encoding, "layer": layers}

        panels.append(Panel(f"{SCORES[str(score)]} accuracy", draw))
    return Figure(panels, 1e9, menu=True, page_width=430)


def specify_top_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the operations of the best cells, one column per cell, one row per edge (see `top_cells`)."""
    space = results.cells
    names = figure_data.operation_names(space)
    colours = dict(zip(names, [space.operation_colours[operation] for operation in space.operations], strict=True))
    panels = []
    for (among, score), rows in frame.groupby(["among", "score"], sort=False):
        n_unseen = figure_data.n_unseen_ties(rows)
        label = f"{SCORES[str(score)]}, {among}"
        title = f"{SCORES[str(score)]} accuracy, {among}{f'; {palette.unseen_note(n_unseen)}' if n_unseen else ''}"

        def draw(layout: PanelLayout, rows: pd.DataFrame = rows, n_unseen: int = n_unseen) -> Spec:
            codes = figure_data.operation_codes(rows, space)
            cells = rows.drop_duplicates("architecture")
            ranks = palette.rank_texts(cells)
            ids = [f"#{index}" for index in codes.columns]
            fields = [
                {"column": cell, "row": edge, "operation": names[code], "architecture": architecture}
                | {"accuracy": f"{accuracy:.2%}", "rank": rank}
                for edge, line in zip(space.edge_labels, codes.to_numpy(), strict=True)
                for cell, code, architecture, accuracy, rank in zip(
                    ids, line, codes.columns, cells["accuracy"], ranks, strict=True
                )
            ]
            tooltip = [{"field": name} for name in ("column", "accuracy", "rank", "row", "operation")]
            tooltip[0] |= {"title": "cell"}
            tooltip[3] |= {"title": "edge"}
            field = layout.width / figure_data.TOP_CELLS
            rank_labels = [{"text": rank, "column": cell} for rank, cell in zip(ranks, ids, strict=True)]
            text = {"type": "text", "baseline": "bottom", "dy": -2}
            color = named_colours(colours, symbolType="square") | {"field": "operation"}
            position = {"x": {"field": "column"}, "y": {"value": 0}, "text": {"field": "text"}}
            layers: list[Spec] = [
                {"data": {"values": fields}, "mark": {"type": "rect", "stroke": "white", "strokeWidth": 1}}
                | {"encoding": {"color": color, "tooltip": tooltip, "y": {"field": "row"}}},
                {"data": {"values": rank_labels}, "mark": text, "encoding": position},
                {"data": {"values": [{"text": "rank"}]}, "mark": text | {"align": "right", "dx": -3}}
                | {"encoding": position | {"x": {"value": 0}}},
            ]
            x = category_axis(layout._replace(width=field * len(ids)), ids, None) | {"field": "column"}
            y = {"type": "nominal", "scale": {"domain": list(space.edge_labels)}, "axis": {"title": None}}
            x["axis"] |= {"ticks": False, "title": palette.unseen_note(n_unseen) if n_unseen and layout.page else None}
            return {"width": field * len(ids), "height": 72, "encoding": {"x": x, "y": y}, "layer": layers}

        panels.append(Panel(label, draw, title=(title, "")))
    return Figure(panels, 1e9, menu=True, page_width=480)


def specify_best_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the best cell by each criterion, and the edit distances between them (see `best_cells`)."""
    space = results.cells
    distances = frame[list(frame.index)]
    texts = distances.to_numpy().astype(str).tolist()
    colour = colour_bar((0, len(space.edges)), palette.BLUES, "") | {"legend": None}
    words = {"row": "from", "column": "to", "value": "edges that differ"}

    def draw(layout: PanelLayout) -> Spec:
        field = min(22, layout.width / len(frame))
        return heat_map(distances, texts, layout, colour=colour, words=words, field=field, number="d")

    cells = []
    for row in frame.itertuples():
        title = f"{row.Index}, {row.accuracy:.1%}", f"#{row.architecture}{palette.tie_note(int(str(row.tied)))}"
        cells.append(Panel(str(row.Index), partial(_draw_cell, space, str(row.spec)), title=title))
    above = Figure(cells, 112)
    return Figure([Panel("edges on which they differ", draw)], 1e9, page_width=400, above=above)


def _draw_cell(space: CellSpace, spec: str, layout: PanelLayout) -> Spec:
    parts = space.cell_parts(spec)
    left, right, bottom, top = parts.bounds
    height = layout.width * (top - bottom) / (right - left)

    def scale(ends: tuple[float, float]) -> Spec:
        return {"type": "quantitative", "scale": {"domain": list(ends), "nice": False, "zero": False}, "axis": None}

    encoding: Spec = {"x": {"field": "x", **scale((left, right))}, "y": {"field": "y", **scale((bottom, top))}}
    plain_channel = {"type": "nominal", "scale": None, "legend": None}
    colour = {"color": plain_channel | {"field": "colour"}}
    # Segments of the curves; for an edge without an operation every second one, which gives a dashed line.
    lines = [
        {"x": round(x, 4), "y": round(y, 4), "to_x": round(to_x, 4), "to_y": round(to_y, 4), "colour": edge.colour}
        for edge in parts.edges
        for step, ((x, y), (to_x, to_y)) in enumerate(itertools.pairwise(edge.curve))
        if edge.operation != "none" or step % 2
    ]
    path = colour | {"x2": {"field": "to_x"}, "y2": {"field": "to_y"}}
    arrows = [
        {"x": edge.curve[-1][0], "y": edge.curve[-1][1], "angle": 90 - edge.angle, "colour": edge.colour}
        for edge in parts.edges
    ]
    rotated = colour | {"angle": plain_channel | {"field": "angle", "type": "quantitative"}}
    labels = [
        {"x": edge.label[0], "y": edge.label[1], "text": edge.text, "colour": edge.colour} for edge in parts.edges
    ]
    nodes = [{"x": x, "y": y, "text": name} for name, (x, y) in parts.nodes.items()]
    text = {"text": {"field": "text"}}
    diameter = 2 * parts.radius * layout.width / (right - left)
    halo = {"type": "text", "fontSize": MIN_NUMBER, "stroke": PAPER, "strokeWidth": 2.5, "color": PAPER}
    circle = {"type": "point", "fill": PAPER, "stroke": INK, "strokeWidth": 0.8, "size": float(np.pi / 4 * diameter**2)}
    head = {"type": "point", "shape": "M0,0L-0.4,1.1L0.4,1.1Z", "size": 30, "strokeWidth": 0}
    layers: list[Spec] = [
        {"data": {"values": lines}, "mark": {"type": "rule", "strokeWidth": 1, "strokeCap": "round"}, "encoding": path},
        {"data": {"values": arrows}, "mark": head, "encoding": rotated},
        {"data": {"values": labels}, "mark": halo, "encoding": text},
        {"data": {"values": labels}, "mark": {"type": "text", "fontSize": MIN_NUMBER}, "encoding": text | colour},
        {"data": {"values": nodes}, "mark": circle},
        {"data": {"values": nodes}, "mark": "text", "encoding": text},
    ]
    return {"width": layout.width, "height": height, "encoding": encoding, "layer": layers}


def specify_neighbours(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the changes of accuracy from changing one edge of the best cells (see `neighbour_changes`)."""
    bests, scores = list(frame["best"].unique()), list(frame["score"].unique())
    panels = []
    # One scale for all panels, so that equal colours are equal changes.
    largest_change = max(1.0, 100 * float(np.nanmax(np.abs(frame["change"].to_numpy()), initial=0)))
    for best, score in itertools.product(bests, scores):
        rows = frame[(frame["best"] == best) & (frame["score"] == score)]
        if not len(rows):
            continue
        architecture, operations, tied = figure_data.changed_cell(rows, results)
        changes = figure_data.change_matrix(rows, results.cells)
        hovers = _change_words(changes, operations, rows, results.cells)
        cell_name = f"#{architecture}{palette.tie_note(tied)}"
        label = f"best by {SCORES[str(best)]} ({cell_name}): change of {SCORES[str(score)]}"
        title = (
            f"#{architecture}, best by {SCORES[str(best)]}{palette.tie_note(tied)}:",
            f"change of {SCORES[str(score)]}",
        )
        draw = partial(change_map, changes=changes, operations=operations, hovers=hovers, largest_change=largest_change)
        panels.append(Panel(label, draw, title=title))
    return Figure(panels, 144, menu=True, page_width=300, notes=(NEIGHBOURS_NOTE,))


def change_map(
    layout: PanelLayout,
    changes: pd.DataFrame,
    operations: list[int],
    hovers: Sequence[Sequence[str]],
    largest_change: float,
) -> Spec:
    """Draw changes in percentage points as a heat map, with a dot on the cell's current operations."""
    colour = colour_bar((-largest_change, largest_change), palette.CHANGE, "change of accuracy in percentage points")
    texts = palette.change_texts(changes.to_numpy(), operations, 2 if layout.page else 1)
    field = layout.width / changes.shape[1]
    words = {"row": "edge", "column": "operation", "value": "percentage points"}
    chart = heat_map(changes, texts, layout, colour=colour, words=words, field=field, height=16, hovers=hovers)
    return share_axes(chart, layout)


def _change_words(
    changes: pd.DataFrame, operations: list[int], rows: pd.DataFrame, space: CellSpace
) -> list[list[str]]:
    words = palette.change_texts(changes.to_numpy(), operations, 2)
    for line, operation in zip(words, operations, strict=True):
        line[operation] = "the cell's own operation"
    known: Any = rows[rows["low"].notna()][["edge", "operation", "low", "high"]].to_numpy().tolist()
    for edge, operation, low, high in known:
        words[edge][space.operations.index(operation)] += f" ({100 * low:+.2f} to {100 * high:+.2f})"
    return words
