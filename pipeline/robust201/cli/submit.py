"""`robust201 submit`: run a sweep or training YAML on a cluster. One thin function per cluster type."""

import tempfile
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.help_texts import HELP_OPTIONS, add_commands
from robust201.cli.options import AllowCode, load_yaml, reject_options

if TYPE_CHECKING:
    from robust201.submit.slurm import Submission
    from robust201.sweep.config import SweepConfig
    from robust201.sweep.training_config import TrainingConfig

submit_app = typer.Typer(
    name="submit",
    help="Submit a sweep or training YAML to Ray or Slurm.",
    no_args_is_help=True,
    context_settings=HELP_OPTIONS,
)


def ray(
    sweep: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP",
            help="A sweep YAML, a results folder or a training YAML; paths in a YAML are paths on the cluster.",
        ),
    ],
    address: Annotated[
        str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="Dashboard of the Ray head, http://HOST:PORT.")
    ] = "http://127.0.0.1:8265",
    allow_code: AllowCode = False,
) -> None:
    """Run a sweep or training YAML as a job on a Ray cluster; submit again to resume."""
    from robust201.submit import ray_jobs

    config = _read_config(sweep, allow_code)
    with tempfile.TemporaryDirectory() as folder:
        variables = ray_jobs.write_job_folder(config, sweep, Path(folder))
        client = ray_jobs.connect(address)
        job_id = ray_jobs.submit_job(client, config, Path(folder), variables, _run_options(allow_code))
    typer.echo(job_id)
    for line in (
        f"Watch it:  RAY_AUTH_MODE=token ray job logs {job_id} --follow --address {address}",
        f"Cancel it: RAY_AUTH_MODE=token ray job stop {job_id} --address {address}",
        "Submit again to resume; finished work is kept.",
    ):
        console.say(line)


def slurm(
    sweep: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP",
            help="A sweep YAML, a results folder or a training YAML; tasks read the file when they start.",
        ),
    ],
    tasks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of tasks. Default: the largest number that the sweep can be split into, up to 256."
        ),
    ] = None,
    time: Annotated[str | None, typer.Option(help="Time limit per task, in sbatch's format, such as 24:00:00.")] = None,
    gpus_per_task: Annotated[
        str | None,
        typer.Option(help="GPUs per task, as NUMBER or TYPE:NUMBER. Default: 1, or 0 if the YAML has device: cpu."),
    ] = None,
    extra: Annotated[
        list[str] | None,
        typer.Option(help="Additional sbatch option, such as --partition=gpu. Repeatable."),
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="Shell command to run first, such as 'module load cuda'. Repeatable.")
    ] = None,
    print_file: Annotated[
        bool, typer.Option("--print", help="Only print the batch file; read no data and submit nothing.")
    ] = False,
    allow_code: AllowCode = False,
) -> None:
    """Submit a sweep as a Slurm job array; submit again to resume.

    Each task is an independent run on one machine. A training YAML becomes a single task with all requested GPUs.
    """
    from robust201.submit import slurm as slurm_jobs
    from robust201.sweep.config import SweepConfig

    options = slurm_jobs.ArrayOptions(tasks, time, gpus_per_task, tuple(extra or ()), tuple(setup or ()))
    config, run_options = _read_config(sweep, allow_code), _run_options(allow_code)
    is_sweep = isinstance(config, SweepConfig)
    if not is_sweep:
        reject_options("training YAML", tasks=tasks)
    if print_file:
        n_tasks = slurm_jobs.max_tasks(config, options)
        typer.echo(slurm_jobs.render(config, sweep, options, n_tasks, run_options), nl=False)
        return
    submission = slurm_jobs.submit_array(config, sweep, options, run_options, say=console.say)
    if submission is not None:
        path = config.results if is_sweep else sweep
        _show_submission(submission, "evaluation" if is_sweep else "epoch", str(path))
    elif is_sweep:
        console.say(f"Complete. Export the results with: robust201 export {quote(str(config.results))} --out DATASET")
    else:
        console.say("Complete: all snapshots are in the store.")


def _show_submission(submission: "Submission", noun: str, path: str) -> None:
    missing, job = console.format_count(submission.n_missing, noun), submission.job
    typer.echo(job)
    for line in (
        f"Submitted {missing} as array {job}: {console.format_count(submission.n_tasks, 'task')}.",
        f"Watch it:  squeue --job {job}; robust201 status {quote(path)}; logs: {submission.logs}",
        f"Cancel it: scancel {job}",
        "Submit again to resume; finished work is kept.",
    ):
        console.say(line)


def _read_config(path: Path, allow_code: bool) -> "SweepConfig | TrainingConfig":
    """Load a sweep or training YAML, and check that it can run on other machines."""
    from robust201.run.environment import require_explicit_device
    from robust201.run.user_code import announce_code

    config = load_yaml(path)
    require_explicit_device(config.execution)
    announce_code(config, allowed=allow_code, say=console.say)
    return config


def _run_options(allow_code: bool) -> tuple[str, ...]:
    return ("--allow-code",) if allow_code else ()


add_commands(submit_app, ray, slurm, prefix="submit")
