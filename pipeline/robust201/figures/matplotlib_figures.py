"""Figures as matplotlib Figures of their own: nothing here touches pyplot or its global state.

Every function draws the frame of `figures.figure_data` that the table of figures pairs it with.
"""

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from robust201.core.records import CLEAN_STRENGTH
from robust201.figures import figure_data, palette
from robust201.figures import matplotlib_parts as parts
from robust201.figures.dataset_results import SCORES, DatasetResults, column_label
from robust201.reader.result_files import kind_of
from robust201.reader.value_checks import CLEAN
from robust201.spaces.cell_space import INK

AUTOATTACK_KEYS = "aa_"
AUTOATTACK_NOTE = "aa_: where right, these are the clean images that resist"
"""What AutoAttack's panels of confidences show (see `docs/protocol.md`, "What is measured where an attack fails?")."""

FEW_NOTE = "where wrong, an architecture may have but a few images"

RASTER_POINTS = 500
"""Scatter plots of at least so many points are drawn as pictures inside an SVG."""


def draw_boxes(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw box plots of accuracy: one panel per key, a box per strength, and the chance line (see `accuracy_boxes`)."""
    keys = palette.grouped(list(frame["key"].unique()))
    corrupted = kind_of(keys[0]) == "corruption"
    figure, panels = parts.make_axes_grid(len(keys), *((5, 2.6, 2.4) if corrupted else (2, 5.6, 3.3)))
    for axes, key in zip(panels, keys, strict=True):
        boxes = frame[frame["key"] == key]
        named = boxes.rename(columns={"median": "med", "low": "whislo", "high": "whishi", "outliers": "fliers"})
        numbers: Any = named.assign(label=boxes["strength"].map(palette.tick)).to_dict("records")
        drawn = axes.bxp(
            numbers,
            widths=0.62,
            patch_artist=True,
            medianprops={"color": INK, "linewidth": 1.4},
            whiskerprops={"color": INK, "linewidth": 0.9},
            capprops={"color": INK, "linewidth": 0.9},
            flierprops={"marker": ".", "markersize": 5, "markerfacecolor": INK, "markeredgecolor": "none"},
        )
        for strength, box in zip(boxes["strength"], drawn["boxes"], strict=True):
            colour = palette.CLEAN_COLOUR if strength == CLEAN_STRENGTH else palette.key_colour(key)
            box.set(facecolor=colour, edgecolor=INK, linewidth=0.9, alpha=0.85)
        axes.tick_params(axis="x", labelsize=9)
        axes.set_title(palette.key_title(key), color=INK, fontsize=10)
        parts.draw_chance(axes, results.chance)
    words = {palette.strength_word(key) for key in keys}
    if len(words) == 1:
        figure.supxlabel(words.pop(), fontsize=10, color=INK)
    else:
        for axes, key in zip(panels, keys, strict=True):
            axes.set_xlabel(palette.strength_word(key), fontsize=9, color=INK)
    if corrupted:
        parts.draw_group_legend(figure, keys)
    return figure


def draw_rank_correlation(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw Kendall's tau between every two columns as heat maps, one per view (see `key_correlations`)."""
    del results
    views = list(frame.index.get_level_values("view").unique())
    n = max(len(frame.loc[view]) for view in views)
    n_columns = min(3, len(views))
    side = 2.6 + 0.44 * n
    size = ((side + 0.4) * n_columns + 0.5, (side - 0.4) * -(-len(views) // n_columns))
    figure = Figure(figsize=size, layout="constrained")
    panels = parts.make_panels(figure, len(views), n_columns)
    for axes, view in zip(panels, views, strict=True):
        tau = figure_data.square(frame, view)
        texts, font_size = palette.correlation_texts(tau.to_numpy()), 7.5 if n <= 20 else 6
        parts.draw_heat_map(axes, tau, texts, (-1, 1), colours=palette.CORRELATION, font_size=font_size)
        axes.set_title(view, color=INK, fontsize=11)
    colours = ScalarMappable(Normalize(-1, 1), palette.CORRELATION)
    parts.draw_colour_bar(figure, colours, panels, "Kendall's tau-b")
    return figure


def draw_confidence(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw median confidences with their quartiles, one panel per key (see `confidence_curves`)."""
    del results
    keys = [key for key in frame["key"].unique() if key != CLEAN]
    clean = frame[frame["key"] == CLEAN]
    few = len(keys) <= 2
    figure, panels = parts.make_axes_grid(max(1, len(keys)), 5, 2.6, 3.4 if few else 2.4, label="confidence")
    for axes, key in zip(panels, keys or [CLEAN], strict=True):
        rows = pd.concat([clean, frame[frame["key"] == key]]) if keys else clean
        strengths = sorted(rows["strength"].unique())
        places = {strength: place for place, strength in enumerate(strengths)}
        for name, colour in zip(figure_data.CONFIDENCES, palette.CONFIDENCE_COLOURS, strict=True):
            curve = rows[rows["confidence"] == name].sort_values("strength")
            x = [places[strength] for strength in curve["strength"]]
            axes.plot(x, curve["median"], color=colour, linewidth=1.6, marker="o", markersize=3, label=name)
            axes.fill_between(x, curve["q1"], curve["q3"], color=colour, alpha=0.2, linewidth=0)
        axes.set_xticks(range(len(strengths)), [palette.tick(strength) for strength in strengths], fontsize=8)
        if len(strengths) > 10:
            axes.tick_params(axis="x", rotation=90)
        axes.set_title(palette.key_title(key), color=INK, fontsize=10)
        axes.set_xlabel(palette.strength_word(key), color=INK, fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    n_columns = 1 if few else len(figure_data.CONFIDENCES)
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=n_columns, frameon=False, labelcolor=INK)
    notes = [AUTOATTACK_NOTE] if any(key.startswith(AUTOATTACK_KEYS) for key in keys) else []
    legend.set_title("\n".join((*notes, FEW_NOTE, "", "confidence in the")))
    legend.get_title().set(multialignment="center", fontsize=9)
    legend.get_title().set_color(INK)
    return figure


def draw_confusion(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw summed confusion matrices at ε = 1/255 and severity 3, rows as shares (see `confusion_sums`)."""
    shown = figure_data.reference_columns(figure_data.confusion_columns(frame))
    n_columns = min(5, len(shown))
    size = (max(5.6, 3.0 * n_columns + 0.4), 3.1 * -(-len(shown) // n_columns) + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    panels = parts.make_panels(figure, len(shown), n_columns)
    for axes, (key, strength) in zip(panels, shown, strict=True):
        shares = figure_data.confusion_shares(frame, key, strength)
        texts = palette.share_texts(shares.to_numpy())
        parts.draw_heat_map(axes, shares, texts, (0, 1), colours=palette.SEQUENTIAL, font_size=6.5)
        axes.set_title(column_label(key, strength), color=INK, fontsize=10)
        if len(shares) > palette.WRITTEN_CLASSES:
            axes.set(xticks=[], yticks=[])
        axes.tick_params(axis="x", rotation=0)
        axes.set_xlabel("predicted class", color=INK, fontsize=9)
        axes.set_ylabel("true class", color=INK, fontsize=9)
    colours = ScalarMappable(Normalize(0, 100), palette.SEQUENTIAL)
    parts.draw_colour_bar(figure, colours, panels, "% of the images of the true class")
    del results
    return figure


def draw_clean_against(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracy under each key against clean accuracy, coloured by kernel parameters (see `clean_against`)."""
    keys = palette.grouped(list(frame["key"].unique()))
    corrupted = kind_of(keys[0]) == "corruption"
    figure, panels = parts.make_axes_grid(len(keys), *((5, 2.6, 2.6) if corrupted else (4, 3.3, 3.4)))
    low, high = frame["clean"].min(), frame["clean"].max()
    margin = max(0.02, 0.06 * (high - low))
    space = results.space
    colours = LinearSegmentedColormap.from_list("sizes", palette.SIZE_COLOURS)
    points = None
    for axes, key in zip(panels, keys, strict=True):
        rows = frame[frame["key"] == key]
        strength = figure_data.reference_strength(key, list(rows["strength"].unique()))
        rows = rows[rows["strength"] == strength]
        many = len(rows) >= RASTER_POINTS
        dots: dict[str, Any] = {"s": 5 if many else 22, "linewidths": 0, "rasterized": many}
        if space is None:
            axes.scatter(rows["clean"], rows["accuracy"], color=palette.key_colour(key), **dots)
        else:
            dots |= {"c": rows["kernel_parameters"], "cmap": colours, "vmin": 0, "vmax": space.max_kernel_parameters}
            points = axes.scatter(rows["clean"], rows["accuracy"], **dots)
        axes.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle=":")
        parts.draw_chance(axes, results.chance, right=True)
        axes.set_title(column_label(key, strength).replace("_", " " if corrupted else "_"), color=INK)
        axes.title.set_fontsize(9.5)
        axes.set_xlim(max(0.0, low - margin), min(1.0, high + margin))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="x", color=palette.GRID, linewidth=0.6)
    figure.supxlabel("clean accuracy", fontsize=10, color=INK)
    if points is not None:
        parts.draw_colour_bar(figure, points, panels, "kernel parameters of the cell")
    return figure


def draw_measures_against(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw accuracies against the numbers of measures, a panel per measure and key (see `measures_against`)."""
    groups: Any = list(frame.groupby(["measure", "key"], sort=False))
    n_columns = min(4, frame["key"].nunique())
    figure, panels = parts.make_axes_grid(len(groups), n_columns, 3.3, 3.2)
    for axes, ((measure, key), rows) in zip(panels, groups, strict=True):
        many, colour = len(rows) >= RASTER_POINTS, palette.key_colour(key)
        axes.scatter(rows["value"], rows["accuracy"], color=colour, s=5 if many else 22, linewidths=0, rasterized=many)
        axes.set_xscale("log" if palette.spans_magnitudes(rows["value"]) else "linear")
        parts.draw_chance(axes, results.chance, right=True)
        title = f"{column_label(key, rows['strength'].iloc[0])}\n{palette.agreement_words(rows)}"
        axes.set_title(title, color=INK, fontsize=9.5)
        axes.set_xlabel(measure, color=INK, fontsize=9)
        axes.grid(axis="x", color=palette.GRID, linewidth=0.6)
    return figure


def draw_top_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the operations of the best cells, one column per cell, one row per edge (see `top_cells`)."""
    space = results.cells
    groups: Any = list(frame.groupby(["among", "score"], sort=False))
    figure = Figure(figsize=(11, 2.5 * len(groups) + 0.6), layout="constrained")
    colours = ListedColormap([space.operation_colours[operation] for operation in space.operations])
    n_operations = len(space.operations)
    for axes, ((among, score), rows) in zip(parts.make_panels(figure, len(groups), 1), groups, strict=True):
        codes = figure_data.operation_codes(rows, space)
        axes.pcolormesh(
            codes.to_numpy(), cmap=colours, vmin=-0.5, vmax=n_operations - 0.5, edgecolors="white", linewidth=2
        )
        labels = [f"#{index}" for index in codes.columns]
        axes.set_xticks(np.arange(len(labels)) + 0.5, labels, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(np.arange(len(codes)) + 0.5, space.edge_labels)
        axes.tick_params(labelsize=8.5)
        axes.set_xlim(0, figure_data.TOP_CELLS)
        axes.invert_yaxis()
        ranks = palette.rank_texts(rows.drop_duplicates("architecture"))
        for x, text in [(-0.1, "rank"), *zip(np.arange(len(ranks)) + 0.5, ranks, strict=True)]:
            axes.text(x, -0.12, text, ha="center" if x > 0 else "right", va="bottom", fontsize=8, color=INK)
        unseen = figure_data.n_unseen_ties(rows)
        title = f"{SCORES[score]} accuracy, {among}{f'; {palette.unseen_words(unseen)}' if unseen else ''}"
        axes.set_title(title, color=INK, fontsize=10, pad=18)
        parts.style(axes)
        axes.tick_params(length=0)
    names = zip(space.operations, figure_data.operation_names(space), strict=True)
    patches = [Patch(color=space.operation_colours[operation], label=name) for operation, name in names]
    figure.legend(handles=patches, loc="outside lower center", ncols=n_operations, frameon=False, labelcolor=INK)
    return figure


def draw_best_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the best cell by each criterion, and the edit distances between them (see `best_cells`)."""
    space = results.cells
    figure = Figure(figsize=(15.5, 2.5 * -(-len(frame) // 4) + 0.3), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(3.2, 1), squeeze=False)[0]
    for axes, row in zip(parts.make_panels(left, len(frame), 4), frame.itertuples(), strict=True):
        title = f"{row.Index}, {row.accuracy:.1%}\n#{row.architecture}{palette.tie_words(int(str(row.tied)))}"
        space.draw_cell(axes, str(row.spec), title, font_size=7)
    distances = frame[list(frame.index)]
    axes = right.subplots()
    parts.draw_heat_map(
        axes, distances, distances.to_numpy().astype(str).tolist(), (0, len(space.edges)), colours="Blues", font_size=9
    )
    axes.set_title("edit distance", color=INK, fontsize=10)
    return figure


def draw_neighbours(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw what one changed edge of the best cells gains or loses, in percentage points (see `neighbour_changes`)."""
    bests, scores = list(frame["best"].unique()), list(frame["score"].unique())
    figure = Figure(figsize=(4.6 * len(scores) + 0.4, 3.0 * len(bests) + 0.4), layout="constrained")
    panels = parts.make_panels(figure, len(bests) * len(scores), len(scores))
    # One scale for all panels, so that equal colours are equal changes.
    reach = max(1.0, 100 * float(np.nanmax(np.abs(frame["change"].to_numpy()), initial=0)))
    limits = -reach, reach
    for axes, (best, score) in zip(panels, itertools.product(bests, scores), strict=True):
        rows = frame[(frame["best"] == best) & (frame["score"] == score)]
        axes.set_visible(len(rows) > 0)
        if rows.empty:
            continue
        changes = figure_data.change_matrix(rows, results.cells)
        index, own, tied = figure_data.changed_cell(rows, results)
        texts = palette.change_texts(changes.to_numpy(), own, 1)
        parts.draw_heat_map(axes, changes, texts, limits, colours=palette.CHANGE, font_size=8.5, squares=False)
        named = f"#{index}, best by {SCORES[best]} accuracy{palette.tie_words(tied)}"
        axes.set_title(f"{named}:\nchange of {SCORES[score]} accuracy", color=INK, fontsize=10)
    colours = ScalarMappable(Normalize(*limits), palette.CHANGE)
    parts.draw_colour_bar(figure, colours, panels, "change in percentage points")
    figure.supxlabel("•: the cell's own operation; empty: its class was not evaluated", fontsize=10, color=INK)
    return figure
