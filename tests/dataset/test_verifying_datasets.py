"""Verification of exported and published datasets, without the results folders from which they were exported."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robust201.core.records import Weights
from robust201.dataset.verify_dataset import verify_dataset
from robust201.evaluation.measurements import Accumulator
from tests.support import fabricated
from tests.support.fabricated import ChangedStore, FabricatedPlan, export, export_copy, make_plan, make_unit
from tests.support.shard_support import make_unit as make_valid_unit
from tests.support.shard_support import make_values

ARCHITECTURES = (0, 2, 10, 309)
SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)
"""Severities that the reader assumes for a dataset without sweep.json."""

N_EVALUATIONS = len(ARCHITECTURES) * 2 * (1 + 3 + 3 + len(SEVERITIES))
"""Number of evaluations that `write_dataset` exports: two datasets with clean images, two attacks at three epsilons,
and a corruption."""

ALL_MEASUREMENTS = ("accuracy", "confidence", "cm", "predictions")

pytestmark = pytest.mark.filterwarnings("ignore::robust201.dataset.folder.MissingFilesWarning")


def make_consistent_values(unit, strength, _values):
    """Return columns that agree with each other."""
    full_unit = make_valid_unit(unit.architecture, unit.dataset, unit.key, unit.strengths, unit.n_images)
    return make_values(full_unit, strength, 0, unit.n_images, measurements=ALL_MEASUREMENTS)


def write_dataset(out: Path, plan=None, change_values=make_consistent_values, **options) -> Path:
    plan = plan or make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100"), severities=SEVERITIES)
    # `export_copy` caches the exports that many tests share.
    (export_copy if change_values is make_consistent_values else export)(
        out, plan, ChangedStore(change=change_values), **options
    )
    return out


def remove_sweep_and_listing(folder: Path) -> Path:
    for file_name in ("sweep.json", "SHA256SUMS"):  # the published dataset has neither
        (folder / file_name).unlink()
    return folder


def make_values_without_last_class(unit, _strength, _values):
    """Return columns for a network that never predicts the last class."""
    logits = torch.from_numpy(np.random.default_rng(unit.architecture).normal(size=(unit.n_images, 3)))
    logits[:, 2] -= 100
    accumulator = Accumulator(ALL_MEASUREMENTS, 3, "cpu", unit.n_images)
    accumulator.update(torch.arange(unit.n_images), logits.float(), torch.arange(unit.n_images) % 3)
    return accumulator.finalise()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key_style": "published", "round_to": 3},
        {"formats": ("parquet",)},
        {"formats": ("json", "parquet")},
    ],
    ids=str,
)
def test_verify_dataset_finds_no_problems_in_valid_dataset(tmp_path, options):
    verdict = verify_dataset(write_dataset(tmp_path, **options))
    assert (verdict.problems, verdict.remarks, verdict.n_evaluations) == ((), (), N_EVALUATIONS)
    assert verdict.n_listed == len((tmp_path / "SHA256SUMS").read_text().splitlines())
    assert (verdict.weights.n_checked, verdict.flags) == (0, None)


def test_verify_dataset_looks_for_weak_attacks_under_each_of_several_weights(tmp_path):
    strengths = {"pgd": (1.0, 8.0), "clean": (0.0,)}
    units = [
        make_unit(2, "cifar10", key, strengths[key], weights=name) for key in strengths for name in ("e1-s0", "e1-s1")
    ]
    weights = {f"e1-s{seed}": Weights("w" * 64, epochs=1, seed=seed) for seed in (0, 1)}

    def change_values(unit, strength, values):
        rises = unit.key == "pgd" and unit.weights == "e1-s1"
        return {"accuracy": np.float64(strength / 8 if rises else 1 - strength / 8)}

    plan = FabricatedPlan(tuple(units), ("accuracy",), weights=weights)
    export(tmp_path, plan, ChangedStore(change=change_values), formats=("parquet",))
    (flag,) = verify_dataset(tmp_path, attack_flags=True).flags
    assert (flag.check, flag.where, flag.n_checked) == ("not monotone", "pgd:8/255 against pgd:1/255", 1)


def test_verify_dataset_checks_values_without_listing(tmp_path):
    verdict = verify_dataset(remove_sweep_and_listing(write_dataset(tmp_path, key_style="published", round_to=3)))
    assert (verdict.problems, verdict.remarks, verdict.n_evaluations, verdict.n_listed) == ((), (), N_EVALUATIONS, None)


def edit_rows(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    rows = content["cifar10"][path.name.rpartition("_")[0]][path.stem.rpartition("_")[2]]
    edit(rows)
    path.write_text(json.dumps(content))


INVALID_EDITS = {
    "an accuracy above 1": ("pgd_accuracy.json", lambda rows: rows["2"].__setitem__(1, 1.5)),
    "counts that are not integers": ("fog_cm.json", lambda rows: rows["0"][0][0].__setitem__(0, 0.5)),
    "too few strengths": ("fog_cm.json", lambda rows: rows["0"].pop()),
}


@pytest.mark.parametrize("case", INVALID_EDITS)
def test_verify_dataset_finds_invalid_values(tmp_path, case):
    dataset = remove_sweep_and_listing(
        write_dataset(tmp_path, make_plan(ARCHITECTURES, severities=SEVERITIES), round_to=3)
    )
    file_name, edit = INVALID_EDITS[case]
    edit_rows(dataset / "cifar10" / file_name, edit)
    (problem, *_) = verify_dataset(dataset).problems
    assert "cifar10" in problem
    assert file_name.partition("_")[0] in problem


def write_fractions(path: Path, decimals: int) -> None:
    def to_fractions(matrix):
        return [[round(count / sum(matrix_row), decimals) for count in matrix_row] for matrix_row in matrix]

    is_single = path.name.startswith("clean")
    edit_rows(
        path,
        lambda rows: rows.update(
            {
                architecture: to_fractions(value) if is_single else [to_fractions(matrix) for matrix in value]
                for architecture, value in rows.items()
            }
        ),
    )


@pytest.mark.parametrize("decimals", [3, 17])
def test_verify_dataset_accepts_fractions_in_cm(tmp_path, monkeypatch, decimals):
    # The paper and the published helper script do not specify whether `cm` contains counts or fractions.
    monkeypatch.setattr(fabricated, "N_IMAGES", 42)  # divisible by the number of classes, 3
    plan = make_plan(ARCHITECTURES)
    (write_dataset(tmp_path, plan) / "SHA256SUMS").unlink()
    for path in tmp_path.glob("*/*_cm.json"):
        write_fractions(path, decimals)
    verdict = verify_dataset(tmp_path)
    assert verdict.problems == ()


@pytest.mark.parametrize("without_cm", [False, True])
def test_verify_dataset_accepts_zero_for_means_over_zero_images(tmp_path, without_cm):
    measurements = ("accuracy", "confidence") if without_cm else ("accuracy", "confidence", "cm")
    (
        write_dataset(
            tmp_path, replace(make_plan(ARCHITECTURES), measurements=measurements), make_values_without_last_class
        )
        / "SHA256SUMS"
    ).unlink()
    contents = {path: path.read_text() for path in tmp_path.glob("*/*_confidence.json")}
    assert any("null" in content for content in contents.values())
    for path, content in contents.items():
        path.write_text(content.replace("null", "0.0"))
    verdict = verify_dataset(tmp_path)
    assert verdict.problems == ()


def test_verify_dataset_reports_duplicate_architecture(tmp_path):
    path = (
        remove_sweep_and_listing(write_dataset(tmp_path, make_plan(ARCHITECTURES, ["fgsm"])))
        / "cifar10/fgsm_accuracy.json"
    )
    path.write_text(path.read_text().replace('"0":', '"0": [0.5, 0.5, 0.5], "0":', 1))
    (problem,) = verify_dataset(tmp_path).problems
    assert "fgsm_accuracy.json" in problem
    assert "twice" in problem


def test_verify_command_reports_counts_and_rejects_options_for_results_folders(tmp_path, robust201):
    dataset_folder = write_dataset(tmp_path / "source", make_plan(ARCHITECTURES))
    result = robust201("verify", dataset_folder)
    assert (result.code, result.err) == (0, "")
    n_listed = len((dataset_folder / "SHA256SUMS").read_text().splitlines())
    assert result.out == f"40 evaluations valid; {n_listed} listed files.\n"
    error_line = robust201("verify", dataset_folder, "--export", dataset_folder).error_line(2)
    assert "applies only to a results folder" in error_line
    edit_rows(dataset_folder / "cifar10/pgd_accuracy.json", lambda rows: rows["2"].__setitem__(1, 1.5))
    verify_result = robust201("verify", dataset_folder, "--json")
    assert verify_result.code == 4
    payload = json.loads(verify_result.out)
    assert (payload["sound"], len(payload["problems"])) == (False, 1)
