"""Pages state the numbers of verdicts in docs/tables/reproduction.csv; its evidence files exist."""

import csv
import re
from collections import Counter

import pytest

from tests.conftest import REPOSITORY
from tests.project.test_documents import DOCS

VERDICTS = ("as published", "at small scale", "in part", "not")
TOPICS = ("NAS-Bench-201", "robust features", "image distribution", "pipeline")

with (DOCS / "tables/reproduction.csv").open(newline="") as file:
    ITEMS = list(csv.DictReader(file))


def read_totals() -> dict[str, list[int]]:
    """Return the numbers in each row of the page's table of totals, by the row's first entry."""
    page = (DOCS / "reproduction.md").read_text().partition("| topic | items |")[2].partition("\n\n")[0]
    return {
        name: [int(count) for count in counts.split("|")]
        for name, counts in re.findall(r"^\| (.*?) \| (.*) \|$", page, re.M)
        if counts[0].isdigit()
    }


def test_reproduction_totals_equal_verdicts_in_table():
    verdicts = {topic: Counter(row["verdict"] for row in ITEMS if row["topic"] == topic) for topic in TOPICS}
    assert sum(counts.total() for counts in verdicts.values()) == len(ITEMS)
    expected = [[counts.total(), *(counts[verdict] for verdict in VERDICTS)] for counts in verdicts.values()]
    assert all(items == sum(counts) for items, *counts in expected)
    *totals, total_of_all = read_totals().values()
    assert totals == expected
    assert total_of_all == [sum(column) for column in zip(*expected, strict=True)]


def test_reproduction_summaries_agree_with_totals():
    summary = "Of {} items, {} are reproduced as published, {} at small scale, {} in part and {} not."
    summary = summary.format(*read_totals()["all"])
    for page in (DOCS / "reproduction.md", REPOSITORY / "README.md"):
        assert summary in " ".join(page.read_text().split())


@pytest.mark.parametrize("row", ITEMS, ids=lambda row: row["item"][:40])
def test_evidence_names_existing_files(row):
    paths = re.findall(r"(?<![\w/.-])(?:benchmark_data|docs|jobs|pipeline|tests)/[\w./-]*[\w-]", row["evidence"])
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
    has_file = bool(paths) or re.search(r"pyproject\.toml|cluster\.yaml", row["evidence"])
    assert has_file or row["verdict"] == "not"
    assert row["evidence"]
