"""The report in a real browser: figures, table and network section work without errors."""

import html
import json
import re

import pytest

from robust201.dataset.reader import Dataset
from robust201.figures.report import write_report
from robust201.networks.nb201 import cells as nasbench201
from robust201.networks.nb201.cell_space import NasBench201
from robust201.statistics.intervals import accuracy_intervals
from tests.support.fabricated import N_IMAGES, export, make_plan
from tests.support.headless import dump_page, find_chromium
from tests.support.small_results import write_results

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no chromium, chromium-browser or google-chrome is installed"
)

ARCHITECTURES = (0, 1, 2, 3, 4, 9, 21, 309, 991, 1462, 3456, 9930)
# A folder's name cannot contain a slash, so this name uses a similar character.
DATASETS = ("cifar10", "<script>alert(1)<⁄script>")
KEYS = ("clean", "fgsm", "pgd", "fog", "snow")


NORMAL_WINDOW = (1400, 900)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("dataset")
    export(folder, make_plan(ARCHITECTURES, KEYS, DATASETS))
    return Dataset(folder)


@pytest.fixture(scope="module")
def page(dataset, tmp_path_factory):
    return write_report(dataset, tmp_path_factory.mktemp("report") / "report.html")


def open_page(page, fragment, size):
    """Return the document after its scripts have run, and check that the console shows no errors."""
    document, console = dump_page(f"{page.as_uri()}{fragment}", size)
    errors = [message for message in console if re.search("ERROR|Uncaught|[Ee]rror|[Rr]efused|violates", message)]
    assert errors == []
    return document


def open_page_with_script(page, folder, script, fragment="", *, size=NORMAL_WINDOW):
    """Open a copy of the page with an additional script, and return the values that the script reports.

    The script runs in the same scope as the page's scripts. It reports values with `report(name, value)`.
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
    const figure = (name) => document.querySelector(`section:not([hidden]) figure[data-figure="${name}"]`);
    const svg = (name) => figure(name).querySelector("svg.marks");
    const click = (element) => element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    const texts = (selector) => [...document.querySelectorAll(selector)].map((part) => part.textContent);
    (async () => { SCRIPT })().catch((error) => { report("error", String(error.stack)); }).finally(() => {
      const element = document.createElement("pre");
      element.id = "reported";
      element.textContent = JSON.stringify(reported);
      document.body.append(element);
    });
    }""".replace("SCRIPT", script)
    page_copy = folder / "driven.html"
    html_before, _, html_after = page.read_text().rpartition("</body>")  # Vega-Embed's script also contains this tag
    page_copy.write_text(f"{html_before}<script>{driver_script}</script></body>{html_after}")
    (text,) = re.findall('<pre id="reported">(.*?)</pre>', open_page(page_copy, fragment, size), re.DOTALL)
    reported = json.loads(html.unescape(text))
    assert "error" not in reported, reported["error"]
    return reported


@pytest.mark.parametrize("width", [500, 1280])  # Chromium's windows are at least 500 pixels wide
def test_figures_are_drawn_and_fit_the_window(page, tmp_path, width):
    reported = open_page_with_script(
        page,
        tmp_path,
        """
        await until(() => [...document.querySelectorAll("section:not([hidden]) figure[data-figure]")]
          .every((block) => block.dataset.drawn === "true"));
        report("page_width", document.documentElement.scrollWidth);
        const blocks = [...document.querySelectorAll("section:not([hidden]) figure[data-figure]")];
        report("too_wide", blocks.filter((block) => block.querySelector("svg.marks").getBoundingClientRect().width
          > block.querySelector(".chart").clientWidth + 1).map((block) => block.dataset.figure));
        const overflows = (part) => part.scrollWidth > part.clientWidth || part.scrollHeight > part.clientHeight;
        report("n_overflowing", [...document.querySelectorAll(".scroll")].filter(overflows).length);
        report("columns", Number(figure("corruptions").dataset.columns));
        const isScrolled = (part) => part.closest(".scroll[tabindex='0'][aria-label]");
        report("tables_can_scroll", [...document.querySelectorAll("table")].every(isScrolled));
        report("charts_have_labels", [...document.querySelectorAll(".chart")].every((chart) => chart.ariaLabel));
        """,
        size=(width, 30_000),
    )
    assert reported["page_width"] <= width
    assert reported["too_wide"] == []
    assert reported["columns"] == (1 if width == 500 else 3)
    assert reported["tables_can_scroll"]
    assert width == 500 or reported["n_overflowing"] == 0
    assert reported["charts_have_labels"]


def test_table_sorts_filters_and_turns_pages(tmp_path):
    cells = nasbench201.evaluated_indices()[:60]
    clean = {str(cell): 0.5 + index / 1000 for index, cell in enumerate(cells)}
    pgd = {name: [0.9 - value, 0.1] for name, value in clean.items()} | {str(cells[0]): [None, 0.1]}
    folder = write_results(tmp_path / "dataset", {"clean": clean, "pgd": pgd})
    reported = open_page_with_script(
        write_report(Dataset(folder), tmp_path / "report.html"),
        tmp_path,
        """
        const names = () => texts("#network-table tbody th");
        report("first", names());
        click($("page-next")); click($("page-next"));
        report("last", [names().length, $("page-range").textContent, $("page-next").disabled]);
        const head = () => document.querySelectorAll("#network-table thead button");
        click(head()[0]);
        report("best", [names()[0], document.querySelector("[aria-sort]").getAttribute("aria-sort")]);
        click(head()[0]);
        report("worst", [names()[0], document.querySelector("[aria-sort]").getAttribute("aria-sort")]);
        $("filter").value = "#CELL";
        $("filter").dispatchEvent(new Event("input"));
        report("filtered", names());
        """.replace("CELL", str(cells[40])),
    )
    # The table begins in the order of the leaderboard: by the first attack, here the reverse of clean accuracy.
    assert reported["first"] == [f"#{cell}" for cell in cells[1:26]]
    assert reported["last"] == [10, "51 to 60 of 60", True]
    assert reported["best"] == [f"#{cells[59]}", "descending"]
    assert reported["worst"] == [f"#{cells[0]}", "ascending"]
    assert f"#{cells[40]}" in reported["filtered"]


def test_network_section_shows_accuracies_and_resolves_isomorphic_cells(dataset, page, tmp_path):
    isomorph = next(
        index for index, representative in enumerate(nasbench201.isomorphs()) if representative == 21 and index != 21
    )
    reported = open_page_with_script(
        page,
        tmp_path,
        """
        const shown = () => ["network-name", "network-note", "network-error"].map((id) => $(id).textContent);
        const submit = (text) => {
          $("network-input").value = text;
          $("network-form").dispatchEvent(new Event("submit"));
        };
        report("address", [...shown(), location.hash]);
        report("spec", $("network-spec").textContent);
        report("numbers", texts("#network-accuracies dd:first-of-type span.accuracy"));
        report("rows", texts("#network-accuracies .accuracy").length);
        await until(() => $("cell").querySelector("svg[aria-label]"));
        report("drawing", $("cell").querySelector("svg").getAttribute("aria-label"));
        report("labels", texts("#cell svg text"));
        submit("ISOMORPH"); report("isomorph", shown());
        submit("15625"); report("none", shown());
        submit("5"); report("absent", shown());
        submit($("network-spec").textContent); report("by_spec", shown());
        await drawFigure(figure("clean-vs-robust"));
        const point = svg("clean-vs-robust").querySelector(".mark-symbol.role-mark path");
        click(point);
        report("clicked", [shown()[0], String(point.__data__.datum.architecture)]);
        """.replace("ISOMORPH", str(isomorph)),
        "#dataset=cifar10&network=21",
    )
    assert reported["address"] == ["#21", "", "", "#dataset=cifar10&network=21"]
    assert reported["spec"] == nasbench201.specs()[21]
    accuracy = dataset.accuracy(21, "cifar10", "clean")
    low, high = accuracy_intervals(accuracy, N_IMAGES)
    assert reported["numbers"] == [f"{100 * accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}]"]
    assert reported["rows"] == 1 + 2 * 3 + 2 * 3  # attacks at three epsilons, corruptions at three severities
    assert reported["drawing"] == f"Cell: {', '.join(nasbench201.parse(nasbench201.specs()[21]))}"
    labels = [NasBench201.operation_labels[operation] for operation in nasbench201.parse(nasbench201.specs()[21])]
    assert sorted(text for text in reported["labels"] if text in labels) == sorted(2 * labels)  # with their halos
    assert reported["isomorph"] == ["#21", f"#{isomorph} is isomorphic to this cell. ", ""]
    assert reported["none"][2] == "There is no such cell."
    assert reported["absent"] == ["#21", f"#{isomorph} is isomorphic to this cell. ", "This network was not evaluated."]
    assert reported["by_spec"] == ["#21", "", ""]
    assert reported["clicked"][0] == f"#{reported['clicked'][1]}"
