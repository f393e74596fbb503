"""Protocols: everything that determines a result, except architecture, weights and strength."""

from collections.abc import Iterator, Mapping
from typing import Any

from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import DatasetFacts, Facts

UNKNOWN_IMAGES = {"source": "unknown"}
"""Placeholder for published corrupted images that were never read, because no run needed them."""


def make_protocol(config: SweepConfig, dataset: str, key: str, facts: Facts) -> dict[str, Any]:
    """Return the protocol of a key on a dataset, as a JSON value."""
    task, parameters, dataset_facts = config.tasks[key], config.parameters[key], facts.datasets[dataset]
    is_custom = f"keys.{key}" in facts.code
    protocol: dict[str, Any] = {
        "dataset": dataset,
        "images": _describe_images(config, key, dataset_facts),
        "network": dict(config.make_space(facts.code).identity()),
        "key": key,
        "version": task.semantics_version,
        "parameters": parameters.identity(),
        "engine": config.engine,
        "precision": config.precision,
    }
    if config.engine == "reference" or is_custom:
        protocol["batch_size"] = config.batch_size  # the images of a batch share random numbers
    if task.kind == "attack" or parameters.uses_random_numbers:
        protocol["seed"] = config.seed
    if task.kind == "corruption":
        protocol["corruption"] = dataset_facts.corruptions.get(key, UNKNOWN_IMAGES)
    if is_custom:
        protocol["file_sha256"] = facts.code[f"keys.{key}"]
    normalisation = config.dataset_spec(dataset).normalisation
    effective = {"normalisation": {"mean": list(normalisation.mean), "std": list(normalisation.std)}}
    return protocol | {"dataset_fields": config.datasets[dataset].identity() | effective}


def _describe_images(config: SweepConfig, key: str, facts: DatasetFacts) -> dict[str, Any]:
    """Return the hash of a key's images, the split if it is not `test`, and the count and seed of a random subset."""
    selection = config.parameters[key].image_selection
    split, count, seed = (
        ("test", config.images.count, config.images.seed)
        if selection is None
        else (selection.split, selection.count, selection.seed)
    )
    description: dict[str, Any] = {"sha256": facts.images_of(key).sha256}
    if split != "test":
        description["split"] = split
    return description if count is None else description | {"count": count, "seed": seed}


def list_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the fields in which two protocols (or other mappings) differ, such as ``parameters.steps: 40 → 20``."""
    old_fields, new_fields = dict(_flatten("", old)), dict(_flatten("", new))
    return [
        f"{name}: {old_fields.get(name, 'absent')} → {new_fields.get(name, 'absent')}"
        for name in sorted(old_fields.keys() | new_fields.keys())
        if old_fields.get(name) != new_fields.get(name)
    ]


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, member in value.items():
            yield from _flatten(f"{prefix}.{name}" if prefix else name, member)
    else:
        yield prefix, value
