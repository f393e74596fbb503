"""Run a sweep as a Slurm job array, whose tasks each compute one share of the sweep on a single machine.

The tasks are independent: they need no driver, no lease and no network between them. The array is submitted from any
machine that has sbatch and the results folder. Before submission, the sweep is checked and its plan is written. A
training YAML becomes an array of one task, because only one driver may add snapshots to the manifest of its store.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from robust201.core.errors import ConfigError, InputError
from robust201.core.files import make_folder, write_text
from robust201.planning.plan import assumed_facts, make_plan
from robust201.planning.shares import Share, all_bundles, missing_bundles
from robust201.runtime.scheduler import RunTally
from robust201.runtime.sweep import prepare_sweep
from robust201.runtime.training_run import (
    ALL_TRAININGS,
    prepare_trainings,
    require_explicit_device,
)
from robust201.submission.sbatch_file import SLURM_FOLDER, ArrayOptions, render, task_resources
from robust201.sweep.config import SweepConfig
from robust201.sweep.training_config import TrainingConfig

DEFAULT_TASKS = 256
"""Number of tasks if --tasks is not set: enough to fill most clusters, but below the queue limit of most clusters."""

ASSUMED_MAX_ARRAY_SIZE = 1001
"""Slurm's default of MaxArraySize (slurm.conf(5)), used if no Slurm is installed."""


_QUERY_TIMEOUT_SECONDS = 60
_SUBMIT_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Submission:
    """Job array that Slurm has accepted.

    Attributes:
        job: id of the job array.
        n_tasks: number of tasks; shares whose results are complete have no task.
        n_shares: number of shares into which the sweep is divided.
        n_missing: number of missing evaluations, or of missing snapshots of training runs.
        logs: pattern of the paths of the log files.
    """

    job: str
    n_tasks: int
    n_shares: int
    n_missing: int
    logs: str


@dataclass(frozen=True)
class Job:
    """A sweep or training YAML to be computed on a cluster.

    Attributes:
        config: the configuration as read on this machine.
        source: the YAML or results folder, which is read again when the job starts.
        run_options: further options of `run`, such as ``--allow-code``.
    """

    config: SweepConfig | TrainingConfig
    source: Path
    run_options: tuple[str, ...] = ()

    @property
    def trainings(self) -> TrainingConfig | None:
        """The training configuration; None for a sweep."""
        return self.config if isinstance(self.config, TrainingConfig) else None

    def render(self, options: ArrayOptions, n_shares: int, indices: Sequence[int]) -> str:
        """Return the text of the batch file (see `sbatch_file.render`)."""
        return render(self.config, self.source, options, n_shares, indices, self.run_options)


def render_dry_run(job: Job, options: ArrayOptions, *, say: Callable[[str], None]) -> str:
    """Return the batch file of a job without submitting it; only the YAML is read."""
    if isinstance(job.config, TrainingConfig):
        require_explicit_device(job.config)
        return job.render(options, 1, [1])
    max_tasks = ASSUMED_MAX_ARRAY_SIZE - 1
    with suppress(InputError):  # if Slurm does not respond, its default is assumed
        max_tasks = _read_max_tasks()
    plan = make_plan(job.config, assumed_facts(job.config))
    n_shares = _count_shares(options, len(all_bundles(plan)), max_tasks, say)
    return job.render(options, n_shares, range(1, n_shares + 1))


def submit_array(job: Job, options: ArrayOptions, *, say: Callable[[str], None]) -> Submission | None:
    """Prepare a sweep or training runs and submit the missing work to Slurm; return None if nothing is missing."""
    if isinstance(job.config, TrainingConfig):
        require_explicit_device(job.config)
        _check_cluster(job, options)
        plan = prepare_trainings(job.config, ALL_TRAININGS, say)
        n_missing = plan.n_evaluations - plan.n_done
        n_shares, indices = 1, [1] if n_missing else []
    else:
        max_tasks = _check_cluster(job, options)
        prepared_sweep = prepare_sweep(job.config, say=say)
        bundles = all_bundles(prepared_sweep.plan)
        n_missing = prepared_sweep.plan.n_evaluations - prepared_sweep.done
        n_shares = _count_shares(options, len(bundles), max_tasks, say)
        job_shares = (Share(index, n_shares) for index in range(1, n_shares + 1))
        indices = [
            job_share.index
            for job_share in job_shares
            if missing_bundles(job_share.bundles(bundles), prepared_sweep.missing)
        ]
    if not indices:
        return None
    job_id, logs = _submit(job.config, options, job.render(options, n_shares, indices))
    return Submission(job_id, len(indices), n_shares, n_missing, logs)


def _check_cluster(job: Job, options: ArrayOptions) -> int:
    """Raise an error if Slurm would reject a job, before hours of preparation; return the maximum number of tasks."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "Submitting failed for Slurm: this machine does not have the program sbatch. Submit on a "
            "login node of the cluster, or print the batch file with --dry-run."
        )
    max_tasks = _read_max_tasks()
    job.render(options, 1, [1])
    return max_tasks


def _submit(config: SweepConfig | TrainingConfig, options: ArrayOptions, batch_file: str) -> tuple[str, str]:
    """Submit a batch file; return the id of its array and the pattern of the log files' paths."""
    folder = config.results.absolute() / SLURM_FOLDER
    make_folder(folder)
    script = folder / "array.sbatch"
    write_text(script, batch_file)
    advice = "Correct the option named in the message, then submit again."
    if task_resources(options, config.execution)[0] is not None:
        advice += " On a cluster without GPUs: --gpus-per-task 0."
    output = _run_slurm("sbatch", "--parsable", str(script), seconds=_SUBMIT_TIMEOUT_SECONDS, advice=advice)
    match = re.search(r"^(\d+)(?:;\S+)?$", output.strip(), re.MULTILINE)
    if match is None:
        raise InputError(
            f"Submitting failed for {script}: expected a job id from sbatch, got {output.strip()!r}. "
            "Find the job with: squeue --me"
        )
    return match[1], f"{folder}/{match[1]}_*.log"


def _count_shares(options: ArrayOptions, n_bundles: int, max_tasks: int, say: Callable[[str], None]) -> int:
    """Return the requested number of shares, limited by the number of bundles and Slurm's array size."""
    if options.tasks is not None and options.tasks > max_tasks:
        raise ConfigError(
            f"Submitting failed for --tasks {options.tasks}: expected at most {max_tasks}, because Slurm's "
            f"MaxArraySize is {max_tasks + 1}. Request fewer tasks; each is requeued until its work is done."
        )
    n_shares = min(options.tasks or DEFAULT_TASKS, max_tasks)
    if options.tasks is not None and n_shares > n_bundles:
        say(f"{n_bundles} tasks instead of {n_shares}: the sweep cannot be divided further.")
    return min(n_shares, n_bundles)


def _read_max_tasks() -> int:
    """Return the maximum number of tasks in an array numbered from 1: Slurm's indices must be below MaxArraySize."""
    advice = (
        "Is Slurm's controller up (scontrol ping), and is this a login node of the cluster? --dry-run does not need "
        "Slurm."
    )
    output = _run_slurm("scontrol", "show", "config", seconds=_QUERY_TIMEOUT_SECONDS, advice=advice)
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", output, re.MULTILINE)
    if match is None:
        return ASSUMED_MAX_ARRAY_SIZE - 1
    max_tasks = int(match[1]) - 1
    if max_tasks < 1:
        raise ConfigError(
            f"Submitting failed for Slurm: the cluster does not permit job arrays (MaxArraySize is {match[1]}). "
            "Run the tasks by hand: robust201 run SWEEP.yaml --share I/N, for each I from 1 to N"
        )
    return max_tasks


def _run_slurm(*command: str, seconds: float, advice: str = "Is this a login node of the cluster?") -> str:
    """Run a Slurm program and return its output; `advice` tells the user what to do if it fails."""
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"Calling Slurm failed for {command[0]}: {error}. Is this a login node of the cluster, and does sinfo "
            "respond? --dry-run does not need Slurm."
        ) from error
    if completed.returncode:
        problem = " ".join((completed.stderr or completed.stdout).split()) or f"exit code {completed.returncode}"
        raise InputError(f"Calling Slurm failed for {' '.join(command)}: the command failed with {problem!r}. {advice}")
    return completed.stdout


@dataclass(frozen=True)
class ArrayTask:
    """The Slurm array task that this process runs."""

    job: str
    index: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ArrayTask":
        """Read the current task from Slurm's environment variables."""
        try:
            return cls(environment["SLURM_ARRAY_JOB_ID"], environment["SLURM_ARRAY_TASK_ID"])
        except KeyError as error:
            raise ConfigError(
                "Reading the command line failed for --slurm-requeue: this process is not a task of a Slurm job array, "
                f"because {error.args[0]} is not set. Remove --slurm-requeue."
            ) from error

    def requeue_if_unfinished(
        self, tally: RunTally, say: Callable[[str], None], *, has_new_states: bool = False
    ) -> None:
        """Requeue this task if it ended because of its time limit and still has work to do.

        A task that finished no work since it started is not requeued, because it could never finish. For training runs,
        `has_new_states` is True if the task saved a state from which its next run can continue.
        """
        if not (tally.stopped_by_time_limit and tally.remaining):
            return
        if not tally.results and not has_new_states:
            say(
                "Not requeued: no work was finished within the time limit. Submit with a longer --time, or a sweep "
                "with a smaller execution.part_minutes."
            )
            return
        # SLURM_JOB_ID cannot be used: for an array's last task, it is the array's id, and would requeue all tasks.
        task = f"{self.job}_{self.index}"
        say(f"The time limit is near; requeueing task {task}.")
        try:
            _run_slurm("scontrol", "requeue", task, seconds=_QUERY_TIMEOUT_SECONDS)
        except InputError as error:
            say(f"{error} The task ends here; submit again to continue.")
