"""Events about one network and key, from the files of all processes (`robust201 status --log NAME`)."""

import re
import time
from collections.abc import Collection, Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np

from robust201.core.errors import InputError, did_you_mean
from robust201.networks.spaces import SPACES
from robust201.store.events import Event, event_files, read_events
from robust201.sweep.plan import Plan, PlannedKey

_MAX_CANDIDATES = 5
_LABEL = re.compile(r"#?(?P<architecture>[^/\s]+)[/\s]+(?P<dataset>[^/\s]+)[/\s]+(?P<key>[^/\s]+)(?:[/\s]+(\S+))?")


def find_units(name: str, plan: Plan) -> dict[str, str]:
    """Return the labels, by id, of the units that a name refers to.

    Args:
        name: the beginning of an id, or a label such as ``21/cifar10/pgd``, ``#21 cifar10 pgd`` or
            ``resnet18/cifar10/pgd/random-s0``. A NAS-Bench-201 architecture can be any index or cell string of its
            isomorphism class. Without weights, a label selects all of them.
        plan: the plan.

    Raises:
        InputError: no unit matches, or several ids begin with the name.
    """
    label = _LABEL.fullmatch(name.strip())
    if label is not None:
        return _find_by_label(label["architecture"], label["dataset"], label["key"], label[4], plan)
    units: dict[str, str] = {}
    for key in plan.keys if re.fullmatch(r"[0-9a-f]{1,32}", name) else ():
        rows = np.flatnonzero(np.strings.startswith(key.units, name.encode()))
        units |= {key.units[row].decode(): _label_of(key, row) for row in rows.tolist()}
    if len(units) != 1:
        found = ", ".join(f"{unit} ({text})" for unit, text in [*units.items()][:_MAX_CANDIDATES]) or "none"
        raise InputError(
            f"Looking up events failed for {name!r}: expected the beginning of one unit's id, or "
            f"ARCHITECTURE/DATASET/KEY such as 21/cifar10/pgd, got {found}. Correct the name; "
            "`robust201 status --json` lists the units of failures."
        )
    return units


def _label_of(key: PlannedKey, row: int) -> str:
    network = key.networks[row]
    return "/".join(filter(None, (str(network.architecture), key.dataset, key.key, network.name)))


def _find_by_label(architecture: str, dataset: str, key_name: str, weights: str | None, plan: Plan) -> dict[str, str]:
    keys = [key for key in plan.keys if (key.dataset, key.key) == (dataset, key_name)]
    if not keys:
        names = dict.fromkeys(f"{key.dataset}/{key.key}" for key in plan.keys)
        raise InputError(
            f"Looking up events failed for {dataset}/{key_name}: expected a dataset and key of {plan.config.name}."
            f"{did_you_mean(f'{dataset}/{key_name}', names)}"
        )
    space = SPACES.get(plan.config.space_name)
    wanted = str(architecture if space is None else space.resolve(architecture))
    matches = {
        key.units[row].decode(): _label_of(key, row)
        for key in keys
        for row, network in enumerate(key.networks)
        if str(network.architecture) == wanted and weights in {None, network.name}
    }
    if not matches:
        names = dict.fromkeys(_label_of(keys[0], row) for row in range(len(keys[0].networks)))
        name = "/".join(filter(None, (wanted, dataset, key_name, weights)))
        raise InputError(
            f"Looking up events failed for {name}: expected a network of {plan.config.name}.{did_you_mean(name, names)}"
        )
    return matches


def read_log(results: Path, units: Collection[str]) -> list[Event]:
    """Return the events about some units with the name of their process, sorted by the times of their hosts."""
    events = [
        event | {"process": path.stem}
        for path in event_files(results)
        for event in read_events(path, None)
        if event.get("unit") in units
    ]
    return sorted(events, key=itemgetter("time"))


def follow_log(results: Path, units: Collection[str], *, every: float) -> Iterator[Event]:
    """Yield the events about some units, and then new ones, until the caller stops."""
    seen: set[tuple[str, float, str]] = set()
    while True:
        for event in read_log(results, units):
            identity = event["process"], event["time"], event["event"]
            if identity not in seen:
                seen.add(identity)
                yield event
        time.sleep(every)
