"""Counts have the right noun form, and progress lines have the count, rate and remaining time."""

import io

import pytest
from rich.console import Console

from robust201.cli import console
from robust201.runtime.executors.base import WorkerLost
from robust201.runtime.progress import MIN_RATE_SECONDS, RunProgress


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 shards"), (1, "1 shard"), (1.0, "1 shard"), (0.5, "0.5 shards"), (1.01, "1 shard"), (1728, "1,728 shards")],
)
def test_format_count_uses_singular_only_for_one(count: float, text: str) -> None:
    assert console.format_count(count, "shard") == text


@pytest.mark.parametrize(
    ("seconds_since_start", "computed", "expected_line"),
    [
        (0.0, 0.0, "4/20 evaluations; rate and remaining time not known yet"),
        (0.0, 6.0, "10/20 evaluations; rate and remaining time not known yet"),
        (2 * MIN_RATE_SECONDS, 6.0, "10/20 evaluations; 0.20 evaluations/s, about 0:00:50 left"),
    ],
)
def test_run_display_prints_count_rate_and_remaining_time(
    monkeypatch: pytest.MonkeyPatch, seconds_since_start: float, computed: float, expected_line: str
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=stderr, width=200))
    monkeypatch.setattr(console, "_LOG_SECONDS", 0.0)
    monkeypatch.setattr("robust201.runtime.progress.time.monotonic", lambda: 1000.0 + seconds_since_start)
    progress = RunProgress(20, evaluations_before=4, start_time=1000.0)
    progress.evaluations_of_this_run, progress.done_macs, progress.remaining_macs = computed, 6 * computed, 60.0
    console.RunDisplay().update(progress, WorkerLost(reason="gone", preempted=True))
    assert stderr.getvalue().splitlines()[-1] == expected_line
