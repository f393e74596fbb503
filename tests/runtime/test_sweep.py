"""Whole sweeps over tiny networks: complete, resumed, narrowed, damaged, contended; inline and Ray alike."""

import itertools
import json
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from robust201.core.errors import CheckpointError, LeaseHeldError, StorageFullError
from robust201.core.records import Bundle, Part, Receipt
from robust201.export import export_dataset
from robust201.monitoring.status import SweepStatus, read_status
from robust201.planning.bundles import FLOOR_SECONDS
from robust201.planning.config import SweepConfig
from robust201.planning.facts import Facts
from robust201.planning.filters import Filters
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.runtime import progress as progress_module
from robust201.runtime import sweep as sweep_module
from robust201.runtime.executors import make_executor
from robust201.runtime.executors.base import Event, Executor
from robust201.runtime.lease import Lease
from robust201.runtime.progress import RunProgress
from robust201.runtime.scheduler import RunTally
from robust201.runtime.sweep import RunPreview, load_plan, run_sweep
from robust201.shards import ShardStore
from robust201.tasks import ENGINES, TASKS
from tests.conftest import TINY_KEYS, MakeSweep, read_tree


def run(config: SweepConfig, **options: object) -> tuple[RunTally, RunPreview]:
    seen: list[RunPreview] = []
    tally = run_sweep(config, make_executor, on_preview=seen.append, **options)
    return tally, seen[0]


def export(config: SweepConfig, out: Path, **options: object) -> dict[str, bytes]:
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    export_dataset(plan, store, store.inventory(verify="all", on_damage="raise"), out, **options)
    return read_tree(out)


def shards(config: SweepConfig) -> list[Path]:
    return sorted((config.results / "shards").rglob("*.parquet"))


def test_a_sweep_completes_and_running_it_again_does_nothing(make_sweep: MakeSweep) -> None:
    config = make_sweep()
    tally, preview = run(config)
    assert tally.complete
    assert (preview.done, preview.plan.n_evaluations, tally.evaluations) == (0, 2 * 13, 2 * 13)
    again, preview = run(config)
    assert (preview.missing, preview.done, again.evaluations) == ((), 2 * 13, 0)


def test_the_export_has_the_papers_layout(make_sweep: MakeSweep, tmp_path: Path) -> None:
    config = make_sweep()
    run(config)
    files = export(config, tmp_path / "json")
    accuracy = json.loads(files["digits/pgd_accuracy.json"])
    assert set(accuracy["digits"]["pgd"]["accuracy"]) == {"0", "21"}
    assert len(accuracy["digits"]["pgd"]["accuracy"]["21"]) == 2
    assert isinstance(json.loads(files["digits/clean_accuracy.json"])["digits"]["clean"]["accuracy"]["0"], float)
    assert len(json.loads(files["meta.json"])["ids"]) == 15_625


@pytest.mark.ray
@pytest.mark.parametrize("engine", ["fused", pytest.param("reference", marks=pytest.mark.slow)])
def test_ray_and_inline_export_the_same_bytes(
    make_sweep: MakeSweep, tmp_path: Path, engine: str, ray_address: str
) -> None:
    inline = make_sweep(engine=engine, results=str(tmp_path / "inline"))
    execution = {"executor": "ray", "workers": 2, "ray_address": ray_address}
    on_ray = make_sweep(engine=engine, results=str(tmp_path / "ray"), execution=execution)
    assert run(inline)[0].complete
    tally = run(on_ray)[0]
    assert tally.complete
    assert (tally.evaluations, tally.failures, tally.deaths) == (2 * 13, [], 0)
    assert run(on_ray)[0].evaluations == 0
    assert export(inline, tmp_path / "inline-json") == export(on_ray, tmp_path / "ray-json")


@pytest.mark.parametrize("engine", [pytest.param("fused", marks=pytest.mark.slow), "reference"])
def test_parts_do_not_change_results(make_sweep: MakeSweep, tmp_path: Path, engine: str) -> None:
    keys = {"clean": {}, "pgd": TINY_KEYS["pgd"], "brightness": TINY_KEYS["brightness"]}
    whole = make_sweep(engine=engine, results=str(tmp_path / "whole"), keys=keys)
    pieces = make_sweep(engine=engine, results=str(tmp_path / "pieces"), keys=keys, execution={"part_minutes": 1e-9})
    run(whole)
    run(pieces)
    assert len(shards(pieces)) > len(shards(whole))
    assert export(whole, tmp_path / "whole-json") == export(pieces, tmp_path / "pieces-json")


@pytest.mark.parametrize(("engine", "seed"), [("reference", 0), pytest.param("fused", 1, marks=pytest.mark.slow)])
def test_no_cut_and_no_order_changes_results(
    make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, seed: int
) -> None:
    """Bundles as no rule would make them: cut anywhere, in any order, and what is lost is cut in other ways."""
    rng = random.Random(seed)

    def cut(part: Part) -> list[Part]:
        step = 4 if engine == "reference" else 1  # images that share their draws stay together
        strengths = list(part.strengths)
        rng.shuffle(strengths)
        pieces = []
        for chosen in (strengths[:1], strengths[1:]):
            places = [place for place in range(part.start + 1, part.stop) if place % step == 0]
            cuts = sorted(rng.sample(places, min(len(places), rng.randrange(3))))
            edges = itertools.pairwise([part.start, *cuts, part.stop])
            pieces += [Part(part.unit, tuple(sorted(chosen)), a, b) for a, b in edges if chosen]
        return pieces

    def make_bundles(_plan: Plan, parts: Sequence[Part], **_options: object) -> list[Bundle]:
        pieces = [piece for part in parts for piece in cut(part)]
        rng.shuffle(pieces)
        return [Bundle(piece.unit.architecture, piece.unit.dataset, (piece,)) for piece in pieces]

    fields = {"engine": engine, "architectures": [21]}
    whole = make_sweep(**fields, results=str(tmp_path / "whole"))
    run(whole)
    monkeypatch.setattr(sweep_module, "make_bundles", make_bundles)
    pieces = make_sweep(**fields, results=str(tmp_path / "pieces"))
    run(pieces)
    for shard in shards(pieces)[::5]:
        shard.unlink()
    run(pieces)
    assert len(shards(pieces)) > len(shards(whole))
    assert export(whole, tmp_path / "whole-json") == export(pieces, tmp_path / "pieces-json")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_number_of_workers_decides_the_cut_and_no_result(
    make_sweep: MakeSweep, tmp_path: Path, engine: str
) -> None:
    fields = {"engine": engine, "architectures": [21], "keys": {"pgd": TINY_KEYS["pgd"]}}
    (unit,) = (plan := make_plan(config := make_sweep(**fields), assumed_facts(config))).units
    speed = plan.macs(Part(unit, unit.strengths, 0, unit.n_images)) / 1e9 / (10 * FLOOR_SECONDS)
    exports, n_shards = [], []
    for n_workers in (1, 16):
        name = f"{n_workers} workers"
        execution = {"gmacs_per_second": speed, "device": "cpu"}
        config = make_sweep(**fields, results=str(tmp_path / name), execution=execution)

        def make(plan: Plan, facts: Facts, n_workers: int = n_workers) -> Executor:
            executor = make_executor(plan, facts)
            executor.n_workers = n_workers
            return executor

        assert run_sweep(config, make).complete
        exports.append(export(config, tmp_path / f"{name} json"))
        n_shards.append(len(shards(config)))
    assert exports[0] == exports[1]
    assert n_shards == [1, 3 if engine == "fused" else 6]  # ten images in batches of four, at two strengths


@pytest.mark.parametrize("engine", ["fused", pytest.param("reference", marks=pytest.mark.slow)])
def test_epsilons_together_and_apart_give_the_same_results(make_sweep: MakeSweep, tmp_path: Path, engine: str) -> None:
    def keys(*epsilons: int) -> dict[str, dict[str, object]]:
        return {
            key: TINY_KEYS[key] | {"epsilons_255": list(epsilons)} for key in ("fgsm", "pgd", "aa_apgd-ce", "aa_square")
        }

    together = make_sweep(engine=engine, results=str(tmp_path / "together"), keys=keys(1, 8))
    run(together)
    apart = make_sweep(engine=engine, results=str(tmp_path / "apart"), keys=keys(8))
    run(apart)
    apart = make_sweep(engine=engine, results=str(tmp_path / "apart"), keys=keys(1, 8))
    tally, preview = run(apart)
    assert (preview.done, tally.evaluations) == (8, 8)
    assert export(together, tmp_path / "together-json") == export(apart, tmp_path / "apart-json")


def test_a_drained_run_is_resumed(make_sweep: MakeSweep, tmp_path: Path) -> None:
    import signal

    config = make_sweep()

    def interrupt(progress: RunProgress, event: Event) -> None:
        del progress
        if isinstance(event, Receipt):
            signal.raise_signal(signal.SIGTERM)

    tally, _ = run(config, on_progress=interrupt)
    assert tally.drained
    assert 0 < tally.evaluations < 26
    resumed, preview = run(config)
    assert preview.done == tally.evaluations
    assert resumed.complete
    undisturbed = make_sweep(results=str(tmp_path / "undisturbed"))
    run(undisturbed)
    assert export(config, tmp_path / "a") == export(undisturbed, tmp_path / "b")


def test_narrowed_runs_add_up(make_sweep: MakeSweep) -> None:
    config = make_sweep()
    first, _ = run(config, filters=Filters(architectures=(21,), keys=("clean", "pgd")))
    assert first.evaluations == 3
    rest, preview = run(config)
    assert (preview.done, rest.evaluations) == (3, 23)


def test_a_changed_protocol_is_computed_anew_and_the_difference_is_named(make_sweep: MakeSweep) -> None:
    run(make_sweep())
    tally, preview = run(make_sweep(keys=TINY_KEYS | {"pgd": {"epsilons_255": [1, 8], "steps": 3}}))
    assert tally.evaluations == 4
    assert any("pgd" in line and "parameters.steps: 2 → 3" in line for line in preview.stale)


def test_what_is_not_used_is_told_in_the_order_of_keys(make_sweep: MakeSweep) -> None:
    keys = {key: TINY_KEYS[key] for key in ("aa_square", "clean", "fgsm", "pgd")}
    run(make_sweep(keys=keys, images={"count": 10, "seed": 0}))
    _, preview = run(make_sweep(keys=keys, images={"count": 11, "seed": 0}))
    told = [re.fullmatch(r"\d+ evaluations of (\S+) are kept but not used: .+", line) for line in preview.stale]
    assert [match[1] for match in told if match] == [key for key in TASKS if key in keys]


@pytest.mark.parametrize("damage", ["truncated", "data", "footer"])
def test_a_damaged_shard_is_set_aside_and_its_evaluations_recomputed(
    make_sweep: MakeSweep, tmp_path: Path, damage: str
) -> None:
    config = make_sweep(keys={"clean": {}, "fgsm": TINY_KEYS["fgsm"]})
    run(config)
    before = export(config, tmp_path / "before")
    victim = shards(config)[0]
    content = bytearray(victim.read_bytes())
    position = {"truncated": len(content) // 2, "data": len(content) // 3, "footer": len(content) - 40}[damage]
    content[position] ^= 1
    victim.write_bytes(content[:position] if damage == "truncated" else content)
    tally, preview = run(config)
    assert [victim.name in name for name in preview.damaged] == [True]
    assert tally.complete
    assert tally.evaluations in (1, 2)
    assert export(config, tmp_path / "after") == before


def test_a_second_driver_is_refused(make_sweep: MakeSweep) -> None:
    config = make_sweep()
    ShardStore.create(config.results)
    with Lease.acquire(config.results), pytest.raises(LeaseHeldError) as caught:
        run(config)
    assert caught.value.exit_code == 4


def test_status_counts_from_the_shards(make_sweep: MakeSweep) -> None:
    config = make_sweep()
    run(config, filters=Filters(keys=("clean", "pgd")))
    state = read_status(load_plan(config.results), ShardStore.open(config.results).inventory(on_damage="report"))
    assert (state.done, state.total, state.running) == (6, 26, False)
    assert {key.key: key.done for key in state.keys if key.done} == {"clean": 2, "pgd": 4}
    assert json.loads(json.dumps(state.to_payload()))["complete"] is False


def test_a_driver_in_a_long_part_counts_as_running(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys={"clean": {}})
    run(config)
    progress = config.results / "progress.json"
    progress.write_text(json.dumps(json.loads(progress.read_text()) | {"state": "running"}))

    def running() -> bool:
        return read_status(load_plan(config.results), ShardStore.open(config.results).inventory()).running

    assert not running()
    with Lease.acquire(config.results):
        assert running()
        os.utime(config.results / "lease.json", (0, 0))
        assert not running()


def test_a_driver_counts_as_running_before_the_first_event(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys={"clean": {}})
    run_sweep(config, make_executor, filters=Filters(architectures=(0,)))
    seen: list[SweepStatus] = []

    def make(plan: Plan, facts: Facts) -> Executor:
        executor = make_executor(plan, facts)
        submit = executor.submit

        def look_and_submit(bundle: Bundle) -> None:
            seen.append(read_status(load_plan(config.results), ShardStore.open(config.results).inventory()))
            submit(bundle)

        executor.submit = look_and_submit
        return executor

    run_sweep(config, make)
    assert [(state.running, state.state, state.done, state.seconds_left) for state in seen] == [
        (True, "running", 1, None)
    ]
    assert str(os.getpid()) in seen[0].driver


@pytest.mark.usefixtures("failing_fgsm")
def test_a_failing_unit_is_reported_and_the_rest_goes_on(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_sweep()
    tally, _ = run(config)
    assert [(failure.part.unit.key, failure.kind) for failure in tally.failures] == [("fgsm", "application")] * 2
    assert tally.evaluations == 26 - 4
    assert not tally.complete
    state = read_status(load_plan(config.results), ShardStore.open(config.results).inventory(on_damage="report"))
    assert [failure["message"] for failure in state.failures] == ["RuntimeError: no such luck"] * 2
    monkeypatch.undo()
    assert run(config)[0].complete


def test_running_out_of_memory_halves_the_micro_batch(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    from robust201.models.classifier import Classifier

    classify = Classifier._logits

    def classify_in_small_memory(self, pixels):
        if len(pixels) > 1:
            raise MemoryError("too many images")
        return classify(self, pixels)

    monkeypatch.setattr(Classifier, "_logits", classify_in_small_memory)
    config = make_sweep(keys={"clean": {}, "pgd": TINY_KEYS["pgd"]}, engine="reference")
    assert run(config)[0].complete


def test_a_full_disk_stops_the_run_and_loses_nothing(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = ShardStore.commit
    calls = []

    def commit_until_full(self, results):
        calls.append(1)
        if len(calls) > 3:
            raise StorageFullError("full")
        return commit(self, results)

    config = make_sweep()
    monkeypatch.setattr(ShardStore, "commit", commit_until_full)
    with pytest.raises(StorageFullError):
        run(config)
    monkeypatch.undo()
    tally, preview = run(config)
    assert preview.done > 0
    assert tally.complete


def test_a_run_whose_end_cannot_be_written_does_not_go_on_saying_that_it_runs(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise StorageFullError("full")

    def fill_the_disk(_progress: RunProgress, event: Event | None) -> None:
        if event is not None:
            monkeypatch.setattr(progress_module, "write_text", refuse)
            raise StorageFullError("full")

    config = make_sweep(keys={"clean": {}})
    with pytest.raises(StorageFullError):
        run(config, on_progress=fill_the_disk)
    state = read_status(load_plan(config.results), ShardStore.open(config.results).inventory())
    assert (state.running, state.state) == (False, None)


def test_a_missing_checkpoint_is_refused_before_anything_is_written(make_sweep: MakeSweep) -> None:
    config = make_sweep(architectures=[0, 13])
    with pytest.raises(CheckpointError, match="13"):
        run(config)
    assert not config.results.exists()


def test_a_network_of_another_size_is_refused(make_sweep: MakeSweep) -> None:
    config = make_sweep(network={"channels": 8, "cells": 1})
    with pytest.raises(CheckpointError, match="channels"):
        run(config)
    assert not config.results.exists()


def test_no_batch_and_no_part_changes_what_the_fused_engine_finds(make_sweep: MakeSweep, tmp_path: Path) -> None:
    whole = make_sweep(results=str(tmp_path / "whole"))
    assert run(whole)[0].complete
    pieces = make_sweep(results=str(tmp_path / "pieces"), batch_size=3, execution={"part_minutes": 1e-9})
    assert run(pieces, filters=Filters(keys=("pgd", "aa_square")))[0].complete
    assert run(pieces)[0].complete
    # What is lost is computed again in slices that other batches would not have cut.
    for shard in sorted(shards(pieces))[::3]:
        shard.unlink()
    pieces = make_sweep(results=str(tmp_path / "pieces"), batch_size=4)
    assert run(pieces)[0].complete
    whole_json, pieces_json = export(whole, tmp_path / "whole-json"), export(pieces, tmp_path / "pieces-json")
    results = {name for name in whole_json if name.startswith("digits/")}
    assert {name for name in results if whole_json[name] != pieces_json[name]} == set()
    reference = make_sweep(engine="reference", results=str(tmp_path / "reference"))
    run(reference)
    accuracies = "digits/clean_accuracy.json"
    assert whole_json[accuracies] == export(reference, tmp_path / "reference-json")[accuracies]
