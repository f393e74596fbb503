"""Every figure of the table, as files and on the page: of the same numbers, of any results, and alike each time."""

import re
import sys
import time
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from robust201.analysis.dataset_results import MEANS, DatasetResults, read_results
from robust201.core.errors import ResultsError
from robust201.figures import matplotlib_figures
from robust201.figures.palette import CORRUPTION_GROUPS, change_texts
from robust201.figures.plots import FIGURE_FORMATS, save_plot, save_plots
from robust201.figures.table import FIGURES
from robust201.reader.dataset import RobustnessDataset
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.tasks import CORRUPTIONS, PAPER_KEYS, TASKS
from tests.support.fabricated import FabricatedStore, export, make_plan
from tests.support.planted import planted_accuracy
from tests.support.small_results import results_of, write_results

WIDTH = 6.75
ARCHITECTURES = (0, 1, 2, 3, 4, 9, 21, 309, 1462, 3456, 9930)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> RobustnessDataset:
    out = tmp_path_factory.mktemp("dataset")
    keys = [key for key in TASKS if key in (*PAPER_KEYS, "pgd_l2", "jacobian")]
    export(out, make_plan(ARCHITECTURES, keys, ("digits",), severities=(1, 3, 5)), FabricatedStore(n_classes=10))
    return RobustnessDataset(out)


@pytest.fixture(scope="module")
def results(dataset) -> DatasetResults:
    return read_results(dataset)[0]


@pytest.fixture(scope="module")
def frames(results):
    return {name: row.compute(results) for name, row in FIGURES.items()}


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> RobustnessDataset:
    out = tmp_path_factory.mktemp("several")
    export(out, make_plan(ARCHITECTURES, ("clean", "fgsm", "pgd"), ("cifar10", "cifar100"), measurements=("accuracy",)))
    return RobustnessDataset(out)


@pytest.fixture(scope="module")
def whole(results) -> DatasetResults:
    """Invented accuracies of all isomorphism classes."""
    cells = nasbench201.evaluated_indices()
    columns = {("clean", 0.0): planted_accuracy("clean", 0.0), ("pgd", 1.0): planted_accuracy("pgd", 1.0)}
    accuracies = pd.DataFrame({column: values[list(cells)] for column, values in columns.items()}, index=cells)
    return DatasetResults("digits", results.reader, accuracies.rename_axis(columns=["key", "strength"]))


def test_effects_of_operations_are_drawn_with_their_intervals(whole):
    row = FIGURES["operation-effects"]
    frame = row.compute(whole)
    assert list(frame["score"].unique()) == ["clean", "adversarial"]
    assert ((frame["low"] < frame["effect"]) & (frame["effect"] < frame["high"])).all()
    views = row.draw_page(frame, whole)
    assert [view.label for view in views] == ["clean accuracy", "mean adversarial accuracy"]
    figure = row.draw_file(frame, whole, WIDTH)
    for view, axes, (_, rows) in zip(views, figure.axes, frame.groupby("score", sort=False), strict=True):
        go.Figure(view.figure)
        by_operation = rows.groupby("operation", sort=False)
        for trace, (name, own), drawn in zip(view.figure["data"], by_operation, axes.containers, strict=True):
            assert (trace["name"], trace["x"]) == (name, own["edge"].tolist())
            assert trace["y"] == pytest.approx(100 * own["effect"], abs=1e-3)
            line, _, (bars,) = drawn
            np.testing.assert_allclose(line.get_ydata(orig=False), 100 * own["effect"])
            ends = np.array([segment[:, 1] for segment in bars.get_segments()])
            np.testing.assert_allclose(ends, 100 * own[["low", "high"]])
            lengths = [trace["error_y"]["arrayminus"], trace["error_y"]["array"]]
            np.testing.assert_allclose(np.sum(lengths, axis=0), ends[:, 1] - ends[:, 0], atol=2e-3)


def test_means_by_kernel_parameters_have_intervals(frames, results):
    frame = frames["kernel-parameters"]
    assert frame["mean_low"].isna().sum() == (frame["n"] == 1).sum() > 0  # one cell says nothing of the spread
    figure = matplotlib_figures.draw_kernel_parameters(frame, results, WIDTH)
    ((line, *_),) = figure.axes[0].containers
    np.testing.assert_allclose(line.get_ydata(orig=False), frame["mean"])
    (view,) = FIGURES["kernel-parameters"].draw_page(frame, results)
    assert view.figure["data"][-1]["y"] == pytest.approx(frame["mean"].tolist(), abs=1e-5)


def test_changes_of_neighbours_show_their_intervals_on_the_page(tied):
    sized = replace(tied, name="cifar10")
    assert sized.n_images == 10_000
    frame = FIGURES["neighbours"].compute(sized)
    row = frame[(frame["neighbour"] == 9930) & (frame["score"] == "clean")].iloc[0]
    reach = 1.959964 * ((0.9 * 0.1 + 0.883 * 0.117) / 10_000) ** 0.5
    assert (row["low"], row["high"]) == pytest.approx((-0.017 - reach, -0.017 + reach), abs=1e-6)
    (view, *_) = FIGURES["neighbours"].draw_page(frame, sized)
    texts = [text for line in view.figure["data"][0]["hovertext"] for text in line]
    assert f"-1.70 percentage points ({100 * row['low']:+.2f} to {100 * row['high']:+.2f})" in texts


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_of_the_page_is_valid_plotly(name, frames, results, several, whole):
    needed = {"rank-correlation-datasets": read_results(several)[0], "operation-effects": whole}
    frame = FIGURES[name].compute(needed[name]) if name in needed else frames[name]
    views = FIGURES[name].draw_page(frame, results)
    assert len({view.label for view in views}) == len(views)
    assert sum(view.first for view in views) <= 1
    for view in views:
        go.Figure(view.figure)  # raises an error for what plotly does not know
        assert {"height", "meta"} <= view.figure["layout"].keys()
        assert view.column is None or view.column in [*results.columns, *results.scores]
        assert (view.column is None) == (view.limits is None)


@pytest.mark.parametrize("name", FIGURES)
def test_every_row_of_the_table_says_what_it_shows(name):
    row = FIGURES[name]
    assert row.name == name
    assert row.title
    assert row.needs
    assert row.caption.endswith(".")
    assert row.compute.__doc__


def test_boxes_of_files_show_the_frame(frames, results):
    frame = frames["attacks"]
    figure = matplotlib_figures.draw_boxes(frame, results, WIDTH)
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}
    assert list(panels) == ["APGD-CE", "Square", "FGSM", "PGD", "PGD-L2"]
    for key, axes in zip(frame["key"].unique(), panels.values(), strict=True):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["clean", "0.5", "1", "8"]
        levels = [line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1]
        assert set(frame[frame["key"] == key]["median"]) <= set(levels)
        assert 0.1 in levels  # chance, of ten classes
    assert {key: axes.get_xlabel() for key, axes in panels.items()} == {
        **dict.fromkeys(["APGD-CE", "Square", "FGSM", "PGD"], "ε in 1/255"),
        "PGD-L2": "ε (L2)",
    }


def test_boxes_of_the_page_show_the_frame(frames, results):
    frame = frames["attacks"]
    (view,) = FIGURES["attacks"].draw_page(frame, results)
    medians = [value for trace in view.figure["data"] if trace["type"] == "box" for value in trace["median"]]
    assert medians == pytest.approx(frame["median"].tolist(), abs=1e-5)
    assert {shape["y0"] for shape in view.figure["layout"]["shapes"]} == {0.1}


def test_corruptions_have_a_panel_each_with_their_groups_colour(frames, results):
    figure = matplotlib_figures.draw_boxes(frames["corruptions"], results, WIDTH)
    panels = {axes.get_title().lower().replace(" ", "_"): axes for axes in figure.axes if axes.get_visible()}
    assert sorted(panels) == sorted(CORRUPTIONS)
    assert {label.get_text() for label in panels["fog"].get_xticklabels()} == {"clean", "1", "3", "5"}
    assert panels["fog"].patches[-1].get_facecolor() == panels["snow"].patches[-1].get_facecolor()
    assert panels["fog"].patches[-1].get_facecolor() != panels["glass_blur"].patches[-1].get_facecolor()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(CORRUPTION_GROUPS)
    assert sorted(key for _, keys in CORRUPTION_GROUPS.values() for key in keys) == sorted(CORRUPTIONS)


def test_points_of_files_are_those_of_the_frame(frames, results):
    frame = frames["clean-vs-robust"]
    figure = matplotlib_figures.draw_clean_against(frame, results, WIDTH)
    axes = figure.axes[4]
    assert axes.get_title() == "PGD, ε = 1/255"
    rows = frame[(frame["key"] == "pgd") & (frame["strength"] == 1)]
    np.testing.assert_array_equal(axes.collections[0].get_offsets(), rows[["clean", "accuracy"]])
    np.testing.assert_array_equal(axes.collections[0].get_array(), rows["kernel_parameters"])


def test_heat_maps_show_the_frame_and_leave_open_what_is_not_there(frames, results):
    frame = frames["rank-correlation"].copy()
    frame.iloc[0, 1] = frame.iloc[1, 0] = np.nan
    (view,) = FIGURES["rank-correlation"].draw_page(frame, results)
    trace = view.figure["data"][0]
    assert trace["z"][0][:3] == [1.0, None, round(frame.iloc[0, 2], 3)]
    assert trace["text"][0][1] == "–"
    texts = [text.get_text() for text in matplotlib_figures.draw_rank_correlation(frame, results, WIDTH).axes[0].texts]
    assert texts.count("–") == 2
    assert texts.count("1.00") >= 20


@pytest.fixture(scope="module")
def tied(tmp_path_factory) -> DatasetResults:
    """1462 and 3456 share the best clean accuracy; 9930 is a neighbour of 3456."""
    values = {
        "clean": {"1462": 0.9, "3456": 0.9, "9930": 0.883, "0": 0.5},
        "pgd": {"1462": [0.5, 0.2], "3456": [0.5, 0.3], "9930": [0.4, 0.1], "0": [0.1, 0.1]},
    }
    return results_of(write_results(tmp_path_factory.mktemp("tied"), values))


def texts_of(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_figures_say_how_many_share_the_best_accuracy(tied):
    frame = FIGURES["best-cells"].compute(tied)
    titles = [axes.get_title() for axes in matplotlib_figures.draw_best_cells(frame, tied, WIDTH).axes]
    assert titles[:2] == ["clean, 90.0%\n#3456, one of 2", "mean adversarial, 40.0%\n#3456"]
    frame = FIGURES["neighbours"].compute(tied)
    titles = [axes.get_title() for axes in matplotlib_figures.draw_neighbours(frame, tied, WIDTH).axes]
    assert titles[0] == "#3456, best by clean, one of 2:\nchange of clean"
    views = FIGURES["neighbours"].draw_page(frame, tied)
    assert views[0].label == "best by clean (#3456, one of 2): change of clean"
    frame = FIGURES["top-cells"].compute(tied)
    first = matplotlib_figures.draw_top_cells(frame, tied, WIDTH).axes[0]
    assert texts_of(first) == ["rank", "=1", "=1", "3", "4"]
    trace = FIGURES["top-cells"].draw_page(frame, tied)[0].figure
    assert [note["text"] for note in trace["layout"]["annotations"]] == ["=1", "=1", "3", "4"]
    assert trace["data"][0]["text"][0][0].startswith("#3456, 90.00%, rank =1<br>")


def test_cells_that_a_figure_has_no_room_for_are_counted(tmp_path):
    members = nasbench201.evaluated_indices()[:25]
    held = results_of(write_results(tmp_path, {"clean": {str(index): 0.9 for index in members}}))
    frame = FIGURES["top-cells"].compute(held)
    title = matplotlib_figures.draw_top_cells(frame, held, WIDTH).axes[0].get_title()
    assert title == "clean accuracy, all evaluated cells; 5 more are as accurate as the last"
    layout = FIGURES["top-cells"].draw_page(frame, held)[0].figure["layout"]
    assert layout["xaxis"]["title"] == {"text": "5 more are as accurate as the last"}


def test_panels_of_changes_share_one_scale_that_a_bar_tells(tied):
    frame = FIGURES["neighbours"].compute(tied)
    figure = matplotlib_figures.draw_neighbours(frame, tied, WIDTH)
    limits = [axes.collections[0].get_clim() for axes in figure.axes if axes.get_title()]
    furthest = 100 * frame["change"].abs().max()
    assert limits == [pytest.approx((-furthest, furthest))] * 4
    bar = figure.axes[-1]
    assert bar.get_xlabel() == "change of accuracy in percentage points"
    assert bar.get_xlim() == pytest.approx((-furthest, furthest))


def test_no_change_has_no_sign():
    changes = np.array([[0.0, 0.004, -0.004, 1.5, -1.5, np.nan, 0.0]])
    assert change_texts(changes, [6], 2) == [["0.00", "0.00", "0.00", "+1.50", "-1.50", "", "•"]]


@pytest.mark.parametrize(("keys", "noted"), [(("clean", "pgd"), False), (("clean", "pgd", "aa_apgd-ce"), True)])
def test_confidences_say_what_autoattacks_images_are(tmp_path, keys, noted):
    export(tmp_path / "dataset", make_plan([0, 2], keys, ["digits"]), FabricatedStore(n_classes=10))
    (held,) = read_results(RobustnessDataset(tmp_path / "dataset"))
    figure = matplotlib_figures.draw_confidence(FIGURES["confidence"].compute(held), held, WIDTH)
    title = figure.legends[0].get_title().get_text()
    assert ("APGD-CE, Square: where right, these are the clean images that resist" in title) == noted
    assert "where wrong, an architecture may have but a few images" in title


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        pytest.param(["clean"], ["best-cells", "top-cells"], marks=pytest.mark.slow),
        (["pgd"], ["attacks", "best-cells", "kernel-parameters", "rank-correlation-attacks", "top-cells"]),
        pytest.param(["fog"], ["best-cells", "corruptions", "top-cells"], marks=pytest.mark.slow),
    ],
)
def test_figures_are_those_the_results_are_enough_for(tmp_path, keys, names):
    export(tmp_path / "dataset", make_plan([0, 2], keys, ["digits"], measurements=("accuracy",)))
    paths = save_plots(RobustnessDataset(tmp_path / "dataset"), tmp_path / "plots")
    assert sorted(path.name for path in paths) == [f"digits-{name}.png" for name in names]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


@pytest.mark.parametrize("name", [pytest.param("tiny-images", marks=pytest.mark.slow), "$a_{$ <b>&"])
def test_one_architecture_and_any_dataset_are_enough(tmp_path, name):
    export(tmp_path / "dataset", make_plan([0], ("clean", "pgd", "fog"), [name]))
    paths = save_plots(RobustnessDataset(tmp_path / "dataset"), tmp_path)
    drawn = ("attacks", "corruptions", "confidence", "confusion", "clean-vs-robust", "clean-vs-corrupted")
    drawn = (*drawn, "kernel-parameters", "top-cells", "best-cells")
    assert [path.name for path in paths] == [f"{name}-{figure}.png" for figure in drawn]


def test_a_figure_that_lacks_something_says_what_there_is(tmp_path):
    export(tmp_path / "dataset", make_plan([0], ("clean", "pgd")))
    with pytest.raises(ResultsError, match="two architectures, got results of 1 architecture under clean, pgd"):
        save_plot(RobustnessDataset(tmp_path / "dataset"), "rank-correlation", tmp_path / "figure.png")


# The figures with generated ids, dates and rasters between them.
@pytest.mark.parametrize(
    "chosen", [("clean-vs-robust",), pytest.param(("attacks", "best-cells"), marks=pytest.mark.slow)]
)
def test_equal_results_give_equal_files(tied, tmp_path, chosen):

    def drawn(name):
        return {
            path.name: path.read_bytes()
            for file_format in FIGURE_FORMATS
            for path in save_plots(tied.reader, tmp_path / name, figures=chosen, file_format=file_format)
        }

    one = drawn("one")
    # A second's time of their own, as fonts and PDF files have dates.
    time.sleep(1.1)
    assert drawn("two") == one
    assert len(one) == len(chosen) * len(FIGURE_FORMATS)


def test_drawing_leaves_matplotlibs_settings_and_pyplot_alone(dataset, tmp_path):
    before = dict(mpl.rcParams)
    save_plots(dataset, tmp_path, figures=["top-cells"], file_format="svg")
    assert dict(mpl.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_many_points_are_one_picture_in_an_svg(tmp_path):
    export(tmp_path / "dataset", make_plan(range(500), ("clean", "pgd"), measurements=("accuracy",)))
    reader = RobustnessDataset(tmp_path / "dataset")
    (path,) = save_plots(reader, tmp_path, figures=["clean-vs-robust"], file_format="svg")
    text = path.read_text()
    # One of the points of each panel, one of the colour bar.
    assert text.count("data:image/png;base64") == 3
    assert text.count("<use") < 500


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("plot", "atacks", "{data}", "--out", "x.png"), "'attacks'"),
        (("plot", "attacks", "{data}", "--out", "x.eps"), ".svg"),
        (("plot", "attacks", "{data}"), "--out"),
        (("plot", "attacks", "{data}", "--out", "x.png", "--dataset", "digitz"), "'digits'"),
        (("plot", "all", "{data}", "--out", "x", "--format", "jpg"), "'png'"),
        (("plot", "attacks", "{data}", "--out", "x.png", "--width", "colum"), "'column'"),
        (("plot", "attacks", "{data}", "--out", "x.png", "--width", "1"), "3.25 in"),
        (("plot", "attacks", "{data}", "--out", "x.png", "--width", "nan"), "3.25 in"),
        (("plot", "attacks", "{data}", "--out", "x.png", "--mean", "over-key"), "'over-keys'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(robust201, dataset, tmp_path, monkeypatch, arguments, hint):
    monkeypatch.chdir(tmp_path)
    refusal = robust201(*(part.format(data=dataset.path) for part in arguments)).refusal(2)
    assert hint in refusal
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("width", "inches"),
    [("column", 3.25), *(pytest.param(*wide, marks=pytest.mark.slow) for wide in (("page", 6.75), ("5.5", 5.5)))],
)
def test_a_figure_is_as_wide_as_asked_for_and_its_text_is_as_large_at_any_width(dataset, tmp_path, width, inches):
    for name in ("attacks", "clean-vs-robust", "rank-correlation-attacks"):
        path = save_plot(dataset, name, tmp_path / f"{name}.svg", width=width)
        text = path.read_text()
        points = float(re.search(r'width="([\d.]+)pt"', text)[1])
        assert points == pytest.approx(72 * inches, abs=0.1)
        # Text that an editor can change, of the sizes that a template has.
        sizes = {float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", text)}
        assert sizes
        assert 5 <= min(sizes) <= max(sizes) <= 8
        assert re.search(r">[^<]*[Cc]lean", text)
    pixels = save_plot(dataset, "attacks", tmp_path / "attacks.png", width=width).read_bytes()
    assert int.from_bytes(pixels[16:20], "big") == int(300 * inches)


def test_text_of_a_pdf_is_truetype_and_nothing_tells_the_time(dataset, tmp_path):
    pdf = save_plot(dataset, "attacks", tmp_path / "attacks.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert b"Date" not in pdf


@pytest.mark.parametrize(
    "name", ["clean-vs-robust", *(pytest.param(name, marks=pytest.mark.slow) for name in ("attacks", "confidence"))]
)
def test_a_title_is_drawn_if_asked_for(dataset, tmp_path, name):
    title = FIGURES[name].title
    without, titled = (
        save_plot(dataset, name, tmp_path / f"{asked}.svg", title=asked).read_text() for asked in (False, True)
    )
    assert title not in without
    assert title in titled


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", [name for name, row in FIGURES.items() if row.averages])
@pytest.mark.each_value
def test_figures_of_means_say_how_these_are_weighted(tied, whole, name, mean):
    held = replace(whole if name == "operation-effects" else tied, mean=mean)
    frame = FIGURES[name].compute(held)
    if name == "clean-vs-corrupted":
        assert frame.empty
        return
    label = FIGURES[name].draw_file(frame, held, WIDTH).get_supxlabel()
    assert label.replace("\n", " ").endswith(MEANS[mean])
    assert MEANS[mean] in FIGURES[name].describe(held)


def test_points_beyond_the_axes_are_arrows_with_their_number(tmp_path):
    clean = {str(index): 0.9 + index / 1000 for index in range(20)} | {"20": 0.1}
    pgd = {name: [value - 0.05, value - 0.1] for name, value in clean.items()}
    held = results_of(write_results(tmp_path, {"clean": clean, "pgd": pgd}))
    figure = matplotlib_figures.draw_clean_against(FIGURES["clean-vs-robust"].compute(held), held, WIDTH)
    axes = figure.axes[1]
    assert axes.get_xlim()[0] > 0.85
    assert [len(points.get_offsets()) for points in axes.collections] == [20, 1]
    assert "◀ 1" in texts_of(axes)
    figure = matplotlib_figures.draw_boxes(FIGURES["attacks"].compute(held), held, WIDTH)
    assert figure.axes[0].get_ylim() == (0.8, 0.95)
    assert texts_of(figure.axes[0]).count("▼1") == 3
    (view,) = FIGURES["attacks"].draw_page(FIGURES["attacks"].compute(held), held)
    assert view.figure["layout"]["yaxis"]["range"] == [0.8, 0.95]
    assert [note["text"] for note in view.figure["layout"]["annotations"]].count("▼1") == 3


def test_a_figure_of_all_datasets_is_drawn_once(robust201, several, tmp_path):
    paths = save_plots(several, tmp_path / "all", figures=["attacks", "rank-correlation-datasets"], file_format="svg")
    names = ["cifar10-attacks.svg", "cifar100-attacks.svg", "rank-correlation-datasets.svg"]
    assert [path.name for path in paths] == names
    text = paths[-1].read_text()
    assert ">CIFAR-10: Clean<" in text
    assert ">CIFAR-100: PGD, ε = 8/255<" in text
    command = ("plot", "rank-correlation-datasets", several.path, "--out", tmp_path / "one.svg")
    assert robust201(*command).code == 0
    assert (tmp_path / "one.svg").read_text() == text
    assert "Leave out --dataset" in robust201(*command, "--dataset", "cifar10").refusal(2)


def test_a_figure_that_needs_more_is_refused(robust201, tmp_path):
    export(tmp_path / "dataset", make_plan([0, 2], ["clean"], ["digits"]))
    refusal = robust201("plot", "attacks", tmp_path / "dataset", "--out", tmp_path / "x.png").refusal(2)
    assert "expected an attack" in refusal


def test_results_that_are_enough_for_no_figure_are_refused(tmp_path):
    export(tmp_path / "dataset", make_plan([0], ["clean"], ["digits"]))
    with pytest.raises(ResultsError, match="attacks needs an attack"):
        save_plots(RobustnessDataset(tmp_path / "dataset"), tmp_path / "plots", figures=["attacks", "corruptions"])
    assert not (tmp_path / "plots").exists()


def test_one_dataset_of_several_must_be_named(robust201, tmp_path):
    export(tmp_path / "dataset", make_plan([0, 2], ["clean"], ["digits", "cifar10"]))
    command = ("plot", "top-cells", tmp_path / "dataset", "--out", tmp_path / "x.svg")
    assert "--dataset" in robust201(*command).refusal(2)
    ended = robust201(*command, "--dataset", "digits")
    assert (ended.code, ended.out.strip()) == (0, str(tmp_path / "x.svg"))
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")


def test_the_list_names_every_figure(robust201):
    ended = robust201("plot", "--list")
    assert [line.split()[0] for line in ended.out.splitlines()] == list(FIGURES)
