"""Estimated worker-hours of a plan, by dataset and key.

The estimate uses assumed speeds, or speeds measured in a results folder, which records the seconds of each evaluation.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robust201.core.errors import RobustError
from robust201.planning.plan import Plan

Speeds = Mapping[tuple[str, str], float]
"""Measured speed of one worker in multiply-accumulates per second, by dataset and key."""


class KeyCost(NamedTuple):
    """Cost of one key on one dataset.

    Attributes:
        hours: estimated worker-hours.
        is_measured: whether the estimate is based on measured seconds; otherwise, it is based on the assumed speed.
    """

    dataset: str
    key: str
    hours: float
    is_measured: bool


def key_costs(plan: Plan, speeds: Speeds) -> list[KeyCost]:
    """Estimate the hours by dataset and key, in the order of the plan."""
    assumed_speed = plan.config.execution.assumed_gmacs() * 1e9
    macs: dict[tuple[str, str], float] = {}
    for planned_key in plan.planned_keys:
        dataset_key = planned_key.dataset, planned_key.key
        macs[dataset_key] = macs.get(dataset_key, 0.0) + sum(plan.unit_macs(planned_key))
    return [
        KeyCost(*dataset_key, total_macs / speeds.get(dataset_key, assumed_speed) / 3600, dataset_key in speeds)
        for dataset_key, total_macs in macs.items()
    ]


def total_hours(plan: Plan, speeds: Speeds) -> float:
    """Estimate the hours of a plan."""
    return sum(cost.hours for cost in key_costs(plan, speeds))


def measure_speeds(plan: Plan, results: Path) -> dict[tuple[str, str], float]:
    """Compute speeds from the seconds recorded in a results folder, for keys with the same parameters as in the plan.

    Returns:
        Speeds by dataset and key; empty if the results folder does not exist or cannot be read (`run` reports why).
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
    planned_payloads = {
        (planned_key.dataset, planned_key.key): plan.protocols[planned_key.protocol].payload
        for planned_key in plan.planned_keys
    }
    passes = {
        (planned_key.dataset, planned_key.key): plan.passes(planned_key.dataset, planned_key.key)
        for planned_key in plan.planned_keys
    }
    row_units, start, stop = (inventory.row_column(name) for name in ("unit", "start", "stop"))
    image_counts = np.zeros(len(inventory.units))
    np.add.at(image_counts, row_units, (stop - start).astype(np.float64))
    seconds = np.zeros(len(inventory.units))
    np.add.at(seconds, row_units, inventory.row_column("seconds").astype(np.float64))
    macs: dict[tuple[str, str], float] = {}
    key_seconds: dict[tuple[str, str], float] = {}
    for position, stored_unit in enumerate(inventory.units):
        dataset_key = stored_unit.dataset, stored_unit.key
        if dataset_key not in planned_payloads or not have_same_settings(
            inventory.protocol(stored_unit.protocol), planned_payloads[dataset_key]
        ):
            continue
        try:
            pass_macs = plan.network_macs(stored_unit.dataset, stored_unit.architecture)
        except KeyError:  # the plan does not have this network
            continue
        macs[dataset_key] = macs.get(dataset_key, 0.0) + pass_macs * passes[dataset_key] * float(image_counts[position])
        key_seconds[dataset_key] = key_seconds.get(dataset_key, 0.0) + float(seconds[position])
    return {
        dataset_key: key_macs / key_seconds[dataset_key]
        for dataset_key, key_macs in macs.items()
        if key_seconds[dataset_key] > 0 and key_macs > 0
    }


def have_same_settings(stored_payload: Mapping[str, object], planned_payload: Mapping[str, object]) -> bool:
    """Return whether two protocol payloads of a key have the same parameters, network skeleton, engine and precision.

    They may differ in their images and seeds.
    """
    return all(
        stored_payload.get(name) == planned_payload.get(name)
        for name in ("parameters", "network", "engine", "precision")
    )
