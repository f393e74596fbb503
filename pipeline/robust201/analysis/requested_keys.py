"""Keys and parameters as callers of `robust201.evaluate` and `attack` write them."""

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from robust201.core.errors import ConfigError
from robust201.core.user_code import hash_file, importing_neighbours
from robust201.evaluation.user_task import UserTask
from robust201.tasks import KEY_GROUPS, PRESETS, TASKS, Task, expand_keys, find_task
from robust201.tasks.parameters import Parameters
from robust201.tasks.strengths import parse_term

Keys = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]


def parse_keys(keys: Keys, engine: str) -> list[tuple[Task, Parameters]]:
    """Parse the keys of `evaluate` and their parameters."""
    parsed: dict[str, tuple[Task, Parameters]] = {}
    preset = find_preset(keys)
    keys_with_fields = pair_with_fields(keys if preset is None else PRESETS[preset])
    listed_keys = [key for key, _ in keys_with_fields]
    for name, fields in keys_with_fields:
        # A member of a group that is also listed on its own has the parameters listed there, as in a sweep.
        members = [name]
        if isinstance(name, str) and name in KEY_GROUPS:
            members = [key for key in expand_keys([name]) if key not in listed_keys]
        for key in members:
            user_task = _parse_user_task(key, fields)
            task = find_key(key) if user_task is None else user_task[0]
            if task.key in parsed:
                raise ConfigError(
                    f"Reading keys failed for {task.key!r}: it is listed more than once. Evaluate it with other "
                    "parameters in a second call."
                )
            parameters = parse_parameters(task, fields, engine) if user_task is None else user_task[1]
            parsed[task.key] = task.with_parameters(parameters), parameters
    if not parsed:
        raise ConfigError("Reading keys failed: the list is empty. Pass one or more keys, such as clean.")
    return list(parsed.values())


def pair_with_fields(keys: Keys) -> list[tuple[str, Any]]:
    """Return each key with the fields that are set; a strength in a key's name (``pgd:8/255``) becomes a field."""
    pairs: list[tuple[str, Any]] = []
    strengths: dict[str, list[str]] = {}
    for key_or_mapping in [keys] if isinstance(keys, str | Mapping) else keys:
        items = key_or_mapping.items() if isinstance(key_or_mapping, Mapping) else [(key_or_mapping, {})]
        for name, fields in items:
            key, text, field = _split_term(name)
            if not text:
                pairs.append((key, fields))
            elif key in strengths:
                strengths[key].append(text)
            else:
                strengths[key] = [text]
                pairs.append((key, {field: strengths[key]} | (fields or {})))
    return pairs


def _split_term(name: Any) -> tuple[Any, str, str]:
    """Split a name such as "pgd:8/255" into key, strength and field of the strengths; return other names unchanged."""
    key, text = parse_term(name) if isinstance(name, str) else (name, "")
    task = TASKS.get(expand_keys([key])[0]) if text else None
    if task is None or (task.kind != "corruption" and task.constraint is None):
        return name, "", ""
    return key, text, "severities" if task.kind == "corruption" else "epsilons"


def find_preset(keys: Keys) -> str | None:
    """Return the preset that `keys` consists of; None if `keys` contains no preset."""
    keys_with_fields = pair_with_fields(keys)
    presets = [name for name, _ in keys_with_fields if isinstance(name, str) and name in PRESETS]
    if not presets:
        return None
    if len(keys_with_fields) > 1 or keys_with_fields[0][1]:
        raise ConfigError(
            f"Reading keys failed for {presets[0]!r}: expected a preset alone, got further keys or parameters. List "
            f"keys instead: {', '.join(PRESETS[presets[0]])}."
        )
    return presets[0]


def _parse_user_task(key: object, fields: object) -> tuple[UserTask, Parameters] | None:
    """Parse a custom task and its parameters; None for any other key."""
    task_fields = {} if fields is None else fields
    if not isinstance(key, str) or not isinstance(task_fields, Mapping) or "file" not in task_fields:
        return None
    from robust201.sweep.config import parse_custom_task

    try:
        parameters = parse_custom_task(key, task_fields)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"Reading keys failed for {key!r}: {error}") from error
    if parameters.image_selection is not None:
        raise ConfigError(
            f"Reading parameters failed for {key}: `split`, `images` and `image_seed` select images of a sweep, "
            "but `evaluate` measures all images that it receives. Leave them out, or evaluate the key in a sweep."
        )
    task = parameters.to_task(key).located(parameters.file, hash_file(parameters.file))
    with importing_neighbours(task.function) as neighbours:
        task.function.load()
    return replace(task, function=replace(task.function, neighbours=(*neighbours.items(),))), parameters


def find_key(key: object) -> Task:
    """Return the task of a key; raise ConfigError if the key is unknown or not text."""
    if not isinstance(key, str):
        raise ConfigError(
            f"Reading keys failed: expected a name such as 'pgd', or {{'pgd': {{'steps': 80}}}}, got a value of type "
            f"{type(key).__name__}. Pass a list of names or such mappings."
        )
    return find_task(key)


def parse_key(key: object) -> tuple[Task, dict[str, Any]]:
    """Return the task of a key or of a key at a strength (``pgd:8/255``), and the field of the strength, if given."""
    name, text, field = _split_term(key)
    return find_key(name), {field: [text]} if text else {}


_IMAGE_FIELDS = ("split", "images", "image_seed")
"""Parameters that select the images of a measure in a sweep."""


def parse_parameters(task: Task, fields: object, engine: str) -> Parameters:
    """Validate the fields of a key, and return the parameters of its task."""
    if not isinstance(fields, Mapping | None):
        raise ConfigError(
            f"Reading parameters failed for {task.key}: expected a mapping of names to values, got "
            f"{reprlib.repr(fields)}. Write {{{task.key!r}: {{…}}}}."
        )
    values = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in (fields or {}).items()}
    if task.kind == "measure" and (image_fields := [name for name in _IMAGE_FIELDS if name in values]):
        raise ConfigError(
            f"Reading parameters failed for {task.key}: {image_fields[0]!r} selects images of a sweep. Leave it out."
        )
    task.load(engine)  # raises if the task does not support the engine
    try:
        parameters: Parameters = task.parameters(**values)
    except ValidationError as error:
        from robust201.sweep.field_errors import describe_problem

        problem = describe_problem(error, task.model)
        remedy = "" if re.search(r"[.?] [A-Z]", problem) else " Correct it."
        raise ConfigError(f"Reading parameters failed for {task.key}: {problem}{remedy}") from error
    if (reason := parameters.unsupported_engine_reason(engine)) is not None:
        raise ConfigError(f"Reading parameters failed for {task.key}: {reason}")
    return parameters
