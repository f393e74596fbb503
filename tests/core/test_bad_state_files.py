"""Damaged state files of a results folder are reported in one line or ignored, and never block a command."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from robust201.core.host import HostId
from robust201.planning.plan_file import load_plan
from tests.conftest import RunCommand
from tests.support.irregular_files import OBSTACLES

DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "a list": lambda path: path.write_bytes(b"[]"),
    "null": lambda path: path.write_bytes(b"null"),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
    "nested too deeply": lambda path: path.write_bytes(b"[" * 100_000),
    **OBSTACLES,
}

IRREGULAR_FILES = {*OBSTACLES} - {"20 GB"}

HOST = asdict(HostId.of_this_process())
LEASE = {"process_start": 1, "nonce": "ab", "since": "2026", "interval_seconds": 5.0, "heartbeat": 0}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["format.json", "plan.json", "protocols"])
@pytest.mark.slow_combinations
def test_verify_reports_a_damaged_file_of_a_results_folder(
    finished_results: Path, tmp_path: Path, robust201: RunCommand, name: str, damage: str
) -> None:
    path = next((finished_results / name).iterdir()) if name == "protocols" else finished_results / name
    path.unlink()
    DAMAGE[damage](path)
    result = robust201("verify", finished_results)
    assert result.code in {2, 4}
    assert "Traceback" not in result.err
    error_line = result.err.splitlines()[-1]
    assert "failed for" in error_line
    assert str(finished_results) in error_line


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["progress.json", "failures.jsonl"])
@pytest.mark.slow_combinations
def test_status_ignores_damaged_progress_files(
    finished_results: Path, robust201: RunCommand, name: str, damage: str
) -> None:
    (finished_results / name).unlink(missing_ok=True)
    DAMAGE[damage](finished_results / name)
    result = robust201("status", finished_results)
    assert (result.code, result.err) == (0, "")
    assert "100%" in result.out


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["sweep.json", ".export.tmp", ".export.tmp/SHA256SUMS"])
@pytest.mark.slow_combinations
def test_export_replaces_an_export_with_damaged_files(
    finished_results: Path, tmp_path: Path, robust201: RunCommand, name: str, damage: str
) -> None:
    command = ("export", finished_results, "--out", tmp_path / "out")
    assert robust201(*command).code == 0
    path = tmp_path / "out" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    DAMAGE[damage](path)
    result = robust201(*command)
    if damage in IRREGULAR_FILES:  # an export does not remove irregular files
        assert result.code in {0, 2, 4}
        assert "Traceback" not in result.err
        return
    assert result.code == 0
    assert not (tmp_path / "out/.export.tmp").exists()


WRONG_TYPES = {
    "progress.json": [
        {
            "state": ["running"],
            "quiet_seconds": "long",
            "measured_seconds": None,
            "evaluations_per_second": [1],
            "macs_per_second": {"a": 1},
            "seconds_left": 1e400,
            "gpus_per_worker": "many",
            "deaths": "none",
            "preemptions": -1,
        },
        {"state": "9" * 5000},
        {"state": "running", "quiet_seconds": float("nan"), "gpus_per_worker": True, "deaths": 10**400},
    ],
    "heartbeats/a-1-b.json": [
        {"share": ["1-of-2"]},
        {"share": None, "unit": ["x"], "strengths": [0.0], "images": [0, 1], "seconds": 1.0},
        {"share": None, "unit": "UNIT", "strengths": [0.0], "images": [0, 10], "seconds": float("inf")},
        {"share": None, "unit": "UNIT", "strengths": ["NaN"], "images": [0, 10**400], "seconds": 1.0},
    ],
    "lease.json": [
        {"host_id": HOST, "pid": "HERE"} | LEASE,
        {"host_id": HOST, "pid": 10**30} | LEASE,
        {"host_id": HOST | {"host": ["a"]}, "pid": 1} | LEASE,
        {"host_id": HOST, "pid": 1} | LEASE | {"nonce": "../../elsewhere"},
        {"host_id": HOST, "pid": 1} | LEASE | {"interval_seconds": "five"},
    ],
    "failures.jsonl": [
        {"unit": ["a"], "label": "b", "strengths": [0.0], "kind": "killed", "message": "c"},
        {"unit": "a", "label": {"b": 1}, "strengths": [0.0], "kind": "killed", "message": "c"},
        {"unit": "a", "label": "b", "strengths": 1, "kind": "killed", "message": "c"},
        {"unit": "a", "label": "b", "strengths": [[0.0]], "kind": ["killed"], "message": None},
    ],
    "logs/1-a-1-b.jsonl": [
        {"time": 1, "level": "info", "event": "part_done", "message": "a", "unit": "UNIT"},
        {"time": "2026", "level": ["info"], "event": {}, "message": None, "unit": "UNIT"},
    ],
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_status_and_logs_ignore_fields_of_wrong_types(finished_results: Path, robust201: RunCommand, name: str) -> None:
    # An evaluation is missing, so status looks up the evaluations in progress.
    next((finished_results / "shards").rglob("*.parquet")).unlink()
    unit_id = next(unit.id for unit in load_plan(finished_results).units if unit.key == "clean")
    for payload in WRONG_TYPES[name]:
        (finished_results / name).parent.mkdir(exist_ok=True)
        (finished_results / name).write_text(json.dumps(payload).replace("UNIT", unit_id) + "\n")
        for arguments in (
            ("status", finished_results),
            ("status", finished_results, "--json"),
            ("status", finished_results, "--log", unit_id[:12]),
        ):
            result = robust201(*arguments)
            assert "Traceback" not in result.err
            assert "--log" in arguments or (result.code, result.err) == (0, "")
            assert len(result.out) < 5000  # the state of 5000 digits is not printed
    result = robust201("status", finished_results, "--json")
    assert not json.loads(result.out)["running"]
