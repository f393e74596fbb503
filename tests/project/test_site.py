"""The documentation site: contents, generated reference, and references to pages."""

import re
import subprocess
from pathlib import Path

import pytest

from docs._site.fields import MODELS, field_meanings, nested_models
from docs._site.generated import fill
from docs._site.pages import CONTENTS, SHORT_TITLES
from robust201.sweep.user_tasks import UserTaskParameters
from robust201.tasks import TASKS
from tests.conftest import REPOSITORY
from tests.project.test_documents import DOCS

MAX_WORDS = 2_500


def list_pages() -> list[str]:
    return sorted(str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md"))


def test_site_lists_every_page_once():
    listed_pages = [page for group_pages in CONTENTS.values() for page in group_pages]
    assert sorted([*listed_pages, "index"]) == list_pages()
    assert {*SHORT_TITLES} <= {*listed_pages}
    assert {*list_pages()} & {"search", "genindex"} == set(), "Sphinx writes pages with these names itself"


@pytest.mark.parametrize("page", list_pages())
def test_pages_are_not_too_long(page):
    is_generated = page.startswith("reference/")
    assert is_generated or len((DOCS / f"{page}.md").read_text().split()) <= MAX_WORDS


def test_page_references_in_repository_exist():
    file_list = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    files = [Path(path) for path in file_list.splitlines() if path.endswith((".py", ".yaml", ".toml", ".md"))]
    assert Path("jobs/paper.yaml") in files
    missing_pages = {
        f"{file}: {page}"
        for file in files
        for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md", (REPOSITORY / file).read_text())
        if not (REPOSITORY / page).exists()
    }
    assert missing_pages == set()


def list_reference() -> list[Path]:
    return sorted((DOCS / "reference").glob("*.md"))


@pytest.mark.parametrize("page", list_reference(), ids=lambda page: page.stem)
def test_committed_reference_matches_the_generated_reference(page):
    assert "<!-- generated: " in page.read_text()
    assert fill(page.read_text()) == page.read_text(), "run: python -m docs._site.generated"


def test_every_field_has_a_meaning():
    models = [*MODELS.values(), *(task.model for task in TASKS.values()), UserTaskParameters]
    meanings = {
        f"{name}.{field}": meaning
        for model in models
        for name, nested_model in nested_models(model).items()
        for field, meaning in field_meanings(nested_model).items()
    }
    assert [field for field, meaning in meanings.items() if not meaning] == []
    assert meanings["ApgdTargeted.restarts"] == "Number of runs."  # from the base class
