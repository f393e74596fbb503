"""Complete evaluations are counted with one `Unit` object per key, and the counts match those of each unit."""

import numpy as np

from robust201.core.records import Part
from robust201.export.verify import find_gaps
from robust201.monitoring.status import read_status
from robust201.planning.plan import make_plan
from robust201.planning.plan_file import load_facts
from robust201.runtime.executors import make_executor
from robust201.runtime.preview import count_coverage, preview_run
from robust201.runtime.sweep import run_sweep
from robust201.shards import ShardStore
from tests.conftest import MakeSweep

KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}, "pgd": {"epsilons": ["8/255"], "steps": 1}}


def test_count_coverage_matches_count_of_each_unit(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys=KEYS)
    run_sweep(config, make_executor)
    next((config.results / "shards").rglob("*-pgd-*")).unlink()
    wider_config = make_sweep(
        keys={**KEYS, "fgsm": {"epsilons": ["1/255", "4/255", "8/255"]}, "aa_square": {"epsilons": ["8/255"]}}
    )
    facts = load_facts(config.results)
    assert facts is not None
    inventory, plan = ShardStore.open(config.results).inventory(), make_plan(wider_config, facts)
    complete_counts = [
        count for coverage in count_coverage(plan, inventory) for count in coverage.complete_counts.tolist()
    ]
    assert complete_counts == [inventory.count_complete(unit, plan.measurements) for unit in plan.units]
    assert set(complete_counts) == {0, 1, 2}
    missing_parts = [part for unit in plan.units for part in inventory.find_missing_parts(unit, plan.measurements)]
    assert list(preview_run(plan, plan, inventory).missing) == missing_parts
    n_missing, gap_labels = find_gaps(plan, inventory)
    assert n_missing == plan.n_evaluations - sum(complete_counts)
    incomplete_units = [
        unit for unit, count in zip(plan.units, complete_counts, strict=True) if 0 < count < len(unit.strengths)
    ]
    assert gap_labels == tuple(f"{unit.label} at 4" for unit in incomplete_units)
    status = read_status(plan, inventory)
    assert (status.done, status.total, status.stale) == (sum(complete_counts), plan.n_evaluations, 0)
    narrowed_plan = plan.narrow(keys=["fgsm"])
    assert inventory.count_foreign_evaluations(narrowed_plan.unit_ids) == {
        digest: count
        for digest, count in inventory.count_foreign_evaluations(np.array([], "S32")).items()
        if digest not in {unit.protocol for unit in narrowed_plan.units}
    }
    macs = [plan.macs(Part(unit, unit.strengths, 0, unit.n_images)) for unit in plan.units]
    assert [unit_macs for planned_key in plan.planned_keys for unit_macs in plan.unit_macs(planned_key)] == macs
