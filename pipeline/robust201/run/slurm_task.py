"""The task of a Slurm job array in which this process runs: its time limit and its requeueing."""

import math
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from robust201.core.errors import ConfigError, InputError
from robust201.sweep.config import ExecutionSection

DRAIN_VARIABLE = "ROBUST201_DRAIN_SECONDS"
"""Environment variable with the time that the batch file allows for draining."""

_REQUEUE_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class ArrayTask:
    """A task of a job array. `drain_seconds` is None if the batch file does not limit the time for draining."""

    job: str
    index: str
    drain_seconds: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ArrayTask":
        """Read the task of this process.

        Raises:
            ConfigError: the process is not a task of an array, or `DRAIN_VARIABLE` is not a time.
        """
        try:
            job, index = environment["SLURM_ARRAY_JOB_ID"], environment["SLURM_ARRAY_TASK_ID"]
        except KeyError as error:
            raise ConfigError(
                "Reading the command line failed for --slurm-requeue: expected a task of a Slurm job array, got a "
                f"process without {error.args[0]}. Remove --slurm-requeue."
            ) from error
        return cls(job, index, _read_seconds(environment.get(DRAIN_VARIABLE)))

    def limit(self, execution: ExecutionSection) -> ExecutionSection:
        """Return the execution section for a run on this machine alone, which drains within the task's time."""
        limits = [seconds for seconds in (execution.drain_seconds, self.drain_seconds) if seconds is not None]
        return execution.model_copy(update={"ray_address": None, "drain_seconds": min(limits, default=None)})

    def requeue(self, say: Callable[[str], None], *, has_progress: bool) -> None:
        """Requeue the task, unless it made no progress and therefore could never finish."""
        if not has_progress:
            say("Not requeued: no work was finished within the time limit. Submit with a longer --time.")
            return
        # SLURM_JOB_ID cannot be used: for an array's last task, it is the array's id, and would requeue all tasks.
        task = f"{self.job}_{self.index}"
        say(f"The time limit is near; requeueing task {task}.")
        try:
            call_slurm("scontrol", "requeue", task, seconds=_REQUEUE_TIMEOUT_SECONDS)
        except InputError as error:
            say(f"{error} The task ends here; submit again to continue.")


def _read_seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"Reading the environment failed for {DRAIN_VARIABLE}: expected seconds above 0, got {text!r}. Correct "
            "the variable, or unset it."
        )
    return seconds


def call_slurm(*command: str, seconds: float, advice: str = "Is this a machine of the cluster?") -> str:
    """Run a Slurm program and return its output.

    Raises:
        InputError: the program is missing, failed, or did not end within `seconds`; the message ends with `advice`.
    """
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"Calling Slurm failed for {command[0]}: {error}. {advice}") from error
    if completed.returncode:
        problem = " ".join((completed.stderr or completed.stdout).split()) or f"exit code {completed.returncode}"
        raise InputError(f"Calling Slurm failed for {' '.join(command)}: expected success, got {problem!r}. {advice}")
    return completed.stdout
