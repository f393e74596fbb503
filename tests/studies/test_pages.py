"""The pages in docs/ contain the tables that the package computes."""

import re

import pytest

from robust201.studies.comparisons import check_printed_marks
from robust201.studies.pages import write_pages
from robust201.studies.pages.writer import comparison_lines, table_lines
from tests.conftest import REPOSITORY
from tests.support.planted_studies import STUDIES


def test_docs_page_of_image_distributions_has_the_recomputed_tables():
    page = (REPOSITORY / "docs/image-distribution.md").read_text()
    check = check_printed_marks()
    claims = [
        [f"{row['experiment']} {row['claim']}", row["network"]]
        + [str(row[name]) for name in ("printed", "tested", "recomputed", "after_holm")]
        + [row["lost"] or "–"]
        for row in check.claims.to_dict("records")
    ]
    columns = ["claim", "network", "marked", "with numbers", "recomputed", "after Holm", "lost at epoch"]
    for table in (
        comparison_lines(check.exceptions),
        comparison_lines(check.borderline),
        table_lines(columns, claims),
    ):
        assert table in page


@pytest.mark.parametrize("name", STUDIES)
def test_write_pages_links_all_tables_and_figures(name, tmp_path):
    study, exports = STUDIES[name](tmp_path)
    if name == "image-distribution":  # fewer panels, since drawing is slow
        few = {group: study.groups[group] for group in ("mnist", "cifar10", "cifar10_to_mnist")}
        study = study.model_copy(update={"networks": {"LeNet": study.networks["LeNet"]}, "groups": few})
    page, *files = write_pages(study, exports, tmp_path / "out")
    text = page.read_text()
    assert text.startswith("# planted: ")
    links = re.findall(r"\]\(((?:figures|tables)/[^)]*)\)", text)
    assert sorted(page.parent / link for link in links) == sorted(files)
    assert {path.suffix for path in files} == {".csv", ".svg"}
    assert "nan" not in text
    if name.startswith("robust-features"):
        tables = re.findall(r"([^\n]*)\n\n(\| .*)\n\| ---", text)
        assert len(tables) > 1
        for before, header in tables:
            assert "| difference |" in header or before.startswith("Ours / theirs / difference")
        assert "Intervals of two seeds are wide" in text
        assert "[–" not in text
    if name == "robust-features-mixing":
        before = {path: path.read_bytes() for path in (page, *files)}
        write_pages(study, exports, tmp_path / "out")
        assert before == {path: path.read_bytes() for path in (page, *files)}


def test_mixing_page_without_published_numbers_has_no_published_decreases(tmp_path):
    study, exports = STUDIES["robust-features-mixing"](tmp_path)
    study = study.model_copy(update={"networks": {"tiny": "vgg16"}, "panels": {"L2": ["pgd_l2"]}})
    page, *_ = write_pages(study, exports, tmp_path / "out")
    assert "| tiny, clean | -10.00 | [-10.00, -10.00] | – | – | 2 of 2 | – |" in page.read_text()
