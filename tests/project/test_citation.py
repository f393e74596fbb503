"""The citation of the paper and the version of robust201 are the same everywhere."""

import re
import tomllib

import yaml

from robust201 import __version__
from robust201.core.citation import PAPER_BIBTEX
from tests.conftest import REPOSITORY


def test_readme_and_citation_file_agree_with_bibtex_entry():
    fields = dict(re.findall(r"^  (\w+) += \{(.*)\}", PAPER_BIBTEX, re.M))
    assert PAPER_BIBTEX in (REPOSITORY / "README.md").read_text()
    (paper,) = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["references"]
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    assert (paper["title"], authors, str(paper["year"])) == (fields["title"], fields["author"], fields["year"])
    assert paper["conference"]["name"] in fields["booktitle"]


def test_version_and_date_are_the_same_everywhere():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    releases = re.findall(r"^## \[(\d[\d.]*)\] - (\S+)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.M)
    assert releases[0] == (__version__, str(citation["date-released"]))
    assert project["version"] == citation["version"] == __version__
