"""Verification of exported and published datasets, without the results folders from which they were exported."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.cli.options import results_of
from robust201.core.records import Weights
from robust201.dataset.verify_dataset import verify_dataset
from tests.support.fabricated import ChangedStore, FabricatedPlan, export, export_copy, make_plan, make_unit

ARCHITECTURES = (0, 2, 10, 309)
SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)
"""Severities that the reader assumes for a dataset without sweep.json."""

PLAN = make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100"), severities=SEVERITIES)
N_EVALUATIONS = len(ARCHITECTURES) * 2 * (1 + 3 + 3 + len(SEVERITIES))

pytestmark = pytest.mark.filterwarnings("ignore::robust201.dataset.folder.MissingFilesWarning")


def write_published(out: Path) -> Path:
    """Write a dataset like the published one, which has neither sweep.json nor hashes."""
    export_copy(out, PLAN, key_style="published", round_to=3)
    for file_name in ("sweep.json", "SHA256SUMS"):
        (out / file_name).unlink()
    return out


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
def test_verify_dataset_finds_no_problems_in_valid_dataset(tmp_path: Path, options: dict[str, Any]) -> None:
    export_copy(tmp_path, PLAN, **options)
    verdict = verify_dataset(tmp_path)
    assert (verdict.problems, verdict.remarks, verdict.n_evaluations) == ((), (), N_EVALUATIONS)
    assert verdict.n_listed == len((tmp_path / "SHA256SUMS").read_text().splitlines())
    assert verdict.flags is None


def test_verify_dataset_checks_attack_flags_for_each_set_of_weights(tmp_path: Path) -> None:
    strengths = {"pgd": (1.0, 8.0), "clean": (0.0,)}
    units = [
        make_unit(2, "cifar10", key, strengths[key], weights=name) for key in strengths for name in ("e1-s0", "e1-s1")
    ]
    weights = {f"e1-s{seed}": Weights("w" * 64, epochs=1, seed=seed) for seed in (0, 1)}

    def change_values(unit: Any, strength: float, _values: Any) -> dict[str, Any]:
        is_rising = unit.key == "pgd" and unit.weights == "e1-s1"
        return {"accuracy": np.float64(strength / 8 if is_rising else 1 - strength / 8)}

    plan = FabricatedPlan(tuple(units), ("accuracy",), weights=weights)
    export(tmp_path, plan, ChangedStore(change=change_values), formats=("parquet",))
    (flag,) = verify_dataset(tmp_path, attack_flags=True).flags or ()
    assert (flag.check, flag.where, flag.n_checked) == ("not monotone", "pgd:8/255 against pgd:1/255", 1)


def edit_values(path: Path, edit: Callable[[Any], Any]) -> None:
    """Replace the value of each architecture in a JSON file."""
    content = json.loads(path.read_text())
    ((dataset, results_of_dataset),) = content.items()
    ((key, results_of_key),) = results_of_dataset.items()
    ((measurement, values),) = results_of_key.items()
    edited = {identifier: edit(value) for identifier, value in values.items()}
    path.write_text(json.dumps({dataset: {key: {measurement: edited}}}))


def to_fractions(counts: Any) -> Any:
    if isinstance(counts[0], list):
        return [to_fractions(row) for row in counts]
    return [round(count / max(1, sum(counts)), 3) for count in counts]


def replace_null(values: Any) -> Any:
    return json.loads(json.dumps(values).replace("null", "0.0"))


@pytest.mark.parametrize(("measurement", "edit"), [("cm", to_fractions), ("confidence", replace_null)])
def test_verify_dataset_accepts_variants_of_the_published_files(
    tmp_path: Path, measurement: str, edit: Callable[[Any], Any]
) -> None:
    # In published files, `cm` may contain counts or fractions, and a mean over no images may be null or 0.
    dataset = write_published(tmp_path)
    for path in dataset.glob(f"*/*_{measurement}.json"):
        edit_values(path, edit)
    verdict = verify_dataset(dataset)
    assert (verdict.problems, verdict.remarks, verdict.n_evaluations, verdict.n_listed) == ((), (), N_EVALUATIONS, None)


def test_verify_dataset_reports_every_damaged_file(tmp_path: Path) -> None:
    dataset = write_published(tmp_path)
    edit_values(dataset / "cifar10/pgd@Linf_accuracy.json", lambda values: [1.2, *values[1:]])
    edit_values(dataset / "cifar10/fog_cm.json", lambda values: values[1:])
    path = dataset / "cifar100/clean_accuracy.json"
    path.write_text(path.read_text().replace('"0":', '"0": 0.5, "0":', 1))
    problems = verify_dataset(dataset).problems
    assert len(problems) == 3
    for name, fault in (("pgd@Linf_accuracy", "1.2"), ("fog_cm", "5 values"), ("clean_accuracy", "twice")):
        assert any(name in problem and fault in problem for problem in problems)


@pytest.mark.parametrize("round_to", [None, 3])
@pytest.mark.parametrize("name", ["accuracy", "cm"])
def test_verify_dataset_compares_accuracies_with_confusion_matrices(
    tmp_path: Path, name: str, round_to: int | None
) -> None:
    export_copy(tmp_path, PLAN, round_to=round_to)
    (tmp_path / "SHA256SUMS").unlink()
    assert verify_dataset(tmp_path).problems == ()
    path = tmp_path / f"cifar100/pgd_{name}.json"
    change = (lambda values: [values[0] - 0.025, *values[1:]]) if name == "accuracy" else (lambda values: values[::-1])
    edit_values(path, change)
    (problem,) = verify_dataset(tmp_path).problems
    assert "pgd_accuracy.json: expected an accuracy of " in problem
    assert "#0 at strength 0.5" in problem


WRONG_COLUMNS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "accuracy": lambda table: table.drop_columns(["accuracy"]),
    "correct_bits": lambda table: replace_column(table, "correct_bits", pa.array([bytes(63)] * len(table))),
    "number of images": lambda table: replace_column(
        table.drop_columns(["correct_bits"]), "n_images", pa.array([1000] * len(table))
    ),
}


def replace_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.names.index(name), name, values)


@pytest.mark.parametrize("fault", WRONG_COLUMNS)
def test_verify_dataset_finds_wrong_columns_without_hashes(tmp_path: Path, fault: str) -> None:
    shutil.copytree("benchmark_data/cells-cifar10", tmp_path / "copy")
    (tmp_path / "copy/SHA256SUMS").unlink()
    path = tmp_path / "copy/parquet/dataset=cifar10/key=clean/part-0.parquet"
    pq.write_table(WRONG_COLUMNS[fault](pq.read_table(path, partitioning=None)), path)
    (problem,) = verify_dataset(tmp_path / "copy").problems
    assert fault in problem


def test_verify_command_reports_counts_and_rejects_options_for_results_folders(tmp_path: Path, robust201: Any) -> None:
    assert results_of(Path("bundled:benchmark_data/cells-cifar10")).is_dir()
    export_copy(tmp_path, make_plan(ARCHITECTURES))
    result = robust201("verify", tmp_path)
    assert (result.code, result.err) == (0, "")
    n_listed = len((tmp_path / "SHA256SUMS").read_text().splitlines())
    assert result.out == f"40 evaluations valid; {n_listed} files listed in SHA256SUMS.\n"
    error_line = robust201("verify", tmp_path, "--export", tmp_path).error_line(exit_code=2)
    assert "applies only to a results folder" in error_line
    (tmp_path / "cifar10/pgd_accuracy.json").write_text("{}")
    verify_result = robust201("verify", tmp_path, "--json")
    assert verify_result.code == 4
    payload = json.loads(verify_result.out)
    assert (payload["valid"], len(payload["problems"])) == (False, 1)
