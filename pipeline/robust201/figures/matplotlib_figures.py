"""Figures as matplotlib Figures of their own: nothing here touches pyplot or its global state.

Every function draws the frame of `figures.figure_data` that the table of figures pairs it with, so many inches wide.
"""

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from robust201.analysis.dataset_results import ADVERSARIAL, SCORES, DatasetResults
from robust201.analysis.labels import column_label, dataset_label, key_label
from robust201.core.records import CLEAN_STRENGTH
from robust201.figures import figure_data, palette
from robust201.figures import matplotlib_parts as parts
from robust201.reader.result_files import kind_of
from robust201.reader.value_checks import CLEAN
from robust201.spaces.cell_space import INK

AUTOATTACK_KEYS = "aa_"
AUTOATTACK_NOTE = "APGD-CE, Square: where right, these are the clean images that resist"
"""What AutoAttack's panels of confidences show (see `docs/protocol.md`, "What is measured where an attack fails?")."""

FEW_NOTE = "where wrong, an architecture may have but a few images"

RASTER_POINTS = 500
"""Scatter plots of at least so many points are drawn as pictures inside an SVG or PDF."""


def draw_boxes(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw box plots of accuracy: one panel per key, a box per strength, and the chance line (see `accuracy_boxes`)."""
    keys = palette.grouped(list(frame["key"].unique()))
    corrupted = kind_of(keys[0]) == "corruption"
    least, height = (1.25, 1.3) if corrupted else (2.6, 1.75)
    limits = figure_data.box_range(frame)
    figure, panels = parts.make_axes_grid(len(keys), width, least, height, limits=limits, below=0.45)
    n_columns = parts.count_columns(len(keys), width, least)
    for axes, key in zip(panels, keys, strict=True):
        boxes = frame[frame["key"] == key]
        begins_clean = results.begins_clean(key)
        colours = [
            palette.CLEAN_COLOUR if begins_clean and strength == CLEAN_STRENGTH else palette.key_colour(key)
            for strength in boxes["strength"]
        ]
        labels = palette.ticks(boxes["strength"], begins_clean=begins_clean)
        _draw_boxes(axes, boxes, labels, colours)
        room = (width / n_columns - 0.4) / len(boxes)
        if max(parts.inches(len(label), parts.SMALL) for label in labels) > room:
            axes.tick_params(axis="x", rotation=90)
        axes.set_title(key_label(key), color=INK, fontsize=parts.TITLE)
        parts.draw_chance(axes, results.chance)
    _name_strengths(figure, panels, keys)
    if corrupted:
        parts.draw_group_legend(figure, keys)
    return figure


def draw_kernel_parameters(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw box plots of mean adversarial accuracy by kernel parameters (see `accuracy_by_kernel_parameters`)."""
    limits = figure_data.box_range(frame)
    label = f"{SCORES[ADVERSARIAL]} accuracy"
    figure, (axes,) = parts.make_axes_grid(1, width, width, min(2.6, 0.3 + 0.5 * width), label=label, limits=limits)
    colours = LinearSegmentedColormap.from_list("sizes", palette.SIZE_COLOURS)
    sizes = frame["kernel_parameters"] / results.cells.max_kernel_parameters
    labels = [str(size) for size in frame["kernel_parameters"]]
    _draw_boxes(axes, frame, labels, [colours(size) for size in sizes])
    if max(parts.inches(len(label), parts.SMALL) for label in labels) > (width - 0.5) / len(labels):
        axes.tick_params(axis="x", rotation=90)
    reach = [frame["mean"] - frame["mean_low"], frame["mean_high"] - frame["mean"]]
    looks: Any = {"color": INK, "markerfacecolor": "white", "markeredgewidth": 0.6, "elinewidth": 0.9, "capsize": 1.5}
    axes.errorbar(np.arange(len(frame)) + 1, frame["mean"], reach, fmt="D", markersize=2.2, zorder=4, **looks)
    axes.set_xlabel("kernel parameters of the cell", color=INK, fontsize=parts.TEXT)
    parts.draw_chance(axes, results.chance)
    return figure


def _draw_boxes(axes: Any, boxes: pd.DataFrame, labels: Sequence[str], colours: Sequence[Any]) -> None:
    low, high = axes.get_ylim()
    named = boxes.rename(columns={"median": "med", "low": "whislo", "high": "whishi", "outliers": "fliers"})
    numbers: Any = named.assign(label=labels).to_dict("records")
    for box in numbers:
        box["fliers"] = [value for value in box["fliers"] if low <= value <= high]
    drawn = axes.bxp(
        numbers,
        widths=0.62,
        patch_artist=True,
        medianprops={"color": INK, "linewidth": 1.1},
        whiskerprops={"color": INK, "linewidth": 0.6},
        capprops={"color": INK, "linewidth": 0.6},
        flierprops={"marker": ".", "markersize": 2.5, "markerfacecolor": INK, "markeredgecolor": "none"},
    )
    for colour, box in zip(colours, drawn["boxes"], strict=True):
        box.set(facecolor=colour, edgecolor=INK, linewidth=0.6, alpha=0.85)
    for place, row in enumerate(boxes.itertuples(), start=1):
        parts.draw_beyond(axes, place, int(str(row.n_below)), top=False)
        parts.draw_beyond(axes, place, int(str(row.n_above)), top=True)


def _name_strengths(figure: Figure, panels: Sequence[Any], keys: Sequence[str]) -> None:
    words = {palette.strength_word(key) for key in keys}
    if len(words) == 1:
        figure.supxlabel(words.pop(), fontsize=parts.TEXT, color=INK)
    else:
        for axes, key in zip(panels, keys, strict=True):
            axes.set_xlabel(palette.strength_word(key), fontsize=parts.TEXT, color=INK)


def draw_rank_correlation(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw Kendall's tau between every two columns as heat maps, one per view (see `key_correlations`)."""
    del results
    views = list(frame.index.get_level_values("view").unique())
    maps = [figure_data.square(frame, view) for view in views]
    n = max(len(tau) for tau in maps)
    n_columns = parts.count_columns(len(views), width, 3.0)
    alike = all(list(tau.columns) == list(maps[0].columns) for tau in maps)
    margin = parts.inches(max(len(str(name)) for tau in maps for name in tau.columns), parts.SMALL) + 0.1
    margins = margin if alike else margin * n_columns
    # Few large fields would be no better to read.
    field = min(0.55, (width - margins - 0.1 * n_columns) / (n_columns * n))
    n_rows = -(-len(views) // n_columns)
    height = n_rows * (field * n + (0.25 if len(views) > 1 else 0)) + margin * (1 if alike else n_rows) + 0.6
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = parts.make_panels(figure, len(views), n_columns)
    for place, (axes, view, tau) in enumerate(zip(panels, views, maps, strict=True)):
        texts = palette.correlation_texts(tau.to_numpy())
        parts.draw_heat_map(axes, tau, texts, (-1, 1), colours=palette.CORRELATION, field=field)
        axes.set_title(view, color=INK, fontsize=parts.TITLE)
        if alike:
            axes.tick_params(labelleft=place % n_columns == 0, labelbottom=place + n_columns >= len(views))
    colours = ScalarMappable(Normalize(-1, 1), palette.CORRELATION)
    parts.draw_colour_bar(figure, colours, panels, "Kendall's tau-b")
    return figure


def draw_dataset_correlation(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw Kendall's tau between the columns of all datasets as one heat map (see `dataset_correlations`)."""
    del results
    columns: list[Any] = list(frame.columns)
    names = figure_data.dataset_column_names(columns)
    margin = parts.inches(max(map(len, names)), parts.SMALL) + 0.1
    field = min(0.5, (width - margin) / len(columns))
    grouped = field < parts.SMALL / parts.POINTS
    if grouped:
        # No room for a label per field: one per dataset and key, with ascending strengths.
        groups = [f"{dataset_label(name)}: {key_label(key)}" for name, key, _ in columns]
        margin = parts.inches(max(map(len, groups)), parts.SMALL) + 0.1
        field = (width - margin) / len(columns)
    figure = Figure(figsize=(width, field * len(columns) + margin + 0.6), layout="constrained")
    (axes,) = parts.make_panels(figure, 1, 1)
    shown = frame.set_axis(names, axis=0).set_axis(names, axis=1)
    texts = palette.correlation_texts(shown.to_numpy())
    parts.draw_heat_map(axes, shown, texts, (-1, 1), colours=palette.CORRELATION, field=field)
    if grouped:
        starts = [place for place in range(len(groups)) if place == 0 or groups[place] != groups[place - 1]]
        ends = [*starts[1:], len(groups)]
        middles = [(start + end) / 2 for start, end in zip(starts, ends, strict=True)]
        labels = [groups[start] for start in starts]
        # Groups of one column have no room either.
        kept = [place for place in range(len(starts)) if (ends[place] - starts[place]) * field >= 0.06]
        axes.set_xticks([middles[i] for i in kept], [labels[i] for i in kept], rotation=90)
        axes.set_yticks([middles[i] for i in kept], [labels[i] for i in kept])
        for label in axes.get_xticklabels():
            label.set(ha="right", va="center", rotation_mode="anchor")
        axes.tick_params(labelsize=parts.NUMBER)
        figure.supxlabel("epsilons of an attack ascend", fontsize=parts.NUMBER, color=INK)
    for place in range(1, len(columns)):
        if columns[place][0] != columns[place - 1][0]:
            axes.axhline(place, color=INK, linewidth=1)
            axes.axvline(place, color=INK, linewidth=1)
    colours = ScalarMappable(Normalize(-1, 1), palette.CORRELATION)
    parts.draw_colour_bar(figure, colours, [axes], "Kendall's tau-b")
    return figure


def draw_confidence(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw median confidences with their quartiles, one panel per key (see `confidence_curves`)."""
    keys = [key for key in frame["key"].unique() if key != CLEAN]
    figure, panels = parts.make_axes_grid(max(1, len(keys)), width, 1.5, 1.45, label="confidence", below=0.75)
    n_columns = parts.count_columns(max(1, len(keys)), width, 1.5)
    for axes, key in zip(panels, keys or [CLEAN], strict=True):
        rows = figure_data.curves_of(frame, key, results)
        strengths = sorted(rows["strength"].unique())
        places = {strength: place for place, strength in enumerate(strengths)}
        for name, colour in zip(figure_data.CONFIDENCES, palette.CONFIDENCE_COLOURS, strict=True):
            curve = rows[rows["confidence"] == name]
            x = [places[strength] for strength in curve["strength"]]
            axes.plot(x, curve["median"], color=colour, linewidth=1.1, marker="o", markersize=2, label=name)
            axes.fill_between(x, curve["q1"], curve["q3"], color=colour, alpha=0.2, linewidth=0)
        labels = palette.ticks(strengths, begins_clean=results.begins_clean(key))
        axes.set_xticks(range(len(strengths)), labels)
        if max(parts.inches(len(text), parts.SMALL) for text in labels) > (width / n_columns - 0.35) / len(labels):
            axes.tick_params(axis="x", rotation=90)
        axes.set_title(key_label(key), color=INK, fontsize=parts.TITLE)
        axes.set_xlabel(palette.strength_word(key), color=INK, fontsize=parts.SMALL)
    handles, _ = panels[0].get_legend_handles_labels()
    legend = parts.draw_legend(figure, handles)
    notes = [AUTOATTACK_NOTE] if any(key.startswith(AUTOATTACK_KEYS) for key in keys) else []
    legend.set_title("\n".join((*notes, FEW_NOTE, "confidence in the")))
    legend.get_title().set(multialignment="center", fontsize=parts.NUMBER)
    legend.get_title().set_color(INK)
    return figure


def draw_confusion(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw summed confusion matrices at ε = 1/255 and severity 3, rows as shares (see `confusion_sums`)."""
    shown = figure_data.reference_columns(figure_data.confusion_columns(frame))
    n_columns = parts.count_columns(len(shown), width, 1.55)
    side = min(2.6, width / n_columns)
    n_rows = -(-len(shown) // n_columns)
    figure = Figure(figsize=(width, (side + 0.12) * n_rows + 0.5), layout="constrained")
    panels = parts.make_panels(figure, len(shown), n_columns)
    for place, (axes, (key, strength)) in enumerate(zip(panels, shown, strict=True)):
        shares = figure_data.confusion_shares(frame, key, strength)
        texts = palette.share_texts(shares.to_numpy())
        field = (side - 0.35) / len(shares)
        parts.draw_heat_map(axes, shares, texts, (0, 1), colours=palette.SEQUENTIAL, field=field)
        axes.set_title(column_label(key, strength, results.strengths(key)), color=INK, fontsize=parts.SMALL)
        if len(shares) > palette.WRITTEN_CLASSES:
            axes.set(xticks=[], yticks=[])
        axes.tick_params(axis="x", rotation=0)
        if place + n_columns >= len(shown):
            axes.set_xlabel("predicted class", color=INK, fontsize=parts.SMALL)
        if place % n_columns == 0:
            axes.set_ylabel("true class", color=INK, fontsize=parts.SMALL)
    colours = ScalarMappable(Normalize(0, 100), palette.SEQUENTIAL)
    parts.draw_colour_bar(figure, colours, panels, "% of the images of the true class")
    del results
    return figure


def draw_clean_against(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw accuracy under each key against clean accuracy, coloured by kernel parameters (see `clean_against`)."""
    keys = palette.grouped(list(frame["key"].unique()))
    groups = {}
    for key in keys:
        rows = frame[frame["key"] == key]
        strength = figure_data.reference_strength(key, list(rows["strength"].unique()))
        groups[key, strength] = rows[rows["strength"] == strength]
    across = figure_data.bulk_range(frame["clean"])
    # What is beyond one axis must not stretch the other.
    near = [rows[rows["clean"].between(*across)] for rows in groups.values()]
    ranges = [figure_data.bulk_range(rows["accuracy"]) for rows in near if len(rows)]
    up = min(low for low, _ in ranges), max(high for _, high in ranges)
    limits = [_widened(across), _widened(up)]
    figure, panels = parts.make_axes_grid(len(groups), width, 1.5, 1.5, limits=limits[1], below=0.75)
    space = results.space
    colours = LinearSegmentedColormap.from_list("sizes", palette.SIZE_COLOURS)
    for axes, ((key, strength), rows) in zip(panels, groups.items(), strict=True):
        many = len(rows) >= RASTER_POINTS
        looks: dict[str, Any] = {"s": 1.5 if many else 9, "linewidths": 0, "rasterized": many}
        if space is None:
            looks["color"] = palette.key_colour(key)
        else:
            looks |= {"c": rows["kernel_parameters"].to_numpy(), "cmap": colours}
            looks |= {"vmin": 0, "vmax": space.max_kernel_parameters}
        axes.set_xlim(*limits[0])
        parts.draw_points(axes, rows["clean"], rows["accuracy"], limits, **looks)
        front = rows[rows["front"]].sort_values(["clean", "accuracy"])
        if len(front):
            on: dict[str, Any] = {
                "color": INK,
                "linewidth": 0.8,
                "marker": "o",
                "markersize": 3,
                "markerfacecolor": "none",
            }
            (line,) = axes.plot(front["clean"], front["accuracy"], markeredgewidth=0.6, label="Pareto front", **on)
            parts.draw_legend(
                figure, [line, Line2D([], [], color=INK, linewidth=0.7, linestyle=":", label="as accurate as clean")]
            )
        axes.axline((0, 0), slope=1, color=INK, linewidth=0.7, linestyle=":")
        parts.draw_chance(axes, results.chance, right=True)
        axes.set_title(column_label(key, strength, results.strengths(key)), color=INK, fontsize=parts.SMALL)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="x", color=palette.GRID, linewidth=0.5)
    figure.supxlabel("clean accuracy", fontsize=parts.TEXT, color=INK)
    if space is not None:
        scale = ScalarMappable(Normalize(0, space.max_kernel_parameters), colours)
        parts.draw_colour_bar(figure, scale, panels, "kernel parameters of the cell")
    return figure


def _widened(limits: tuple[float, float]) -> tuple[float, float]:
    margin = max(0.01, 0.05 * (limits[1] - limits[0]))
    return max(0.0, limits[0] - margin), min(1.0, limits[1] + margin)


def draw_measures_against(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw accuracies against the numbers of measures, a panel per measure and key (see `measures_against`)."""
    groups: Any = list(frame.groupby(["measure", "key"], sort=False))
    ranges = [figure_data.bulk_range(rows["accuracy"]) for _, rows in groups]
    limits = _widened((min(low for low, _ in ranges), max(high for _, high in ranges)))
    figure, panels = parts.make_axes_grid(len(groups), width, 1.6, 1.7, limits=limits)
    for axes, ((measure, key), rows) in zip(panels, groups, strict=True):
        many, colour = len(rows) >= RASTER_POINTS, palette.key_colour(key)
        logarithmic = palette.spans_magnitudes(rows["value"])
        across = figure_data.bulk_range(rows["value"], logarithmic=logarithmic)
        looks = {"color": colour, "s": 1.5 if many else 9, "linewidths": 0, "rasterized": many}
        axes.set_xscale("log" if logarithmic else "linear")
        parts.draw_points(axes, rows["value"], rows["accuracy"], [across, limits], **looks)
        parts.draw_chance(axes, results.chance, right=True)
        title = column_label(key, rows["strength"].iloc[0], results.strengths(key))
        axes.set_title(f"{title}\n{palette.agreement_words(rows)}", color=INK, fontsize=parts.SMALL)
        axes.set_xlabel(measure, color=INK, fontsize=parts.SMALL)
        axes.grid(axis="x", color=palette.GRID, linewidth=0.5)
    return figure


def draw_measure_correlations(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw Kendall's tau of measures with accuracies: a row per measure, a column per key (`measure_correlations`)."""
    del results
    tau = figure_data.correlation_matrix(frame)
    margin = parts.inches(max(len(str(name)) for name in tau.index), parts.SMALL) + 0.1
    field = min(0.6, (width - margin - 0.7) / tau.shape[1])
    below = parts.inches(max(len(str(name)) for name in tau.columns), parts.SMALL)
    figure = Figure(figsize=(width, 0.22 * len(tau) + below + 0.5), layout="constrained")
    (axes,) = parts.make_panels(figure, 1, 1)
    texts = palette.correlation_texts(tau.to_numpy())
    parts.draw_heat_map(axes, tau, texts, (-1, 1), colours=palette.CORRELATION, field=field, squares=False)
    parts.draw_colour_bar(figure, ScalarMappable(Normalize(-1, 1), palette.CORRELATION), [axes], "Kendall's tau-b")
    return figure


def draw_operation_effects(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw what each operation adds on each edge with its interval, one panel per score (see `effects_by_score`)."""
    space = results.cells
    scores = list(frame["score"].unique())
    names = figure_data.operation_names(space)
    figure = Figure(figsize=(width, 1.75 * len(scores) + 0.4), layout="constrained")
    for axes, score in zip(parts.make_panels(figure, len(scores), 1), scores, strict=True):
        parts.style(axes)
        axes.axhline(0, color=INK, linewidth=0.6)
        for place, (operation, name) in enumerate(zip(space.operations, names, strict=True)):
            rows = frame[(frame["score"] == score) & (frame["operation"] == name)]
            x = np.arange(len(rows)) + (place - (len(names) - 1) / 2) * 0.14
            reach = [100 * (rows["effect"] - rows["low"]), 100 * (rows["high"] - rows["effect"])]
            colour = space.operation_colours[operation]
            looks: Any = {
                "markersize": 3,
                "markeredgewidth": 0.4,
                "markeredgecolor": INK,
                "elinewidth": 1.1,
                "ecolor": INK,
            }
            axes.errorbar(x, 100 * rows["effect"], reach, fmt="o", color=colour, capsize=1.5, **looks)
        axes.set_xticks(np.arange(len(space.edge_labels)), space.edge_labels)
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="y", color=palette.GRID, linewidth=0.5)
        axes.set_ylabel("percentage points", fontsize=parts.TEXT, color=INK)
        axes.set_title(f"{SCORES[score]} accuracy", color=INK, fontsize=parts.TITLE)
    handles = [
        Patch(color=space.operation_colours[one], label=name) for one, name in zip(space.operations, names, strict=True)
    ]
    parts.draw_legend(figure, handles)
    return figure


def draw_top_cells(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw the operations of the best cells, one column per cell, one row per edge (see `top_cells`)."""
    space = results.cells
    groups: Any = list(frame.groupby(["among", "score"], sort=False))
    figure = Figure(figsize=(width, 1.55 * len(groups) + 0.4), layout="constrained")
    colours = ListedColormap([space.operation_colours[operation] for operation in space.operations])
    n_operations = len(space.operations)
    field = (width - 0.5) / figure_data.TOP_CELLS
    turned = parts.inches(len("#12345"), parts.SMALL) > field
    for axes, ((among, score), rows) in zip(parts.make_panels(figure, len(groups), 1), groups, strict=True):
        codes = figure_data.operation_codes(rows, space)
        axes.pcolormesh(
            codes.to_numpy(), cmap=colours, vmin=-0.5, vmax=n_operations - 0.5, edgecolors="white", linewidth=1
        )
        parts.style(axes)
        labels = [f"#{index}" for index in codes.columns]
        axes.set_xticks(np.arange(len(labels)) + 0.5, labels)
        if turned:
            for label in axes.get_xticklabels():
                label.set(rotation=90, ha="right", va="center", rotation_mode="anchor")
        axes.set_yticks(np.arange(len(codes)) + 0.5, space.edge_labels)
        axes.tick_params(length=0, labelsize=parts.SMALL)
        axes.set_xlim(0, figure_data.TOP_CELLS)
        axes.invert_yaxis()
        ranks = palette.rank_texts(rows.drop_duplicates("architecture"))
        for x, text in [(-0.1, "rank"), *zip(np.arange(len(ranks)) + 0.5, ranks, strict=True)]:
            ha = "center" if x > 0 else "right"
            axes.text(x, -0.12, text, ha=ha, va="bottom", fontsize=parts.NUMBER, color=INK)
        unseen = figure_data.n_unseen_ties(rows)
        title = f"{SCORES[score]} accuracy, {among}{f'; {palette.unseen_words(unseen)}' if unseen else ''}"
        size = parts.TITLE if parts.inches(len(title), parts.TITLE) < width - 0.4 else parts.NUMBER
        axes.set_title(title, color=INK, fontsize=size, pad=11)
    names = zip(space.operations, figure_data.operation_names(space), strict=True)
    parts.draw_legend(
        figure, [Patch(color=space.operation_colours[operation], label=name) for operation, name in names]
    )
    return figure


def draw_best_cells(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw the best cell by each criterion, and the edit distances between them (see `best_cells`)."""
    space = results.cells
    n_columns = parts.count_columns(len(frame), width, 1.55)
    heights = [1.45 * -(-len(frame) // n_columns), 0.24 * len(frame) + 1.4]
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, row in zip(parts.make_panels(upper, len(frame), n_columns), frame.itertuples(), strict=True):
        title = f"{row.Index}, {row.accuracy:.1%}\n#{row.architecture}{palette.tie_words(int(str(row.tied)))}"
        space.draw_cell(axes, str(row.spec), title, font_size=5.5)
        axes.title.set_fontsize(parts.SMALL)
    distances = frame[list(frame.index)]
    axes = lower.subplots()
    texts = distances.to_numpy().astype(str).tolist()
    parts.draw_heat_map(axes, distances, texts, (0, len(space.edges)), colours="Blues", field=0.24)
    axes.set_title("edges on which they differ", color=INK, fontsize=parts.TITLE)
    return figure


def draw_neighbours(frame: pd.DataFrame, results: DatasetResults, width: float) -> Figure:
    """Draw what one changed edge of the best cells gains or loses, in percentage points (see `neighbour_changes`)."""
    bests, scores = list(frame["best"].unique()), list(frame["score"].unique())
    held: list[tuple[Hashable, Hashable]] = [
        (best, score)
        for best, score in itertools.product(bests, scores)
        if len(frame[(frame["best"] == best) & (frame["score"] == score)])
    ]
    n_columns = len(scores) if width / len(scores) >= 2.0 else 1
    n_rows = -(-len(held) // n_columns)
    figure = Figure(figsize=(width, 1.75 * n_rows + 0.7), layout="constrained")
    panels = parts.make_panels(figure, len(held), n_columns)
    # One scale for all panels, so that equal colours are equal changes.
    reach = max(1.0, 100 * float(np.nanmax(np.abs(frame["change"].to_numpy()), initial=0)))
    limits = -reach, reach
    for place, (axes, (best, score)) in enumerate(zip(panels, held, strict=True)):
        rows = frame[(frame["best"] == best) & (frame["score"] == score)]
        changes = figure_data.change_matrix(rows, results.cells)
        index, own, tied = figure_data.changed_cell(rows, results)
        texts = palette.change_texts(changes.to_numpy(), own, 1)
        field = (width / n_columns - 0.4) / changes.shape[1]
        parts.draw_heat_map(axes, changes, texts, limits, colours=palette.CHANGE, field=field, squares=False)
        if place + n_columns < len(held):
            axes.tick_params(labelbottom=False)
        named = f"#{index}, best by {SCORES[str(best)]}{palette.tie_words(tied)}"
        axes.set_title(f"{named}:\nchange of {SCORES[str(score)]}", color=INK, fontsize=parts.SMALL)
    colours = ScalarMappable(Normalize(*limits), palette.CHANGE)
    parts.draw_colour_bar(figure, colours, panels, "change of accuracy in percentage points")
    parts.add_note(figure, "•: the cell's own operation; empty: its class was not evaluated")
    return figure
