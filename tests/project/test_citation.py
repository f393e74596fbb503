"""The paper is cited in the same way everywhere."""

import re

import yaml

from robust201.core.citation import PAPER_BIBTEX
from tests.conftest import REPOSITORY


def test_readme_citation_file_and_report_agree() -> None:
    fields = dict(re.findall(r"^  (\w+) += \{(.*)\}", PAPER_BIBTEX, re.M))
    assert PAPER_BIBTEX in (REPOSITORY / "README.md").read_text()
    (paper,) = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["references"]
    authors = " and ".join(f"{one['family-names']}, {one['given-names']}" for one in paper["authors"])
    assert (paper["title"], authors, str(paper["year"])) == (fields["title"], fields["author"], fields["year"])
    assert paper["conference"]["name"] in fields["booktitle"]
