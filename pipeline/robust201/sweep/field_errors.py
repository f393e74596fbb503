"""One-line messages for pydantic's validation errors."""

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from robust201.core.errors import did_you_mean

_VALID_VALUES = {
    "greater_than": "more than {gt:,.12g}",
    "greater_than_equal": "at least {ge:,.12g}",
    "less_than_equal": "at most {le:,.12g}",
    "less_than": "less than {lt:,.12g}",
    "too_short": "{min_length} or more entries",
    "too_long": "at most {max_length:,} entries",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "letters, digits, dots, dashes and underscores",
    "literal_error": "{expected}",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "dict_type": "a mapping from names to fields",
    "model_type": "a mapping of fields",
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
"""Descriptions of valid values by pydantic's error type; for other error types, pydantic's own message is used."""


def field_names_of(location: Sequence[int | str]) -> tuple[str, ...]:
    """Return the field names and list positions on the path to a location in the YAML."""
    # For a field with several types, pydantic adds the type that it tried to the location.
    types = ("constrained-", "literal[", "dict[", "function-")
    return tuple(str(step) for step in location if step != "[key]" and not str(step).startswith(types))


def describe_problem(error: ValidationError, model: type[BaseModel], parent_names: tuple[str, ...] = ()) -> str:
    """Describe the first error in one line; `parent_names` are the YAML fields around the model, outermost first."""
    problems = error.errors(include_url=False)
    problem = problems[0]
    field_path = (*parent_names, *field_names_of(problem["loc"]))
    field = ".".join(field_path)
    if problem["type"] == "extra_forbidden":
        field_names = _fields_at(model, problem["loc"][:-1])
        return f"expected a known field, got {field!r}.{did_you_mean(field_path[-1], field_names)}"
    if problem["type"] == "missing":
        return f"expected the field {field!r}, got none."
    if problem["type"] == "value_error":
        return f"{field}: {problem['ctx']['error']}" if field else str(problem["ctx"]["error"])
    # pydantic reports one problem per type that it tried for the field.
    field_problems = [other for other in problems if field_names_of(other["loc"]) == field_names_of(problem["loc"])]
    expected = " or ".join(dict.fromkeys(map(_describe_valid_values, field_problems)))
    if field_path[-2:-1] == ("severities",):  # a severity may look like an epsilon
        expected = "severities, integers from 1 to 5"
    has_choices = any(field_problem["type"] == "literal_error" for field_problem in field_problems)
    choices = re.findall("'([^']*)'", expected) if has_choices else []
    is_choice = choices and (len(field_problems) == 1 or isinstance(problem["input"], str))
    suggestion = did_you_mean(str(problem["input"]), choices) if is_choice else ""
    return f"{field}: expected {expected}, got {reprlib.repr(_convert_from_numpy(problem['input']))}.{suggestion}"


def _convert_from_numpy(value: Any) -> Any:
    """Convert NumPy arrays and numbers to plain Python values for messages."""
    if isinstance(value, list | tuple):
        return type(value)(map(_convert_from_numpy, value))
    return value.tolist() if hasattr(value, "tolist") else value


def _describe_valid_values(problem: Mapping[str, Any]) -> str:
    if isinstance(problem["input"], float) and not math.isfinite(problem["input"]):
        return "a finite number"  # pydantic's message would be about a limit
    template = _VALID_VALUES.get(problem["type"])
    message = problem["msg"].removeprefix("Input should be ")
    return template.format(**problem.get("ctx", {})) if template else f"{message[0].lower()}{message[1:]}"


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the YAML names of the fields of the section at a location; empty if there is no section."""
    field_type: Any = model
    for name_or_index in location:
        if isinstance(field_type, type) and issubclass(field_type, BaseModel):
            field_type = (
                field_type.model_fields[str(name_or_index)].annotation
                if str(name_or_index) in field_type.model_fields
                else None
            )
        else:  # a mapping's value type: dict[str, X]
            field_type = getattr(field_type, "__args__", (None, None))[1]
        for candidate in getattr(field_type, "__args__", ()):
            if (
                isinstance(candidate, type)
                and issubclass(candidate, BaseModel)
                and getattr(field_type, "__origin__", None) is not dict
            ):
                field_type = candidate
    if not (isinstance(field_type, type) and issubclass(field_type, BaseModel)):
        return []
    return [field.alias or name for name, field in field_type.model_fields.items()]
