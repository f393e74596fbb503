"""The pages in docs/ have the tables that the package computes."""

from robust201.studies.comparisons import check_printed_marks
from robust201.studies.markdown import claim_lines, comparison_lines
from tests.conftest import REPOSITORY


def test_the_page_of_image_distributions_has_the_recomputed_tables():
    page = (REPOSITORY / "docs/image-distribution.md").read_text()
    found = check_printed_marks()
    for table in (comparison_lines(found.exceptions), comparison_lines(found.borderline), claim_lines(found.claims)):
        assert table in page
