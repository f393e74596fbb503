"""All counts in YAML files have upper limits."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from robust201.sweep.config import SweepConfig
from robust201.sweep.training_config import TrainingConfig
from robust201.sweep.user_tasks import UserTaskParameters
from robust201.tasks import TASKS
from robust201.tasks.parameters import MAX_STRENGTHS, STRENGTH_FIELDS

IDENTIFIER_FIELDS = re.compile("seeds?$|^format$|^source$|^architectures$|^init$")
"""Fields whose integers are identifiers and do not affect the amount of work."""

SELECTION_FIELDS = {"weights.epochs", "weights.steps"}
"""Fields that may be unlimited, because they only select existing weights."""


def find_unlimited_integers(schema: dict[str, Any], root: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the paths of integers without an upper limit in a JSON schema."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if schema.get("type") == "integer" and not {"maximum", "exclusiveMaximum", "const"} & schema.keys():
        yield ".".join(path)
    for property_name, subschema in schema.get("properties", {}).items():
        if not IDENTIFIER_FIELDS.search(property_name):
            yield from find_unlimited_integers(subschema, root, (*path, property_name))
    for keyword in ("anyOf", "prefixItems"):
        for subschema in schema.get(keyword, ()):
            yield from find_unlimited_integers(subschema, root, path)
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from find_unlimited_integers(schema[keyword], root, path)


@pytest.mark.parametrize("model", [SweepConfig, TrainingConfig, UserTaskParameters], ids=lambda model: model.__name__)
def test_yaml_counts_have_upper_limits(model):
    schema = model.model_json_schema()
    assert set(find_unlimited_integers(schema, schema)) <= SELECTION_FIELDS


@pytest.mark.parametrize("key", TASKS)
def test_key_counts_have_upper_limits(key):
    schema = TASKS[key].model.model_json_schema()
    assert not [*find_unlimited_integers(schema, schema)]
    for field in {*STRENGTH_FIELDS} & schema["properties"].keys():
        strengths = schema["properties"][field]
        assert strengths.get("maxItems") == MAX_STRENGTHS or strengths["items"]["maximum"] == 5
