"""`robust201 submit slurm`: calls of Slurm's programs, and runs on a real Slurm cluster on this machine."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from robust201.runtime.lease import Lease
from robust201.runtime.scheduler import RunTally
from robust201.runtime.training_worker import TrainingWorker
from robust201.shards import ShardStore
from robust201.submission.slurm import ArrayTask
from robust201.training import loop
from tests.conftest import REPOSITORY, RunCommand, WriteSweep, read_tree
from tests.support.slurm_support import (
    SlurmCluster,
    parse_command,
    parse_directives,
    slurm_on_loopback,
    slurm_unavailable_reason,
)
from tests.support.tiny_trainings import RECIPE, STEPS, hash_weight_files, training_fields

WriteProgram = Callable[[str, str], Path]


@pytest.fixture
def write_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteProgram:
    """Return a function that writes a fake Slurm program, which records its arguments in NAME.calls."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for variable in ("SBATCH_PARTITION", "SBATCH_GRES", "SBATCH_GPUS_PER_TASK"):
        monkeypatch.delenv(variable, raising=False)

    def write(program_name: str, script: str) -> Path:
        path = folder / program_name
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >>"$0.calls"\n{script}\n')
        path.chmod(0o755)
        return path.with_name(f"{program_name}.calls")

    write("scontrol", "echo 'MaxArraySize            = 9'")
    write("sinfo", "echo 'all*|gpu:a100:4(S:0-1)'")
    return write


def test_submit_without_sbatch_suggests_a_dry_run(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "--dry-run" in robust201("submit", "slurm", write_sweep()).error_line(2)
    assert not (tmp_path / "results").exists()


def test_submit_prepares_the_sweep_and_prints_the_job(
    robust201: RunCommand, write_sweep: WriteSweep, write_program: WriteProgram, tmp_path: Path
) -> None:
    calls = write_program("sbatch", "echo '4711;cluster'")
    sweep = write_sweep(architectures=[0, 21, 309], execution={"part_minutes": 1e-9})
    result = robust201("submit", "slurm", sweep)
    assert (result.code, result.out) == (0, "4711\n")
    for expected in ("15 evaluations as array 4711", "squeue --job 4711", "scancel 4711", "robust201 status"):
        assert expected in result.err
    script = tmp_path / "results/slurm/array.sbatch"
    assert calls.read_text() == f"--parsable {script}\n"
    assert parse_directives(script.read_text())["array"] == "1-8"  # with MaxArraySize 9, the largest index is 8
    # Only shares with missing work are resubmitted.
    for index in (1, 2, 4):
        assert robust201("run", sweep, "--share", f"{index}/8").code == 0
    assert robust201("submit", "slurm", sweep).code == 0
    assert parse_directives(script.read_text())["array"] == "3,5-8"
    assert parse_command(script.read_text())[-1] == "3/8"
    assert robust201("run", sweep).code == 0
    last_result = robust201("submit", "slurm", sweep)
    assert (last_result.code, last_result.out) == (0, "")
    assert "The sweep is complete" in last_result.err
    assert len(calls.read_text().splitlines()) == 2


def test_submit_rejects_too_many_tasks_and_caps_tasks_at_number_of_bundles(
    robust201: RunCommand, write_sweep: WriteSweep, write_program: WriteProgram, tmp_path: Path
) -> None:
    write_program("sbatch", "echo 1")
    sweep = write_sweep()
    line = robust201("submit", "slurm", sweep, "--tasks", 9).error_line(2)
    assert "at most 8" in line
    assert "MaxArraySize is 9" in line
    result = robust201("submit", "slurm", sweep, "--tasks", 8)
    assert "2 tasks instead of 8" in result.err
    assert parse_directives((tmp_path / "results/slurm/array.sbatch").read_text())["array"] == "1-2"


@pytest.mark.parametrize(
    ("program_name", "script", "hint"),
    [
        ("sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1", "invalid partition"),
        (
            "scontrol",
            "echo 'Unable to contact slurm controller' >&2; exit 1",
            "Is Slurm's controller up (scontrol ping)",
        ),
        ("scontrol", "echo 'MaxArraySize = 0'", "does not permit job arrays"),
    ],
)
def test_slurm_error_is_reported_in_one_line(
    robust201: RunCommand,
    write_sweep: WriteSweep,
    write_program: WriteProgram,
    program_name: str,
    script: str,
    hint: str,
) -> None:
    write_program("sbatch", "echo 1")
    write_program(program_name, script)
    result = robust201("submit", "slurm", write_sweep())
    assert hint in result.error_line(2)


def make_tally(**changes: object) -> RunTally:
    return RunTally(**({"results": 3, "remaining": 2, "drained": True, "stopped_by_time_limit": True} | changes))


ENVIRONMENT = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "8", "SLURM_JOB_ID": "4711"}


@pytest.mark.parametrize(
    ("tally", "is_requeued"),
    [
        (make_tally(), True),
        # After scancel or preemption, the user or Slurm decides whether to requeue.
        (make_tally(stopped_by_time_limit=False), False),
        (make_tally(remaining=0), False),
        (make_tally(results=0), False),  # otherwise, the task would be requeued forever
    ],
)
def test_task_is_requeued_only_if_its_time_limit_ended_it(
    write_program: WriteProgram, tally: RunTally, is_requeued: bool
) -> None:
    calls = write_program("scontrol", "")
    ArrayTask.of(ENVIRONMENT).requeue_if_unfinished(tally, lambda _line: None)
    assert calls.exists() == is_requeued
    if is_requeued:
        assert calls.read_text() == "requeue 4711_8\n"  # 4711 alone would mean every task of the array.


@pytest.mark.parametrize(("has_new_states", "is_requeued"), [(True, True), (False, False)])
def test_training_task_is_requeued_if_it_saved_a_state(
    write_program: WriteProgram, has_new_states: bool, is_requeued: bool
) -> None:
    calls, messages = write_program("scontrol", ""), list[str]()
    ArrayTask.of(ENVIRONMENT).requeue_if_unfinished(
        make_tally(results=0), messages.append, has_new_states=has_new_states
    )
    assert calls.exists() == is_requeued
    assert ("Not requeued" in messages[0]) != is_requeued


def test_trainings_are_submitted_until_nothing_is_missing(
    robust201: RunCommand, write_program: WriteProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, scontrol_calls = write_program("sbatch", "echo 4711"), write_program("scontrol", "echo 'MaxArraySize = 9'")
    trainings, store = tmp_path / "train.yaml", tmp_path / "store"
    trainings.write_text(yaml.safe_dump(training_fields(tmp_path)))
    result = robust201("submit", "slurm", trainings)
    assert (result.code, result.out) == (0, "4711\n")
    assert "Submitted 3 snapshots as array 4711: 1 task." in result.err
    assert f"robust201 status {trainings}; logs: {store}/training/slurm/4711_*.log" in result.err
    assert calls.read_text() == f"--parsable {store}/training/slurm/array.sbatch\n"
    assert not (store / "training/lease.json").exists()

    # The time limit comes in the second epoch: the state at the end of the first one is saved, and the task requeued.
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    make_step, steps = loop._Training._make_step, iter(range(1 << 20))
    drain, is_draining = TrainingWorker.drain, threading.Event()

    def make_step_and_signal(training: loop._Training) -> None:
        make_step(training)
        if next(steps) == STEPS[1]:
            signal.raise_signal(signal.SIGUSR1)
            assert is_draining.wait(60)  # another thread forwards the request to drain

    def drain_and_notify(worker: TrainingWorker) -> None:
        drain(worker)
        is_draining.set()

    monkeypatch.setattr(TrainingWorker, "drain", drain_and_notify)
    monkeypatch.setattr(loop._Training, "_make_step", make_step_and_signal)
    task = ("run", trainings, "--executor", "inline", "--slurm-requeue")
    first_run = robust201(*task)
    assert first_run.code == 3
    assert scontrol_calls.read_text().splitlines()[-1] == "requeue 4711_8"
    assert "Computed 2 snapshots" in first_run.err
    assert robust201(*task).code == 0
    last_submission = robust201("submit", "slurm", trainings)
    assert (last_submission.code, last_submission.out) == (0, "")
    assert "The training runs are complete" in last_submission.err
    with Lease.acquire(store / "training"):
        assert robust201("submit", "slurm", trainings).code == 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Start a real Slurm with two CPUs."""
    reason = slurm_unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with slurm_on_loopback(cpus=2) as started_cluster:
        yield started_cluster


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_real_array_is_requeued_and_gives_the_same_bytes_as_one_run(
    cluster: SlurmCluster,
    robust201: RunCommand,
    write_sweep: WriteSweep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {
        "clean": {},
        "fgsm": {"epsilons": ["1/255"]},
        "aa_square": {"epsilons": ["1/255", "8/255"], "queries": 1500},
    }
    results = tmp_path / 'it\'s "100%" here'
    execution = {"part_minutes": 1e-9, "device": "cpu"}
    sweep = write_sweep(keys=keys, batch_size=1, results=str(results), execution=execution)
    assert robust201("run", sweep, "--out", tmp_path / "ordinary").code == 0
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    submit = ("submit", "slurm", sweep, "--time", "10")
    assert "at most 32" in robust201(*submit, "--tasks", "33").error_line(2)
    assert "invalid partition" in robust201(*submit, "--extra=--partition=nowhere").error_line(2)
    # The setup line tests quoting through the file, Slurm and the shell.
    result = robust201(*submit, "--tasks", "2", "--setup", 'echo "it\'s $SLURM_JOB_NAME"')
    assert result.code == 0, result.err
    job = result.out.strip()

    def read_log(index: int) -> str:
        path = results / f"slurm/{job}_{index}.log"
        return path.read_text() if path.exists() else ""

    # Wait until the task has finished some work and has more to do.
    cluster.wait_for((results / "shares/1-of-2/progress.json").exists)
    assert cluster.job(f"{job}_1")["JobState"] == "RUNNING"
    # Send now the signal that Slurm would send before the time limit.
    cluster.query("scancel", "--batch", "--signal=USR1", f"{job}_1")
    cluster.wait_for(lambda: cluster.job(f"{job}_1")["JobState"] == "PENDING")
    assert f"requeueing task {job}_1" in read_log(1)

    cluster.start_requeued(f"{job}_1")
    tasks = [f"{job}_{index}" for index in (1, 2)]
    final_states = {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY"}
    cluster.wait_for(lambda: {cluster.job(task)["JobState"] for task in tasks} <= final_states)
    assert [cluster.job(task)["Restarts"] for task in tasks] == ["1", "0"]
    for index in (1, 2):
        assert "it's robust201-tiny" in read_log(index)
        assert "Complete for this selection" in read_log(index), read_log(index)
        assert cluster.job(f"{job}_{index}")["ExitCode"] == "0:0"
    first_counts, rerun_counts, *_ = re.findall(r"(\d+) done, (\d+) missing", read_log(1))
    assert first_counts[0] == "0"
    assert int(rerun_counts[0]) + int(rerun_counts[1]) == int(first_counts[1])
    assert ShardStore.open(results).verify() == []
    assert json.loads(robust201("status", "--json", results).out)["complete"]
    for name, folder in (("array", results), ("driver", tmp_path / "ordinary")):
        assert robust201("export", folder, "--out", tmp_path / name).code == 0
    assert read_tree(tmp_path / "array") == read_tree(tmp_path / "driver")
    assert robust201("submit", "slurm", sweep).out == ""


SLOW_STEPS = """
import os, time
if "SLURM_ARRAY_TASK_ID" in os.environ:
    from robust201.training import loop
    make_step = loop._Training._make_step
    def make_step_slowly(training):
        if training.step > 3 and not os.path.exists(os.environ["ROBUST201_TEST_GO"]):
            time.sleep(1)
        make_step(training)
    loop._Training._make_step = make_step_slowly
"""


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_real_training_task_is_requeued_and_gives_the_same_bytes_as_one_run(
    cluster: SlurmCluster, robust201: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RECIPE | {"epochs": 30, "snapshots": {"epochs": [1]}}
    store, trainings = tmp_path / 'it\'s "100%" here', tmp_path / "train.yaml"
    trainings.write_text(yaml.safe_dump(training_fields(tmp_path, recipes={"plain": recipe}, store=str(store))))
    assert robust201("run", trainings, "--out", tmp_path / "store").code == 0
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    # Steps are slow until a file exists, so that the signal arrives during the training.
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch/sitecustomize.py").write_text(SLOW_STEPS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path / "patch", REPOSITORY / "pipeline"))))
    monkeypatch.setenv("ROBUST201_TEST_GO", str(tmp_path / "go"))
    result = robust201("submit", "slurm", trainings, "--time", "10")
    assert result.code == 0, result.err
    task, log = f"{result.out.strip()}_1", store / f"training/slurm/{result.out.strip()}_1.log"
    cluster.wait_for((store / "manifest.jsonl").exists)
    cluster.query("scancel", "--batch", "--signal=USR1", task)
    cluster.wait_for(lambda: cluster.job(task)["JobState"] == "PENDING")
    assert f"requeueing task {task}" in log.read_text()
    (tmp_path / "go").touch()
    cluster.start_requeued(task)
    cluster.wait_for(lambda: cluster.job(task)["JobState"] in {"COMPLETED", "FAILED", "TIMEOUT"})
    assert (cluster.job(task)["Restarts"], cluster.job(task)["ExitCode"]) == ("1", "0:0"), log.read_text()
    assert "1 done, 1 missing" in log.read_text()
    assert hash_weight_files(store) == hash_weight_files(tmp_path / "store")
    assert robust201("submit", "slurm", trainings).out == ""
