"""What lies beside the results of an export: meta.json as published, and files of our own, such as sweep.json."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import yaml

from robust201 import __version__
from robust201.core.errors import ConfigError
from robust201.core.records import Unit, is_imported
from robust201.dataset.groups import Group, KeyStyle, ProtocolShare, SweepPlan, are_imported, spell
from robust201.reader.result_files import EXPORT_FORMAT, META_FILE, MISSING_FILE, SWEEP_FILE
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.tasks import PERTURBATIONS

SWEEP_YAML_FILE = "sweep.yaml"
VERSIONS_FILE = "versions.json"
WEIGHTS_FILE = "weights.json"
"""Which weights a sweep's networks have: protocols tell nothing of them."""

SOURCE = "source"
"""What imported results have for a provenance: the dataset that they were read from."""

_OF_MACHINES = {"host", "micro_batch"}
_WRITERS = ("numpy", "orjson", "pyarrow")


def side_file_texts(
    plan: SweepPlan,
    groups: Sequence[Group],
    shares: Sequence[ProtocolShare],
    *,
    provenances: Iterable[Mapping[str, str]],
    weights: Mapping[str, Mapping[str, str]],
    key_style: KeyStyle,
    round_to: int | None,
) -> dict[str, str]:
    """Make the texts of all that lies beside an export's results but the cards, by name of the file."""
    texts = {
        META_FILE: meta_file_text(strengths_of_keys(groups), key_style),
        SWEEP_FILE: sweep_text(plan, groups, key_style, round_to, shares),
        VERSIONS_FILE: versions_text(provenances, shares),
    }
    if weights:
        texts[WEIGHTS_FILE] = json.dumps(weights, indent=1) + "\n"
    if any(group.lacking for group in groups):
        texts[MISSING_FILE] = missing_text(groups, key_style)
    if not are_imported(shares):
        texts[SWEEP_YAML_FILE] = sweep_yaml_text(plan)
    return texts


def meta_file_text(strengths: Mapping[str, Sequence[float]], key_style: KeyStyle) -> str:
    """Text of meta.json: all 15,625 architectures with their isomorphs, and the epsilons of each attack.

    Args:
        strengths: by key in the paper's style; keys that are no attacks are passed over.
        key_style: how to spell the keys.

    Returns:
        With the paper's epsilons and published keys, the bytes of the published file.
    """
    epsilons = {
        spell(key, key_style): [float(epsilon) for epsilon in strengths[key]]
        for key, row in PERTURBATIONS.items()
        if key in strengths and row.kind == "attack"
    }
    return nasbench201.meta_text(epsilons)


def strengths_of_keys(groups: Iterable[Group]) -> dict[str, tuple[float, ...]]:
    """Find the strengths of each key.

    Raises:
        ConfigError: an attack has different epsilons on different datasets.
    """
    by_key: dict[str, Group] = {}
    for group in groups:
        first = by_key.setdefault(group.key, group)
        if first.strengths != group.strengths and PERTURBATIONS[group.key].kind == "attack":
            raise ConfigError(
                f"Exporting failed for {group.dataset} {group.key}: expected the epsilons of {first.dataset}, "
                f"{list(first.strengths)}, got {list(group.strengths)}. {META_FILE} has one list per key: export the "
                "datasets apart with --datasets."
            )
    return {key: group.strengths for key, group in by_key.items()}


def sweep_text(
    plan: SweepPlan,
    groups: Iterable[Group],
    key_style: KeyStyle,
    round_to: int | None,
    shares: Sequence[ProtocolShare],
) -> str:
    """Text of sweep.json: protocols and what came of each, image selection, strengths and version."""
    strengths: dict[str, dict[str, list[float]]] = {}
    for group in groups:
        strengths.setdefault(group.dataset, {})[group.spell(key_style)] = list(group.strengths)
    payload = {
        "format": EXPORT_FORMAT,
        "robust201": __version__,
        "key_style": key_style,
        "round_to": round_to,
        "measurements": list(plan.measurements),
        "strengths": strengths,
        "sweep": plan.describe() | {"protocols": [dict(share.payload) for share in shares]},
        "evaluations": {share.digest: share.n_evaluations for share in shares},
    }
    return json.dumps(payload, indent=2, allow_nan=False) + "\n"


def sweep_yaml_text(plan: SweepPlan) -> str:
    """Text of sweep.yaml: the sweep with every default written out, without what decides no number."""
    head = (
        "# The sweep of this dataset, every default written out (null: what docs/configuration.md says of the field).\n"
        "# Paths are shortened to their last names: set them to where your weights and images lie, and add\n"
        "# `execution` for your machines. What ships with robust201 is named by `bundled:`.\n"
    )
    return head + yaml.safe_dump(plan.portable_fields(), sort_keys=False, default_flow_style=None, width=120)


def versions_text(provenances: Iterable[Mapping[str, str]], shares: Iterable[ProtocolShare]) -> str:
    """Text of versions.json: what computed the results, where others were imported from, and what wrote the files.

    Args:
        provenances: of the results (see `core.records.EvaluationResult`). What tells machines apart is left out.
        shares: protocols, of which imported ones tell their source.
    """
    computed: dict[str, set[str]] = {}
    for provenance in provenances:
        for name, value in provenance.items():
            if name not in _OF_MACHINES | {SOURCE}:
                computed.setdefault(name, set()).add(value)
    imported = sorted({str(share.payload.get(SOURCE)) for share in shares if share.imported})
    exported = {"robust201": __version__, "python": platform.python_version()}
    exported |= {name: version(name) for name in _WRITERS}
    payload: dict[str, Any] = {"computed_with": {name: sorted(values) for name, values in sorted(computed.items())}}
    payload |= {"imported_from": imported} if imported else {}
    return json.dumps(payload | {"exported_with": exported}, indent=2) + "\n"


def weight_hashes(units: Iterable[Unit]) -> dict[str, dict[str, str]]:
    """Find the SHA-256 of the file of weights of each network, by dataset and id; imported units have none."""
    found: dict[str, dict[str, str]] = {}
    for unit in units:
        if not is_imported(unit.protocol):
            found.setdefault(unit.dataset, {})[str(unit.architecture)] = unit.checkpoint_sha256
    return found


def missing_text(groups: Iterable[Group], key_style: KeyStyle) -> str:
    """Text of missing.json: strengths that a partial export lacks, by dataset, key and architecture."""
    nested: dict[str, dict[str, dict[str, list[float]]]] = {}
    for group in groups:
        if group.lacking:
            lacking = {str(index): list(strengths) for index, strengths in group.lacking.items()}
            nested.setdefault(group.dataset, {})[group.spell(key_style)] = lacking
    return json.dumps(nested, indent=1) + "\n"
