"""Error messages have one shape, and unknown names get a suggestion from the table that they belong to."""

import ast
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from robust201.core import errors
from robust201.core.errors import RobustError, did_you_mean
from robust201.figures.table import FIGURES
from robust201.images import DATASETS
from robust201.images.loading import FORMS
from robust201.networks.spaces import SPACES
from robust201.networks.zoo.zoo_space import NETWORKS
from robust201.search.methods import METHODS
from robust201.sweep.config import SweepConfig
from robust201.tasks import TASKS
from robust201.tasks.columns import MEASUREMENTS
from robust201.training.recipes import AUGMENTATIONS, Recipe
from tests.project.test_layers import PACKAGE, list_sources

# --- The shape of messages --------------------------------------------------------------------------------------------

ERRORS = {
    name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, RobustError)
} - {"RobustError"}
SHAPE = re.compile(r"(.*\bfailed\b.*: |\{\})\S.*|\{\}.*")
"""``ACTION failed for SUBJECT: FAULT. REMEDY``; a message may begin with another message."""

OTHER_MESSAGES = {
    "cli/demo.py": "the end of the demo",
}
"""Modules with messages of another shape, with reasons."""


def template_of(node: ast.expr) -> str | None:
    """Return a message as text in which ``{}`` stands for each value; None if the message is not a literal."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def messages_of(path: Path) -> Iterator[str]:
    """Yield the templates of the errors that a module creates."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
            template = template_of(node.args[0])
            if template is not None:
                yield template


def test_messages_state_what_failed_in_one_line():
    messages = {str(path.relative_to(PACKAGE)): list(messages_of(path)) for path in list_sources()}
    assert sum(map(len, messages.values())) > 300
    unusual = {
        path: [template for template in templates if not SHAPE.fullmatch(template)]
        for path, templates in messages.items()
        if path not in OTHER_MESSAGES
    }
    assert {path: templates for path, templates in unusual.items() if templates} == {}


# --- Suggestions ------------------------------------------------------------------------------------------------------

TABLES = tuple(
    tuple(map(str, table))
    for table in (
        *(TASKS, DATASETS, FORMS, SPACES, NETWORKS, MEASUREMENTS, FIGURES, METHODS, AUGMENTATIONS),
        *(SweepConfig.model_fields, Recipe.model_fields),
    )
)


@given(table=st.sampled_from(TABLES), data=st.data())
def test_names_in_another_case_are_suggested(table, data):
    name = data.draw(st.sampled_from(table))
    suggestion = did_you_mean(data.draw(st.sampled_from([name.upper(), name.title(), name])), table)
    assert suggestion.casefold() == f" Did you mean {name!r}?".casefold()


@given(table=st.sampled_from(TABLES), data=st.data())
def test_misspelled_names_get_the_closest_name(table, data):
    name = data.draw(st.sampled_from([name for name in table if len(name) > 3]))
    position = data.draw(st.integers(1, len(name) - 2))
    swapped = name[:position] + name[position + 1] + name[position] + name[position + 2 :]
    misspelled = data.draw(st.sampled_from([name[:position] + name[position + 1 :], swapped]))
    match = re.fullmatch(r" Did you mean '(.*)'\?", did_you_mean(misspelled, table))
    assert match is not None
    assert match[1] in table

    def similarity(candidate: str) -> float:
        return difflib.SequenceMatcher(None, candidate.casefold(), misspelled.casefold()).ratio()

    assert match[1].casefold().startswith(misspelled.casefold()) or similarity(match[1]) >= similarity(name)


@given(st.text(max_size=40))
def test_dissimilar_names_get_a_list_of_known_names(name):
    suggestion = did_you_mean(name, ("accuracy", "confidence"))
    assert suggestion == " Known: accuracy, confidence." or "Did you mean" in suggestion
    assert did_you_mean(name, ()) == ""
