"""Pipes, devices and huge files among results and logs: every command ends, and its error names the file."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RunCommand
from tests.support.irregular_files import IRREGULAR, OBSTACLES, replace

COMMANDS = ("status", "verify", "export", "merge --compact", "merge")


def make_arguments(command: str, results: Path) -> list[object]:
    out_options = ["--out", results.parent / "out"] if command in {"export", "merge"} else []
    return [*command.split(), results, *out_options]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("obstacle", IRREGULAR)
@pytest.mark.slow_combinations
def test_commands_report_shard_that_is_not_a_regular_file(
    finished_results: Path, robust201: RunCommand, obstacle: str, command: str
) -> None:
    path = replace(next((finished_results / "shards").rglob("*.parquet")), obstacle)
    result = robust201(*make_arguments(command, finished_results))
    assert result.code == 4
    assert len(result.err.splitlines()) == 1
    assert f"{path}: {obstacle} instead of a regular file. Move it elsewhere" in result.err


def test_shard_of_20_gigabytes_is_recomputed(finished_results: Path, robust201: RunCommand) -> None:
    path = replace(next((finished_results / "shards").rglob("*.parquet")), "20 GB")
    replace(path.with_name("compact-0123456789abcdef.parquet"), "20 GB")
    assert robust201("status", finished_results).code == 0
    assert robust201("verify", finished_results).code == 4
    result = robust201("run", finished_results.parent / "sweep.yaml")
    assert result.code == 0
    assert "2 damaged" in result.err or "set aside" in result.err
    assert robust201("verify", finished_results).code == 0


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_logs_reports_file_that_is_not_a_log(finished_results: Path, robust201: RunCommand, obstacle: str) -> None:
    path = replace(next((finished_results / "logs").glob("*.jsonl")), obstacle)
    result = robust201("status", finished_results, "--log", "21/digits/clean")
    assert result.code == 4
    assert f"Reading logs failed for {path}: expected a log file, got" in result.err


LIMITED_PROGRAM = """
import resource, sys
import robust201.cli.monitoring, robust201.monitoring.status  # imports also reserve address space
from pathlib import Path
from robust201.cli.app import main

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (int(sys.argv.pop(1)) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main()
"""


def run_limited(mebibytes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command whose address space is limited to `mebibytes` in addition to its imports."""
    command = [sys.executable, "-c", LIMITED_PROGRAM, str(mebibytes), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_status_works_with_limited_address_space(finished_results: Path) -> None:
    result = run_limited(640, "status", finished_results)
    assert (result.returncode, result.stderr) == (0, "")
    assert "100%" in result.stdout


def test_status_reports_lack_of_memory_in_one_line(finished_results: Path) -> None:
    plan = finished_results / "plan.json"
    plan.write_bytes(b" " * (200 << 20))
    result = run_limited(150, "status", finished_results)
    assert result.returncode == 3
    assert result.stderr.startswith("error: Allocating memory failed for robust201 status")
    assert len(result.stderr.splitlines()) == 1
