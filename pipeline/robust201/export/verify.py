"""Verification of a results folder: its shards and rows, its missing evaluations, and an export of its results."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from robust201.analysis.attack_flags import AttackFlag, find_flags
from robust201.core.errors import ConfigError, IncompleteError, InputError, ResultsError, StorageError
from robust201.core.memory import give_back_freed_memory
from robust201.core.records import EvaluationProtocol
from robust201.export.card import CARD_FILE
from robust201.export.diff import read_numbers
from robust201.export.listing import check_listing, read_listing
from robust201.export.side_files import VERSIONS_FILE
from robust201.export.writing import export_dataset
from robust201.planning.plan import Plan
from robust201.planning.plan_file import PLAN_FILE, load_plan
from robust201.reader.json_files import read_object
from robust201.reader.listings import REEXPORT, key_of_parquet
from robust201.reader.parquet_results import is_converted, read_file
from robust201.reader.result_files import (
    MISSING_FILE,
    SWEEP_FILE,
)
from robust201.runtime.lease import Lease
from robust201.runtime.preview import count_coverage, count_done
from robust201.shards import Inventory, ShardFinding, ShardStore, requeue_shards
from robust201.statistics.weights_check import WeightsCheck
from robust201.store.folder import ResultsFolder
from robust201.sweep.facts import load_plan as load_new_plan
from robust201.sweep.plan import make_plan

_CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class Verdict:
    """Result of verifying a results folder.

    Attributes:
        findings: faults of shards and rows.
        gaps: descriptions of the network-key pairs that have results at some but not all strengths, with the missing
            strengths.
        export_problems: messages about faults in the files of the export.
        requeued_shards: names of shards that were set aside, so that the next run recomputes their evaluations.
        n_shards: number of checked shards.
        n_evaluations: number of checked evaluations.
        n_planned: number of evaluations in the plan; None if the folder has no plan.
        n_missing: number of planned evaluations that are missing or incomplete; 0 if the folder has no plan.
        n_exported: number of files that the export lists; None if no export was checked.
        weights: comparison of clean accuracies with those recorded with the weights; None if there are findings or the
            folder has no plan. Does not affect `is_sound`.
        flags: signs of weak attacks; None if these were not requested, there are findings, or the folder has no plan.
            Does not affect `is_sound`.
    """

    findings: tuple[ShardFinding, ...]
    gaps: tuple[str, ...]
    export_problems: tuple[str, ...]
    requeued_shards: tuple[str, ...]
    n_shards: int
    n_evaluations: int
    n_planned: int | None
    n_missing: int
    n_exported: int | None
    weights: WeightsCheck | None
    flags: tuple[AttackFlag, ...] | None

    @property
    def is_sound(self) -> bool:
        """Whether the results and the export have no faults; missing evaluations are not a fault."""
        return not (self.findings or self.export_problems)

    def to_payload(self) -> dict[str, Any]:
        return {
            "sound": self.is_sound,
            "findings": [
                {name: getattr(finding, name) for name in ("shard", "unit", "kind", "message")}
                for finding in self.findings
            ],
            "gaps": list(self.gaps),
            "export": list(self.export_problems),
            "requeued": list(self.requeued_shards),
            "shards": self.n_shards,
            "evaluations": self.n_evaluations,
            "planned": self.n_planned,
            "missing": self.n_missing,
            "exported_files": self.n_exported,
            "weights": None if self.weights is None else self.weights.to_payload(),
            "flags": None if self.flags is None else [flag.to_payload() for flag in self.flags],
        }


def verify_results(
    results: Path,
    *,
    export: Path | None = None,
    requeue: bool = False,
    attack_flags: bool = False,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verdict:
    """Check a results folder and optionally an export of its results.

    Args:
        results: the results folder.
        export: folder of the export to compare with the results, file by file.
        requeue: whether to set damaged shards aside, so that the next run recomputes only their evaluations.
        attack_flags: whether to search the accuracies for signs of weak attacks.
        on_progress: called after each shard with (shards checked, shards in total).

    Raises:
        InputError: the folder does not exist, or it has no plan to compare the export with.
        ResultsError: `export` does not contain a complete export.
        LeaseHeldError: `requeue` is true while a driver is using the folder.
        StorageError: a protocol's file is damaged or missing.
    """
    store = ShardStore.open(results)
    n_exported = None if export is None else len(read_listing(export).digests)
    requeued: tuple[str, ...] = ()
    export_problems: tuple[str, ...] = ()
    with Lease.acquire(results) if requeue else nullcontext():
        inventory = store.inventory(verify="all", on_damage="report")
        plan = load_plan(results) if (results / PLAN_FILE).exists() else None
        if plan is not None:
            _check_protocol_files(plan, store, inventory)
        findings = store.verify(inventory, on_progress=on_progress)
        give_back_freed_memory()
        if export is not None and plan is None:
            raise InputError(
                f"Verifying failed for {export}: {results} has no {PLAN_FILE}, which is needed to verify an export. "
                "Write it with: robust201 run SWEEP.yaml"
            )
        if requeue:
            requeued = requeue_shards(store.folder, findings)
        if export is not None and plan is not None:
            # The inventory is read again if shards were set aside, because it lists shards that no longer exist.
            current_inventory = store.inventory(on_damage="report") if requeued else inventory
            export_problems = tuple(check_export(plan, store, current_inventory, export))
    plan_if_undamaged = plan if not findings else None
    n_missing, gaps = (0, ()) if plan is None else find_gaps(plan, inventory)
    return Verdict(
        findings=tuple(findings),
        gaps=gaps,
        export_problems=export_problems,
        requeued_shards=requeued,
        n_shards=len(inventory.shards),
        n_evaluations=inventory.n_evaluations,
        n_planned=None if plan is None else plan.n_evaluations,
        n_missing=n_missing,
        n_exported=n_exported,
        weights=None,
        flags=None
        if plan_if_undamaged is None or not attack_flags
        else _find_attack_flags_of_plan(results, plan_if_undamaged),
    )


def find_attack_flags(
    numbers: pd.DataFrame, *, n_images: Mapping[str, int], n_classes: Mapping[str, int]
) -> tuple[AttackFlag, ...]:
    """Find signs of weak attacks on each dataset whose numbers of images and classes are known.

    Args:
        numbers: accuracies (see `read_numbers`); different weights of the same architectures are examined separately.
        n_images: number of images by dataset.
        n_classes: number of classes by dataset.
    """
    flags: list[AttackFlag] = []
    for (_, group_name), rows in numbers.groupby(["weights", "dataset"], sort=False):
        dataset = str(group_name)
        if dataset in n_images and dataset in n_classes:
            accuracies = {
                (str(key), float(str(strength))): dict(zip(group["architecture"], group["value"], strict=True))
                for (key, strength), group in rows.groupby(["key", "strength"], sort=False)
            }
            flags += find_flags(dataset, accuracies, n_images=n_images[dataset], n_classes=n_classes[dataset])
    return tuple(flags)


def _find_attack_flags_of_plan(results: Path, plan: Plan) -> tuple[AttackFlag, ...]:
    # Units of measures have columns instead of accuracies.
    n_images = {unit.dataset: unit.n_images for unit in plan.units if not unit.columns}
    return find_attack_flags(
        read_numbers(results),
        n_images=n_images,
        n_classes={name: count for name in n_images if (count := plan.n_classes(name)) is not None},
    )


def _check_protocol_files(plan: Plan, store: ShardStore, inventory: Inventory) -> None:
    """Raise StorageError if results were computed under a protocol whose file is missing."""
    digests_with_results = inventory.protocol_digests()
    for payload in plan.describe()["protocols"]:
        protocol = EvaluationProtocol.of(payload)
        if protocol.digest in digests_with_results and not inventory.protocol(protocol.digest):
            path = store.folder.protocols / f"{protocol.digest}.json"
            raise StorageError(
                f"Reading a protocol failed for {path}: the file is missing, but there are results for "
                f"{protocol.payload['key']}. Run the sweep again, which writes the file again."
            )


def find_gaps(plan: Plan, inventory: Inventory) -> tuple[int, tuple[str, ...]]:
    """Return the number of a plan's incomplete evaluations, and descriptions of the units that lack some strengths.

    An evaluation is complete if it has all images and measurements. A unit is all evaluations of one network on one
    dataset under one key; units that lack all strengths are not described.
    """
    gaps = []
    for coverage in count_coverage(plan, inventory):
        for position in coverage.unfinished:
            if coverage.complete_counts[position]:
                unit = coverage.planned_key.unit(position)
                missing_strengths = [
                    strength
                    for strength in unit.strengths
                    if not inventory.is_complete(unit, strength, plan.measurements)
                ]
                gaps.append(f"{unit.label} at {', '.join(f'{strength:g}' for strength in missing_strengths)}")
    return plan.n_evaluations - count_done(plan, inventory).total(), tuple(gaps)


def check_export(plan: Plan, store: ShardStore, inventory: Inventory, out: Path) -> Iterator[str]:
    """Compare an export's files with its listing, and with a new export of the results, which is deleted afterwards.

    Yields a message for each difference, with a remedy. Files that contain versions of software are not compared.
    Damaged files are also reported in messages, not as exceptions.

    Raises:
        ResultsError: the folder is not an export.
    """
    listing = read_listing(out)
    yield from listing.invalid_line_messages if listing.has_no_valid_line else check_listing(out, listing)
    if listing.has_no_valid_line:
        return
    with tempfile.TemporaryDirectory(prefix="robust201-verify-", dir=out.parent) as folder:
        try:
            options = _read_export_options(out, listing.digests)
            results = ResultsFolder.open(store.folder.root)
            new_plan = make_plan(*load_new_plan(results.root), results.slices)
            export_dataset(new_plan, results, Path(folder) / "export", **options)
            yield from _compare_exports(out, listing.digests, Path(folder) / "export")
        except (ResultsError, ConfigError, IncompleteError, InputError, StorageError) as error:
            yield f"Verifying failed for {out}: {error}"


def _read_export_options(out: Path, names: Collection[str]) -> dict[str, Any]:
    """Return the arguments of `export_dataset` with which an export was written."""
    sweep = read_object(out / SWEEP_FILE) or {}
    exported_weights = [*sweep.get("weights", {})]
    has_format = {
        "json": any("/" in name and name.endswith(".json") for name in names),
        "parquet": any(key_of_parquet(name) and not _is_converted(out / name) for name in names),
    }
    return {
        "key_style": str(sweep.get("key_style")),
        "round_to": sweep.get("round_to"),
        "outcomes": sweep.get("outcomes"),
        "weights": exported_weights[0] if len(exported_weights) == 1 else None,
        "formats": [name for name, is_present in has_format.items() if is_present],
        "partial": MISSING_FILE in names,
    }


def _is_converted(path: Path) -> bool:
    """Return whether a Parquet file was converted from JSON files; an export of results does not contain it."""
    return path.suffix == ".parquet" and path.is_file() and is_converted(path)


def _compare_exports(out: Path, digests: Mapping[str, str], new: Path) -> Iterator[str]:
    """Compare an export with a new export of the same results (see `check_export`)."""
    sweeps = [(read_object(folder / SWEEP_FILE) or {}) | {"robust201": None} for folder in (out, new)]
    if sweeps[0] != sweeps[1]:
        fields = [name for name in sweeps[0].keys() | sweeps[1].keys() if sweeps[0].get(name) != sweeps[1].get(name)]
        yield (
            f"Verifying failed for {out / SWEEP_FILE}: {', '.join(sorted(fields))} differ from those of these results. "
            f"Use the folder to which these results were exported. {REEXPORT}"
        )
        return
    new_digests = read_listing(new).digests
    for name in sorted((digests.keys() | new_digests.keys()) - {SWEEP_FILE, CARD_FILE, VERSIONS_FILE}):
        if digests.get(name) == new_digests.get(name) or (name not in new_digests and _is_converted(out / name)):
            continue
        if name not in digests or name not in new_digests:
            problem = "the file is missing" if name in new_digests else "an export of these results has no such file"
            yield f"Verifying failed for {out / name}: {problem}. {REEXPORT}"
        elif not (name.endswith(".parquet") and read_file(out / name).equals(read_file(new / name))):
            # Another version of pyarrow writes other bytes for the same table.
            yield f"Verifying failed for {out / name}: the values differ from the results. {REEXPORT}"
