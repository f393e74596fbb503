"""The documentation site: contents, generated reference, and references to pages."""

import re
import subprocess
from pathlib import Path

import pytest

from docs._site.commands import describe_commands
from docs._site.fields import MODELS, describe_keys, describe_models, field_meanings, nested_models
from docs._site.pages import CONTENTS, SHORT_TITLES, link_pages, prepare_page, rewrite_links
from robust201.cli.help_texts import PANELS
from robust201.sweep.config import SweepConfig
from robust201.sweep.user_tasks import UserTaskParameters
from robust201.tasks import TASKS
from tests.conftest import REPOSITORY
from tests.project.test_documents import DOCS

MAX_WORDS = 2_500


def list_pages() -> list[str]:
    return sorted(str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md"))


def test_site_lists_every_page_once() -> None:
    listed_pages = [page for group_pages in CONTENTS.values() for page in group_pages if not page.endswith("*")]
    optional_pages = [
        page.rstrip("*") for group_pages in CONTENTS.values() for page in group_pages if page.endswith("*")
    ]
    assert len(listed_pages) == len({*listed_pages})
    assert {*list_pages()} - {*listed_pages} - {*optional_pages} == {"index"}
    assert {*listed_pages} | {*SHORT_TITLES} <= {*list_pages()}
    assert {*list_pages()} & {"search", "genindex"} == set(), "Sphinx writes pages with these names itself"


@pytest.mark.parametrize("page", list_pages())
def test_pages_are_not_too_long(page: str) -> None:
    pages_without_limit = {"protocol/attacks", "protocol/measures"}
    assert page in pages_without_limit or len((DOCS / f"{page}.md").read_text().split()) <= MAX_WORDS


def test_page_references_in_repository_exist() -> None:
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


def test_command_reference_has_options_and_examples() -> None:
    for group, command_names in PANELS.items():
        reference = describe_commands(group)
        for command_name in command_names:
            assert f"\n## {command_name}\n" in f"\n{reference}"
    reference = describe_commands("Run a sweep")
    assert "\n### submit slurm\n" in reference
    assert "* `--share I/N`: " in reference
    assert "\n    robust201 run jobs/paper.yaml " in reference


def test_field_reference_has_meanings_types_defaults_and_limits() -> None:
    text = describe_models("sweep")
    assert {*SweepConfig.model_fields} <= {*re.findall(r"^\| `(\w+)` ", text, re.M)}
    assert '| `"inline"` or `"ray"` | `"ray"` |' in text
    assert "| `max_attempts` | Number of worker deaths after which a part (a slice of the work on a network) " in text
    assert "| integer, ≥ 1 | `3` |" in text
    assert "| text, at most 100 characters | required |" in text
    assert (
        "| `execution` | Executor, workers and devices | [Execution](#execution) | the defaults of its fields |" in text
    )


def test_every_field_has_a_meaning() -> None:
    models = [*MODELS.values(), *(task.model for task in TASKS.values()), UserTaskParameters]
    meanings = {
        f"{name}.{field}": meaning
        for model in models
        for name, nested_model in nested_models(model).items()
        for field, meaning in field_meanings(nested_model).items()
    }
    assert [field for field, meaning in meanings.items() if not meaning] == []
    assert {"SweepConfig.keys", "CorruptionsSection.frost", "Square.queries", "Recipe.decay"} <= {*meanings}
    assert meanings["ApgdTargeted.restarts"] == "Number of runs."  # from the base class


def test_key_reference_describes_every_key() -> None:
    reference = describe_keys()
    heading_keys = [name for line in re.findall(r"^## (.*)$", reference, re.M) for name in line.split(", ")]
    listed_keys = [
        name for line in re.findall(r"^(`clean`|`\w.*`)\.$", reference, re.M) for name in re.findall(r"`(\S+?)`", line)
    ]
    assert {*heading_keys, *listed_keys} >= {*TASKS}
    assert "| `queries` | Maximum number of queries per image | integer, ≥ 1 | `5000` |" in reference


def test_rewrite_links_converts_links_to_site_pages() -> None:
    text = (
        "[a](../ARCHITECTURE.md#words) [b](../jobs/paper.yaml) [c](../jobs) [d](trust.md#x) [e](#f) [g](https://h.i) "
        "![i](../jobs/x.svg)"
    )
    page = Path("docs/api.md")
    assert rewrite_links(text, page, page) == (
        "[a](/project/architecture.md#words) [b](path:../jobs/paper.yaml) c [d](/trust.md#x) [e](#f) [g](https://h.i) "
        "![i](../jobs/x.svg)"
    )


def test_site_shows_repository_files_as_pages() -> None:
    text = prepare_page("project/security", "")
    assert text.startswith("# Security")
    assert "](docs/" not in text


def test_docstring_references_link_to_pages() -> None:
    assert link_pages(["See docs/trust.md."]) == ["See :doc:`docs/trust.md </trust>`."]
