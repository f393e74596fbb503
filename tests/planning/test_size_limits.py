"""Inputs, error messages and printed lists have size limits."""

import json
import os
import threading
from pathlib import Path

import pytest

from robust201.cli.console import MAX_LINES, show_verdict
from robust201.core.errors import MAX_MESSAGE_LENGTH, CheckpointError, ConfigError, RobustError
from robust201.core.user_code import read_code
from robust201.export.verify import Verdict
from robust201.planning.loading import load_config
from robust201.shards import ShardFinding
from robust201.weights.loading import read_weights
from tests.conftest import FinishedCommand, RunCommand, WriteSweep
from tests.support.plan_edits import edit_plan

MAX_STDERR = 2 * MAX_MESSAGE_LENGTH


def expect_short_error(command_result: FinishedCommand) -> str:
    error_line = command_result.error_line(2)
    assert len(command_result.err) < MAX_STDERR
    return error_line


def test_plan_rejects_endless_sweep_file(robust201: RunCommand) -> None:
    assert "more than 4.2 MB" in expect_short_error(robust201("plan", "/dev/zero"))


@pytest.mark.parametrize("source", ["/dev/zero", "a pipe"])
def test_read_code_and_read_weights_reject_irregular_files(tmp_path: Path, source: str) -> None:
    path = Path(source)
    if source == "a pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)  # without a writer
    with pytest.raises(ConfigError, match="instead of a regular file"):
        read_code(path)
    with pytest.raises(CheckpointError, match="instead of a regular file"):
        read_weights(path)


def test_invalid_sweep_from_pipe_gives_config_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("name: 3\nnonsense: 1\n"))
    writer.start()
    with pytest.raises(ConfigError, match="expected"):
        load_config(pipe)
    writer.join()


@pytest.mark.parametrize(
    "yaml_text",
    [
        "name: " + "x" * 1_000_000,
        "x" * 1_000_000 + ": 1",
        "? [" + "1, " * 10_000 + "]\n: 1",
    ],
    ids=["long name", "long field", "list as field name"],
)
def test_huge_yaml_values_give_one_line_error(robust201: RunCommand, tmp_path: Path, yaml_text: str) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml_text)
    expect_short_error(robust201("plan", tmp_path / "sweep.yaml"))


def test_error_does_not_repeat_long_list_of_epsilons(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    expect_short_error(robust201("plan", write_sweep(keys={"fgsm": {"epsilons": ["-1/255"] * 3000}})))
    expect_short_error(robust201("plan", write_sweep(keys={"fgsm": {"epsilons": ["1/255"] * 3000}})))


def test_error_does_not_repeat_damaged_plan(robust201: RunCommand, finished_results: Path) -> None:
    edit_plan(finished_results, lambda plan: plan["config"].update(keys={"x" * 100_000: plan["config"]["keys"]}))
    expect_short_error(robust201("status", finished_results))


def test_changed_plan_is_rejected_and_rewritten_by_run(
    robust201: RunCommand, write_sweep: WriteSweep, finished_results: Path
) -> None:
    assert robust201("run", write_sweep()).code == 0  # writes the plan with its digest
    plan = json.loads((finished_results / "plan.json").read_text())
    plan["config"]["seed"] = 7
    (finished_results / "plan.json").write_text(json.dumps(plan))
    assert "the content was changed" in robust201("status", finished_results).error_line(2)
    assert robust201("run", write_sweep()).code == 0
    assert robust201("status", finished_results).code == 0


def test_long_error_messages_keep_beginning_and_end() -> None:
    output = str(RobustError(f"Reading failed for x: expected y, got {'z' * 1_000_000}. Do this."))
    assert len(output) < MAX_MESSAGE_LENGTH + 100
    assert output.startswith("Reading failed for x")
    assert output.endswith("Do this.")
    assert "characters left out" in output


def test_verify_lists_first_findings_and_counts_others(capsys: pytest.CaptureFixture[str]) -> None:
    findings = tuple(ShardFinding("s", "u", "invalid", f"finding {index}") for index in range(5000))
    verdict = Verdict(
        findings=findings,
        gaps=tuple(map(str, range(300))),
        export_problems=(),
        requeued_shards=(),
        n_shards=1,
        n_evaluations=1,
        n_planned=1,
        n_missing=0,
        n_exported=None,
        weights=None,
        flags=None,
    )
    assert show_verdict(verdict, Path("results")) == 4
    captured = capsys.readouterr()
    assert "and 4,980 more; --json lists all" in captured.err
    assert len(captured.err.splitlines()) == 2 * (MAX_LINES + 1)  # of the findings and of the gaps
    show_verdict(verdict, Path("results"), as_json=True)
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 5000
