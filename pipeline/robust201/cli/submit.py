"""`robust201 submit`: run a sweep or training plan on a cluster. One thin function per cluster type."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.help_texts import HELP_OPTIONS, epilog
from robust201.cli.options import (
    AllowCode,
    Architectures,
    Datasets,
    Keys,
    Recipes,
    load_sweep,
    make_filters,
    option_argv,
    reject_options,
    select_trainings,
)
from robust201.cli.single_options import SingleOptionsCommand
from robust201.core.errors import ConfigError, EvaluationError

if TYPE_CHECKING:
    from robust201.submission.slurm import Job, Submission

submit_app = typer.Typer(
    name="submit",
    help="Submit a sweep or training YAML to a cluster: ray or slurm.",
    no_args_is_help=True,
    context_settings=HELP_OPTIONS,
)


def ray(
    sweep: Annotated[
        Path | None,
        typer.Argument(
            metavar="SWEEP",
            help="A sweep YAML, a results folder or a training YAML; paths in a YAML are paths on the cluster.",
        ),
    ] = None,
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    recipes: Recipes = None,
    address: Annotated[
        str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="Dashboard of the Ray head, http://HOST:PORT.")
    ] = "http://127.0.0.1:8265",
    detach: Annotated[bool, typer.Option("--detach", help="Return as soon as the job is accepted.")] = False,
    follow: Annotated[str | None, typer.Option(help="Only show the log of the submitted job with this ID.")] = None,
    allow_code: AllowCode = False,
) -> None:
    """Run a sweep or training YAML as a job on a Ray cluster, and show its log; submit again to resume."""
    from robust201.runtime.training_run import require_explicit_device
    from robust201.submission import ray_jobs
    from robust201.submission.access import check_access, find_token
    from robust201.submission.shipment import pack, prepare_shipment

    if (sweep is None) == (follow is None):
        raise ConfigError(
            "Reading the command line failed for robust201 submit ray: expected either SWEEP or --follow, got "
            f"{'neither' if sweep is None else 'both'}. Use exactly one of them."
        )
    access = check_access(address, find_token())
    if access.sends_token_in_plain_text:
        console.say(f"The token is sent unencrypted to {access.address}. Use a tunnel or https to protect it.")
    if sweep is not None:
        job = _read_job(sweep, architectures, datasets, keys, recipes, allow_code)
        if job.trainings is not None:
            require_explicit_device(job.trainings)
        shipment = prepare_shipment(job.config, sweep, os.environ, job.filter_options)
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "robust201-job.zip"
            pack(shipment, archive)
            client = ray_jobs.connect(access)
            job_id = ray_jobs.submit_job(client, shipment, archive)
        typer.echo(job_id)
        console.say("If the job or the cluster dies, submit the sweep again. Finished work is kept.")
    else:
        client, job_id = ray_jobs.connect(access), str(follow)
        ray_jobs.check_job(client, job_id)
    if detach and follow is None:
        console.say(f"Follow the job: robust201 submit ray --follow {job_id} --address {access.address}")
        return
    raise typer.Exit(_follow_ray_job(client, job_id, access.address))


def _follow_ray_job(client: Any, job_id: str, address: str) -> int:
    """Print a job's log as it grows, and return the job's exit code, or 3 if the user stopped watching."""
    from robust201.submission import ray_jobs

    try:
        job_end = ray_jobs.follow(client, job_id, lambda text: typer.echo(text, nl=False))
    except KeyboardInterrupt:
        console.say(
            f"The job continues. Follow it with: robust201 submit ray --follow {job_id} --address {address}. "
            f"Stop it with: RAY_AUTH_MODE=token ray job stop {job_id} --address {address}"
        )
        return EvaluationError.exit_code
    code = ray_jobs.exit_code_of(job_end)
    if code:
        console.say(f"{job_id} ended: {ray_jobs.describe_end(job_end)}. Finished work is kept; submit again to resume.")
    return code


def slurm(
    sweep: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP",
            help="A sweep YAML, a results folder or a training YAML; tasks read the file when they start.",
        ),
    ],
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    recipes: Recipes = None,
    tasks: Annotated[
        int | None,
        typer.Option(help="Number of tasks. Default: the largest number that the sweep can be split into, up to 256."),
    ] = None,
    max_parallel: Annotated[int | None, typer.Option(help="Maximum number of tasks that run at the same time.")] = None,
    time: Annotated[str | None, typer.Option(help="Time limit per task, in sbatch's format, such as 24:00:00.")] = None,
    gpus_per_task: Annotated[
        str | None,
        typer.Option(help="GPUs per task, as NUMBER or TYPE:NUMBER. Default: 1, or 0 if the YAML has device: cpu."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Partitions, separated by commas.")] = None,
    extra: Annotated[
        list[str] | None, typer.Option(help="Additional sbatch option, such as --account=me or --mem=16G. Repeatable.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="Shell command to run first, such as 'module load cuda'. Repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the batch file; read no data and submit nothing.")
    ] = False,
    allow_code: AllowCode = False,
) -> None:
    """Submit a sweep as a Slurm job array; submit again to resume.

    Each task is an independent run on one machine. A training YAML becomes a single task with all requested GPUs.
    """
    from robust201.submission import slurm as slurm_jobs
    from robust201.submission.sbatch_file import ArrayOptions

    options = ArrayOptions(
        tasks=tasks,
        max_parallel=max_parallel,
        time=time,
        gpus_per_task=gpus_per_task,
        partition=partition,
        extra=tuple(extra or ()),
        setup=tuple(setup or ()),
    )
    job = _read_job(sweep, architectures, datasets, keys, recipes, allow_code)
    config, trainings = job.config, job.trainings
    if trainings is not None:
        reject_options("training YAML", tasks=tasks, max_parallel=max_parallel)
    if dry_run:
        typer.echo(slurm_jobs.render_dry_run(job, options, say=console.say), nl=False)
        return
    submission = slurm_jobs.submit_array(job, options, say=console.say)
    if submission is not None and trainings is not None:
        _show_submission(submission, "snapshot", str(sweep))  # until the task starts, only the YAML shows the runs
    elif submission is not None:
        _show_submission(submission, "evaluation", str(config.results))
    elif trainings is not None:
        console.say("The training runs are complete: all snapshots are in the store.")
    else:
        console.say(
            "The sweep is complete. Export the results with: "
            f"robust201 export {quote(str(config.results))} --out DATASET"
        )


def _show_submission(submission: "Submission", noun: str, path: str) -> None:
    typer.echo(submission.job)
    n_finished = submission.n_shares - submission.n_tasks
    task_counts = console.format_count(submission.n_tasks, "task") + (
        f"; {n_finished} more are already complete" if n_finished else ""
    )
    for line in (
        f"Submitted {console.format_count(submission.n_missing, noun)} as array {submission.job}: {task_counts}.",
        f"Watch it:  squeue --job {submission.job}; robust201 status {quote(path)}; logs: {submission.logs}",
        f"Cancel it: scancel {submission.job}",
        "Submit again to resume; finished work is kept.",
    ):
        console.say(line)


def _read_job(
    path: Path,
    architectures: str | None,
    datasets: str | None,
    keys: str | None,
    recipes: str | None,
    allow_code: bool,
) -> "Job":
    """Load the selected part of a sweep or training YAML, and check consent to execute its Python files."""
    from robust201.planning.loading import is_training_yaml, load_training
    from robust201.runtime.user_code import announce_code
    from robust201.submission.slurm import Job

    argv = option_argv(architectures=architectures, datasets=datasets, keys=keys, recipes=recipes)
    if is_training_yaml(path):
        reject_options("training YAML", architectures=architectures, datasets=datasets, keys=keys)
        trainings = load_training(path)
        job = Job(trainings, path, argv, selection=select_trainings(trainings, recipes))
    else:
        reject_options("sweep", recipes=recipes)
        config = load_sweep(path)
        job = Job(config, path, argv, filters=make_filters(config, architectures, datasets, keys))
        job.filters.check(config)
    announce_code(job.config, allowed=allow_code, say=console.say)
    return replace(job, filter_options=(*job.filter_options, "--allow-code")) if allow_code else job


for function in (ray, slurm):
    submit_app.command(cls=SingleOptionsCommand, epilog=epilog(f"submit {function.__name__}"))(function)
