"""The report page: its numbers are correct, names are escaped, and it is self-contained and reproducible."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from robust201.analysis.dataset_results import read_results
from robust201.analysis.ranking import rank_networks
from robust201.analysis.tables import format_percent
from robust201.core.errors import ResultsError
from robust201.dataset.reader import Dataset
from robust201.figures.page_data import MISSING, pack_numbers, pack_results, pack_space
from robust201.figures.report import write_report
from robust201.figures.table import FIGURES
from robust201.networks.nb201 import cells as nasbench201
from robust201.networks.nb201.cell_space import NasBench201
from robust201.statistics.intervals import accuracy_intervals
from robust201.tasks import PAPER_KEYS, TASKS
from tests.support.fabricated import N_IMAGES, FabricatedPlan, FabricatedStore, export, make_plan
from tests.support.small_results import write_results, write_sweep_json

ARCHITECTURES = (0, 1, 2, 3, 4, 9, 21, 309, 991, 1462, 3456, 9930)
KEYS = [key for key in TASKS if key in (*PAPER_KEYS, "pgd_l2", "jacobian")]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("dataset")
    plans = [make_plan(ARCHITECTURES, KEYS, ("cifar10",)), make_plan(ARCHITECTURES, ("clean", "pgd"), ("digits",))]
    export(folder, FabricatedPlan(tuple(unit for plan in plans for unit in plan.units), ("accuracy",)))
    return Dataset(folder)


@pytest.fixture(scope="module")
def page(dataset, tmp_path_factory) -> str:
    return write_report(dataset, tmp_path_factory.mktemp("report") / "report.html").read_text()


def find_embedded_json(page: str) -> list:
    """Return the values of all JSON elements in the page."""
    json_texts = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, flags=re.DOTALL)
    return [json.loads(text) for text in json_texts]


@given(arrays(np.int64, (3, 4), elements=st.integers(0, 10_000)))
@example(np.array([[125, 375, 15, 0]]))  # halfway between two decimals, where JavaScript rounds differently
def test_packed_accuracies_have_the_digits_of_tables(n_correct):
    codes = unpack(pack_numbers(n_correct / 10_000)).reshape(n_correct.T.shape).T
    texts = [f"{code // 10}.{code % 10}" for code in codes.ravel()]
    assert texts == [format_percent(fraction) for fraction in (n_correct / 10_000).ravel()]


def pack(dataset, name="cifar10"):
    results = next(results for results in read_results(dataset) if results.name == name)
    return results, pack_results(results, rank_networks(results))


def unpack(text) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<u2")


def test_page_has_the_accuracies_and_intervals_of_every_network(dataset):
    results, packed = pack(dataset)
    networks = [network["id"] for network in packed["networks"]]
    assert sorted(networks) == list(ARCHITECTURES)
    assert len(packed["evaluations"]) == len(results.columns)
    codes = [unpack(packed[name]).reshape(-1, len(networks)) for name in ("accuracies", "low", "high")]
    for (key, strength), *rows in zip(results.columns, *codes, strict=True):
        accuracies = np.array([dataset.accuracy(network, "cifar10", key, strength) for network in networks])
        expected = [accuracies, *accuracy_intervals(accuracies, N_IMAGES)]
        np.testing.assert_allclose(np.array(rows) / 1000, expected, atol=5.1e-4)
    assert unpack(pack_space(NasBench201())["isomorphs"]).tolist() == list(nasbench201.isomorphs())
    for network in packed["networks"]:
        assert network["operations"] == nasbench201.parse(network["spec"])
        assert network["spec"] == nasbench201.specs()[network["id"]]


def test_intervals_use_the_number_of_images_of_each_network(tmp_path):
    for folder, cells, n_images in (("few", (0, 2), 40), ("many", (4, 9), 80)):
        write_results(tmp_path / folder, {"clean": {str(cell): 0.5 + cell / 40 for cell in cells}})
        write_sweep_json(tmp_path / folder, {"cifar10": {"clean": [0]}}, {"images": {"count": n_images, "seed": 0}})
    _, packed = pack(Dataset(tmp_path / "few", tmp_path / "many"))
    networks = [network["id"] for network in packed["networks"]]
    accuracies, low, high = (
        dict(zip(networks, unpack(packed[name]) / 1000, strict=False)) for name in ("accuracies", "low", "high")
    )
    for network, n_images in ((0, 40), (2, 40), (4, 80), (9, 80)):
        ends = [*map(float, accuracy_intervals(accuracies[network], n_images))]
        assert [low[network], high[network]] == pytest.approx(ends, abs=1e-3)


def test_ranks_and_table_follow_the_strongest_attack(tmp_path):
    clean, fgsm = {"0": 0.9, "2": 0.9, "4": 0.95}, {"0": [0.7, 0.1], "2": [0.6, 0.1], "4": [0.5, 0.1]}
    pgd = {"0": [0.1, None], "2": [0.3, 0.2], "4": [0.2, 0.2]}
    write_results(tmp_path, {"clean": clean, "fgsm": fgsm, "pgd": pgd})
    _, packed = pack(Dataset(tmp_path))
    assert [network["id"] for network in packed["networks"]] == [2, 4, 0]
    assert packed["networks"][1]["rank_text"].startswith("Rank 2 of 3 by accuracy under PGD, ε = 1/255")
    assert (unpack(packed["accuracies"]) == MISSING).sum() == 1


def test_table_has_intervals_and_marks_ties(dataset):
    results, packed = pack(dataset)
    column = packed["columns"][0]
    ranking = rank_networks(results, ["clean"]).table.set_index("network")
    for index, network in enumerate(packed["networks"]):
        row = ranking.loc[network["id"]]
        low, high = accuracy_intervals(row["accuracy"], N_IMAGES)
        assert column["accuracies"][index] == pytest.approx(100 * row["accuracy"], abs=0.01)
        assert column["texts"][index] == format_percent(row["accuracy"], float(low), float(high))
        assert column["tied"][index] == row["tied"]
    assert 1 <= ranking["tied"].sum() < len(ARCHITECTURES)


@pytest.mark.usefixtures("without_figures")
def test_report_shows_partial_results(tmp_path):
    # The attack was evaluated on one architecture and the clean images on another.
    store = FabricatedStore(missing={(0, "clean", 0.0), (2, "pgd", 1.0)})
    export(tmp_path / "dataset", make_plan([0, 2], ["clean", "pgd"]), store, partial=True)
    dataset = Dataset(tmp_path / "dataset")
    assert (
        "This export is incomplete: 2 evaluations are missing"
        in write_report(dataset, tmp_path / "report.html").read_text()
    )


def test_report_rejects_folder_without_accuracies(tmp_path):
    (tmp_path / "meta.json").write_text(nasbench201.meta_text({}))
    with pytest.raises(ResultsError, match="it has no accuracies"):
        write_report(Dataset(tmp_path), tmp_path / "report.html")


class PageParser(HTMLParser):
    """Parser that collects a page's tags, ids and URLs."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.urls: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "srcset", "action"):
                self.urls.append(value)


def test_page_is_self_contained(page):
    parser = PageParser()
    parser.feed(page)
    assert not {"link", "iframe", "img", "base"} & set(parser.tags)
    assert "default-src 'none'" in page
    assert all(url.startswith("#") for url in parser.urls)
    assert len(set(parser.ids)) == len(parser.ids)
    assert {url[1:] for url in parser.urls} <= set(parser.ids)


def test_page_shows_figures_of_accuracies_in_order(page):
    figures_of_accuracies = [name for name in FIGURES if name != "confusion" and "confidence" not in name]
    for name in ("cifar10", "digits"):
        assert f'<section data-dataset="{name}">' in page
        figures = re.findall(rf'<figure id="{name}-([^"]*)"', page)
        assert figures == [figure for figure in figures_of_accuracies if figure in figures]
        assert {"attacks", "clean-vs-robust", "best-cells"} <= set(figures)
        assert ("rank-correlation-corruptions" in figures) == (name == "cifar10")
    assert "12 of 6,466 non-isomorphic architectures of NAS-Bench-201" in page
    assert "40 test images (seed 3); 21 keys on CIFAR-10, digits" in page


@pytest.mark.usefixtures("without_figures")
def test_summaries_state_the_number_of_images_of_their_dataset(tmp_path):
    for name, n_images in (("cifar10", 80), ("digits", 40)):
        write_results(tmp_path / name, {"clean": {"0": 0.5, "2": 0.9}}, dataset=name)
        write_sweep_json(tmp_path / name, {name: {"clean": [0]}}, {"images": {"count": n_images, "seed": 0}})
    page = write_report(Dataset(tmp_path / "cifar10", tmp_path / "digits"), tmp_path / "report.html").read_text()
    answer = page[page.index('<section id="answer">') :].partition("</section>")[0]
    assert re.findall("on these .* images", answer.replace("(", "\n")) == ["on these 80 images", "on these 40 images"]


@pytest.mark.parametrize("name", ["<!--<script>{script}", "'\"> onload=x"])
def test_report_escapes_names_and_is_equal_for_equal_results(tmp_path, name):
    export(tmp_path / "dataset", make_plan([0, 2], ["clean", "pgd"], [name]))
    pages = [
        write_report(Dataset(tmp_path / "dataset"), tmp_path / f"{copy}.html").read_text() for copy in ("one", "two")
    ]
    page = pages[0]
    assert pages[1] == page
    parser = PageParser()
    parser.feed(page)
    assert parser.tags.count("b") == 0
    assert page.count("</script>") == page.count("<script") == parser.tags.count("script")
    assert find_embedded_json(page)[-1]["datasets"][0]["name"] == name
