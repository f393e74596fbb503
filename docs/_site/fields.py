"""The reference of fields in YAML files, from the pydantic models that check them."""

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue

from robust201.core.strict_model import MAX_COUNT
from robust201.planning.config import SweepConfig
from robust201.planning.training_config import TrainingConfig
from robust201.planning.user_tasks import UserTaskParameters
from robust201.studies.config import STUDIES
from robust201.tasks import TASKS

MODELS: dict[str, type[BaseModel]] = {"sweep": SweepConfig, "training": TrainingConfig}
"""Models by the name that a page uses for them."""

_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "maxLength": "at most {} characters",
}
"""Limits that are shown, by their names in JSON Schema; those of lists are far above normal use."""


class _Schema(GenerateJsonSchema):
    """Schemas of fields; a type that JSON cannot express counts as any value."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        del schema, error_info
        return {}


def _schema(model: type[BaseModel], mode: JsonSchemaMode = "validation") -> dict[str, Any]:
    return model.model_json_schema(schema_generator=_Schema, mode=mode)


def _anchor(name: str) -> str:
    return re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")


def _title(name: str) -> str:
    """Return the heading of a model: `ExecutionSection` is Execution."""
    words = re.sub(r"(Section|Config)$", "", name.strip("_"))
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", words).capitalize()


def _value(value: object) -> str:
    return f"`{json.dumps(value)}`"


def _alternatives(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of the types that a field may have."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield f"[{_title(name)}](#{_anchor(_title(name))})"
    elif "anyOf" in schema:
        for option in schema["anyOf"]:
            if option.get("type") != "null":
                yield from _alternatives(option)
    elif "enum" in schema or "const" in schema:
        yield from (_value(value) for value in schema.get("enum", [schema.get("const")]))
    elif schema.get("type") == "array":
        items: Mapping[str, Any] = schema.get("items") or next(iter(schema.get("prefixItems", [])), {})
        yield f"list of {' or '.join(_alternatives(items))}"
    elif schema.get("type") == "object":
        values = schema.get("additionalProperties")
        yield f"mapping to {' or '.join(_alternatives(values))}" if isinstance(values, dict) and values else "mapping"
    elif schema.get("format") == "path":
        yield "path"
    else:
        yield {"string": "text", "boolean": "true or false", "any": "any value"}.get(
            kind := schema.get("type", "any"), kind
        )


def _limits(schema: Mapping[str, Any]) -> list[str]:
    limits = [
        text.format(f"{schema[name]:,}")
        for name, text in _LIMITS.items()
        if name in schema and schema[name] != MAX_COUNT
    ]
    for option in schema.get("anyOf", []):
        limits += _limits(option)
    if "items" in schema:
        limits += _limits(schema["items"])
    return list(dict.fromkeys(limits))


def _default(name: str, schema: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    if "default" not in schema:
        return "its own defaults"
    value = schema["default"]
    if value is None:
        return "none"
    return "the defaults of its fields" if isinstance(value, dict) and value else _value(value)


@cache
def _attribute_docstrings(file: Path) -> dict[str, dict[str, str]]:
    """Return the strings below the fields of each class in a file, by class and field."""
    return {
        node.name: {
            field.target.id: " ".join(text.value.value.split())
            for field, text in zip(node.body, node.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        }
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    }


def _listed_attributes(model: type) -> dict[str, str]:
    """Return the descriptions under `Attributes:` in a class docstring, by field."""
    _, _, text = (inspect.cleandoc(model.__doc__ or "")).partition("\nAttributes:\n")
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |^\S|\Z)", text, re.M | re.S)
    return {name: " ".join(description.split()) for name, description in entries}


def field_meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return what the code says of each field of a model; a subclass's description replaces its base's."""
    meanings: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if issubclass(part, BaseModel) and part.__module__.startswith("robust201."):
            docstrings = _attribute_docstrings(Path(inspect.getfile(part))).get(part.__name__, {})
            meanings |= _listed_attributes(part) | docstrings
    return {field.alias or name: meanings.get(name, "") for name, field in model.model_fields.items()}


def _meaning(text: str) -> str:
    """Return a description as the cell of a table: a sentence, in which names of pages are links."""
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    text = re.sub(r"docs/([\w/-]+)\.md", r"[\1](../\1.md)", text)
    return text[:1].upper() + text[1:].rstrip(".")


def _table(schema: Mapping[str, Any], meanings: Mapping[str, str]) -> str:
    """Return the Markdown table of a model's fields."""
    lines = ["| field | meaning | type, limits | default |", "|---|---|---|---|"]
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        cells = [
            f"`{name}`",
            _meaning(meanings.get(name, "")),
            ", ".join([" or ".join(dict.fromkeys(_alternatives(field))), *_limits(field)]),
            _default(name, field, name in required),
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def nested_models(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return a model and all models that its fields refer to, by name."""
    models = {model.__name__: model}
    pending: list[Any] = [field.annotation for field in model.model_fields.values()]
    while pending:
        annotation = pending.pop()
        pending += getattr(annotation, "__args__", ())
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation.__name__ not in models:
            models |= {annotation.__name__: annotation}
            pending += [field.annotation for field in annotation.model_fields.values()]
    return models


def _summary(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description", "")).partition("\n\n")[0].replace("\n", " ")


def describe_models(name: str) -> str:
    """Return Markdown with a table for a model and one for each model that its fields refer to."""
    return _describe_model(MODELS[name], "Top level")


def describe_studies() -> str:
    """Return Markdown with the tables of each kind of study."""
    return "\n\n".join(_describe_model(model, name) for name, model in STUDIES.items())


def _describe_model(model: type[BaseModel], title: str) -> str:
    schema, models = _schema(model), nested_models(model)
    parts = [(title, model.__name__, schema)]
    parts += [(_title(part), part, definition) for part, definition in sorted(schema.get("$defs", {}).items())]
    return "\n\n".join(
        f"## {title}\n\n{_summary(part)}\n\n"
        + (_table(part, field_meanings(models[name])) if part.get("properties") else "No fields.")
        for title, name, part in parts
    )


def describe_keys() -> str:
    """Return Markdown with a table for each set of keys that have the same parameters and defaults."""
    groups: dict[str, list[str]] = {}
    for key, row in TASKS.items():
        table = _table(_schema(row.parameters), field_meanings(row.parameters))
        groups.setdefault(table, []).append(key)
    table = _table(_schema(UserTaskParameters), field_meanings(UserTaskParameters))
    groups[table] = ["Your own task"]
    return "\n\n".join(
        f"## {', '.join(keys) if len(keys) < 6 else f'{keys[0]} and {len(keys) - 1} others'}\n\n"
        + (f"{', '.join(f'`{key}`' for key in keys)}.\n\n" if len(keys) >= 6 else "")
        + (table if table.count("\n") > 1 else "No parameters.")
        for table, keys in groups.items()
    )
