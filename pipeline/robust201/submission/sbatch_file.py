"""The batch file of a Slurm job array, either for shares of a sweep or for one task with all trainings.

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
from robust201.planning.config import ExecutionSection, SweepConfig
from robust201.planning.training_config import TrainingConfig
from robust201.runtime.share_run import DRAIN_VARIABLE

SLURM_FOLDER = "slurm"
"""Subfolder of the results folder for the batch file and a log per task."""

DRAIN_SECONDS = 600
"""Time before its limit at which a task begins to drain: twice the length of a part of the fused engine."""

_MAX_DRAIN_SECONDS = 65_535
_ENDING_SECONDS = 60
"""Time between the end of draining and the time limit, to write final records and requeue the task."""

_PLAIN_TIME = re.compile(r"(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_DAYS_TIME = re.compile(r"(\d{1,4})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_OPTION_PATTERNS = {
    "gpus_per_task": (r"(?:[A-Za-z][\w.-]*:)?\d{1,4}", "a number of GPUs, or TYPE:NUMBER such as a100:1"),
    "mem": (r"\d{1,9}[KMGT]?", "a size such as 16G"),
    "partition": (r"\w[\w.,+-]*", "a name, or names separated by commas"),
    "account": (r"\w[\w.@+-]*", "a name"),
}
# Options that shares, resuming and requeueing depend on.
_RESERVED_OPTIONS = ("-a", "--array", "--signal", "--requeue", "--no-requeue", "-o", "--output", "-e", "--error")


def parse_time(text: str) -> int:
    """Return the seconds of a time limit as sbatch reads it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    seconds = 0
    if match := _DAYS_TIME.fullmatch(text):
        days, hours, minutes, remaining = (int(number or 0) for number in match.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + remaining
    elif match := _PLAIN_TIME.fullmatch(text):
        first, second, third = match.groups()
        if third is not None:
            seconds = (int(first) * 60 + int(second)) * 60 + int(third)
        else:
            seconds = int(first) * 60 + int(second or 0)
    if seconds < 1:
        raise _option_error("time", text, "a time limit such as 120 (minutes), 24:00:00 or 3-12 (days-hours)")
    return seconds


@dataclass(frozen=True)
class ArrayOptions:
    """The checked options of a job array; `submit slurm --help` describes them and their defaults."""

    tasks: int | None = None
    max_parallel: int | None = None
    time: str | None = None
    gpus_per_task: str | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    partition: str | None = None
    account: str | None = None
    extra: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    drain_seconds: int | None = None

    def __post_init__(self) -> None:
        for name in ("tasks", "max_parallel", "cpus_per_task", "drain_seconds"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise _option_error(name, number, "at least 1")
        for name, (pattern, description) in _OPTION_PATTERNS.items():
            text = getattr(self, name)
            if text is not None and not re.fullmatch(pattern, text, re.ASCII):
                raise _option_error(name, text, description)
        for line in self.extra:
            _check_extra(line)
        for line in self.setup:
            if "\0" in line or not line.strip():
                raise _option_error("setup", line, "a shell line")
        limit = _MAX_DRAIN_SECONDS + 1 if self.time is None else min(parse_time(self.time), _MAX_DRAIN_SECONDS + 1)
        if self.drain_seconds is not None and self.drain_seconds >= limit:
            raise _option_error(
                "drain_seconds", self.drain_seconds, f"less than the time limit and {_MAX_DRAIN_SECONDS + 1}"
            )

    @property
    def seconds_to_drain(self) -> int:
        """Time before the limit at which a task begins to drain."""
        if self.drain_seconds is not None:
            return self.drain_seconds
        return DRAIN_SECONDS if self.time is None else min(DRAIN_SECONDS, max(1, parse_time(self.time) // 4))

    @property
    def drain_deadline(self) -> float:
        """Time in seconds after which a draining task abandons its parts in progress."""
        return self.seconds_to_drain - min(_ENDING_SECONDS, self.seconds_to_drain / 2)


def _option_error(name: str, got: object, expected: str) -> ConfigError:
    option = "--" + name.replace("_", "-")
    return ConfigError(
        f"Reading the command line failed for {option}: expected {expected}, got {got!r}. "
        "See: robust201 submit slurm --help"
    )


def _check_extra(line: str) -> None:
    option = _bare_option(line)
    if not option.startswith("-") or any(mark in line for mark in "\n\r\0"):
        raise _option_error("extra", line, "one option of sbatch, such as --constraint=a100")
    name = re.split(r"[=\s]", option, maxsplit=1)[0]
    # The value of a short option can follow without a space.
    if name in _RESERVED_OPTIONS or (not name.startswith("--") and name[:2] in _RESERVED_OPTIONS):
        raise _option_error("extra", line, "an option that robust201 does not set")


def _bare_option(line: str) -> str:
    return line.strip().removeprefix("#SBATCH").strip()


def resources(
    options: ArrayOptions, execution: ExecutionSection, *, is_only_task: bool = False
) -> tuple[str | None, int, int]:
    """Return the resources of a task, derived from its workers if the options do not set them.

    Without GPUs, a task has one worker; if it is the only task, it has as many as the YAML says or its CPUs permit.

    Returns:
        The value of sbatch's ``--gres`` (None without a GPU), the number of CPUs and the number of workers. A single
        worker computes in the task's process, several through Ray on its machine.
    """
    gpu_request = options.gpus_per_task or ("0" if execution.device == "cpu" else "1")
    gpus = int(gpu_request.rpartition(":")[2])
    cpus_per_worker = max(math.ceil(execution.cpus_per_worker), execution.threads)
    workers = max(1, int(gpus / execution.gpus_per_worker))
    if is_only_task and not gpus:
        workers = execution.workers or max(1, (options.cpus_per_task or 0) // cpus_per_worker)
    return f"gpu:{gpu_request}" if gpus else None, options.cpus_per_task or workers * cpus_per_worker, workers


def render(
    config: SweepConfig | TrainingConfig,
    source: Path,
    options: ArrayOptions,
    n_shares: int,
    indices: Sequence[int],
    filter_options: Sequence[str] = (),
) -> str:
    """Return the batch file that computes the shares `indices` of a sweep, or all trainings.

    Each task reads `source` when it starts. `filter_options` are further options of `run` or `train`.
    """
    # Relative paths in the YAML refer to the folder from which the array is submitted.
    source, results, folder, python = source.absolute(), config.results.absolute(), Path.cwd(), sys.executable
    is_training = isinstance(config, TrainingConfig)
    verb, output, share = "run", results, f' --share "$SLURM_ARRAY_TASK_ID/{n_shares}"'
    if isinstance(config, TrainingConfig):
        verb, output, share = "train", config.store.absolute(), ""
    _check_paths(source, results, folder, Path(python))
    _check_shell("\n".join(options.setup))  # Separately, since an open quote could be closed by a later line.
    gres, cpus, workers = resources(options, config.execution, is_only_task=is_training)
    logs = str(results / SLURM_FOLDER).replace("%", "%%")
    directives = {
        "--job-name": f"robust201-{config.name}",
        "--array": format_ranges(indices) + ("" if options.max_parallel is None else f"%{options.max_parallel}"),
        "--nodes": "1",
        "--ntasks": "1",
        "--cpus-per-task": cpus,
        "--gres": gres,
        "--mem": options.mem,
        "--time": options.time,
        "--partition": options.partition,
        "--account": options.account,
        # B: only to the batch process, which exec replaces by robust201. Workers must not receive the signal.
        "--signal": f"B:USR1@{options.seconds_to_drain}",
        "--output": _quote_directive(f"{logs}/%A_%a.log"),
        "--open-mode": "append",
    }
    executor = ["--executor", "inline"] if workers == 1 else ["--executor", "ray", "--workers", str(workers)]
    command = [python, "-P", "-m", "robust201", verb, str(source), "--out", str(output), *executor]
    command += ["--slurm-requeue", *filter_options]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}={value}" for option, value in directives.items() if value is not None),
        "#SBATCH --requeue",
        *(f"#SBATCH {_bare_option(line)}" for line in options.extra),
        "",
        "# Until robust201 has started, the signal before the time limit must not end the task.",
        "trap '' USR1",
        "set -e",
        *options.setup,
        "# Parts that take longer are abandoned, since the task cannot requeue itself after the time limit.",
        f"export {DRAIN_VARIABLE}={options.drain_deadline:g}",
        f"cd -- {shlex.quote(str(folder))}",
        "# With exec, Slurm's signals reach robust201 directly.",
        f"exec {shlex.join(command)}{share}",
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
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _quote_directive(value: str) -> str:
    """Quote a value for sbatch's parser of ``#SBATCH`` lines, which differs from a shell's."""
    if re.fullmatch(r"[\w./%:=+,@-]+", value, re.ASCII):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _check_paths(*paths: Path) -> None:
    for path in paths:
        if any(mark in str(path) for mark in "\n\r\0\\"):
            # A backslash in a log's name turns off sbatch's replacements such as %A.
            raise ConfigError(
                f"Writing the batch file failed for {str(path)!r}: expected a path without line breaks or "
                "backslashes. Rename the folder."
            )


def _check_shell(text: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        return
    checked = subprocess.run([bash, "-n"], input=text, capture_output=True, text=True, check=False)
    if checked.returncode:
        problem = checked.stderr.strip().splitlines()[0].removeprefix(f"{bash}: ")
        raise ConfigError(
            f"Writing the batch file failed for --setup: expected valid bash lines, got {problem!r}. Check the quotes."
        )
