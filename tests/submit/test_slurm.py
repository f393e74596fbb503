"""`robust201 submit slurm`: the batch file, calls of Slurm's programs, and requeueing."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import ConfigError
from robust201.run.slurm_task import DRAIN_VARIABLE, ArrayTask
from robust201.submit.slurm import ArrayOptions, parse_time_limit, render, task_resources
from robust201.sweep.config import SweepConfig
from tests.conftest import read_tree
from tests.support.slurm_support import parse_command, parse_directives
from tests.support.tiny_trainings import write_training_yaml

STRANGE_PATH = 'scratch/my results/it\'s "100%" $HOME `id` #1'

WriteProgram = Callable[[str, str], Path]


@pytest.fixture
def write_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteProgram:
    """Return a function that writes a fake Slurm program, which records its arguments in NAME.calls."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin")

    def write(program_name: str, script: str) -> Path:
        path = folder / program_name
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >>"$0.calls"\n{script}\n')
        path.chmod(0o755)
        return path.with_name(f"{program_name}.calls")

    return write


def test_print_option_prints_the_batch_file_and_writes_nothing(robust201, write_sweep, tmp_path):
    results = str(tmp_path / STRANGE_PATH)
    sweep = write_sweep(results=results)
    files_before = read_tree(tmp_path)
    options = ["--tasks", 3, "--time", "1-12:30", "--gpus-per-task", "a100:1", "--allow-code"]
    options += [
        "--extra=--constraint=a100|h100",
        "--extra",
        "-x node7",
        "--setup",
        "module load cuda",
        "--setup",
        "a='b'",
    ]
    result = robust201("submit", "slurm", sweep, "--print", *options)
    assert (result.code, result.err) == (0, "")
    expected = {
        "job-name": "robust201-tiny",
        "array": "1-3",
        "time": "1-12:30",
        "gres": "gpu:a100:1",
        "signal": "B:USR1@600",
        "open-mode": "append",
        "requeue": "",
        "constraint": "a100|h100",
    }
    directives = parse_directives(result.out.replace("a100|h100", "'a100|h100'"))
    assert expected.items() <= directives.items()
    assert directives["output"].replace("%%", "%") == f"{results}/slurm/%A_%a.log"
    lines = result.out.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert lines.index("#SBATCH -x node7") < lines.index("set -e") < lines.index("module load cuda") < len(lines) - 1
    assert f"export {DRAIN_VARIABLE}=540" in lines
    assert subprocess.run(["bash", "-n"], input=result.out, text=True, check=False).returncode == 0
    command = [sys.executable, "-P", "-m", "robust201", "run", str(sweep), "--out", results, "--executor", "inline"]
    assert parse_command(result.out) == [*command, "--slurm-requeue", "--allow-code", "--share", "3/3"]
    assert read_tree(tmp_path) == files_before


@settings(max_examples=12)
@given(
    name=st.text(st.characters(blacklist_categories=("C", "Z"), blacklist_characters="/\\"), min_size=1, max_size=20)
)
def test_any_path_is_quoted_for_the_shell_and_sbatch(name):
    folder = Path("/a") / name
    fields = {"name": "x", "results": "r", "checkpoints": {"path": "c"}, "datasets": {"digits": {}}}
    config = SweepConfig.model_validate(fields).model_copy(update={"results": folder})
    text = render(config, folder / "sweep.yaml", ArrayOptions(), 8, ())
    arguments = parse_command(text)
    assert arguments[arguments.index("run") + 1] == str(folder / "sweep.yaml")
    assert arguments[arguments.index("--out") + 1] == str(folder)
    assert parse_directives(text)["output"].removesuffix("/slurm/%A_%a.log").replace("%%", "%") == str(folder)


@pytest.mark.parametrize(
    ("gpus", "execution", "expected"),
    [
        (None, {"device": "cuda"}, ("gpu:1", 1, 1)),
        (None, {"device": "cpu", "cpus_per_worker": 2, "workers": 3}, (None, 2, 1)),
        ("0", {}, (None, 1, 1)),
        ("4", {"cpus_per_worker": 1.5}, ("gpu:4", 8, 4)),
        ("h100:2", {"threads": 4}, ("gpu:h100:2", 8, 2)),
        ("1", {"gpus_per_worker": 0.5}, ("gpu:1", 2, 2)),
    ],
)
def test_task_requests_the_resources_of_its_workers(make_sweep, gpus, execution, expected):
    assert task_resources(ArrayOptions(gpus_per_task=gpus), make_sweep(execution=execution).execution) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("10:30", 630), ("24:00:00", 86_400), ("2-1", 176_400), ("1-12:30", 131_400), ("0-00:00:01", 1)],
)
def test_time_limits_are_parsed_like_those_of_sbatch(text, seconds):
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize(("time", "seconds"), [(None, 600), ("20", 300), ("1", 15)])
def test_draining_ends_before_the_time_limit(make_sweep, time, seconds):
    lines = render(make_sweep(), Path("sweep.yaml"), ArrayOptions(time=time), 8, ()).splitlines()
    assert f"#SBATCH --signal=B:USR1@{seconds}" in lines
    (export,) = [line for line in lines if line.startswith("export ")]
    task = ArrayTask.of(
        {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "2", **dict([shlex.split(export)[1].split("=")])}
    )
    drain_seconds = task.limit(make_sweep().execution).drain_seconds
    assert drain_seconds is not None
    assert min(60, seconds / 2) <= seconds - drain_seconds < seconds


@pytest.mark.parametrize(
    "options",
    [
        ("--tasks", "0"),
        ("--time", "tomorrow"),
        ("--time", "0"),
        ("--gpus-per-task", "a100"),
        ("--extra", "partition=gpu"),
        ("--extra", "--constraint=a\n#SBATCH --uid=0"),
    ],
)
def test_error_names_invalid_option_and_nothing_is_written(robust201, write_sweep, tmp_path, options):
    assert options[0] in robust201("submit", "slurm", write_sweep(), *options).error_line(exit_code=2)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("execution", "options", "subject"),
    [({}, ("--tasks", "2"), "--tasks"), ({"device": "auto"}, (), "execution.device")],
)
def test_training_yaml_rejects_tasks_option_and_automatic_device(robust201, tmp_path, execution, options, subject):
    training_yaml = write_training_yaml(tmp_path, execution=execution)
    assert subject in robust201("submit", "slurm", training_yaml, *options).error_line(exit_code=2)
    assert not (tmp_path / "store").exists()


def test_training_yaml_has_one_task_with_all_gpus(robust201, tmp_path):
    store = str(tmp_path / STRANGE_PATH)
    training_yaml = write_training_yaml(tmp_path, store=store, execution={"device": "cuda"})
    result = robust201("submit", "slurm", training_yaml, "--print", "--gpus-per-task", "a100:4")
    directives = parse_directives(result.out)
    assert (directives["array"], directives["gres"]) == ("1-1", "gpu:a100:4")
    expected = ["run", str(training_yaml), "--out", store, "--executor", "ray", "--workers", "4", "--slurm-requeue"]
    assert parse_command(result.out)[4:] == expected


def test_submit_without_sbatch_writes_nothing(robust201, write_sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "sbatch" in robust201("submit", "slurm", write_sweep()).error_line(exit_code=2)
    assert not (tmp_path / "results").exists()


def test_submit_writes_the_batch_file_and_prints_the_job(robust201, write_sweep, write_program, tmp_path):
    calls = write_program("sbatch", "echo '4711;cluster'")
    result = robust201("submit", "slurm", write_sweep(architectures=[0, 21, 309]))
    assert (result.code, result.out) == (0, "4711\n")
    for expected in ("15 evaluations as array 4711", "squeue --job 4711", "scancel 4711", "robust201 status"):
        assert expected in result.err
    script = tmp_path / "results/slurm/array.sbatch"
    assert calls.read_text() == f"--parsable {script}\n"
    n_tasks = parse_directives(script.read_text())["array"].removeprefix("1-")
    assert parse_command(script.read_text())[-1] == f"3/{n_tasks}"
    assert 3 <= int(n_tasks) < 15


def test_error_of_sbatch_is_reported_in_one_line(robust201, write_sweep, write_program):
    write_program("sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    assert "invalid partition" in robust201("submit", "slurm", write_sweep()).error_line(exit_code=2)
    write_program("sbatch", "echo sent")
    assert "squeue" in robust201("submit", "slurm", write_sweep()).error_line(exit_code=2)


ENVIRONMENT = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "8", "SLURM_JOB_ID": "4711"}


@pytest.mark.parametrize("has_progress", [True, False])
def test_only_task_with_progress_is_requeued(write_program, has_progress):
    calls, messages = write_program("scontrol", ""), list[str]()
    ArrayTask.of(ENVIRONMENT).requeue(messages.append, has_progress=has_progress)
    assert calls.exists() == has_progress  # otherwise, the task would be requeued forever
    if has_progress:
        assert calls.read_text() == "requeue 4711_8\n"  # 4711 alone would mean every task of the array
    write_program("scontrol", "exit 1")
    ArrayTask.of(ENVIRONMENT).requeue(messages.append, has_progress=True)
    assert "submit again" in messages[-1]


def test_array_task_outside_a_job_array_is_an_error():
    with pytest.raises(ConfigError, match="--slurm-requeue"):
        ArrayTask.of({})


@pytest.mark.parametrize("text", ["soon", "nan", "-5", "0", "inf"])
def test_invalid_draining_time_is_an_error(text):
    with pytest.raises(ConfigError, match=DRAIN_VARIABLE):
        ArrayTask.of(ENVIRONMENT | {DRAIN_VARIABLE: text})
