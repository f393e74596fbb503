"""The best cells: their operations, the edges on which they differ, and changes of a single edge."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import SCORES, DatasetResults
from robust201.analysis.labels import key_label
from robust201.analysis.ranking import RankedNetwork, order_networks
from robust201.analysis.terms import find_evaluations
from robust201.core import colours
from robust201.core.records import ArchitectureId
from robust201.figures import drawings
from robust201.figures.definition import FigureDefinition
from robust201.figures.panels import Chart, Figure, Layout, Panel
from robust201.networks.spaces import CellSpace
from robust201.statistics.intervals import NORMAL_QUANTILE, accuracy_intervals

MAX_TOP_CELLS = 20
"""Maximum number of cells that `top_cells` returns for each score, among all cells and among those of one size."""

ALL_CELLS = "all evaluated cells"

_CHANGE_EXPRESSION = "datum.own ? '•' : format(datum.value, '+.1f')"


def top_cells(results: DatasetResults) -> pd.DataFrame:
    """Return the operations of the best architectures.

    Returns:
        One row per architecture and edge: `score` (a key of `SCORES`), `among` (`ALL_CELLS`, or the cells with
        `CellSpace.reference_kernel_parameters`), `rank` among these cells (ties have equal ranks), `tied` (number of
        cells with this rank, see `order_networks`), `architecture`, `accuracy` with `low` and `high`
        (see `_interval`), `edge` and `operation`.
    """
    names = ["score", "among", "rank", "tied", "architecture", "accuracy", "low", "high", "edge", "operation"]
    space = results.space
    if space is None:
        return pd.DataFrame(columns=names)
    size = space.reference_kernel_parameters
    is_reference = [space.kernel_parameters(results.spec(index)) == size for index in results.architectures]
    rows: list[tuple[object, ...]] = []
    for score, values in results.scores.items():
        for among, group in ((ALL_CELLS, values), (f"cells with {size} kernel parameters", values[is_reference])):
            for top in order_networks(results, group)[:MAX_TOP_CELLS]:
                interval = _interval(results, str(score), top)
                columns = (score, among, top.rank, top.n_equal, top.network, top.accuracy, *interval)
                rows += [(*columns, *edge) for edge in enumerate(space.parse(results.spec(top.network)))]
    return pd.DataFrame(rows, columns=names)


def best_cells(results: DatasetResults) -> pd.DataFrame:
    """Return the best architecture by clean accuracy, each attack's mean, and the means over attacks and corruptions.

    Returns:
        One row per criterion (the index): `architecture` (the first by `order_networks`), `spec`, `accuracy` with
        `low` and `high` (see `_interval`), `tied` (number of equally accurate architectures), and one column per
        criterion with the edit distance to the best architecture by that criterion.
    """
    if results.space is None:
        return pd.DataFrame()
    criteria = {label: (score, results.scores[score]) for score, label in SCORES.items() if score in results.scores}
    criteria |= {f"mean {key_label(key)}": (key, results.key_mean(key)) for key in results.keys("attack")}
    rows = {}
    for label, (name, values) in criteria.items():
        for top in order_networks(results, values)[:1]:
            cell = top.network, results.spec(top.network), top.accuracy
            rows[label] = (*cell, *_interval(results, name, top), top.n_equal)
    columns = ["architecture", "spec", "accuracy", "low", "high", "tied"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    for label, (_, spec, *_) in rows.items():
        frame[label] = [results.space.edit_distance(spec, other) for other in frame["spec"]]
    return frame


def neighbour_changes(results: DatasetResults) -> pd.DataFrame:
    """Compute how accuracies change if one edge of a best architecture is changed.

    Returns:
        One row per evaluated neighbour and score: `best` (the score by which the architecture is the best), `tied`
        (number of architectures that are equally accurate by this score, see `order_networks`),
        `architecture`, `edge`, `operation`, `neighbour` (the representative of its isomorphism class), `score` and
        `change` (the neighbour's accuracy minus the architecture's). `low` and `high` are the ends of the change's 95%
        interval, which assumes that the two cells were evaluated on independent images. It is therefore wider than
        necessary if both cells fail on the same images. The ends are NaN if the number of images is unknown.
    """
    names = ["best", "tied", "architecture", "edge", "operation", "neighbour", "score", "change", "low", "high"]
    space = results.space
    rows: list[tuple[object, ...]] = []
    for criterion, ranked_by in results.scores.items() if space is not None else ():
        for top in order_networks(results, ranked_by)[:1]:
            for edge, operation, spec in results.cell_space.neighbours(results.spec(top.network)):
                neighbour = int(results.reader.get_uid(spec))
                if neighbour in ranked_by.index:
                    columns = (criterion, top.n_equal, top.network, edge, operation, neighbour)
                    for score in results.scores:
                        change = _change(results, str(score), (top.network, neighbour))
                        rows.append((*columns, score, *change))
    return pd.DataFrame(rows, columns=names).dropna(subset="change").reset_index(drop=True)


def _change(results: DatasetResults, score: str, pair: Sequence[ArchitectureId]) -> tuple[float, float, float]:
    accuracies = results.scores.loc[[*pair], score].to_numpy(np.float64)
    variances = accuracies * (1 - accuracies) / _image_counts(results, score).loc[[*pair]].to_numpy()
    change, half_width = float(accuracies[1] - accuracies[0]), NORMAL_QUANTILE * float(np.sqrt(variances.sum()))
    return change, change - half_width, change + half_width


def _interval(results: DatasetResults, name: str, top: RankedNetwork) -> tuple[float, float]:
    """Return the ends of an accuracy's 95% interval over samples of images; NaN if the number of images is unknown.

    For a mean over evaluations of the same images, the interval is wider than necessary: the fraction of evaluations
    in which an image is classified correctly varies less between images than a single outcome.
    """
    low, high = accuracy_intervals(top.accuracy, _image_counts(results, name)[top.network])
    return float(low), float(high)


def _image_counts(results: DatasetResults, name: str) -> "pd.Series[float]":
    """Return, by network, the smallest number of images of any accuracy that a score averages; NaN if unknown."""
    return results.image_counts[find_evaluations(results, name)].astype(float).min(axis=1, skipna=False)


def count_omitted_ties(rows: pd.DataFrame) -> int:
    """Return the number of architectures that are tied with the last one in `rows` of `top_cells` but left out."""
    last_rank, n_tied = rows[["rank", "tied"]].to_numpy(np.int64)[-1]
    return int(last_rank + n_tied) - 1 - int(rows["architecture"].nunique())


def draw_top_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the operations of the best cells (see `top_cells`), with one column per cell and one row per edge."""
    panels = []
    for (among, score), rows in frame.groupby(["among", "score"], sort=False):
        n_omitted = count_omitted_ties(rows)
        note = f"; {n_omitted:,} more as accurate as the last" if n_omitted else ""
        title = f"{SCORES[str(score)]} accuracy, {among}{note}"
        panels.append(Panel((title, ""), partial(_draw_tiles, rows=rows, space=results.cell_space)))
    return Figure(panels, drawings.SINGLE_WIDTH, drawings.SINGLE_WIDTH)


def _draw_tiles(layout: Layout, rows: pd.DataFrame, space: CellSpace) -> Chart:
    by_operation = {space.operation_labels[name]: space.operation_colours[name] for name in space.operations}
    tiles = pd.DataFrame(
        {
            "cell": [f"#{index}" for index in rows["architecture"]],
            "accuracy": rows["accuracy"],
            "rank": [f"{'' if n == 1 else '='}{rank}" for rank, n in zip(rows["rank"], rows["tied"], strict=True)],
            "edge": [space.edge_labels[edge] for edge in rows["edge"]],
            "operation": [space.operation_labels[operation] for operation in rows["operation"]],
        }
    )
    width = layout.width * tiles["cell"].nunique() / MAX_TOP_CELLS
    chart = drawings.cell_tiles(tiles, Layout(width), space.edge_labels, by_operation)
    return chart.properties(width=width)


def draw_best_cells(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw the best cell by each criterion, and the edit distances between these cells (see `best_cells`)."""
    space, names = results.cell_space, list(frame.index)
    panels = []
    for row in frame.itertuples():
        title = f"{row.Index}, {row.accuracy:.1%}", f"#{row.architecture}{_tie_note(int(str(row.tied)))}"
        panels.append(Panel(title, partial(_draw_cell, space=space, spec=str(row.spec))))
    colour = drawings.number_colours("value", (0, len(space.edges)), colours.BLUES, None)
    tiles = drawings.matrix_tiles(frame[names])
    texts = {"row": "from", "column": "to", "value": "edges that differ|.0f"}

    def draw(layout: Layout) -> Chart:
        size = (side := min(22, 0.6 * layout.width / len(names)), side)
        chart = drawings.heat_map(
            tiles, (names, names), layout, colour, texts, size=size, number="datum.value", letters=1
        )
        return chart.properties(width=side * len(names))

    return Figure([Panel(("edges that differ",), draw), *panels], 112)


def _draw_cell(layout: Layout, space: CellSpace, spec: str) -> Chart:
    return space.draw_cell(spec, width=layout.width)


def draw_neighbours(frame: pd.DataFrame, results: DatasetResults) -> Figure:
    """Draw how accuracies change if one edge of a best cell is changed (see `neighbour_changes`)."""
    space = results.cell_space
    operations = [space.operation_labels[operation] for operation in space.operations]
    # All panels have the same scale, so that equal colours mean equal changes.
    largest = max(1.0, 100 * float(frame["change"].abs().max()))
    title = "change of accuracy in percentage points"
    colour = drawings.number_colours("value", (-largest, largest), "redblue", title)
    texts = {"row": "edge", "column": "operation", "value": "change|+.2f", "low": "from|+.2f", "high": "to|+.2f"}

    def draw(layout: Layout, tiles: pd.DataFrame) -> Chart:
        size, names = (layout.width / len(operations), 16.0), (space.edge_labels, operations)
        return drawings.heat_map(
            tiles, names, layout, colour, texts, size=size, number=_CHANGE_EXPRESSION, letters=5, shares_labels=True
        )

    panels = []
    for (criterion, score), rows in frame.groupby(["best", "score"], sort=False):
        architecture, n_tied = int(rows["architecture"].iloc[0]), int(rows["tied"].iloc[0])
        best = f"#{architecture}, best by {SCORES[str(criterion)]}{_tie_note(n_tied)}:"
        tiles = _change_tiles(rows, space, space.parse(results.spec(architecture)))
        panels.append(Panel((best, f"change of {SCORES[str(score)]} accuracy"), partial(draw, tiles=tiles)))
    return Figure(panels, 144)


def _change_tiles(rows: pd.DataFrame, space: CellSpace, operations: Sequence[str]) -> pd.DataFrame:
    """Return the tiles of changes in percentage points; the cell's own operations have a change of 0."""
    own = pd.DataFrame({"edge": range(len(operations)), "operation": operations, "change": 0.0, "own": True})
    tiles = pd.concat([rows.assign(own=False), own], ignore_index=True)
    tiles["row"] = [space.edge_labels[edge] for edge in tiles["edge"]]
    tiles["column"] = tiles["operation"].map(space.operation_labels)
    return tiles.assign(value=100 * tiles["change"], low=100 * tiles["low"], high=100 * tiles["high"])


def _tie_note(n_tied: int) -> str:
    """Return a note on equally accurate architectures, such as ``, one of 9``; empty if there are none."""
    return "" if n_tied == 1 else f", one of {n_tied:,}"


FIGURES = (
    FigureDefinition(
        "top-cells",
        "The best cells, edge by edge",
        "The operations of the most accurate cells, at most twenty, among all evaluated cells and among cells with 18 "
        "kernel parameters. Columns are cells, the best on the left, with the rank above (= marks ties); rows are "
        "edges.",
        "Figs. 7 and 29",
        "accuracies of cells",
        top_cells,
        draw_top_cells,
        shows_means=True,
    ),
    FigureDefinition(
        "best-cells",
        "The best cell by each criterion",
        "The best cells, and the number of edges (of six) on which they differ. Among equally accurate cells (“one of "
        "9”), the one with the highest clean accuracy is shown; if these are equal, the means decide.",
        "Fig. 26",
        "accuracies of cells",
        best_cells,
        draw_best_cells,
        shows_means=True,
    ),
    FigureDefinition(
        "neighbours",
        "Change in accuracy when one edge is changed",
        "Change of accuracy, in percentage points, if one edge of a best cell is changed. The accuracy of the changed "
        "cell is that of its isomorphism class. A dot marks the cell's own operation; a square is empty if the class "
        "was not evaluated. On the page, pointing at a square shows the 95% interval of the change, which assumes "
        "that the two cells were evaluated on different images.",
        "Fig. 30",
        "architectures that are cells, and accuracies of the best cell and one of its neighbours",
        neighbour_changes,
        draw_neighbours,
        shows_means=True,
    ),
)
