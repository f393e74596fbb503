"""Record of a sweep in its export, with all fields that are needed to reproduce it and no machine-specific values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robust201.core.files import portable_name
from robust201.sweep.config import SweepConfig
from robust201.sweep.plan import Plan
from robust201.sweep.user_tasks import UserTaskParameters
from robust201.tasks import CORRUPTION_GROUP, CORRUPTIONS
from robust201.tasks.parameters import Parameters


def describe_sweep(plan: Plan) -> dict[str, Any]:
    """Describe the origin of results for exports, as a JSON value without paths of this machine."""
    config = plan.config
    return {
        "name": config.name,
        "space": config.space_name,
        "network": dict(config.make_space(plan.facts.code).identity()),
        "images": config.images.model_dump(),
        "seed": config.seed,
        "measurements": list(config.measurements),
        "protocols": [dict(key.payload) for key in plan.keys],
    }


def portable_fields(config: SweepConfig) -> dict[str, Any]:
    """Return the fields of a sweep YAML that reproduces the results; paths are shortened (see `portable_name`)."""
    # The optional fields that are deleted below are written only if they are used.
    fields: dict[str, Any] = config.model_dump(mode="json", exclude={"execution", "shards"}, exclude_none=False)
    for name in ("checkpoints", "weights"):
        if fields[name] is None:
            del fields[name]
    if fields.get("weights") and fields["weights"]["steps"] is None:
        del fields["weights"]["steps"]
    fields["results"] = "results"
    fields["keys"] = _dump_parameters(config.parameters)
    for dataset in fields["datasets"].values():
        for name in ("classes", "image_size", "channels", "resize", "normalisation"):
            if dataset[name] is None:
                del dataset[name]
    portable_sweep: dict[str, Any] = _make_paths_portable(fields)
    return portable_sweep


_PATH_FIELDS = {"path", "frost_path", "file", "files"}


def _make_paths_portable(value: Any, *, are_paths: bool = False) -> Any:
    """Shorten the paths in a field (see `portable_name`); with `are_paths`, all strings in the field are paths."""
    if isinstance(value, dict):
        return {
            name: _make_paths_portable(member, are_paths=are_paths or name in _PATH_FIELDS)
            for name, member in value.items()
        }
    return portable_name(Path(value)) if are_paths and isinstance(value, str) else value


def _dump_parameters(parameters: Mapping[str, Parameters]) -> dict[str, Any]:
    """Return the field `keys` of a sweep; the group of corruptions replaces 15 corruptions with equal parameters."""
    fields_by_key: dict[str, Any] = {
        # A custom task's defaults are omitted, because some of them are not allowed for its kind.
        key: key_parameters.model_dump(
            mode="json", by_alias=True, exclude_unset=isinstance(key_parameters, UserTaskParameters)
        )
        | ({} if key_parameters.images_file is None else {"images": {"file": key_parameters.images_file}})
        for key, key_parameters in parameters.items()
    }
    first_corruption, *other_corruptions = (fields_by_key.get(key) for key in CORRUPTIONS)
    if first_corruption is None or any(corruption != first_corruption for corruption in other_corruptions):
        return fields_by_key
    return {key: key_parameters for key, key_parameters in fields_by_key.items() if key not in CORRUPTIONS} | {
        CORRUPTION_GROUP: first_corruption
    }


_EXCLUDED_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("name", "results", "shards", "execution"), True),
    "checkpoints": {"path"},
    "weights": {"path", "files"},
    "datasets": {"__all__": {"path": True, "corruptions": {"path", "frost_path"}}},
}
"""Fields that do not affect results, and paths of weights and images, which change when files are moved."""


def result_fields(config: SweepConfig) -> dict[str, Any]:
    """Return the fields of a sweep that may affect results, without paths of weights and datasets."""
    fields: dict[str, Any] = config.model_dump(mode="json", exclude=_EXCLUDED_FIELDS)
    has_custom_tasks = any(isinstance(parameters, UserTaskParameters) for parameters in config.parameters.values())
    if config.engine != "reference" and not has_custom_tasks:
        # The batch size affects the random numbers of reference libraries and custom tasks, and no other results.
        del fields["batch_size"]
    return fields
