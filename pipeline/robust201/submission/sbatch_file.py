"""The batch file of a Slurm job array, of shares of a sweep or of one task with trainings: its options and its text.

Options, their spelling and their limits: Slurm's manual page sbatch(1).
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
"""Of the results folder, with the batch file and a log of each task."""

DRAIN_SECONDS = 600
"""Time before its limit at which a task begins to drain: twice the length at which the fused engine cuts its parts."""

_MAX_DRAIN_SECONDS = 65_535
_ENDING_SECONDS = 60
"""Time between the end of draining and the time limit: for ending in order, and for asking Slurm to queue the task."""

_PLAIN_TIME = re.compile(r"(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_DAYS_TIME = re.compile(r"(\d{1,4})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_FORMS = {
    "gpus_per_task": (r"(?:[A-Za-z][\w.-]*:)?\d{1,4}", "a number of GPUs, or TYPE:NUMBER such as a100:1"),
    "mem": (r"\d{1,9}[KMGT]?", "a size such as 16G"),
    "partition": (r"\w[\w.,+-]*", "a name, or names separated by commas"),
    "account": (r"\w[\w.@+-]*", "a name"),
}
# What shares, resuming and requeueing rest on.
_OWN_OPTIONS = ("-a", "--array", "--signal", "--requeue", "--no-requeue", "-o", "--output", "-e", "--error")


def parse_time(text: str) -> int:
    """Read seconds as sbatch does: of M, M:S, H:M:S, D-H, D-H:M or D-H:M:S (days, hours, minutes, seconds)."""
    seconds = 0
    if match := _DAYS_TIME.fullmatch(text):
        days, hours, minutes, rest = (int(number or 0) for number in match.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    elif match := _PLAIN_TIME.fullmatch(text):
        first, second, third = match.groups()
        if third is not None:
            seconds = (int(first) * 60 + int(second)) * 60 + int(third)
        else:
            seconds = int(first) * 60 + int(second or 0)
    if seconds < 1:
        raise _wrong("time", text, "a time limit such as 120 (minutes), 24:00:00 or 3-12 (days-hours)")
    return seconds


@dataclass(frozen=True)
class ArrayOptions:
    """What a job array asks of Slurm (see `submit slurm --help`), None as the help says; checked when it is made."""

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
                raise _wrong(name, number, "at least 1")
        for name, (form, meaning) in _FORMS.items():
            text = getattr(self, name)
            if text is not None and not re.fullmatch(form, text, re.ASCII):
                raise _wrong(name, text, meaning)
        for line in self.extra:
            _check_extra(line)
        for line in self.setup:
            if "\0" in line or not line.strip():
                raise _wrong("setup", line, "a shell line")
        limit = _MAX_DRAIN_SECONDS + 1 if self.time is None else min(parse_time(self.time), _MAX_DRAIN_SECONDS + 1)
        if self.drain_seconds is not None and self.drain_seconds >= limit:
            raise _wrong("drain_seconds", self.drain_seconds, f"less than the time limit and {_MAX_DRAIN_SECONDS + 1}")

    @property
    def seconds_to_drain(self) -> int:
        """Time before the limit at which a task begins to drain."""
        if self.drain_seconds is not None:
            return self.drain_seconds
        return DRAIN_SECONDS if self.time is None else min(DRAIN_SECONDS, max(1, parse_time(self.time) // 4))

    @property
    def drain_deadline(self) -> float:
        """Time that a task has to drain, some before the limit; past it, the parts in progress are abandoned."""
        return self.seconds_to_drain - min(_ENDING_SECONDS, self.seconds_to_drain / 2)


def _wrong(name: str, got: object, expected: str) -> ConfigError:
    option = "--" + name.replace("_", "-")
    return ConfigError(
        f"Reading the command line failed for {option}: expected {expected}, got {got!r}. "
        "See: robust201 submit slurm --help"
    )


def _check_extra(line: str) -> None:
    option = _bare_option(line)
    if not option.startswith("-") or any(mark in line for mark in "\n\r\0"):
        raise _wrong("extra", line, "one option of sbatch, such as --constraint=a100")
    name = re.split(r"[=\s]", option, maxsplit=1)[0]
    # A short option may carry its value without a space between them.
    if name in _OWN_OPTIONS or (not name.startswith("--") and name[:2] in _OWN_OPTIONS):
        raise _wrong("extra", line, "an option that robust201 does not set itself")


def _bare_option(line: str) -> str:
    return line.strip().removeprefix("#SBATCH").strip()


def resources(
    options: ArrayOptions, execution: ExecutionSection, *, is_whole: bool = False
) -> tuple[str | None, int, int]:
    """Fill in what the options leave open from what the workers need.

    Without GPUs, a task has one worker; one that does all of the work (`is_whole`) has those of the YAML, else as many
    as its CPUs allow.

    Returns:
        The value of sbatch's ``--gres``, None without a GPU, and CPUs and workers of a task: one computes in the task's
        own process, more through Ray on its machine.
    """
    wanted = options.gpus_per_task or ("0" if execution.device == "cpu" else "1")
    gpus = int(wanted.rpartition(":")[2])
    cpus_per_worker = max(math.ceil(execution.cpus_per_worker), execution.threads)
    workers = max(1, int(gpus / execution.gpus_per_worker))
    if is_whole and not gpus:
        workers = execution.workers or max(1, (options.cpus_per_task or 0) // cpus_per_worker)
    return f"gpu:{wanted}" if gpus else None, options.cpus_per_task or workers * cpus_per_worker, workers


def render(
    config: SweepConfig | TrainingConfig,
    place: Path,
    options: ArrayOptions,
    n_shares: int,
    indices: Sequence[int],
    narrowing: Sequence[str] = (),
) -> str:
    """Write out the batch file of some shares, ascending from 1, of a sweep that is read again when they start.

    Trainings are one share of one. `narrowing` holds further options of `run` or `train`.
    """
    # Relative paths of the YAML start in the folder that the array is submitted from.
    place, results, folder, python = place.absolute(), config.results.absolute(), Path.cwd(), sys.executable
    trains = isinstance(config, TrainingConfig)
    verb, filled, share = "run", results, f' --share "$SLURM_ARRAY_TASK_ID/{n_shares}"'
    if isinstance(config, TrainingConfig):
        verb, filled, share = "train", config.store.absolute(), ""
    _check_paths(place, results, folder, Path(python))
    _check_shell("\n".join(options.setup))  # by itself: a quote left open could end in one of our own lines
    gres, cpus, workers = resources(options, config.execution, is_whole=trains)
    logs = str(results / SLURM_FOLDER).replace("%", "%%")
    directives = {
        "--job-name": f"robust201-{config.name}",
        "--array": show_ranges(indices) + ("" if options.max_parallel is None else f"%{options.max_parallel}"),
        "--nodes": "1",
        "--ntasks": "1",
        "--cpus-per-task": cpus,
        "--gres": gres,
        "--mem": options.mem,
        "--time": options.time,
        "--partition": options.partition,
        "--account": options.account,
        # B: to the batch process alone, which exec makes ours: workers must not be told to stop by themselves.
        "--signal": f"B:USR1@{options.seconds_to_drain}",
        "--output": _quote_directive(f"{logs}/%A_%a.log"),
        "--open-mode": "append",
    }
    executor = ["--executor", "inline"] if workers == 1 else ["--executor", "ray", "--workers", str(workers)]
    command = [python, "-P", "-m", "robust201", verb, str(place), "--out", str(filled), *executor]
    command += ["--slurm-requeue", *narrowing]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}={value}" for option, value in directives.items() if value is not None),
        "#SBATCH --requeue",
        *(f"#SBATCH {_bare_option(line)}" for line in options.extra),
        "",
        "# Until our process takes over, the signal that comes before the time limit must not end the task.",
        "trap '' USR1",
        "set -e",
        *options.setup,
        "# What takes longer to stop is abandoned: past the time limit the task could not queue itself again.",
        f"export {DRAIN_VARIABLE}={options.drain_deadline:g}",
        f"cd -- {shlex.quote(str(folder))}",
        "# exec, so that Slurm's signals reach our process itself.",
        f"exec {shlex.join(command)}{share}",
        "",
    ]
    return "\n".join(lines)


def show_ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers as sbatch's ``--array`` takes them, such as ``1-5,8``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _quote_directive(value: str) -> str:
    """Quote a value as sbatch's own reader of ``#SBATCH`` lines understands it, which is no shell."""
    if re.fullmatch(r"[\w./%:=+,@-]+", value, re.ASCII):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _check_paths(*paths: Path) -> None:
    for path in paths:
        if any(mark in str(path) for mark in "\n\r\0\\"):
            # sbatch reads a backslash in the name of a log as "replace nothing".
            raise ConfigError(
                f"Writing the batch file failed for {str(path)!r}: expected a path without line breaks and "
                "backslashes, got one. Rename the folder."
            )


def _check_shell(text: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        return
    checked = subprocess.run([bash, "-n"], input=text, capture_output=True, text=True, check=False)
    if checked.returncode:
        problem = checked.stderr.strip().splitlines()[0].removeprefix(f"{bash}: ")
        raise ConfigError(
            f"Writing the batch file failed for --setup: expected lines that bash understands, got {problem!r}. "
            "Look at its quotes."
        )
