"""Generate the reference of YAML fields and key parameters from the pydantic models that validate them."""

import ast
import inspect
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue

from robust201.core.strict_model import MAX_COUNT
from robust201.sweep.config import SweepConfig
from robust201.sweep.training_config import TrainingConfig
from robust201.sweep.user_tasks import UserTaskParameters
from robust201.tasks import TASKS, Task
from robust201.tasks.measures import MeasureParameters

MODELS: dict[str, type[BaseModel]] = {"sweep": SweepConfig, "training": TrainingConfig}
"""Models by the NAME with which a page refers to them (`<!-- generated: models NAME -->`)."""

_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "maxLength": "at most {} characters",
}
"""Format of each limit, by its keyword in JSON Schema.

Limits on the lengths of lists are not shown, because they are far above normal use.
"""


class _SchemaGenerator(GenerateJsonSchema):
    """Schema generator that accepts any value for a type that JSON Schema cannot express."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        del schema, error_info
        return {}


def _make_schema(model: type[BaseModel], mode: JsonSchemaMode = "validation") -> dict[str, Any]:
    return model.model_json_schema(schema_generator=_SchemaGenerator, mode=mode)


def _make_anchor(name: str) -> str:
    return re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")


def _format_heading(name: str) -> str:
    """Return the heading for a model: Execution for `ExecutionSection`."""
    words = re.sub(r"(Section|Config)$", "", name.strip("_"))
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", words).capitalize()


def _format_json(value: object) -> str:
    return f"`{json.dumps(value)}`"


def _list_types(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of the types that a field may have."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield f"[{_format_heading(name)}](#{_make_anchor(_format_heading(name))})"
    elif "anyOf" in schema:
        for option in schema["anyOf"]:
            if option.get("type") != "null":
                yield from _list_types(option)
    elif "enum" in schema or "const" in schema:
        yield from (_format_json(value) for value in schema.get("enum", [schema.get("const")]))
    elif schema.get("type") == "array":
        items: Mapping[str, Any] = schema.get("items") or next(iter(schema.get("prefixItems", [])), {})
        yield f"list of {' or '.join(_list_types(items))}"
    elif schema.get("type") == "object":
        values = schema.get("additionalProperties")
        yield f"mapping to {' or '.join(_list_types(values))}" if isinstance(values, dict) and values else "mapping"
    elif schema.get("format") == "path":
        yield "path"
    else:
        yield {"string": "text", "boolean": "true or false", "any": "any value"}.get(
            kind := schema.get("type", "any"), kind
        )


def _list_limits(schema: Mapping[str, Any]) -> list[str]:
    limits = [
        text.format(f"{schema[name]:,}")
        for name, text in _LIMITS.items()
        if name in schema and schema[name] != MAX_COUNT
    ]
    for option in schema.get("anyOf", []):
        limits += _list_limits(option)
    if "items" in schema:
        limits += _list_limits(schema["items"])
    return list(dict.fromkeys(limits))


def _describe_default(name: str, schema: Mapping[str, Any], is_required: bool) -> str:
    if is_required:
        return "required"
    if "default" not in schema:
        return "optional"
    value = schema["default"]
    if value is None:
        return "none"
    return "the defaults of its fields" if isinstance(value, dict) and value else _format_json(value)


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
    """Return the description of each field from the docstrings; a subclass's description replaces its base class's."""
    meanings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base.__module__.startswith("robust201."):
            docstrings = _attribute_docstrings(Path(inspect.getfile(base))).get(base.__name__, {})
            meanings |= _listed_attributes(base) | docstrings
    return {field.alias or name: meanings.get(name, "") for name, field in model.model_fields.items()}


def _format_meaning(text: str) -> str:
    """Return a description as a table entry: capitalised, without a final full stop, and with links to named pages."""
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    text = re.sub(r"docs/([\w/-]+)\.md", r"[\1](../\1.md)", text)
    return text[:1].upper() + text[1:].rstrip(".")


def _format_table(
    schema: Mapping[str, Any], meanings: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> str:
    """Return the Markdown table of a model's fields; `defaults` replaces the defaults of the schema."""
    lines = ["| field | meaning | type, limits | default |", "|---|---|---|---|"]
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        entries = [
            f"`{name}`",
            _format_meaning(meanings.get(name, "")),
            ", ".join([" or ".join(dict.fromkeys(_list_types(field))), *_list_limits(field)]),
            _describe_default(name, field, name in required) if defaults is None else defaults[name],
        ]
        lines.append("| " + " | ".join(entry.replace("|", "\\|") for entry in entries) + " |")
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


def _extract_summary(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description", "")).partition("\n\n")[0].replace("\n", " ")


def describe_models(name: str) -> str:
    """Return Markdown with a table for a model and one for each model that its fields refer to.

    Models that the page of the sweep YAML describes are not repeated on other pages.
    """
    model = MODELS[name]
    shared = {} if model is SweepConfig else nested_models(SweepConfig)
    schema, models = _make_schema(model), nested_models(model)
    unshared = [item for item in sorted(schema.get("$defs", {}).items()) if item[0] not in shared]
    sections = [
        ("Top level", model.__name__, schema),
        *((_format_heading(nested), nested, definition) for nested, definition in unshared),
    ]
    text = "\n\n".join(
        f"## {heading}\n\n{_extract_summary(definition)}\n\n{_describe_fields(models[nested], definition, shared)}"
        for heading, nested, definition in sections
    )
    for anchor in {_make_anchor(_format_heading(nested)) for nested in shared}:
        text = text.replace(f"](#{anchor})", f"](sweep-fields.md#{anchor})")
    return text


def _describe_fields(model: type[BaseModel], schema: Mapping[str, Any], shared: Collection[str]) -> str:
    """Return the table of a model's own fields, with a link to a base class that is described on another page."""
    base = next((base for base in model.__mro__[1:] if base.__name__ in shared), None)
    inherited = base.model_fields if base is not None and issubclass(base, BaseModel) else ()
    fields = {name: field for name, field in schema.get("properties", {}).items() if name not in inherited}
    table = _format_table({**schema, "properties": fields}, field_meanings(model)) if fields else "No fields."
    if base is None:
        return table
    heading = _format_heading(base.__name__)
    return f"The fields of [{heading}](#{_make_anchor(heading)}), and:\n\n{table}"


def _describe_defaults(name: str, tasks: Sequence[Task]) -> str:
    """Return a parameter's defaults, each with its keys; if all keys have the parameter, the first default has none."""
    keys_by_default: dict[str, list[str]] = {}
    for task in tasks:
        if name in task.field_names:
            default = _describe_default(name, {"default": task.parameters().model_dump(mode="json")[name]}, False)
            keys_by_default.setdefault(default, []).append(f"`{task.key}`")
    is_common = sum(map(len, keys_by_default.values())) == len(tasks)
    (first, keys), *others = keys_by_default.items()
    texts = [first if is_common else f"{', '.join(keys)}: {first}"]
    return "; ".join([*texts, *(f"{', '.join(keys)}: {default}" for default, keys in others)])


def describe_keys() -> str:
    """Return Markdown with a table for each family of keys: all measures, or keys with the same class of parameters."""
    families: dict[type[BaseModel], list[Task]] = {}
    for task in TASKS.values():
        family = MeasureParameters if issubclass(task.model, MeasureParameters) else task.model
        families.setdefault(family, []).append(task)
    sections = []
    for tasks in families.values():
        properties = {name: field for task in tasks for name, field in _make_schema(task.model)["properties"].items()}
        meanings = {name: text for task in tasks for name, text in field_meanings(task.model).items()}
        names = dict.fromkeys(name for task in tasks for name in task.field_names)
        defaults = {name: _describe_defaults(name, tasks) for name in names}
        keys = [task.key for task in tasks]
        heading = ", ".join(keys) if len(keys) < 6 else f"{keys[0]} and {len(keys) - 1} others"
        key_list = f"{', '.join(f'`{key}`' for key in keys)}.\n\n" if len(keys) >= 6 else ""
        table = _format_table({"properties": {name: properties[name] for name in names}}, meanings, defaults)
        sections.append(f"## {heading}\n\n{key_list}{table if names else 'No parameters.'}")
    table = _format_table(_make_schema(UserTaskParameters), field_meanings(UserTaskParameters))
    return "\n\n".join([*sections, f"## Your own task\n\n{table}"])
