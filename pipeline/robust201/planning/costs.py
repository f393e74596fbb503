"""Worker-hours of a plan by dataset and key: from assumed speeds, or from seconds that a results folder has."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robust201.core.errors import RobustError
from robust201.planning.plan import Plan

Speeds = Mapping[tuple[str, str], float]
"""Measured multiply-accumulates per second of one worker, by dataset and key."""


class KeyCost(NamedTuple):
    """Cost of one key on one dataset.

    Attributes:
        dataset: the dataset.
        key: the key.
        hours: worker-hours.
        is_measured: whether they follow from measured seconds.
    """

    dataset: str
    key: str
    hours: float
    is_measured: bool


def key_costs(plan: Plan, speeds: Speeds) -> list[KeyCost]:
    """Estimate the hours of each dataset and key, in the order of the plan; those of a transfer without its source."""
    assumed = plan.config.execution.assumed_gmacs() * 1e9
    macs: dict[tuple[str, str], float] = {}
    for planned in plan.planned_keys:
        place = planned.dataset, planned.key
        macs[place] = macs.get(place, 0.0) + sum(plan.unit_macs(planned))
    return [
        KeyCost(*place, total / speeds.get(place, assumed) / 3600, place in speeds) for place, total in macs.items()
    ]


def total_hours(plan: Plan, speeds: Speeds) -> float:
    """Estimate the hours of a plan, with the sources of its transfers."""
    sources = plan.source_macs / (plan.config.execution.assumed_gmacs() * 1e9) / 3600
    return sources + sum(cost.hours for cost in key_costs(plan, speeds))


def measure_speeds(plan: Plan, results: Path) -> dict[tuple[str, str], float]:
    """Measure speeds from the seconds of a results folder's rows, of keys with the same parameters as in the plan.

    Returns:
        Speeds by dataset and key; empty if there is no results folder yet, or it cannot be read (`run` says why).
    """
    if not results.is_dir():
        return {}
    from robust201.shards import ShardStore

    try:
        inventory = ShardStore.open(results).inventory(on_damage="report")
    except RobustError:
        return {}
    if not len(inventory):
        return {}
    wanted = {(planned.dataset, planned.key): plan.protocols[planned.protocol].payload for planned in plan.planned_keys}
    passes = {
        (planned.dataset, planned.key): plan.passes(planned.dataset, planned.key) for planned in plan.planned_keys
    }
    unit, start, stop = (inventory.row_column(name) for name in ("unit", "start", "stop"))
    work = np.zeros(len(inventory.units))
    np.add.at(work, unit, (stop - start).astype(np.float64))
    seconds = np.zeros(len(inventory.units))
    np.add.at(seconds, unit, inventory.row_column("seconds").astype(np.float64))
    macs: dict[tuple[str, str], float] = {}
    spent: dict[tuple[str, str], float] = {}
    for position, stored in enumerate(inventory.units):
        place = stored.dataset, stored.key
        if place not in wanted or not is_alike(inventory.protocol(stored.protocol), wanted[place]):
            continue
        try:
            per_pass = plan.network_macs(stored.dataset, stored.architecture)
        except KeyError:  # a network that the plan lacks
            continue
        macs[place] = macs.get(place, 0.0) + per_pass * passes[place] * float(work[position])
        spent[place] = spent.get(place, 0.0) + float(seconds[position])
    return {place: amount / spent[place] for place, amount in macs.items() if spent[place] > 0 and amount > 0}


def is_alike(stored: Mapping[str, object], planned: Mapping[str, object]) -> bool:
    """Return whether the payloads of two protocols of a key differ in their images at most."""
    return all(stored.get(name) == planned.get(name) for name in ("parameters", "network", "engine", "precision"))
