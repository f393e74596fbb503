"""Submit sweeps and training YAMLs as Slurm job arrays.

Each task computes one share of a sweep (`run --share`) on one machine. For a training YAML, the array has one task,
because only one driver may use the store. The template of the batch file is ``array.sbatch`` beside this module;
sbatch(1) describes its options.
"""

import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from robust201.core.errors import ConfigError, InputError
from robust201.core.files import make_folder, write_text
from robust201.run.slurm_task import call_slurm
from robust201.run.sweep import prepare_run
from robust201.run.trainings import prepare_training_runs
from robust201.sweep.config import ExecutionSection, SweepConfig
from robust201.sweep.filters import EVERYTHING
from robust201.sweep.training_config import TrainingConfig

_Config = SweepConfig | TrainingConfig

SLURM_FOLDER = "slurm"
"""Subfolder of the results folder with the batch file and one log per task."""

DEFAULT_TASKS = 256
"""Number of tasks if --tasks is not set: enough to fill most clusters, but below most limits of arrays and queues."""

DRAIN_SECONDS = 600
"""A task begins to drain (finish its parts and start no others) at most this long before its time limit; a part takes
about half of this time."""

ENDING_SECONDS = 60
"""Last part of the time limit, in which a drained task writes its last files and is requeued."""

_TEMPLATE = Path(__file__).with_name("array.sbatch")
_SUBMIT_TIMEOUT_SECONDS = 300
_TIME_LIMIT = re.compile(r"(?:(\d{1,4})-)?(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)


@dataclass(frozen=True)
class ArrayOptions:
    """Options of a job array (`submit slurm --help`).

    Raises:
        ConfigError: an option is not valid.
    """

    tasks: int | None = None
    time: str | None = None
    gpus_per_task: str | None = None
    extra: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.gpus_per_task and not re.fullmatch(r"(?:[A-Za-z][\w.-]*:)?\d{1,4}", self.gpus_per_task, re.ASCII):
            raise _option_error("--gpus-per-task", "NUMBER or TYPE:NUMBER, such as a100:1", self.gpus_per_task)
        for option in self.extra:
            if not option.startswith("-") or not option.isprintable():
                raise _option_error("--extra", "one option of sbatch, such as --partition=gpu", option)
        if self.time is not None:
            parse_time_limit(self.time)

    @property
    def signal_seconds(self) -> int:
        """Time before the time limit at which a task begins to drain."""
        return DRAIN_SECONDS if self.time is None else min(DRAIN_SECONDS, max(1, parse_time_limit(self.time) // 4))


def _option_error(option: str, expected: str, got: object) -> ConfigError:
    return ConfigError(
        f"Reading the command line failed for {option}: expected {expected}, got {got!r}. See: robust201 submit slurm "
        "--help"
    )


def parse_time_limit(text: str) -> int:
    """Return the seconds of a time limit in one of sbatch's formats: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    match, seconds = _TIME_LIMIT.fullmatch(text), 0
    if match is not None:
        days, *numbers = match.groups()
        has_hours = days is not None or numbers[-1] is not None
        units = (3600, 60, 1) if has_hours else (60, 1, 0)
        seconds = int(days or 0) * 86_400 + sum(
            unit * int(number or 0) for unit, number in zip(units, numbers, strict=True)
        )
    if not seconds:
        raise _option_error("--time", "a time limit such as 120 (minutes), 24:00:00 or 3-12 (days-hours)", text)
    return seconds


def task_resources(
    options: ArrayOptions, execution: ExecutionSection, *, is_only_task: bool = False
) -> tuple[str | None, int, int]:
    """Return the value of sbatch's --gres (None without a GPU), and the numbers of CPUs and workers of a task.

    A task without GPUs has one worker or, if `is_only_task`, as many workers as the YAML sets (by default one).
    """
    gpus = options.gpus_per_task or ("0" if execution.device == "cpu" else "1")
    n_gpus = int(gpus.rpartition(":")[2])
    n_workers = max(1, int(n_gpus / execution.gpus_per_worker))
    if is_only_task and not n_gpus:
        n_workers = execution.workers or 1
    cpus_per_worker = max(math.ceil(execution.cpus_per_worker), execution.threads)
    return f"gpu:{gpus}" if n_gpus else None, n_workers * cpus_per_worker, n_workers


def render(config: _Config, source: Path, options: ArrayOptions, n_tasks: int, run_options: Sequence[str]) -> str:
    """Return the batch file of an array.

    Args:
        config: the sweep or the training runs.
        source: YAML or results folder, which each task reads.
        options: options of the array.
        n_tasks: number of tasks.
        run_options: further options of `run`.

    Raises:
        ConfigError: a path cannot be written into a batch file.
    """
    is_training = isinstance(config, TrainingConfig)
    gres, n_cpus, n_workers = task_resources(options, config.execution, is_only_task=is_training)
    out = config.store if isinstance(config, TrainingConfig) else config.results
    command = [sys.executable, "-P", "-m", "robust201", "run", str(source.absolute()), "--out", str(out.absolute())]
    command += ["--executor", "inline"] if n_workers == 1 else ["--executor", "ray", "--workers", str(n_workers)]
    command += ["--slurm-requeue", *run_options]
    logs = str(config.results.absolute() / SLURM_FOLDER)
    folder = str(Path.cwd())  # relative paths in the YAML refer to it
    _check_paths(*command, logs, folder)
    pairs = {"--gres": gres, "--time": options.time}
    lines = [*(f"{name}={value}" for name, value in pairs.items() if value is not None), *options.extra]
    seconds = options.signal_seconds
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        job_name=f"robust201-{config.name}",
        array=f"1-{n_tasks}",
        cpus=n_cpus,
        signal_seconds=seconds,
        output=_quote_for_sbatch(f"{logs.replace('%', '%%')}/%A_%a.log"),
        options="\n".join(f"#SBATCH {line}" for line in lines),
        setup="\n".join(options.setup),
        drain_seconds=f"{seconds - min(ENDING_SECONDS, seconds / 2):g}",
        folder=shlex.quote(folder),
        command=shlex.join(command) + ("" if is_training else f' --share "$SLURM_ARRAY_TASK_ID/{n_tasks}"'),
    )


def _quote_for_sbatch(value: str) -> str:
    """Quote a value for sbatch's parser of ``#SBATCH`` lines, which differs from a shell's."""
    return '"' + value.replace('"', '\\"') + '"'


def _check_paths(*paths: str) -> None:
    for path in paths:
        if "\\" in path or not path.isprintable():  # after a backslash, sbatch does not replace %A
            raise ConfigError(
                f"Writing the batch file failed for {path!r}: expected a path without backslashes and control "
                "characters. Rename the file or folder."
            )


@dataclass(frozen=True)
class Submission:
    """A job array that Slurm has accepted.

    Attributes:
        job: id of the array.
        n_tasks: number of tasks.
        n_missing: number of missing evaluations, or of missing epochs of training runs.
        logs: pattern of the paths of the log files.
    """

    job: str
    n_tasks: int
    n_missing: int
    logs: str


def submit_array(
    config: _Config, source: Path, options: ArrayOptions, run_options: Sequence[str], *, say: Callable[[str], None]
) -> Submission | None:
    """Prepare a sweep or training runs, and submit their missing work; return None if nothing is missing.

    Raises:
        InputError: an input is missing or invalid, or Slurm rejected the array.
        LockHeldError: another driver is working in the folder.
    """
    render(config, source, options, max_tasks(config, options), run_options)  # reports errors before `_prepare`
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "Submitting failed for Slurm: the program sbatch is not installed on this machine. Submit on a login node "
            "of the cluster, or print the batch file with --print."
        )
    n_missing, n_parts = _prepare(config, say)
    if not n_missing:
        return None
    n_tasks = min(max_tasks(config, options), n_parts)
    folder = config.results.absolute() / SLURM_FOLDER
    make_folder(folder)
    script = folder / "array.sbatch"
    write_text(script, render(config, source, options, n_tasks, run_options))
    job = _call_sbatch(script)
    return Submission(job, n_tasks, n_missing, f"{folder}/{job}_*.log")


def max_tasks(config: _Config, options: ArrayOptions) -> int:
    """Return the maximum number of tasks; fewer are submitted if there are fewer missing parts."""
    return 1 if isinstance(config, TrainingConfig) else options.tasks or DEFAULT_TASKS


def _prepare(config: _Config, say: Callable[[str], None]) -> tuple[int, int]:
    """Write the files that tasks read. Return the numbers of missing evaluations and parts.

    For a training YAML, return the number of missing epochs and 1, because its array has only one task.
    """
    if isinstance(config, TrainingConfig):
        with prepare_training_runs(config, EVERYTHING, say) as work:
            return work.n_planned - work.n_done, 1
    with prepare_run(config, EVERYTHING, say) as sweep:
        return sweep.n_planned - sweep.n_done, sweep.state.n_missing_parts


def _call_sbatch(script: Path) -> str:
    """Return the id of the submitted array."""
    advice = "Correct the option that sbatch rejects (without GPUs, set `device: cpu` in the YAML), and submit again."
    output = call_slurm("sbatch", "--parsable", str(script), seconds=_SUBMIT_TIMEOUT_SECONDS, advice=advice)
    match = re.search(r"^(\d+)(?:;\S+)?$", output.strip(), re.MULTILINE)
    if match is None:
        raise InputError(
            f"Submitting failed for {script}: expected a job id from sbatch, got {output.strip()!r}. Find the job "
            "with: squeue --me"
        )
    return match[1]
