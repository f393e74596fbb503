"""The short form of the kill test; the long form is `python -m tests.faults.kill_sweep --kills 20`."""

from pathlib import Path

import pytest

from tests.faults.kill_sweep import KINDS, run_rounds, write_small_sweep


@pytest.mark.ray
@pytest.mark.timeout(1500)
def test_kills_of_each_kind_leave_the_export_unchanged(tmp_path: Path) -> None:
    report = run_rounds(write_small_sweep(tmp_path / "sweep.yaml"), tmp_path, kills=len(KINDS), seed=1)
    assert report.different == []
    assert sum(report.kills.values()) >= len(KINDS)
    assert set(report.kills) == set(KINDS)
    assert all(0 < shards < report.shards for shards in report.shards_at_kill)
