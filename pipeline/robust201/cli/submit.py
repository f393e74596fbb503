"""`robust201 submit`: hand a sweep or trainings to a cluster. One thin function a kind of cluster."""

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.help_texts import HELP_OPTIONS, AllowCode, epilog
from robust201.cli.submit_slurm import slurm
from robust201.cli.sweeps import Architectures, Datasets, Keys, Limit, load_sweep, make_filters, narrowing_words
from robust201.cli.trainings import Recipes, refuse_options, refuse_recipes, select_trainings, selection_words
from robust201.core.errors import ConfigError, EvaluationError

submit_app = typer.Typer(
    name="submit",
    help="Submit a sweep or trainings to a cluster: ray or slurm.",
    no_args_is_help=True,
    context_settings=HELP_OPTIONS,
)


def ray(
    sweep: Annotated[
        Path | None,
        typer.Argument(
            metavar="SWEEP",
            help="A sweep YAML, results folder or training YAML; its paths are paths on the cluster.",
        ),
    ] = None,
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    recipes: Recipes = None,
    limit: Limit = None,
    address: Annotated[
        str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="The head's dashboard, http://HOST:PORT.")
    ] = "http://127.0.0.1:8265",
    detach: Annotated[bool, typer.Option("--detach", help="Return once the job is accepted.")] = False,
    job_id: Annotated[
        str | None, typer.Option(help="Id of the new job; default: the sweep's name and a suffix.")
    ] = None,
    follow: Annotated[str | None, typer.Option(help="Submit nothing; follow the job with this id.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept an address on another machine without a token.")
    ] = False,
    allow_code: AllowCode = None,
) -> None:
    """Run a sweep, or trainings, as a job on a Ray cluster and follow it to its end; submit again to resume."""
    from robust201.planning.code_consent import announce_code, consent_words
    from robust201.planning.loading import is_training, load_training
    from robust201.runtime.training_run import check_device_is_known
    from robust201.submission import ray_jobs
    from robust201.submission.access import check_access, find_token
    from robust201.submission.shipment import pack, prepare_shipment

    if (sweep is None) == (follow is None):
        raise ConfigError(
            "Reading the command line failed for robust201 submit ray: expected a sweep YAML or --follow, got "
            f"{'neither' if sweep is None else 'both'}. See: robust201 submit ray --help"
        )
    access = check_access(address, find_token(), insecure=insecure)
    if access.is_readable_on_the_way:
        console.say(f"The token crosses the network unencrypted to {access.address}; a tunnel or https would hide it.")
    if sweep is not None:
        if is_training(sweep):
            refuse_options(architectures=architectures, datasets=datasets, keys=keys)
            trainings = load_training(sweep)
            check_device_is_known(trainings)
            select_trainings(trainings, recipes, limit)
            narrowing = selection_words(recipes, limit)
        else:
            refuse_recipes(recipes)
            config = load_sweep(sweep)
            make_filters(config, architectures, datasets, keys, limit).check(config)
            narrowing = narrowing_words(architectures, datasets, keys, limit)
        # The head checks files that were not named here: they may lie in data that this machine does not see.
        shipment = prepare_shipment(
            sweep, os.environ, (*narrowing, *consent_words(path.absolute() for path in allow_code or ()))
        )
        announce_code(shipment.config, sweep, allowed=allow_code or (), say=console.say)
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "robust201-job.zip"
            pack(shipment, archive)
            client = ray_jobs.connect(access)
            job = ray_jobs.submit_job(client, shipment, archive, job_id)
        typer.echo(job)
        console.say("If the job or the cluster dies, submit again: finished work is kept.")
    else:
        client, job = ray_jobs.connect(access), str(follow)
        ray_jobs.check_job(client, job)
    if detach and follow is None:
        console.say(f"Follow it: robust201 submit ray --follow {job} --address {access.address}")
        return
    raise typer.Exit(_follow_ray_job(client, job, access.address))


def _follow_ray_job(client: Any, job: str, address: str) -> int:
    """Write a job's log as it comes; give its exit code, or 3 where the user left before the end."""
    from robust201.submission import ray_jobs

    try:
        ended = ray_jobs.follow(client, job, lambda text: typer.echo(text, nl=False))
    except KeyboardInterrupt:
        console.say(
            f"The job continues. Follow it: robust201 submit ray --follow {job} --address {address}. "
            f"Stop it: RAY_AUTH_MODE=token ray job stop {job} --address {address}"
        )
        return EvaluationError.exit_code
    code = ray_jobs.exit_code_of(ended)
    if code:
        console.say(f"{job} ended: {ray_jobs.describe_end(ended)}. Finished work is kept; submit again to resume.")
    return code


for verb in (ray, slurm):
    submit_app.command(epilog=epilog(f"submit {verb.__name__}"))(verb)
