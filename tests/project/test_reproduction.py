"""The totals in docs/reproduction.md are counts of the verdicts in docs/tables/reproduction.csv."""

import csv
import re
from collections import Counter

from tests.project.test_documents import DOCS

VERDICTS = ("real data", "needs the originals", "in part", "stand-in", "not done")
WORK_NAMES = ("NAS-Bench-201", "robust features", "image distribution", "pipeline")


def read_totals() -> dict[str, list[int]]:
    """Return the numbers in each row of the page's table of totals, by the row's first cell."""
    page = (DOCS / "reproduction.md").read_text().partition("| work | items |")[2].partition("\n\n")[0]
    return {
        name: [int(cell) for cell in cells.split("|")]
        for name, cells in re.findall(r"^\| (.*?) \| (.*) \|$", page, re.M)
        if cells[0].isdigit()
    }


def test_reproduction_totals_equal_verdicts_in_table() -> None:
    with (DOCS / "tables/reproduction.csv").open(newline="") as file:
        items = [(row["work"], row["verdict"]) for row in csv.DictReader(file)]
    verdicts = {work: Counter(verdict for name, verdict in items if name == work) for work in WORK_NAMES}
    assert sum(counts.total() for counts in verdicts.values()) == len(items)
    expected = [[counts.total(), *(counts[verdict] for verdict in VERDICTS)] for counts in verdicts.values()]
    *totals, total_of_all = read_totals().values()
    assert totals == expected
    assert total_of_all == [sum(column) for column in zip(*expected, strict=True)]


def test_reproduction_summary_agrees_with_totals() -> None:
    items, real_data, needs_originals, *_ = read_totals()["all"]
    summary = f"Of {items} items, {real_data} ran on real data, {needs_originals} need"
    assert summary in (DOCS / "reproduction.md").read_text()
