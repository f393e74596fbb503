"""Causes of a plan's missing parts, found from shard names, stored protocols and the facts of the last run."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import unit_id
from robust201.store.names import Listing, Names, names_of
from robust201.sweep.facts import Facts
from robust201.sweep.parts import KeyState, ReadTuple, SweepState, find_rows, find_stored
from robust201.sweep.plan import Plan, PlannedKey
from robust201.sweep.protocol import list_differences

Protocols = Mapping[str, Mapping[str, Any]]

NEW = "not computed yet"
NEW_STRENGTHS = "strengths were added"
NEW_COLUMNS = "measurements were added"
NEW_SLICES = "stored with another number of slices"
NEW_WEIGHTS = "the weights have changed"

_MAX_SHOWN_KEYS = 4


class Cause(NamedTuple):
    """A cause of missing parts, with the keys and the number of these parts."""

    reason: str
    keys: tuple[str, ...]
    n_parts: int

    def __str__(self) -> str:
        keys = ", ".join(self.keys) if len(self.keys) <= _MAX_SHOWN_KEYS else f"{len(self.keys)} keys"
        return f"{keys}: {self.n_parts:,} {'part is' if self.n_parts == 1 else 'parts are'} missing: {self.reason}"


def explain(
    plan: Plan,
    state: SweepState,
    listing: Listing,
    read_tuple: ReadTuple,
    protocols: Protocols,
    earlier_facts: Facts | None = None,
) -> list[Cause]:
    """Return the causes of all missing parts, the most frequent first.

    Args:
        plan: the plan.
        state: comparison of the plan with the listing.
        listing: names of all shards.
        read_tuple: function that returns the strengths or columns for a digest in a shard's name.
        protocols: all stored protocols by digest.
        earlier_facts: the facts of the last run before this one; None if there was none.
    """
    keys: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for key_state in state.keys:
        if not key_state.done.all():
            names = names_of(listing, key_state.key.dataset)
            for reason, count in _find_reasons(plan, key_state, names, read_tuple, protocols, earlier_facts).items():
                keys.setdefault(reason, []).append(f"{key_state.key.dataset} {key_state.key.key}")
                counts[reason] += count
    return [Cause(reason, tuple(keys[reason]), count) for reason, count in counts.most_common()]


def _find_reasons(
    plan: Plan, state: KeyState, names: Names, read_tuple: ReadTuple, protocols: Protocols, earlier_facts: Facts | None
) -> Counter[str]:
    key, is_missing = state.key, ~state.done.all(axis=1)
    stored = find_stored(key, names, (), read_tuple)
    lacks_columns = is_missing & (stored & ~state.done).any(axis=1)
    lacks_strengths = is_missing & ~lacks_columns & stored.any(axis=1)
    counts = Counter({NEW_COLUMNS: int(lacks_columns.sum()), NEW_STRENGTHS: int(lacks_strengths.sum())})
    is_unexplained = is_missing & ~lacks_columns & ~lacks_strengths
    for reason, is_affected in _iter_network_reasons(plan, key, names, protocols, earlier_facts):
        is_explained = is_unexplained & np.repeat(is_affected, key.n_slices)
        counts[reason] += int(is_explained.sum())
        is_unexplained &= ~is_explained
    counts[NEW] += int(is_unexplained.sum())
    return +counts


def _iter_network_reasons(
    plan: Plan, key: PlannedKey, names: Names, protocols: Protocols, earlier_facts: Facts | None
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each reason for missing results with the networks that it affects, as a mask (N,).

    The reasons: another number of slices, stored protocols that differ from the planned one, and changed weights.
    """
    starts, stops = (np.searchsorted(names["unit"], key.units, side=side) for side in ("left", "right"))
    has_planned_slices = np.isin(np.arange(len(key.units)), find_rows(key, names)[0])
    yield NEW_SLICES, (starts < stops) & ~has_planned_slices
    for digest, payload in protocols.items():
        if digest != key.protocol and (payload.get("dataset"), payload.get("key")) == (key.dataset, key.key):
            yield "; ".join(list_differences(payload, key.payload)), _have_results(plan, key, names, digest)
    earlier_dataset = earlier_facts.datasets.get(key.dataset) if earlier_facts else None
    earlier_networks = earlier_dataset.networks if earlier_dataset else ()
    weights = {(network.architecture, network.name): network.weights.sha256 for network in earlier_networks}
    changed = [
        weights.get((network.architecture, network.name)) not in {None, "", network.weights.sha256}
        for network in key.networks
    ]
    yield NEW_WEIGHTS, np.array(changed, bool)


def _have_results(plan: Plan, key: PlannedKey, names: Names, protocol: str) -> NDArray[np.bool_]:
    space = plan.config.space_name
    ids = [unit_id(space, network.architecture, network.weights.sha256, protocol) for network in key.networks]
    return np.isin(np.array(ids, "S32"), names["unit"])
