"""The pages in docs/ contain the tables that the package computes."""

import re

import pytest

from robust201.core.csv_files import write_csv
from robust201.studies.comparisons import check_published_marks
from robust201.studies.pages import write_pages
from robust201.studies.pages.writer import MAX_ROWS, comparison_lines, short_table, table_lines
from tests.conftest import REPOSITORY
from tests.support.planted_studies import STUDIES


def test_docs_page_of_image_distributions_has_the_recomputed_tables(tmp_path):
    page = (REPOSITORY / "docs/image-distribution.md").read_text()
    comparisons = check_published_marks()
    for table in (comparison_lines(comparisons.exceptions), comparison_lines(comparisons.borderline)):
        assert table in page
    write_csv(tmp_path / "claims.csv", comparisons.claims)
    file = REPOSITORY / "docs/tables/image-distribution-claims.csv"
    assert file.read_text() == (tmp_path / "claims.csv").read_text()


FINDINGS = {
    "image-distribution": "4 of 4 comparisons differ at the 5% level by Welch's test",
    "robust-features-dynamics": "At its last snapshot, std has: clean accuracy 80.00% (published: 91.16%), success of",
    "robust-features-mixing": "From no robust images to robust images alone, accuracy rises in 2 of 4 curves",
    "robust-features-equivariance": "Most accurate, by candidates chosen on validation: STN D* under clean (77.00%)",
}
"""Beginning of the first line of a study's page."""


@pytest.mark.parametrize("name", STUDIES)
def test_write_pages_links_all_tables_and_figures(name, tmp_path):
    study, exports = STUDIES[name](tmp_path)
    if name == "image-distribution":  # fewer panels, since drawing is slow
        few = {group: study.groups[group] for group in ("mnist", "cifar10", "cifar10_to_mnist")}
        study = study.model_copy(update={"networks": {"LeNet": study.networks["LeNet"]}, "groups": few})
    page, *files = write_pages(study, exports, tmp_path / "out")
    text = page.read_text()
    assert text.startswith("# planted: ")
    assert text.splitlines()[2].startswith(FINDINGS[name])
    assert max(len(table.splitlines()) for table in re.findall(r"(?:^\|.*\n)+", text, re.M)) <= 2 + MAX_ROWS
    links = re.findall(r"\]\(((?:figures|tables)/[^)]*)\)", text)
    assert {page.parent / link for link in links} == {*files}
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


def test_long_tables_are_files_only():
    for n_rows, on_page in ((MAX_ROWS, True), (MAX_ROWS + 1, False)):
        lines = table_lines(["name", "value"], [["a", "1"]] * n_rows)
        text = short_table(lines, "values")
        assert (text == lines) == on_page
    assert text == f"The {MAX_ROWS + 1} rows are in [tables/values.csv](tables/values.csv).\n"
