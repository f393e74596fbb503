"""Protocol payloads, which contain everything that affects the results of a key on a dataset."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from robust201.core.input_facts import DatasetFacts, InputFacts
from robust201.core.records import EvaluationProtocol
from robust201.sweep.config import SweepConfig


def protocol_payload(config: SweepConfig, dataset: str, key: str, facts: InputFacts) -> dict[str, Any]:
    """Return everything that affects results of a key on a dataset, except architecture, weights and strength."""
    task, parameters = config.tasks[key], config.parameters[key]
    dataset_facts = facts.datasets[dataset]
    payload: dict[str, Any] = {
        "dataset": dataset,
        "images": _images_payload(config, key, dataset_facts),
        "network": dict(config.make_space(facts.code).identity()),
        "key": key,
        "semantics_version": task.semantics_version,
        "parameters": parameters.identity(),
        "engine": config.engine,
        "precision": config.precision,
    }
    if config.engine == "reference" or f"keys.{key}" in facts.code:
        # The reference libraries and custom attacks draw random numbers once per batch. For other tasks, the batch size
        # affects only the last bits of convolutions.
        payload["batch_size"] = config.batch_size
    if task.kind == "attack" or parameters.uses_random_numbers:
        payload["seed"] = config.seed
    if task.kind == "corruption":
        payload["corruption"] = dict(dataset_facts.corruptions.get(key, {}))
    if f"keys.{key}" in facts.code:
        payload["file_sha256"] = facts.code[f"keys.{key}"]
    dataset_fields = config.datasets[dataset].identity()
    if dataset_fields:
        payload["dataset_fields"] = dataset_fields
    return payload


def is_complete(protocol: EvaluationProtocol) -> bool:
    """Return whether a protocol is complete, which requires that its corrupted images exist."""
    return protocol.payload.get("corruption") != {}


def _images_payload(config: SweepConfig, key: str, facts: DatasetFacts) -> dict[str, Any]:
    """Return the hash of a key's images and, unless all images are used, how they were selected.

    The decoder is not included, because the hash covers the decoded pixels.
    """
    selection = config.parameters[key].own_images
    images = facts.images(selection)
    count, seed = (config.images.count, config.images.seed) if selection is None else (selection.count, selection.seed)
    payload: dict[str, Any] = {"sha256": images.sha256}
    if selection is not None and selection.split != "test":
        payload["split"] = selection.split
    return payload if count is None else payload | {"count": count, "seed": seed}


def describe_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the differences between two protocol payloads, as sorted lines such as ``parameters.steps: 40 → 20``."""
    old_fields, new_fields = dict(_flatten("", old)), dict(_flatten("", new))
    return [
        f"{name}: {old_fields.get(name, 'absent')} → {new_fields.get(name, 'absent')}"
        for name in sorted(old_fields.keys() | new_fields.keys())
        if old_fields.get(name) != new_fields.get(name)
    ]


def _flatten(prefix: str, payload: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(payload, Mapping):
        nested = (_flatten(f"{prefix}{name}.", member) for name, member in payload.items())
        return list(itertools.chain.from_iterable(nested))
    return [(prefix.removesuffix("."), payload)]
