"""Imported results in a sweep that takes them: which of them count as done, and why others do not."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robust201.core.errors import InputError
from robust201.core.records import IMPORTED_FILE, Unit, is_imported
from robust201.images import DATASETS
from robust201.planning.imported_plan import ImportedGroup, ImportedPlan, load_imported_plan
from robust201.planning.plan import Plan, describe_difference
from robust201.shards import Inventory, ShardStore
from robust201.shards.scan import OnDamage, Verify

_SHOWN_CHARACTERS = 200
_NAMED_KEYS = 4


def read_inventory(
    plan: Plan | ImportedPlan,
    store: ShardStore,
    *,
    verify: Verify = "none",
    on_damage: OnDamage = "raise",
    networks: Collection[tuple[str, int]] | None = None,
) -> Inventory:
    """Find out what a results folder holds of its plan (see `ShardStore.inventory` and `adopt`, also for errors)."""
    return adopt(plan, store.inventory(verify=verify, on_damage=on_damage, networks=networks), store.root)


def adopt(plan: Plan | ImportedPlan, inventory: Inventory, results: Path) -> Inventory:
    """Let imported results count as those of a sweep that takes them.

    An imported result counts for the evaluation of the same architecture, dataset, key and strength, where that was not
    computed, if the import of the key has all of the sweep's measurements, and of the same images.

    Args:
        plan: the sweep's plan, or a part of it; or what was imported, of which every result counts anyway.
        inventory: what the folder holds.
        results: the results folder.

    Raises:
        InputError: shards hold imported results, and `imported.json` is gone or damaged.
    """
    imported = _load_taken(plan, inventory, results)
    if not isinstance(plan, Plan) or imported is None:
        return inventory
    units = _by_place(plan.units)
    adopted: dict[str, Unit] = {}
    for group in imported.groups:
        if _find_obstacle(plan, units, group) is None:
            held = set(group.architectures)
            members = units[group.dataset, group.key]
            adopted |= {unit.id: group.unit(unit.architecture) for unit in members if unit.architecture in held}
    return inventory.adopting(adopted)


def _load_taken(plan: Plan | ImportedPlan, inventory: Inventory, results: Path) -> ImportedPlan | None:
    """Read what was imported, if a sweep takes it; None where nothing was."""
    if not isinstance(plan, Plan) or not plan.config.take_imported:
        return None
    if (results / IMPORTED_FILE).is_file():
        return load_imported_plan(results)
    if any(is_imported(unit.protocol) for unit in inventory.units):
        raise InputError(
            f"Reading the imported plan failed for {results}: expected {IMPORTED_FILE}, as shards hold imported "
            "results, got none. Import every dataset of the folder again."
        )
    return None


def _by_place(units: Sequence[Unit]) -> Mapping[tuple[str, str], list[Unit]]:
    found: defaultdict[tuple[str, str], list[Unit]] = defaultdict(list)
    for unit in units:
        found[unit.dataset, unit.key].append(unit)
    return found


def _find_obstacle(plan: Plan, units: Mapping[tuple[str, str], Sequence[Unit]], group: ImportedGroup) -> str | None:
    """Say why no imported result of a key can stand for the sweep's; None where they can."""
    members = units.get((group.dataset, group.key))
    if not members:
        return "a dataset or key outside this sweep"
    lacking = [measurement for measurement in plan.measurements if measurement not in group.measurements]
    if lacking:
        return f"they lack {', '.join(lacking)}"
    return _compare_images(group, members[0].n_images, plan.protocols[members[0].protocol].payload)


def _compare_images(group: ImportedGroup, n_images: int, wanted: Mapping[str, Any]) -> str | None:
    """Say why imported results may be of other images than a protocol's; None where they are of the same."""
    n_test = DATASETS[group.dataset].n_test
    if group.n_images != n_images:
        return f"they are of {group.n_images:,} images, this sweep's of {n_images:,}"
    told = group.payload.get("images", {}).get("sha256")
    if told is None and n_images != n_test:
        return f"which {n_images:,} of the {n_test:,} test images they are of is not known"
    if told is not None and told != wanted["images"]["sha256"]:
        return "they are of other images than this sweep's"
    corruption, own = group.payload.get("computed_under", {}).get("corruption"), wanted.get("corruption")
    if corruption is None and own is not None and own.get("source") != "published":
        return "which corrupted images they are of is not known, and this sweep's are not the published ones"
    if corruption is not None and corruption != own:
        return "they are of other corrupted images than this sweep's"
    return None


def count_taken(plan: Plan | ImportedPlan, inventory: Inventory) -> int:
    """Count the evaluations of a sweep that were imported and not computed."""
    return sum(inventory.count_adopted(unit, plan.measurements) for unit in plan.units)


def explain_unused(plan: Plan | ImportedPlan, inventory: Inventory, results: Path) -> Iterator[str]:
    """Say which imported results in a folder a sweep does not use, and why; by dataset and key.

    Args:
        plan: the whole plan.
        inventory: what the folder holds, as `adopt` gives it.
        results: the results folder.

    Yields:
        Lines for people: one a reason, however many keys it holds for.

    Raises:
        InputError: `imported.json` is gone or damaged.
    """
    if not isinstance(plan, Plan):
        return
    left = Counter({d: n for d, n in inventory.foreign({unit.id for unit in plan.units}).items() if is_imported(d)})
    imported = _load_taken(plan, inventory, results)
    if imported is None:
        if left:
            yield f"{left.total():,} imported evaluations are kept but not used: the sweep does not take them"
        return
    units = _by_place(plan.units)
    unused: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for group in imported.groups:
        place, digest = (group.dataset, group.key), group.protocol.digest
        members = units.get(place, ())
        if digest in inventory.adopted_protocols:
            left[digest] -= sum(inventory.count_adopted(unit, plan.measurements) for unit in members)
        obstacle = _find_obstacle(plan, units, group)
        reasons = _split_unused(group, members, left[digest]) if obstacle is None else {obstacle: left[digest]}
        for why, count in reasons.items():
            if count > 0:
                unused[why][place] += count
    for why, counts in unused.items():
        yield f"{counts.total():,} imported evaluations of {_name_places(counts)} are kept but not used: {why}"


def _split_unused(group: ImportedGroup, members: Sequence[Unit], n_unused: int) -> dict[str, int]:
    """Count the unused results of an import that could stand for the sweep's, by why they do not."""
    wanted = {unit.architecture for unit in members}
    n_shared = sum(index in wanted for index in group.architectures)
    n_others = len(group.architectures) - n_shared
    n_strengths = len({*group.strengths} - {*members[0].strengths})
    of_others = min(n_unused, n_others * len(group.strengths))
    at_others = min(n_unused - of_others, n_shared * n_strengths)
    return {
        "architectures outside this sweep": of_others,
        "strengths outside this sweep": at_others,
        "computed here as well": n_unused - of_others - at_others,
    }


def _name_places(places: Collection[tuple[str, str]]) -> str:
    """Name datasets and keys, of many the first two and how many others there are."""
    names = [f"{dataset} {key}" for dataset, key in places]
    if len(names) <= _NAMED_KEYS:
        return ", ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} other keys"


def explain_mixing(plan: Plan | ImportedPlan, inventory: Inventory, results: Path) -> Iterator[str]:
    """Say which imported results that a sweep takes are known to have been computed otherwise, and what differs.

    Args:
        plan: the plan.
        inventory: what the folder holds, as `adopt` gives it.
        results: the results folder.

    Yields:
        Lines for people: how many of a key's evaluations these are, and each field as imported and as in this sweep.

    Raises:
        InputError: `imported.json` is gone or damaged.
    """
    if not isinstance(plan, Plan) or not inventory.adopted_protocols:
        return
    places: dict[tuple[str, str], Mapping[str, Any]] = {
        (payload["dataset"], payload["key"]): payload for payload in (one.payload for one in plan.protocols.values())
    }
    units = _by_place(plan.units)
    for group in load_imported_plan(results).groups:
        computed_under = group.payload.get("computed_under")
        if group.protocol.digest not in inventory.adopted_protocols or computed_under is None:
            continue
        differences = "; ".join(describe_difference(computed_under, places[group.dataset, group.key]))
        if differences:
            members = units[group.dataset, group.key]
            n_all = sum(len(unit.strengths) for unit in members)
            n_taken = sum(inventory.count_adopted(unit, plan.measurements) for unit in members)
            shown = differences if len(differences) <= _SHOWN_CHARACTERS else f"{differences[:_SHOWN_CHARACTERS]}…"
            mixes = "mixes two protocols" if n_taken < n_all else "follows another protocol than this sweep's"
            yield (
                f"{group.dataset} {group.key} {mixes}: {n_taken:,} of its {n_all:,} evaluations are imported and were "
                f"computed otherwise (imported → this sweep: {shown})"
            )


def merge_imported(sources: Sequence[Path], target: Path) -> tuple[str, ...]:
    """Join what several results folders know of their imported results, whose shards were joined before.

    Args:
        sources: results folders.
        target: receives what they know; what it or an earlier source knows of a key stays.

    Returns:
        Lines that say which imports of a later source are not used.

    Raises:
        InputError: a folder's `imported.json` is damaged.
    """
    folders = [folder for folder in (target, *sources) if (folder / IMPORTED_FILE).is_file()]
    if not folders:
        return ()
    joined = load_imported_plan(folders[0])
    unused = []
    for folder in folders[1:]:
        known = {(group.dataset, group.key): group for group in joined.groups}
        groups = load_imported_plan(folder).groups
        joined = joined.updated([group for group in groups if (group.dataset, group.key) not in known])
        for group in groups:
            kept = known.get((group.dataset, group.key))
            if kept is not None and kept.protocol != group.protocol:
                unused.append(f"{group.dataset} {group.key} was imported into {folder} from other files: not used")
    joined.save(target)
    return tuple(unused)
