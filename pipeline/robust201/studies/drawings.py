"""Figures of the studies: lines and bands are our numbers, hollow markers are published numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from robust201.analysis.labels import key_label
from robust201.core.files import atomic_write
from robust201.figures import matplotlib_parts as parts
from robust201.figures.image_grid import Tile, change_to_image, draw_image_grid
from robust201.figures.palette import CHANCE_COLOUR
from robust201.figures.panels import TEXT_SIZE, TITLE_SIZE
from robust201.figures.vega_files import PNG_DPI
from robust201.spaces.cell_space import INK
from robust201.studies.comparisons import GROUPS

FIGURE_WIDTH = 7.2
"""Width of every figure, in inches."""

SERIES_COLOURS = ("#1f83c4", "#d55e00", "#009e73", "#c2679b", "#b9770e", "#4a6fd8", "#6e7781", "#8b949e")

GROUP_COLOURS = dict(zip(GROUPS, ("#1f83c4", "#d55e00", "#009e73", "#c2679b", "#6e7781", "#4a6fd8"), strict=True))

FROM_SCRATCH_GROUPS = ("mnist", "cifar10", "fusion_digit", "fusion_object")
"""Groups of networks that were trained from random weights."""

FINE_TUNED_GROUPS = ("cifar10_to_mnist", "mnist_to_cifar10")
"""Groups of fine-tuned networks."""


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format given by the path's suffix; equal figures have equal bytes."""
    settings: Any = {"svg.hashsalt": path.stem, "svg.fonttype": "none", "pdf.fonttype": 42}
    file_format = path.suffix.lstrip(".")
    with rc_context(settings), atomic_write(path) as stream:
        figure.savefig(stream, format=file_format, dpi=PNG_DPI, metadata=parts.METADATA[file_format])
    return path


def _draw_line_with_band(
    axes: Axes, x: Any, mean: Any, low: Any, high: Any, colour: str, *, line_style: str = "-"
) -> None:
    axes.plot(x, mean, color=colour, linewidth=1.1, linestyle=line_style)
    axes.fill_between(np.asarray(x, np.float64), low, high, color=colour, alpha=0.2, linewidth=0)


def _draw_legend(figure: Figure, colours: Mapping[str, str], *, has_published: bool = False) -> None:
    handles = [Line2D([], [], color=colour, linewidth=1.4, label=name) for name, colour in colours.items()]
    if has_published:
        handles.append(
            Line2D(
                [], [], color=INK, marker="o", markersize=3.5, linestyle="", markerfacecolor="none", label="published"
            )
        )
    parts.draw_legend(figure, handles)


def _draw_published(axes: Axes, x: Any, values: Any, colour: str) -> None:
    axes.plot(x, values, color=colour, marker="o", markersize=3.2, linestyle="", markerfacecolor="none", linewidth=0.8)


def draw_accuracy_curves(
    curves: pd.DataFrame, groups: Sequence[str], chances: Mapping[str, float], *, normalised: bool
) -> Figure | None:
    """Draw accuracy against epsilon, one panel per architecture and epoch: means over seeds ± one standard deviation.

    The figures correspond to figures 4 and 5 (normalised by the clean accuracy) or 6 and 7 (without normalisation) of
    Kunhardt, Deza and Poggio (2021). In normalised figures, chance depends on the clean accuracy, so each group has a
    dotted line at its chance level, in its colour. `chances` are accuracies of guessing by group; a group without one
    has no line. Return None if no group has curves.
    """
    selected_curves = curves[curves["group"].isin(groups)]
    if selected_curves.empty:
        return None
    column = "normalised" if normalised else "accuracy"
    panels = list(selected_curves.groupby(["network", "epoch"], sort=False))
    upper_limit = max(1.02, float((selected_curves[column] + selected_curves[f"{column}_sd"].fillna(0)).max()) + 0.02)
    label = "accuracy / clean accuracy" if normalised else "accuracy"
    figure, all_axes = parts.make_axes_grid(
        len(panels), FIGURE_WIDTH, 1.1, 1.25, label=label, limits=(0, upper_limit), extra_height=0.6
    )
    for axes, ((network, epoch), rows) in zip(all_axes, panels, strict=True):
        for group, curve in rows.groupby("group", sort=False):
            colour = GROUP_COLOURS[str(group)]
            mean, deviation = curve[column], curve[f"{column}_sd"].fillna(0)
            _draw_line_with_band(axes, curve["strength"] / 255, mean, mean - deviation, mean + deviation, colour)
            if normalised and group in chances and curve["accuracy"].iloc[0] > 0:
                axes.axhline(
                    chances[str(group)] / curve["accuracy"].iloc[0], color=colour, linewidth=0.7, linestyle=":"
                )
        if not normalised:
            for chance in sorted({chances[group] for group in rows["group"].unique() if group in chances}):
                axes.axhline(chance, color=CHANCE_COLOUR, linewidth=0.9, linestyle="--")
        axes.set_title(f"{network}, epoch {epoch}", color=INK, fontsize=TITLE_SIZE)
        axes.set_xlim(0, float(selected_curves["strength"].max()) / 255)
    figure.supxlabel("FGSM ε, pixels in [0, 1]", fontsize=TEXT_SIZE, color=INK)
    present_groups = selected_curves["group"].unique()
    _draw_legend(figure, {GROUPS[group]: GROUP_COLOURS[group] for group in groups if group in present_groups})
    return figure


def draw_areas(curves: pd.DataFrame, network: str) -> Figure:
    """Draw accuracy against epsilon, raw and normalised, and the areas that define R, like figure 1 of Kunhardt et al.

    `curves` is `ImageDistribution.curves`. Only the last epochs of the groups MNIST and CIFAR-10 are drawn.
    """
    rows = curves[(curves["network"] == network) & curves["group"].isin(FROM_SCRATCH_GROUPS[:2])]
    figure, panels = parts.make_axes_grid(2, FIGURE_WIDTH, 3.0, 2.2, extra_height=0.5)
    for axes, column, title in zip(
        panels, ("accuracy", "normalised"), ("accuracy", "accuracy / clean accuracy"), strict=True
    ):
        for group, group_rows in rows.groupby("group", sort=False):
            last_epoch = group_rows[group_rows["epoch"] == group_rows["epoch"].max()]
            epsilons, colour = last_epoch["strength"] / 255, GROUP_COLOURS[str(group)]
            axes.plot(epsilons, last_epoch[column], color=colour, linewidth=1.1)
            axes.fill_between(epsilons, 0, last_epoch[column], color=colour, alpha=0.2, linewidth=0)
        axes.set_title(title, fontsize=TITLE_SIZE, color=INK)
        axes.set_xlabel("ε", fontsize=TEXT_SIZE, color=INK)
    _draw_legend(figure, {GROUPS[str(group)]: GROUP_COLOURS[str(group)] for group in dict.fromkeys(rows["group"])})
    return figure


def draw_robustness(tables: pd.DataFrame) -> Figure:
    """Draw robustness R against the epoch, one panel per network: published means, and our means ± one SD."""
    networks = list(dict.fromkeys(tables["network"]))
    max_with_deviation = max(1.0, float((tables["mean"] + tables["sd"].fillna(0)).max()))
    upper_limit = min(max_with_deviation, float(tables[["mean", "printed_mean"]].max().max()) + 0.1)
    figure, all_axes = parts.make_axes_grid(
        len(networks), FIGURE_WIDTH, 2, 2.1, label="R", limits=(0, upper_limit), extra_height=0.5
    )
    for axes, network in zip(all_axes, networks, strict=True):
        axes.yaxis.set_major_formatter("{x:.1f}")
        rows = tables[tables["network"] == network]
        positions = {epoch: position for position, epoch in enumerate(sorted(rows["epoch"].unique()))}
        for group, group_rows in rows.groupby("group", sort=False):
            x, deviation = group_rows["epoch"].map(positions), group_rows["sd"].fillna(0)
            _draw_line_with_band(
                axes,
                x,
                group_rows["mean"],
                group_rows["mean"] - deviation,
                group_rows["mean"] + deviation,
                GROUP_COLOURS[str(group)],
            )
            _draw_published(axes, x, group_rows["printed_mean"], GROUP_COLOURS[str(group)])
        axes.set_xticks(list(positions.values()), [str(epoch) for epoch in positions])
        axes.set_title(str(network), color=INK, fontsize=TITLE_SIZE)
        axes.set_xlabel("epoch", color=INK, fontsize=TEXT_SIZE)
    present_groups = tables["group"].unique()
    colours = {GROUPS[group]: GROUP_COLOURS[group] for group in GROUPS if group in present_groups}
    _draw_legend(figure, colours, has_published=bool(tables["printed_mean"].notna().any()))
    return figure


def _error_bounds(rows: pd.DataFrame) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Return the lower and upper ends of bands and bars: the interval, or the range for fewer than three seeds."""
    has_few_seeds = rows["n"] < 3
    return rows["low"].where(~has_few_seeds, rows["min"]), rows["high"].where(~has_few_seeds, rows["max"])


def draw_dynamics_curves(curves: pd.DataFrame) -> Figure:
    """Draw accuracy and attack success against iterations, one panel per run; see `_error_bounds` for the bands."""
    runs = list(dict.fromkeys(curves["run"]))
    curve_names = list(dict.fromkeys(curves["curve"]))
    colours = dict(zip(curve_names, [INK, *SERIES_COLOURS, *SERIES_COLOURS], strict=False))
    figure, all_axes = parts.make_axes_grid(
        len(runs), FIGURE_WIDTH, 3, 2.4, label="accuracy, attack success", limits=(0, 1), extra_height=0.6
    )
    for axes, run in zip(all_axes, runs, strict=True):
        for curve, rows in curves[curves["run"] == run].groupby("curve", sort=False):
            colour = colours[str(curve)]
            _draw_line_with_band(axes, rows["iteration"], rows["mean"], *_error_bounds(rows), colour)
            _draw_published(axes, rows["iteration"], rows["printed"], colour)
        axes.set_title(str(run), color=INK, fontsize=TITLE_SIZE, parse_math=False)
        axes.set_xlabel("iterations", color=INK, fontsize=TEXT_SIZE)
    labelled_colours = {
        name.replace("asr ", "success of ") if name != "clean" else "accuracy": colours[name] for name in curve_names
    }
    _draw_legend(figure, labelled_colours, has_published=bool(curves["printed"].notna().any()))
    return figure


def draw_mixing_curves(curves: pd.DataFrame, panels: Mapping[str, Sequence[str]]) -> Figure:
    """Draw accuracy against the fraction of robust images, one panel per network and group of attacks."""
    networks = list(dict.fromkeys(curves["network"]))
    panel_specs = [(title, keys, network) for title, keys in panels.items() for network in networks]
    curve_names = list(dict.fromkeys(curves["curve"]))
    colours = dict(zip(curve_names, [INK, *SERIES_COLOURS, *SERIES_COLOURS], strict=False))
    figure, all_axes = parts.make_axes_grid(len(panel_specs), FIGURE_WIDTH, 2, 1.9, extra_height=0.6)
    for axes, (title, keys, network) in zip(all_axes, panel_specs, strict=True):
        rows = curves[curves["network"] == network]
        rows = rows[rows["curve"].str.partition(":")[0].isin(["clean", *keys])]
        for curve, curve_rows in rows.groupby("curve", sort=False):
            mean, colour = curve_rows["mean"], colours[str(curve)]
            _draw_line_with_band(axes, curve_rows["alpha"], mean, *_error_bounds(curve_rows), colour)
            _draw_published(axes, curve_rows["alpha"], curve_rows["printed"], colours[str(curve)])
        axes.set_title(f"{title}, {network}", color=INK, fontsize=TITLE_SIZE)
        axes.set_xlabel("fraction α of robust images", color=INK, fontsize=TEXT_SIZE)
    _draw_legend(figure, colours, has_published=bool(curves["printed"].notna().any()))
    return figure


def draw_equivariance(best: pd.DataFrame) -> Figure:
    """Draw accuracies by attack and setting, one panel per network, as in table 1 of Wang and Horne (2020).

    They are those of the selected candidates; see `_error_bounds` for the bars.
    """
    networks, attacks = (list(dict.fromkeys(best[name])) for name in ("network", "attack"))
    settings = list(dict.fromkeys(best["setting"]))
    colours = dict(zip(settings, SERIES_COLOURS, strict=False))
    figure, all_axes = parts.make_axes_grid(len(networks), FIGURE_WIDTH, 2.2, 2.2, extra_height=0.6)
    for axes, network in zip(all_axes, networks, strict=True):
        for index, setting in enumerate(settings):
            rows = best[(best["network"] == network) & (best["setting"] == setting)]
            x = rows["attack"].map(attacks.index) + (index - (len(settings) - 1) / 2) * 0.8 / len(settings)
            low, high = _error_bounds(rows)
            lengths = [rows["mean"] - low, high - rows["mean"]]
            axes.errorbar(x, rows["mean"], yerr=lengths, color=colours[setting], marker="o", markersize=3, linestyle="")
            _draw_published(axes, x, rows["printed"], INK)
        axes.set_xticks(range(len(attacks)), attacks, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_title(str(network), color=INK, fontsize=TITLE_SIZE)
    _draw_legend(figure, colours, has_published=bool(best["printed"].notna().any()))
    return figure


def draw_attacked_images(images: Mapping[str, NDArray[np.float32]], epsilons: Sequence[float]) -> Figure:
    """Draw attacked images, one column per epsilon, with their changes below, as in figures 8 and 9 of Kunhardt et al.

    `images` has (E, 3, H, W) pixels in [0, 1] by group: one image per epsilon, starting with the clean image. Changes
    are drawn relative to grey, scaled by the largest change.
    """
    rows = []
    for attacked in images.values():
        changes = attacked - attacked[0]
        rows.append([Tile(image) for image in attacked])
        rows.append([Tile(image) for image in change_to_image(changes, float(np.abs(changes).max()))])
    labels = [label for group in images for label in (GROUPS[group], "")]
    return draw_image_grid(
        rows, column_labels=[f"ε {epsilon:g}" for epsilon in epsilons], row_labels=labels, width=FIGURE_WIDTH
    )


def draw_corruptions(clean: NDArray[np.float32], corrupted: Mapping[str, NDArray[np.float32]]) -> Figure:
    """Draw one image under corruptions, one row per key, one column per severity, as in the dataset paper's figure 18.

    Args:
        clean: (3, H, W) pixels in [0, 1].
        corrupted: (5, 3, H, W) pixels at severities 1 to 5, by key.
    """
    rows = [[Tile(image) for image in (clean, *severities)] for severities in corrupted.values()]
    columns = ["clean", *(f"severity {severity}" for severity in range(1, 6))]
    return draw_image_grid(
        rows, column_labels=columns, row_labels=[key_label(key) for key in corrupted], width=FIGURE_WIDTH
    )
