"""Write the batch file of a Slurm job array.

Each task computes one share of a sweep (`run --share`), or a single task computes all training runs of a YAML.

Source of the options and their limits: Slurm's manual page sbatch(1).
"""

import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robust201.core.errors import ConfigError
from robust201.runtime.share_run import DRAIN_VARIABLE
from robust201.sweep.config import ExecutionSection, SweepConfig
from robust201.sweep.training_config import TrainingConfig

SLURM_FOLDER = "slurm"
"""Subfolder of the results folder that contains the batch file and one log per task."""

DRAIN_SECONDS = 600
"""Longest lead time in seconds: a task begins to drain this long before its time limit. It is twice the maximum time of
the fused engine's parts (slices of a network's work). To drain means to finish the evaluations in progress and to start
no others."""

_ENDING_SECONDS = 60
"""Seconds between the end of draining and the time limit, in which the task writes its last files and is requeued."""

_PLAIN_TIME = re.compile(r"(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_DAYS_TIME = re.compile(r"(\d{1,4})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_OPTION_PATTERNS = {
    "gpus_per_task": (r"(?:[A-Za-z][\w.-]*:)?\d{1,4}", "a number of GPUs, or TYPE:NUMBER such as a100:1"),
}
# robust201 sets these options, because shares, resuming and requeueing depend on them.
_RESERVED_OPTIONS = ("-a", "--array", "--signal", "--requeue", "--no-requeue", "-o", "--output", "-e", "--error")


def parse_time_limit(time_limit: str) -> int:
    """Parse a time limit with the formats of sbatch (M, M:S, H:M:S, D-H, D-H:M, D-H:M:S), and return its seconds."""
    seconds = 0
    if match := _DAYS_TIME.fullmatch(time_limit):
        days, hours, minutes, last_seconds = (int(group or 0) for group in match.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + last_seconds
    elif match := _PLAIN_TIME.fullmatch(time_limit):
        hours_or_minutes, minutes_or_seconds, seconds_text = match.groups()
        if seconds_text is not None:
            seconds = (int(hours_or_minutes) * 60 + int(minutes_or_seconds)) * 60 + int(seconds_text)
        else:
            seconds = int(hours_or_minutes) * 60 + int(minutes_or_seconds or 0)
    if seconds < 1:
        raise _option_error("time", time_limit, "a time limit such as 120 (minutes), 24:00:00 or 3-12 (days-hours)")
    return seconds


@dataclass(frozen=True)
class ArrayOptions:
    """Checked options of a job array; `submit slurm --help` describes them and their defaults."""

    tasks: int | None = None
    time: str | None = None
    gpus_per_task: str | None = None
    extra: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tasks is not None and self.tasks < 1:
            raise _option_error("tasks", self.tasks, "at least 1")
        for name, (pattern, description) in _OPTION_PATTERNS.items():
            option_value = getattr(self, name)
            if option_value is not None and not re.fullmatch(pattern, option_value, re.ASCII):
                raise _option_error(name, option_value, description)
        for line in self.extra:
            _check_extra_option(line)
        for line in self.setup:
            if "\0" in line or not line.strip():
                raise _option_error("setup", line, "a shell line")
        if self.time is not None:
            parse_time_limit(self.time)

    @property
    def drain_lead_seconds(self) -> int:
        """Number of seconds before the time limit at which a task begins to drain."""
        return DRAIN_SECONDS if self.time is None else min(DRAIN_SECONDS, max(1, parse_time_limit(self.time) // 4))

    @property
    def drain_timeout_seconds(self) -> float:
        """Seconds after the beginning of draining at which a task abandons its parts in progress."""
        return self.drain_lead_seconds - min(_ENDING_SECONDS, self.drain_lead_seconds / 2)


def _option_error(field_name: str, option_value: object, expected: str) -> ConfigError:
    option = "--" + field_name.replace("_", "-")
    return ConfigError(
        f"Reading the command line failed for {option}: expected {expected}, got {option_value!r}. See: robust201 "
        "submit slurm --help"
    )


def _check_extra_option(line: str) -> None:
    option = _strip_directive(line)
    if not option.startswith("-") or any(character in line for character in "\n\r\0"):
        raise _option_error("extra", line, "one option of sbatch, such as --constraint=a100")
    option_name = re.split(r"[=\s]", option, maxsplit=1)[0]
    # The value of a short option can follow without a space.
    if option_name in _RESERVED_OPTIONS or (not option_name.startswith("--") and option_name[:2] in _RESERVED_OPTIONS):
        raise _option_error("extra", line, "an option that robust201 does not set itself")


def _strip_directive(line: str) -> str:
    return line.strip().removeprefix("#SBATCH").strip()


def task_resources(
    options: ArrayOptions, execution: ExecutionSection, *, is_only_task: bool = False
) -> tuple[str | None, int, int]:
    """Return the resources of a task; those that the options do not set follow from its number of workers.

    A task without GPUs has one worker. If it is the array's only task, it has as many workers as the YAML sets.

    Returns:
        The value of sbatch's ``--gres`` (None without a GPU), the number of CPUs and the number of workers. A single
        worker computes in the task's process; several workers compute through Ray on the task's machine.
    """
    gpu_request = options.gpus_per_task or ("0" if execution.device == "cpu" else "1")
    n_gpus = int(gpu_request.rpartition(":")[2])
    cpus_per_worker = max(math.ceil(execution.cpus_per_worker), execution.threads)
    n_workers = max(1, int(n_gpus / execution.gpus_per_worker))
    if is_only_task and not n_gpus:
        n_workers = execution.workers or 1
    return f"gpu:{gpu_request}" if n_gpus else None, n_workers * cpus_per_worker, n_workers


def render(
    config: SweepConfig | TrainingConfig,
    source: Path,
    options: ArrayOptions,
    n_shares: int,
    indices: Sequence[int],
    run_options: Sequence[str] = (),
) -> str:
    """Return the text of the batch file that computes the job shares `indices` of a sweep, or all training runs.

    Each task reads `source` when it starts. `run_options` are further options of `run`.
    """
    # Relative paths in the YAML refer to the folder from which the array is submitted.
    source, results, folder, python = source.absolute(), config.results.absolute(), Path.cwd(), sys.executable
    is_training = isinstance(config, TrainingConfig)
    output_path, share_option = results, f' --share "$SLURM_ARRAY_TASK_ID/{n_shares}"'
    if isinstance(config, TrainingConfig):
        output_path, share_option = config.store.absolute(), ""
    _check_paths(source, results, folder, Path(python))
    _check_shell("\n".join(options.setup))  # checked separately, because a later line could close an open quote
    gres, n_cpus, n_workers = task_resources(options, config.execution, is_only_task=is_training)
    logs = str(results / SLURM_FOLDER).replace("%", "%%")
    directives = {
        "--job-name": f"robust201-{config.name}",
        "--array": format_ranges(indices),
        "--nodes": "1",
        "--ntasks": "1",
        "--cpus-per-task": n_cpus,
        "--gres": gres,
        "--time": options.time,
        # With B:, only the batch process receives the signal (robust201, because of exec), and not its workers.
        "--signal": f"B:USR1@{options.drain_lead_seconds}",
        "--output": _quote_directive(f"{logs}/%A_%a.log"),
        "--open-mode": "append",
    }
    executor = ["--executor", "inline"] if n_workers == 1 else ["--executor", "ray", "--workers", str(n_workers)]
    command = [python, "-P", "-m", "robust201", "run", str(source), "--out", str(output_path), *executor]
    command += ["--slurm-requeue", *run_options]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}={value}" for option, value in directives.items() if value is not None),
        "#SBATCH --requeue",
        *(f"#SBATCH {_strip_directive(line)}" for line in options.extra),
        "",
        "# Until robust201 has started, the signal before the time limit must not end the task.",
        "trap '' USR1",
        "set -e",
        *options.setup,
        "# After this time, parts in progress are abandoned: the task must requeue itself before the time limit.",
        f"export {DRAIN_VARIABLE}={options.drain_timeout_seconds:g}",
        f"cd -- {shlex.quote(str(folder))}",
        "# With exec, Slurm's signals reach robust201 directly.",
        f"exec {shlex.join(command)}{share_option}",
        "",
    ]
    return "\n".join(lines)


def format_ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers for sbatch's ``--array``, such as ``1-5,8``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in ranges)


def _quote_directive(value: str) -> str:
    """Quote a value for sbatch's parser of ``#SBATCH`` lines, which differs from a shell's."""
    if re.fullmatch(r"[\w./%:=+,@-]+", value, re.ASCII):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _check_paths(*paths: Path) -> None:
    for path in paths:
        if any(character in str(path) for character in "\n\r\0\\"):
            # A backslash in a log's path disables sbatch's replacement of patterns such as %A.
            raise ConfigError(
                f"Writing the batch file failed for {str(path)!r}: a path must not contain line breaks or backslashes. "
                "Rename the file or folder."
            )


def _check_shell(shell_lines: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        return
    completed = subprocess.run([bash, "-n"], input=shell_lines, capture_output=True, text=True, check=False)
    if completed.returncode:
        problem = completed.stderr.strip().splitlines()[0].removeprefix(f"{bash}: ")
        raise ConfigError(
            f"Writing the batch file failed for --setup: bash rejects the lines ({problem}). Check the quotes."
        )
