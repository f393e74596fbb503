"""A results folder of an earlier version can be verified, exported and resumed. It is stored in the repository."""

import hashlib
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.core.files import bundled, sha256_of
from robust201.export import export_dataset
from robust201.export.outcome_files import evaluated_images
from robust201.export.verify import check_export
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.planning.plan_file import load_plan
from robust201.reader.dataset import RobustnessDataset
from robust201.shards import ShardStore
from robust201.sweep.loading import load_config
from tests.conftest import REPOSITORY, RunCommand
from tests.golden.compare_demo import RECORDED_VERSION

GOLDEN = REPOSITORY / "tests" / "golden"
VERSION_DEPENDENT_FILES = {"README.md", "versions.json"}
"""Files that contain installed versions, or hashes of such files."""


@pytest.fixture
def golden_results(tmp_path: Path) -> Path:
    """Unpack the results folder in the repository (format 1, 36 evaluations), and return its path.

    Its plan contains the path of the weights. The beginning of this path was removed before packing, and is restored.
    """
    with tarfile.open(GOLDEN / "results-format1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    plan = tmp_path / "results" / "plan.json"
    content = json.loads(plan.read_text())
    assert content["config"]["checkpoints"]["path"] == "benchmark_data/demo"
    content["config"]["checkpoints"]["path"] = str(bundled("benchmark_data/demo"))
    plan.write_text(json.dumps(content))
    return plan.parent


def test_verify_finds_golden_results_complete(golden_results: Path, robust201: RunCommand) -> None:
    result = robust201("verify", golden_results, "--json")
    assert result.code == 0, result.err
    verdict = json.loads(result.out)
    assert (verdict["sound"], verdict["planned"], verdict["missing"], verdict["gaps"]) == (True, 36, 0, [])


@pytest.mark.parametrize(
    ("listing", "options"),
    [
        ("export-parquet.sha256", ("--parquet",)),
        ("export-published.sha256", ("--round", 3, "--key-style", "with-norm")),
    ],
)
def test_exports_of_golden_results_have_recorded_bytes(
    golden_results: Path,
    robust201: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    listing: str,
    options: tuple[object, ...],
) -> None:
    # sweep.json contains the version of robust201. All other bytes must be unchanged.
    for module in ("side_files", "card"):
        monkeypatch.setattr(f"robust201.export.{module}.__version__", RECORDED_VERSION)
    result = robust201("export", golden_results, "--out", tmp_path / "dataset", *options)
    assert result.code == 0, result.err
    listing_lines = (GOLDEN / listing).read_text().splitlines()
    expected_digests = {
        name: digest for digest, _, name in (listing_line.partition("  ") for listing_line in listing_lines)
    }
    files = [path for path in (tmp_path / "dataset").rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    digests = {path.relative_to(tmp_path / "dataset").as_posix(): sha256_of(path) for path in files}
    assert digests.keys() == expected_digests.keys()
    assert {name for name in digests if digests[name] != expected_digests[name]} <= VERSION_DEPENDENT_FILES


def test_outcomes_of_golden_results_are_exported_and_verified(golden_results: Path, tmp_path: Path) -> None:
    plan, store, folder = (
        load_plan(golden_results).narrow(keys=("clean", "pgd")),
        ShardStore.open(golden_results),
        tmp_path / "dataset",
    )
    inventory = store.inventory()
    export_dataset(plan, store, inventory, folder, formats=("parquet",), outcomes="classes")
    assert [*check_export(plan, store, inventory, folder)] == []
    labels = RobustnessDataset(folder).images("digits")["label"].to_numpy()
    for table in (
        pq.read_table(folder / f"parquet/dataset=digits/key={key}/part-0.parquet") for key in ("clean", "pgd")
    ):
        for bits, predicted in zip(table["correct_bits"].to_pylist(), table["predictions"].to_pylist(), strict=True):
            assert bits == np.packbits(np.array(predicted) == labels).tobytes()
    for name, column in (("parquet/dataset=digits/key=pgd", "correct_bits"), ("images/dataset=digits", "label")):
        path = folder / name / "part-0.parquet"
        original = path.read_bytes()
        table = pq.read_table(path)
        column_index, cells = table.schema.get_field_index(column), table[column].to_pylist()
        shifted_column = pa.array(cells[1:] + cells[:1], table.schema.field(column_index).type)
        pq.write_table(table.set_column(column_index, table.schema.field(column_index), shifted_column), path)
        problem_text = " ".join(check_export(plan, store, inventory, folder))
        assert str(path) in problem_text
        path.write_bytes(original)
    path.unlink()
    assert f"{path}: expected a file, got none" in " ".join(check_export(plan, store, inventory, folder))


def test_evaluated_images_loads_from_source_without_copy(golden_results: Path) -> None:
    plan = load_plan(golden_results)
    copied_images = evaluated_images(plan, "digits")
    shutil.rmtree(golden_results / "images")  # as in a merged folder
    assert (
        evaluated_images(plan, "digits").sha256 == copied_images.sha256 == plan.facts.datasets["digits"].images_sha256
    )


def test_run_on_golden_results_computes_nothing(
    golden_results: Path, robust201: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(golden_results.parent)
    result = robust201("run", GOLDEN / "results-format1.yaml", "--out", golden_results)
    assert result.code == 0, result.err
    assert "Planned 36 evaluations of 21 network-key pairs: 36 done, 0 missing." in result.err


def describe_units(plan: Plan) -> Mapping[str, Any]:
    unit_ids = "\n".join(unit.id for unit in plan.units)
    return {
        "units": len(plan.units),
        "evaluations": plan.n_evaluations,
        "ids_sha256": hashlib.sha256(unit_ids.encode()).hexdigest(),
        "protocols": list(plan.protocols),
    }


def test_unit_ids_are_unchanged(golden_results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUST201_DATA", "/data")
    paper = load_config(REPOSITORY / "jobs/paper.yaml")
    reference = load_config(GOLDEN / "ids-demo.yaml", engine="reference")
    expected = json.loads((GOLDEN / "unit-ids.json").read_text())
    for name, plan in (
        ("paper (hashes of zeros)", make_plan(paper, assumed_facts(paper))),
        ("demo by the reference engine (hashes of zeros)", make_plan(reference, assumed_facts(reference))),
        ("golden", load_plan(golden_results)),
    ):
        assert describe_units(plan) == expected[name], name
