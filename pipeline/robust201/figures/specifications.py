"""One specification per figure, for files and the page alike, in Vega-Lite.

Every function specifies the frame of `figures.figure_data` that the table of figures pairs it with.
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
from robust201.figures.panels import LEAST_NUMBER, SMALL, Figure, Panel, PanelPlace, Spec
from robust201.reader.result_files import kind_of
from robust201.reader.value_checks import CLEAN
from robust201.spaces.cell_space import INK, PAPER, CellSpace

AUTOATTACK_KEYS = "aa_"
AUTOATTACK_NOTE = "APGD-CE, Square: where right, these are the clean images that resist"
"""Note on AutoAttack's panels of confidences (docs/protocol/attacks.md, "What is measured …?")."""

FEW_NOTE = "where wrong, an architecture may have but a few images"

NEIGHBOURS_NOTE = "•: the cell's own operation; empty: its class was not evaluated"

ALL_STRENGTHS_UP_TO_CLASSES = 50
"""With more classes, the page has confusion matrices at one strength per key only, to limit its size."""

MANY_POINTS = 500
"""From so many on, points are small."""

_MANY_STEPS = 200
"""From so many steps on, the axis of steps is that of their square roots."""

PAGE_MAP = 560.0
"""Width of large heat maps on the page, in points."""

CLASS_WIDTH = 11.0
"""Width of a class in a figure of confidences class by class, in points."""

_QUARTILE_TOOLTIP: list[Spec] = [
    *({"field": name, "format": ".2%"} for name in ("q1", "median", "q3")),
    {"field": "n", "title": "architectures", "format": ","},
]

_TAU = {"row": "of", "column": "and", "value": "τ"}


def specify_boxes(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of accuracy: one panel per key, a box per strength, and the chance line (see `accuracy_boxes`)."""
    keys = palette.grouped(list(frame["key"].unique()))
    corrupted = kind_of(keys[0]) == "corruption"
    limits = figure_data.box_range(frame)
    words = {palette.strength_word(key) for key in keys}
    shared = words.pop() if len(words) == 1 else ""
    colours = {"clean": palette.CLEAN_COLOUR} | {palette.key_group(key): palette.key_colour(key) for key in keys}
    shown = [group for group in palette.CORRUPTION_GROUPS if group in colours]
    legend = {"values": shown, "symbolType": "square"} if corrupted and shown else {"legend": False}

    def draw(place: PanelPlace, key: str) -> Spec:
        boxes = frame[frame["key"] == key]
        begins_clean = results.begins_clean(key)
        names = palette.ticks(boxes["strength"], begins_clean=begins_clean)
        clean = (boxes["strength"] == CLEAN_STRENGTH) & begins_clean
        boxes = boxes.assign(group=np.where(clean, "clean", palette.key_group(key)))
        word = None if shared else palette.strength_word(key)
        encoding = {
            "x": category_axis(place, names, word, type="band", paddingOuter=0.1),
            "y": fraction_axis(place, "accuracy", limits),
            "color": named_colours(colours, **legend),
        }
        layers = [*box_layers(boxes, names, limits), *chance_layers(results.chance, limits)]
        return {"width": place.width, "height": 62 if corrupted else 88, "encoding": encoding, "layer": layers}

    panels = [Panel(key_label(key), partial(draw, key=key)) for key in keys]
    return Figure(panels, 90 if corrupted else 187, label=shared)


def specify_curves(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies with their 95% intervals over strengths: one panel per key, a curve per network.

    Where one strength is far beyond the others, such as ε = 255/255, strengths stand at equal distances.
    """
    keys = palette.grouped(list(frame["key"].unique()))
    networks = list(frame["network"].unique())
    colours = dict(zip(networks, palette.NETWORK_COLOURS, strict=False))
    shapes = [palette.NETWORK_SHAPES[place % len(palette.NETWORK_SHAPES)] for place in range(len(networks))]
    has_intervals = frame["low"].notna().all()
    shown = frame if has_intervals else frame.assign(low=frame["accuracy"], high=frame["accuracy"])
    limits = figure_data.curve_range(shown)
    words = {palette.strength_word(key) for key in keys}
    shared = words.pop() if len(words) == 1 else ""

    def draw(place: PanelPlace, key: str) -> Spec:
        rows = shown[shown["key"] == key]
        strengths = sorted(rows["strength"].unique())
        begins_clean = results.begins_clean(key)
        names = palette.ticks(strengths, begins_clean=begins_clean)
        rows = rows.assign(place=palette.ticks(rows["strength"], begins_clean=begins_clean)).drop(columns="key")
        word = None if shared else palette.strength_word(key)
        is_named = len(strengths) == 1 or figure_data.has_far_strength(strengths)
        field = "place" if is_named else "strength"
        if is_named:
            x = category_axis(place, names, word, type="point", padding=0.3)
        else:
            x = strength_axis(strengths, names, word)
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
            "y": fraction_axis(place, "accuracy", limits),
            "color": named_colours(colours, symbolType="stroke"),
        }
        layers += chance_layers(results.chance, limits, right=True)
        return {"width": place.width, "height": 88, "encoding": encoding, "layer": layers}

    least = 90 if kind_of(keys[0]) == "corruption" else 150
    return Figure([Panel(key_label(key), partial(draw, key=key)) for key in keys], least, label=shared)


def specify_step_curves(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies over steps (see `step_curves`): one panel per attack, a curve per network.

    Square roots of the steps are spaced evenly where there are many: most images fall early.
    """
    keys = palette.grouped(list(frame["key"].unique()))
    colours = dict(zip(frame["network"].unique(), palette.NETWORK_COLOURS, strict=False))
    limits = figure_data.curve_range(frame)

    def draw(place: PanelPlace, key: str) -> Spec:
        rows = frame[frame["key"] == key].drop(columns=["key", "strength"])
        last = int(rows["step"].max())
        scale: Spec = {"domain": [0, last], "nice": False}
        if last > _MANY_STEPS:
            scale |= {"type": "sqrt"}
        word = "queries" if "square" in key else "steps"
        encoding = {
            "x": {"type": "quantitative", "scale": scale, "axis": {"title": word, "format": "~s", "tickCount": 5}},
            "y": fraction_axis(place, "accuracy", limits),
            "color": named_colours(colours, symbolType="stroke"),
        }
        layers = band_layers(rows, {"field": "step"}, ("low", "accuracy", "high"), {"field": "network"})
        for layer, kind in zip(layers[0]["layer"], ("area", "line"), strict=True):
            layer["mark"] = {"type": kind, "interpolate": "step-after"}  # between two points no image falls
        layers += chance_layers(results.chance, limits, right=True)
        return {"width": place.width, "height": 88, "encoding": encoding, "layer": layers}

    panels = [
        Panel(column_label(key, frame[frame["key"] == key]["strength"].iloc[0], [1.0, 2.0]), partial(draw, key=key))
        for key in keys
    ]
    return Figure(panels, 150)


def specify_kernel_parameters(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of mean adversarial accuracy by kernel parameters (see `accuracy_by_kernel_parameters`)."""
    limits = figure_data.box_range(frame)
    names = [str(size) for size in frame["kernel_parameters"]]
    # Layers say what is coloured.
    colour = {name: part for name, part in _size_colours(results.cells, legend=False).items() if name != "field"}
    means = frame.assign(place=names)[["place", "mean", "mean_low", "mean_high"]]

    def draw(place: PanelPlace) -> Spec:
        at: Spec = {"x": {"field": "place"}}
        boxes = frame.drop(columns=["mean", "mean_low", "mean_high"]).assign(group=frame["kernel_parameters"])
        mark = {"type": "point", "shape": "diamond", "size": 14, "fill": "#ffffff", "stroke": INK}
        words = {"mean": "mean", "mean_low": "low", "mean_high": "high"}
        tooltip = [{"field": name, "title": word, "format": ".2%"} for name, word in words.items()]
        mean = {"mark": mark, "encoding": at | {"y": {"field": "mean"}, "tooltip": tooltip}}
        known = spec_rows(means.dropna())
        layers = [
            *box_layers(boxes, names, limits),
            *interval_layers(known, at, ("mean_low", "mean_high"), 3),
            {"data": {"values": spec_rows(means)}} | mean,
            *chance_layers(results.chance, limits),
        ]
        label = f"{SCORES[ADVERSARIAL]} accuracy"
        encoding = {
            "x": category_axis(place, names, "kernel parameters of the cell", type="band", paddingOuter=0.1),
            "y": fraction_axis(place, label, limits),
            "color": colour,
        }
        return {
            "width": place.width,
            "height": min(165, 22 + 0.45 * place.width),
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
    alike = all(one == names[0] for one in names)
    for view in map(str, frame.index.get_level_values("view").unique()):
        tau = figure_data.square(frame, view)
        texts = palette.correlation_texts(tau.to_numpy())

        def draw(place: PanelPlace, tau: pd.DataFrame = tau, texts: list[list[str]] = texts) -> Spec:
            # Few large fields would be no better to read.
            field = min(34, place.width / len(tau))
            drawn = heat_map(tau, texts, place, colour=_tau_colours(), words=_TAU, field=field)
            return share_axes(drawn, place) if alike else drawn

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
    starts = [place for place in range(len(groups)) if place == 0 or groups[place] != groups[place - 1]]
    sizes = np.diff([*starts, len(groups)])
    ends = [place for place in range(1, len(columns)) if columns[place][0] != columns[place - 1][0]]

    def draw(place: PanelPlace) -> Spec:
        field = min(34, place.width / len(tau))
        lines = [
            {"data": {"values": [{}]}, "mark": {"type": "rule", "strokeWidth": 1}}
            | {
                "encoding": {
                    axis: {"value": field * end},
                    other: {"value": 0},
                    f"{other}2": {"value": field * len(tau)},
                }
            }
            for end in ends
            for axis, other in ("xy", "yx")
        ]
        drawn = heat_map(tau, texts, place, colour=_tau_colours(), words=_TAU, field=field, more=lines)
        if field < SMALL:
            # No room for a label per field: one per dataset and key, at its middle, with ascending strengths.
            # Groups of one column have no room either.
            kept = {
                start + (size - 1) // 2: start for start, size in zip(starts, sizes, strict=True) if size * field >= 4.5
            }
            shown = {names[middle]: groups[start] for middle, start in kept.items()}
            for axis in ("x", "y"):
                own = drawn["encoding"][axis]["axis"]
                own |= {"values": list(shown), "labelExpr": f"{palette.json_text(shown)}[datum.value]"}
                own["labelFontSize"] = LEAST_NUMBER
        return drawn

    crowded = "epsilons of an attack ascend" if len(tau) > 60 else ""
    return Figure([Panel("", draw)], 1e9, page_width=PAGE_MAP, label=crowded)


def specify_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences with their quartiles, one panel per key (see `confidence_curves`)."""
    keys = _confidence_keys(frame)
    notes = [AUTOATTACK_NOTE] if any(key.startswith(AUTOATTACK_KEYS) for key in keys) else []
    colours = dict(zip(CONFIDENCES, palette.CONFIDENCE_COLOURS, strict=True))
    return _confidence_curves(frame, results, colours, [*notes, FEW_NOTE, "confidence in the"])


def specify_one_class_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw likewise the confidences in one class (see `one_class_confidence`)."""
    colours = dict(zip(CLASS_CONFIDENCES, palette.CLASS_CONFIDENCE_COLOURS, strict=True))
    return _confidence_curves(frame, results, colours, [f"confidence in {_class_words(results)}, over the"])


def _class_words(results: DatasetResults) -> str:
    number = results.shown_class
    name = results.class_names(results.n_classes or 0)[number : number + 1]
    return f"class {number} ({name[0]})" if name and name[0] != str(number) else f"class {number}"


def _confidence_keys(frame: pd.DataFrame) -> list[str]:
    """List the keys with a panel: all but clean, whose images are the first of every panel."""
    return palette.grouped([key for key in frame["key"].unique() if key != CLEAN]) or [CLEAN]


def _confidence_curves(
    frame: pd.DataFrame, results: DatasetResults, colours: dict[str, str], legend: list[str]
) -> Figure:
    colour = named_colours(colours, title=legend, symbolType="stroke")
    colour["legend"] |= {"titleAnchor": "middle"}

    def draw(place: PanelPlace, key: str) -> Spec:
        rows = figure_data.curves_of(frame, key, results)
        begins_clean = results.begins_clean(key)
        names = palette.ticks(sorted(rows["strength"].unique()), begins_clean=begins_clean)
        rows = rows.assign(place=palette.ticks(rows["strength"], begins_clean=begins_clean))
        tooltip = [{"field": "confidence", "title": legend[-1]}, {"field": "place", "title": "at"}]
        tooltip += _QUARTILE_TOOLTIP
        columns = ["place", "confidence", "q1", "median", "q3", "n"]
        layers = band_layers(
            rows[columns], {"field": "place"}, ("q1", "median", "q3"), {"field": "confidence"}, tooltip
        )
        encoding = {
            "x": category_axis(place, names, palette.strength_word(key), type="point", padding=0.3),
            "y": fraction_axis(place, "confidence"),
            "color": colour,
        }
        return {"width": place.width, "height": 62, "encoding": encoding, "layer": layers}

    return Figure([Panel(key_label(key), partial(draw, key=key)) for key in _confidence_keys(frame)], 108)


def specify_class_confidences(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences with their quartiles class by class, one panel per key (see `class_confidences`)."""
    n_classes = int(frame["class"].max()) + 1
    names = results.class_names(n_classes)
    colours = dict(zip(CLASS_CONFIDENCES, palette.CLASS_CONFIDENCE_COLOURS, strict=True))
    colour = named_colours(colours, title=["confidence in a class, over the"], symbolOpacity=1)
    strengths = dict(zip(frame["key"], frame["strength"], strict=True))
    keys = [*(key for key in strengths if key == CLEAN), *palette.grouped([key for key in strengths if key != CLEAN])]

    def draw(place: PanelPlace, key: str) -> Spec:
        shown = names if place.page else [str(number) for number in range(n_classes)]
        rows = frame[frame["key"] == key]
        rows = rows.assign(place=[shown[number] for number in rows["class"]])
        at = {"x": {"field": "place"}, "xOffset": {"field": "confidence"}}
        tooltip = [{"field": "place", "title": "class"}, {"field": "confidence", "title": "over the"}]
        quartile_rule = {"y": {"field": "q1"}, "y2": {"field": "q3"}, "color": {"field": "confidence"}}
        median = {"y": {"field": "median"}, "color": {"field": "confidence"}, "tooltip": tooltip + _QUARTILE_TOOLTIP}
        encoding = {
            "x": category_axis(place, shown, "class" if place.bottom else None, type="band", paddingOuter=0.1),
            "xOffset": {"type": "nominal", "scale": {"type": "band", "paddingOuter": 0.4, "domain": list(colours)}},
            "y": fraction_axis(place, "confidence"),
            "color": colour,
        }
        columns = ["place", "confidence", "q1", "median", "q3", "n"]
        layers: list[Spec] = [
            {"mark": {"type": "rule", "strokeWidth": 1.4, "opacity": 0.5}, "encoding": at | quartile_rule},
            {"mark": {"type": "point", "size": 9}, "encoding": at | median},
        ]
        layer = {"data": {"values": spec_rows(rows[columns])}, "layer": layers}
        return {"width": place.width, "height": 62, "encoding": encoding, "layer": [layer]}

    panels = [Panel(column_label(key, strengths[key], results.strengths(key)), partial(draw, key=key)) for key in keys]
    return Figure(panels, max(108.0, CLASS_WIDTH * n_classes))


def specify_confusion(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw summed confusion matrices, rows as shares; in files at ε = 1/255 and severity 3 (see `confusion_sums`)."""
    n_classes = frame.shape[1]
    columns = figure_data.confusion_columns(frame)
    reference = figure_data.reference_columns(columns)
    if n_classes > ALL_STRENGTHS_UP_TO_CLASSES:
        columns = reference
    names = results.class_names(n_classes)
    numbers = [str(place) for place in range(n_classes)]
    words = {"row": "true", "column": "predicted", "value": "share of the true class"}
    colour = colour_bar((0, 1), palette.SEQUENTIAL, "% of the images of the true class", format=".0%", tickCount=5)

    def draw(place: PanelPlace, key: str, strength: float) -> Spec:
        shares = figure_data.confusion_shares(frame, key, strength)
        shown = names if place.page else numbers
        shares = shares.set_axis(shown, axis=0).set_axis(shown, axis=1)
        texts = palette.share_texts(shares.to_numpy())
        side = min(175 if not place.page else 300, place.width)
        how: Spec = {"colour": colour, "words": words, "digits": 4, "number": ".2%", "field": side / n_classes}
        drawn = heat_map(shares, texts, place, **how)
        few = n_classes <= palette.WRITTEN_CLASSES or place.page
        drawn["encoding"]["x"]["axis"] |= {"title": "predicted class" if place.bottom else None, "labels": few}
        drawn["encoding"]["y"]["axis"] |= {"title": "true class" if place.left else None, "labels": few}
        return drawn

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
    bulk = figure_data.bulk_range(frame["clean"])
    across = _widened(bulk)
    groups: Any = dict(list(frame.groupby(["key", "strength"], sort=False)))
    strengths: Any = frame.groupby("key", sort=False)["strength"].unique()
    in_file = {(key, nearest_strength(key, list(held))) for key, held in strengths.items()}
    order = {key: place for place, key in enumerate(palette.grouped(list(strengths.index)))}
    # What is beyond one axis must not stretch the other.
    near = {place: rows[rows["clean"].between(*bulk)] for place, rows in groups.items()}
    ranges = {
        place: figure_data.bulk_range((near[place] if len(near[place]) else rows)["accuracy"])
        for place, rows in groups.items()
    }
    shown = [ranges[place] for place in in_file if len(near[place])] or list(ranges.values())
    shared = _widened((min(low for low, _ in shown), max(high for _, high in shown)))
    scores = {label: score for score, label in SCORES.items()}
    front = frame[frame["front"]].sort_values(["clean", "accuracy"])[["architecture", "clean", "accuracy"]]
    marks = {"Pareto front": "front"} if len(front) else {}
    lines = named_colours(dict.fromkeys([*marks, "as accurate as clean"], INK))
    lines["legend"] |= {"symbolType": "stroke"}

    def draw(place: PanelPlace, at: tuple[str, float]) -> Spec:
        limits = _widened(ranges[at]) if place.page else shared
        size = (3.0 if len(results.accuracies) > MANY_POINTS else 14.0) * (3 if place.page else 1)
        height = 260.0 if place.page else 72.0
        columns = ["architecture", "clean", "accuracy", *(["kernel_parameters"] if space is not None else [])]
        data = {"name": "points"} if place.page else {"values": spec_rows(groups[at][columns])}
        colour = {"value": palette.OTHER_COLOUR if place.page else palette.key_colour(at[0])}
        if space is not None:
            colour = _size_colours(space, legend=True) | {"field": "kernel_parameters"}
        tooltip = [
            {"field": "architecture", "type": "nominal"},
            {"field": "clean_text", "type": "nominal", "title": "clean"},
        ]
        tooltip += [{"field": "accuracy_text", "type": "nominal", "title": "@label"}]
        tooltip += [{"field": "kernel_parameters", "title": "kernel parameters"}] if space is not None else []
        ends = [across, ("low", "high") if place.page else limits]
        axes = ("clean", "accuracy")
        encoding = {"color": colour} | ({"tooltip": tooltip} if place.page else {})
        diagonal = {"type": "rule", "strokeDash": [1, 2], "strokeWidth": 0.8, "clip": True}
        corner = {"x": {"datum": 0}, "y": {"datum": 0}, "x2": {"datum": 1}, "y2": {"datum": 1}}
        named: Spec = {"field": "name", "legend": lines["legend"], "type": "nominal", "scale": lines["scale"]}
        layers: list[Spec] = [
            {"data": {"values": [{"name": "as accurate as clean"}]}, "mark": {**diagonal}}
            | {"encoding": corner | {"stroke": named, "strokeDash": _dashes(lines)}},
            *point_layers(data, axes, ends, encoding, size, (place.width, height)),
        ]
        if at[0] in scores and len(front):
            hover = {"tooltip": [{"field": "architecture", "title": "Pareto front"}]}
            both = {"x": {"field": "clean"}, "y": {"field": "accuracy"}}
            ring = {"type": "point", "filled": False, "size": 4 * size, "color": INK}
            path = both | {"stroke": named}
            mark = {"type": "line", "strokeWidth": 0.8}
            on = [{"mark": mark, "encoding": path}, {"mark": ring, "encoding": both | hover}]
            layers.append({"data": {"values": spec_rows(front.assign(name="Pareto front"))}, "layer": on})
        if place.page:
            ring = {"type": "point", "filled": False, "size": 90, "strokeWidth": 1.5, "color": INK}
            both = {"x": {"field": "clean"}, "y": {"field": "accuracy"}}
            chosen = [{"filter": "datum.architecture === chosen"}]
            layers.append({"data": data, "transform": chosen, "mark": ring, "encoding": both})
        y = fraction_axis(place, "@title" if place.page else "accuracy", limits)
        x = {"type": "quantitative", "scale": {"domain": list(across), "nice": False, "zero": False, "clamp": True}}
        x["axis"] = {"title": "clean accuracy" if place.page else None, "format": ".0%", "grid": True, "tickCount": 4}
        y["scale"]["clamp"] = True
        spec: Spec = {"width": place.width, "height": height, "encoding": {"x": x, "y": y}, "layer": layers}
        if place.page:
            y["scale"]["domain"] = ["@low", "@high"]
        layers += chance_layers(results.chance, limits, right=True)
        return spec

    panels = []
    for at in sorted(groups, key=lambda one: order[one[0]]):
        key, strength = at
        label, score = column_label(key, strength, results.strengths(key)), scores.get(key)
        column, limits = score or at, _widened(ranges[at])
        panels.append(Panel(label, partial(draw, at=at), in_file=at in in_file, column=column, limits=limits))
    return Figure(panels, 108, menu=True, page_width=400, label="clean accuracy")


def _dashes(lines: Spec) -> Spec:
    names = lines["scale"]["domain"]
    scale = {"domain": names, "range": [[1, 0] if name == "Pareto front" else [1, 2] for name in names]}
    return {"field": "name", "type": "nominal", "scale": scale, "legend": lines["legend"]}


def _widened(limits: tuple[float, float]) -> tuple[float, float]:
    margin = max(0.01, 0.05 * (limits[1] - limits[0]))
    return round(max(0.0, limits[0] - margin), 5), round(min(1.0, limits[1] + margin), 5)


def specify_measures_against(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies against the numbers of measures, a panel per measure and key (see `measures_against`)."""
    groups: Any = list(frame.groupby(["measure", "key"], sort=False))
    ranges = [figure_data.bulk_range(rows["accuracy"]) for _, rows in groups]
    shared = _widened((min(low for low, _ in ranges), max(high for _, high in ranges)))
    panels = []
    for (measure, key), rows in groups:
        label = column_label(key, rows["strength"].iloc[0], results.strengths(key))

        def draw(
            place: PanelPlace, rows: pd.DataFrame = rows, measure: str = measure, key: str = key, label: str = label
        ) -> Spec:
            limits = _widened(figure_data.bulk_range(rows["accuracy"])) if place.page else shared
            logarithmic = palette.spans_magnitudes(rows["value"])
            across = figure_data.bulk_range(rows["value"], logarithmic=logarithmic)
            size = (3.0 if len(rows) > MANY_POINTS else 14.0) * (3 if place.page else 1)
            height = 260.0 if place.page else 84.0
            points = rows[["architecture", "value", "accuracy"]]
            tooltip = [
                {"field": "architecture", "type": "nominal"},
                {"field": "value", "title": measure, "format": ".4"},
            ]
            tooltip += [{"field": "accuracy", "title": label, "format": ".2%"}]
            encoding = {"color": {"value": palette.key_colour(key)}, "tooltip": tooltip}
            data = {"values": spec_rows(points.assign(value=[float(f"{value:.6g}") for value in points["value"]]), 9)}
            y = fraction_axis(place, f"accuracy, {label}" if place.page else "accuracy", limits)
            scale = {"type": "log" if logarithmic else "linear", "domain": list(across), "clamp": True, "nice": False}
            words = palette.agreement_words(rows)
            title = f"{measure} ({words})" if place.page and words else measure
            axis = {"title": title, "titleFontSize": SMALL, "grid": True, "tickCount": 4, "labelOverlap": True}
            x = {"type": "quantitative", "scale": scale | ({} if logarithmic else {"zero": False}), "axis": axis}
            y["scale"]["clamp"] = True
            sizes = (place.width, height)
            layers = [
                *point_layers(data, ("value", "accuracy"), [across, limits], encoding, size, sizes),
                *chance_layers(results.chance, limits, right=True),
            ]
            return {"width": place.width, "height": height, "encoding": {"x": x, "y": y}, "layer": layers}

        panels.append(
            Panel(f"{measure}, {label}", draw, title=tuple(filter(None, (label, palette.agreement_words(rows)))))
        )
    return Figure(panels, 115, menu=True, page_width=400)


def specify_measure_correlations(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau of measures with accuracies: a row per measure, a column per key (`measure_correlations`)."""
    del results
    tau = figure_data.correlation_matrix(frame)
    texts = palette.correlation_texts(tau.to_numpy())

    def draw(place: PanelPlace) -> Spec:
        field = min(43, place.width / tau.shape[1])
        return heat_map(tau, texts, place, colour=_tau_colours(), words=_TAU, field=field, height=16)

    return Figure([Panel("", draw)], 1e9)


def specify_operation_effects(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw what each operation adds on each edge with its interval, one panel per score (see `effects_by_score`)."""
    space = results.cells
    names = figure_data.operation_names(space)
    colours = dict(zip(names, [space.operation_colours[one] for one in space.operations], strict=True))
    fill = named_colours(colours, symbolType="square") | {"field": "operation"}
    panels = []
    for score, rows in frame.groupby("score", sort=False):
        points = rows.assign(**{name: 100 * rows[name] for name in ("effect", "low", "high")})
        points = points[["edge", "operation", "effect", "low", "high"]]

        def draw(place: PanelPlace, points: pd.DataFrame = points) -> Spec:
            shift = {"field": "operation", "type": "nominal", "scale": {"domain": names}}
            at = {"x": {"field": "edge"}, "xOffset": shift}
            tooltip = [{"field": "edge"}, {"field": "operation"}]
            tooltip += [{"field": name, "format": "+.2f"} for name in ("effect", "low", "high")]
            dot = {"type": "point", "size": 12, "stroke": INK, "strokeWidth": 0.4}
            values = spec_rows(points, 3)
            layers: list[Spec] = [
                {"data": {"values": [{}]}, "mark": "rule", "encoding": {"y": {"datum": 0}}},
                *interval_layers(values, at, ("low", "high"), 3),
                {"data": {"values": values}, "mark": dot}
                | {"encoding": at | {"y": {"field": "effect"}, "fill": fill, "tooltip": tooltip}},
            ]
            encoding = {
                "x": category_axis(place, list(space.edge_labels), None, type="band", paddingInner=0.25),
                "y": {"type": "quantitative", "axis": {"title": "percentage points"}},
            }
            encoding["x"]["axis"] |= {"ticks": False}
            return {"width": place.width, "height": 260 if place.page else 105, "encoding": encoding, "layer": layers}

        panels.append(Panel(f"{SCORES[str(score)]} accuracy", draw))
    return Figure(panels, 1e9, menu=True, page_width=430)


def specify_top_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the operations of the best cells, one column per cell, one row per edge (see `top_cells`)."""
    space = results.cells
    names = figure_data.operation_names(space)
    colours = dict(zip(names, [space.operation_colours[one] for one in space.operations], strict=True))
    panels = []
    for (among, score), rows in frame.groupby(["among", "score"], sort=False):
        unseen = figure_data.n_unseen_ties(rows)
        label = f"{SCORES[str(score)]}, {among}"
        title = f"{SCORES[str(score)]} accuracy, {among}{f'; {palette.unseen_words(unseen)}' if unseen else ''}"

        def draw(place: PanelPlace, rows: pd.DataFrame = rows, unseen: int = unseen) -> Spec:
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
            tooltip = [{"field": one} for one in ("column", "accuracy", "rank", "row", "operation")]
            tooltip[0] |= {"title": "cell"}
            tooltip[3] |= {"title": "edge"}
            field = place.width / figure_data.TOP_CELLS
            above = [{"text": rank, "column": cell} for rank, cell in zip(ranks, ids, strict=True)]
            text = {"type": "text", "baseline": "bottom", "dy": -2}
            color = named_colours(colours, symbolType="square") | {"field": "operation"}
            at = {"x": {"field": "column"}, "y": {"value": 0}, "text": {"field": "text"}}
            layers: list[Spec] = [
                {"data": {"values": fields}, "mark": {"type": "rect", "stroke": "white", "strokeWidth": 1}}
                | {"encoding": {"color": color, "tooltip": tooltip, "y": {"field": "row"}}},
                {"data": {"values": above}, "mark": text, "encoding": at},
                {"data": {"values": [{"text": "rank"}]}, "mark": text | {"align": "right", "dx": -3}}
                | {"encoding": at | {"x": {"value": 0}}},
            ]
            x = category_axis(place._replace(width=field * len(ids)), ids, None) | {"field": "column"}
            y = {"type": "nominal", "scale": {"domain": list(space.edge_labels)}, "axis": {"title": None}}
            x["axis"] |= {"ticks": False, "title": palette.unseen_words(unseen) if unseen and place.page else None}
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

    def draw(place: PanelPlace) -> Spec:
        field = min(22, place.width / len(frame))
        return heat_map(distances, texts, place, colour=colour, words=words, field=field, number="d")

    cells = []
    for row in frame.itertuples():
        title = f"{row.Index}, {row.accuracy:.1%}", f"#{row.architecture}{palette.tie_words(int(str(row.tied)))}"
        cells.append(Panel(str(row.Index), partial(_draw_cell, space, str(row.spec)), title=title))
    above = Figure(cells, 112)
    return Figure([Panel("edges on which they differ", draw)], 1e9, page_width=400, above=above)


def _draw_cell(space: CellSpace, spec: str, place: PanelPlace) -> Spec:
    parts = space.cell_parts(spec)
    left, right, bottom, top = parts.bounds
    height = place.width * (top - bottom) / (right - left)

    def scale(ends: tuple[float, float]) -> Spec:
        return {"type": "quantitative", "scale": {"domain": list(ends), "nice": False, "zero": False}, "axis": None}

    encoding: Spec = {"x": {"field": "x", **scale((left, right))}, "y": {"field": "y", **scale((bottom, top))}}
    own = {"type": "nominal", "scale": None, "legend": None}
    colour = {"color": own | {"field": "colour"}}
    # Steps of the curves; of an edge without an operation every other one.
    lines = [
        {"x": round(x, 4), "y": round(y, 4), "to_x": round(to_x, 4), "to_y": round(to_y, 4), "colour": one.colour}
        for one in parts.edges
        for step, ((x, y), (to_x, to_y)) in enumerate(itertools.pairwise(one.curve))
        if one.operation != "none" or step % 2
    ]
    path = colour | {"x2": {"field": "to_x"}, "y2": {"field": "to_y"}}
    heads = [
        {"x": one.curve[-1][0], "y": one.curve[-1][1], "angle": 90 - one.angle, "colour": one.colour}
        for one in parts.edges
    ]
    turned = colour | {"angle": own | {"field": "angle", "type": "quantitative"}}
    labels = [{"x": one.label[0], "y": one.label[1], "text": one.text, "colour": one.colour} for one in parts.edges]
    nodes = [{"x": x, "y": y, "text": name} for name, (x, y) in parts.nodes.items()]
    text = {"text": {"field": "text"}}
    diameter = 2 * parts.radius * place.width / (right - left)
    halo = {"type": "text", "fontSize": LEAST_NUMBER, "stroke": PAPER, "strokeWidth": 2.5, "color": PAPER}
    circle = {"type": "point", "fill": PAPER, "stroke": INK, "strokeWidth": 0.8, "size": float(np.pi / 4 * diameter**2)}
    head = {"type": "point", "shape": "M0,0L-0.4,1.1L0.4,1.1Z", "size": 30, "strokeWidth": 0}
    layers: list[Spec] = [
        {"data": {"values": lines}, "mark": {"type": "rule", "strokeWidth": 1, "strokeCap": "round"}, "encoding": path},
        {"data": {"values": heads}, "mark": head, "encoding": turned},
        {"data": {"values": labels}, "mark": halo, "encoding": text},
        {"data": {"values": labels}, "mark": {"type": "text", "fontSize": LEAST_NUMBER}, "encoding": text | colour},
        {"data": {"values": nodes}, "mark": circle},
        {"data": {"values": nodes}, "mark": "text", "encoding": text},
    ]
    return {"width": place.width, "height": height, "encoding": encoding, "layer": layers}


def specify_neighbours(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw what one changed edge of the best cells gains or loses, in percentage points (see `neighbour_changes`)."""
    bests, scores = list(frame["best"].unique()), list(frame["score"].unique())
    panels = []
    # One scale for all panels, so that equal colours are equal changes.
    reach = max(1.0, 100 * float(np.nanmax(np.abs(frame["change"].to_numpy()), initial=0)))
    for best, score in itertools.product(bests, scores):
        rows = frame[(frame["best"] == best) & (frame["score"] == score)]
        if not len(rows):
            continue
        architecture, own, tied = figure_data.changed_cell(rows, results)
        changes = figure_data.change_matrix(rows, results.cells)
        hovers = _change_words(changes, own, rows, results.cells)
        named = f"#{architecture}{palette.tie_words(tied)}"
        label = f"best by {SCORES[str(best)]} ({named}): change of {SCORES[str(score)]}"
        title = (
            f"#{architecture}, best by {SCORES[str(best)]}{palette.tie_words(tied)}:",
            f"change of {SCORES[str(score)]}",
        )
        draw = partial(change_map, changes=changes, own=own, hovers=hovers, reach=reach)
        panels.append(Panel(label, draw, title=title))
    return Figure(panels, 144, menu=True, page_width=300, notes=(NEIGHBOURS_NOTE,))


def change_map(
    place: PanelPlace, changes: pd.DataFrame, own: list[int], hovers: Sequence[Sequence[str]], reach: float
) -> Spec:
    """Draw changes in percentage points as coloured fields, a dot on a cell's own operations."""
    colour = colour_bar((-reach, reach), palette.CHANGE, "change of accuracy in percentage points")
    texts = palette.change_texts(changes.to_numpy(), own, 2 if place.page else 1)
    field = place.width / changes.shape[1]
    words = {"row": "edge", "column": "operation", "value": "percentage points"}
    drawn = heat_map(changes, texts, place, colour=colour, words=words, field=field, height=16, hovers=hovers)
    return share_axes(drawn, place)


def _change_words(changes: pd.DataFrame, own: list[int], rows: pd.DataFrame, space: CellSpace) -> list[list[str]]:
    words = palette.change_texts(changes.to_numpy(), own, 2)
    for line, operation in zip(words, own, strict=True):
        line[operation] = "the cell's own operation"
    known: Any = rows[rows["low"].notna()][["edge", "operation", "low", "high"]].to_numpy().tolist()
    for edge, operation, low, high in known:
        words[edge][space.operations.index(operation)] += f" ({100 * low:+.2f} to {100 * high:+.2f})"
    return words
