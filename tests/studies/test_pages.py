"""Pages of studies link all their files; pages in docs/ contain the tables that the package computes."""

import re

import numpy as np
import pandas as pd
import pytest

from robust201.core.csv_files import write_csv
from robust201.studies.comparisons import check_published_marks
from robust201.studies.pages import write_pages
from robust201.studies.pages.robust_features import _describe_trends
from robust201.studies.pages.writer import MAX_ROWS, format_comparisons, format_table, table_or_link
from tests.conftest import REPOSITORY
from tests.support.planted_studies import STUDIES


def test_docs_page_of_image_distributions_has_the_recomputed_tables(tmp_path):
    page = (REPOSITORY / "docs/image-distribution.md").read_text()
    comparisons = check_published_marks()
    for table in (format_comparisons(comparisons.exceptions), format_comparisons(comparisons.borderline)):
        assert table in page
    write_csv(tmp_path / "claims.csv", comparisons.claims)
    claims_path = REPOSITORY / "docs/tables/image-distribution-claims.csv"
    assert claims_path.read_text() == (tmp_path / "claims.csv").read_text()


FINDINGS_BY_STUDY = {
    "image-distribution": (
        "The robustness R (defined below) of two groups of networks differs significantly in 4 of 4 comparisons"
    ),
    "robust-features-dynamics": (
        "Kendall's tau between curve and iteration has the published sign for 2 of 2 curves. "
        "At its last snapshot, the run std has: clean accuracy 80.00% (published: 91.16%), "
    ),
    "robust-features-mixing": (
        "As the fraction of robust images in training rises from 0 to 1, accuracy rises in 2 of 4 curves"
    ),
    "robust-features-equivariance": (
        "Rotations in training (D*, D_R*) raise accuracy under attack in 2 of 2 comparisons (published: 30 of 30);"
    ),
}
"""Beginning of the finding on each study's page."""


@pytest.mark.parametrize("name", STUDIES)
def test_write_pages_links_all_tables_and_figures(name, tmp_path):
    study, exports = STUDIES[name](tmp_path)
    if name == "image-distribution":  # fewer panels, since drawing is slow
        three_groups = {group: study.groups[group] for group in ("mnist", "cifar10", "cifar10_to_mnist")}
        study = study.model_copy(update={"networks": {"LeNet": study.networks["LeNet"]}, "groups": three_groups})
    page, *files = write_pages(study, exports, tmp_path / "out")
    page_text = page.read_text()
    assert page_text.startswith("# planted: ")
    assert page_text.splitlines()[2].startswith(FINDINGS_BY_STUDY[name])
    assert max(len(table.splitlines()) for table in re.findall(r"(?:^\|.*\n)+", page_text, re.M)) <= 2 + MAX_ROWS
    links = re.findall(r"\]\(((?:figures|tables)/[^)]*)\)", page_text)
    assert {page.parent / link for link in links} == {*files}
    assert {path.suffix for path in files} == {".csv", ".svg"}
    assert "nan" not in page_text
    if name.startswith("robust-features"):
        tables = re.findall(r"([^\n]*)\n\n(\| .*)\n\| ---", page_text)
        assert len(tables) > 1
        for preceding_text, header in tables:
            assert "| difference |" in header or "ours / published / difference" in preceding_text
        assert "Intervals of two seeds are wide" in page_text
        assert "[–" not in page_text
    if name == "robust-features-mixing":
        first_bytes = {path: path.read_bytes() for path in (page, *files)}
        write_pages(study, exports, tmp_path / "out")
        assert first_bytes == {path: path.read_bytes() for path in (page, *files)}


def test_dynamics_page_names_curves_whose_trend_has_another_sign():
    trends = pd.DataFrame(
        {
            "run": ["std", "std", "std", "std*"],
            "curve": ["clean", "asr rot30", "asr pgd_linf7:4", "asr rot30"],
            "tau": [0.9, -0.2, 0.5, np.nan],
            "printed_tau": [0.8, 0.1, np.nan, -0.8],
        }
    )
    assert _describe_trends(trends) == [
        "Kendall's tau between curve and iteration has the published sign for 1 of 2 curves (others: std, asr rot30)."
    ]
    assert _describe_trends(trends[2:]) == []


def test_mixing_page_without_published_numbers_has_no_published_decreases(tmp_path):
    study, exports = STUDIES["robust-features-mixing"](tmp_path)
    study = study.model_copy(update={"networks": {"tiny": "vgg16"}, "panels": {"L2": ["pgd_l2"]}})
    page, *_ = write_pages(study, exports, tmp_path / "out")
    assert "| tiny, clean | -10.00 | [-10.00, -10.00] | – | – | 2 of 2 | – |" in page.read_text()


def test_table_or_link_replaces_long_tables_by_links():
    for n_rows, is_on_page in ((MAX_ROWS, True), (MAX_ROWS + 1, False)):
        table = format_table(["name", "value"], [["a", "1"]] * n_rows)
        shown_text = table_or_link(table, "values", "names")
        assert (shown_text == table) == is_on_page
    assert shown_text == f"The table of names ({MAX_ROWS + 1} rows) is in [tables/values.csv](tables/values.csv).\n"
