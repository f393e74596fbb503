"""`robust201 submit slurm`: the batch file it writes, what it asks of Slurm's programs, a real Slurm on loopback."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import SweepConfig
from pipeline.errors import ConfigError
from pipeline.scheduler import RunTally
from pipeline.shards import ShardStore
from pipeline.submission.sbatch_file import ArrayOptions, Resources, parse_time, render, show_ranges
from pipeline.submission.slurm import ArrayTask
from tests.conftest import REPOSITORY, MakeSweep, RunCommand, WriteSweep, read_tree
from tests.slurm_support import SlurmCluster, reason_against, slurm_on_loopback

AWKWARD = '/scratch/my results/it\'s "100%" $HOME `id` #1'


def directives(text: str) -> dict[str, str]:
    """Options of a batch file, as the shell's own quoting reads them."""
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    pairs = (line.partition("=") for line in lines)
    return {name: shlex.split(value)[0] if value else "" for name, _, value in pairs}


def command(text: str) -> list[str]:
    """Words that the shell hands to exec in a batch file's last line."""
    (line,) = [line for line in text.splitlines() if line.startswith("exec ")]
    shown = subprocess.run(
        ["bash", "-c", line.replace("exec ", "printf '%s\\0' ", 1)],
        env={"SLURM_ARRAY_TASK_ID": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.split("\0")[:-1]


def rendered(config: SweepConfig, options: ArrayOptions, **changes: object) -> str:
    values = {
        "name": config.name,
        "sweep": Path("/home/me/sweep.yaml"),
        "results": Path("/scratch/results"),
        "logs": Path("/scratch/results/slurm"),
        "python": "/opt/venv/bin/python",
        "folder": Path("/home/me"),
        "options": options,
        "resources": Resources.of(options, config.execution),
        "n_shares": 8,
        "indices": range(1, 9),
    }
    return render(**(values | changes))


def test_every_option_appears(make_sweep: MakeSweep) -> None:
    options = ArrayOptions(
        max_parallel=4,
        time="1-12:30",
        gpus_per_task="a100:1",
        cpus_per_task=6,
        mem="48G",
        partition="gpu,long",
        account="project_7",
        extra=("--constraint=a100|h100", "#SBATCH --mail-type=END", "-x node7"),
        setup=("module load cuda/12", "export ROBUST201_DATA='/data/of us'"),
        drain_seconds=450,
    )
    text = rendered(make_sweep(), options)
    found = directives(text)
    expected = {
        "job-name": "robust201-tiny",
        "array": "1-8%4",
        "time": "1-12:30",
        "gres": "gpu:a100:1",
        "cpus-per-task": "6",
        "mem": "48G",
        "partition": "gpu,long",
        "account": "project_7",
        "mail-type": "END",
        "signal": "B:USR1@450",
        "output": "/scratch/results/slurm/%A_%a.log",
        "open-mode": "append",
        "requeue": "",
        "nodes": "1",
        "ntasks": "1",
    }
    assert expected.items() <= found.items()
    assert "#SBATCH --constraint=a100|h100\n" in text
    assert "#SBATCH -x node7\n" in text
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert max(i for i, line in enumerate(lines) if line.startswith("#SBATCH")) < lines.index("set -e")
    assert lines.index("set -e") < lines.index(options.setup[0]) < lines.index(options.setup[1]) < len(lines) - 1
    words = command(text)
    assert words[:5] == ["/opt/venv/bin/python", "-P", "-m", "pipeline", "run"]
    assert words[words.index("--share") + 1] == "3/8"
    assert words[words.index("--executor") + 1] == "inline"
    assert "--requeue" in words


def test_what_is_not_asked_for_is_left_to_the_cluster(make_sweep: MakeSweep) -> None:
    found = directives(rendered(make_sweep(execution={"device": "cpu", "threads": 3}), ArrayOptions()))
    assert not {"time", "mem", "partition", "account", "gres"} & set(found)
    assert (found["array"], found["cpus-per-task"], found["signal"]) == ("1-8", "3", "B:USR1@600")


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
def test_a_task_asks_for_what_its_workers_need(
    make_sweep: MakeSweep, gpus: str | None, execution: dict[str, object], expected: tuple[str | None, int, int]
) -> None:
    options = ArrayOptions(gpus_per_task=gpus)
    config = make_sweep(execution=execution)
    resources = Resources.of(options, config.execution)
    assert (resources.gres, resources.cpus, resources.workers) == expected
    words = command(rendered(config, options))
    if resources.workers == 1:
        assert "--workers" not in words
    else:
        assert words[words.index("--executor") :][:4] == ["--executor", "ray", "--workers", str(resources.workers)]


@given(
    name=st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\\"), min_size=1, max_size=20)
)
def test_any_path_survives_the_shell_and_sbatch(name: str) -> None:
    config = SweepConfig.model_validate(
        {"name": "x", "results": "r", "checkpoints": {"path": "c"}, "datasets": {"digits": {}}}
    )
    folder = Path("/a") / name
    text = rendered(
        config,
        ArrayOptions(),
        sweep=folder / "sweep.yaml",
        results=folder,
        logs=folder / "slurm",
        python=str(folder / "bin/python"),
        folder=folder,
    )
    words = command(text)
    assert words[0] == str(folder / "bin/python")
    assert words[words.index("run") + 1] == str(folder / "sweep.yaml")
    assert words[words.index("--results") + 1] == str(folder)
    assert f"cd -- {shlex.quote(str(folder))}" in text.splitlines()
    output = directives(text)["output"]
    assert output.removesuffix("/slurm/%A_%a.log").replace("%%", "%") == str(folder)


@pytest.mark.parametrize("path", ["/a/b\nc", "/a/b\\c", "/a/\r"])
def test_a_path_that_sbatch_cannot_read_is_refused(make_sweep: MakeSweep, path: str) -> None:
    with pytest.raises(ConfigError, match="expected a path"):
        rendered(make_sweep(), ArrayOptions(), results=Path(path))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("10:30", 630),
        ("24:00:00", 86_400),
        ("2-0", 172_800),
        ("1-12:30", 131_400),
        ("0-00:00:01", 1),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


def test_a_short_limit_leaves_most_of_it_for_work() -> None:
    assert ArrayOptions(time="20").seconds_to_drain == 300
    assert ArrayOptions(time="12:00:00").seconds_to_drain == ArrayOptions().seconds_to_drain == 600
    assert ArrayOptions(time="20", drain_seconds=600).seconds_to_drain == 600


@pytest.mark.parametrize(
    "wrong",
    [
        ("--tasks", "0"),
        ("--max-parallel", "0"),
        ("--cpus-per-task", "-1"),
        ("--time", "tomorrow"),
        ("--time", "0"),
        ("--time", "1:2:3:4"),
        ("--time", "20", "--drain-seconds", "1200"),
        ("--drain-seconds", "100000"),
        ("--mem", "lots"),
        ("--mem", "16G\n#SBATCH --uid=0"),
        ("--gpus-per-task", "a100"),
        ("--gpus-per-task", "-1"),
        ("--partition", "gpu; rm -rf x"),
        ("--account", ""),
        ("--extra", "constraint=a100"),
        ("--extra", "--constraint=a\n#SBATCH --uid=0"),
        ("--extra", "--array=1-3"),
        ("--extra", "-a1-3"),
        ("--extra", "#SBATCH --no-requeue"),
        ("--setup", " "),
        ("--setup", "echo 'unfinished"),
        ("--setup", "if true; then"),
        ("--tasks", "1001"),
    ],
)
def test_bad_options_are_one_line_each(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, wrong: tuple[str, ...]
) -> None:
    line = robust201("submit", "slurm", write_sweep(), "--dry-run", *wrong).refusal(2)
    assert wrong[-2] in line
    assert not (tmp_path / "results").exists()


def test_a_dry_run_prints_a_file_that_bash_reads_and_writes_nothing(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path
) -> None:
    sweep = write_sweep(execution={"device": "cpu", "part_minutes": 1e-9})
    before = read_tree(tmp_path)
    ended = robust201("submit", "slurm", sweep, "--dry-run", "--tasks", 3, "--results", tmp_path / AWKWARD[1:])
    assert (ended.code, ended.err) == (0, "")
    assert subprocess.run(["bash", "-n"], input=ended.out, text=True, check=False).returncode == 0
    assert directives(ended.out)["array"] == "1-3"
    words = command(ended.out)
    assert (words[0], words[5]) == (sys.executable, str(sweep))
    assert words[words.index("--results") + 1] == str(tmp_path / AWKWARD[1:])
    assert read_tree(tmp_path) == before


@given(st.sets(st.integers(1, 60)))
def test_ranges_name_every_number_once(numbers: set[int]) -> None:
    found: list[int] = []
    for text in filter(None, show_ranges(sorted(numbers)).split(",")):
        first, _, last = text.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)


WriteProgram = Callable[[str, str], Path]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteProgram:
    """Write programs that stand in for Slurm's; what each was called with is in NAME.calls."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >>"$0.calls"\n{script}\n')
        path.chmod(0o755)
        return path.with_name(f"{name}.calls")

    write("scontrol", "echo 'MaxArraySize            = 9'")
    return write


def test_without_sbatch_the_dry_run_is_named(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "--dry-run" in robust201("submit", "slurm", write_sweep()).refusal(2)
    assert not (tmp_path / "results").exists()


def test_submitting_prepares_the_sweep_and_prints_the_job(
    robust201: RunCommand, write_sweep: WriteSweep, programs: WriteProgram, tmp_path: Path
) -> None:
    calls = programs("sbatch", "echo '4711;cluster'")
    sweep = write_sweep(execution={"part_minutes": 1e-9})
    ended = robust201("submit", "slurm", sweep)
    assert (ended.code, ended.out) == (0, "4711\n")
    for wanted in ("10 evaluations as array 4711", "squeue --job 4711", "scancel 4711", "robust201 status"):
        assert wanted in ended.err
    script = tmp_path / "results/slurm/array.sbatch"
    assert calls.read_text() == f"--parsable {script}\n"
    assert directives(script.read_text())["array"] == "1-8"  # MaxArraySize 9 leaves indices up to 8
    # What is submitted again are the shares of which something is missing.
    for index in (1, 2, 4):
        assert robust201("run", sweep, "--share", f"{index}/8").code == 0
    assert robust201("submit", "slurm", sweep).code == 0
    assert directives(script.read_text())["array"] == "3,5-8"
    assert command(script.read_text())[-1] == "3/8"
    assert robust201("run", sweep).code == 0
    done = robust201("submit", "slurm", sweep)
    assert (done.code, done.out) == (0, "")
    assert "Nothing is missing" in done.err
    assert len(calls.read_text().splitlines()) == 2


def test_more_tasks_than_an_array_may_have_are_refused_and_more_than_bundles_cut(
    robust201: RunCommand, write_sweep: WriteSweep, programs: WriteProgram, tmp_path: Path
) -> None:
    programs("sbatch", "echo 1")
    sweep = write_sweep()
    line = robust201("submit", "slurm", sweep, "--tasks", 9).refusal(2)
    assert "at most 8" in line
    assert "MaxArraySize is 9" in line
    ended = robust201("submit", "slurm", sweep, "--tasks", 8)
    assert "2 tasks in place of 8" in ended.err
    assert directives((tmp_path / "results/slurm/array.sbatch").read_text())["array"] == "1-2"


@pytest.mark.parametrize(
    ("name", "script", "hint"),
    [
        ("sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1", "invalid partition"),
        ("sbatch", "echo thank you", "squeue --me"),
        ("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("scontrol", "echo 'MaxArraySize = 0'", "forbids"),
    ],
)
def test_what_slurm_refuses_is_one_line(
    robust201: RunCommand, write_sweep: WriteSweep, programs: WriteProgram, name: str, script: str, hint: str
) -> None:
    programs("sbatch", "echo 1")
    programs(name, script)
    ended = robust201("submit", "slurm", write_sweep())
    assert hint in ended.refusal(2)


def tally(**changes: object) -> RunTally:
    return RunTally(**({"evaluations": 3, "remaining": 2, "drained": True, "time_limit": True} | changes))


ENVIRONMENT = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "8", "SLURM_JOB_ID": "4711"}


@pytest.mark.parametrize(
    ("ended", "requeued"),
    [
        (tally(), True),
        (tally(time_limit=False), False),  # scancel and preemption: whoever did it decides
        (tally(remaining=0), False),
        (tally(evaluations=0), False),  # it would go on like that for ever
    ],
)
def test_a_task_is_queued_again_if_its_time_limit_alone_ended_it(
    programs: WriteProgram, ended: RunTally, requeued: bool
) -> None:
    calls = programs("scontrol", "")
    ArrayTask.of(ENVIRONMENT).requeue_if_unfinished(ended, lambda _line: None)
    assert calls.exists() == requeued
    if requeued:
        assert calls.read_text() == "requeue 4711_8\n"  # 4711 alone would be every task of the array


def test_a_task_that_may_not_be_queued_again_says_so(programs: WriteProgram) -> None:
    programs("scontrol", "echo 'Requested operation not permitted' >&2; exit 1")
    said: list[str] = []
    ArrayTask.of(ENVIRONMENT).requeue_if_unfinished(tally(), said.append)
    assert "not permitted" in said[-1]
    assert said[-1].endswith("submit the sweep again to go on.")


def test_no_task_of_an_array_is_no_task() -> None:
    with pytest.raises(ConfigError, match="SLURM_ARRAY_TASK_ID"):
        ArrayTask.of({"SLURM_ARRAY_JOB_ID": "4711"})


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """A real Slurm with two CPUs."""
    reason = reason_against()
    if reason is not None:
        pytest.skip(reason)
    with slurm_on_loopback(cpus=2) as running:
        yield running


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_real_array_is_drained_queued_again_and_ends_in_the_bytes_of_one_run(
    cluster: SlurmCluster,
    robust201: RunCommand,
    write_sweep: WriteSweep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {"clean": {}, "fgsm": {"epsilons_255": [1]}, "aa_square": {"epsilons_255": [1, 8], "queries": 1500}}
    sweep = write_sweep(keys=keys, batch_size=1, execution={"part_minutes": 1e-9, "device": "cpu"})
    assert robust201("run", sweep, "--results", tmp_path / "ordinary").code == 0
    results = tmp_path / 'it\'s "100%" here'
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    submit = ("submit", "slurm", sweep, "--results", results, "--time", "10")
    assert "at most 32" in robust201(*submit, "--tasks", "33").refusal(2)
    assert "invalid partition" in robust201(*submit, "--partition", "nowhere").refusal(2)
    # The setup line brings a variable with quotes through the file, Slurm and the shell.
    ended = robust201(*submit, "--tasks", "2", "--max-parallel", "2", "--setup", 'echo "it\'s $SLURM_JOB_NAME"')
    assert ended.code == 0, ended.err
    job = ended.out.strip()

    def log(index: int) -> str:
        path = results / f"slurm/{job}_{index}.log"
        return path.read_text() if path.exists() else ""

    # It has finished something, and has more to do.
    cluster.wait_for((results / "shares/1-of-2/progress.json").exists)
    assert cluster.job(f"{job}_1")["JobState"] == "RUNNING"
    # What Slurm sends before the time limit (B: to the batch process alone), now rather than in some minutes.
    cluster.query("scancel", "--batch", "--signal=USR1", f"{job}_1")
    cluster.wait_for(lambda: cluster.job(f"{job}_1")["JobState"] == "PENDING")
    assert f"putting task {job}_1 back into the queue" in log(1)

    cluster.start_requeued(f"{job}_1")
    tasks = [f"{job}_{index}" for index in (1, 2)]
    over = {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY"}
    cluster.wait_for(lambda: {cluster.job(task)["JobState"] for task in tasks} <= over)
    assert [cluster.job(task)["Restarts"] for task in tasks] == ["1", "0"]
    for index in (1, 2):
        assert "it's robust201-tiny" in log(index)
        assert "Complete for this selection" in log(index), log(index)
        assert cluster.job(f"{job}_{index}")["ExitCode"] == "0:0"
    counted = [re.findall(r"(\d+) done, (\d+) missing", log(1))[i] for i in (0, 1)]
    assert counted[0][0] == "0"
    assert int(counted[1][0]) + int(counted[1][1]) == int(counted[0][1])
    assert ShardStore.open(results).verify() == []
    assert json.loads(robust201("status", "--json", results).out)["complete"]
    for name, folder in (("array", results), ("driver", tmp_path / "ordinary")):
        assert robust201("export", folder, tmp_path / name).code == 0
    assert read_tree(tmp_path / "array") == read_tree(tmp_path / "driver")
    assert robust201("submit", "slurm", sweep, "--results", results).out == ""
