"""Run a sweep as a Slurm job array of independent tasks on single machines, each of which computes a share.

The tasks need no driver, lease or network between them. The array is submitted from any machine that has sbatch and
the results folder, after the sweep is checked and its plan written. Trainings are an array of one task, because only
one driver may add snapshots to the manifest of their store.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from robust201.core.errors import ConfigError, InputError
from robust201.core.files import make_folder, write_text
from robust201.planning.config import SweepConfig
from robust201.planning.filters import EVERYTHING, Filters
from robust201.planning.plan import assumed_facts, make_plan
from robust201.planning.shares import Share, all_bundles, missing_bundles
from robust201.planning.training_config import TrainingConfig
from robust201.runtime.scheduler import RunTally
from robust201.runtime.sweep import prepare_sweep
from robust201.runtime.training_run import (
    ALL_TRAININGS,
    TrainingSelection,
    prepare_trainings,
    require_explicit_device,
)
from robust201.submission.sbatch_file import SLURM_FOLDER, ArrayOptions, render, resources

DEFAULT_TASKS = 256
"""Number of tasks without --tasks: enough to fill most clusters, few enough for most queue limits."""

ASSUMED_MAX_ARRAY_SIZE = 1001
"""Slurm's default of MaxArraySize (slurm.conf(5)), used if no Slurm is installed."""

_GPU_VARIABLES = ("SBATCH_GRES", "SBATCH_GPUS_PER_TASK")
_ASK_SECONDS = 60
_SUBMIT_SECONDS = 300


@dataclass(frozen=True)
class Submission:
    """An array that Slurm accepted."""

    job: str
    n_tasks: int
    n_shares: int
    n_missing: int
    logs: str


@dataclass(frozen=True)
class Job:
    """A sweep or trainings for a cluster.

    Attributes:
        source: the YAML or results folder, which is read again when the job starts.
        words: the options of `run` or `train` for the selection below.
        filters: the selection from a sweep.
        selection: the selection from trainings.
    """

    config: SweepConfig | TrainingConfig
    source: Path
    words: tuple[str, ...] = ()
    filters: Filters = EVERYTHING
    selection: TrainingSelection = ALL_TRAININGS

    @property
    def trainings(self) -> TrainingConfig | None:
        return self.config if isinstance(self.config, TrainingConfig) else None

    def render(self, options: ArrayOptions, n_shares: int, indices: Sequence[int]) -> str:
        return render(self.config, self.source, options, n_shares, indices, self.words)


def render_dry(job: Job, options: ArrayOptions, *, say: Callable[[str], None]) -> str:
    """Return the batch file of a job without submitting it; only the YAML is read."""
    if isinstance(job.config, TrainingConfig):
        require_explicit_device(job.config)
        return job.render(options, 1, [1])
    limit = ASSUMED_MAX_ARRAY_SIZE - 1
    with suppress(InputError):  # Without Slurm, its default is assumed.
        limit = _read_array_limit()
    plan = job.filters.narrow(make_plan(job.config, assumed_facts(job.config)))
    n_shares = _count_shares(options, len(all_bundles(plan)), limit, say)
    return job.render(options, n_shares, range(1, n_shares + 1))


def submit_array(job: Job, options: ArrayOptions, *, say: Callable[[str], None]) -> Submission | None:
    """Prepare a sweep or trainings and submit the missing work to Slurm; return None if nothing is missing."""
    if isinstance(job.config, TrainingConfig):
        require_explicit_device(job.config)
        _check_cluster(job, options)
        plan = prepare_trainings(job.config, job.selection, say)
        n_missing = plan.n_evaluations - plan.n_done
        n_shares, indices = 1, [1] if n_missing else []
    else:
        limit = _check_cluster(job, options)
        prepared = prepare_sweep(job.config, filters=job.filters, say=say)
        bundles = all_bundles(prepared.plan)
        n_missing = prepared.plan.n_evaluations - prepared.done
        n_shares = _count_shares(options, len(bundles), limit, say)
        shares = (Share(index, n_shares) for index in range(1, n_shares + 1))
        indices = [share.index for share in shares if missing_bundles(share.bundles(bundles), prepared.missing)]
    if not indices:
        return None
    job_id, logs = _submit(job.config, options, job.render(options, n_shares, indices))
    return Submission(job_id, len(indices), n_shares, n_missing, logs)


def _check_cluster(job: Job, options: ArrayOptions) -> int:
    """Reject what Slurm would reject before hours of preparation, and return the largest number of tasks."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "Submitting failed for Slurm: expected the program sbatch, which is not on this machine. Submit on a "
            "login node of the cluster, or print the batch file with --dry-run."
        )
    limit = _read_array_limit()
    job.render(options, 1, [1])
    _check_gpus(job.config, options)
    return limit


def _submit(config: SweepConfig | TrainingConfig, options: ArrayOptions, text: str) -> tuple[str, str]:
    """Submit a batch file; return the id of its array and the pattern of its log files."""
    folder = config.results.absolute() / SLURM_FOLDER
    make_folder(folder)
    script = folder / "array.sbatch"
    write_text(script, text)
    advice = "Correct the named option, then submit again."
    if resources(options, config.execution)[0] is not None:
        advice += " On a cluster without GPUs: --gpus-per-task 0."
    output = _run_slurm("sbatch", "--parsable", str(script), seconds=_SUBMIT_SECONDS, advice=advice)
    match = re.search(r"^(\d+)(?:;\S+)?$", output.strip(), re.MULTILINE)
    if match is None:
        raise InputError(
            f"Submitting failed for {script}: expected a job id from sbatch, got {output.strip()!r}. "
            "Find the job with: squeue --me"
        )
    return match[1], f"{folder}/{match[1]}_*.log"


def _count_shares(options: ArrayOptions, n_bundles: int, limit: int, say: Callable[[str], None]) -> int:
    """Return the requested number of shares, limited by the number of bundles and Slurm's array size."""
    if options.tasks is not None and options.tasks > limit:
        raise ConfigError(
            f"Submitting failed for --tasks {options.tasks}: expected at most {limit}, because Slurm's MaxArraySize is "
            f"{limit + 1}. Request fewer tasks; each is requeued until its work is done."
        )
    n_shares = min(options.tasks or DEFAULT_TASKS, limit)
    if options.tasks is not None and n_shares > n_bundles:
        say(f"{n_bundles} tasks instead of {n_shares}: the sweep cannot be divided further.")
    return min(n_shares, n_bundles)


def _check_gpus(config: SweepConfig | TrainingConfig, options: ArrayOptions) -> None:
    """Reject a request for GPUs in a partition without any; do nothing if Slurm does not respond.

    SBATCH_* variables take precedence over the options in a batch file (sbatch(1)).
    """
    if not _asks_for_gpus(config, options) or shutil.which("sinfo") is None:
        return
    partition = os.environ.get("SBATCH_PARTITION")
    if not partition and any(re.match(r"(#SBATCH\s+)?(-p|--partition)", line.strip()) for line in options.extra):
        return  # sbatch uses the last of several options, and this text is not parsed here.
    try:
        output = _run_slurm("sinfo", "--noheader", "--format=%P|%G", seconds=_ASK_SECONDS)
    except InputError:  # sbatch, which is called later, checks this too.
        return
    rows = [line.partition("|") for line in output.split()]
    names = partition or options.partition
    selected = set(names.split(",")) if names else None
    default = [name for name, _, _ in rows if name.endswith("*")]
    partitions = selected or {name.rstrip("*") for name in default}
    resource_lists = [gres for name, _, gres in rows if name.rstrip("*") in partitions]
    if resource_lists and not any("gpu" in gres.casefold() for gres in resource_lists):
        place_name = "partition " + ",".join(sorted(partitions))
        set_variables = [name for name in _GPU_VARIABLES if os.environ.get(name)]
        unset = f"{' and '.join(set_variables)} unset and " if set_variables else ""
        raise ConfigError(
            f"Submitting failed for {place_name}: expected GPUs, got nodes without any (from sinfo). Name another by "
            f"{'SBATCH_PARTITION' if partition else '--partition'}, or compute on CPUs with {unset}--gpus-per-task 0."
        )


def _asks_for_gpus(config: SweepConfig | TrainingConfig, options: ArrayOptions) -> bool:
    gres = os.environ.get("SBATCH_GRES") or resources(options, config.execution)[0] or ""
    per_task = os.environ.get("SBATCH_GPUS_PER_TASK") or "0"
    by_gres = any(item.startswith("gpu") and not item.endswith(":0") for item in gres.split(","))
    return by_gres or per_task.rpartition(":")[2] != "0"


def _read_array_limit() -> int:
    """Return how many tasks an array numbered from 1 may have: Slurm's indices must be below MaxArraySize."""
    advice = "Is its controller up (scontrol ping), and is this a login node of the cluster? --dry-run needs no Slurm."
    output = _run_slurm("scontrol", "show", "config", seconds=_ASK_SECONDS, advice=advice)
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", output, re.MULTILINE)
    if match is None:
        return ASSUMED_MAX_ARRAY_SIZE - 1
    limit = int(match[1]) - 1
    if limit < 1:
        raise ConfigError(
            f"Submitting failed for Slurm: expected support for job arrays, got MaxArraySize {match[1]}, which forbids "
            "them. Run the tasks by hand: robust201 run SWEEP.yaml --share 1/N"
        )
    return limit


def _run_slurm(*command: str, seconds: float, advice: str = "Is this a login node of the cluster?") -> str:
    """Run a Slurm program and return its output; `advice` tells the user what to do if it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"Asking Slurm failed for {command[0]}: expected it to run, got {error}. "
            "Is this a login node of the cluster, and does sinfo answer? --dry-run needs no Slurm."
        ) from error
    if result.returncode:
        problem = " ".join((result.stderr or result.stdout).split()) or f"exit code {result.returncode}"
        raise InputError(
            f"Asking Slurm failed for {' '.join(command)}: expected it to succeed, got {problem!r}. {advice}"
        )
    return result.stdout


@dataclass(frozen=True)
class ArrayTask:
    """The Slurm array task that this process runs."""

    job: str
    index: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ArrayTask":
        """Read this task from Slurm's environment variables."""
        try:
            return cls(environment["SLURM_ARRAY_JOB_ID"], environment["SLURM_ARRAY_TASK_ID"])
        except KeyError as error:
            raise ConfigError(
                f"Reading the command line failed for --slurm-requeue: expected a task of a Slurm job array, "
                f"got no {error.args[0]} in the environment. Leave --slurm-requeue out."
            ) from error

    def requeue_if_unfinished(
        self, tally: RunTally, say: Callable[[str], None], *, has_new_states: bool = False
    ) -> None:
        """Requeue this task if it ended only because of its time limit.

        A task that finished nothing since it started is not requeued, since it would repeat that forever. For
        trainings, `has_new_states` tells whether it saved a state from which its next run continues.
        """
        if not (tally.time_limit and tally.remaining):
            return
        if not tally.evaluations and not has_new_states:
            say(
                "Not requeued: no work was finished within the time limit. Submit with a longer --time, or a sweep "
                "with a smaller execution.part_minutes."
            )
            return
        # SLURM_JOB_ID cannot be used: for an array's last task it is the array's id, which stands for all tasks.
        task = f"{self.job}_{self.index}"
        say(f"The time limit is near; requeueing task {task}.")
        try:
            _run_slurm("scontrol", "requeue", task, seconds=_ASK_SECONDS)
        except InputError as error:
            say(f"{error} The task ends here; submit again to continue.")
