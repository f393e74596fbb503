"""Figures and report: right numbers, self-contained, equal bytes for equal results, at home on light and dark pages."""

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pytest
from scipy.stats import kendalltau

from pipeline.analysis import figures
from pipeline.analysis.reader import RobustnessDataset
from pipeline.analysis.report import save_plots, summary_table, write_report
from pipeline.perturbations import CORRUPTIONS, PERTURBATIONS
from tests.fabricated import FabricatedStore, export, make_plan

ARCHITECTURES = (0, 1, 2, 3, 4, 9, 21, 309)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> RobustnessDataset:
    out = tmp_path_factory.mktemp("dataset")
    plan = make_plan(
        ARCHITECTURES, PERTURBATIONS, ("cifar10", "digits"), severities=(1, 3, 5), measurements=("accuracy",)
    )
    export(out, plan)
    return RobustnessDataset(out)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> RobustnessDataset:
    """Few keys, because drawing is slow."""
    out = tmp_path_factory.mktemp("small")
    export(out, make_plan(ARCHITECTURES, ("clean", "pgd", "fog"), ("cifar10", "digits"), measurements=("accuracy",)))
    return RobustnessDataset(out)


@pytest.fixture(scope="module")
def page(small, tmp_path_factory) -> str:
    return write_report(small, tmp_path_factory.mktemp("report") / "report.html").read_text()


def accuracies(dataset, key, strength=None, data="cifar10") -> list[float]:
    return [dataset.accuracy(index, data, key, strength) for index in ARCHITECTURES]


def test_summary_counts_every_evaluation_once(dataset):
    rows = summary_table(dataset)
    assert len(rows) == 2 * (1 + 4 * 3 + 15 * 3)
    assert {row.n_architectures for row in rows} == {len(ARCHITECTURES)}
    assert [row.key for row in rows if row.dataset == "digits" and row.strength in (0, 1)] == list(PERTURBATIONS)
    for row in rows:
        values = accuracies(dataset, row.key, row.strength, row.dataset)
        assert (row.minimum, row.median, row.maximum) == (min(values), np.median(values), max(values))
    assert {row.key: row.strength_label for row in rows if row.strength in (0, 0.5, 5)} == {
        "clean": "",
        **dict.fromkeys(("aa_apgd-ce", "aa_square", "fgsm", "pgd"), "ε = 0.5/255"),
        **dict.fromkeys(CORRUPTIONS, "severity 5"),
    }


def test_boxes_show_the_accuracies_of_each_epsilon(dataset):
    figure = figures.draw_attacks(dataset.to_frame("cifar10"), "cifar10")
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}
    assert list(panels) == ["aa_apgd-ce", "aa_square", "fgsm", "pgd"]
    for key, axes in panels.items():
        assert [label.get_text() for label in axes.get_xticklabels()] == ["clean", "0.5", "1", "8"]
        medians = [line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1]
        for strength in (0, 0.5, 1, 8):
            assert np.median(accuracies(dataset, key, strength)) in medians
        assert 0.1 in medians  # chance, of ten classes
    assert "1/255" in figure.get_supxlabel()


def test_corruptions_have_a_panel_each_with_their_groups_colour(dataset):
    figure = figures.draw_corruptions(dataset.to_frame("digits"), "digits")
    panels = {axes.get_title().replace(" ", "_"): axes for axes in figure.axes if axes.get_visible()}
    assert sorted(panels) == sorted(CORRUPTIONS)
    assert {label.get_text() for label in panels["fog"].get_xticklabels()} == {"clean", "1", "3", "5"}
    assert panels["fog"].patches[-1].get_facecolor() == panels["snow"].patches[-1].get_facecolor()
    assert panels["fog"].patches[-1].get_facecolor() != panels["glass_blur"].patches[-1].get_facecolor()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(figures.CORRUPTION_GROUPS)
    assert sorted(key for _, keys in figures.CORRUPTION_GROUPS.values() for key in keys) == sorted(CORRUPTIONS)


def test_points_are_clean_and_robust_accuracies(dataset):
    figure = figures.draw_clean_against_robust(dataset.to_frame("cifar10"), "cifar10")
    axes = figure.axes[3]
    assert axes.get_title() == "pgd"
    for points, epsilon in zip(axes.collections, (0.5, 1.0, 8.0), strict=False):
        expected = np.column_stack([accuracies(dataset, "clean"), accuracies(dataset, "pgd", epsilon)])
        np.testing.assert_array_equal(points.get_offsets(), expected)


def test_rank_correlation_is_kendalls_tau(dataset):
    tau = figures.rank_correlations(dataset.to_frame("cifar10"))
    assert tau.shape == (20, 20)
    np.testing.assert_array_equal(tau, tau.T)
    expected = kendalltau(accuracies(dataset, "pgd", 1.0), accuracies(dataset, "fog", 3.0)).statistic
    assert tau.loc["pgd, ε = 1/255", "fog, severity 3"] == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(np.diag(tau), 1)


def test_rank_correlation_of_equal_accuracies_is_left_open(dataset):
    frame = dataset.to_frame("cifar10", ["clean", "pgd"])
    frame.loc[frame["key"] == "pgd", "value"] = 0.1
    tau = figures.rank_correlations(frame)
    assert np.isnan(tau.to_numpy()).tolist() == [[False, True], [True, True]]
    figure = figures.draw_rank_correlation(frame, "cifar10")
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["1.00", "–", "–", "–"]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["clean"], []),
        (["pgd"], ["attacks"]),
        (["fog"], ["corruptions"]),
        (["clean", "fog"], ["corruptions", "rank-correlation"]),
        (["clean", "pgd"], ["attacks", "clean-vs-robust", "rank-correlation"]),
    ],
)
def test_figures_are_those_the_results_are_enough_for(tmp_path, keys, names):
    export(tmp_path / "dataset", make_plan([0, 2], keys, ["digits"]))
    paths = save_plots(RobustnessDataset(tmp_path / "dataset"), tmp_path / "plots")
    assert [path.name for path in paths] == [f"digits-{name}.png" for name in names]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    write_report(RobustnessDataset(tmp_path / "dataset"), tmp_path / "report.html")


def test_partial_results_are_drawn_as_far_as_they_go(tmp_path):
    # The attack was evaluated on one architecture and the clean images on another.
    store = FabricatedStore(lacking={(0, "clean", 0.0), (2, "pgd", 1.0)})
    export(tmp_path / "dataset", make_plan([0, 2], ["clean", "pgd"]), store, partial=True)
    dataset = RobustnessDataset(tmp_path / "dataset")
    assert [row.n_architectures for row in summary_table(dataset)] == [1, 1, 1, 1]
    assert "A partial export: 2 evaluations are missing" in write_report(dataset, tmp_path / "report.html").read_text()


def test_one_architecture_and_an_unknown_dataset_are_enough(tmp_path):
    export(tmp_path / "dataset", make_plan([0], ("clean", "pgd", "fog"), ["tiny-images"]))
    names = [path.name for path in save_plots(RobustnessDataset(tmp_path / "dataset"), tmp_path)]
    assert names == [f"tiny-images-{name}.png" for name in ("attacks", "corruptions", "clean-vs-robust")]


class Links(HTMLParser):
    """Collects tags and the addresses they name."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "srcset", "action"):
                self.addresses.append(value)


def test_page_needs_nothing_but_itself(page):
    links = Links()
    links.feed(page)
    assert links.tags.count("svg") == 8
    assert not {"script", "link", "iframe"} & set(links.tags)
    assert all(address.startswith(("#", "data:")) for address in links.addresses)
    assert not re.search(r"url\((?!#)|@import", page)
    # Ids are unique, and what an address names is there.
    assert len(set(links.ids)) == len(links.ids)
    assert {address[1:] for address in links.addresses if address.startswith("#")} <= set(links.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(links.ids)


def test_page_shows_every_row_and_figure(small, page):
    for row in summary_table(small):
        cells = "".join(f"<td>{value:.1%}</td>" for value in (row.minimum, row.median, row.maximum))
        assert f"<th>{row.strength_label}</th>{cells}<td>{row.n_architectures}</td>" in page
    for name in ("cifar10", "digits"):
        assert f'<h2 id="{name}">' in page
        assert f'aria-label="Accuracy under attack, {name}"' in page
    assert "8 of 6,466 non-isomorphic architectures; 3 keys; 2 datasets; 40 test images (seed 3)" in page


def test_page_follows_the_readers_colours(page):
    assert "prefers-color-scheme: dark" in page
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    for drawing in drawings:
        ET.fromstring(drawing)
        assert "currentColor" in drawing
        assert figures.INK not in drawing
        assert not re.search("#000000(?!; stroke-opacity: 0)", drawing)
    assert sum("var(--grid)" in drawing for drawing in drawings) == 6  # all but the heat maps


def test_equal_results_give_equal_pages_and_pictures(small, page, tmp_path):
    assert write_report(small, tmp_path / "report.html").read_text() == page
    one, two = (save_plots(small, tmp_path / name) for name in ("one", "two"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_drawing_leaves_matplotlibs_settings_and_pyplot_alone(small, tmp_path):
    import sys

    before = dict(mpl.rcParams)
    write_report(small, tmp_path / "report.html")
    assert dict(mpl.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_names_are_escaped(tmp_path):
    export(tmp_path / "dataset", make_plan([0, 2], ["clean", "pgd"], ["<b>&"]))
    text = write_report(RobustnessDataset(tmp_path / "dataset"), tmp_path / "report.html").read_text()
    assert "<b>&</" not in text
    assert "&lt;b&gt;&amp;" in text


def test_many_points_are_drawn_as_one_picture(tmp_path):
    export(tmp_path / "dataset", make_plan(range(500), ("clean", "pgd"), measurements=("accuracy",)))
    text = write_report(RobustnessDataset(tmp_path / "dataset"), tmp_path / "report.html").read_text()
    scatter = next(svg for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL) if "Clean against" in svg)
    assert scatter.count("data:image/png;base64") == 1
    assert scatter.count("<use") < 500
