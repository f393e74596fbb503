"""The drawing of each figure: its panels, and one of the nine drawings in `drawings` for each panel.

Each function draws a frame that a function of `figures.figure_data` computes; `figures.table` pairs the functions.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from robust201.analysis.class_summaries import CLASS_CONFIDENCES, CONFIDENCES
from robust201.analysis.dataset_results import ADVERSARIAL, SCORES, DatasetResults
from robust201.analysis.labels import column_label, dataset_label, key_label
from robust201.analysis.ranking import nearest_strength
from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import CLEAN, kind_of
from robust201.figures import drawings, figure_data, palette
from robust201.figures.panels import MIN_NUMBER_SIZE, SMALL_SIZE, Chart, Figure, Layout, Panel
from robust201.networks.colours import INK
from robust201.networks.spaces import CellSpace

AUTOATTACK_PREFIX = "aa_"
"""Prefix of the keys of AutoAttack's attacks."""

AUTOATTACK_NOTE = "APGD-CE and Square: correct predictions are on clean images that withstood the attack"
"""Note on AutoAttack in figures of confidences (docs/protocol/attacks.md, "What is measured if an attack fails?")."""

FEW_IMAGES_NOTE = "wrong predictions: an architecture may misclassify only a few images"
"""Note on the confidence in wrong predictions, which is then a mean over few images."""

NEIGHBOURS_NOTE = "• marks the cell's own operation; a field is empty if its class was not evaluated"

EQUALITY = "as accurate as clean"
FRONT = "Pareto front"

MAX_LARGE_POINTS = 500
"""Maximum number of networks for which scatter plots have large points."""

MAP_WIDTH = 400.0
"""Width of figures of a single panel on the page."""

CLASS_WIDTH = 11.0
"""Horizontal space for each class in a figure of confidences by class."""

_ONE_PER_ROW = 1e9
"""Value of `Figure.min_width` that puts every panel on its own row."""

_QUARTILES = {"q1": "q1|.2%", "median": "median|.2%", "q3": "q3|.2%", "n": "architectures|,"}

_TAU_TITLES = ("of", "and", "τ")


def draw_boxes(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of accuracies (see `accuracy_boxes`), with one panel per key and one box per strength."""
    keys = palette.sort_by_group(list(frame["key"].unique()))
    are_corruptions = kind_of(keys[0]) == "corruption"
    limits = figure_data.box_range(frame)
    shared_title, titles = _axis_titles(keys)
    colours = {"clean": palette.CLEAN_COLOUR} | {palette.key_group(key): palette.key_colour(key) for key in keys}
    groups = [group for group in palette.CORRUPTION_GROUPS if group in colours]
    colour = drawings.named_colours("group", colours, values=groups, symbolType="square")
    if not groups:
        colour = colour.legend(None)

    def draw(layout: Layout, key: str) -> Chart:
        rows, names = _with_ticks(frame[frame["key"] == key], key, results)
        rows = rows.assign(group=np.where(rows["tick"] == "clean", "clean", palette.key_group(key)))
        x = drawings.category_axis(layout, "tick", names, titles[key], type="band", paddingOuter=0.1)
        y = drawings.fraction_axis(layout, "q1", "accuracy", limits)
        layers = drawings.box_plots(rows, x, y, colour, limits)
        layers += drawings.chance_line(y, results.chance_level, limits)
        return drawings.layered(layers, 62 if are_corruptions else 88)

    min_width = 90 if are_corruptions else 187
    return Figure(_key_panels(keys, draw), min_width, label=shared_title)


def draw_accuracy_curves(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies with 95% intervals against strengths, with one panel per key and one curve per network.

    If one strength is much larger than the others, such as ε = 255/255, strengths are spaced evenly.
    """
    keys = palette.sort_by_group(list(frame["key"].unique()))
    networks = list(frame["network"].unique())
    colours = dict(zip(networks, palette.NETWORK_COLOURS, strict=False))
    shapes = dict(zip(networks, itertools.cycle(palette.NETWORK_SHAPES), strict=False))
    has_intervals = frame["low"].notna().all()
    with_intervals = frame if has_intervals else frame.assign(low=frame["accuracy"], high=frame["accuracy"])
    limits = figure_data.curve_range(with_intervals)
    shared_title, titles = _axis_titles(keys)
    colour = drawings.named_colours("network", colours, symbolType="stroke")
    tooltip = {"network": "network", "tick": "at", "accuracy": "accuracy|.2%"}
    tooltip |= {"low": "low|.2%", "high": "high|.2%"} if has_intervals else {}

    def draw(layout: Layout, key: str) -> Chart:
        rows, names = _with_ticks(with_intervals[with_intervals["key"] == key], key, results)
        strengths = sorted(rows["strength"].unique())
        x = (
            drawings.category_axis(layout, "tick", names, titles[key], type="point", padding=0.3)
            if len(strengths) == 1 or figure_data.has_far_strength(strengths)
            else drawings.strength_axis("strength", strengths, names, titles[key])
        )
        y = drawings.fraction_axis(layout, "accuracy", "accuracy", limits)
        layers = drawings.curves(rows, x, y, ("low", "accuracy", "high"), colour, tooltip, shapes=shapes)
        layers += drawings.chance_line(y, results.chance_level, limits, is_label_right=True)
        return drawings.layered(layers, 88)

    return Figure(_key_panels(keys, draw), 90 if kind_of(keys[0]) == "corruption" else 150, label=shared_title)


def draw_kernel_parameters(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of mean adversarial accuracy by kernel parameters (see `accuracy_by_kernel_parameters`)."""
    limits = figure_data.box_range(frame)
    names = [str(size) for size in frame["kernel_parameters"]]
    rows = frame.assign(tick=names)
    sizes = (0, results.cell_space.max_kernel_parameters)
    colour = drawings.number_colours("kernel_parameters", sizes, palette.SIZE_COLOURS, None)

    def draw(layout: Layout) -> Chart:
        x = drawings.category_axis(
            layout, "tick", names, "kernel parameters of the cell", type="band", paddingOuter=0.1
        )
        y = drawings.fraction_axis(layout, "q1", f"{SCORES[ADVERSARIAL]} accuracy", limits)
        means = alt.Chart(rows.drop(columns="outliers").round(5)).encode(x=x)
        intervals = means.transform_filter("isValid(datum.mean_low)")
        layers = drawings.box_plots(rows, x, y, colour, limits)
        layers += drawings.intervals(intervals, y, ("mean_low", "mean_high"), 3)
        layers.append(drawings.diamonds(means, y, {"mean": "mean", "mean_low": "low", "mean_high": "high"}))
        layers += drawings.chance_line(y, results.chance_level, limits)
        return drawings.layered(layers, min(165, 22 + 0.45 * layout.width))

    return Figure([Panel((), draw)], _ONE_PER_ROW, MAP_WIDTH)


def draw_rank_correlation(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau between the rankings under each pair of keys, a heat map per view (see `key_correlations`)."""
    del results
    views = {str(view): figure_data.correlation_view(frame, str(view)) for view in frame.index.unique("view")}
    label_sets = {tuple(tau.index) for tau in views.values()}

    def draw(layout: Layout, tau: pd.DataFrame) -> Chart:
        side = min(34, layout.width / len(tau))  # larger tiles would not be more legible
        texts = palette.correlation_texts(tau.to_numpy())
        return drawings.heat_map(
            tau, texts, layout, _tau_colours(), _TAU_TITLES, size=(side, side), shares_labels=len(label_sets) == 1
        ).properties(width=side * len(tau))

    panels = [Panel((view,), partial(draw, tau=tau)) for view, tau in views.items()]
    return Figure(panels, 216, min(MAP_WIDTH, 17.5 * max(map(len, label_sets))))


def _tau_colours() -> alt.Color:
    return drawings.number_colours("value", (-1, 1), palette.CORRELATION_SCHEME, "Kendall's tau-b", reverse=True)


def draw_dataset_correlation(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau between the rankings on all datasets as one heat map (see `dataset_correlations`)."""
    del results
    columns: list[Any] = list(frame.columns)
    names = figure_data.dataset_column_names(columns)
    tau = frame.set_axis(names, axis=0).set_axis(names, axis=1)
    texts = palette.correlation_texts(tau.to_numpy())
    groups = [f"{dataset_label(name)}: {key_label(key)}" for name, key, _ in columns]
    boundaries = [index for index in range(1, len(columns)) if columns[index][0] != columns[index - 1][0]]

    def draw(layout: Layout) -> Chart:
        side = min(34, layout.width / len(tau))
        chart = drawings.heat_map(tau, texts, layout, _tau_colours(), _TAU_TITLES, size=(side, side))
        lines = drawings.boundaries([side * boundary for boundary in boundaries], side * len(tau))
        if side < SMALL_SIZE:
            # There is no room for a label on every tile, so each dataset and key has one label in the middle of its
            # tiles, whose strengths ascend. Groups that are too narrow for a label have none.
            starts = [index for index in range(len(groups)) if index == 0 or groups[index] != groups[index - 1]]
            sizes = np.diff([*starts, len(groups)]).tolist()
            labels = {
                names[start + (size - 1) // 2]: groups[start]
                for start, size in zip(starts, sizes, strict=True)
                if size * side >= 4.5
            }
            expression = f"{palette.json_text(labels)}[datum.value]"
            for axis in (chart.layer[0].encoding.x.axis, chart.layer[0].encoding.y.axis):
                axis.values, axis.labelExpr, axis.labelFontSize = list(labels), expression, MIN_NUMBER_SIZE
        chart.layer += lines
        return chart.properties(width=side * len(tau))

    note = "the epsilons of each attack are in ascending order" if len(tau) > 60 else ""
    return Figure([Panel((), draw)], _ONE_PER_ROW, MAP_WIDTH, label=note)


def draw_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences with their quartiles (see `confidence_curves`), with one panel per key."""
    notes = [AUTOATTACK_NOTE] if any(key.startswith(AUTOATTACK_PREFIX) for key in _confidence_keys(frame)) else []
    colours = dict(zip(CONFIDENCES, palette.CONFIDENCE_COLOURS, strict=True))
    return _confidence_curves(frame, results, colours, "confidence in the", [*notes, FEW_IMAGES_NOTE])


def draw_one_class_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences in one class with their quartiles (see `one_class_confidence`)."""
    colours = dict(zip(CLASS_CONFIDENCES, palette.CLASS_CONFIDENCE_COLOURS, strict=True))
    number = figure_data.SHOWN_CLASS
    name = "".join(results.class_names(results.n_classes or 0)[number : number + 1])
    subject = f"class {number} ({name})" if name not in ("", str(number)) else f"class {number}"
    return _confidence_curves(frame, results, colours, f"confidence in {subject}, over the", [])


def _confidence_keys(frame: pd.DataFrame) -> list[str]:
    """Return the keys that get a panel: all except `clean`, which is the first point of every panel."""
    return palette.sort_by_group([key for key in frame["key"].unique() if key != CLEAN]) or [CLEAN]


def _confidence_curves(
    frame: pd.DataFrame, results: DatasetResults, colours: dict[str, str], title: str, notes: Sequence[str]
) -> Figure:
    colour = drawings.named_colours("confidence", colours, title, symbolType="stroke")
    tooltip = {"confidence": title, "tick": "at"} | _QUARTILES

    def draw(layout: Layout, key: str) -> Chart:
        rows, names = _with_ticks(figure_data.curves_of_key(frame, key, results), key, results)
        x = drawings.category_axis(layout, "tick", names, palette.strength_axis_title(key), type="point", padding=0.3)
        y = drawings.fraction_axis(layout, "median", "confidence")
        layers = drawings.curves(rows, x, y, ("q1", "median", "q3"), colour, tooltip)
        return drawings.layered(layers, 62)

    return Figure(_key_panels(_confidence_keys(frame), draw), 108, notes=notes)


def draw_class_confidences(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences with their quartiles by class (see `class_confidences`), with one panel per key."""
    n_classes = int(frame["class"].max()) + 1
    class_names = results.class_names(n_classes)
    colours = dict(zip(CLASS_CONFIDENCES, palette.CLASS_CONFIDENCE_COLOURS, strict=True))
    colour = drawings.named_colours("confidence", colours, "confidence in a class, over the", symbolOpacity=1)
    strengths = dict(zip(frame["key"], frame["strength"], strict=True))
    keys = [*(key for key in strengths if key == CLEAN), *palette.sort_by_group([k for k in strengths if k != CLEAN])]
    tooltip = {"name": "class", "confidence": "over the"} | _QUARTILES

    def draw(layout: Layout, key: str) -> Chart:
        rows = frame[frame["key"] == key]
        rows = rows.assign(tick=rows["class"].astype(str), name=[class_names[number] for number in rows["class"]])
        numbers = [str(number) for number in range(n_classes)]
        title = "class" if layout.is_at_bottom else None
        x = drawings.category_axis(layout, "tick", numbers, title, type="band", paddingOuter=0.1)
        scale = alt.Scale(type="band", paddingOuter=0.4, domain=list(colours))
        y = drawings.fraction_axis(layout, "median", "confidence")
        shift = alt.XOffset("confidence:N", scale=scale)
        layers = drawings.ranges(rows, x, shift, y, ("q1", "median", "q3"), colour, tooltip)
        return drawings.layered(layers, 62)

    panels = [Panel((column_label(k, strengths[k], results.strengths(k)),), partial(draw, key=k)) for k in keys]
    min_width = max(108.0, CLASS_WIDTH * n_classes)
    return Figure(panels, min_width, max(165.0, min_width))


def draw_confusion(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw summed confusion matrices with normalised rows (see `confusion_sums`), at one strength per key."""
    n_classes = frame.shape[1]
    class_names = [str(number) for number in range(n_classes)]
    titles = ("true class", "predicted class", "fraction of the true class")
    colour = drawings.number_colours(
        "value", (0, 1), palette.FRACTION_SCHEME, "% of the images of the true class", format=".0%", tickCount=5
    )

    def draw(layout: Layout, key: str, strength: float) -> Chart:
        fractions = figure_data.confusion_fractions(frame, key, strength)
        fractions = fractions.set_axis(class_names, axis=0).set_axis(class_names, axis=1)
        side = min(175, layout.width) / n_classes
        axes = ("predicted class" if layout.is_at_bottom else None, "true class" if layout.is_leftmost else None)
        texts = palette.fraction_texts(fractions.to_numpy())
        chart = drawings.heat_map(fractions, texts, layout, colour, titles, size=(side, side), axes=axes)
        if n_classes > palette.MAX_WRITTEN_CLASSES:
            chart.layer[0].encoding.x.axis.labels = chart.layer[0].encoding.y.axis.labels = False
        return chart

    panels = [
        Panel((column_label(key, strength, results.strengths(key)),), partial(draw, key=key, strength=strength))
        for key, strength in figure_data.reference_columns(figure_data.confusion_columns(frame))
    ]
    return Figure(panels, 112)


def draw_clean_and_key_accuracies(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracy under each key against clean accuracy, coloured by kernel parameters, at one strength per key."""
    clean_limits, limits = figure_data.scatter_limits(frame)
    groups: Any = dict(list(frame.groupby(["key", "strength"], sort=False)))
    strengths: Any = frame.groupby("key", sort=False)["strength"].unique()
    evaluations = [
        (key, nearest_strength(key, list(strengths[key]))) for key in palette.sort_by_group(list(strengths.index))
    ]
    front = frame[frame["front"]].sort_values(["clean", "accuracy"]).rename(columns={"clean": "x", "accuracy": "y"})
    scores = set(SCORES.values())
    dashes = {FRONT: [1, 0], EQUALITY: [1, 2]} if len(front) else {EQUALITY: [1, 2]}
    legend = alt.Legend(orient="top", direction="horizontal", title=None, symbolType="stroke")
    names = alt.Scale(domain=list(dashes), range=[INK] * len(dashes))
    stroke = alt.Stroke("name:N", scale=names, legend=legend)
    dash = alt.StrokeDash("name:N", scale=alt.Scale(domain=list(dashes), range=list(dashes.values())), legend=legend)
    size = 3.0 if len(results.accuracies) > MAX_LARGE_POINTS else 14.0
    tooltip = {"architecture": "architecture", "clean": "clean|.2%", "accuracy": "accuracy|.2%"}
    space = results.space
    if space is not None:
        tooltip |= {"kernel_parameters": "kernel parameters"}

    def draw(layout: Layout, key: str, strength: float) -> Chart:
        rows = groups[key, strength].drop(columns=["key", "strength", "front"])
        rows = figure_data.move_to_axes(rows.assign(x=rows["clean"], y=rows["accuracy"]), clean_limits, limits)
        axis = alt.Axis(title=None, format=".0%", grid=True, tickCount=4)
        scale = alt.Scale(domain=list(clean_limits), nice=False, zero=False)
        x, y = alt.X("x:Q", axis=axis, scale=scale), drawings.fraction_axis(layout, "y", "accuracy", limits)
        colour = (
            alt.value(palette.key_colour(key))
            if space is None
            else drawings.number_colours(
                "kernel_parameters",
                (0, space.max_kernel_parameters),
                palette.SIZE_COLOURS,
                "kernel parameters of the cell",
            )
        )
        layers: list[Chart] = [drawings.line_of_equality(x, y, EQUALITY, stroke, dash)]
        layers += drawings.points(rows, x, y, colour, size, tooltip, (layout.width, 72))
        if key in scores and len(front):
            layers += drawings.front(front[["architecture", "x", "y"]], x, y, FRONT, stroke, size)
        layers += drawings.chance_line(y, results.chance_level, limits, is_label_right=True)
        return drawings.layered(layers, 72)

    panels = [
        Panel((column_label(key, strength, results.strengths(key)),), partial(draw, key=key, strength=strength))
        for key, strength in evaluations
    ]
    return Figure(panels, 108, label="clean accuracy")


def draw_measure_correlations(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau between measures (rows) and accuracies (columns); see `measure_correlations`."""
    del results
    tau = figure_data.correlation_matrix(frame)
    texts = palette.correlation_texts(tau.to_numpy())

    def draw(layout: Layout) -> Chart:
        width = min(43, layout.width / tau.shape[1])
        chart = drawings.heat_map(tau, texts, layout, _tau_colours(), _TAU_TITLES, size=(width, 16))
        return chart.properties(width=width * tau.shape[1])

    return Figure([Panel((), draw)], _ONE_PER_ROW, MAP_WIDTH)


def _operation_colours(space: CellSpace) -> dict[str, str]:
    colours = [space.operation_colours[operation] for operation in space.operations]
    return dict(zip(figure_data.operation_names(space), colours, strict=True))


def draw_top_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the operations of the best cells (see `top_cells`), with one column per cell and one row per edge."""
    space = results.cell_space
    panels = []
    for (among, score), rows in frame.groupby(["among", "score"], sort=False):
        n_omitted = figure_data.count_omitted_ties(rows)
        note = f"; {palette.omitted_note(n_omitted)}" if n_omitted else ""
        title = f"{SCORES[str(score)]} accuracy, {among}{note}"
        panels.append(Panel((title, ""), partial(_draw_top_cells, rows=rows, space=space)))
    return Figure(panels, _ONE_PER_ROW, MAP_WIDTH)


def _draw_top_cells(layout: Layout, rows: pd.DataFrame, space: CellSpace) -> Chart:
    cells = rows.drop_duplicates("architecture")
    ranks = palette.rank_texts(cells)
    rank_by_cell = dict(zip(cells["architecture"], ranks, strict=True))
    tiles = pd.DataFrame(
        {
            "cell": [f"#{index}" for index in rows["architecture"]],
            "architecture": rows["architecture"],
            "accuracy": rows["accuracy"],
            "rank": rows["architecture"].map(rank_by_cell),
            "edge": [space.edge_labels[edge] for edge in rows["edge"]],
            "operation": [space.operation_labels[operation] for operation in rows["operation"]],
        }
    )
    tile_width = layout.width / figure_data.MAX_TOP_CELLS
    chart = drawings.cell_tiles(tiles, ranks, space.edge_labels, _operation_colours(space), tile_width)
    return chart.properties(width=tile_width * len(ranks))


def draw_best_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the best cell by each criterion, and the edit distances between these cells (see `best_cells`)."""
    space = results.cell_space
    distances = frame[list(frame.index)]
    texts = distances.to_numpy().astype(str).tolist()
    colour = drawings.number_colours("value", (0, len(space.edges)), palette.BLUES, None)

    def draw(layout: Layout) -> Chart:
        side = min(22, layout.width / len(frame))
        titles = ("from", "to", "edges that differ")
        chart = drawings.heat_map(distances, texts, layout, colour, titles, size=(side, side))
        return chart.properties(width=side * len(frame))

    cells = []
    for row in frame.itertuples():
        title = f"{row.Index}, {row.accuracy:.1%}", f"#{row.architecture}{palette.tie_note(int(str(row.tied)))}"
        cells.append(Panel(title, partial(_draw_cell, space=space, spec=str(row.spec))))
    return Figure([Panel((), draw)], _ONE_PER_ROW, above=Figure(cells, 112))


def _draw_cell(layout: Layout, space: CellSpace, spec: str) -> Chart:
    return space.draw_cell(spec, width=layout.width)


def draw_neighbours(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw how accuracies change if one edge of a best cell is changed (see `neighbour_changes`)."""
    panels = []
    # All panels have the same scale, so that equal colours mean equal changes.
    largest = max(1.0, 100 * float(np.nanmax(np.abs(frame["change"].to_numpy()), initial=0)))
    title = "change of accuracy in percentage points"
    colour = drawings.number_colours("value", (-largest, largest), palette.CHANGE_SCHEME, title)
    for (criterion, score), rows in frame.groupby(["best", "score"], sort=False):
        architecture, operations, n_tied = figure_data.base_cell(rows, results)
        changes = figure_data.change_matrix(rows, results.cell_space)
        hover = _describe_changes(changes, operations, rows, results.cell_space)
        best = f"#{architecture}, best by {SCORES[str(criterion)]}{palette.tie_note(n_tied)}:"
        lines = (best, f"change of {SCORES[str(score)]}")

        def draw(
            layout: Layout,
            changes: pd.DataFrame = changes,
            operations: list[int] = operations,
            hover: list[list[str]] = hover,
        ) -> Chart:
            texts = palette.change_texts(changes.to_numpy(), operations, 1)
            titles, size = ("edge", "operation", "percentage points"), (layout.width / changes.shape[1], 16.0)
            return drawings.heat_map(changes, texts, layout, colour, titles, size=size, hover=hover, shares_labels=True)

        panels.append(Panel(lines, draw))
    return Figure(panels, 144, notes=(NEIGHBOURS_NOTE,))


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


def draw_security_curves(rows: pd.DataFrame, ends: drawings.Limits, axis_title: str, note: str) -> Figure:
    """Draw one curve of accuracies over epsilon per network, with a band of 95% intervals.

    Args:
        rows: see `SecurityCurves.accuracy`.
        ends: limits of the horizontal axis.
        axis_title: its title.
        note: text below the figure.
    """
    colours = dict(zip(map(str, rows["network"].unique()), itertools.cycle(palette.NETWORK_COLOURS), strict=False))
    colour = drawings.named_colours("network", colours, symbolType="stroke")

    def draw(layout: Layout) -> Chart:
        scale = alt.Scale(domain=list(ends), nice=False)
        x = alt.X("epsilon:Q", axis=alt.Axis(title=axis_title, tickCount=6), scale=scale)
        y = drawings.fraction_axis(layout, "accuracy", "accuracy")
        layers = drawings.curves(rows, x, y, ("low", "accuracy", "high"), colour, {})
        return drawings.layered(layers, 120)

    return Figure([Panel((), draw)], 150, notes=(note,))


def _key_panels(keys: Sequence[str], draw: Any) -> list[Panel]:
    return [Panel((key_label(key),), partial(draw, key=key)) for key in keys]


def _axis_titles(keys: Sequence[str]) -> tuple[str, dict[str, str | None]]:
    """Return the title that all keys' axes of strengths share, or an empty text; and the titles of single axes."""
    titles: dict[str, str | None] = {key: palette.strength_axis_title(key) for key in keys}
    shared = {*titles.values()}
    if len(shared) > 1:
        return "", titles
    return shared.pop() or "", dict.fromkeys(keys)


def _with_ticks(rows: pd.DataFrame, key: str, results: DatasetResults) -> tuple[pd.DataFrame, list[str]]:
    """Return a key's rows with the label `tick` of their strength, and all labels by ascending strength."""
    starts_with_clean = results.starts_with_clean(key)
    ticks = ["clean" if starts_with_clean and s == CLEAN_STRENGTH else f"{s:g}" for s in rows["strength"]]
    rows = rows.assign(tick=ticks)
    return rows, list(dict.fromkeys(rows.sort_values("strength", kind="stable")["tick"]))
