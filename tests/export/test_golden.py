"""A committed results folder of an earlier version can be verified, exported and resumed unchanged."""

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
from robust201.planning.loading import load_config
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.planning.plan_file import load_plan
from robust201.reader.dataset import RobustnessDataset
from robust201.shards import ShardStore
from tests.conftest import REPOSITORY, RunCommand
from tests.golden.compare_demo import RECORDED_VERSION

GOLDEN = REPOSITORY / "tests" / "golden"
VERSIONED = {"README.md", "versions.json"}
"""Files that contain installed versions, or hashes of such files."""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The committed results folder (format 1, 36 evaluations), unpacked.

    Its plan contained the absolute path of the weights, whose beginning was removed before packing.
    """
    with tarfile.open(GOLDEN / "results-format1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    plan = tmp_path / "results" / "plan.json"
    content = json.loads(plan.read_text())
    assert content["config"]["checkpoints"]["path"] == "benchmark_data/demo"
    content["config"]["checkpoints"]["path"] = str(bundled("benchmark_data/demo"))
    plan.write_text(json.dumps(content))
    return plan.parent


def test_golden_results_verify_as_complete(results: Path, robust201: RunCommand) -> None:
    result = robust201("verify", results, "--json")
    assert result.code == 0, result.err
    verdict = json.loads(result.out)
    assert (verdict["sound"], verdict["planned"], verdict["missing"], verdict["gaps"]) == (True, 36, 0, [])


@pytest.mark.parametrize(
    ("listing", "options"),
    [
        ("export-parquet.sha256", ("--parquet",)),
        ("export-published.sha256", ("--round", 3, "--key-style", "with-norm", "--compress", "gz")),
    ],
)
def test_exports_of_golden_results_keep_their_bytes(
    results: Path,
    robust201: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    listing: str,
    options: tuple[object, ...],
) -> None:
    # sweep.json and croissant.json contain the version that writes them; every other byte must stay.
    for module in ("side_files", "card"):
        monkeypatch.setattr(f"robust201.export.{module}.__version__", RECORDED_VERSION)
    result = robust201("export", results, "--out", tmp_path / "dataset", "--processes", 1, *options)
    assert result.code == 0, result.err
    lines = (GOLDEN / listing).read_text().splitlines()
    expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    files = [path for path in (tmp_path / "dataset").rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    actual = {path.relative_to(tmp_path / "dataset").as_posix(): sha256_of(path) for path in files}
    assert actual.keys() == expected.keys()
    assert {name for name in actual if actual[name] != expected[name]} <= VERSIONED


def test_outcomes_of_golden_results_are_exported_and_verified(results: Path, tmp_path: Path) -> None:
    plan, store, out = load_plan(results).narrow(keys=("clean", "pgd")), ShardStore.open(results), tmp_path / "dataset"
    inventory = store.inventory()
    export_dataset(plan, store, inventory, out, formats=("parquet",), outcomes="classes")
    assert [*check_export(plan, store, inventory, out)] == []
    labels = RobustnessDataset(out).images("digits")["label"].to_numpy()
    for table in (pq.read_table(out / f"parquet/dataset=digits/key={key}/part-0.parquet") for key in ("clean", "pgd")):
        for bits, predicted in zip(table["correct_bits"].to_pylist(), table["predictions"].to_pylist(), strict=True):
            assert bits == np.packbits(np.array(predicted) == labels).tobytes()
    for name, column in (("parquet/dataset=digits/key=pgd", "correct_bits"), ("images/dataset=digits", "label")):
        file = out / name / "part-0.parquet"
        original = file.read_bytes()
        table = pq.read_table(file)
        position, values = table.schema.get_field_index(column), table[column].to_pylist()
        changed = pa.array(values[1:] + values[:1], table.schema.field(position).type)
        pq.write_table(table.set_column(position, table.schema.field(position), changed), file)
        problems = " ".join(check_export(plan, store, inventory, out))
        assert f"{file}: the {'values' if 'parquet/' in name else 'images'} differ from" in problems
        file.write_bytes(original)
    file.unlink()
    assert f"{file}: expected a file, got none" in " ".join(check_export(plan, store, inventory, out))


def test_evaluated_images_loads_from_source_without_kept_images(results: Path) -> None:
    plan = load_plan(results)
    copied = evaluated_images(plan, "digits")
    shutil.rmtree(results / "images")  # as in a merged folder
    assert evaluated_images(plan, "digits").sha256 == copied.sha256 == plan.facts.datasets["digits"].images_sha256


def test_run_on_golden_results_computes_nothing(
    results: Path, robust201: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results.parent)
    result = robust201("run", GOLDEN / "results-format1.yaml", "--out", results)
    assert result.code == 0, result.err
    assert "Planned 36 evaluations of 21 network-key pairs: 36 done, 0 missing." in result.err


def identities(plan: Plan) -> Mapping[str, Any]:
    ids = "\n".join(unit.id for unit in plan.units)
    return {
        "units": len(plan.units),
        "evaluations": plan.n_evaluations,
        "ids_sha256": hashlib.sha256(ids.encode()).hexdigest(),
        "protocols": list(plan.protocols),
    }


def test_unit_ids_are_unchanged(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUST201_DATA", "/data")
    paper = load_config(REPOSITORY / "jobs/paper.yaml")
    reference = load_config(GOLDEN / "ids-demo.yaml", engine="reference")
    expected = json.loads((GOLDEN / "unit-ids.json").read_text())
    for name, plan in (
        ("paper (hashes of zeros)", make_plan(paper, assumed_facts(paper))),
        ("demo by the reference engine (hashes of zeros)", make_plan(reference, assumed_facts(reference))),
        ("golden", load_plan(results)),
    ):
        assert identities(plan) == expected[name], name
