"""The report in a real browser: figures are drawn, the explorer works, and there are no requests or errors."""

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
from tests.support.headless import FIGURES_ARE_DRAWN, Browser, find_chromium
from tests.support.small_results import write_results

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no chromium, chromium-browser or google-chrome is installed"
)

ARCHITECTURES = (0, 1, 2, 3, 4, 9, 21, 309, 991, 1462, 3456, 9930)
# A folder's name cannot contain a slash, so this name uses a similar character.
DATASETS = ("cifar10", "<script>alert(1)<⁄script>")
KEYS = ("clean", "fgsm", "pgd", "fog", "snow")


NORMAL_WINDOW, TALL_WINDOW = (1400, 900), (1400, 12000)
"""Sizes of the browser's window: a normal one, and one as tall as the page, in which every visible figure is drawn."""

CELL_IS_SHOWN = "document.getElementById('cell-id').textContent"
"""Condition that the explorer shows a cell; it does not wait for figures."""

OPEN_BROWSERS: list[Browser] = []
"""The browser of this module's tests; empty before and after the tests."""


@pytest.fixture(scope="module", autouse=True)
def browser() -> Iterator[None]:
    with Browser() as instance:
        OPEN_BROWSERS.append(instance)
        yield
        OPEN_BROWSERS.clear()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> RobustnessDataset:
    folder = tmp_path_factory.mktemp("dataset")
    export(folder, make_plan(ARCHITECTURES, KEYS, DATASETS))
    return RobustnessDataset(folder)


@pytest.fixture(scope="module")
def page(dataset, tmp_path_factory):
    return write_report(dataset, tmp_path_factory.mktemp("report") / "report.html")


class ElementTextParser(HTMLParser):
    """Parser that collects the text inside the element with an id."""

    def __init__(self, identifier: str) -> None:
        super().__init__()
        self.identifier, self.depth, self.texts = identifier, 0, []

    def handle_starttag(self, tag, attrs):
        if self.depth or dict(attrs).get("id") == self.identifier:
            self.depth += tag not in ("br", "input", "img")

    def handle_endtag(self, tag):
        self.depth -= self.depth > 0 and tag not in ("br", "input", "img")

    def handle_data(self, text):
        if self.depth:
            self.texts.append(text)


def text_of(document: str, identifier: str) -> str:
    parser = ElementTextParser(identifier)
    parser.feed(document)
    return " ".join(parser.texts)


def open_page(page, fragment="", *, until=FIGURES_ARE_DRAWN, size=TALL_WINDOW):
    """Return the document after its scripts have run, and check that the console shows no errors."""
    document, console = OPEN_BROWSERS[0].dump(page, fragment, until=until, size=size)
    errors = [message for message in console if re.search("ERROR|Uncaught|[Ee]rror|[Rr]efused|violates", message)]
    assert errors == []
    return document


def open_page_with_script(page, folder, script, fragment="", *, size=NORMAL_WINDOW):
    """Open a copy of the page with an additional script, and return the values that the script reports.

    The script runs in the same scope as the page's scripts. It reports values with `report(name, value)`, and selects
    the entry of a menu with `change`.
    """
    driver_script = """{
    const reported = {};
    const report = (name, value) => { reported[name] = value; };
    const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    // A busy machine draws late. A condition that does not become true raises an error after 10 s.
    const until = async (condition) => {
      for (let round = 0; round < 200; round += 1) { if (condition()) return; await pause(50); }
      throw new Error(`never became true: ${condition}`);
    };
    // The rows of a chart's data, and the texts in its drawing, after it is drawn.
    const rows = async (element, name) => (await views.get(element)).view.data(name);
    const drawnTexts = async (element) => {
      await views.get(element);
      return [...element.querySelectorAll("svg text")].map((text) => text.textContent);
    };
    const accuracies = async (element) => (await rows(element, "points")).map((row) => row.accuracy);
    const change = (menu, index) => { menu.selectedIndex = index; menu.dispatchEvent(new Event("change")); };
    const figure = (name) => document.querySelector(`section:not([hidden]) figure[data-figure="${name}"]`);
    const chart = (name) => figure(name).querySelector(".chart");
    (async () => { SCRIPT })().catch((error) => { report("error", String(error)); }).finally(() => {
      const element = document.createElement("pre");
      element.id = "reported";
      element.textContent = JSON.stringify(reported);
      document.body.append(element);
    });
    }""".replace("SCRIPT", script)
    page_copy = folder / "driven.html"
    html_before, _, html_after = page.read_text().rpartition("</body>")  # Vega-Embed's script also contains this tag
    page_copy.write_text(f"{html_before}<script>{driver_script}</script></body>{html_after}")
    reported = json.loads(
        text_of(open_page(page_copy, fragment, until='document.getElementById("reported")', size=size), "reported")
    )
    assert "error" not in reported, reported["error"]
    return reported


def test_figure_shows_the_numbers_of_its_own_dataset(tmp_path):
    # The datasets have different numbers of architectures, and different accuracies.
    pgd_by_dataset = {
        "cifar10": {"0": [0.5, 0.1], "2": [0.4, 0.2]},
        "cifar100": {"0": [0.3, 0.1], "2": [0.2, 0], "9": [0.1, 0]},
    }
    for name, rows in pgd_by_dataset.items():
        write_results(tmp_path, {"clean": {i: 0.5 + row[0] for i, row in rows.items()}, "pgd": rows}, dataset=name)
    reported = open_page_with_script(
        write_report(RobustnessDataset(tmp_path), tmp_path / "report.html"),
        tmp_path,
        """
        // The first view shows the mean.
        document.querySelectorAll('figure[data-figure="clean-vs-robust"] select').forEach((menu) => change(menu, 1));
        const first = figure("clean-vs-robust"), shown = () => accuracies(first.querySelector(".chart"));
        drawFigure(first);
        report("before", await shown());
        // The figure waits to be redrawn when the other dataset is selected.
        requestDrawing(first);
        change($("dataset"), 1);
        report("waiting", [...waitingFigures].filter((block) => block.closest("section").hidden).length);
        await until(() => figure("clean-vs-robust").dataset.drawn === "true");
        report("after", await shown());
        drawFigure(first);
        report("again", await shown());
        report("other", await accuracies(chart("clean-vs-robust")));
        // Switch back and forth within one frame: the visible figure must still be drawn.
        first.dataset.drawn = "false";
        change($("dataset"), 0);
        change($("dataset"), 1);
        change($("dataset"), 0);
        await until(() => first.dataset.drawn === "true");
        """,
        "#dataset=cifar10",
        size=TALL_WINDOW,
    )
    assert reported["before"] == reported["after"] == reported["again"] == [0.5, 0.4]
    assert reported["other"] == [0.3, 0.2, 0.1]
    assert reported["waiting"] == 0


@pytest.mark.slow
def test_explorer_shows_ties_and_changes_of_zero_without_sign(tmp_path):
    # Cells 3456 and 9930 are neighbours; 3456 is the most robust.
    accuracies_by_key = {
        "clean": {"1462": 0.9, "3456": 0.9, "9930": 0.9, "0": 0.8},
        "pgd": {"1462": [0.5, 0.2], "3456": [0.5, 0.3], "9930": [0.5, 0.2], "0": [0.1, 0.1]},
    }
    page = write_report(RobustnessDataset(write_results(tmp_path, accuracies_by_key)), tmp_path / "report.html")
    reported = open_page_with_script(
        page,
        tmp_path,
        """
        report("cell", $("cell-id").textContent);
        report("scores", [...document.querySelectorAll(".scores > div")].map((item) => item.textContent));
        report("ranks", [...document.querySelectorAll("#cell-numbers td .rank")].map((element) => element.textContent));
        const changes = await rows($("neighbour-chart"), "changes");
        report("changes", changes.map((row) => row.text).filter((text) => text !== "•"));
        report("hover", changes.map((row) => row.hover));
        report("cards", [...document.querySelectorAll(".card p")].map((card) => card.textContent));
        report("terms", $("terms").textContent);
        """,
    )
    assert reported["cell"] == "#3456"
    # For 9,000 of 10,000 images, this is Wilson's interval.
    assert reported["scores"][0] == "clean accuracy90.00%rank 1 of 4, shared by 395%: [89.4, 90.6]"
    assert reported["scores"][1] == "mean adversarial accuracy40.00%rank 1 of 4"
    assert reported["ranks"] == ["=1", "1"]
    assert set(reported["changes"]) == {"0.00"}
    assert set(reported["hover"]) == {"0.00", "the cell's own operation"}
    assert reported["cards"][0] == "clean: 90.00% [89.4, 90.6]#3456, one of 3"
    assert reported["cards"][1] == "mean adversarial: 40.00%#3456"
    assert "Tie" in reported["terms"]
    assert "returns the clean image where it fails" in " ".join(reported["terms"].split())


def test_menus_clicks_and_printing_update_the_page(dataset, page, tmp_path):
    reported = open_page_with_script(
        page,
        tmp_path,
        """
        const points = figure("clean-vs-robust"), menu = points.querySelector("select");
        change(menu, menu.options.length - 1);
        report("view", menu.value);
        report("points", await accuracies(chart("clean-vs-robust")));
        report("texts", await drawnTexts(chart("clean-vs-robust")));
        // A click on a point shows and marks its cell.
        const symbols = [...chart("clean-vs-robust").querySelectorAll("svg .mark-symbol path")];
        const point = symbols.find((path) => path.__data__.datum.architecture === 991);
        point.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        report("marked", (await views.get(chart("clean-vs-robust"))).view.signal("chosen"));
        report("clicked", $("cell-id").textContent);
        report("address", location.hash);
        // Follow the cell's link to the evaluated representative.
        $("cell-input").value = "1832";
        $("cell-form").requestSubmit();
        report("entered", $("cell-id").textContent);
        $("cell-isomorph").querySelector("a").click();
        report("followed", $("cell-id").textContent);
        // Another operation on an edge gives another cell.
        change($("edge-5"), ($("edge-5").selectedIndex + 1) % 5);
        report("changed", [$("cell-id").textContent, $("cell-spec").textContent]);
        $("cell-input").value = "15625";
        $("cell-form").requestSubmit();
        report("rejected input", [$("cell-id").textContent, $("cell-error").textContent]);
        change($("theme"), 2);
        report("theme", document.documentElement.dataset.theme);
        const section = document.querySelector("section[data-dataset]:not([hidden])");
        const figures = [...section.querySelectorAll("figure[data-figure]")];
        figures.forEach((block) => { block.dataset.drawn = "false"; });
        dispatchEvent(new Event("beforeprint"));
        await until(() => figures.every((block) => block.dataset.drawn === "true"));
        report("printed", figures.every((block) => block.dataset.drawn === "true"));
        change($("dataset"), 1);
        report("sections", [...document.querySelectorAll("section[data-dataset]")].map((other) => other.hidden));
        """,
        "#dataset=cifar10",
    )
    assert reported["view"] == "PGD, ε = 8/255"
    assert reported["points"] == pytest.approx(
        [dataset.accuracy(i, "cifar10", "pgd", 8.0) for i in ARCHITECTURES], abs=1e-4
    )
    assert "accuracy, PGD, ε = 8/255" in reported["texts"]
    assert reported["marked"] == 991
    assert (reported["clicked"], reported["address"]) == ("#991", "#dataset=cifar10&cell=991")
    assert (reported["entered"], reported["followed"]) == ("#1832", "#309")
    changed = int(reported["changed"][0][1:])
    old_spec, new_spec = nasbench201.specs()[309], nasbench201.specs()[changed]
    assert reported["changed"][1] == new_spec
    is_different = [
        old_operation != new_operation
        for old_operation, new_operation in zip(*map(nasbench201.parse, (old_spec, new_spec)), strict=True)
    ]
    assert is_different == [False] * 5 + [True]
    assert reported["rejected input"] == [reported["changed"][0], "Enter an index from 0 to 15624 or a cell string."]
    assert reported["theme"] == "dark"
    assert reported["printed"]
    assert reported["sections"] == [True, False]


def test_address_selects_cell_and_figures_are_drawn(dataset, page):
    document = open_page(page, "#dataset=cifar10&cell=21")
    first_section = document[
        document.index('<section data-dataset="cifar10"') : document.index('<section data-dataset="&lt;')
    ]
    figures = first_section.split("<figure ")[1:]
    assert len(figures) >= 10
    for figure in figures:
        assert 'data-drawn="true"' in figure
        assert 'class="marks"' in figure
    # The figures of the other dataset are not drawn yet; one figure shows both datasets.
    assert document.count('data-drawn="true"') == len(figures) + 1
    cell_numbers = text_of(document, "cell-numbers")
    assert text_of(document, "cell-id") == "#21"
    assert text_of(document, "cell-spec") == nasbench201.specs()[21]
    assert "represents its isomorphism class" in text_of(document, "cell-isomorph")
    for key in ("fgsm", "pgd", "fog", "snow"):
        for accuracy_under_key in dataset.accuracy(21, "cifar10", key):
            assert f"{100 * accuracy_under_key:.2f}" in cell_numbers
    clean = [dataset.accuracy(index, "cifar10", "clean") for index in dataset.to_frame()["architecture"].unique()]
    accuracy = dataset.accuracy(21, "cifar10", "clean")
    assert f"{100 * accuracy:.2f}%" in cell_numbers
    rank = 1 + sum(clean_accuracy > accuracy for clean_accuracy in clean)
    n_shared = clean.count(accuracy)
    assert f"rank {rank} of {len(clean)}{f', shared by {n_shared}' if n_shared > 1 else ''}" in cell_numbers
    # Only one operation on every edge is visible.
    drawing = document[document.index('<div id="cell">') : document.index("cell-id")]
    visible = [tag for tag in re.findall(r"<g [^>]*data-edge[^>]*>", drawing) if "display: none" not in tag]
    operations = {(re.search(r'data-edge="(\d)"', tag)[1], re.search(r'operation="(\w+)"', tag)[1]) for tag in visible}
    assert operations == {(str(edge), name) for edge, name in enumerate(nasbench201.parse(nasbench201.specs()[21]))}


@pytest.mark.slow
def test_isomorphic_cell_shows_the_numbers_of_its_representative(dataset, page):
    spec = nasbench201.specs()[1832]
    document = open_page(page, f"#cell={spec}&dataset=cifar10", until=CELL_IS_SHOWN, size=NORMAL_WINDOW)
    assert text_of(document, "cell-id") == "#1832"
    assert "#309" in text_of(document, "cell-isomorph")
    assert f"{100 * dataset.accuracy(309, 'cifar10', 'pgd', 1.0):.2f}" in text_of(document, "cell-numbers")


@pytest.mark.slow
def test_page_escapes_dataset_name_and_states_that_cell_is_missing(page):
    document = open_page(page, f"#dataset={quote(DATASETS[1])}&cell=13714", until=CELL_IS_SHOWN, size=NORMAL_WINDOW)
    assert f"<h2>{html.escape(DATASETS[1])}</h2>" in document
    assert re.search(r'<section data-dataset="cifar10"[^>]* hidden', document)
    assert text_of(document, "cell-id") == "#13714"
    assert f"not evaluated on {DATASETS[1]}" in text_of(document, "cell-numbers")


def test_page_escapes_names_that_contain_markup(tmp_path):
    markup = "<img src=x onerror=ran()><script>ran()<⁄script>'\"{{title}}{title}<b>&amp;"
    folder = tmp_path / markup
    clean = {str(cell): 0.9 - cell / 100 for cell in nasbench201.evaluated_indices()[:12]}
    rows = {cell: [accuracy / 2, accuracy / 4] for cell, accuracy in clean.items()}
    write_results(folder, {"clean": clean, "pgd": rows, markup: rows}, dataset=markup)
    sweep = {"format": 1, "robust201": markup, "sweep": {"name": markup}, "measurements": ["accuracy"]}
    strengths = {markup: {"clean": [0], "pgd": [1, 8], markup: [1, 8]}}
    (folder / "sweep.json").write_text(json.dumps(sweep | {"strengths": strengths}))
    reported = open_page_with_script(
        write_report(RobustnessDataset(folder), tmp_path / "report.html"),
        tmp_path,
        """
        window.ran = () => report("ran", true);
        document.querySelectorAll("section:not([hidden]) figure[data-figure]").forEach(drawFigure);
        $("cell-input").value = "13714";
        $("cell-form").requestSubmit();
        report("lacking", $("cell-numbers").textContent);
        $("cell-input").value = "2";
        $("cell-form").requestSubmit();
        await pause(300);
        report("name", document.querySelector("section[data-dataset] h2").textContent);
        report("option", $("dataset").value);
        report("title", document.title);
        report("keys", [...document.querySelectorAll("#cell-numbers th[scope=row]")].map((key) => key.textContent));
        report("labels", await drawnTexts(chart("rank-correlation")));
        // The template has two of these elements, but none in a section of results.
        report("elements", document.querySelectorAll("img, section[data-dataset] b, #cell-numbers b").length);
        """,
    )
    assert "ran" not in reported
    assert reported["name"] == reported["option"] == markup
    assert reported["title"] == f"Robustness of NAS-Bench-201: {markup}"
    assert reported["lacking"] == f"Its class was not evaluated on {markup}."
    assert reported["keys"] == ["PGD", markup]
    assert any(label.startswith(markup[:30]) for label in reported["labels"])
    assert reported["elements"] == 0


@pytest.mark.slow
def test_page_has_terms_consistent_edge_labels_and_light_print_colours(dataset, page, tmp_path):
    reported = open_page_with_script(
        page,
        tmp_path,
        """
        report("menus", [...document.querySelectorAll("fieldset label")].map((label) => label.firstChild.textContent));
        const edges = ["in→1", "in→2", "1→2", "in→out", "1→out", "2→out"];
        const edgesOf = async (element) => (await drawnTexts(element)).filter((text) => edges.includes(text));
        report("rows", await edgesOf($("neighbour-chart")));
        drawFigure(figure("top-cells"));
        report("columns", await edgesOf(chart("top-cells")));
        report("drawing", $("cell").querySelector("svg").getAttribute("aria-label"));
        report("nodes", [...$("cell").querySelectorAll("svg text")].map((text) => text.textContent.trim()));
        report("open", $("terms").open);
        document.querySelector('a[href="#terms"]').click();
        await pause(100);
        report("opened", $("terms").open);
        report("terms", $("terms").textContent);
        change($("theme"), 2);
        const colour = () => getComputedStyle(chart("top-cells").querySelector("svg text")).fill;
        const ink = () => getComputedStyle(document.body).color;
        const dark = colour();
        report("dark", dark === ink());
        dispatchEvent(new Event("beforeprint"));
        report("paper", [document.documentElement.dataset.theme, colour() === ink(), colour() === dark]);
        dispatchEvent(new Event("afterprint"));
        report("after", document.documentElement.dataset.theme);
        // Everything wider than a narrow window is inside a scrollable element that the keyboard reaches.
        const wide = [...document.querySelectorAll("table, .chart")];
        report("scrolling", wide.every((part) => part.closest(".scroll[tabindex='0'][aria-label]")));
        report("named", [...document.querySelectorAll(".chart")].every((part) => part.getAttribute("aria-label")));
        """,
        "#dataset=cifar10&cell=21",
    )
    edges = ["in→1", "in→2", "1→2", "in→out", "1→out", "2→out"]
    assert reported["menus"] == reported["rows"] == reported["columns"] == edges
    assert all(edge in reported["drawing"] for edge in edges)
    assert {"in", "1", "2", "out"} <= set(reported["nodes"])
    assert (reported["open"], reported["opened"]) == (False, True)
    for term in ("Isomorphism class", "Key", "Strength", "Rank", "Kernel parameters", "Mean adversarial", "tau-b"):
        assert term in reported["terms"]
    assert reported["dark"]
    assert reported["paper"] == ["light", True, False]
    assert reported["after"] == "dark"
    assert reported["scrolling"]
    assert reported["named"]


def test_table_of_architectures_sorts_filters_and_downloads(dataset, page, tmp_path):
    reported = open_page_with_script(
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
        report("opened", ids());
        press("clean");
        report("down", ids());
        press("clean");
        report("up", ids());
        report("sorted", document.querySelector("th[aria-sort=ascending]").textContent);
        press("architecture");
        report("by id", ids());
        type($("filter-text"), "99");
        report("named", ids());
        type($("filter-text"), "");
        type(document.querySelector("[data-score=clean]"), "80");
        report("accurate", ids());
        report("range", $("page-range").textContent);
        $("filters").reset();
        await until(() => ids().length === 12);
        $("filter-front").click();
        report("front", ids());
        report("csv", csvText());
        report("text", ["=1", "+a", "-a", "@a", "a;=1", "a-b", "-", "-0.5", -0.5, 3].map(withoutFormulas));
        $("filter-front").click();
        // Further rows are on the next page.
        tableState.rows = [...Array(120).keys()].map((position) => position % 12);
        showTable();
        report("first page", [ids().length, $("page-previous").disabled, $("page-next").disabled]);
        $("page-next").click(); $("page-next").click();
        report("last page", [ids().length, $("page-range").textContent, $("page-next").disabled]);
        press("architecture");
        document.querySelector("#architecture-table a[data-cell='991']").click();
        report("chosen", $("cell-id").textContent);
        """,
        "#dataset=cifar10",
    )
    results = read_results(dataset)[0]
    scores = results.scores
    assert reported["opened"] == [cell.architecture for cell in sort_by(scores, "adversarial")]
    assert reported["down"] == [cell.architecture for cell in sort_by(scores, "clean")]
    assert [scores["clean"][i] for i in reported["up"]] == sorted(scores["clean"])
    assert reported["sorted"] == "clean ▲"
    assert reported["by id"] == sorted(ARCHITECTURES)
    assert 991 in reported["named"]
    assert reported["accurate"] == [i for i in ARCHITECTURES if scores["clean"][i] >= 0.8]
    assert reported["range"].endswith(f", selected from {len(ARCHITECTURES)}")
    front = pareto_front(scores["clean"], scores["adversarial"])
    assert sorted(reported["front"]) == [
        i for i, is_on_front in zip(results.architectures, front, strict=True) if is_on_front
    ]
    header, *csv_lines = reported["csv"].splitlines()
    assert header.startswith("architecture,clean,rank_by_clean,mean_adversarial,")
    assert header.endswith(",kernel_parameters,Pareto_front,cell")
    assert len(csv_lines) == len(reported["front"])
    index, clean, rank, adversarial = csv_lines[0].split(",")[:4]
    assert (float(clean), float(adversarial)) == pytest.approx(
        scores.loc[int(index), ["clean", "adversarial"]], abs=1e-6
    )
    assert int(rank) == 1 + (scores["clean"] > scores["clean"][int(index)]).sum()
    assert csv_lines[0].endswith(nasbench201.specs()[int(index)])
    assert reported["text"] == ["'=1", "'+a", "'-a", "'@a", "a;'=1", "a-b", "-", "-0.5", "-0.5", "3"]
    assert reported["first page"] == [50, True, False]
    assert reported["last page"] == [20, "101 to 120 of 120", True]
    assert reported["chosen"] == "#991"


def sort_by(scores, score):
    """Return the rows of a frame of scores, the best first; ties are ordered by id."""
    sorted_scores = (
        scores.rename_axis("architecture").reset_index().sort_values([score, "architecture"], ascending=[False, True])
    )
    return list(sorted_scores.itertuples())


@pytest.mark.slow
def test_two_cells_are_shown_side_by_side(dataset, page, tmp_path):
    reported = open_page_with_script(
        page,
        tmp_path,
        """
        report("address", [$("cell-id").textContent, $("other-id").textContent, $("other").hidden]);
        report("difference", $("other-difference").textContent);
        const texts = (selector) => [...document.querySelectorAll(selector)].map((element) => element.textContent);
        report("intervals", texts("#cell-numbers .interval"));
        report("all intervals", [...Array(dataset.images + 1).keys()]
          .map((k) => formatInterval(k / dataset.images, dataset)));
        report("changes", texts("#other-numbers td small:last-child"));
        $("other-end").click();
        report("ended", [$("other").hidden, location.hash]);
        $("other-input").value = "0";
        $("other-form").requestSubmit();
        report("entered", [$("other").hidden, $("other-id").textContent, location.hash]);
        $("other-input").value = "no cell";
        $("other-form").requestSubmit();
        report("rejected input", [$("other-id").textContent, $("other-error").textContent]);
        """,
        "#dataset=cifar10&cell=21&other=309",
    )
    assert reported["address"] == ["#21", "#309", False]
    n_edges = edit_distance(nasbench201.specs()[21], nasbench201.specs()[309])
    assert reported["difference"].startswith(f"Differs on {n_edges} of 6 edges from #21: ")
    values = [value for key in KEYS[1:] for value in dataset.accuracy(21, "cifar10", key)]
    other_values = [value for key in KEYS[1:] for value in dataset.accuracy(309, "cifar10", key)]
    expected = [
        "[{:.1f}, {:.1f}]".format(*(100 * bound for bound in accuracy_intervals(value, N_IMAGES))) for value in values
    ]
    assert reported["intervals"] == expected
    ends = zip(*accuracy_intervals(np.arange(N_IMAGES + 1) / N_IMAGES, N_IMAGES), strict=True)
    assert reported["all intervals"] == [f"[{100 * low:.1f}, {100 * high:.1f}]" for low, high in ends]
    changes = [100 * (other_value - value) for value, other_value in zip(values, other_values, strict=True)]
    assert [float(displayed_change) for displayed_change in reported["changes"]] == pytest.approx(changes, abs=0.011)
    assert reported["ended"] == [True, "#dataset=cifar10&cell=21"]
    assert reported["entered"] == [False, "#0", "#dataset=cifar10&cell=21&other=0"]
    assert reported["rejected input"] == ["#0", "Enter an index from 0 to 15624 or a cell string."]


@pytest.mark.slow
def test_points_beyond_the_axes_are_drawn_as_arrows_with_a_count(tmp_path):
    clean = {str(index): 0.9 + index / 1000 for index in range(20)} | {"20": 0.1}
    pgd = {name: [accuracy - 0.05, accuracy - 0.1] for name, accuracy in clean.items()}
    reported = open_page_with_script(
        write_report(
            RobustnessDataset(write_results(tmp_path, {"clean": clean, "pgd": pgd})), tmp_path / "report.html"
        ),
        tmp_path,
        """
        change(figure("clean-vs-robust").querySelector("select"), 1);
        const points = await rows(chart("clean-vs-robust"), "points");
        report("x", points.map((row) => row.clean));
        report("text", [points[20].clean_text, points[20].accuracy_text]);
        report("notes", await drawnTexts(chart("clean-vs-robust")));
        change(figure("clean-vs-robust").querySelector("select"), 0);
        report("front", await drawnTexts(chart("clean-vs-robust")));
        """,
    )
    assert reported["x"] == pytest.approx([clean[str(index)] for index in range(21)])
    assert reported["text"][0] == "10.00% [9.4, 10.6]"
    assert reported["text"][1].startswith("5.00% [")
    assert "◀ 1" in reported["notes"]
    assert "Pareto front" in reported["front"]


@pytest.mark.slow
def test_invalid_address_is_ignored(page):
    document = open_page(
        page, "#cell=<img src=x onerror=alert(1)>&dataset=nowhere", until=CELL_IS_SHOWN, size=NORMAL_WINDOW
    )
    assert re.fullmatch(r"#\d+", text_of(document, "cell-id"))


@pytest.mark.slow
def test_report_of_small_results_is_drawn(tmp_path):
    export(tmp_path / "dataset", make_plan([0], ["fog"], ["digits"], measurements=("accuracy",)))
    page = write_report(RobustnessDataset(tmp_path / "dataset"), tmp_path / "report.html")
    document = open_page(page)
    assert text_of(document, "cell-id") == "#0"
    assert document.count('data-drawn="true"') == 3


def test_report_without_cells_has_figures_and_no_explorer(tmp_path):
    plan = replace(make_plan(["resnet18", "resnet34"], [*KEYS, "jacobian"], ["digits"]), space_name="zoo")
    export(tmp_path / "dataset", plan)
    page = write_report(RobustnessDataset(tmp_path / "dataset"), tmp_path / "report.html")
    reported = open_page_with_script(
        page,
        tmp_path,
        """
        await drawFigure(figure("clean-vs-robust"));
        report("points", (await rows(chart("clean-vs-robust"), "points")).map((row) => row.architecture));
        change($("theme"), 2);
        report("address", location.hash);
        """,
    )
    assert reported["points"] == ["resnet18", "resnet34"]
    assert "cell" not in reported["address"]
    assert text_of(page.read_text(), "explorer") == ""


@pytest.mark.parametrize(
    ("size", "position"), [((1400, 900), "sticky"), ((390, 844), "static"), ((844, 390), "static")], ids=str
)
@pytest.mark.slow
def test_header_is_sticky_only_in_large_windows(page, tmp_path, size, position):
    reported = open_page_with_script(
        page,
        tmp_path,
        """
        const header = document.querySelector("header");
        report("position", getComputedStyle(header).position);
        scrollTo(0, 2000);
        await until(() => scrollY > 1000);
        report("covered fraction", Math.max(0, header.getBoundingClientRect().bottom) / innerHeight);
        """,
        size=size,
    )
    assert reported["position"] == position
    assert reported["covered fraction"] < 0.1
