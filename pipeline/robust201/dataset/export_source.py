"""Input of an export, read from a results folder: facts about the sweep, and the results of its units."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import Unit
from robust201.dataset.groups import Group, SweepFacts
from robust201.dataset.shard_rows import KeyRows, UnitRows
from robust201.dataset.unstable_networks import list_stable_results
from robust201.images.specs import UNKNOWN_COUNT
from robust201.store.folder import ResultsFolder
from robust201.store.names import Names, names_of
from robust201.sweep.parts import KeyState, compare
from robust201.sweep.plan import Plan, PlannedKey
from robust201.sweep.sweep_record import describe_sweep, portable_fields
from robust201.tasks.columns import fields_of


@dataclass(eq=False)
class StoredRows:
    """Results of some networks of a key (see `dataset.row_batch.UnitResults`)."""

    folder: ResultsFolder
    key: PlannedKey
    names: Names
    networks: tuple[int, ...]
    columns: tuple[str, ...]
    provenances: tuple[Mapping[str, str], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"folder": self.folder.root}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"folder": ResultsFolder.open(state["folder"])})

    def __iter__(self) -> Iterator[tuple[Unit, UnitRows]]:
        rows = KeyRows(self.folder, self.key, {self.key.dataset: self.names})
        for network in self.networks:
            yield self.key.unit(network), rows.read(network, self.columns)
        self.provenances = tuple(dict(fields) for fields in rows.provenances)


def read_facts(plan: Plan) -> SweepFacts:
    """Return the facts about a plan's sweep that an export contains."""
    config = plan.config
    specs = {dataset: config.dataset_spec(dataset) for dataset in config.datasets}
    networks = [network for facts in plan.facts.datasets.values() for network in facts.networks]
    weights = [network.weights for network in networks if network.weights.sha256]
    return SweepFacts(
        record=describe_sweep(plan),
        fields=portable_fields(config),
        space=config.space_name,
        tasks={key: task for key, task in config.tasks.items() if config.parameters[key].images_file is None},
        measurements=config.measurements,
        n_classes={dataset: spec.n_classes for dataset, spec in specs.items()},
        weights={entry.name: entry for entry in weights} if config.has_several_weights else {},
        n_test={dataset: spec.n_test for dataset, spec in specs.items() if spec.n_test != UNKNOWN_COUNT},
        recorded_accuracies=plan.facts.recorded_accuracies,
    )


def read_groups(plan: Plan, folder: ResultsFolder, weights: str | None = None) -> list[Group]:
    """Return the units of each dataset and key, and the strengths that each unit lacks.

    Args:
        plan: the plan; other results of the folder are ignored.
        folder: the results.
        weights: name of the weights whose units are returned; None for all.

    Raises:
        ConfigError: no weights have this name.

    Warns:
        RobustWarning: an unstable network has results; they count as missing.
    """
    _check_weights(plan, weights)
    listing = list_stable_results(plan, folder)
    states = compare(plan, listing, folder.read_tuple).keys
    groups = [_make_group(plan, folder, names_of(listing, state.key.dataset), state, weights) for state in states]
    return [group for group in groups if group.units]


def _make_group(plan: Plan, folder: ResultsFolder, names: Names, state: KeyState, weights: str | None) -> Group:
    key = state.key
    missing = [
        tuple(strength for strength, is_stored in zip(key.strengths, row, strict=True) if not is_stored)
        for row in state.complete.tolist()
    ]
    unknown = {*key.networks_without_weights()}  # their weights may have this name
    networks = [row for row, network in enumerate(key.networks) if weights in (None, network.name) or row in unknown]
    networks.sort(key=lambda index: key.networks[index].architecture)
    measurements = key.task.columns or plan.config.measurements
    return Group(
        dataset=key.dataset,
        task=key.task,
        measurements=measurements,
        units=tuple(key.unit(index) for index in networks),
        missing_strengths={key.unit(index).id: missing[index] for index in networks if missing[index]},
        rows=StoredRows(
            folder,
            key,
            names,
            tuple(index for index in networks if not missing[index]),
            tuple(column for name in measurements for column in fields_of(name).values()),
        ),
    )


def _check_weights(plan: Plan, name: str | None) -> None:
    names = list(dict.fromkeys(network.name for key in plan.keys for network in key.networks if network.name))
    if name is not None and name not in names:
        raise ConfigError(
            f"Choosing weights failed: expected one of {', '.join(names)}, got {name!r}.{did_you_mean(name, names)}"
            if names
            else f"Choosing weights failed for {name!r}: the weights of these results have no names. Omit the name."
        )
