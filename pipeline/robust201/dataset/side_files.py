"""Files next to the results of an export: meta.json as published, and additional files such as sweep.json."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from robust201 import __version__
from robust201.core.errors import ConfigError
from robust201.core.records import Unit, content_digest
from robust201.dataset.groups import Export, Group, KeyStyle, spell_key, weights_names
from robust201.dataset.layout import EXPORT_FORMAT, META_FILE, MISSING_FILE, SWEEP_FILE
from robust201.dataset.published_layout import layout_of
from robust201.sweep.sweep_yaml import dump_fields
from robust201.tasks import Task

SWEEP_YAML_FILE = "sweep.yaml"
VERSIONS_FILE = "versions.json"
WEIGHTS_FILE = "weights.json"
"""File with the SHA-256 of each network's weights; protocols do not contain these hashes."""

_MACHINE_FIELDS = {"host", "micro_batch"}
"""Fields of a shard's provenance that do not describe software; versions.json omits them."""
_WRITER_LIBRARIES = ("numpy", "orjson", "pyarrow")

_SWEEP_YAML_HEAD = (
    "# The sweep of this dataset, every default written out (null: what docs/configuration.md says of the field).\n"
    "# Paths are shortened to their last names: set them to where your weights and images lie, and add\n"
    "# `execution` for your machines. What ships with robust201 is named by `bundled:`.\n"
)


def side_file_texts(export: Export) -> dict[str, str]:
    """Return the contents of meta.json, sweep.json and sweep.yaml, and of weights.json and missing.json if needed."""
    facts, groups = export.facts, export.groups
    epsilons = spell_epsilons(strengths_of_keys(groups), facts.tasks, export.key_style)
    units = [unit for group in groups for unit in group.units]
    architectures = (unit.architecture for unit in units)
    weights = _hashes_by_network(units)
    contents = {
        META_FILE: layout_of(facts.space).meta_text(epsilons, architectures),
        SWEEP_FILE: _sweep_text(export),
        WEIGHTS_FILE: json.dumps(weights, indent=1) + "\n" if weights else "",
        MISSING_FILE: _missing_text(export),
        SWEEP_YAML_FILE: sweep_yaml_text(facts.fields),
    }
    return {name: content for name, content in contents.items() if content}


def spell_epsilons(
    strengths: Mapping[str, Sequence[float]], tasks: Mapping[str, Task], key_style: KeyStyle
) -> dict[str, list[float]]:
    """Return the epsilons of each attack in the order of the tasks, with keys spelled in `key_style`."""
    return {
        spell_key(task, key_style): [float(epsilon) for epsilon in strengths[key]]
        for key, task in tasks.items()
        if key in strengths and task.kind == "attack"
    }


def strengths_of_keys(groups: Iterable[Group]) -> dict[str, tuple[float, ...]]:
    """Return the strengths of each key.

    Raises:
        ConfigError: an attack has different epsilons on different datasets.
    """
    groups_by_key: dict[str, Group] = {}
    for group in groups:
        first_group = groups_by_key.setdefault(group.key, group)
        if first_group.strengths != group.strengths and group.task.kind == "attack":
            raise ConfigError(
                f"Exporting failed for {group.dataset} {group.key}: its epsilons {list(group.strengths)} differ from "
                f"{list(first_group.strengths)} for {first_group.dataset}, but {META_FILE} has one list per key. Keep "
                "the results of these datasets in separate folders, and export each folder."
            )
    return {key: group.strengths for key, group in groups_by_key.items()}


def _sweep_text(export: Export) -> str:
    """Return the content of sweep.json: protocols with their numbers of evaluations, image selection, strengths."""
    facts, groups = export.facts, export.groups
    names = weights_names(unit for group in groups for unit in group.units)
    strengths: dict[str, dict[str, list[float]]] = {}
    n_evaluations = {content_digest(payload): 0 for payload in facts.record["protocols"]}
    for group in groups:
        strengths.setdefault(group.dataset, {})[export.spell_key(group)] = list(group.strengths)
        for unit in group.complete_units:
            if unit.protocol in n_evaluations:
                n_evaluations[unit.protocol] += len(group.strengths)
    payload: dict[str, Any] = {
        "format": EXPORT_FORMAT,
        "robust201": __version__,
        "key_style": export.key_style,
        "round_to": export.round_to,
        **({} if export.outcomes is None else {"outcomes": export.outcomes}),
        "measurements": list(export.measurements),
        "strengths": strengths,
        "sweep": {**facts.record} | {"protocols": [dict(payload) for payload in facts.record["protocols"]]},
        "evaluations": n_evaluations,
    }
    if names:  # a hash belongs to one architecture; weights.json has the hashes of all architectures
        payload["weights"] = {
            name: {field: value for field, value in facts.weights[name].to_payload().items() if field != "sha256"}
            for name in names
        }
    return json.dumps(payload, indent=2, allow_nan=False) + "\n"


def sweep_yaml_text(fields: Mapping[str, Any]) -> str:
    """Return the content of sweep.yaml: all fields that affect results, including those with default values."""
    return _SWEEP_YAML_HEAD + dump_fields(fields, default_flow_style=None, width=120)


def versions_text(provenances: Iterable[Mapping[str, str]]) -> str:
    """Return the content of versions.json: versions of the software that computed the results and wrote the files."""
    versions_by_name: dict[str, set[str]] = {}
    for provenance in provenances:
        for name, version_text in provenance.items():
            if name not in _MACHINE_FIELDS:
                versions_by_name.setdefault(name, set()).add(version_text)
    exported_with = {"robust201": __version__, "python": platform.python_version()}
    exported_with |= {name: version(name) for name in _WRITER_LIBRARIES}
    payload: dict[str, Any] = {
        "computed_with": {name: sorted(versions) for name, versions in sorted(versions_by_name.items())}
    }
    return json.dumps(payload | {"exported_with": exported_with}, indent=2) + "\n"


def _hashes_by_network(units: Iterable[Unit]) -> dict[str, dict[str, Any]]:
    """Return the SHA-256 of the networks' weights by dataset and id.

    If architectures have several sets of weights, the result is ``{dataset: {id: {name: SHA-256}}}``.
    """
    by_dataset: dict[str, dict[str, Any]] = {}
    for unit in units:
        hashes = by_dataset.setdefault(unit.dataset, {})
        if unit.weights:
            hashes.setdefault(str(unit.architecture), {})[unit.weights] = unit.checkpoint_sha256
        else:
            hashes[str(unit.architecture)] = unit.checkpoint_sha256
    return by_dataset


def _missing_text(export: Export) -> str:
    """Return the content of missing.json: strengths that a partial export lacks, by dataset, key and architecture.

    If an architecture has several sets of weights, a strength counts as missing if it is missing for any of them. The
    text is empty if nothing is missing.
    """
    missing: dict[str, dict[str, dict[str, list[float]]]] = {}
    for group in export.groups:
        for unit in group.incomplete_units:
            by_key = missing.setdefault(group.dataset, {}).setdefault(export.spell_key(group), {})
            known = by_key.get(str(unit.architecture), ())
            by_key[str(unit.architecture)] = sorted({*known, *group.missing_strengths[unit.id]})
    return json.dumps(missing, indent=1) + "\n" if missing else ""
