"""Heat maps of Kendall's tau: between attacks, corruptions and datasets, and of measures with accuracies."""

from collections.abc import Mapping, Sequence
from functools import partial

import altair as alt
import pandas as pd

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.labels import dataset_label, key_label, measure_label, strength_label
from robust201.analysis.measure_correlations import correlate_measures
from robust201.analysis.measure_folders import read_measure_folders
from robust201.analysis.network_costs import MACS
from robust201.analysis.terms import measure_name
from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import CLEAN
from robust201.figures import drawings
from robust201.figures.definition import MIN_SUMMARISED_NETWORKS, FigureDefinition
from robust201.figures.keys import KeyStrength
from robust201.figures.panels import Chart, Figure, Layout, Panel
from robust201.statistics.rank_correlation import kendall_taus

MAX_TILE = 34.0
"""Largest side of a tile; larger tiles would not be more legible."""

MEASURE_TILE = (43.0, 16.0)
"""Largest width and fixed height of a tile in the figure of measures."""

_TAU_TOOLTIP = {"row": "of", "column": "and", "value": "τ|.3f"}


def attack_correlations(results: DatasetResults) -> pd.DataFrame:
    """Correlate the rankings of networks on clean images and under every attack at every epsilon.

    Returns:
        Square frame of Kendall's tau-b, NaN if all accuracies in a column are equal, with rows and columns labelled by
        key and strength. The index level `view` is always the empty string.
    """
    return _correlate(results, {"": _clean_and_attacks(results)} if results.keys("attack") else {})


def corruption_correlations(results: DatasetResults) -> pd.DataFrame:
    """Correlate the rankings on clean images and under all corruptions, one severity at a time.

    Returns:
        One square per severity, with rows and columns labelled by key; `view` in the index is the severity's label.
    """
    keys = results.keys("corruption")
    clean: list[KeyStrength] = [(CLEAN, CLEAN_STRENGTH)] if results.keys(CLEAN) else []
    severities = sorted({strength for key in keys for strength in results.strengths(key)})
    columns = {
        severity: [*clean, *((key, severity) for key in keys if severity in results.strengths(key))]
        for severity in severities
    }
    return _correlate(results, {strength_label(severity, "severity"): columns[severity] for severity in severities})


def dataset_correlations(results: DatasetResults) -> pd.DataFrame:
    """Correlate the rankings on clean images and under every attack at every epsilon, across the folder's datasets.

    Returns:
        Square frame of Kendall's tau-b, with rows and columns labelled by dataset, key and strength.
    """
    columns = {}
    for other in results.folder:
        for key, strength in _clean_and_attacks(other):
            label = f"{dataset_label(other.name)}: {other.column_label(key, strength)}"
            columns[label] = other.column(key, strength)
    tau = _kendall(pd.DataFrame(columns))
    return pd.DataFrame() if len(results.folder) < 2 or tau.isna().to_numpy().all() else tau


def _clean_and_attacks(results: DatasetResults) -> list[KeyStrength]:
    return [column for column in results.columns if results.reader.kind_of(column[0]) in ("clean", "attack")]


def _correlate(results: DatasetResults, columns_by_view: Mapping[str, Sequence[KeyStrength]]) -> pd.DataFrame:
    tau_by_view = {}
    for view, columns in columns_by_view.items():
        # Omit the severity if all columns have the same severity.
        names = [key_label(k) if view else results.column_label(k, s) for k, s in columns]
        tau = _kendall(results.accuracies[list(columns)].set_axis(names, axis=1))
        if len(columns) > 1 and not tau.isna().to_numpy().all():
            tau_by_view[view] = tau
    return pd.concat(tau_by_view, names=["view", "key"]) if tau_by_view else pd.DataFrame()


def _kendall(accuracies: pd.DataFrame) -> pd.DataFrame:
    names = accuracies.columns
    if len(accuracies) < 2:
        return pd.DataFrame(index=names, columns=names, dtype=float)
    return pd.DataFrame(kendall_taus(accuracies), index=names, columns=names)


def view_of(correlations: pd.DataFrame, view: str) -> pd.DataFrame:
    """Return the square matrix of one view from a frame of several views (see `corruption_correlations`)."""
    rows = correlations[correlations.index.get_level_values("view") == view].droplevel("view")
    return rows[[column for column in correlations.columns if column in rows.index]]


def measure_correlations(results: DatasetResults) -> pd.DataFrame:
    """Correlate the measures and the sizes of networks with the accuracies (see `correlate_measures`).

    Returns:
        Rows of `correlate_measures` with labels in `measure`; empty if there are no measures or too few architectures.
    """
    if results.measure_folders:
        table = read_measure_folders([results.reader, *results.measure_folders], results.name)
        return correlate_measures(results, table).replace({"measure": {MACS: "FLOPs"}})
    correlations = correlate_measures(results) if len(results.measures.columns) else pd.DataFrame()
    if "kendall" not in correlations or correlations["kendall"].isna().all():
        return pd.DataFrame()
    labels = {measure_name(*column): measure_label(*column) for column in results.measures}  # type: ignore[misc]
    return correlations.replace({"measure": labels | {MACS: "FLOPs"}})


def measure_matrix(rows: pd.DataFrame, results: DatasetResults) -> pd.DataFrame:
    """Arrange Kendall's tau of `correlate_measures` with one row per measure and one column per key and strength."""
    labels = [results.column_label(key, strength) for key, strength in zip(rows["key"], rows["strength"], strict=True)]
    matrix = rows.assign(column=labels).set_index(["measure", "column"])["kendall"].unstack()
    return matrix.loc[list(dict.fromkeys(rows["measure"])), list(dict.fromkeys(labels))]


def draw_correlations(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw a heat map per view (see `attack_correlations`)."""
    del results
    views = {str(view): view_of(frame, str(view)) for view in frame.index.unique("view")}
    label_sets = {tuple(tau.index) for tau in views.values()}
    draw = partial(_draw_matrix, shares_labels=len(label_sets) == 1)
    panels = [Panel((view,), partial(draw, tau=tau)) for view, tau in views.items()]
    return Figure(panels, 216, min(drawings.SINGLE_WIDTH, 17.5 * max(map(len, label_sets))))


def draw_single_matrix(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw one heat map (see `dataset_correlations`)."""
    del results
    return Figure([Panel((), partial(_draw_matrix, tau=frame))], drawings.SINGLE_WIDTH, drawings.SINGLE_WIDTH)


def draw_measure_correlations(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw a heat map of measures (rows) and accuracies (columns); see `measure_correlations`."""
    draw = partial(_draw_matrix, tau=measure_matrix(frame, results), largest=MEASURE_TILE)
    return Figure([Panel((), draw)], drawings.SINGLE_WIDTH, drawings.SINGLE_WIDTH)


def _draw_matrix(
    layout: Layout, tau: pd.DataFrame, largest: tuple[float, float] | None = None, *, shares_labels: bool = False
) -> Chart:
    width = min(MAX_TILE if largest is None else largest[0], layout.width / tau.shape[1])
    size = width, width if largest is None else largest[1]
    colour: alt.Color = drawings.number_colours("value", (-1, 1), "redblue", "Kendall's tau-b", reverse=True)
    names = list(tau.index), list(tau.columns)
    tiles = drawings.matrix_tiles(tau)
    chart = drawings.heat_map(tiles, names, layout, colour, _TAU_TOOLTIP, size=size, shares_labels=shares_labels)
    return chart.properties(width=width * tau.shape[1])


FIGURES = (
    FigureDefinition(
        "rank-correlation-attacks",
        "Rank correlation between attacks",
        "Kendall's tau-b between clean accuracies and accuracies under every attack at every epsilon. A row is empty "
        "if all its accuracies are equal.",
        "Fig. 3",
        "an attack at two epsilons or with a clean accuracy",
        attack_correlations,
        draw_correlations,
        min_networks=MIN_SUMMARISED_NETWORKS,
    ),
    FigureDefinition(
        "rank-correlation-corruptions",
        "Rank correlation between corruptions",
        "Kendall's tau-b between clean accuracies and accuracies under every corruption, with one panel per severity.",
        "Fig. 5",
        "two corruptions, or one and a clean accuracy",
        corruption_correlations,
        draw_correlations,
        min_networks=MIN_SUMMARISED_NETWORKS,
    ),
    FigureDefinition(
        "rank-correlation-datasets",
        "Rank correlation between datasets",
        "Kendall's tau-b between clean accuracies and accuracies under every attack at every epsilon, on all datasets, "
        "over the architectures with both accuracies. The epsilons of each attack are in ascending order.",
        "Fig. 17",
        "two datasets with clean accuracies or an attack",
        dataset_correlations,
        draw_single_matrix,
        is_across_datasets=True,
        min_networks=MIN_SUMMARISED_NETWORKS,
    ),
    FigureDefinition(
        "measure-correlations",
        "Measures as predictors of accuracy",
        "Kendall's tau-b of every measure, and of the numbers of parameters and multiply-accumulates, with the "
        "accuracies under every key and strength, over the architectures that have the measure and the accuracies.",
        "Fig. 6",
        "a measure, such as jacobian, and an accuracy of at least eight architectures",
        measure_correlations,
        draw_measure_correlations,
    ),
)
