"""Sweeps over tiny networks: completion, resumption, splitting of units, changed protocols and status."""

import itertools
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from robust201.core.records import Bundle, Part
from robust201.export import export_dataset
from robust201.monitoring.status import read_status
from robust201.planning.bundles import MIN_SECONDS
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.runtime import sweep as sweep_module
from robust201.runtime.executors import make_executor
from robust201.runtime.executors.base import Executor
from robust201.runtime.lease import Lease
from robust201.runtime.scheduler import RunTally
from robust201.runtime.sweep import RunPreview, load_plan, run_sweep
from robust201.shards import ShardStore
from robust201.sweep.config import SweepConfig
from robust201.tasks import ENGINES
from tests.conftest import TINY_KEYS, MakeSweep, read_tree


def run(config: SweepConfig, **options: object) -> tuple[RunTally, RunPreview]:
    previews: list[RunPreview] = []
    tally = run_sweep(config, make_executor, on_preview=previews.append, **options)
    return tally, previews[0]


def export(config: SweepConfig, out: Path, **options: object) -> dict[str, bytes]:
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    export_dataset(plan, store, store.inventory(verify="all", on_damage="raise"), out, **options)
    return read_tree(out)


def list_shards(config: SweepConfig) -> list[Path]:
    return sorted((config.results / "shards").rglob("*.parquet"))


def test_rerun_of_complete_sweep_computes_nothing(make_sweep: MakeSweep) -> None:
    config = make_sweep()
    tally, preview = run(config)
    assert tally.complete
    assert (preview.done, preview.plan.n_evaluations, tally.results) == (0, 2 * 13, 2 * 13)
    rerun, preview = run(config)
    assert (preview.missing, preview.done, rerun.results) == ((), 2 * 13, 0)


@pytest.mark.ray
@pytest.mark.parametrize("engine", ["fused", pytest.param("reference", marks=pytest.mark.slow)])
def test_ray_and_inline_runs_export_same_bytes(
    make_sweep: MakeSweep, tmp_path: Path, engine: str, ray_address: str
) -> None:
    inline_config = make_sweep(engine=engine, results=str(tmp_path / "inline"))
    execution = {"executor": "ray", "workers": 2, "ray_address": ray_address}
    ray_config = make_sweep(engine=engine, results=str(tmp_path / "ray"), execution=execution)
    assert run(inline_config)[0].complete
    tally = run(ray_config)[0]
    assert tally.complete
    assert (tally.results, tally.failures, tally.deaths) == (2 * 13, [], 0)
    assert run(ray_config)[0].results == 0
    assert export(inline_config, tmp_path / "inline-json") == export(ray_config, tmp_path / "ray-json")


@pytest.mark.parametrize(("engine", "seed"), [("reference", 0), pytest.param("fused", 1, marks=pytest.mark.slow)])
def test_splitting_and_order_of_parts_do_not_change_results(
    make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, seed: int
) -> None:
    """Units are split and ordered at random. After shards are lost, the missing parts are split differently."""
    rng = random.Random(seed)

    def split(part: Part) -> list[Part]:
        step = 4 if engine == "reference" else 1  # a batch shares its random numbers, so it must not be split
        strengths = list(part.strengths)
        rng.shuffle(strengths)
        subparts = []
        for part_strengths in (strengths[:1], strengths[1:]):
            positions = [position for position in range(part.start + 1, part.stop) if position % step == 0]
            cuts = sorted(rng.sample(positions, min(len(positions), rng.randrange(3))))
            edges = itertools.pairwise([part.start, *cuts, part.stop])
            subparts += [
                Part(part.unit, tuple(sorted(part_strengths)), start, stop) for start, stop in edges if part_strengths
            ]
        return subparts

    def make_bundles(_plan: Plan, parts: Sequence[Part], **_options: object) -> list[Bundle]:
        subparts = [subpart for part in parts for subpart in split(part)]
        rng.shuffle(subparts)
        return [Bundle(subpart.unit.architecture, subpart.unit.dataset, (subpart,)) for subpart in subparts]

    fields = {"engine": engine, "architectures": [21]}
    unsplit_config = make_sweep(**fields, results=str(tmp_path / "unsplit"))
    run(unsplit_config)
    monkeypatch.setattr(sweep_module, "make_bundles", make_bundles)
    split_config = make_sweep(**fields, results=str(tmp_path / "split"))
    run(split_config)
    for shard in list_shards(split_config)[::5]:
        shard.unlink()
    run(split_config)
    assert len(list_shards(split_config)) > len(list_shards(unsplit_config))
    assert export(unsplit_config, tmp_path / "unsplit-json") == export(split_config, tmp_path / "split-json")


@pytest.mark.parametrize("engine", ENGINES)
def test_number_of_workers_changes_parts_but_not_results(make_sweep: MakeSweep, tmp_path: Path, engine: str) -> None:
    fields = {"engine": engine, "architectures": [21], "keys": {"pgd": TINY_KEYS["pgd"]}}
    config = make_sweep(**fields)
    plan = make_plan(config, assumed_facts(config))
    (unit,) = plan.units
    speed = plan.macs(Part(unit, unit.strengths, 0, unit.n_images)) / 1e9 / (10 * MIN_SECONDS)
    exports, n_shards = [], []
    for n_workers in (1, 16):
        name = f"{n_workers} workers"
        execution = {"gmacs_per_second": speed, "device": "cpu"}
        config = make_sweep(**fields, results=str(tmp_path / name), execution=execution)

        def make(plan: Plan, n_workers: int = n_workers) -> Executor:
            executor = make_executor(plan)
            executor.n_workers = n_workers
            return executor

        assert run_sweep(config, make).complete
        exports.append(export(config, tmp_path / f"{name} json"))
        n_shards.append(len(list_shards(config)))
    assert exports[0] == exports[1]
    # Ten images are three batches of up to four. The reference engine also computes each of two strengths separately.
    assert n_shards == [1, 3 if engine == "fused" else 6]


@pytest.mark.parametrize("engine", ["fused", pytest.param("reference", marks=pytest.mark.slow)])
def test_epsilons_evaluated_together_or_separately_give_same_results(
    make_sweep: MakeSweep, tmp_path: Path, engine: str
) -> None:
    def keys(*epsilons: int) -> dict[str, dict[str, object]]:
        return {
            key: TINY_KEYS[key] | {"epsilons": [f"{epsilon}/255" for epsilon in epsilons]}
            for key in ("fgsm", "pgd", "aa_apgd-ce", "aa_square")
        }

    single_run_config = make_sweep(engine=engine, results=str(tmp_path / "together"), keys=keys(1, 8))
    run(single_run_config)
    run(make_sweep(engine=engine, results=str(tmp_path / "separate"), keys=keys(8)))
    extended_config = make_sweep(engine=engine, results=str(tmp_path / "separate"), keys=keys(1, 8))
    tally, preview = run(extended_config)
    assert (preview.done, tally.results) == (8, 8)
    exports = export(single_run_config, tmp_path / "together-json"), export(extended_config, tmp_path / "separate-json")
    assert exports[0] == exports[1]


def test_changed_protocol_is_recomputed_and_difference_reported(make_sweep: MakeSweep) -> None:
    run(make_sweep())
    tally, preview = run(make_sweep(keys=TINY_KEYS | {"pgd": {"epsilons": ["1/255", "8/255"], "steps": 3}}))
    assert tally.results == 4
    assert any("pgd" in line and "parameters.steps: 2 → 3" in line for line in preview.stale)


def test_status_is_running_while_lease_is_fresh(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys={"clean": {}})
    run(config)
    progress = config.results / "progress.json"
    progress.write_text(json.dumps(json.loads(progress.read_text()) | {"state": "running"}))

    def is_running() -> bool:
        return read_status(load_plan(config.results), ShardStore.open(config.results).inventory()).running

    assert not is_running()
    with Lease.acquire(config.results):
        assert is_running()
        os.utime(config.results / "lease.json", (0, 0))
        assert not is_running()
