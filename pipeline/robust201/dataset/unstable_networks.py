"""Networks whose outputs a worker has found unstable, so that none of their results can be trusted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robust201.core.errors import warn_caller
from robust201.store.events import EVENTS_FOLDER, UNSTABLE, read_failures
from robust201.store.folder import ResultsFolder
from robust201.store.names import Listing
from robust201.sweep.facts import Network
from robust201.sweep.parts import KeyState, compare
from robust201.sweep.plan import Plan, make_plan, open_results


class UnstableNetwork(NamedTuple):
    """Label of an unstable network, and the failure that a worker reported."""

    label: str
    failure: str


UnstableNetworks = Mapping[tuple[str, Network], UnstableNetwork]
"""Unstable networks that have stored results, by dataset and network."""


def read_unstable_networks(results: Path) -> UnstableNetworks:
    """Read the unstable networks of a results folder."""
    if not _read_unstable_failures(results):
        return {}
    plan, folder = open_results(results)
    return find_unstable_networks(plan, compare(plan, folder.list(), folder.read_tuple).keys, results)


def find_unstable_networks(plan: Plan, states: Sequence[KeyState], results: Path) -> UnstableNetworks:
    """Return the unstable networks of a plan, given its stored evaluations."""
    failures = _read_unstable_failures(results)
    has_results = {
        (state.key.dataset, state.key.networks[row])
        for state in (states if failures else ())
        for row in np.flatnonzero(state.complete.any(axis=1)).tolist()
    }
    units = [
        (key.unit(row), (key.dataset, key.networks[row]))
        for key in plan.keys
        for row in np.flatnonzero(np.isin(key.units, [unit.encode() for unit in failures])).tolist()
    ]
    return {
        network: UnstableNetwork(unit.network_label, failures[unit.id])
        for unit, network in units
        if network in has_results
    }


def list_stable_results(plan: Plan, folder: ResultsFolder) -> Listing:
    """Return the names of all shards (see `ResultsFolder.list`), without those of unstable networks.

    Exports, comparisons and readers of outcomes use this listing, so results of unstable networks count as missing.

    Warns:
        RobustWarning: an unstable network has results.
    """
    listing = folder.list()
    if not _read_unstable_failures(folder.root):
        return listing
    plan = make_plan(plan.config, plan.facts, folder.slices)  # `plan` may lack keys
    unstable = find_unstable_networks(plan, compare(plan, listing, folder.read_tuple).keys, folder.root)
    for network in unstable.values():
        message = (
            f"{network.label}: its results are left out, because a worker reported {network.failure} If the cause is "
            f"gone, delete {folder.root / EVENTS_FOLDER}."
        )
        warn_caller(message)
    units = [
        key.unit(row).id.encode()
        for key in plan.keys
        for row, network in enumerate(key.networks)
        if (key.dataset, network) in unstable
    ]
    return {dataset: names[~np.isin(names["unit"], units)] for dataset, names in listing.items()}


def _read_unstable_failures(results: Path) -> dict[str, str]:
    """Return the failures that workers reported for unstable networks, by unit id."""
    return {event["unit"]: str(event["failure"]) for event in read_failures(results) if event.get(UNSTABLE)}
