"""A results folder that was computed long ago is verified, exported and gone on with as on the day it was made."""

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
"""Files that tell of installed versions, or list one that does."""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The committed results folder (format 1, 36 evaluations), unpacked.

    Its plan named the weights by the path of the checkout that computed it, which was cut off when it was packed.
    """
    with tarfile.open(GOLDEN / "results-format1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    plan = tmp_path / "results" / "plan.json"
    content = json.loads(plan.read_text())
    assert content["config"]["checkpoints"]["path"] == "benchmark_data/demo"
    content["config"]["checkpoints"]["path"] = str(bundled("benchmark_data/demo"))
    plan.write_text(json.dumps(content))
    return plan.parent


def test_it_verifies_with_nothing_missing(results: Path, robust201: RunCommand) -> None:
    ended = robust201("verify", results, "--json")
    assert ended.code == 0, ended.err
    verdict = json.loads(ended.out)
    assert (verdict["sound"], verdict["planned"], verdict["missing"], verdict["gaps"]) == (True, 36, 0, [])


@pytest.mark.parametrize(
    ("listing", "options"),
    [
        ("export-parquet.sha256", ("--parquet",)),
        ("export-published.sha256", ("--round", 3, "--key-style", "with-norm", "--compress", "gz")),
    ],
)
def test_exports_keep_their_bytes(
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
    ended = robust201("export", results, "--out", tmp_path / "dataset", "--processes", 1, *options)
    assert ended.code == 0, ended.err
    lines = (GOLDEN / listing).read_text().splitlines()
    expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    files = [path for path in (tmp_path / "dataset").rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    got = {path.relative_to(tmp_path / "dataset").as_posix(): sha256_of(path) for path in files}
    assert got.keys() == expected.keys()
    assert {name for name in got if got[name] != expected[name]} <= VERSIONED


def test_outcomes_by_image_are_exported_and_verified(results: Path, tmp_path: Path) -> None:
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
        whole = file.read_bytes()
        table = pq.read_table(file)
        place, values = table.schema.get_field_index(column), table[column].to_pylist()
        changed = pa.array(values[1:] + values[:1], table.schema.field(place).type)
        pq.write_table(table.set_column(place, table.schema.field(place), changed), file)
        wrong = " ".join(check_export(plan, store, inventory, out))
        assert f"{file}: expected the {'values' if 'parquet/' in name else 'images'} of the results" in wrong
        file.write_bytes(whole)
    file.unlink()
    assert f"{file}: expected a file, got none" in " ".join(check_export(plan, store, inventory, out))


def test_evaluated_images_are_found_again_where_a_folder_kept_none(results: Path) -> None:
    plan = load_plan(results)
    kept = evaluated_images(plan, "digits")
    shutil.rmtree(results / "images")  # as in a merged folder
    assert evaluated_images(plan, "digits").sha256 == kept.sha256 == plan.facts.datasets["digits"].images_sha256


def test_a_run_finds_nothing_missing(results: Path, robust201: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results.parent)
    ended = robust201("run", GOLDEN / "results-format1.yaml", "--out", results)
    assert ended.code == 0, ended.err
    assert "Planned 36 evaluations of 21 network-key pairs: 36 done, 0 missing." in ended.err


def identities(plan: Plan) -> Mapping[str, Any]:
    ids = "\n".join(unit.id for unit in plan.units)
    return {
        "units": len(plan.units),
        "evaluations": plan.n_evaluations,
        "ids_sha256": hashlib.sha256(ids.encode()).hexdigest(),
        "protocols": list(plan.protocols),
    }


def test_ids_of_units_stay(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
