"""Sweeps beyond the paper: measures, several weights per architecture, zoo networks and custom datasets."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from robust201.dataset.shard_rows import UnitColumns
from robust201.networks.nb201 import cells
from robust201.networks.nb201.network import Network
from robust201.run.sweep import SweepWork
from robust201.store.folder import ResultsFolder
from robust201.store.packing import pack
from robust201.sweep.config import SweepConfig
from robust201.weights.store import CheckpointStore
from tests.conftest import add_network
from tests.support.runs import list_units, read_rows, run_sweep
from tests.support.zoo_networks import SMALL_NETWORKS

CLEAN: dict[str, dict[str, Any]] = {"clean": {}}
RANDOM_WEIGHTS = {"random": {"seeds": [0, 1]}}


def run(config: SweepConfig) -> tuple[int, SweepWork]:
    """Run a sweep to its end; return the number of computed evaluations, and the work as planned before the run."""
    planned_works: list[SweepWork] = []
    tally = run_sweep(config, on_start=lambda work: planned_works.append(copy.copy(work)))
    assert tally.is_complete, [failure.failure for failure in tally.failures]
    return tally.n_done - tally.n_done_before, planned_works[0]


def read_columns(results: Path) -> dict[tuple[str, int | str, str], UnitColumns]:
    """Return the results as {(key, architecture, weights): columns}."""
    return {(unit.key, unit.architecture, unit.weights): rows for unit, rows in read_rows(results)}


def weights_of(results: Path) -> set[str]:
    return {unit.weights for unit in list_units(results)}


def read_squared_norms(results: Path) -> dict[tuple[int | str, str], float]:
    return {
        (architecture, weights): float(columns["squared_norm"][0])
        for (key, architecture, weights), columns in read_columns(results).items()
        if key == "jacobian"
    }


# --- measures ---------------------------------------------------------------------------------------------------------

JACOBIAN_KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}, "jacobian": {"images": 12}}


def test_sweep_with_measure_and_attacks_completes_and_resumes(make_sweep, robust201):
    keys = JACOBIAN_KEYS | {"jacobian": {"images": 12, "split": "train", "projections": 2}}
    config = make_sweep(keys=keys, checkpoints=None, weights=RANDOM_WEIGHTS)
    assert run(config)[0] == 2 * 2 * (1 + 2 + 1)
    assert run(config)[0] == 0
    norms = read_squared_norms(config.results)
    assert len(norms) == 2 * 2
    assert all(norm > 0 for norm in norms.values())
    assert len(set(norms.values())) == len(norms)
    assert robust201("verify", config.results).code == 0
    pack(ResultsFolder.open(config.results), grace_seconds=0.0)
    assert robust201("verify", config.results).code == 0
    assert read_squared_norms(config.results) == norms
    assert robust201("status", config.results).code == 0


def test_measure_results_do_not_depend_on_sweep_images(make_sweep):
    config = make_sweep(keys=JACOBIAN_KEYS, images={"count": 10, "seed": 0})
    run(config)
    key_by_id = {unit.id: unit.key for unit in list_units(config.results)}
    _, work = run(make_sweep(keys=JACOBIAN_KEYS, images={"count": 20, "seed": 0}))
    assert work.n_planned - work.n_done == 2 * 3
    assert {key_by_id[unit.id] for unit in list_units(config.results) if unit.id in key_by_id} == {"jacobian"}


@pytest.mark.parametrize("projections", ["exact", 3])
def test_engines_give_nearly_equal_measures(make_sweep, tmp_path, projections):
    keys = {"jacobian": {"images": 20, "projections": projections}}
    norms_by_engine = []
    for engine, batch_size in (("fused", 7), ("reference", 20)):
        config = make_sweep(keys=keys, engine=engine, batch_size=batch_size, results=str(tmp_path / engine))
        run(config)
        norms_by_engine.append(read_squared_norms(config.results))
    assert norms_by_engine[0] == pytest.approx(norms_by_engine[1], rel=1e-4)


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store_with_two_recipes(tmp_path: Path) -> Path:
    """Write a store with weights of two cells for two recipes, 1 and 2 epochs, seeds 0 and 1."""
    folder = tmp_path / "recipes"
    with CheckpointStore(folder) as store:
        for torch_seed, (index, recipe, epochs, seed) in enumerate(
            (index, recipe, epochs, seed)
            for index in (0, 21)
            for recipe in ("", "pgd7")
            for epochs in (1, 2)
            for seed in (0, 1)
        ):
            torch.manual_seed(torch_seed)
            network = Network(cells.specs()[index], channels=4, cells=1, n_classes=10)
            add_network(store, index, network.state_dict(), recipe=recipe, epochs=epochs, seed=seed)
    return folder


def test_sweep_evaluates_all_selected_weights(make_sweep, store_with_two_recipes, robust201, tmp_path):
    def select(**selection: object) -> SweepConfig:
        return make_sweep(
            checkpoints=None, weights={"path": str(store_with_two_recipes), **selection}, keys=JACOBIAN_KEYS
        )

    config = select(recipe="pgd7", epochs=[1], seeds=[0, 1])
    n_computed, _ = run(config)
    weights_names = weights_of(config.results)
    assert len(weights_names) == 2
    assert all("pgd7" in name for name in weights_names)
    assert n_computed == 2 * 2 * 4
    # Selecting more weights computes only the new evaluations.
    n_computed, work = run(select(recipe=["", "pgd7"], epochs=[1], seeds=[0, 1]))
    assert (work.n_done, n_computed) == (16, 16)
    n_computed, work = run(select(recipe=["", "pgd7"]))
    assert (work.n_done, n_computed) == (32, 32)
    assert len(set(read_squared_norms(config.results).values())) == 16
    assert len(weights_of(config.results)) == 8
    assert robust201("status", config.results).code == 0
    single_export, full_export = tmp_path / "single", tmp_path / "full"
    assert min(weights_names) in robust201("export", config.results, "--out", single_export).error_line(exit_code=2)
    assert robust201("export", config.results, "--out", single_export, "--weights-name", min(weights_names)).code == 0
    assert robust201("export", config.results, "--out", full_export, "--no-json", "--parquet").code == 0
    for out in (single_export, full_export):
        assert robust201("verify", config.results, "--export", out).code == 0
        comparison = json.loads(robust201("verify", config.results, "--against", out, "--json").out)
        assert comparison["max_difference"] == 0
    table = pq.read_table(full_export / "parquet/dataset=digits/key=jacobian/part-0.parquet")
    assert set(table["weights"].to_pylist()) == weights_of(config.results)
    content = json.loads((single_export / "digits/jacobian_squared_norm.json").read_text())["digits"]["jacobian"]
    is_selected = pc.equal(table["weights"].cast("string"), min(weights_names))
    assert [*content["squared_norm"].values()] == table.filter(is_selected)["squared_norm"].to_pylist()


def test_checkpoints_and_weights_sections_give_same_units(make_sweep, store_with_two_recipes):
    store = str(_remove_pgd7_recipe(store_with_two_recipes))
    run(make_sweep(checkpoints={"path": store, "epochs": 2, "seed": 1}, keys=CLEAN))
    weights_config = make_sweep(checkpoints=None, weights={"path": store, "epochs": [2], "seeds": [1]}, keys=CLEAN)
    assert run(weights_config)[0] == 0


def _remove_pgd7_recipe(store: Path) -> Path:
    manifest = store / "manifest.jsonl"
    manifest.write_text("".join(line for line in manifest.read_text().splitlines(True) if "pgd7" not in line))
    return store


@pytest.mark.parametrize("selection", [{"recipe": ["pgd7", "trades"]}, {"epochs": [1, 3]}, {"seeds": [0, 9]}], ids=str)
def test_run_rejects_missing_combination_of_weights(
    write_sweep, robust201, store_with_two_recipes, tmp_path, selection
):
    weights = {"path": str(store_with_two_recipes), "recipe": "pgd7"} | selection
    error_line = robust201("run", write_sweep(checkpoints=None, weights=weights, keys=CLEAN)).error_line(exit_code=2)
    ((_, missing),) = selection.values()
    assert str(missing) in error_line
    assert not (tmp_path / "results").exists()


def test_random_weights_depend_on_seed_only(make_sweep, tmp_path):
    norms_by_run = []
    for process_seed in (0, 1):
        torch.manual_seed(process_seed)  # the state of PyTorch's generator must have no effect
        config = make_sweep(
            checkpoints=None, weights=RANDOM_WEIGHTS, keys=JACOBIAN_KEYS, results=str(tmp_path / str(process_seed))
        )
        run(config)
        norms_by_run.append(read_squared_norms(config.results))
    assert norms_by_run[0] == norms_by_run[1]
    assert len(set(norms_by_run[0].values())) == 4


# --- the zoo ----------------------------------------------------------------------------------------------------------


def test_sweep_attacks_all_zoo_families(make_sweep):
    keys = {"clean": {}, "pgd": {"epsilons": ["8/255"], "steps": 1}}
    fields = {"space": "zoo", "network": {}, "checkpoints": None, "weights": {"random": {}}, "images": {"count": 2}}
    config = make_sweep(**fields, architectures=SMALL_NETWORKS, keys=keys)
    assert run(config)[0] == 2 * len(SMALL_NETWORKS)
    assert {unit.architecture for unit in list_units(config.results)} == set(SMALL_NETWORKS)


# --- custom datasets ----------------------------------------------------------------------------------------------


def test_plan_counts_images_of_npz_archives_and_run_evaluates_them(write_sweep, robust201, tmp_path):
    generator = np.random.default_rng(0)
    for split, count in (("test", 12), ("train", 20)):
        images = generator.integers(0, 256, (count, 3, 32, 32), np.uint8)
        np.savez(tmp_path / f"{split}.npz", images=images, labels=np.arange(count) % 10)
    datasets = {"mine": {"path": str(tmp_path), "classes": 10, "image_size": 32}}
    keys = {"clean": {}, "jacobian": {"images": 20, "split": "train"}}
    fields = {"datasets": datasets, "checkpoints": None, "weights": RANDOM_WEIGHTS, "keys": keys, "images": {}}
    # The numbers of images of a custom dataset are not known in advance, so the plan counts the images.
    plan_summary = json.loads(robust201("plan", "--json", write_sweep(**fields)).out)
    assert plan_summary["evaluated_images"] == 2 * 2 * (12 + 20)  # two networks, each with two sets of weights
    assert robust201("run", write_sweep(**fields)).code == 0
