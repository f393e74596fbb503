"""Logs of workers: lines are complete and name the unit, their size is bounded, and failures do not affect the run."""

import json
import logging
import os
import warnings
from pathlib import Path

import pytest

from robust201.core.records import Part
from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import run_sweep
from robust201.runtime.work_log import WorkLog, unit_label
from tests.conftest import MakeSweep
from tests.support.fabricated import make_unit

UNIT = make_unit(21, "cifar10", "pgd", [1.0])
PART = Part(UNIT, (1.0,), 0, 40)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_log_line_has_time_process_and_unit(tmp_path: Path) -> None:
    log = WorkLog(tmp_path, clock=lambda: 1_000_000_000.25)
    log.write("worker_started")
    with log.about_part(PART):
        log.write("part_started", "hello", strengths=PART.strengths)
    general_line, part_line = lines_of(log.path)
    assert {"unit", "label"}.isdisjoint(general_line)
    expected = {"time": "2001-09-09T01:46:40.250Z", "level": "info", "message": "hello", "pid": os.getpid()}
    assert expected.items() <= part_line.items()
    assert (part_line["unit"], part_line["label"], part_line["strengths"]) == (UNIT.id, "21/cifar10/pgd", [1.0])
    assert part_line["worker"] == log.path.stem


def test_library_warnings_are_logged_with_unit(tmp_path: Path) -> None:
    log = WorkLog(tmp_path)
    with warnings.catch_warnings(record=True) as raised_warnings:
        warnings.simplefilter("always")
        with log.about_part(PART):
            warnings.warn("old function", FutureWarning, stacklevel=1)
            logging.getLogger("some.library").warning("%s is odd", "this")
            logging.getLogger("some.library").info("nothing to see")
        logging.getLogger("some.library").warning("after the part")
    assert [(line["event"], line["message"], line["unit"]) for line in lines_of(log.path)] == [
        ("library_warning", "FutureWarning: old function", UNIT.id),
        ("library_log", "this is odd", UNIT.id),
    ]
    assert [str(warning.message) for warning in raised_warnings] == ["old function"]


def test_log_file_size_is_bounded(tmp_path: Path) -> None:
    log = WorkLog(tmp_path, max_bytes=2_000)
    for index in range(100):
        log.write("part_started", f"line {index}")
    older_file, newer_file = sorted((tmp_path / "logs").iterdir())
    assert {older_file.stem, newer_file.stem} == {f"{log.worker}.1", log.worker}
    assert all(path.stat().st_size <= 2_000 for path in (older_file, newer_file))
    messages = [line["message"] for line in (*lines_of(older_file), *lines_of(newer_file))]
    assert messages == [f"line {index}" for index in range(100 - len(messages), 100)]
    log.write("part_failed", "x" * 50_000, traceback="y" * 50_000)
    assert len(lines_of(log.path)[-1]["message"]) == 20_000


@pytest.mark.usefixtures("failing_fgsm")
def test_run_logs_parts_and_outcomes(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}}, architectures=[21])
    tally = run_sweep(config, make_executor)
    assert (tally.evaluations, len(tally.failures)) == (1, 1)
    worker_log, driver_log = sorted((config.results / "logs").iterdir(), key=lambda path: path.stem.endswith("driver"))
    assert [(line["event"], line["label"]) for line in lines_of(worker_log)] == [
        ("part_started", "21/digits/clean"),
        ("shard_written", "21/digits/clean"),
        ("part_started", "21/digits/fgsm"),
        ("part_failed", "21/digits/fgsm"),
    ]
    failure_line = lines_of(worker_log)[-1]
    assert (failure_line["kind"], failure_line["level"], failure_line["unit"]) == (
        "application",
        "error",
        tally.failures[0].part.unit.id,
    )
    assert "no such luck" in str(failure_line["traceback"])
    assert [line["event"] for line in lines_of(driver_log)] == ["run_started", "run_ended"]
    assert unit_label(tally.failures[0].part.unit) == "21/digits/fgsm"
