"""Sampled sweeps: the pilot, samples and their increments, interruptions, merging, and estimates and their readers."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from robust201.analysis.dataset_results import read_results
from robust201.analysis.estimated import fill_in_estimates, read_standard_errors
from robust201.analysis.leaderboard import make_leaderboard
from robust201.cli import plan_costs
from robust201.core.errors import ConfigError, IncompleteError, InputError, ResultsError, StorageError
from robust201.export import export_dataset
from robust201.export.diff import read_result_set
from robust201.export.verify import find_gaps, verify_results
from robust201.monitoring.status import StatusReader
from robust201.planning.config import SweepConfig
from robust201.planning.costs import key_costs, measure_speeds, total_hours
from robust201.planning.designs import worst_case_precision
from robust201.planning.filters import Filters
from robust201.planning.inputs import Inputs
from robust201.planning.plan import assumed_facts, make_plan
from robust201.planning.plan_file import load_plan
from robust201.planning.samples import SAMPLE_FILE, Samples, choose_pilot, read_samples
from robust201.planning.shares import Share
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import ESTIMATES_FILE
from robust201.runtime.executors import make_executor
from robust201.runtime.lease import Lease
from robust201.runtime.preview import RunPreview
from robust201.runtime.scheduler import RunTally
from robust201.runtime.share_run import run_share
from robust201.runtime.sweep import merge_results, prepare_sweep, run_sweep
from robust201.shards import Inventory, ShardStore
from tests.conftest import MakeFields, MakeSweep, RunCommand

KEYS: dict[str, Any] = {
    "clean": {},
    "fgsm": {"epsilons_255": [1, 8]},
    "pgd": {"epsilons_255": [1, 8], "steps": 3},
    "aa_square": {"epsilons_255": [4], "queries": 3},
}
MEASUREMENTS = ["accuracy", "cm", "confidence", "predictions"]
N_IMAGES = 50

MakeSampled = Callable[..., SweepConfig]


def sampled_fields(budget: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "keys": KEYS,
        "sampling": None if budget is None else {"budget": budget, "pilot": 2},
        "architectures": [0, 21, 3000, 9999],
        "checkpoints": None,
        "weights": {"random": {"seeds": [0]}},
        "images": {"count": N_IMAGES, "seed": 0},
        "measurements": MEASUREMENTS,
    } | changes


@pytest.fixture
def make_sampled(make_sweep: MakeSweep, tmp_path: Path) -> MakeSampled:
    """Return a function that makes sweeps of four untrained networks, two of which are the pilot.

    Without a budget, the sweep is not sampled.
    """
    return lambda budget, folder="sampled", **changes: make_sweep(
        results=str(tmp_path / folder), **sampled_fields(budget, **changes)
    )


def run(config: SweepConfig, **options: Any) -> RunTally:
    return run_sweep(config, make_executor, **options)


def export_files(config: SweepConfig, out: Path, **options: Any) -> dict[str, bytes]:
    """Export the results, and return the content of each file by its relative path."""
    store = ShardStore.open(config.results)
    export_dataset(load_plan(config.results), store, store.inventory(), out, formats=("json", "parquet"), **options)
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def values_by_evaluation(config: SweepConfig) -> Mapping[tuple[str, float], bytes]:
    """Return the values of each evaluation of the plan, by unit and strength."""
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    inventory = store.inventory()
    return {
        (unit.id, strength): b"".join(
            array.tobytes() for _, array in sorted(store.values(unit, strength, inventory, plan.measurements).items())
        )
        for unit in plan.units
        for strength in unit.strengths
    }


def read_accuracies(results: Path) -> Mapping[Any, Mapping[Any, float]]:
    """Return the accuracies in a results folder, by dataset, key and strength, as `verify --against` reads them."""
    (accuracies,) = read_result_set(results).by_weights.values()
    return accuracies


def increment_sizes(config: SweepConfig) -> dict[str, list[int]]:
    """Return the number of images of each increment, by key."""
    samples = read_samples(config.results)
    assert samples is not None
    return {
        key: [len(increment.positions) for increment in sample.increments]
        for (_, key), sample in samples.key_samples.items()
    }


def test_predictions_on_sample_equal_predictions_on_all_images(make_sampled: MakeSampled) -> None:
    config, unsampled_config = make_sampled("80%"), make_sampled(None, "plain")
    run(config)
    run(unsampled_config)
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    unsampled_store = ShardStore.open(unsampled_config.results)
    unsampled_units = {(unit.architecture, unit.key): unit for unit in load_plan(unsampled_config.results).units}
    samples, n_compared = read_samples(config.results), 0
    assert samples is not None
    for unit in plan.units:
        if unit.images:
            (increment,) = samples.key_samples["digits", unit.key].increments
            for strength in unit.strengths:
                predictions = store.values(unit, strength, store.inventory(), MEASUREMENTS)["predictions"]
                unsampled_unit = unsampled_units[unit.architecture, unit.key]
                expected = unsampled_store.values(unsampled_unit, strength, unsampled_store.inventory(), MEASUREMENTS)
                assert np.array_equal(predictions, expected["predictions"][increment.positions])
                n_compared += 1
    assert n_compared == 6  # two networks, three evaluations


def test_larger_budget_adds_images_and_full_budget_exports_same_bytes_as_unsampled_sweep(
    make_sampled: MakeSampled, tmp_path: Path
) -> None:
    run(make_sampled("80%"))
    sizes_at_80 = increment_sizes(make_sampled("80%"))
    assert all(20 <= sum(sizes) < N_IMAGES for sizes in sizes_at_80.values())
    values_at_80 = values_by_evaluation(make_sampled("80%"))
    run(make_sampled("90%"))
    sizes_at_90 = increment_sizes(make_sampled("90%"))
    growing_keys = [key for key, sizes in sizes_at_80.items() if sum(sizes) < N_IMAGES]
    assert all(sizes_at_90[key][0] == sizes_at_80[key][0] and len(sizes_at_90[key]) == 2 for key in growing_keys)
    assert values_at_80.items() <= values_by_evaluation(make_sampled("90%")).items()
    assert run(make_sampled("80%")).evaluations == 0  # a smaller budget keeps all images
    assert (tmp_path / "sampled" / SAMPLE_FILE).exists()
    config = make_sampled("100%")
    run(config)
    assert all(sum(sizes) == N_IMAGES for sizes in increment_sizes(config).values())
    unsampled_config = make_sampled(None, "plain")
    run(unsampled_config)
    files = export_files(config, tmp_path / "of-samples")
    expected = export_files(unsampled_config, tmp_path / "of-plain")
    assert {name for name in {*files, *expected} if files.get(name) != expected.get(name)} == set()
    store = ShardStore.open(config.results)
    status = StatusReader(load_plan(config.results)).read(store.inventory())
    assert (status.complete, status.stale, store.verify()) == (True, 0, [])


def test_full_budget_from_the_start_draws_no_samples(make_sampled: MakeSampled) -> None:
    config, unsampled_config = make_sampled("100%"), make_sampled(None, "plain")
    run(config)
    run(unsampled_config)
    assert not (config.results / SAMPLE_FILE).exists()
    assert values_by_evaluation(config) == values_by_evaluation(unsampled_config)


@pytest.mark.parametrize("stage", [1, 2])
def test_killed_run_resumes_with_same_sample_and_estimates(
    make_sampled: MakeSampled, sweep_fields: MakeFields, tmp_path: Path, stage: int
) -> None:
    """The driver is killed by SIGKILL while the pilot is computed, or after the samples were drawn."""
    uninterrupted_config, killed_config = make_sampled("80%", "uninterrupted"), make_sampled("80%", "killed")
    run(uninterrupted_config)
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep_fields(results=str(killed_config.results), **sampled_fields("80%"))))
    command = [sys.executable, "-m", "robust201", "run", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    n_shards = len([*(uninterrupted_config.results / "shards").rglob("*.parquet")])

    def has_reached_stage() -> bool:
        n_done = len([*(killed_config.results / "shards").rglob("*.parquet")])
        is_drawn = (killed_config.results / SAMPLE_FILE).exists()
        return (stage == 1 and n_done >= 3) or (stage == 2 and is_drawn)

    while process.poll() is None and not has_reached_stage():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len([*(killed_config.results / "shards").rglob("*.parquet")]) < n_shards
    assert (killed_config.results / SAMPLE_FILE).exists() == (stage == 2)
    run(killed_config)
    assert (killed_config.results / SAMPLE_FILE).read_bytes() == (
        uninterrupted_config.results / SAMPLE_FILE
    ).read_bytes()
    assert values_by_evaluation(killed_config) == values_by_evaluation(uninterrupted_config)
    files = export_files(killed_config, tmp_path / "a"), export_files(uninterrupted_config, tmp_path / "b")
    assert files[0][ESTIMATES_FILE] == files[1][ESTIMATES_FILE]


def test_shares_compute_pilot_and_then_samples_drawn_by_plan(make_sampled: MakeSampled, tmp_path: Path) -> None:
    driver_config, shares_config = make_sampled("80%", "driven"), make_sampled("80%", "shared")
    run(driver_config)
    for stage in (1, 2):
        prepare_sweep(shares_config)
        assert (shares_config.results / SAMPLE_FILE).exists() == (stage == 2)
        tallies = [run_share(shares_config, Share(index, 2), make_executor) for index in (1, 2)]
        assert (sum(tally.remaining for tally in tallies) > 0) == (stage == 1)
    assert values_by_evaluation(shares_config) == values_by_evaluation(driver_config)
    files = export_files(shares_config, tmp_path / "a"), export_files(driver_config, tmp_path / "b")
    assert files[0][ESTIMATES_FILE] == files[1][ESTIMATES_FILE]


def test_plan_estimates_precision_from_complete_pilot(make_sampled: MakeSampled) -> None:
    config = make_sampled("90%", sampling={"budget": "90%", "pilot": 3})
    plan = make_plan(config, assumed_facts(config))
    assert plan_costs.predict_precision_from_pilot(plan) is None
    run(config)
    precision = plan_costs.predict_precision_from_pilot(plan)
    assert precision is not None
    half_width, _ = precision.sampled("digits", "pgd", 25, N_IMAGES)
    assert 0 < half_width < worst_case_precision("digits", "pgd", 25, N_IMAGES)[0]
    assert precision.sampled("digits", "fgsm", 25, N_IMAGES) == worst_case_precision(
        "digits", "fgsm", 25, N_IMAGES
    )  # not sampled


def test_predict_precision_from_pilot_excludes_keys_with_other_parameters(make_sampled: MakeSampled) -> None:
    fields = {"sampling": {"budget": "90%", "pilot": 3}}
    run(make_sampled("90%", **fields))
    config = make_sampled("90%", **fields, keys=KEYS | {"pgd": {"epsilons_255": [1, 8], "steps": 4}})
    precision = plan_costs.predict_precision_from_pilot(make_plan(config, assumed_facts(config)))
    assert precision is not None
    assert precision.sampled("digits", "pgd", 25, N_IMAGES) == worst_case_precision("digits", "pgd", 25, N_IMAGES)
    assert precision.sampled("digits", "aa_square", 25, N_IMAGES) != worst_case_precision(
        "digits", "aa_square", 25, N_IMAGES
    )


def test_plan_reports_damaged_record_of_samples(make_sampled: MakeSampled, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_sampled("90%", sampling={"budget": "90%", "pilot": 3})
    run(config)
    (config.results / SAMPLE_FILE).write_text("{}")
    plan_costs.summarise(make_plan(config, assumed_facts(config)), None, None, lambda **_: config)
    assert "is not used for half-widths: Reading the samples failed for" in capsys.readouterr().err


def test_estimates_are_exported_separately_from_counts(make_sampled: MakeSampled, tmp_path: Path) -> None:
    config = make_sampled("80%")
    run(config)
    export_files(config, tmp_path / "out")
    reader = RobustnessDataset(tmp_path / "out")
    estimates, counts = reader.estimates(), reader.to_frame("digits", "pgd")
    assert len(estimates) == 2 * 3
    assert set(estimates["architecture"]).isdisjoint(counts["architecture"])
    assert (estimates["low"] <= estimates["value"]).all() and (estimates["value"] <= estimates["high"]).all()  # noqa: PT018
    assert set(reader.estimates(key="aa_square@Linf")["key"]) == {"aa_square"}
    assert reader.sweep is not None
    assert {item["key"] for item in reader.sweep["sampling"]["samples"]} == {"pgd", "aa_square"}
    assert "estimates" in (tmp_path / "out" / "README.md").read_text()
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    both_exports = RobustnessDataset(tmp_path / "out", tmp_path / "copy")
    assert len(both_exports.estimates()) == len(estimates)
    path = tmp_path / "copy" / ESTIMATES_FILE
    table = pq.read_table(path).to_pandas().assign(value=0.5)
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)
    with pytest.raises(ResultsError, match="got several from different folders"):
        both_exports.estimates()


def test_readers_do_not_mistake_estimates_for_counts(
    make_sampled: MakeSampled, tmp_path: Path, robust201: RunCommand
) -> None:
    config, out = make_sampled("80%"), tmp_path / "out"
    run(config)
    export_files(config, out)
    assert verify_results(config.results, export=out).export_problems == ()
    accuracies = read_accuracies(config.results)
    pgd_accuracies = [by_network for evaluation, by_network in accuracies.items() if evaluation[1] == "pgd"]
    pilot = set(choose_pilot(config.selected_architectures, 2, 0))
    assert [set(by_network) for by_network in pgd_accuracies] == [pilot, pilot]
    for command in ("metrics", "predict", "search", "report"):
        assert "under aa_square, pgd, which `rank` shows" in robust201(command, out).err
    table = pq.read_table(out / ESTIMATES_FILE)
    changed_table = table.set_column(table.schema.get_field_index("value"), "value", pa.array([0.5] * len(table)))
    pq.write_table(changed_table, out / ESTIMATES_FILE)
    problems = verify_results(config.results, export=out).export_problems
    (message,) = [line for line in problems if "estimates differ" in line]
    assert ESTIMATES_FILE in message


def test_search_uses_and_marks_estimates_on_request(
    make_sampled: MakeSampled, tmp_path: Path, robust201: RunCommand
) -> None:
    config, out = make_sampled("80%"), tmp_path / "out"
    run(config)
    export_files(config, out)
    arguments = ("search", out, "--methods", "random", "--runs", 2, "--queries", 2, "--processes", 1)
    arguments += ("--objective", "pgd:8", "--report", "clean")
    (counts,) = json.loads(robust201(*arguments, "--json").out)["searches"]
    (estimates,) = json.loads(robust201(*arguments, "--estimates", "--json").out)["searches"]
    assert "estimated" not in counts
    assert estimates["estimated"] == ["pgd:8"]  # clean is not estimated
    assert estimates["n_members"] > counts["n_members"]
    values = RobustnessDataset(out).estimates("digits", "pgd")
    highest_estimate = values[values["strength"] == 8.0]["value"].max()
    assert estimates["optimum"]["pgd:8"] == max(counts["optimum"]["pgd:8"], highest_estimate)
    table = tmp_path / "table.csv"
    figure = tmp_path / "regret.svg"
    result = robust201(*arguments, "--estimates", "--out", table, "--figure", figure)
    assert ">pgd:8 (partly estimates)<" in figure.read_text()
    assert "~ pgd:8" in result.out
    assert "estimates from samples" in result.err
    assert "~" not in robust201(*arguments, "--figure", figure).out
    assert ">pgd:8<" in figure.read_text()
    from_estimates = pd.read_csv(table).set_index("column")["from_estimates"]
    assert from_estimates.to_dict() == {"clean": False, "pgd:8": True}


def test_compare_uses_and_marks_estimates_on_request(
    make_sampled: MakeSampled, tmp_path: Path, robust201: RunCommand
) -> None:
    config, out = make_sampled("80%"), tmp_path / "out"
    run(config)
    export_files(config, out)
    pilot = choose_pilot(config.selected_architectures, 2, 0)
    estimated_networks = [name for name in config.selected_architectures if name not in pilot]
    networks = [f"{out}:{name}" for name in (*estimated_networks, pilot[0])]
    options = ("--keys", "pgd:8", "--estimates")
    rows = json.loads(robust201("compare", *networks, *options, "--json").out)["comparisons"]
    estimates = RobustnessDataset(out).estimates("digits", "pgd")
    names = estimates["architecture"].astype(str)
    estimates = estimates[estimates["strength"] == 8.0].assign(name=names).set_index("name")
    assert [(row["first"], row["second"]) for row in rows] == [
        (str(estimated_networks[0]), str(estimated_networks[1])),
        (str(estimated_networks[0]), str(pilot[0])),
        (str(estimated_networks[1]), str(pilot[0])),
    ]
    first, second = (estimates.loc[str(name)] for name in estimated_networks)
    assert rows[0]["difference"] == pytest.approx(second["value"] - first["value"])
    half_width = np.hypot(*((estimate["high"] - estimate["low"]) / 2 for estimate in (first, second)))
    assert rows[0]["high"] - rows[0]["difference"] >= 0.999 * half_width  # not narrower than both intervals imply
    assert [(row["first_estimated"], row["second_estimated"]) for row in rows] == [
        (True, True),
        (True, False),
        (True, False),
    ]
    table = tmp_path / "table.csv"
    output = robust201("compare", *networks, *options, "--out", table).out
    assert f"~{first['value']:.4f}, ~{second['value']:.4f}" in " ".join(output.split())
    assert "Accuracies marked ~ are estimates for all 50 images" in output
    assert list(pd.read_csv(table)["second_estimated"]) == [True, False, False]


def test_compare_with_estimates_rejects_networks_without_estimates(
    make_sampled: MakeSampled, tmp_path: Path, robust201: RunCommand
) -> None:
    config, out = make_sampled("80%"), tmp_path / "out"
    run(config)
    export_files(config, out)
    pilot_networks = [f"{out}:{name}" for name in choose_pilot(config.selected_architectures, 2, 0)]
    assert "all accuracies were measured on all images" in robust201(
        "compare", *pilot_networks, "--estimates"
    ).error_line(2)
    assert "at least two different networks" in robust201("compare", pilot_networks[0], "--estimates").error_line(2)
    assert "DATASET:ARCHITECTURE" in robust201("compare", "my.py:net", pilot_networks[0], "--estimates").error_line(2)
    assert ".csv" in robust201("compare", *pilot_networks, "--estimates", "--out", tmp_path / "t.tex").error_line(2)


def test_export_writes_json_of_estimates_only_on_request(make_sampled: MakeSampled, tmp_path: Path) -> None:
    config, out = make_sampled("80%"), tmp_path / "out"
    run(config)
    assert not any(name.startswith("estimated/") for name in export_files(config, tmp_path / "without"))
    files = export_files(config, out, estimates=True)
    accuracies = json.loads(files["estimated/digits/pgd_accuracy.json"])["digits"]["pgd"]["accuracy"]
    reader = RobustnessDataset(out)
    estimates = reader.estimates("digits", "pgd").groupby("architecture")["value"].apply(list)
    counts = reader.query("digits", "pgd", "accuracy")["digits"]["pgd"]["accuracy"]
    assert accuracies == {str(name): values for name, values in estimates.items()} | counts
    assert reader.sweep is not None
    assert reader.sweep["sampling"]["json"] == "estimated"
    assert verify_results(config.results, export=out).export_problems == ()


def test_ranking_marks_estimates(make_sampled: MakeSampled, tmp_path: Path) -> None:
    config = make_sampled("80%")
    run(config)
    export_files(config, tmp_path / "out")
    (results,) = read_results(RobustnessDataset(tmp_path / "out"))
    board = make_leaderboard(results)
    frame = board.to_frame()
    pilot = set(choose_pilot(config.selected_architectures, 2, 0))
    pgd_rows = frame[frame["evaluation"] == "pgd:1"]
    assert set(pgd_rows.loc[~pgd_rows["estimated"], "network"]) == pilot
    assert len(pgd_rows) == 4
    assert not frame.loc[frame["evaluation"] == "clean", "estimated"].any()
    counted_rows = pgd_rows[~pgd_rows["estimated"]]
    assert (counted_rows["low"] == counted_rows["accuracy"]).all()
    assert "are estimates from" in board.basis
    assert board.standings[-1].estimated_networks
    estimates = RobustnessDataset(tmp_path / "out").estimates("digits", "pgd").query("strength == 1")
    estimated_accuracies = pgd_rows[pgd_rows["estimated"]].set_index("network")["accuracy"]
    assert estimated_accuracies.to_dict() == estimates.set_index("architecture")["value"].to_dict()
    completed_results, message = fill_in_estimates(results)
    assert completed_results.column("pgd", 1.0).notna().all()
    assert results.column("pgd", 1.0).notna().sum() == 2
    assert "pgd: 2 of 4" in message


def test_unfinished_sample_requires_partial_export(make_sampled: MakeSampled, tmp_path: Path) -> None:
    config = make_sampled("80%")
    run(config, filters=Filters(keys=("clean", "fgsm", "pgd")))
    with pytest.raises(
        IncompleteError,
        match=r"\(digits aa_square 2\) and 2 estimates \(digits aa_square 2\); no sample has been",
    ):
        export_files(config, tmp_path / "out")
    export_files(config, tmp_path / "out", partial=True)
    assert set(RobustnessDataset(tmp_path / "out").estimates()["key"]) == {"pgd"}


def test_run_without_pilot_draws_no_samples(make_sampled: MakeSampled) -> None:
    config = make_sampled("80%")
    lines: list[str] = []
    pilot = choose_pilot(config.selected_architectures, 2, 0)
    other_networks = Filters(architectures=tuple(name for name in config.selected_architectures if name not in pilot))
    assert run(config, filters=other_networks, say=lines.append).remaining
    assert any("No sample was drawn for aa_square, pgd" in line for line in lines)
    run(config, filters=Filters(architectures=pilot))
    assert not run(config, filters=other_networks).remaining
    assert StatusReader(load_plan(config.results)).read(ShardStore.open(config.results).inventory()).complete


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": {"budget": "80%", "pilot": 1}}, r"sampling.pilot: expected at least 2 networks"),
        ({"sampling": {"budget": "80%", "pilot": 4}}, r"sampling.pilot: expected fewer networks than the sweep's 4"),
        ({"sampling": {"budget": "500"}}, r"sampling.budget: expected worker-hours above 0 such as 500h"),
        ({"sampling": {"budget": 0.5}}, r"sampling.budget: expected a budget with its unit, such as 500h"),
        ({"sampling": {"budget": "120%"}}, r"sampling.budget: expected worker-hours"),
        ({"sampling": {"budget": "80%", "cheap": ["fgms"]}}, r"sampling.cheap: .+ Did you mean 'fgsm'"),
        ({"measurements": ["accuracy"]}, r"measurements: sampling estimates accuracies"),
        ({"engine": "reference"}, r"sampling: expected `engine: fused`"),
        ({"keys": {"clean": {}, "fgsm": {}}}, r"sampling: expected an attack that is not in `sampling.cheap`"),
        ({"keys": KEYS | {"mine": {"file": "my.py", "strengths": [1]}}}, r"got mine, which draws them once per batch"),
        ({"weights": {"random": {"seeds": [0, 1]}}}, r"sampling: expected one set of weights per network, got 2"),
    ],
)
def test_invalid_sampling_section_is_rejected(make_sampled: MakeSampled, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sampled("80%", **changes)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("1%", r"the pilot and the keys that are not sampled take .+ Raise the budget"),
        ("0.00001h", r"the pilot and the keys that are not sampled take"),
        ("60%", r"pays for 20 images \(2 per stratum\) of aa_square on digits"),
    ],
)
def test_run_with_too_small_budget_writes_nothing(make_sampled: MakeSampled, budget: str, message: str) -> None:
    config = make_sampled(budget)
    with pytest.raises(ConfigError, match=message):
        run(config)
    assert not config.results.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": {"budget": "80%", "pilot": 3}}, "were drawn with `sampling.pilot: 2`"),
        ({"sampling": {"budget": "80%", "pilot": 2, "seed": 1}}, "were drawn with `sampling.seed: 0`"),
        ({"sampling": {"budget": "80%", "pilot": 2, "cheap": ["clean"]}}, "were drawn with `sampling.cheap: "),
        (
            {"keys": KEYS | {"pgd": {"epsilons_255": [1, 8], "steps": 4}}},
            "digits pgd .+ changed after its sample was drawn",
        ),
        ({"images": {"count": N_IMAGES, "seed": 1}}, "changed after its sample was drawn|expected the images"),
    ],
)
def test_changed_sampling_design_is_rejected(make_sampled: MakeSampled, changes: dict[str, Any], message: str) -> None:
    config = make_sampled("85%")
    run(config)
    contents_before = {path: path.read_bytes() for path in config.results.glob("*.json")}
    with pytest.raises(ConfigError, match=message):
        run(make_sampled("85%", **changes))
    assert {path: path.read_bytes() for path in contents_before} == contents_before


def test_error_names_damaged_record_of_samples(make_sampled: MakeSampled) -> None:
    config = make_sampled("80%")
    run(config)
    path = config.results / SAMPLE_FILE
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(InputError, match=r"Reading the samples failed for .+sample\.json"):
        load_plan(config.results)


def test_status_and_run_count_increments_as_one_evaluation(make_sampled: MakeSampled, robust201: RunCommand) -> None:
    run(make_sampled("80%"))
    config, previews, n_done = make_sampled("85%"), list[RunPreview](), list[int]()
    tally = run(
        config,
        on_preview=previews.append,
        on_progress=lambda progress, _: n_done.append(progress.done_evaluations),
    )
    plan, inventory = load_plan(config.results), ShardStore.open(config.results).inventory()
    status = StatusReader(plan).read(inventory)
    # Each of the four networks has six evaluations under four keys.
    assert (status.done, status.total, plan.n_evaluations, plan.n_network_keys) == (24, 24, 24, 16)
    assert plan.n_units == 20  # two increments of pgd and aa_square for two networks
    # The larger samples make three evaluations of both networks outside the pilot incomplete.
    assert (previews[0].done, previews[0].plan.n_evaluations, tally.evaluations) == (18, 24, pytest.approx(6))
    assert (n_done[0], n_done[-1]) == (18, 24)
    assert find_gaps(plan, inventory) == (0, ())
    next((config.results / "shards").rglob("*-pgd-*")).unlink()
    status = StatusReader(load_plan(config.results)).read(ShardStore.open(config.results).inventory())
    assert 16 <= status.done < 24
    result = robust201("run", config.results, "--budget", "90%")
    assert "Planned 24 evaluations of 16 network-key pairs" in result.err


def test_run_reports_numbers_of_images_kept_if_budget_is_smaller(make_sampled: MakeSampled) -> None:
    run(make_sampled("90%"))
    lines: list[str] = []
    assert run(make_sampled("80%"), say=lines.append).evaluations == 0
    n_pgd = sum(increment_sizes(make_sampled("80%"))["pgd"])
    (line,) = [line for line in lines if "pays for fewer images" in line]
    assert line.startswith("The budget 80% pays for fewer images than an earlier budget of ")
    assert re.search(rf"pgd on digits has {n_pgd} images instead of \d\d", line)
    assert re.search(r"aa_square on digits has 50 images instead of \d\d", line)  # 90% is enough for all images
    lines.clear()
    run(make_sampled("90%"), say=lines.append)
    assert not any("fewer images" in line for line in lines)


def test_budget_added_to_complete_sweep_keeps_counts_on_all_images(make_sampled: MakeSampled, tmp_path: Path) -> None:
    run(make_sampled(None))
    expected = export_files(make_sampled(None), tmp_path / "a")
    config = make_sampled("80%")
    assert run(config).evaluations == 0
    assert export_files(config, tmp_path / "b") == expected
    assert increment_sizes(config) == {}


def test_networks_added_to_fully_evaluated_sweep_are_sampled(make_sampled: MakeSampled, tmp_path: Path) -> None:
    config = make_sampled("80%", architectures=[0, 21, 9999, 4000, 15000, 1000])
    networks = config.selected_architectures
    pilot = choose_pilot(networks, 2, 0)
    counted_networks, added_networks = np.split(np.array([name for name in networks if name not in pilot]), [2])
    run(make_sampled(None, architectures=[*pilot, *counted_networks.tolist()]))
    lines: list[str] = []
    run(config, say=lines.append)
    samples, plan = read_samples(config.results), load_plan(config.results)
    assert samples is not None
    assert samples.fully_evaluated_networks == {
        ("digits", key): tuple(counted_networks) for key in ("aa_square", "pgd")
    }
    assert {unit.architecture for unit in plan.units if unit.images} == {*added_networks}
    assert not any("fewer images" in line for line in lines)
    export_files(config, tmp_path / "a")
    assert {*RobustnessDataset(tmp_path / "a").estimates()["architecture"].astype(int)} == {*added_networks}
    assert run(config).evaluations == 0


def test_merge_keeps_larger_samples_and_rejects_different_ones(make_sampled: MakeSampled, tmp_path: Path) -> None:
    smaller_config, larger_config = make_sampled("80%", "smaller"), make_sampled("85%", "larger")
    run(smaller_config)
    run(make_sampled("80%", "larger"))
    run(larger_config)
    for name, sources in (("a", (smaller_config, larger_config)), ("b", (larger_config, smaller_config))):
        merge_results([source.results for source in sources], tmp_path / name)
        assert (tmp_path / name / SAMPLE_FILE).read_bytes() == (larger_config.results / SAMPLE_FILE).read_bytes()
        merged_config = make_sampled("85%", name)
        assert run(merged_config).evaluations == 0
        assert values_by_evaluation(merged_config) == values_by_evaluation(larger_config)
    different_config = make_sampled("90%", "different", sampling={"budget": "90%", "pilot": 2, "seed": 1})
    run(different_config)
    with pytest.raises(InputError, match=r"different.* differ from the samples of the folders merged before it"):
        merge_results([smaller_config.results, different_config.results], tmp_path / "c")
    assert not (tmp_path / "c" / SAMPLE_FILE).exists()


def test_run_writes_no_sample_after_losing_lease(make_sampled: MakeSampled, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_sampled("80%")
    copy_sample_images, check = Inputs.copy_sample_images, Lease.check
    is_copied = False

    def copy_and_lose_lease(inputs: Inputs, samples: Samples | None) -> None:
        nonlocal is_copied
        copy_sample_images(inputs, samples)
        is_copied = samples is not None

    def check_lost_lease(lease: Lease) -> None:
        if is_copied:
            lease.lost.set()
        check(lease)

    monkeypatch.setattr(Inputs, "copy_sample_images", copy_and_lose_lease)
    monkeypatch.setattr(Lease, "check", check_lost_lease)
    with pytest.raises(StorageError, match="Keeping the lease failed"):
        run(config)
    assert not (config.results / SAMPLE_FILE).exists()


def test_run_draws_lost_sample_again_and_reports_it(make_sampled: MakeSampled, tmp_path: Path) -> None:
    config = make_sampled("80%")
    run(config)
    sample_record, files = (config.results / SAMPLE_FILE).read_bytes(), export_files(config, tmp_path / "a")
    (config.results / SAMPLE_FILE).unlink()
    lines, previews = list[str](), list[RunPreview]()
    assert run(config, say=lines.append, on_preview=previews.append).evaluations == 0
    assert (config.results / SAMPLE_FILE).read_bytes() == sample_record
    assert export_files(config, tmp_path / "b") == files
    (line,) = [line for line in lines if "drawn again" in line]
    assert line.endswith("from the pilot: aa_square on digits, pgd on digits with the same images as before.")
    (stale_line,) = previews[0].stale
    assert stale_line.startswith(
        "6 evaluations on samples (aa_square, pgd) are kept but not used: sample.json is missing"
    )


def test_run_reports_unused_increments_once(make_sampled: MakeSampled) -> None:
    run(make_sampled("80%"))
    run(make_sampled("85%"))
    config = make_sampled("85%")
    (config.results / SAMPLE_FILE).unlink()
    lines, previews = list[str](), list[RunPreview]()
    assert run(config, say=lines.append).evaluations > 0
    assert any("with other images than before, so earlier results are not used" in line for line in lines)
    run(config, on_preview=previews.append)
    (stale_line,) = previews[0].stale  # one line for any number of increments
    assert stale_line.endswith("are kept but not used: the evaluated images differ from the images in sample.json")
    previews.clear()
    run(make_sampled(None), on_preview=previews.append)
    (stale_line,) = previews[0].stale
    assert stale_line.endswith("are kept but not used: the sweep has no section `sampling`")


def test_run_names_keys_of_combined_samples(make_sampled: MakeSampled) -> None:
    run(make_sampled("80%"))
    lines: list[str] = []
    run(make_sampled("100%"), say=lines.append)
    assert [line for line in lines if "combined" in line] == [
        f"The sample of {key} on digits now contains all images; the results of 2 networks were combined"
        for key in ("aa_square", "pgd")
    ]


def test_export_error_names_missing_counts_and_estimates(make_sampled: MakeSampled, tmp_path: Path) -> None:
    config = make_sampled("80%")
    pilot = choose_pilot(config.selected_architectures, 2, 0)
    run(config, filters=Filters(architectures=pilot, keys=("clean", "fgsm", "pgd")))
    with pytest.raises(IncompleteError) as raised:
        export_files(config, tmp_path / "out")
    message = str(raised.value)
    assert "the sweep lacks 8 evaluations on all images (digits clean 2, digits aa_square 2, digits fgsm 4)" in message
    assert "and 6 estimates (digits aa_square 2, digits pgd 4); no sample has been drawn yet for " in message
    assert "for aa_square, pgd" in message
    assert "robust201 run SWEEP.yaml" in message
    assert not (tmp_path / "out").exists()
    store, plan = ShardStore.open(config.results), load_plan(config.results)
    report = export_dataset(plan, store, store.inventory(), tmp_path / "out", partial=True)
    assert dict(report.missing) == {
        ("digits", "clean"): 2,
        ("digits", "fgsm"): 4,
        ("digits", "aa_square"): 4,
        ("digits", "pgd"): 4,
    }


def test_blackbox_export_marks_estimated_objectives(
    make_sampled: MakeSampled, tmp_path: Path, robust201: RunCommand
) -> None:
    config, out = make_sampled("80%"), tmp_path / "out"
    run(config)
    export_files(config, out)
    folders = tmp_path / "counts", tmp_path / "estimates"
    assert "estimates of 2 networks" in robust201("search", out, "--blackbox", folders[0]).err
    assert robust201("search", out, "--blackbox", folders[1], "--estimates").code == 0
    objective_names = [json.loads((folder / "metadata.json").read_text())["objectives_names"] for folder in folders]
    counted_objectives, estimated_objectives = ["clean", "fgsm_1", "fgsm_8"], ["aa_square_4", "pgd_1", "pgd_8"]
    assert {*objective_names[0]} == {
        "metric_elapsed_time",
        *(f"metric_error_{name}" for name in (*counted_objectives, *estimated_objectives)),
    }
    marked_metrics = {f"metric_estimated_error_{name}" for name in estimated_objectives}
    assert {*objective_names[1]} == {
        "metric_elapsed_time",
        *(f"metric_error_{name}" for name in counted_objectives),
        *marked_metrics,
    }
    arrays = [np.load(folder / "objectives_evaluations.npy")[0, :, 0, 0] for folder in folders]
    assert len(arrays[0]) < len(arrays[1])
    values = RobustnessDataset(out).estimates("digits", "pgd").query("strength == 8")["value"]
    for value in values:
        assert np.isclose(arrays[1][:, objective_names[1].index("metric_estimated_error_pgd_8")], 1 - value).any()
    command = ("search", out, "--blackbox", tmp_path / "no", "--estimates", "--fidelity", "images")
    assert "estimates and a fidelity cannot be combined" in robust201(*command).error_line(2)
    assert not (tmp_path / "no").exists()


def test_predict_uses_estimates_on_request(make_sampled: MakeSampled, tmp_path: Path, robust201: RunCommand) -> None:
    config, out = make_sampled("80%", architectures=["0-15"]), tmp_path / "out"
    run(config)
    export_files(config, out)
    arguments = ("predict", out, "--keys", "pgd:8")
    assert "at least 10 cells with all accuracies, got 2" in robust201(*arguments).error_line(2)
    result = robust201(*arguments, "--estimates", "--json")
    assert json.loads(result.out)["n_evaluated"] == 16
    assert "pgd: 14 of 16 networks" in result.err
    (results,) = read_results(RobustnessDataset(out))
    errors = read_standard_errors(results)
    pilot = choose_pilot(config.selected_architectures, 2, 0)
    pgd_errors = errors["pgd", 8.0]
    assert (pgd_errors.loc[list(pilot)] == 0).all()
    assert (pgd_errors.drop(list(pilot)) > 0).all()
    assert (errors["clean"].to_numpy() == 0).all()
    estimates = RobustnessDataset(out).estimates("digits", "pgd").query("strength == 8").set_index("architecture")
    assert (pgd_errors.loc[estimates.index] >= estimates["standard_error"]).all()


def test_measured_speeds_reproduce_time_of_results(make_sampled: MakeSampled) -> None:
    config = make_sampled("80%")
    plan = make_plan(config, assumed_facts(config))
    assert measure_speeds(plan, config.results) == {}  # no results folder yet
    run(config)
    inventory = ShardStore.open(config.results).inventory()
    speeds = measure_speeds(plan, config.results)
    assert set(speeds) == {("digits", key) for key in KEYS}
    total_macs = sum(speed * _seconds_of(inventory, key) for (_, key), speed in speeds.items())
    saved_plan = load_plan(config.results)
    expected_macs = sum(sum(saved_plan.unit_macs(planned)) for planned in saved_plan.planned_keys)
    assert total_macs == pytest.approx(expected_macs)
    # The estimate for the finished work equals its measured time.
    assert total_hours(saved_plan, speeds) == pytest.approx(inventory.seconds / 3600)
    assert all(cost.is_measured for cost in key_costs(saved_plan, speeds))
    changed_config = make_sampled("80%", keys=KEYS | {"pgd": {"epsilons_255": [1, 8], "steps": 4}})
    assert ("digits", "pgd") not in measure_speeds(
        make_plan(changed_config, assumed_facts(changed_config)), config.results
    )


def _seconds_of(inventory: Inventory, key: str) -> float:
    unit_indices = [index for index, unit in enumerate(inventory.units) if unit.key == key]
    return float(inventory.row_column("seconds")[np.isin(inventory.row_column("unit"), unit_indices)].sum())


def test_measured_speeds_are_empty_if_results_are_damaged(make_sampled: MakeSampled) -> None:
    config = make_sampled("80%")
    config.results.mkdir()
    (config.results / "format.json").write_text("{")
    assert measure_speeds(make_plan(config, assumed_facts(config)), config.results) == {}


@pytest.mark.slow
def test_two_killed_shares_resume_with_same_bytes(
    make_sampled: MakeSampled, sweep_fields: MakeFields, tmp_path: Path
) -> None:
    """Both shares run concurrently in separate processes, are killed by SIGKILL, and run concurrently again."""
    longer_attacks = {"aa_square": {"epsilons_255": [4], "queries": 200}, "pgd": {"epsilons_255": [1, 8], "steps": 40}}
    fields = sampled_fields("70%", keys=KEYS | longer_attacks, architectures=["0-15"])
    driver_config, shares_config = (make_sampled(None, folder, **fields) for folder in ("unshared", "shared"))
    run(driver_config)
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep_fields(results=str(shares_config.results), **fields)))
    command = [sys.executable, "-m", "robust201", "run", str(path), "--share"]

    def start() -> list[subprocess.Popen[bytes]]:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return [subprocess.Popen([*command, share], **streams) for share in ("1/2", "2/2")]  # type: ignore[call-overload]

    def count_shards(config: SweepConfig) -> int:
        return len([*(config.results / "shards").rglob("*.parquet")])

    prepare_sweep(shares_config)
    assert [process.wait() for process in start()] == [3, 3]  # the pilot is complete, but no samples are drawn
    prepare_sweep(shares_config)
    assert (shares_config.results / SAMPLE_FILE).read_bytes() == (driver_config.results / SAMPLE_FILE).read_bytes()
    n_before = count_shards(shares_config)
    processes = start()
    while count_shards(shares_config) < n_before + 4 and all(process.poll() is None for process in processes):
        time.sleep(0.002)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    assert [process.wait() for process in processes] == [-signal.SIGKILL, -signal.SIGKILL]
    assert (
        not StatusReader(load_plan(shares_config.results))
        .read(ShardStore.open(shares_config.results).inventory())
        .complete
    )
    assert n_before < count_shards(shares_config) < count_shards(driver_config)
    assert [process.wait() for process in start()] == [0, 0]
    assert values_by_evaluation(shares_config) == values_by_evaluation(driver_config)
    files, expected = export_files(shares_config, tmp_path / "a"), export_files(driver_config, tmp_path / "b")
    assert files[ESTIMATES_FILE] == expected[ESTIMATES_FILE]
    assert files == expected
