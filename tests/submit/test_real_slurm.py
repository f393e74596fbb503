"""`robust201 submit slurm` with a real Slurm cluster on this machine."""

import json
import os
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY, read_tree
from tests.support.slurm_support import SlurmCluster, slurm_on_loopback, slurm_unavailable_reason
from tests.support.tiny_trainings import RECIPE, hash_weight_files, write_training_yaml

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

STRANGE_NAME = 'it\'s "100%" here'

SLOW_STEPS = """
import os, time
if "SLURM_ARRAY_TASK_ID" in os.environ:
    from robust201.training import loop
    make_step = loop._TrainingRun._make_step
    def make_step_slowly(training):
        if training.step > 3 and not os.path.exists(os.environ["ROBUST201_TEST_GO"]):
            time.sleep(1)
        make_step(training)
    loop._TrainingRun._make_step = make_step_slowly
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Start a real Slurm with two CPUs."""
    reason = slurm_unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with slurm_on_loopback(cpus=2) as started_cluster:
        yield started_cluster


def send_limit_signal(cluster: SlurmCluster, task: str) -> None:
    """Send the signal that Slurm would send before the time limit, and wait until the task is requeued."""
    cluster.query("scancel", "--batch", "--signal=USR1", task)
    cluster.wait_for(lambda: cluster.job(task)["JobState"] == "PENDING")


def wait_for_end(cluster: SlurmCluster, *tasks: str) -> None:
    final_states = {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY"}
    cluster.wait_for(lambda: {cluster.job(task)["JobState"] for task in tasks} <= final_states)


def test_requeued_array_is_byte_identical_to_one_run(cluster, robust201, write_sweep, tmp_path, monkeypatch):
    keys = {
        "clean": {},
        "fgsm": {"epsilons": ["1/255"]},
        "aa_square": {"epsilons": ["1/255", "8/255"], "queries": 10_000},
    }
    results = tmp_path / STRANGE_NAME
    execution = {"gmacs_per_second": 0.01, "device": "cpu"}
    sweep = write_sweep(keys=keys, results=str(results), execution=execution)
    assert robust201("run", sweep, "--out", tmp_path / "ordinary").code == 0
    for name, value in (cluster.environment | {"PYTHONPATH": str(REPOSITORY / "pipeline")}).items():
        monkeypatch.setenv(name, value)
    submit = ("submit", "slurm", sweep, "--time", "10")
    assert "invalid partition" in robust201(*submit, "--extra=--partition=nowhere").error_line(exit_code=2)
    # The setup line tests quoting through the file, Slurm and the shell.
    result = robust201(*submit, "--tasks", "2", "--setup", 'echo "it\'s $SLURM_JOB_NAME"')
    assert result.code == 0, result.err
    job = result.out.strip()
    tasks, logs = [[f"{job}_{index}" for index in (1, 2)], [results / f"slurm/{job}_{index}.log" for index in (1, 2)]]

    cluster.wait_for(lambda: logs[0].exists() and list((results / "shards").rglob("*.parquet")))
    assert cluster.job(tasks[0])["JobState"] == "RUNNING"
    send_limit_signal(cluster, tasks[0])
    assert f"requeueing task {tasks[0]}" in logs[0].read_text()
    cluster.start_requeued(tasks[0])
    wait_for_end(cluster, *tasks)
    assert [cluster.job(task)["Restarts"] for task in tasks] == ["1", "0"]
    for task, log in zip(tasks, logs, strict=True):
        assert "it's robust201-tiny" in log.read_text()
        assert "Complete for this selection" in log.read_text(), log.read_text()
        assert cluster.job(task)["ExitCode"] == "0:0"
    assert json.loads(robust201("status", "--json", results).out)["complete"]
    for name, folder in (("array", results), ("driver", tmp_path / "ordinary")):
        assert robust201("export", folder, "--out", tmp_path / name).code == 0
    assert read_tree(tmp_path / "array") == read_tree(tmp_path / "driver")
    assert robust201("submit", "slurm", sweep).out == ""


def test_requeued_training_is_byte_identical_to_one_run(cluster, robust201, tmp_path, monkeypatch):
    recipe = RECIPE | {"epochs": 30, "snapshots": {"epochs": [1]}}
    store = tmp_path / STRANGE_NAME
    training_yaml = write_training_yaml(tmp_path, recipes={"plain": recipe}, store=str(store))
    assert robust201("run", training_yaml, "--out", tmp_path / "store").code == 0
    # Steps are slow until a file exists, so that the signal arrives during the training.
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch/sitecustomize.py").write_text(SLOW_STEPS)
    python_path = os.pathsep.join(map(str, (tmp_path / "patch", REPOSITORY / "pipeline")))
    environment = cluster.environment | {"PYTHONPATH": python_path, "ROBUST201_TEST_GO": str(tmp_path / "go")}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = robust201("submit", "slurm", training_yaml, "--time", "10")
    assert result.code == 0, result.err
    task, log = f"{result.out.strip()}_1", store / f"training/slurm/{result.out.strip()}_1.log"
    cluster.wait_for(lambda: list((store / "training/states").glob("*/snapshot-*.json")))
    send_limit_signal(cluster, task)
    assert f"requeueing task {task}" in log.read_text()
    (tmp_path / "go").touch()
    cluster.start_requeued(task)
    wait_for_end(cluster, task)
    assert (cluster.job(task)["Restarts"], cluster.job(task)["ExitCode"]) == ("1", "0:0"), log.read_text()
    assert "Planned 30 epochs: 1 done, 29 missing." in log.read_text()
    assert hash_weight_files(store) == hash_weight_files(tmp_path / "store")
    assert robust201("submit", "slurm", training_yaml).out == ""
