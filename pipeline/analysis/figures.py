"""Figures of a dataset, as matplotlib Figures of their own: nothing here touches pyplot or its global state.

Every figure is drawn from the tidy frame of one dataset (`RobustnessDataset.to_frame`). What is shown follows Jung,
Lukasik, Keuper, ICLR 2023: accuracy by attack and epsilon (Fig. 2), by corruption and severity (Fig. 4), Kendall's rank
correlation between keys (Figs. 3 and 5).
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter
from scipy.stats import kendalltau

from pipeline.analysis.result_files import kind_of
from pipeline.datasets import DATASETS
from pipeline.perturbations import perturbation
from pipeline.records import CLEAN_STRENGTH

INK = "#22272e"
"""Text and lines; a report replaces it by the colour of the page's text."""

GRID = "#d6dbe1"
"""Grid lines; a report replaces it likewise."""

CLEAN_COLOUR = "#8b949e"
CHANCE_COLOUR = "#e0403f"
ATTACK_COLOURS = {"aa_apgd-ce": "#d55e00", "aa_square": "#b9770e", "fgsm": "#1f83c4", "pgd": "#009e73"}
CORRUPTION_GROUPS = {
    "noise": ("#1f83c4", ("gaussian_noise", "impulse_noise", "shot_noise")),
    "blur": ("#009e73", ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")),
    "weather": ("#b9770e", ("brightness", "fog", "frost", "snow")),
    "digital": ("#c2679b", ("contrast", "elastic_transform", "jpeg_compression", "pixelate")),
}
"""Groups of Hendrycks and Dietterich, ICLR 2019, with the colour of each."""

EPSILON_COLOURS = ("#6cb8ea", "#2577c8", "#d55e00")
REFERENCE_EPSILON_255 = 1.0
REFERENCE_SEVERITY = 3.0
SCATTER_EPSILONS_255 = (0.5, 1.0, 4.0)

_RASTER_POINTS = 500


class NamedFigure(NamedTuple):
    """A figure with what a page says about it.

    Attributes:
        name: for file names, such as ``"attacks"``.
        title: short.
        caption: what is shown, in a sentence or two.
        figure: the figure.
    """

    name: str
    title: str
    caption: str
    figure: Figure


def draw_figures(frame: pd.DataFrame, dataset: str) -> Iterator[NamedFigure]:
    """Draw every figure that the results of one dataset are enough for.

    Args:
        frame: tidy accuracies (see `RobustnessDataset.to_frame`).
        dataset: the dataset to draw.

    Yields:
        Figures, each with title and caption.
    """
    table = frame[frame["dataset"] == dataset]
    kinds = {kind_of(key) for key in table["key"].unique()}
    n_keys = table["key"].nunique()
    n_architectures = table["architecture"].nunique()
    rows: Sequence[tuple[bool, str, str, str, Callable[[pd.DataFrame, str], Figure]]] = (
        (
            "attack" in kinds,
            "attacks",
            "Accuracy under attack",
            "Accuracy of all architectures by attack and epsilon. Boxes span the quartiles.",
            draw_attacks,
        ),
        (
            "corruption" in kinds,
            "corruptions",
            "Accuracy under corruption",
            "Accuracy of all architectures by corruption and severity, beside the clean accuracy.",
            draw_corruptions,
        ),
        (
            any(CLEAN_STRENGTH in _by_strength(table, key) for key in _keys_of(table, "attack")),
            "clean-vs-robust",
            "Clean against robust accuracy",
            "One point an architecture and epsilon; on the dotted line an attack would change nothing.",
            draw_clean_against_robust,
        ),
        (
            n_keys > 1 and n_architectures > 1,
            "rank-correlation",
            "Rank correlation",
            "Kendall's tau between the accuracies of all architectures; “–” where all accuracies of a side are equal.",
            draw_rank_correlation,
        ),
    )
    for wanted, name, title, caption, draw in rows:
        if wanted:
            yield NamedFigure(name, f"{title}, {dataset}", caption, draw(table, dataset))


def draw_attacks(table: pd.DataFrame, dataset: str) -> Figure:
    """Draw box plots of accuracy, a panel an attack, a box an epsilon, and the chance level (Fig. 2 of the paper).

    Args:
        table: tidy accuracies of one dataset.
        dataset: its name.
    """
    keys = _keys_of(table, "attack")
    n_columns = min(2, len(keys))
    figure, panels = _panels(len(keys), n_columns, width=5.6 if n_columns > 1 else 8.0, height=3.3)
    for axes, key in zip(panels, keys, strict=False):
        colour = ATTACK_COLOURS.get(perturbation(key).key, "#6e7781")
        _draw_boxes(axes, _by_strength(table, key), colour)
        axes.set_title(key, color=INK)
        _draw_chance(axes, dataset)
    figure.supxlabel("epsilon [1/255], Linf", fontsize=10, color=INK)
    return figure


def draw_corruptions(table: pd.DataFrame, dataset: str) -> Figure:
    """Draw box plots of accuracy, a panel a corruption, a box a severity, beside the clean one (Fig. 4 of the paper).

    Args:
        table: tidy accuracies of one dataset.
        dataset: its name.
    """
    keys = [key for _, members in CORRUPTION_GROUPS.values() for key in members if key in set(table["key"])]
    colours = {key: colour for colour, members in CORRUPTION_GROUPS.values() for key in members}
    clean = _by_strength(table, "clean")
    figure, panels = _panels(len(keys), min(5, len(keys)), width=2.6, height=2.4)
    for axes, key in zip(panels, keys, strict=False):
        _draw_boxes(axes, clean | _by_strength(table, key), colours[key])
        axes.set_title(key.replace("_", " "), color=INK, fontsize=10)
        _draw_chance(axes, dataset)
    figure.supxlabel("severity", fontsize=10, color=INK)
    shown = {colours[key] for key in keys}
    patches = [Patch(color=colour, label=group) for group, (colour, _) in CORRUPTION_GROUPS.items() if colour in shown]
    figure.legend(handles=patches, loc="outside right upper", frameon=False, labelcolor=INK)
    return figure


def draw_clean_against_robust(table: pd.DataFrame, dataset: str) -> Figure:
    """Draw robust against clean accuracy, a panel an attack, up to three epsilons each.

    Args:
        table: tidy accuracies of one dataset.
        dataset: its name.
    """
    keys = [key for key in _keys_of(table, "attack") if CLEAN_STRENGTH in _by_strength(table, key)]
    figure, panels = _panels(len(keys), len(keys), width=3.3, height=3.5)
    lowest, highest = 1.0, 0.0
    for axes, key in zip(panels, keys, strict=False):
        accuracies = _by_strength(table, key)
        clean = accuracies.pop(CLEAN_STRENGTH)
        shown = sorted({_nearest(list(accuracies), wanted) for wanted in SCATTER_EPSILONS_255})
        for epsilon, colour in zip(shown, EPSILON_COLOURS[-len(shown) :], strict=True):
            axes.scatter(
                clean,
                accuracies[epsilon],
                s=14 if len(clean) < _RASTER_POINTS else 5,
                color=colour,
                alpha=0.75 if len(clean) < _RASTER_POINTS else 0.4,
                linewidths=0,
                label=f"{epsilon:g}/255",
                rasterized=len(clean) >= _RASTER_POINTS,
            )
        lowest, highest = min(lowest, clean.min()), max(highest, clean.max())
        axes.set_title(key, color=INK)
        axes.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle=":")
        _draw_chance(axes, dataset)
    margin = max(0.02, 0.06 * (highest - lowest))
    for axes in panels[: len(keys)]:
        axes.set_xlim(max(0.0, lowest - margin), min(1.0, highest + margin))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="x", color=GRID, linewidth=0.6)
    panels[0].set_ylabel("accuracy under attack", color=INK)
    figure.supxlabel("clean accuracy", fontsize=10, color=INK)
    handles, labels = panels[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside right upper", title="epsilon", frameon=False, markerscale=2.0, labelcolor=INK
    )
    legend.get_title().set_color(INK)
    return figure


def draw_rank_correlation(table: pd.DataFrame, dataset: str) -> Figure:
    """Draw Kendall's tau between every two keys as a heat map (Figs. 3 and 5 of the paper).

    Args:
        table: tidy accuracies of one dataset.
        dataset: its name.
    """
    del dataset
    tau = rank_correlations(table)
    n = len(tau)
    side = 2.6 + 0.44 * n
    figure = Figure(figsize=(side + 0.9, side - 0.4), layout="constrained")
    axes = figure.subplots()
    matrix = tau.to_numpy()
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(matrix), cmap="RdBu_r", vmin=-1, vmax=1, edgecolors="white", linewidth=0.5
    )
    for (i, j), value in np.ndenumerate(matrix):
        text = "–" if np.isnan(value) else f"{value:.2f}".replace("0.", ".", 1)
        colour = INK if np.isnan(value) else "#ffffff" if abs(value) > 0.6 else "#1c2128"
        axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=7.5, color=colour)
    ticks = np.arange(n) + 0.5
    axes.set_xticks(ticks, tau.columns, rotation=45, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set_yticks(ticks, tau.index, fontsize=9)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    _style(axes)
    axes.tick_params(length=0)
    bar = figure.colorbar(mesh, ax=axes, shrink=0.6, pad=0.02)
    bar.set_label("Kendall's tau", color=INK)
    bar.ax.tick_params(colors=INK)
    bar.outline.set_visible(False)
    return figure


def rank_correlations(
    table: pd.DataFrame, *, epsilon_255: float = REFERENCE_EPSILON_255, severity: float = REFERENCE_SEVERITY
) -> pd.DataFrame:
    """Compute Kendall's tau-b between the accuracies of every two keys.

    Args:
        table: tidy accuracies of one dataset.
        epsilon_255: attacks are taken at the epsilon nearest to this, in units of 1/255.
        severity: corruptions are taken at the severity nearest to this.

    Returns:
        (K, K) float64 in [-1, 1], NaN where a key has the same accuracy for all architectures. Rows and columns are
        named by key and strength.
    """
    columns: dict[str, pd.Series] = {}
    for key in table["key"].unique():
        kind = kind_of(key)
        rows = table[table["key"] == key]
        strengths = [strength for strength in rows["strength"].unique() if strength > CLEAN_STRENGTH or kind == "clean"]
        strength = _nearest(strengths, severity if kind == "corruption" else epsilon_255)
        suffix = {"clean": "", "corruption": f", severity {strength:g}"}.get(kind, f", ε = {strength:g}/255")
        columns[f"{key}{suffix}"] = rows[rows["strength"] == strength].set_index("architecture")["value"]
    wide = pd.DataFrame(columns)
    tau = np.full((len(columns), len(columns)), np.nan)
    for i, j in itertools.combinations_with_replacement(range(len(columns)), 2):
        both = wide.iloc[:, [i, j]].dropna().to_numpy(np.float64)
        # Without two different accuracies on each side there is no rank.
        if len(both) and (both.min(axis=0) < both.max(axis=0)).all():
            tau[i, j] = tau[j, i] = kendalltau(both[:, 0], both[:, 1]).statistic
    return pd.DataFrame(tau, index=wide.columns, columns=wide.columns)


def _keys_of(table: pd.DataFrame, kind: str) -> list[str]:
    return [key for key in table["key"].unique() if kind_of(key) == kind]


def _nearest(strengths: Sequence[float], wanted: float) -> float:
    return min(strengths, key=lambda strength: (abs(strength - wanted), strength))


def _by_strength(table: pd.DataFrame, key: str) -> dict[float, np.ndarray[Any, np.dtype[np.float64]]]:
    """Accuracies of one key by strength, in the order of the architectures; those that lack a strength are left out."""
    wide = table[table["key"] == key].pivot_table(index="architecture", columns="strength", values="value").dropna()
    return {float(strength): wide[strength].to_numpy() for strength in wide.columns}


def _panels(n: int, n_columns: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Make a grid of panels that share the accuracy axis; panels that are left over are hidden."""
    n_rows = -(-n // n_columns)
    figure = Figure(figsize=(width * n_columns + 0.6, height * n_rows + 0.5), layout="constrained")
    grid: list[Axes] = list(figure.subplots(n_rows, n_columns, sharey=True, squeeze=False).flat)
    for position, axes in enumerate(grid):
        _style(axes)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_visible(position < n)
        if position % n_columns == 0:
            axes.set_ylabel("accuracy", color=INK)
    return figure, grid


def _style(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelcolor=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_boxes(axes: Axes, values: Mapping[float, np.ndarray[Any, np.dtype[np.float64]]], colour: str) -> None:
    strengths = sorted(values)
    line = {"color": INK, "linewidth": 0.9}
    boxes = axes.boxplot(
        [values[strength] for strength in strengths],
        widths=0.62,
        patch_artist=True,
        medianprops={"color": INK, "linewidth": 1.4},
        whiskerprops=line,
        capprops=line,
        flierprops={"marker": ".", "markersize": 4, "markerfacecolor": INK, "markeredgecolor": "none", "alpha": 0.6},
    )
    for strength, box in zip(strengths, boxes["boxes"], strict=True):
        box.set(
            facecolor=CLEAN_COLOUR if strength == CLEAN_STRENGTH else colour, edgecolor=INK, linewidth=0.9, alpha=0.85
        )
    for outliers, strength in zip(boxes["fliers"], strengths, strict=True):
        outliers.set_rasterized(len(values[strength]) >= _RASTER_POINTS)
    labels = ["clean" if strength == CLEAN_STRENGTH else f"{strength:g}" for strength in strengths]
    axes.set_xticks(range(1, len(strengths) + 1), labels, fontsize=9)


def _draw_chance(axes: Axes, dataset: str) -> None:
    """Draw the accuracy of guessing, where the number of classes is known."""
    if dataset in DATASETS:
        chance = 1 / DATASETS[dataset].n_classes
        axes.axhline(chance, color=CHANCE_COLOUR, linewidth=1.0, linestyle="--", zorder=1)
        axes.annotate(
            "chance",
            # At the left, where the clean box stands high above it.
            (0, chance),
            xycoords=("axes fraction", "data"),
            xytext=(2, 2),
            textcoords="offset points",
            fontsize=7.5,
            color=CHANCE_COLOUR,
        )
