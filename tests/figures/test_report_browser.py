"""The report in a real browser: figures are drawn, the explorer answers, nothing is fetched and nothing fails."""

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import quote

import numpy as np
import pytest

from robust201.analysis.dataset_results import read_results
from robust201.figures.figure_data import pareto_front
from robust201.figures.report import write_report
from robust201.reader.dataset import RobustnessDataset
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.spaces.nasbench201.cells import edit_distance
from robust201.statistics.intervals import accuracy_intervals
from tests.support.fabricated import N_IMAGES, export, make_plan
from tests.support.headless import DRAWN, Browser, find_chromium
from tests.support.small_results import write_results

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no chromium, chromium-browser or google-chrome is installed"
)

ARCHITECTURES = (0, 1, 2, 3, 4, 9, 21, 309, 991, 1462, 3456, 9930)
# A folder's name holds no slash, so this is one that looks like it.
DATASETS = ("cifar10", "<script>alert(1)<⁄script>")
KEYS = ("clean", "fgsm", "pgd", "fog", "snow")


WINDOW, TALL = (1400, 900), (1400, 12000)
"""Sizes of the browser's window: a reader's, and one as high as a page, in which every visible figure is drawn."""

CELL_IS_SHOWN = "document.getElementById('cell-id').textContent"
"""True of a page whose explorer shows a cell, which waits for no figure."""

OPEN: list[Browser] = []
"""The browser of this module's tests, while they run."""


@pytest.fixture(scope="module", autouse=True)
def browser() -> Iterator[None]:
    with Browser() as started:
        OPEN.append(started)
        yield
        OPEN.clear()


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


def open_page(page, fragment="", *, until=DRAWN, size=TALL):
    """The document after its scripts ran, without a complaint in the console."""
    document, said = OPEN[0].dump(page, fragment, until=until, size=size)
    complaints = [line for line in said if re.search("ERROR|Uncaught|[Ee]rror|[Rr]efused|violates", line)]
    assert complaints == []
    return document


def open_driven(page, folder, script, fragment="", *, size=WINDOW):
    """Open a copy of the page that ends in a script of the test's, and give what this told by `tell(name, value)`.

    The script runs as the rest of the page does, in the same scope; `change` does what a reader does to a menu.
    """
    driver = """{
    const told = {};
    const tell = (name, value) => { told[name] = value; };
    const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    // Frames of a busy machine are late; what never comes ends as an error in 10 s of the page's time.
    const until = async (asked) => {
      for (let round = 0; round < 200; round += 1) { if (asked()) return; await pause(50); }
      throw new Error(`never came true: ${asked}`);
    };
    // The rows of a chart's table, and what its figure says, once it is drawn.
    const rows = async (place, name) => (await views.get(place)).view.data(name);
    const drawnTexts = async (place) => {
      await views.get(place);
      return [...place.querySelectorAll("svg text")].map((text) => text.textContent);
    };
    const accuracies = async (place) => (await rows(place, "points")).map((row) => row.accuracy);
    const change = (menu, place) => { menu.selectedIndex = place; menu.dispatchEvent(new Event("change")); };
    const figure = (name) => document.querySelector(`section:not([hidden]) figure[data-figure="${name}"]`);
    const chart = (name) => figure(name).querySelector(".chart");
    (async () => { SCRIPT })().catch((error) => { tell("error", String(error)); }).finally(() => {
      const place = document.createElement("pre");
      place.id = "told";
      place.textContent = JSON.stringify(told);
      document.body.append(place);
    });
    }""".replace("SCRIPT", script)
    copy = folder / "driven.html"
    before, _, after = page.read_text().rpartition("</body>")  # Vega-Embed's script has one of its own
    copy.write_text(f"{before}<script>{driver}</script></body>{after}")
    told = json.loads(text_of(open_page(copy, fragment, until='document.getElementById("told")', size=size), "told"))
    assert "error" not in told, told["error"]
    return told


def test_a_figure_shows_the_numbers_of_its_own_dataset(tmp_path):
    # More architectures in one than in the other, and other numbers.
    robust = {
        "cifar10": {"0": [0.5, 0.1], "2": [0.4, 0.2]},
        "cifar100": {"0": [0.3, 0.1], "2": [0.2, 0], "9": [0.1, 0]},
    }
    for name, rows in robust.items():
        write_results(tmp_path, {"clean": {i: 0.5 + row[0] for i, row in rows.items()}, "pgd": rows}, dataset=name)
    told = open_driven(
        write_report(RobustnessDataset(tmp_path), tmp_path / "report.html"),
        tmp_path,
        """
        // The first view is the mean's.
        document.querySelectorAll('figure[data-figure="clean-vs-robust"] select').forEach((menu) => change(menu, 1));
        const first = figure("clean-vs-robust"), shown = () => accuracies(first.querySelector(".chart"));
        drawFigure(first);
        tell("before", await shown());
        // It waits to be drawn again while the other dataset is chosen.
        request(first);
        change($("dataset"), 1);
        tell("waiting", [...waiting].filter((block) => block.closest("section").hidden).length);
        await until(() => figure("clean-vs-robust").dataset.drawn === "true");
        tell("after", await shown());
        drawFigure(first);
        tell("again", await shown());
        tell("other", await accuracies(chart("clean-vs-robust")));
        // Back and forth before a frame has passed: what is visible is drawn all the same.
        first.dataset.drawn = "false";
        change($("dataset"), 0);
        change($("dataset"), 1);
        change($("dataset"), 0);
        await until(() => first.dataset.drawn === "true");
        """,
        "#dataset=cifar10",
        size=TALL,
    )
    assert told["before"] == told["after"] == told["again"] == [0.5, 0.4]
    assert told["other"] == [0.3, 0.2, 0.1]
    assert told["waiting"] == 0


@pytest.mark.slow
def test_ties_are_told_and_no_change_has_no_sign(tmp_path):
    # 3456 and 9930 are neighbours; 3456 resists attacks best.
    values = {
        "clean": {"1462": 0.9, "3456": 0.9, "9930": 0.9, "0": 0.8},
        "pgd": {"1462": [0.5, 0.2], "3456": [0.5, 0.3], "9930": [0.5, 0.2], "0": [0.1, 0.1]},
    }
    page = write_report(RobustnessDataset(write_results(tmp_path, values)), tmp_path / "report.html")
    told = open_driven(
        page,
        tmp_path,
        """
        tell("cell", $("cell-id").textContent);
        tell("scores", [...document.querySelectorAll(".scores > div")].map((item) => item.textContent));
        tell("ranks", [...document.querySelectorAll("#cell-numbers td .rank")].map((place) => place.textContent));
        const changes = await rows($("neighbour-chart"), "changes");
        tell("changes", changes.map((row) => row.text).filter((text) => text !== "•"));
        tell("hover", changes.map((row) => row.hover));
        tell("cards", [...document.querySelectorAll(".card p")].map((card) => card.textContent));
        tell("terms", $("terms").textContent);
        """,
    )
    assert told["cell"] == "#3456"
    # 9,000 of 10,000 images: Wilson's interval.
    assert told["scores"][0] == "clean accuracy90.00%rank 1 of 4, shared by 395%: [89.4, 90.6]"
    assert told["scores"][1] == "mean adversarial accuracy40.00%rank 1 of 4"
    assert told["ranks"] == ["=1", "1"]
    assert set(told["changes"]) == {"0.00"}
    assert set(told["hover"]) == {"0.00", "the cell's own operation"}
    assert told["cards"][0] == "clean: 90.00% [89.4, 90.6]#3456, one of 3"
    assert told["cards"][1] == "mean adversarial: 40.00%#3456"
    assert "Tie" in told["terms"]
    assert "gives back the clean image where it fails" in " ".join(told["terms"].split())


def test_menus_clicks_and_printing(dataset, page, tmp_path):
    told = open_driven(
        page,
        tmp_path,
        """
        const points = figure("clean-vs-robust"), menu = points.querySelector("select");
        change(menu, menu.options.length - 1);
        tell("view", menu.value);
        tell("points", await accuracies(chart("clean-vs-robust")));
        tell("texts", await drawnTexts(chart("clean-vs-robust")));
        // A point that is clicked is the cell that is shown, and marked.
        const symbols = [...chart("clean-vs-robust").querySelectorAll("svg .mark-symbol path")];
        const point = symbols.find((path) => path.__data__.datum.architecture === 991);
        point.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        tell("marked", (await views.get(chart("clean-vs-robust"))).view.signal("chosen"));
        tell("clicked", $("cell-id").textContent);
        tell("address", location.hash);
        // The cell's link to the evaluated one.
        $("cell-input").value = "1832";
        $("cell-form").requestSubmit();
        tell("asked", $("cell-id").textContent);
        $("cell-isomorph").querySelector("a").click();
        tell("followed", $("cell-id").textContent);
        // Another operation on an edge is another cell.
        change($("edge-5"), ($("edge-5").selectedIndex + 1) % 5);
        tell("changed", [$("cell-id").textContent, $("cell-spec").textContent]);
        $("cell-input").value = "15625";
        $("cell-form").requestSubmit();
        tell("refused", [$("cell-id").textContent, $("cell-refusal").textContent]);
        change($("theme"), 2);
        tell("theme", document.documentElement.dataset.theme);
        const section = document.querySelector("section[data-dataset]:not([hidden])");
        const figures = [...section.querySelectorAll("figure[data-figure]")];
        figures.forEach((block) => { block.dataset.drawn = "false"; });
        dispatchEvent(new Event("beforeprint"));
        await until(() => figures.every((block) => block.dataset.drawn === "true"));
        tell("printed", figures.every((block) => block.dataset.drawn === "true"));
        change($("dataset"), 1);
        tell("sections", [...document.querySelectorAll("section[data-dataset]")].map((other) => other.hidden));
        """,
        "#dataset=cifar10",
    )
    assert told["view"] == "PGD, ε = 8/255"
    assert told["points"] == pytest.approx(
        [dataset.accuracy(i, "cifar10", "pgd", 8.0) for i in ARCHITECTURES], abs=1e-4
    )
    assert "accuracy, PGD, ε = 8/255" in told["texts"]
    assert told["marked"] == 991
    assert (told["clicked"], told["address"]) == ("#991", "#dataset=cifar10&cell=991")
    assert (told["asked"], told["followed"]) == ("#1832", "#309")
    changed = int(told["changed"][0][1:])
    before, after = nasbench201.specs()[309], nasbench201.specs()[changed]
    assert told["changed"][1] == after
    differing = [one != other for one, other in zip(*map(nasbench201.parse, (before, after)), strict=True)]
    assert differing == [False] * 5 + [True]
    assert told["refused"] == [told["changed"][0], "Expected an index from 0 to 15624, or a cell string."]
    assert told["theme"] == "dark"
    assert told["printed"]
    assert told["sections"] == [True, False]


def test_figures_are_drawn_and_the_explorer_shows_the_cell_of_the_address(dataset, page):
    document = open_page(page, "#dataset=cifar10&cell=21")
    first = document[document.index('<section data-dataset="cifar10"') : document.index('<section data-dataset="&lt;')]
    figures = first.split("<figure ")[1:]
    assert len(figures) >= 10
    for figure in figures:
        assert 'data-drawn="true"' in figure
        assert 'class="marks"' in figure
    # Those of the other dataset are drawn when it is chosen; one is of both.
    assert document.count('data-drawn="true"') == len(figures) + 1
    numbers = text_of(document, "cell-numbers")
    assert text_of(document, "cell-id") == "#21"
    assert text_of(document, "cell-spec") == nasbench201.specs()[21]
    assert "stands for its isomorphism class" in text_of(document, "cell-isomorph")
    for key in ("fgsm", "pgd", "fog", "snow"):
        for value in dataset.accuracy(21, "cifar10", key):
            assert f"{100 * value:.2f}" in numbers
    clean = [dataset.accuracy(index, "cifar10", "clean") for index in dataset.to_frame()["architecture"].unique()]
    own = dataset.accuracy(21, "cifar10", "clean")
    assert f"{100 * own:.2f}%" in numbers
    rank = 1 + sum(value > own for value in clean)
    shared = clean.count(own)
    assert f"rank {rank} of {len(clean)}{f', shared by {shared}' if shared > 1 else ''}" in numbers
    # Of the operations on every edge, one is shown.
    drawing = document[document.index('<div id="cell">') : document.index("cell-id")]
    shown = [tag for tag in re.findall(r"<g [^>]*data-edge[^>]*>", drawing) if "display: none" not in tag]
    operations = {(re.search(r'data-edge="(\d)"', tag)[1], re.search(r'operation="(\w+)"', tag)[1]) for tag in shown}
    assert operations == {(str(edge), name) for edge, name in enumerate(nasbench201.parse(nasbench201.specs()[21]))}


@pytest.mark.slow
def test_an_isomorphic_cell_shows_the_numbers_of_the_evaluated_one(dataset, page):
    spec = nasbench201.specs()[1832]
    document = open_page(page, f"#cell={spec}&dataset=cifar10", until=CELL_IS_SHOWN, size=WINDOW)
    assert text_of(document, "cell-id") == "#1832"
    assert "#309" in text_of(document, "cell-isomorph")
    assert f"{100 * dataset.accuracy(309, 'cifar10', 'pgd', 1.0):.2f}" in text_of(document, "cell-numbers")


@pytest.mark.slow
def test_a_dataset_named_like_a_script_is_a_name_and_a_missing_cell_is_missing(page):
    document = open_page(page, f"#dataset={quote(DATASETS[1])}&cell=13714", until=CELL_IS_SHOWN, size=WINDOW)
    assert f"<h2>{html.escape(DATASETS[1])}</h2>" in document
    assert re.search(r'<section data-dataset="cifar10"[^>]* hidden', document)
    assert text_of(document, "cell-id") == "#13714"
    assert f"not evaluated on {DATASETS[1]}" in text_of(document, "cell-numbers")


def test_names_that_look_like_markup_are_text_and_run_nothing(tmp_path):
    evil = "<img src=x onerror=ran()><script>ran()<⁄script>'\"{{title}}{title}<b>&amp;"
    folder = tmp_path / evil
    clean = {str(cell): 0.9 - cell / 100 for cell in nasbench201.evaluated_indices()[:12]}
    rows = {cell: [accuracy / 2, accuracy / 4] for cell, accuracy in clean.items()}
    write_results(folder, {"clean": clean, "pgd": rows, evil: rows}, dataset=evil)
    sweep = {"format": 1, "robust201": evil, "sweep": {"name": evil}, "measurements": ["accuracy"]}
    strengths = {evil: {"clean": [0], "pgd": [1, 8], evil: [1, 8]}}
    (folder / "sweep.json").write_text(json.dumps(sweep | {"strengths": strengths}))
    told = open_driven(
        write_report(RobustnessDataset(folder), tmp_path / "report.html"),
        tmp_path,
        """
        window.ran = () => tell("ran", true);
        document.querySelectorAll("section:not([hidden]) figure[data-figure]").forEach(drawFigure);
        $("cell-input").value = "13714";
        $("cell-form").requestSubmit();
        tell("lacking", $("cell-numbers").textContent);
        $("cell-input").value = "2";
        $("cell-form").requestSubmit();
        await pause(300);
        tell("name", document.querySelector("section[data-dataset] h2").textContent);
        tell("option", $("dataset").value);
        tell("title", document.title);
        tell("keys", [...document.querySelectorAll("#cell-numbers th[scope=row]")].map((key) => key.textContent));
        tell("labels", await drawnTexts(chart("rank-correlation")));
        // The template has two of these, none of them in a section of results.
        tell("elements", document.querySelectorAll("img, section[data-dataset] b, #cell-numbers b").length);
        """,
    )
    assert "ran" not in told
    assert told["name"] == told["option"] == evil
    assert told["title"] == f"Robustness of NAS-Bench-201: {evil}"
    assert told["lacking"] == f"Its class was not evaluated on {evil}."
    assert told["keys"] == ["PGD", evil]
    assert any(label.startswith(evil[:30]) for label in told["labels"])
    assert told["elements"] == 0


@pytest.mark.slow
def test_the_page_explains_its_terms_names_edges_alike_and_prints_in_light_colours(dataset, page, tmp_path):
    told = open_driven(
        page,
        tmp_path,
        """
        tell("menus", [...document.querySelectorAll("fieldset label")].map((label) => label.firstChild.textContent));
        const edges = ["in→1", "in→2", "1→2", "in→out", "1→out", "2→out"];
        const edgesOf = async (place) => (await drawnTexts(place)).filter((text) => edges.includes(text));
        tell("rows", await edgesOf($("neighbour-chart")));
        drawFigure(figure("top-cells"));
        tell("columns", await edgesOf(chart("top-cells")));
        tell("drawing", $("cell").querySelector("svg").getAttribute("aria-label"));
        tell("nodes", [...$("cell").querySelectorAll("svg text")].map((text) => text.textContent.trim()));
        tell("open", $("terms").open);
        document.querySelector('a[href="#terms"]').click();
        await pause(100);
        tell("opened", $("terms").open);
        tell("terms", $("terms").textContent);
        change($("theme"), 2);
        const colour = () => getComputedStyle(chart("top-cells").querySelector("svg text")).fill;
        const ink = () => getComputedStyle(document.body).color;
        const dark = colour();
        tell("dark", dark === ink());
        dispatchEvent(new Event("beforeprint"));
        tell("paper", [document.documentElement.dataset.theme, colour() === ink(), colour() === dark]);
        dispatchEvent(new Event("afterprint"));
        tell("after", document.documentElement.dataset.theme);
        // Whatever is wider than a narrow window is inside something that scrolls and that the keyboard reaches.
        const wide = [...document.querySelectorAll("table, .chart")];
        tell("scrolling", wide.every((part) => part.closest(".scroll[tabindex='0'][aria-label]")));
        tell("named", [...document.querySelectorAll(".chart")].every((part) => part.getAttribute("aria-label")));
        """,
        "#dataset=cifar10&cell=21",
    )
    edges = ["in→1", "in→2", "1→2", "in→out", "1→out", "2→out"]
    assert told["menus"] == told["rows"] == told["columns"] == edges
    assert all(edge in told["drawing"] for edge in edges)
    assert {"in", "1", "2", "out"} <= set(told["nodes"])
    assert (told["open"], told["opened"]) == (False, True)
    for term in ("Isomorphism class", "Key", "Strength", "Rank", "Kernel parameters", "Mean adversarial", "tau-b"):
        assert term in told["terms"]
    assert told["dark"]
    assert told["paper"] == ["light", True, False]
    assert told["after"] == "dark"
    assert told["scrolling"]
    assert told["named"]


def test_the_table_of_architectures_sorts_filters_and_downloads(dataset, page, tmp_path):
    told = open_driven(
        page,
        tmp_path,
        """
        const ids = () => [...document.querySelectorAll("#architecture-table tbody th")]
          .map((box) => Number(box.textContent.slice(1)));
        const press = (name) => [...document.querySelectorAll("#architecture-table thead button")]
          .find((button) => button.textContent.replace(/ [▼▲]/, "") === name).click();
        const type = (field, value) => {
          field.value = value;
          field.dispatchEvent(new Event("input", { bubbles: true }));
        };
        tell("opened", ids());
        press("clean");
        tell("down", ids());
        press("clean");
        tell("up", ids());
        tell("sorted", document.querySelector("th[aria-sort=ascending]").textContent);
        press("architecture");
        tell("by id", ids());
        type($("filter-text"), "99");
        tell("named", ids());
        type($("filter-text"), "");
        type(document.querySelector("[data-score=clean]"), "80");
        tell("accurate", ids());
        tell("place", $("page-place").textContent);
        $("filters").reset();
        await until(() => ids().length === 12);
        $("filter-front").click();
        tell("front", ids());
        tell("csv", csvText());
        tell("text", ["=1", "+a", "-a", "@a", "a;=1", "a-b", "-", "-0.5", -0.5, 3].map(withoutFormulas));
        $("filter-front").click();
        // Of more rows than a page has, the rest is on the next.
        listing.rows = [...Array(120).keys()].map((place) => place % 12);
        showTable();
        tell("first page", [ids().length, $("page-back").disabled, $("page-on").disabled]);
        $("page-on").click(); $("page-on").click();
        tell("last page", [ids().length, $("page-place").textContent, $("page-on").disabled]);
        press("architecture");
        document.querySelector("#architecture-table a[data-cell='991']").click();
        tell("chosen", $("cell-id").textContent);
        """,
        "#dataset=cifar10",
    )
    results = read_results(dataset)[0]
    scores = results.scores
    assert told["opened"] == [row.architecture for row in sort_by(scores, "adversarial")]
    assert told["down"] == [row.architecture for row in sort_by(scores, "clean")]
    assert [scores["clean"][i] for i in told["up"]] == sorted(scores["clean"])
    assert told["sorted"] == "clean ▲"
    assert told["by id"] == sorted(ARCHITECTURES)
    assert 991 in told["named"]
    assert told["accurate"] == [i for i in ARCHITECTURES if scores["clean"][i] >= 0.8]
    assert told["place"].endswith(f", chosen from {len(ARCHITECTURES)}")
    front = pareto_front(scores["clean"], scores["adversarial"])
    assert sorted(told["front"]) == [i for i, marked in zip(results.architectures, front, strict=True) if marked]
    header, *lines = told["csv"].splitlines()
    assert header.startswith("architecture,clean,rank_by_clean,mean_adversarial,")
    assert header.endswith(",kernel_parameters,Pareto_front,cell")
    assert len(lines) == len(told["front"])
    index, clean, rank, adversarial = lines[0].split(",")[:4]
    assert (float(clean), float(adversarial)) == pytest.approx(
        scores.loc[int(index), ["clean", "adversarial"]], abs=1e-6
    )
    assert int(rank) == 1 + (scores["clean"] > scores["clean"][int(index)]).sum()
    assert lines[0].endswith(nasbench201.specs()[int(index)])
    assert told["text"] == ["'=1", "'+a", "'-a", "'@a", "a;'=1", "a-b", "-", "-0.5", "-0.5", "3"]
    assert told["first page"] == [50, True, False]
    assert told["last page"] == [20, "101 to 120 of 120", True]
    assert told["chosen"] == "#991"


def sort_by(scores, score):
    """Rows of a frame of scores, the best first, equal ones by their id."""
    ordered = (
        scores.rename_axis("architecture").reset_index().sort_values([score, "architecture"], ascending=[False, True])
    )
    return list(ordered.itertuples())


@pytest.mark.slow
def test_two_cells_stand_side_by_side(dataset, page, tmp_path):
    told = open_driven(
        page,
        tmp_path,
        """
        tell("address", [$("cell-id").textContent, $("other-id").textContent, $("other").hidden]);
        tell("difference", $("other-difference").textContent);
        const texts = (selector) => [...document.querySelectorAll(selector)].map((place) => place.textContent);
        tell("intervals", texts("#cell-numbers .interval"));
        tell("every", [...Array(dataset.images + 1).keys()].map((k) => interval(k / dataset.images, dataset)));
        tell("changes", texts("#other-numbers td small:last-child"));
        $("other-end").click();
        tell("ended", [$("other").hidden, location.hash]);
        $("other-input").value = "0";
        $("other-form").requestSubmit();
        tell("asked", [$("other").hidden, $("other-id").textContent, location.hash]);
        $("other-input").value = "no cell";
        $("other-form").requestSubmit();
        tell("refused", [$("other-id").textContent, $("other-refusal").textContent]);
        """,
        "#dataset=cifar10&cell=21&other=309",
    )
    assert told["address"] == ["#21", "#309", False]
    n = edit_distance(nasbench201.specs()[21], nasbench201.specs()[309])
    assert told["difference"].startswith(f"Differs on {n} of 6 edges from #21: ")
    values = [value for key in KEYS[1:] for value in dataset.accuracy(21, "cifar10", key)]
    others = [value for key in KEYS[1:] for value in dataset.accuracy(309, "cifar10", key)]
    expected = [
        "[{:.1f}, {:.1f}]".format(*(100 * end for end in accuracy_intervals(value, N_IMAGES))) for value in values
    ]
    assert told["intervals"] == expected
    ends = zip(*accuracy_intervals(np.arange(N_IMAGES + 1) / N_IMAGES, N_IMAGES), strict=True)
    assert told["every"] == [f"[{100 * low:.1f}, {100 * high:.1f}]" for low, high in ends]
    changes = [100 * (other - value) for value, other in zip(values, others, strict=True)]
    assert [float(text) for text in told["changes"]] == pytest.approx(changes, abs=0.011)
    assert told["ended"] == [True, "#dataset=cifar10&cell=21"]
    assert told["asked"] == [False, "#0", "#dataset=cifar10&cell=21&other=0"]
    assert told["refused"] == ["#0", "Expected an index from 0 to 15624, or a cell string."]


@pytest.mark.slow
def test_points_beyond_the_axes_are_arrows_that_tell_their_numbers(tmp_path):
    clean = {str(index): 0.9 + index / 1000 for index in range(20)} | {"20": 0.1}
    pgd = {name: [value - 0.05, value - 0.1] for name, value in clean.items()}
    told = open_driven(
        write_report(
            RobustnessDataset(write_results(tmp_path, {"clean": clean, "pgd": pgd})), tmp_path / "report.html"
        ),
        tmp_path,
        """
        change(figure("clean-vs-robust").querySelector("select"), 1);
        const points = await rows(chart("clean-vs-robust"), "points");
        tell("x", points.map((row) => row.clean));
        tell("text", [points[20].clean_text, points[20].accuracy_text]);
        tell("notes", await drawnTexts(chart("clean-vs-robust")));
        change(figure("clean-vs-robust").querySelector("select"), 0);
        tell("front", await drawnTexts(chart("clean-vs-robust")));
        """,
    )
    assert told["x"] == pytest.approx([clean[str(index)] for index in range(21)])
    assert told["text"][0] == "10.00% [9.4, 10.6]"
    assert told["text"][1].startswith("5.00% [")
    assert "◀ 1" in told["notes"]
    assert "Pareto front" in told["front"]


@pytest.mark.slow
def test_nonsense_in_the_address_is_ignored(page):
    document = open_page(page, "#cell=<img src=x onerror=alert(1)>&dataset=nowhere", until=CELL_IS_SHOWN, size=WINDOW)
    assert re.fullmatch(r"#\d+", text_of(document, "cell-id"))


@pytest.mark.slow
def test_small_results_are_shown_too(tmp_path):
    export(tmp_path / "dataset", make_plan([0], ["fog"], ["digits"], measurements=("accuracy",)))
    page = write_report(RobustnessDataset(tmp_path / "dataset"), tmp_path / "report.html")
    document = open_page(page)
    assert text_of(document, "cell-id") == "#0"
    assert document.count('data-drawn="true"') == 3


def test_a_page_of_a_space_without_cells_has_figures_and_no_explorer(tmp_path):
    plan = replace(make_plan(["resnet18", "resnet34"], [*KEYS, "jacobian"], ["digits"]), space_name="zoo")
    export(tmp_path / "dataset", plan)
    page = write_report(RobustnessDataset(tmp_path / "dataset"), tmp_path / "report.html")
    told = open_driven(
        page,
        tmp_path,
        """
        await drawFigure(figure("measures"));
        await drawFigure(figure("clean-vs-robust"));
        tell("points", (await rows(chart("clean-vs-robust"), "points")).map((row) => row.architecture));
        change($("theme"), 2);
        tell("address", location.hash);
        """,
    )
    assert told["points"] == ["resnet18", "resnet34"]
    assert "cell" not in told["address"]
    assert text_of(page.read_text(), "explorer") == ""


@pytest.mark.parametrize(
    ("size", "position"), [((1400, 900), "sticky"), ((390, 844), "static"), ((844, 390), "static")], ids=str
)
@pytest.mark.slow
def test_the_header_stays_in_view_only_where_there_is_room(page, tmp_path, size, position):
    told = open_driven(
        page,
        tmp_path,
        """
        const header = document.querySelector("header");
        tell("position", getComputedStyle(header).position);
        scrollTo(0, 2000);
        await until(() => scrollY > 1000);
        tell("share", Math.max(0, header.getBoundingClientRect().bottom) / innerHeight);
        """,
        size=size,
    )
    assert told["position"] == position
    assert told["share"] < 0.1
