"""Job shares (`run --share`) divide a sweep exactly among processes that do not communicate."""

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import ConfigError
from robust201.core.records import Bundle, Part, Receipt
from robust201.export import export_dataset
from robust201.monitoring.status import SweepStatus, read_status
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.planning.plan_file import load_plan
from robust201.planning.shares import Share, all_bundles, missing_bundles
from robust201.runtime.executors import make_executor
from robust201.runtime.executors.base import Event
from robust201.runtime.heartbeat import Heartbeat
from robust201.runtime.lease import Lease
from robust201.runtime.progress import RunProgress
from robust201.runtime.scheduler import RunTally
from robust201.runtime.share_run import DRAIN_VARIABLE, read_drain_seconds, run_share
from robust201.runtime.sweep import RunPreview, prepare_sweep, run_sweep
from robust201.shards import ShardStore
from robust201.sweep.config import SweepConfig
from robust201.sweep.loading import parse_config
from tests.conftest import REPOSITORY, TINY_KEYS, MakeSweep, RunCommand, WriteSweep, read_tree

KEYS = {key: TINY_KEYS[key] for key in ("clean", "fgsm", "brightness")}


def build_plan(engine: str) -> Plan:
    """Return a plan whose units are split into parts by images and, with the reference engine, also by strengths."""
    fields = {
        "name": "divided",
        "results": "unused",
        "architectures": [0, 21],
        "checkpoints": {"path": "unused"},
        "datasets": {"cifar10": {}, "digits": {"corruptions": {"source": "generated"}}},
        "engine": engine,
        "execution": {"gmacs_per_second": 50},
    }
    config = parse_config(fields, "test")
    return make_plan(config, assumed_facts(config))


PLANS = {engine: build_plan(engine) for engine in ("fused", "reference")}


def count_slices(bundles: Sequence[Bundle]) -> Counter[tuple[str, float, int, int]]:
    return Counter(
        (part.unit.id, strength, part.start, part.stop)
        for bundle in bundles
        for part in bundle.parts
        for strength in part.strengths
    )


@pytest.mark.parametrize("engine", PLANS)
@given(n_shares=st.integers(1, 400))
@settings(max_examples=12, deadline=None)
def test_shares_divide_bundles_exactly_and_evenly(engine: str, n_shares: int) -> None:
    plan = PLANS[engine]
    bundles = all_bundles(plan)
    bundles_by_share = [Share(index, n_shares).bundles(bundles) for index in range(1, n_shares + 1)]
    divided_bundles = [bundle for share_bundles in bundles_by_share for bundle in share_bundles]
    assert Counter(map(id, divided_bundles)) == Counter(map(id, bundles))
    macs_by_share = [
        sum(plan.macs(part) for bundle in share_bundles for part in bundle.parts) for share_bundles in bundles_by_share
    ]
    max_bundle_macs = sum(plan.macs(part) for part in bundles[0].parts)
    assert max(macs_by_share) - min(macs_by_share) <= max_bundle_macs * (1 + 1e-9)


@pytest.mark.parametrize("engine", PLANS)
def test_all_bundles_covers_each_image_of_each_evaluation_once(engine: str) -> None:
    plan = PLANS[engine]
    covered_images: Counter[tuple[str, float]] = Counter()
    slice_counts = count_slices(all_bundles(plan))
    assert set(slice_counts.values()) == {1}
    assert any(start > 0 for _, _, start, _ in slice_counts)
    for unit, strength, start, stop in slice_counts:
        covered_images[unit, strength] += stop - start
    assert covered_images == {(unit.id, strength): unit.n_images for unit in plan.units for strength in unit.strengths}


@given(data=st.data(), n_shares=st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_missing_bundles_stay_in_their_share_and_cover_missing_parts_once(data: st.DataObject, n_shares: int) -> None:
    plan = PLANS["fused"]
    bundles = all_bundles(plan)
    selected_units = data.draw(st.lists(st.sampled_from(plan.units), unique=True, max_size=12))
    missing_parts = []
    for unit in selected_units:
        start = data.draw(st.integers(0, unit.n_images - 1))
        missing_parts.append(Part(unit, unit.strengths[-2:], start, data.draw(st.integers(start + 1, unit.n_images))))
    bundles_by_share = [Share(index, n_shares).bundles(bundles) for index in range(1, n_shares + 1)]
    remaining_by_share = [missing_bundles(share_bundles, missing_parts) for share_bundles in bundles_by_share]
    covered_images: Counter[tuple[str, float]] = Counter()
    for (unit, strength, start, stop), n_times in sum(map(count_slices, remaining_by_share), Counter()).items():
        assert n_times == 1
        covered_images[unit, strength] += stop - start
    assert covered_images == {
        (part.unit.id, strength): part.stop - part.start for part in missing_parts for strength in part.strengths
    }
    for share_bundles, remaining_bundles in zip(bundles_by_share, remaining_by_share, strict=True):
        for bundle in remaining_bundles:
            for part in bundle.parts:
                assert any(
                    part.unit == planned_part.unit
                    and planned_part.start <= part.start
                    and part.stop <= planned_part.stop
                    for share_bundle in share_bundles
                    for planned_part in share_bundle.parts
                )


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "-1/3", "1", "1/2/3", "a/b", "", "1.0/2", "²/3"])
def test_share_parse_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ConfigError, match="I from 1 to N"):
        Share.parse(text)


def export_files(results: Path, out: Path) -> dict[str, bytes]:
    plan, store = load_plan(results), ShardStore.open(results)
    export_dataset(plan, store, store.inventory(verify="all", on_damage="raise"), out)
    return read_tree(out)


def read_current_status(config: SweepConfig) -> SweepStatus:
    return read_status(load_plan(config.results), ShardStore.open(config.results).inventory(on_damage="report"))


def compute_share(config: SweepConfig, share: str, **options: object) -> tuple[RunTally, RunPreview]:
    previews: list[RunPreview] = []
    tally = run_share(config, Share.parse(share), make_executor, on_preview=previews.append, **options)
    return tally, previews[0]


@pytest.mark.slow
def test_concurrent_shares_export_same_bytes_as_single_run(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path
) -> None:
    sweep = write_sweep(execution={"part_minutes": 1e-9})
    assert robust201("run", sweep, "--out", tmp_path / "ordinary").code == 0
    assert robust201("plan", "--save", sweep).code == 0
    prepared_files = read_tree(tmp_path / "results")
    command = [sys.executable, "-m", "robust201", "run", str(sweep), "--executor", "inline", "--share"]
    processes = [
        subprocess.Popen([*command, f"{index}/2"], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
        for index in (1, 2)
    ]
    for process in processes:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        assert "Complete for this selection" in stderr
    result_files = read_tree(tmp_path / "results")
    assert prepared_files.items() <= result_files.items()  # shares only add files
    assert not [
        file_name
        for file_name in result_files
        if file_name.startswith("heartbeats/") or file_name.endswith(("lease.json", ".tmp"))
    ]
    assert ShardStore.open(tmp_path / "results").verify() == []
    assert export_files(tmp_path / "results", tmp_path / "a") == export_files(tmp_path / "ordinary", tmp_path / "b")


@pytest.mark.parametrize(("signum", "is_time_limit"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_signal_drains_share_and_rerun_completes_it(
    make_sweep: MakeSweep, signum: signal.Signals, is_time_limit: bool
) -> None:
    config = make_sweep(keys=KEYS)
    prepare_sweep(config)

    def interrupt(progress: RunProgress, event: Event) -> None:
        del progress
        if isinstance(event, Receipt):
            signal.raise_signal(signum)

    tally, preview = compute_share(config, "1/2", on_progress=interrupt)
    assert tally.drained
    assert tally.stopped_by_time_limit == is_time_limit
    assert 0 < tally.results < preview.plan.n_evaluations
    assert tally.remaining == preview.plan.n_evaluations - tally.results
    rerun_tally, preview = compute_share(config, "1/2")
    assert preview.done == tally.results
    assert rerun_tally.complete
    assert not rerun_tally.drained
    assert not rerun_tally.stopped_by_time_limit
    assert read_current_status(config).done == preview.plan.n_evaluations
    assert compute_share(config, "2/2")[0].complete
    assert read_current_status(config).done == read_current_status(config).total


def test_simultaneous_driver_and_share_are_reported_and_give_same_export(make_sweep: MakeSweep, tmp_path: Path) -> None:
    config = make_sweep(keys=KEYS)
    prepare_sweep(config)
    shutil.copytree(config.results, tmp_path / "second_run")
    messages: list[str] = []
    with Lease.acquire(config.results):
        assert compute_share(config, "1/1", say=messages.append)[0].complete
    assert any("A run without --share is also working here" in message for message in messages)
    messages.clear()
    second_config = config.model_copy(update={"results": tmp_path / "second_run"})
    with Heartbeat(second_config.results, share=Share(1, 1).name):
        assert run_sweep(second_config, make_executor, say=messages.append).complete
    assert any(message.startswith("1 run with --share is active") for message in messages)
    for path in (second_config.results / "shards").rglob("*.parquet"):
        shutil.copy(path, config.results / path.relative_to(second_config.results))
    inventory = ShardStore.open(config.results).inventory()
    assert len(inventory) == 2 * inventory.n_evaluations  # every result is stored twice
    assert ShardStore.open(config.results).verify() == []
    assert export_files(config.results, tmp_path / "a") == export_files(second_config.results, tmp_path / "b")


def test_share_of_unprepared_sweep_is_rejected(robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path) -> None:
    error_line = robust201("run", write_sweep(), "--share", "1/2").error_line(2)
    assert "robust201 plan --save" in error_line
    assert not (tmp_path / "results").exists()


def test_share_of_changed_sweep_is_rejected_with_differences(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    assert robust201("plan", "--save", write_sweep()).code == 0
    changed_sweep = write_sweep(
        keys={"clean": {}, "fgsm": {"epsilons": ["1/255", "4/255"]}, "brightness": {"severities": [1, 5]}}
    )
    assert "keys.fgsm.epsilons" in robust201("run", changed_sweep, "--share", "1/2").error_line(2)
    # Execution settings may change, because shares divide the plan saved in the results folder.
    faster_sweep = write_sweep(batch_size=3, execution={"part_minutes": 1e-9, "threads": 2, "micro_batch": 5})
    assert robust201("run", faster_sweep, "--share", "2/2").code == 0


@pytest.mark.parametrize("value", ["soon", "0", "nan"])
def test_read_drain_seconds_accepts_only_positive_numbers(value: str) -> None:
    assert read_drain_seconds({DRAIN_VARIABLE: "90.5"}) == 90.5
    assert read_drain_seconds({}) is None
    with pytest.raises(ConfigError, match=DRAIN_VARIABLE):
        read_drain_seconds({DRAIN_VARIABLE: value})
