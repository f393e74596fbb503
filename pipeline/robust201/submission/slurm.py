"""A sweep as a job array of Slurm: independent tasks on single machines, each of which computes a share.

The tasks need no driver, no lease and no network between them. The array is submitted from wherever sbatch is and the
results folder is seen; the sweep is checked and its plan written before that. Trainings are an array of one task, since
one driver alone enters snapshots in the manifest of their store.
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
    check_device_is_known,
    prepare_trainings,
)
from robust201.submission.sbatch_file import SLURM_FOLDER, ArrayOptions, render, resources

DEFAULT_TASKS = 256
"""Tasks of an array of which nobody said how many: enough to fill most clusters, few enough for any queue."""

ASSUMED_MAX_ARRAY_SIZE = 1001
"""Slurm's default of MaxArraySize (slurm.conf(5)), taken where no Slurm is there to ask."""

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
        place: the YAML or results folder, which is read again when the job starts.
        words: options of `run` or `train` that say what is selected.
        filters: what is selected of a sweep.
        selection: what is selected of trainings.
    """

    config: SweepConfig | TrainingConfig
    place: Path
    words: tuple[str, ...] = ()
    filters: Filters = EVERYTHING
    selection: TrainingSelection = ALL_TRAININGS

    @property
    def trainings(self) -> TrainingConfig | None:
        return self.config if isinstance(self.config, TrainingConfig) else None

    def render(self, options: ArrayOptions, n_shares: int, indices: Sequence[int]) -> str:
        return render(self.config, self.place, options, n_shares, indices, self.words)


def render_dry(job: Job, options: ArrayOptions, *, say: Callable[[str], None]) -> str:
    """Write out the batch file of a job; nothing is read but the YAML, and nothing is submitted."""
    if isinstance(job.config, TrainingConfig):
        check_device_is_known(job.config)
        return job.render(options, 1, [1])
    limit = ASSUMED_MAX_ARRAY_SIZE - 1
    with suppress(InputError):  # where no Slurm answers, its default has to do
        limit = _read_array_limit()
    plan = job.filters.narrow(make_plan(job.config, assumed_facts(job.config)))
    n_shares = _count_shares(options, len(all_bundles(plan)), limit, say)
    return job.render(options, n_shares, range(1, n_shares + 1))


def submit_array(job: Job, options: ArrayOptions, *, say: Callable[[str], None]) -> Submission | None:
    """Prepare a sweep or plan trainings, and hand what is missing of them to Slurm; None if nothing is."""
    if isinstance(job.config, TrainingConfig):
        check_device_is_known(job.config)
        _check_cluster(job, options)
        plan = prepare_trainings(job.config, job.selection, say)
        n_missing = plan.n_evaluations - plan.n_done
        n_shares, indices = 1, [1] if n_missing else []
    else:
        limit = _check_cluster(job, options)
        prepared = prepare_sweep(job.config, filters=job.filters, say=say)
        divided = all_bundles(prepared.plan)
        n_missing = prepared.plan.n_evaluations - prepared.done
        n_shares = _count_shares(options, len(divided), limit, say)
        shares = (Share(index, n_shares) for index in range(1, n_shares + 1))
        indices = [share.index for share in shares if missing_bundles(share.bundles(divided), prepared.missing)]
    if not indices:
        return None
    number, logs = _submit(job.config, options, job.render(options, n_shares, indices))
    return Submission(number, len(indices), n_shares, n_missing, logs)


def _check_cluster(job: Job, options: ArrayOptions) -> int:
    """Refuse what Slurm would, before hours of hashing and making images; give the largest number of tasks."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "Submitting failed for Slurm: expected the program sbatch, got none on this machine. Submit on a login "
            "node of the cluster, or look at the batch file with --dry-run."
        )
    limit = _read_array_limit()
    job.render(options, 1, [1])
    _check_gpus(job.config, options)
    return limit


def _submit(config: SweepConfig | TrainingConfig, options: ArrayOptions, text: str) -> tuple[str, str]:
    """Hand a batch file to Slurm; give the id of its array, and the paths of its logs."""
    folder = config.results.absolute() / SLURM_FOLDER
    make_folder(folder)
    script = folder / "array.sbatch"
    write_text(script, text)
    advice = "Correct the option that it names, and submit again."
    if resources(options, config.execution)[0] is not None:
        advice += " On a cluster without GPUs: --gpus-per-task 0."
    answer = _ask("sbatch", "--parsable", str(script), seconds=_SUBMIT_SECONDS, advice=advice)
    match = re.search(r"^(\d+)(?:;\S+)?$", answer.strip(), re.MULTILINE)
    if match is None:
        raise InputError(
            f"Submitting failed for {script}: expected the id of a job from sbatch, got {answer.strip()!r}. "
            "Look for the job with: squeue --me"
        )
    return match[1], f"{folder}/{match[1]}_*.log"


def _count_shares(options: ArrayOptions, n_bundles: int, limit: int, say: Callable[[str], None]) -> int:
    """Number of shares: as asked for, but not more than there are bundles and than an array may have."""
    if options.tasks is not None and options.tasks > limit:
        raise ConfigError(
            f"Submitting failed for --tasks {options.tasks}: expected at most {limit}, because Slurm's MaxArraySize is "
            f"{limit + 1}, got more. Take fewer tasks; each is requeued until its work is done."
        )
    wanted = min(options.tasks or DEFAULT_TASKS, limit)
    if options.tasks is not None and wanted > n_bundles:
        say(f"{n_bundles} tasks instead of {wanted}: the sweep cannot be divided further.")
    return min(wanted, n_bundles)


def _check_gpus(config: SweepConfig | TrainingConfig, options: ArrayOptions) -> None:
    """Refuse to request GPUs in a partition without any; do nothing if Slurm does not answer.

    SBATCH_* variables take precedence over the options in a batch file (sbatch(1)).
    """
    if not _asks_for_gpus(config, options) or shutil.which("sinfo") is None:
        return
    partition = os.environ.get("SBATCH_PARTITION")
    if not partition and any(re.match(r"(#SBATCH\s+)?(-p|--partition)", line.strip()) for line in options.extra):
        return  # the last one counts, and this one is verbatim
    try:
        answer = _ask("sinfo", "--noheader", "--format=%P|%G", seconds=_ASK_SECONDS)
    except InputError:  # sbatch, which is asked next, has the last word
        return
    rows = [line.partition("|") for line in answer.split()]
    names = partition or options.partition
    asked = set(names.split(",")) if names else None
    default = [name for name, _, _ in rows if name.endswith("*")]
    wanted = asked or {name.rstrip("*") for name in default}
    held = [gres for name, _, gres in rows if name.rstrip("*") in wanted]
    if held and not any("gpu" in gres.casefold() for gres in held):
        where = "partition " + ",".join(sorted(wanted))
        of_environment = [name for name in _GPU_VARIABLES if os.environ.get(name)]
        without = f"{' and '.join(of_environment)} unset and " if of_environment else ""
        raise ConfigError(
            f"Submitting failed for {where}: expected GPUs, got nodes without any, as sinfo says. Name another by "
            f"{'SBATCH_PARTITION' if partition else '--partition'}, or compute on CPUs with {without}--gpus-per-task 0."
        )


def _asks_for_gpus(config: SweepConfig | TrainingConfig, options: ArrayOptions) -> bool:
    gres = os.environ.get("SBATCH_GRES") or resources(options, config.execution)[0] or ""
    per_task = os.environ.get("SBATCH_GPUS_PER_TASK") or "0"
    by_gres = any(item.startswith("gpu") and not item.endswith(":0") for item in gres.split(","))
    return by_gres or per_task.rpartition(":")[2] != "0"


def _read_array_limit() -> int:
    """Ask Slurm how many tasks an array numbered from 1 may have: its indices stay below MaxArraySize."""
    advice = "Is its controller up (scontrol ping), and is this a login node of the cluster? --dry-run needs no Slurm."
    answer = _ask("scontrol", "show", "config", seconds=_ASK_SECONDS, advice=advice)
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", answer, re.MULTILINE)
    if match is None:
        return ASSUMED_MAX_ARRAY_SIZE - 1
    limit = int(match[1]) - 1
    if limit < 1:
        raise ConfigError(
            f"Submitting failed for Slurm: expected job arrays, got MaxArraySize {match[1]}, which forbids them. "
            "Run the tasks by hand: robust201 run SWEEP.yaml --share 1/N"
        )
    return limit


def _ask(*command: str, seconds: float, advice: str = "Is this a login node of the cluster?") -> str:
    """Run one of Slurm's programs, `advice` being what to do where it refuses."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"Asking Slurm failed for {command[0]}: expected an answer, got {error}. "
            "Is this a login node of the cluster, and does sinfo answer? --dry-run needs no Slurm."
        ) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise InputError(f"Asking Slurm failed for {' '.join(command)}: expected it to accept, got {said!r}. {advice}")
    return done.stdout


@dataclass(frozen=True)
class ArrayTask:
    """The task of a Slurm job array that this process is."""

    job: str
    index: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ArrayTask":
        """Read which task this is from what Slurm puts into its environment."""
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
        """Put this task back into the queue if its time limit alone has ended it.

        A task that finished nothing since it began is not queued again: it would go on like that for ever. For
        trainings, `has_new_states` says whether it saved a state, from which its next run continues.
        """
        if not (tally.time_limit and tally.remaining):
            return
        if not tally.evaluations and not has_new_states:
            say(
                "Not requeued: nothing was finished within the time limit. Submit with a longer --time, or a sweep "
                "with a smaller execution.part_minutes."
            )
            return
        # By array and index: the last task of an array has the id of the array itself, which would name all of them.
        task = f"{self.job}_{self.index}"
        say(f"The time limit is near; putting task {task} back into the queue.")
        try:
            _ask("scontrol", "requeue", task, seconds=_ASK_SECONDS)
        except InputError as error:
            say(f"{error} The task ends here; submit again to go on.")
