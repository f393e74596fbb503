"""The batch file that `robust201 submit slurm` writes."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from robust201.runtime.share_run import DRAIN_VARIABLE
from robust201.submission.sbatch_file import ArrayOptions, parse_time_limit, render, task_resources
from robust201.sweep.config import SweepConfig
from tests.conftest import MakeSweep, RunCommand, WriteSweep, read_tree
from tests.support.slurm_support import parse_command, parse_directives
from tests.support.tiny_trainings import training_fields

PATH_WITH_SPECIAL_CHARACTERS = '/scratch/my results/it\'s "100%" $HOME `id` #1'


def render_file(
    config: SweepConfig,
    options: ArrayOptions,
    *,
    home: Path = Path("/home/me"),
    results: Path = Path("/scratch/results"),
) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(home / "bin/python"))
        patch.setattr(Path, "cwd", lambda: home)
        config = config.model_copy(update={"results": results})
        return render(config, home / "sweep.yaml", options, 8, range(1, 9))


def test_batch_file_contains_every_option(make_sweep: MakeSweep) -> None:
    options = ArrayOptions(
        time="1-12:30",
        gpus_per_task="a100:1",
        extra=("--constraint=a100|h100", "#SBATCH --mail-type=END", "-x node7"),
        setup=("module load cuda/12", "export ROBUST201_DATA='/data/of us'"),
    )
    batch_file = render_file(make_sweep(), options)
    options_in_file = parse_directives(batch_file)
    expected = {
        "job-name": "robust201-tiny",
        "array": "1-8",
        "time": "1-12:30",
        "gres": "gpu:a100:1",
        "mail-type": "END",
        "signal": "B:USR1@600",
        "output": "/scratch/results/slurm/%A_%a.log",
        "open-mode": "append",
        "requeue": "",
        "nodes": "1",
        "ntasks": "1",
    }
    assert expected.items() <= options_in_file.items()
    assert "#SBATCH --constraint=a100|h100\n" in batch_file
    assert "#SBATCH -x node7\n" in batch_file
    lines = batch_file.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert max(i for i, line in enumerate(lines) if line.startswith("#SBATCH")) < lines.index("set -e")
    assert lines.index("set -e") < lines.index(options.setup[0]) < lines.index(options.setup[1]) < len(lines) - 1
    arguments = parse_command(batch_file)
    assert arguments[:5] == ["/home/me/bin/python", "-P", "-m", "robust201", "run"]
    assert arguments[arguments.index("--share") + 1] == "3/8"
    assert arguments[arguments.index("--executor") + 1] == "inline"
    assert "--slurm-requeue" in arguments


@pytest.mark.parametrize(
    ("gpus", "execution", "expected"),
    [
        (None, {}, ("gpu:1", 1, 1)),
        (None, {"device": "cpu", "cpus_per_worker": 2}, (None, 2, 1)),
        ("0", {}, (None, 1, 1)),
        ("4", {"cpus_per_worker": 1.5}, ("gpu:4", 8, 4)),
        ("h100:2", {"threads": 4}, ("gpu:h100:2", 8, 2)),
        ("1", {"gpus_per_worker": 0.5}, ("gpu:1", 2, 2)),
    ],
)
def test_task_requests_the_resources_of_its_workers(
    make_sweep: MakeSweep, gpus: str | None, execution: dict[str, object], expected: tuple[str | None, int, int]
) -> None:
    options = ArrayOptions(gpus_per_task=gpus)
    config = make_sweep(execution=execution)
    assert task_resources(options, config.execution) == expected
    arguments = parse_command(render_file(config, options))
    if expected[2] == 1:
        assert "--workers" not in arguments
    else:
        assert arguments[arguments.index("--executor") :][:4] == ["--executor", "ray", "--workers", str(expected[2])]


@given(
    folder_name=st.text(
        st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\\"), min_size=1, max_size=20
    )
)
def test_batch_file_quotes_any_path_for_the_shell_and_sbatch(folder_name: str) -> None:
    config = SweepConfig.model_validate(
        {"name": "x", "results": "r", "checkpoints": {"path": "c"}, "datasets": {"digits": {}}}
    )
    folder = Path("/a") / folder_name
    batch_file = render_file(config, ArrayOptions(), home=folder, results=folder)
    arguments = parse_command(batch_file)
    assert arguments[0] == str(folder / "bin/python")
    assert arguments[arguments.index("run") + 1] == str(folder / "sweep.yaml")
    assert arguments[arguments.index("--out") + 1] == str(folder)
    assert f"cd -- {shlex.quote(str(folder))}" in batch_file.splitlines()
    output = parse_directives(batch_file)["output"]
    assert output.removesuffix("/slurm/%A_%a.log").replace("%%", "%") == str(folder)


@pytest.mark.parametrize(
    ("time_limit", "seconds"),
    [
        ("90", 5400),
        ("10:30", 630),
        ("1-12:30", 131_400),
        ("0-00:00:01", 1),
    ],
)
def test_parse_time_limit_accepts_the_formats_of_sbatch(time_limit: str, seconds: int) -> None:
    assert parse_time_limit(time_limit) == seconds


@pytest.mark.parametrize("options", [{}, {"time": "20"}, {"time": "1"}])
def test_draining_ends_before_the_time_limit(make_sweep: MakeSweep, options: dict[str, Any]) -> None:
    batch_file = render_file(make_sweep(engine="reference"), ArrayOptions(**options))
    seconds_before_limit = int(parse_directives(batch_file)["signal"].removeprefix("B:USR1@"))
    (export_line,) = [line for line in batch_file.splitlines() if line.startswith("export ")]
    variable, _, drain_seconds = export_line.removeprefix("export ").partition("=")
    assert variable == DRAIN_VARIABLE
    assert min(60, seconds_before_limit / 2) <= seconds_before_limit - float(drain_seconds) < seconds_before_limit


@pytest.mark.parametrize(
    "invalid_options",
    [
        ("--tasks", "0"),
        ("--time", "tomorrow"),
        ("--gpus-per-task", "a100"),
        ("--gpus-per-task", "-1"),
        ("--extra", "--constraint=a\n#SBATCH --uid=0"),
        ("--extra", "--array=1-3"),
        ("--extra", "#SBATCH --no-requeue"),
        ("--setup", "if true; then"),
        ("--tasks", "1001"),
    ],
)
def test_invalid_option_gives_a_one_line_error(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, invalid_options: tuple[str, ...]
) -> None:
    line = robust201("submit", "slurm", write_sweep(), "--dry-run", *invalid_options).error_line(2)
    assert invalid_options[-2] in line
    assert not (tmp_path / "results").exists()


def test_dry_run_prints_a_valid_script_and_writes_nothing(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path
) -> None:
    results = str(tmp_path / PATH_WITH_SPECIAL_CHARACTERS[1:])
    sweep = write_sweep(results=results, execution={"device": "cpu", "part_minutes": 1e-9})
    files_before = read_tree(tmp_path)
    result = robust201("submit", "slurm", sweep, "--dry-run", "--tasks", 3)
    assert (result.code, result.err) == (0, "")
    assert subprocess.run(["bash", "-n"], input=result.out, text=True, check=False).returncode == 0
    assert parse_directives(result.out)["array"] == "1-3"
    arguments = parse_command(result.out)
    assert (arguments[0], arguments[5]) == (sys.executable, str(sweep))
    assert arguments[arguments.index("--out") + 1] == results
    assert read_tree(tmp_path) == files_before


def test_batch_file_of_trainings_has_one_task_that_requeues_itself(robust201: RunCommand, tmp_path: Path) -> None:
    trainings = tmp_path / "train.yaml"
    execution = {"device": "cuda", "executor": "ray"}
    store = str(tmp_path / PATH_WITH_SPECIAL_CHARACTERS[1:])
    trainings.write_text(yaml.safe_dump(training_fields(tmp_path, store=store, execution=execution)))
    files_before = read_tree(tmp_path)
    arguments = ("--dry-run", "--gpus-per-task", "a100:4", "--time", "24:00:00")
    result = robust201("submit", "slurm", trainings, *arguments)
    assert (result.code, result.err) == (0, "")
    assert subprocess.run(["bash", "-n"], input=result.out, text=True, check=False).returncode == 0
    options_in_file = parse_directives(result.out)
    assert (options_in_file["array"], options_in_file["gres"], options_in_file["signal"]) == (
        "1",
        "gpu:a100:4",
        "B:USR1@600",
    )
    assert options_in_file["output"].replace("%%", "%") == f"{store}/training/slurm/%A_%a.log"
    assert parse_command(result.out)[4:] == [
        "run",
        str(trainings),
        "--out",
        store,
        "--executor",
        "ray",
        "--workers",
        "4",
        "--slurm-requeue",
    ]
    assert read_tree(tmp_path) == files_before


@pytest.mark.parametrize(
    ("cluster_type", "invalid_options", "message"),
    [
        ("slurm", ("--tasks", "2"), "--tasks: it applies only to a sweep"),
        ("slurm", (), "execution.device must be cpu or cuda"),
    ],
)
def test_options_that_do_not_apply_to_trainings_give_a_one_line_error(
    robust201: RunCommand, tmp_path: Path, cluster_type: str, invalid_options: tuple[str, ...], message: str
) -> None:
    trainings = tmp_path / "train.yaml"
    execution = {"device": "cpu" if invalid_options else "auto"}
    trainings.write_text(yaml.safe_dump(training_fields(tmp_path, execution=execution)))
    dry_run_option = ("--dry-run",) if cluster_type == "slurm" else ()
    assert message in robust201("submit", cluster_type, trainings, *dry_run_option, *invalid_options).error_line(2)
    assert not (tmp_path / "store").exists()
