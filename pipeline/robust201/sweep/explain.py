"""Why parts of a plan are missing, one line per dataset, key and cause; it follows from names and stored protocols."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import unit_id
from robust201.store.names import Listing, Names, names_of
from robust201.sweep.facts import Facts
from robust201.sweep.parts import KeyState, ReadTuple, SweepState, find_stored
from robust201.sweep.plan import Plan, PlannedKey
from robust201.sweep.protocol import list_differences

Protocols = Mapping[str, Mapping[str, Any]]

NEW = "not computed yet"
NEW_STRENGTHS = "strengths were added"
NEW_COLUMNS = "measurements were added"
NEW_WEIGHTS = "the weights have changed"


class Cause(NamedTuple):
    """Number of missing parts of a key with one cause."""

    dataset: str
    key: str
    reason: str
    n_parts: int

    def __str__(self) -> str:
        return f"{self.dataset} {self.key}: {self.n_parts:,} parts are missing: {self.reason}"


def explain(
    plan: Plan,
    state: SweepState,
    listing: Listing,
    read_tuple: ReadTuple,
    protocols: Protocols,
    earlier: Facts | None = None,
) -> list[Cause]:
    """Return the causes of all missing parts.

    Args:
        plan: the plan.
        state: its comparison with the listing.
        listing: names of all shards.
        read_tuple: function that returns the tuple behind a digest.
        protocols: all stored protocols by digest.
        earlier: the facts of the previous run; None if there was none.
    """
    causes = []
    for key_state in state.keys:
        if not key_state.done.all():
            names = names_of(listing, key_state.key.dataset)
            reasons = _find_reasons(plan, key_state, names, read_tuple, protocols, earlier)
            causes += [Cause(key_state.key.dataset, key_state.key.key, *item) for item in reasons.most_common()]
    return causes


def _find_reasons(
    plan: Plan, state: KeyState, names: Names, read_tuple: ReadTuple, protocols: Protocols, earlier: Facts | None
) -> Counter[str]:
    key, is_missing = state.key, ~state.done.all(axis=1)
    stored = find_stored(key, names, (), read_tuple)
    lacks_columns = is_missing & (stored & ~state.done).any(axis=1)
    lacks_strengths = is_missing & ~lacks_columns & stored.any(axis=1)
    counts = Counter({NEW_COLUMNS: int(lacks_columns.sum()), NEW_STRENGTHS: int(lacks_strengths.sum())})
    is_unexplained = is_missing & ~lacks_columns & ~lacks_strengths
    for reason, networks in _reasons_of_networks(plan, key, names, protocols, earlier).items():
        is_explained = is_unexplained & np.repeat(networks, key.n_slices)
        counts[reason] += int(is_explained.sum())
        is_unexplained &= ~is_explained
    counts[NEW] += int(is_unexplained.sum())
    return +counts


def _reasons_of_networks(
    plan: Plan, key: PlannedKey, names: Names, protocols: Protocols, earlier: Facts | None
) -> dict[str, NDArray[np.bool_]]:
    """Return the networks (N,) whose results of another protocol or of other weights are stored, by reason."""
    reasons = {}
    for digest, payload in protocols.items():
        is_other = digest != key.protocol and (payload.get("dataset"), payload.get("key")) == (key.dataset, key.key)
        if is_other:
            reasons["; ".join(list_differences(payload, key.payload))] = _have_results(plan, key, names, digest)
    if earlier is not None and key.dataset in earlier.datasets:
        old_weights = {
            (network.architecture, network.name): network.weights.sha256
            for network in earlier.datasets[key.dataset].networks
        }
        changed = [
            old_weights.get((network.architecture, network.name), network.weights.sha256) != network.weights.sha256
            for network in key.networks
        ]
        reasons[NEW_WEIGHTS] = np.array(changed, bool)
    return reasons


def _have_results(plan: Plan, key: PlannedKey, names: Names, protocol: str) -> NDArray[np.bool_]:
    space = plan.config.space_name
    ids = [unit_id(space, network.architecture, network.weights.sha256, protocol) for network in key.networks]
    return np.isin(np.array(ids, "S32"), names["unit"])
