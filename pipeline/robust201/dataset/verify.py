"""Everything that can be checked of finished results: shards, rows, coverage, and an export made of them."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robust201.core.errors import InputError
from robust201.core.records import IMPORTED_FILE
from robust201.dataset.groups import SweepPlan
from robust201.dataset.imported_plan import load_any_plan
from robust201.dataset.listing import read_listing
from robust201.planning.plan_file import PLAN_FILE
from robust201.runtime.lease import Lease
from robust201.shards import Inventory, ShardFinding, ShardStore, requeue_shards


@dataclass(frozen=True)
class Verdict:
    """What verification found.

    Attributes:
        gaps: units that have some of their strengths and lack others, with what they lack.
        export: what is wrong with the export, one line each.
        requeued: names of the shards that were moved, so that the next run computes what is wrong again.
        n_evaluations: evaluations in the shards, of whatever plan.
        n_planned: evaluations of the plan; None where the folder has no plan.
        n_missing: those of them that are not there whole, with all their measurements.
        n_exported: files of the export that were checked; None where none was to be.
    """

    findings: tuple[ShardFinding, ...]
    gaps: tuple[str, ...]
    export: tuple[str, ...]
    requeued: tuple[str, ...]
    n_shards: int
    n_evaluations: int
    n_planned: int | None
    n_missing: int
    n_exported: int | None

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged; what is missing is unfinished, not damaged."""
        return not (self.findings or self.export)

    def to_payload(self) -> dict[str, Any]:
        """JSON value of it."""
        return {
            "sound": self.sound,
            "findings": [
                {"shard": found.shard, "unit": found.unit, "kind": found.kind, "message": found.message}
                for found in self.findings
            ],
            "gaps": list(self.gaps),
            "export": list(self.export),
            "requeued": list(self.requeued),
            "shards": self.n_shards,
            "evaluations": self.n_evaluations,
            "planned": self.n_planned,
            "missing": self.n_missing,
            "exported_files": self.n_exported,
        }


def verify_results(
    results: Path,
    *,
    export: Path | None = None,
    requeue: bool = False,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verdict:
    """Check a results folder, and an export made of it file by file.

    To requeue is to move what is wrong out of the way, so that the next run computes it again and nothing else.
    `on_progress` is told after each shard how many of how many are checked.

    Raises:
        InputError: there is no such folder, or an export is to be compared and no plan is there.
        ResultsError: there is no whole export in the folder named.
        LeaseHeldError: a driver is at work, and `requeue` was asked for.
    """
    store = ShardStore.open(results)
    n_exported = None if export is None else len(read_listing(export).digests)
    moved: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    with Lease.acquire(results) if requeue else nullcontext():
        inventory = store.inventory(verify="all", on_damage="report")
        findings = store.verify(inventory, on_progress=on_progress)
        planned = any((results / name).is_file() for name in (PLAN_FILE, IMPORTED_FILE))
        plan = load_any_plan(results) if planned else None
        if export is not None and plan is None:
            raise InputError(
                f"Verifying failed for {export}: expected a {PLAN_FILE} in {results} that says what was exported, "
                "got none. Write it with: robust201 run SWEEP.yaml"
            )
        if requeue:
            moved = requeue_shards(store.folder, inventory, findings)
        if export is not None and plan is not None:
            from robust201.dataset.verify_export import check_export

            # What was moved can no longer be read, and what is damaged proves nothing about an export.
            left = store.inventory(on_damage="report") if moved else inventory
            wrong = tuple(check_export(plan, store, left, export))
    return Verdict(
        findings=tuple(findings),
        gaps=() if plan is None else find_gaps(plan, inventory),
        export=wrong,
        requeued=moved,
        n_shards=len(inventory.shards),
        n_evaluations=inventory.n_evaluations,
        n_planned=None if plan is None else sum(len(unit.strengths) for unit in plan.units),
        n_missing=0 if plan is None else count_missing(plan, inventory),
        n_exported=n_exported,
    )


def count_missing(plan: SweepPlan, inventory: Inventory) -> int:
    """Count the evaluations of a plan that are not there with all their images and measurements."""
    return sum(
        len(unit.strengths) - inventory.count_complete(unit, plan.measurements_of(unit.key)) for unit in plan.units
    )


def find_gaps(plan: SweepPlan, inventory: Inventory) -> tuple[str, ...]:
    """List the units that have some of their strengths and lack others."""
    gaps = []
    for unit in plan.units:
        measurements = plan.measurements_of(unit.key)
        lacking = [s for s in unit.strengths if not inventory.is_complete(unit, s, measurements)]
        if 0 < len(lacking) < len(unit.strengths):
            gaps.append(f"{unit.label} at {', '.join(f'{strength:g}' for strength in lacking)}")
    return tuple(gaps)
