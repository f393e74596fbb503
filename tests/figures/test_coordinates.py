"""Lines, bands, points and labels in drawn figures have the coordinates of their numbers, as read from the axes."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from robust201.analysis.dataset_results import SCORES, DatasetResults, read_results
from robust201.analysis.labels import key_label
from robust201.core.colours import CHANCE, PAPER
from robust201.dataset.reader import Dataset
from robust201.figures.correlations import measure_matrix, view_of
from robust201.figures.panels import Figure, specify_file
from robust201.figures.security_curves import SecurityCurves
from robust201.figures.table import FIGURES
from robust201.tasks.constraints import CONSTRAINTS
from tests.support.drawn_figures import DrawnPanel, read_panels
from tests.support.fabricated import FabricatedStore, export, make_plan
from tests.support.small_results import results_of, write_results

N_CLASSES = {"cifar10": 10, "cifar100": 100, "ImageNet16-120": 120}
CELLS = (0, 1, 2, 3, 4, 9, 21, 309, 1462, 3456, 9930, 13714)


def draw(name: str, results: DatasetResults) -> dict[str, DrawnPanel]:
    """Draw a figure as for a file, and return its panels by title."""
    figure = FIGURES[name]
    return panels_of(figure.draw(figure.compute_numbers(results), results))


def panels_of(figure: Figure) -> dict[str, DrawnPanel]:
    return {panel.title: panel for panel in read_panels(specify_file(figure, 486.0, 45.0, PAPER))}


def write_accuracies(folder, dataset="cifar10", *, cells=CELLS, clean=(0.78, 0.9), robust=(0.002, 0.6)):
    """Write accuracies that are evenly spaced in a range, and return the results."""
    spread = {str(cell): index / (len(cells) - 1) for index, cell in enumerate(cells)}
    keys = {
        "clean": {cell: clean[0] + fraction * (clean[1] - clean[0]) for cell, fraction in spread.items()},
        "pgd": {cell: [robust[0] + fraction * (robust[1] - robust[0]), robust[0]] for cell, fraction in spread.items()},
        "fog": {cell: [robust[1] * (1 - 0.2 * i * fraction) for i in range(5)] for cell, fraction in spread.items()},
    }
    return results_of(write_results(folder / dataset, keys, dataset=dataset))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> DatasetResults:
    folder = tmp_path_factory.mktemp("dataset")
    keys = ("clean", "pgd", "fgsm", "aa_square", "fog", "snow", "jacobian")
    export(folder, make_plan(CELLS, keys, ("digits",), severities=(1, 3, 5)), FabricatedStore(n_classes=10))
    return read_results(Dataset(folder))[0]


@pytest.fixture(scope="module")
def few_results(tmp_path_factory) -> DatasetResults:
    folder = tmp_path_factory.mktemp("few")
    export(folder, make_plan(CELLS[:3], ("clean", "pgd", "fog"), ("digits",), severities=(1, 3, 5)))
    return read_results(Dataset(folder))[0]


@pytest.mark.parametrize("dataset", N_CLASSES)
@pytest.mark.parametrize("name", ["attacks", "corruptions", "attack-curves", "clean-vs-robust", "kernel-parameters"])
@pytest.mark.slow_combinations
def test_chance_line_is_at_one_over_the_number_of_classes(tmp_path, name, dataset):
    cells = CELLS[:11] if name == "attack-curves" else CELLS
    panels = draw(name, write_accuracies(tmp_path, dataset, cells=cells, clean=(0.001, 0.9)))
    lines = [(panel, line) for panel in panels.values() for line in panel.find("rule", stroke=CHANCE)]
    assert lines
    for panel, line in lines:
        assert panel.heights(line) == pytest.approx([1 / N_CLASSES[dataset]] * 2, abs=1e-6)
        assert sorted(line.points[:, 0] - panel.left) == pytest.approx([0, panel.width])
        (label,) = [text for text in panel.find("text") if text.text == "chance"]
        assert abs(label.points[0, 1] - line.points[0, 1]) <= 8
        assert panel.is_inside(*label.points[0])


@pytest.mark.parametrize(
    ("clean", "robust"), [((0.78, 0.9), (0.1, 0.3)), ((0.3, 0.9), (0.1, 0.8)), ((0.5, 0.9), (0.55, 0.6))]
)
@pytest.mark.slow_combinations
def test_line_of_equality_joins_points_with_equal_accuracies(tmp_path, clean, robust):
    panels = draw("clean-vs-robust", write_accuracies(tmp_path, clean=clean, robust=robust))
    for panel in panels.values():
        lines = panel.find("rule", strokeDash=(1, 2))
        assert len(lines) == (robust[1] > clean[0])  # no line if the axes have no common accuracies
        for line in lines:
            (x1, y1), (x2, y2) = panel.to_data(line)
            assert (x1, x2) == pytest.approx((y1, y2), abs=1e-6)
            assert abs(x2 - x1) > 0.01
        assert all(x > y for points in panel.find("symbol") for x, y in panel.to_data(points)) or robust[1] > clean[0]


def test_points_are_at_their_accuracies(results):
    frame = FIGURES["clean-vs-robust"].compute(results)
    panels = draw("clean-vs-robust", results)
    assert list(panels) == ["mean adversarial", "mean corruption"]
    for panel, (_, rows) in zip(panels.values(), frame.groupby("score", sort=False), strict=True):
        drawn_points = [points for mark in panel.find("symbol", strokeWidth=0) for points in panel.to_data(mark)]
        expected = np.column_stack([rows["clean"], rows["accuracy"]])
        np.testing.assert_allclose(np.sort(np.round(drawn_points, 4), axis=0), np.sort(expected, axis=0), atol=1e-4)


@pytest.mark.parametrize("name", ["attacks", "corruptions", "kernel-parameters"])
def test_boxes_and_whiskers_are_at_their_quartiles_and_ends(results, name):
    frame = FIGURES[name].compute(results)
    column = "score" if name == "kernel-parameters" else "key"
    groups = dict(list(frame.groupby(column, sort=False)))
    panels = draw(name, results)
    for key, rows in groups.items():
        panel = panels[SCORES.get(key, key_label(key))]
        rects = panel.find("rect")
        boxes = {panel.x.nearest_label(rect.points[:, 0].mean()): panel.heights(rect) for rect in rects}
        ticks = [str(size) for size in rows.get("kernel_parameters", [])] or [
            f"{strength:g}" if strength else "clean" for strength in rows["strength"]
        ]
        assert list(panel.x.pixels) == ticks
        horizontal_lines = Counter(
            (panel.x.nearest_label(line.points[:, 0].mean()), round(panel.heights(line)[0], 4))
            for line in panel.find("rule")
            if np.ptp(line.points[:, 1]) == 0
        )
        for tick, row in zip(ticks, rows.itertuples(), strict=True):
            assert (min(boxes[tick]), max(boxes[tick])) == pytest.approx((row.q1, row.q3), abs=2e-5)
            expected = Counter((tick, round(value, 4)) for value in (row.low, row.median, row.high))
            assert not expected - horizontal_lines


@pytest.mark.parametrize("name", ["attack-curves", "corruption-curves"])
def test_curves_and_bands_are_at_their_accuracies(few_results, name):
    frame = FIGURES[name].compute_numbers(few_results)
    panels = draw(name, few_results)
    for key, rows in frame.groupby("key", sort=False):
        panel = panels[key_label(key)]
        lines = sorted(tuple(np.round(panel.heights(line), 4)) for line in panel.find("line"))
        curves = [curve for _, curve in rows.groupby("network", sort=False)]
        expected = sorted(tuple(curve["accuracy"]) for curve in curves)
        assert lines == [pytest.approx(accuracies, abs=2e-4) for accuracies in expected]
        bands = sorted(tuple(np.round(sorted(panel.heights(band)), 4)) for band in panel.find("area"))
        expected = sorted(tuple(sorted([*curve["low"], *curve["high"]])) for curve in curves)
        assert bands == [pytest.approx(ends, abs=2e-4) for ends in expected]
        strengths = [f"{strength:g}" if strength else "clean" for strength in curves[0]["strength"]]
        for line in panel.find("line"):
            assert [panel.x.nearest_label(x) for x, _ in line.points] == strengths


def test_class_confidences_are_drawn_at_their_classes(results):
    frame = FIGURES["class-confidence"].compute(results)
    panels = draw("class-confidence", results)
    for (key, strength), rows in frame.groupby(["key", "strength"], sort=False):
        panel = panels[results.column_label(key, strength)]
        medians = sorted(
            (panel.x.nearest_label(x), panel.y.to_data(y)) for dot in panel.find("symbol") for x, y in dot.points
        )
        ranges = sorted(
            (panel.x.nearest_label(line.points[0, 0]), *sorted(panel.heights(line))) for line in panel.find("rule")
        )
        classes = rows["class"].astype(str)
        for drawn, columns in ((medians, ["median"]), (ranges, ["q1", "q3"])):
            expected = sorted(zip(classes, *(rows[column] for column in columns), strict=True))
            assert [row[0] for row in drawn] == [row[0] for row in expected]
            np.testing.assert_allclose([row[1:] for row in drawn], [row[1:] for row in expected], atol=2e-5)


@pytest.mark.parametrize(
    "name",
    ["rank-correlation-attacks", "rank-correlation-corruptions", "measure-correlations"],
)
def test_heat_maps_show_each_number_in_its_row_and_column(results, name):
    frame = FIGURES[name].compute(results)
    if name == "measure-correlations":
        views = {"": measure_matrix(frame, results)}
    else:
        views = {str(view): view_of(frame, view) for view in frame.index.unique("view")}
    panels = draw(name, results)
    assert list(panels) == list(views)
    # All panels of a row share the names of rows, and all panels of a column the names of columns.
    x_axes = {panel.left: panel.x for panel in panels.values() if panel.x.pixels}
    for view, matrix in views.items():
        panel = panels[view]
        texts = {
            (panel.y.nearest_label(y), x_axes[panel.left].nearest_label(x)): text.text
            for text in panel.find("text")
            for x, y in text.points
        }
        expected = {
            names: f"{value:.2f}".replace("0.", ".").replace("-", "−") for names, value in matrix.stack().items()
        }
        assert texts == expected


def test_top_cells_have_the_colour_of_each_operation(results):
    frame = FIGURES["top-cells"].compute(results)
    space = results.cell_space
    panel = next(iter(draw("top-cells", results).values()))
    first_panel_rows = frame[(frame["score"] == frame["score"].iloc[0]) & (frame["among"] == frame["among"].iloc[0])]
    drawn = {
        (panel.x.nearest_label(box.points[:, 0].mean()), panel.y.nearest_label(box.points[:, 1].mean())): box.style[
            "fill"
        ]
        for box in panel.find("rect")
    }
    assert drawn == {
        (f"#{row.architecture}", space.edge_labels[row.edge]): space.operation_colours[row.operation]
        for row in first_panel_rows.itertuples()
    }


def test_security_curves_are_at_their_accuracies():
    distances = np.concatenate([np.zeros(20), np.linspace(0.1, 6, 80)])
    frame = pd.DataFrame({"fmn": distances})
    curves = SecurityCurves({"plain": frame, "robust": 2 * frame}, CONSTRAINTS["Linf"])
    (panel,) = panels_of(curves.figure()).values()
    lines = {round(panel.heights(line)[-1], 3): line for line in panel.find("line")}
    end = np.quantile(2 * distances, 0.99)
    for _, rows in curves.accuracy([0, 2, end]).groupby("network"):
        expected = rows["accuracy"].tolist()
        line = lines[round(expected[-1], 3)]
        data = np.array(panel.to_data(line))
        assert np.interp([0, 2], data[:, 0], data[:, 1]) == pytest.approx(expected[:2], abs=0.02)
        assert (data[0, 0], data[-1, 0]) == pytest.approx((0, end), abs=1e-4)
