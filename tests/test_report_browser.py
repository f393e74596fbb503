"""The report in a real browser: figures are drawn, the explorer answers, nothing is fetched and nothing fails."""

import html
import re
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from benchmarks.headless import dump_page, find_chromium
from pipeline.analysis.reader import RobustnessDataset
from pipeline.analysis.report import write_report
from pipeline.spaces import nasbench201
from tests.fabricated import export, make_plan

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no chromium, chromium-browser or google-chrome is installed"
)

ARCHITECTURES = (0, 1, 2, 3, 4, 9, 21, 309, 991)
# A folder's name holds no slash, so this is one that looks like it.
DATASETS = ("cifar10", "<script>alert(1)<⁄script>")
KEYS = ("clean", "fgsm", "pgd", "fog", "snow")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> RobustnessDataset:
    out = tmp_path_factory.mktemp("dataset")
    export(out, make_plan(ARCHITECTURES, KEYS, DATASETS))
    return RobustnessDataset(out)


@pytest.fixture(scope="module")
def page(dataset, tmp_path_factory):
    return write_report(dataset, tmp_path_factory.mktemp("report") / "report.html")


class Texts(HTMLParser):
    """The text inside the element of an id, and what its selects stand at."""

    def __init__(self, identifier: str) -> None:
        super().__init__()
        self.identifier, self.depth, self.texts = identifier, 0, []

    def handle_starttag(self, tag, attrs):
        if self.depth or dict(attrs).get("id") == self.identifier:
            self.depth += tag not in ("br", "input", "img")

    def handle_endtag(self, tag):
        self.depth -= self.depth > 0 and tag not in ("br", "input", "img")

    def handle_data(self, data):
        if self.depth:
            self.texts.append(data)


def text_of(document: str, identifier: str) -> str:
    texts = Texts(identifier)
    texts.feed(document)
    return " ".join(texts.texts)


def open_page(page, fragment=""):
    """The document after its scripts ran, without a complaint in the console."""
    document, log = dump_page(page, fragment)
    said = [line.split(", source: ")[0] for line in log.splitlines() if "CONSOLE" in line]
    complaints = [line for line in said if re.search("ERROR|Uncaught|[Ee]rror|[Rr]efused|violates", line)]
    assert complaints == []
    return document


def test_figures_are_drawn_and_the_explorer_shows_the_cell_of_the_address(dataset, page):
    document = open_page(page, "#dataset=cifar10&cell=21")
    first = document[document.index('<section data-dataset="cifar10"') : document.index('<section data-dataset="&lt;')]
    figures = first.split("<figure ")[1:]
    assert len(figures) >= 10
    for figure in figures:
        assert 'data-drawn="true"' in figure
        assert "js-plotly-plot" in figure
        assert 'class="main-svg"' in figure
    # The other dataset's are drawn when it is chosen.
    assert document.count('data-drawn="true"') == len(figures)
    numbers = text_of(document, "cell-numbers")
    assert text_of(document, "cell-id") == "#21"
    assert text_of(document, "cell-spec") == nasbench201.specs()[21]
    assert "stands for its isomorphism class" in text_of(document, "cell-isomorph")
    for key in ("fgsm", "pgd", "fog", "snow"):
        for value in dataset.accuracy(21, "cifar10", key):
            assert f"{100 * value:.2f}" in numbers
    clean = [dataset.accuracy(index, "cifar10", "clean") for index in dataset.to_frame()["architecture"].unique()]
    own = dataset.accuracy(21, "cifar10", "clean")
    assert f"{100 * own:.2f} %" in numbers
    rank = 1 + sum(value > own for value in clean)
    assert f"rank {rank} of {len(clean)}" in numbers
    # Of the operations on every edge, one is shown.
    drawing = document[document.index('<div id="cell">') : document.index("cell-id")]
    shown = [tag for tag in re.findall(r"<g [^>]*data-edge[^>]*>", drawing) if "display: none" not in tag]
    operations = {(re.search(r'data-edge="(\d)"', tag)[1], re.search(r'operation="(\w+)"', tag)[1]) for tag in shown}
    assert operations == {(str(edge), name) for edge, name in enumerate(nasbench201.parse(nasbench201.specs()[21]))}


def test_an_isomorphic_cell_shows_the_numbers_of_the_evaluated_one(dataset, page):
    spec = nasbench201.specs()[1832]
    document = open_page(page, f"#cell={spec}&dataset=cifar10")
    assert text_of(document, "cell-id") == "#1832"
    assert "#309" in text_of(document, "cell-isomorph")
    assert f"{100 * dataset.accuracy(309, 'cifar10', 'pgd', 1.0):.2f}" in text_of(document, "cell-numbers")


def test_a_dataset_named_like_a_script_is_a_name_and_a_missing_cell_is_missing(page):
    document = open_page(page, f"#dataset={quote(DATASETS[1])}&cell=13714")
    assert f"<h2>{html.escape(DATASETS[1])}</h2>" in document
    assert re.search(r'<section data-dataset="cifar10"[^>]* hidden', document)
    assert text_of(document, "cell-id") == "#13714"
    assert f"not evaluated on {DATASETS[1]}" in text_of(document, "cell-numbers")


def test_nonsense_in_the_address_is_ignored(page):
    document = open_page(page, "#cell=<img src=x onerror=alert(1)>&dataset=nowhere")
    assert re.fullmatch(r"#\d+", text_of(document, "cell-id"))


def test_small_results_are_shown_too(tmp_path):
    export(tmp_path / "dataset", make_plan([0], ["fog"], ["digits"], measurements=("accuracy",)))
    page = write_report(RobustnessDataset(tmp_path / "dataset"), tmp_path / "report.html")
    document = open_page(page)
    assert text_of(document, "cell-id") == "#0"
    assert document.count('data-drawn="true"') == 3
