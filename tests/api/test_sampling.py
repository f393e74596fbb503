"""Sweeps on chosen images (listed in a file), and accuracies estimated from a pilot and such a sweep."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robust201 import sampling
from robust201.core.errors import ConfigError, RobustWarning
from robust201.dataset.diff import read_numbers
from robust201.dataset.export import export_dataset
from robust201.dataset.reader import Dataset
from robust201.dataset.shard_rows import KeyRows
from robust201.dataset.stored_outcomes import read_outcomes
from robust201.dataset.verify_results import check_clean_accuracy
from robust201.sampling import ChosenImages, choose_images, estimate
from robust201.sweep.facts import assumed_facts
from robust201.sweep.filters import EVERYTHING
from robust201.sweep.loading import parse_config
from robust201.sweep.plan import open_results
from tests.conftest import read_tree, tiny_sweep_fields
from tests.support.runs import run_sweep, save_plan

KEYS = {
    "clean": {},
    "fgsm": {"epsilons": ["1/255", "8/255"]},
    "pgd": {"epsilons": ["1/255", "8/255"], "steps": 3, "rel_stepsize": 0.5},
    "jacobian": {"images": 8},
}
N_CHOSEN, N_IMAGES = 24, 60
PILOT_CELLS, SWEEP_CELLS = [0, 21, 50, 309], [0, 991, 13714]


def run(folder, weights, architectures, **changes):
    fields = tiny_sweep_fields(folder, weights, architectures=architectures, batch_size=250, checkpoints=None)
    fields |= {"weights": {"random": {"seeds": [0]}}, "images": {"count": N_IMAGES}, "keys": KEYS} | changes
    config = parse_config(fields, "test")
    run_sweep(config)
    return config.results


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_weights):
    """Return the results folders of a pilot, of a sweep on all images, and of the same sweep on chosen images."""
    root = tmp_path_factory.mktemp("chosen")
    pilot = run(root / "pilot", tiny_weights, PILOT_CELLS)
    choose_images(pilot, "digits", "pgd", N_CHOSEN, seed=1).save(root / "chosen.json")
    chosen_keys = KEYS | {"pgd": KEYS["pgd"] | {"images": {"file": str(root / "chosen.json")}}}
    full = run(root / "full", tiny_weights, SWEEP_CELLS)
    return pilot, full, run(root / "results", tiny_weights, SWEEP_CELLS, keys=chosen_keys)


@pytest.fixture
def chosen(folders):
    return ChosenImages.load(folders[0].parent.parent / "chosen.json")


def test_outcomes_on_chosen_images_match_outcomes_on_all_images(folders, chosen):
    _, full, results = (read_outcomes(folder, "digits", ["pgd"]) for folder in folders)
    assert results.images.tolist() == [*chosen.images]
    np.testing.assert_array_equal(results.correct, full.correct[..., np.isin(full.images, chosen.images)])
    assert chosen.sample.sizes.sum() == N_CHOSEN


def test_estimates_and_their_intervals_are_near_the_accuracies_on_all_images(folders, chosen):
    pilot, full, results = folders
    table = estimate(chosen, pilot, results)
    expected = read_outcomes(full, "digits", ["pgd"]).correct.mean(axis=2).ravel()
    assert table["strength"].tolist() == [1, 8] * 3
    assert table["kind"].tolist() == ["counted"] * 2 + ["estimated"] * 4
    assert table["n_images"].tolist() == [N_IMAGES] * 2 + [N_CHOSEN] * 4
    assert table[["dataset", "key", "network"]].drop_duplicates().to_numpy().tolist() == [
        ["digits", "pgd", architecture] for architecture in SWEEP_CELLS
    ]
    assert table["accuracy"][:2].tolist() == expected[:2].tolist()
    assert table["standard_error"].gt(0).tolist() == [False] * 2 + [True] * 4
    assert (np.abs(table["accuracy"] - expected) <= 4 * table["standard_error"] + 1e-12).all()
    assert ((table["low"] <= table["accuracy"]) & (table["accuracy"] <= table["high"])).all()


def test_estimate_rejects_other_images_at_the_same_positions(folders, chosen, monkeypatch):
    def read_other(path, *arguments):
        return replace(read_outcomes(path, *arguments), images_sha256=str(path))

    monkeypatch.setattr(sampling, "read_outcomes", read_other)
    with pytest.raises(ConfigError, match="expected the pilot's images for clean, fgsm"):
        estimate(chosen, folders[0], folders[2])


def test_estimate_rejects_different_images_and_parameters(folders, chosen, tmp_path, tiny_weights):
    pilot, full, results = folders
    with pytest.raises(ConfigError, match="expected the chosen images"):
        estimate(chosen, pilot, full)
    unchosen = min({*chosen.population} - {*chosen.images})
    population = tuple(sorted({*chosen.population, 9999} - {unchosen}))
    with pytest.raises(ConfigError, match="expected the pilot's images"):
        estimate(replace(chosen, population=population), pilot, results)
    keys = KEYS | {"pgd": KEYS["pgd"] | {"steps": 4, "images": {"file": str(pilot.parent.parent / "chosen.json")}}}
    with pytest.raises(ConfigError, match="expected the pilot's parameters"):
        estimate(chosen, pilot, run(tmp_path, tiny_weights, [0], keys=keys))
    with pytest.raises(ConfigError, match="got none"):
        choose_images(pilot, "digits", "aa_square", N_CHOSEN)


@pytest.mark.parametrize(
    ("key", "cheap", "message"),
    [
        ("jacobian", ["clean"], "jacobian, which is a measure"),
        ("pgd", ["clean", "jacobian"], "jacobian, which is a measure"),
        ("pgd", ["clean", "pgd"], "distinct"),
        ("pgd", ["clean", "clean"], "distinct"),
        ("pgd", [], "none"),
    ],
)
def test_choose_images_rejects_measures_and_repeated_keys(folders, key, cheap, message):
    tree_before = read_tree(folders[0])
    with pytest.raises(ConfigError, match=message):
        choose_images(folders[0], "digits", key, N_CHOSEN, cheap=cheap)
    assert read_tree(folders[0]) == tree_before


def test_reading_columns_that_a_key_lacks_does_not_move_files(folders):
    tree_before, (plan, folder) = read_tree(folders[0]), open_results(folders[0])
    jacobian = next(key for key in plan.keys if key.key == "jacobian")
    with pytest.raises(ValueError, match="predictions"):
        KeyRows(folder, jacobian, folder.list()).read(0, ("predictions",))
    assert read_tree(folders[0]) == tree_before


def test_accuracies_on_chosen_images_are_not_compared_with_recorded_accuracies(folders, tmp_path, tiny_weights):
    chosen_images = {"images": {"file": str(folders[0].parent.parent / "chosen.json")}}
    plan, folder = open_results(run(tmp_path, tiny_weights, [0], keys={"clean": chosen_images}))
    plan.facts.recorded_accuracies[plan.keys[0].unit(0).checkpoint_sha256] = 1.0
    assert check_clean_accuracy(plan, folder).n_checked == 0


def test_chosen_images_are_not_exported(folders, tmp_path):
    with pytest.warns(RobustWarning, match="pgd: not exported"):
        report = export_dataset(*open_results(folders[2]), tmp_path / "out", formats=("json", "parquet"))
    assert report.is_complete
    data = Dataset(tmp_path / "out")
    assert data.keys_all == ["clean", "fgsm", "jacobian"]
    assert "pgd" not in {*read_numbers(folders[2])["key"]}
    assert "Not evaluated" not in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize("change", [{"images": ["x"]}, {"strata": [10**12]}, {"seed": 1}, None])
def test_load_rejects_damaged_files_and_ignores_unknown_fields(folders, chosen, tmp_path, change):
    path = tmp_path / "chosen.json"
    path.write_text("[1, 2]" if change is None else json.dumps(vars(chosen) | change))
    if change == {"seed": 1}:
        assert ChosenImages.load(path) == chosen
        return
    with pytest.raises(ConfigError, match=r"chosen\.json"):
        ChosenImages.load(path)


@pytest.mark.parametrize("images", [(0, 1, 2, 4), (0, 1, 3, 6), (0, 1, 1, 3, 4), (1, 0, 3, 4)])
def test_load_rejects_repeated_images_images_outside_the_population_and_small_strata(tmp_path, images):
    population = (0, 1, 2, 3, 4, 5)
    ChosenImages("digits", "pgd", ("clean",), images, population, (0, 0, 0, 1, 1, 1)).save(tmp_path / "chosen.json")
    with pytest.raises(ConfigError, match="fewer than 2 chosen images"):
        ChosenImages.load(tmp_path / "chosen.json")


@pytest.mark.parametrize(
    ("key", "fields", "message"),
    [
        ("corruptions", {}, "images"),
        ("jacobian", {}, "images"),
        ("mine", {"file": "mine.py"}, "images"),
        ("pgd", {"unknown": 1}, "unknown"),
    ],
)
def test_only_attacks_with_the_fused_engine_accept_chosen_images(tmp_path, key, fields, message):
    fields = tiny_sweep_fields(tmp_path, Path("weights"), keys={key: {"images": {"file": "a.json"}} | fields})
    with pytest.raises(ConfigError, match=message):
        parse_config(fields, "test")
    fields["keys"] = {"pgd": {"images": {"file": "a.json"}}}
    assert parse_config(fields, "test").image_selections[0].file is not None
    with pytest.raises(ConfigError, match="depends on other images of the batch"):
        parse_config(fields | {"engine": "reference"}, "test")


def test_plan_with_chosen_images_does_not_depend_on_the_home_folder(tmp_path, monkeypatch, tiny_weights):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "chosen.json").write_text(json.dumps({"images": [0, 3]}))
    fields = tiny_sweep_fields(tmp_path, tiny_weights, keys={"pgd": {"images": {"file": "~/chosen.json"}}})
    config = parse_config(fields, "test")
    assert assumed_facts(config).datasets["digits"].images_of("pgd").n_images == 2
    save_plan(config, EVERYTHING)
    monkeypatch.setenv("HOME", "/elsewhere")
    assert open_results(config.results)[0].keys[0].n_images == 2
