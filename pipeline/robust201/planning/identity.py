"""What decides a number: the protocol of each key on each dataset."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from robust201.core.records import EvaluationProtocol
from robust201.planning.config import SweepConfig
from robust201.planning.input_facts import DatasetFacts, InputFacts
from robust201.planning.transfers import TransferParameters


def protocol_payload(config: SweepConfig, dataset: str, key: str, facts: InputFacts) -> dict[str, Any]:
    """Everything but architecture, weights and strength that decides the numbers of one key on one dataset."""
    row, parameters = config.tasks[key], config.parameters[key]
    known = facts.datasets[dataset]
    payload: dict[str, Any] = {
        "dataset": dataset,
        "images": _images_payload(config, key, known),
        "network": dict(config.make_space(facts.code).identity()),
        "key": key,
        "semantics_version": row.semantics_version,
        "parameters": parameters.identity(),
        "engine": config.engine,
        "precision": config.precision,
    }
    if config.engine == "reference" or f"keys.{key}" in facts.code:
        # The reference libraries and attacks of the user's own draw once a batch; elsewhere the batch decides the last
        # bits of a convolution.
        payload["batch_size"] = config.batch_size
    if row.kind == "attack" or parameters.draws:
        payload["seed"] = config.seed
    if row.kind == "corruption":
        payload["corruption"] = dict(known.corruptions.get(key, {}))
    if isinstance(parameters, TransferParameters):
        source = config.transfers[key]
        payload["source"] = parameters.identify_source(source, facts.weights[dataset][source])
    if f"keys.{key}" in facts.code:
        payload["file_sha256"] = facts.code[f"keys.{key}"]
    own = config.datasets[dataset].identity()
    if own:
        payload["dataset_fields"] = own
    return payload


def is_known(protocol: EvaluationProtocol) -> bool:
    """Whether a protocol is complete: with corrupted images once these exist, of a sample once it is drawn."""
    return protocol.payload.get("corruption") != {} and is_drawn(protocol)


def is_drawn(protocol: EvaluationProtocol) -> bool:
    """Whether the images of a protocol are known; those of a sample that is not drawn yet are not."""
    return bool(protocol.payload["images"]["sha256"])


def sampled_payload(payload: Mapping[str, Any], images_sha256: str) -> dict[str, Any]:
    """Return the payload of a protocol on a sample, named by the hash of its images; empty: not drawn yet."""
    return {**payload, "images": {"sha256": images_sha256, "sample_of": payload["images"]["sha256"]}}


def _images_payload(config: SweepConfig, key: str, facts: DatasetFacts) -> dict[str, Any]:
    """The hash of the images that a key is shown, and what picked them; nothing of that where all were taken.

    Libraries that decoded the images are left out: the hash is of the pixels.
    """
    own = config.parameters[key].own_images
    found = facts.images(own)
    count, seed = (config.images.count, config.images.seed) if own is None else (own.count, own.seed)
    payload: dict[str, Any] = {"sha256": found.sha256}
    if own is not None and own.split != "test":
        payload["split"] = own.split
    return payload if count is None else payload | {"count": count, "seed": seed}


def describe_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Say in which fields two protocol payloads differ: lines such as ``parameters.steps: 40 → 20``, sorted."""
    left, right = dict(_flatten("", old)), dict(_flatten("", new))
    return [
        f"{name}: {left.get(name, 'absent')} → {right.get(name, 'absent')}"
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]


def _flatten(prefix: str, value: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(value, Mapping):
        nested = (_flatten(f"{prefix}{name}.", item) for name, item in value.items())
        return list(itertools.chain.from_iterable(nested))
    return [(prefix.removesuffix("."), value)]
