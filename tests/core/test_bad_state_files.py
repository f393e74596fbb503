"""Damaged state files of a results folder are reported in one line or ignored, and never block a command."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RunCommand

DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "a list": lambda path: path.write_bytes(b"[]"),
    "null": lambda path: path.write_bytes(b"null"),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["format.json", "plan.json", "protocols"])
@pytest.mark.slow_combinations
def test_verify_reports_a_damaged_file_of_a_results_folder(
    finished_results: Path, robust201: RunCommand, name: str, damage: str
) -> None:
    path = next((finished_results / name).iterdir()) if name == "protocols" else finished_results / name
    path.unlink()
    DAMAGE[damage](path)
    result = robust201("verify", finished_results)
    assert result.code in ({3, 4} if name == "protocols" else {2, 4})
    assert "Traceback" not in result.err
    assert path.name in result.err


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.slow_combinations
def test_status_ignores_damaged_events(finished_results: Path, robust201: RunCommand, damage: str) -> None:
    path = next((finished_results / "events").glob("*.jsonl"))
    path.unlink()
    DAMAGE[damage](path)
    result = robust201("status", finished_results)
    assert (result.code, result.err) == (0, "")
    assert "100%" in result.out
