"""What is read of a sweep, said of it and listed of results is bounded."""

import json
import os
import threading
from pathlib import Path

import pytest

from robust201.cli.console import MOST_LINES, show_verdict
from robust201.core.errors import MAX_MESSAGE, CheckpointError, ConfigError, RobustError
from robust201.core.user_code import read_code
from robust201.export.verify import Verdict
from robust201.planning.loading import load_config
from robust201.shards import ShardFinding
from robust201.weights.loading import read_weights
from tests.conftest import Ended, RunCommand, WriteSweep
from tests.support.kept_plans import edit_plan

LONGEST = 2 * MAX_MESSAGE


def refused(ended: Ended) -> str:
    line = ended.refusal(2)
    assert len(ended.err) < LONGEST
    return line


def test_a_sweep_without_end_is_refused(robust201: RunCommand) -> None:
    assert "more than 4.2 MB" in refused(robust201("plan", "/dev/zero"))


@pytest.mark.parametrize("what", ["/dev/zero", "a pipe"])
def test_endless_files_are_refused_as_code_and_as_weights(tmp_path: Path, what: str) -> None:
    path = Path(what)
    if what == "a pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)  # which nobody writes to
    with pytest.raises(ConfigError, match="instead of a regular file"):
        read_code(path)
    with pytest.raises(CheckpointError, match="instead of a regular file"):
        read_weights(path)


def test_many_suspicious_epsilons_are_one_warning(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    epsilons = [k / 255 for k in range(1, 20)]
    ended = robust201("plan", write_sweep(keys={"fgsm": {"epsilons_255": epsilons}}))
    assert ended.code == 0, ended.err
    (line,) = [line for line in ended.err.splitlines() if line.startswith("warning")]
    assert "0.00392157 is in units of 1/255" in line
    assert "(18 more like it)" in line


def test_a_sweep_may_come_through_a_pipe_and_be_wrong(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("name: 3\nnonsense: 1\n"))
    writer.start()
    with pytest.raises(ConfigError, match="expected"):
        load_config(pipe)
    writer.join()


BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]" for i in range(9))


@pytest.mark.parametrize(
    "text",
    [
        BOMB + "\nname: *a8\n",
        BOMB + "\nkeys: {clean: *a8}\n",
        "a: &a [*a]\n",
        "name: &a {b: *a}\n",
        "name: " + "x" * 1_000_000,
        "x" * 1_000_000 + ": 1",
        "? [" + "1, " * 10_000 + "]\n: 1",
    ],
    ids=["a list", "a key", "itself", "itself in a mapping", "a name", "a field", "a list for a name"],
)
def test_values_without_end_are_refused_in_one_line(robust201: RunCommand, tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.yaml").write_text(text)
    refused(robust201("plan", tmp_path / "sweep.yaml"))


def test_many_wrong_epsilons_are_not_echoed(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    refused(robust201("plan", write_sweep(keys={"fgsm": {"epsilons_255": [-1.0] * 3000}})))
    refused(robust201("plan", write_sweep(keys={"fgsm": {"epsilons_255": [1.0] * 3000}})))


def test_a_damaged_plan_is_not_echoed(robust201: RunCommand, finished: Path) -> None:
    edit_plan(finished, lambda plan: plan["config"].update(keys={"x" * 100_000: plan["config"]["keys"]}))
    refused(robust201("status", finished))


def test_a_changed_plan_is_refused_and_written_anew(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path
) -> None:
    assert robust201("run", write_sweep()).code == 0  # writes the plan with its digest
    plan = json.loads((finished / "plan.json").read_text())
    plan["config"]["seed"] = 7
    (finished / "plan.json").write_text(json.dumps(plan))
    assert "content that was changed" in robust201("status", finished).refusal(2)
    assert robust201("run", write_sweep()).code == 0
    assert robust201("status", finished).code == 0


def test_messages_keep_their_beginning_and_their_end() -> None:
    said = str(RobustError(f"Reading failed for x: expected y, got {'z' * 1_000_000}. Do this."))
    assert len(said) < MAX_MESSAGE + 100
    assert said.startswith("Reading failed for x")
    assert said.endswith("Do this.")
    assert "characters left out" in said


def test_verify_lists_some_findings_and_counts_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    findings = tuple(ShardFinding("s", "u", "invalid", f"finding {number}") for number in range(5000))
    verdict = Verdict(findings, tuple(map(str, range(300))), (), (), 1, 1, 1, 0, None, None, None)
    assert show_verdict(verdict, Path("results")) == 4
    said = capsys.readouterr()
    assert "and 4,980 more; --json lists all" in said.err
    assert len(said.err.splitlines()) == 2 * (MOST_LINES + 1)
    show_verdict(verdict, Path("results"), as_json=True)
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 5000
