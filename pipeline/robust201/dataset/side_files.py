"""What lies beside the results of an export: meta.json as published, and files of our own, such as sweep.json."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, Protocol, get_args

import yaml

from robust201 import __version__
from robust201.core.errors import ConfigError, closest
from robust201.core.records import Unit, is_imported
from robust201.reader.result_files import EXPORT_FORMAT, META_FILE
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.tasks import PERTURBATIONS
from robust201.tasks.parameters import Parameters

SWEEP_YAML_FILE = "sweep.yaml"
VERSIONS_FILE = "versions.json"
WEIGHTS_FILE = "weights.json"
"""Which weights a sweep's networks have: protocols tell nothing of them."""

SOURCE = "source"
"""What imported results have for a provenance: the dataset that they were read from."""

_OF_MACHINES = {"host", "micro_batch"}
_WRITERS = ("numpy", "orjson", "pyarrow")

KeyStyle = Literal["paper", "published"]


class SweepPlan(Protocol):
    """What export needs of `planning.plan.Plan`."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """Units sorted by dataset, key and architecture."""

    @property
    def measurements(self) -> tuple[str, ...]:
        """Names of the measurements."""

    def meta_payload(self) -> dict[str, Any]:
        """JSON value of how the numbers came about."""

    def sweep_payload(self) -> dict[str, Any]:
        """Fields of a sweep YAML that computes the same numbers."""


@dataclass(frozen=True, eq=False)
class Group:
    """The units of one (dataset, key), and the strengths that they lack, by architecture."""

    dataset: str
    key: str
    units: tuple[Unit, ...]
    lacking: Mapping[int, tuple[float, ...]]

    @property
    def strengths(self) -> tuple[float, ...]:
        """Strengths of the key, ascending."""
        return self.units[0].strengths

    @property
    def complete_units(self) -> tuple[Unit, ...]:
        """Units that lack nothing."""
        return tuple(unit for unit in self.units if unit.architecture not in self.lacking)

    @property
    def n_left_out(self) -> int:
        """Evaluations that are not exported: all those of units that lack one."""
        return len(self.lacking) * len(self.strengths)

    def spell(self, key_style: KeyStyle) -> str:
        """Spell the key."""
        return spell(self.key, key_style)

    def file_name(self, measurement: str, key_style: KeyStyle) -> str:
        """Name of the file of a measurement."""
        return f"{self.dataset}/{self.spell(key_style)}_{measurement}.json"


@dataclass(frozen=True)
class ProtocolShare:
    """A protocol, and how many evaluations of an export came about by it.

    Attributes:
        digest: of the protocol.
        payload: of the protocol.
        n_evaluations: how many; 0 for one of the sweep by which none of them was computed.
    """

    digest: str
    payload: Mapping[str, Any]
    n_evaluations: int

    @property
    def imported(self) -> bool:
        """Whether results by it were read from the files of a dataset, not computed."""
        return is_imported(self.digest)


def parse_key_style(text: str) -> KeyStyle:
    """Check a key style that a user wrote.

    Raises:
        ConfigError: it is neither ``paper`` nor ``published``.
    """
    for style in get_args(KeyStyle):
        if text == style:
            return style  # type: ignore[no-any-return]
    raise ConfigError(
        f"Reading a key style failed for {text!r}: expected paper or published, got another."
        f"{closest(text, get_args(KeyStyle))}"
    )


def spell(key: str, key_style: KeyStyle) -> str:
    """Spell a key as the paper or as the published files do."""
    return PERTURBATIONS[key].published_key if key_style == "published" else key


def meta_text(parameters: Mapping[str, Parameters], key_style: KeyStyle) -> str:
    """Text of meta.json: all 15,625 architectures with their isomorphs, and the epsilons of each attack.

    Args:
        parameters: by key in the paper's style; keys that are no attacks are passed over.
        key_style: how to spell the keys.

    Returns:
        With the paper's epsilons and published keys, the bytes of the published file.
    """
    return _meta_text_of({key: given.strengths for key, given in parameters.items()}, key_style)


def meta_text_of_groups(groups: Iterable[Group], key_style: KeyStyle) -> str:
    """Text of meta.json for an export.

    Raises:
        ConfigError: an attack has different epsilons on different datasets.
    """
    by_key: dict[str, Group] = {}
    for group in groups:
        first = by_key.setdefault(group.key, group)
        if first.strengths != group.strengths and PERTURBATIONS[group.key].kind == "attack":
            raise ConfigError(
                f"Exporting failed for {group.dataset} {group.key}: expected the epsilons of {first.dataset}, "
                f"{list(first.strengths)}, got {list(group.strengths)}. {META_FILE} has one list a key: export the "
                "datasets apart with --datasets."
            )
    return _meta_text_of({key: group.strengths for key, group in by_key.items()}, key_style)


def _meta_text_of(strengths: Mapping[str, Sequence[float]], key_style: KeyStyle) -> str:
    epsilons = {
        spell(key, key_style): [float(epsilon) for epsilon in strengths[key]]
        for key, row in PERTURBATIONS.items()
        if key in strengths and row.kind == "attack"
    }
    return nasbench201.meta_text(epsilons)


def sweep_text(
    plan: SweepPlan,
    groups: Iterable[Group],
    key_style: KeyStyle,
    round_to: int | None,
    shares: Sequence[ProtocolShare] = (),
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
        "sweep": plan.meta_payload() | {"protocols": [dict(share.payload) for share in shares]},
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
    return head + yaml.safe_dump(plan.sweep_payload(), sort_keys=False, default_flow_style=None, width=120)


def versions_text(provenances: Iterable[Mapping[str, str]], shares: Iterable[ProtocolShare] = ()) -> str:
    """Text of versions.json: what computed the results, or where they were imported from, and what wrote the files.

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


def weights_of(units: Iterable[Unit]) -> dict[str, dict[str, str]]:
    """Find the SHA-256 of the file of weights of each network, by dataset and id; imported units have none."""
    found: dict[str, dict[str, str]] = {}
    for unit in units:
        if not is_imported(unit.protocol):
            found.setdefault(unit.dataset, {})[str(unit.architecture)] = unit.checkpoint_sha256
    return found


def weights_text(weights: Mapping[str, Mapping[str, str]]) -> str:
    """Text of weights.json (see `weights_of`)."""
    return json.dumps(weights, indent=1) + "\n"


def missing_text(groups: Iterable[Group], key_style: KeyStyle) -> str:
    """Text of missing.json: strengths that a partial export lacks, by dataset, key and architecture."""
    nested: dict[str, dict[str, dict[str, list[float]]]] = {}
    for group in groups:
        if group.lacking:
            lacking = {str(index): list(strengths) for index, strengths in group.lacking.items()}
            nested.setdefault(group.dataset, {})[group.spell(key_style)] = lacking
    return json.dumps(nested, indent=1) + "\n"
