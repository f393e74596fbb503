"""All figures in the table: their numbers in files and on the page are correct, and their files are reproducible."""

import copy
import re
import time
from dataclasses import replace

import altair as alt
import pytest

from robust201.analysis.dataset_results import DatasetResults, read_results
from robust201.core.colours import PAPER
from robust201.core.errors import ResultsError
from robust201.dataset.reader import Dataset
from robust201.figures.panels import specify_file, specify_page
from robust201.figures.plots import FIGURE_FORMATS, save_plot, save_plots
from robust201.figures.table import FIGURES
from robust201.tasks import PAPER_KEYS, TASKS
from tests.support.fabricated import FabricatedStore, export, make_plan
from tests.support.small_results import results_of, write_results

WIDTH = 486.0
"""Width of a figure as wide as a page, in points."""

ARCHITECTURES = (0, 1, 2, 3, 4, 9, 21, 309, 1462, 3456, 9930, 13714)


def find_objects(spec) -> list[dict]:
    """Return all objects in a specification, each before the objects that it contains."""
    children = spec if isinstance(spec, list) else spec.values() if isinstance(spec, dict) else ()
    objects = [spec] if isinstance(spec, dict) else []
    return objects + [spec_object for child in children for spec_object in find_objects(child)]


def specify(name, results) -> dict:
    """Return the specification of a figure's file."""
    frame = FIGURES[name].compute(results)
    return specify_file(FIGURES[name].draw(frame, results), WIDTH, 45, PAPER)


def find_titles(name, results) -> list[str]:
    """Return the titles of a figure's panels, each as one string with line breaks."""
    panels = specify(name, results)["concat"]
    return ["\n".join(panel["title"]["text"]) for panel in panels if "title" in panel]


def find_rows(name, results, *columns) -> list[tuple]:
    """Return the rows of a figure's data that have all of these columns, as tuples of the columns' values."""
    rows = [row for table in specify(name, results)["datasets"].values() for row in table]
    return [tuple(row[column] for column in columns) for row in rows if set(columns) <= row.keys()]


def check_schema(spec) -> None:
    """Validate a specification against Vega-Lite's schema."""
    reduced = copy.deepcopy(spec) | {"datasets": {}}
    reduced["config"]["legend"].pop("layout")  # the schema does not contain the layout of legends
    reduced["concat"] = reduced["concat"][:1]
    alt.Chart.from_dict(reduced)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("dataset")
    keys = [key for key in TASKS if key in (*PAPER_KEYS, "pgd_l2", "jacobian")]
    export(folder, make_plan(ARCHITECTURES, keys, ("digits",), severities=(1, 3, 5)), FabricatedStore(n_classes=10))
    return Dataset(folder)


@pytest.fixture(scope="module")
def results(dataset) -> DatasetResults:
    return read_results(dataset)[0]


@pytest.fixture(scope="module")
def two_datasets(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("several")
    export(
        folder, make_plan(ARCHITECTURES, ("clean", "fgsm", "pgd"), ("cifar10", "cifar100"), measurements=("accuracy",))
    )
    return Dataset(folder)


@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_valid_vega_lite(name, results, two_datasets):
    figure_results = read_results(two_datasets)[0] if name == "rank-correlation-datasets" else results
    figure = FIGURES[name].draw(FIGURES[name].compute(figure_results), figure_results)
    titles = [tuple(panel.title) for panel in figure.panels]
    assert len(set(titles)) == len(titles)
    page, file = specify_page(figure), specify_file(figure, WIDTH, 45, PAPER)
    assert page["usermeta"]["columnWidth"] > figure.page_width
    for spec in (file, page):
        assert not [spec_object for spec_object in find_objects(spec) if "url" in spec_object]
    check_schema(file if name in {"attacks", "top-cells"} else page)  # validation takes as long as drawing


@pytest.fixture(scope="module")
def tied_results(tmp_path_factory) -> DatasetResults:
    """Return results in which 1462 and 3456 share the best clean accuracy, and 9930 is a neighbour of 3456."""
    accuracies_by_key = {
        "clean": {"1462": 0.9, "3456": 0.9, "9930": 0.883, "0": 0.5},
        "pgd": {"1462": [0.5, 0.2], "3456": [0.5, 0.3], "9930": [0.4, 0.1], "0": [0.1, 0.1]},
    }
    return results_of(write_results(tmp_path_factory.mktemp("tied"), accuracies_by_key))


def test_figures_state_the_number_of_tied_cells(tied_results):
    assert find_titles("best-cells", tied_results)[1:3] == [
        "clean, 90.0%\n#3456, one of 2",
        "mean adversarial, 40.0%\n#3456",
    ]
    assert find_titles("neighbours", tied_results)[0] == "#3456, best by clean, one of 2:\nchange of clean accuracy"
    assert ("#3456", 0.9, "=1") in find_rows("top-cells", tied_results, "cell", "accuracy", "rank")


def test_neighbour_changes_show_their_intervals_in_tooltips(tied_results):
    cifar10_results = replace(tied_results, name="cifar10")  # has 10,000 images, so narrow intervals
    frame = FIGURES["neighbours"].compute(cifar10_results)
    row = frame[(frame["neighbour"] == 9930) & (frame["score"] == "clean")].iloc[0]
    half_width = 1.959964 * ((0.9 * 0.1 + 0.883 * 0.117) / 10_000) ** 0.5
    assert (row["low"], row["high"]) == pytest.approx((-0.017 - half_width, -0.017 + half_width), abs=1e-6)
    tooltip_rows = find_rows("neighbours", cifar10_results, "score", "neighbour", "value", "low", "high")
    expected = [100 * row[column] for column in ("change", "low", "high")]
    assert [values for score, cell, *values in tooltip_rows if (score, cell) == ("clean", 9930)] == 2 * [
        pytest.approx(expected, abs=1e-3)
    ]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        pytest.param(["clean"], ["best-cells", "top-cells"], marks=pytest.mark.slow),
        (["pgd"], ["attack-curves", "best-cells", "top-cells"]),
        pytest.param(["fog"], ["best-cells", "corruption-curves", "top-cells"], marks=pytest.mark.slow),
    ],
)
def test_save_plots_draws_figures_with_enough_results(tmp_path, keys, names):
    export(tmp_path / "dataset", make_plan([0, 2], keys, ["digits"], measurements=("accuracy",)))
    paths = save_plots(Dataset(tmp_path / "dataset"), tmp_path / "plots")
    assert sorted(path.name for path in paths) == [f"digits-{name}.png" for name in names]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_save_plot_states_missing_and_available_results(tmp_path):
    export(tmp_path / "dataset", make_plan([0], ("clean", "pgd")))
    message = (
        r"needs an attack .* at least 12 networks, but the dataset has results of 1 architecture for the keys clean"
    )
    with pytest.raises(ResultsError, match=message):
        save_plot(Dataset(tmp_path / "dataset"), "rank-correlation-attacks", tmp_path / "figure.png")


# These figures contain generated ids, dates and bitmaps, which could differ between runs.
@pytest.mark.parametrize(
    "figure_names", [("clean-vs-robust",), pytest.param(("best-cells", "top-cells"), marks=pytest.mark.slow)]
)
def test_save_plot_writes_equal_files_for_equal_results(tied_results, tmp_path, figure_names):
    def save_and_read(name):
        return {
            (figure, file_format): save_plot(
                tied_results.reader, figure, tmp_path / f"{name}.{file_format}"
            ).read_bytes()
            for figure in figure_names
            for file_format in FIGURE_FORMATS
        }

    first_files = save_and_read("one")
    # Dates in fonts and PDF files have a resolution of one second.
    time.sleep(1.1)
    assert save_and_read("two") == first_files
    assert len(first_files) == len(figure_names) * len(FIGURE_FORMATS)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("plot", "atacks", "{data}", "--out", "x.png"), "'attacks'"),
        (("plot", "attacks", "{data}", "--out", "x.eps"), ".svg"),
        (("plot", "attacks", "{data}", "--out", "x.png", "--data", "digitz"), "'digits'"),
        (("plot", "attacks", "{data}", "--out", "x.png", "--width", "nan"), "3.25 in"),
    ],
)
def test_plot_rejects_bad_input(robust201, dataset, tmp_path, monkeypatch, arguments, hint):
    monkeypatch.chdir(tmp_path)
    error = robust201(*(argument.format(data=dataset.path) for argument in arguments)).error_line(exit_code=2)
    assert hint in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("width", "inches"),
    [
        ("column", 3.25),
        *(
            pytest.param(*width_and_inches, marks=pytest.mark.slow)
            for width_and_inches in (("page", 6.75), ("5.5", 5.5))
        ),
    ],
)
def test_figure_has_requested_width_and_fixed_text_sizes(dataset, tmp_path, width, inches):
    for name in ("attacks", "clean-vs-robust", "rank-correlation-attacks"):
        path = save_plot(dataset, name, tmp_path / f"{name}.svg", width=width)
        svg = path.read_text()
        width_points = float(re.search(r'width="([\d.]+)pt"', svg)[1])
        assert width_points == pytest.approx(72 * inches, abs=0.1)
        # Text is stored as text elements, not outlines, in font sizes of conference templates.
        sizes = {float(size) for size in re.findall(r'font-size="([\d.]+)px', svg)}
        assert sizes
        assert 5 <= min(sizes) <= max(sizes) <= 8
        assert re.search(r">[^<]*[Cc]lean", svg)
    pixels = save_plot(dataset, "attacks", tmp_path / "attacks.png", width=width).read_bytes()
    assert int.from_bytes(pixels[16:20], "big") == int(300 * inches)


def test_pdf_has_truetype_text_and_no_dates(dataset, tmp_path):
    pdf = save_plot(dataset, "attacks", tmp_path / "attacks.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert b"Date" not in pdf


def test_figure_across_datasets_is_drawn_once(robust201, two_datasets, tmp_path, monkeypatch):
    figures = {name: FIGURES[name] for name in ("attacks", "rank-correlation-datasets")}
    with monkeypatch.context() as patch:
        patch.setattr("robust201.figures.plots.FIGURES", figures)
        paths = save_plots(two_datasets, tmp_path / "all", file_format="svg")
    names = ["cifar10-attacks.svg", "cifar100-attacks.svg", "rank-correlation-datasets.svg"]
    assert [path.name for path in paths] == names
    svg = paths[-1].read_text()
    assert ">CIFAR-10: Clean<" in svg
    assert ">CIFAR-100: PGD, ε = 8/255<" in svg
    command = ("plot", "rank-correlation-datasets", two_datasets.path, "--out", tmp_path / "one.svg")
    assert robust201(*command).code == 0
    assert (tmp_path / "one.svg").read_text() == svg
    assert "Remove --data" in robust201(*command, "--data", "cifar10").error_line(exit_code=2)
