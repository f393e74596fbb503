"""A results folder that was computed long ago is verified, exported and gone on with as on the day it was made."""

import hashlib
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from robust201.core.files import bundled, sha256_of
from robust201.planning.loading import load_config
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.planning.plan_file import load_plan
from tests.conftest import REPOSITORY, RunCommand

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
    results: Path, robust201: RunCommand, tmp_path: Path, listing: str, options: tuple[object, ...]
) -> None:
    ended = robust201("export", results, "--out", tmp_path / "dataset", "--processes", 1, *options)
    assert ended.code == 0, ended.err
    lines = (GOLDEN / listing).read_text().splitlines()
    expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    files = [path for path in (tmp_path / "dataset").rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    got = {path.relative_to(tmp_path / "dataset").as_posix(): sha256_of(path) for path in files}
    assert got.keys() == expected.keys()
    assert {name for name in got if got[name] != expected[name]} <= VERSIONED


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
    reference = load_config(REPOSITORY / "jobs/demo.yaml", engine="reference")
    expected = json.loads((GOLDEN / "unit-ids.json").read_text())
    for name, plan in (
        ("paper (hashes of zeros)", make_plan(paper, assumed_facts(paper))),
        ("demo by the reference engine (hashes of zeros)", make_plan(reference, assumed_facts(reference))),
        ("golden", load_plan(results)),
    ):
        assert identities(plan) == expected[name], name
