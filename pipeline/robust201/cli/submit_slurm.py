"""`robust201 submit slurm`: a sweep as a job array, or trainings as an array of one task."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.help_texts import AllowCode
from robust201.cli.sweeps import Architectures, Datasets, Keys, Limit, load_sweep, make_filters, narrowing_words
from robust201.cli.trainings import Recipes, refuse_options, refuse_recipes, select_trainings, selection_words

if TYPE_CHECKING:
    from robust201.submission.slurm import Submission


def slurm(
    sweep: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP",
            help="A sweep YAML, results folder or training YAML; tasks read it again when they start.",
        ),
    ],
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    recipes: Recipes = None,
    limit: Limit = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Results folder, or the store of trainings; overrides the YAML's.")
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            help="Number of tasks to divide the sweep among; default: as many as it can be divided into, up to 256."
        ),
    ] = None,
    max_parallel: Annotated[int | None, typer.Option(help="Maximum number of tasks running at once.")] = None,
    time: Annotated[str | None, typer.Option(help="Time limit of a task in sbatch's format: 24:00:00.")] = None,
    gpus_per_task: Annotated[
        str | None, typer.Option(help="NUMBER or TYPE:NUMBER; default: 1, or 0 with device: cpu.")
    ] = None,
    cpus_per_task: Annotated[int | None, typer.Option(help="CPUs per task; default: what its workers need.")] = None,
    mem: Annotated[str | None, typer.Option(help="Memory per task, such as 16G.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition or partitions.")] = None,
    account: Annotated[str | None, typer.Option(help="Account to charge.")] = None,
    extra: Annotated[
        list[str] | None, typer.Option(help="An sbatch option to add verbatim, such as --constraint=a100; repeatable.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="A shell line to run first, such as 'module load cuda'; repeatable.")
    ] = None,
    drain_seconds: Annotated[
        int | None,
        typer.Option(
            help="Seconds before its limit at which a task winds down; default: 600, or a quarter of a shorter limit."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch file; read no data and submit nothing.")
    ] = False,
    allow_code: AllowCode = None,
) -> None:
    """Submit a sweep as a Slurm job array of independent workers on single machines; submit again to resume.

    A training YAML becomes one task, which trains on all GPUs that it has.
    """
    from robust201.submission import slurm as slurm_jobs
    from robust201.submission.sbatch_file import ArrayOptions

    options = ArrayOptions(
        tasks=tasks,
        max_parallel=max_parallel,
        time=time,
        gpus_per_task=gpus_per_task,
        cpus_per_task=cpus_per_task,
        mem=mem,
        partition=partition,
        account=account,
        extra=tuple(extra or ()),
        setup=tuple(setup or ()),
        drain_seconds=drain_seconds,
    )
    from robust201.core.user_code import hash_file
    from robust201.planning.code_consent import announce_code, consent_words
    from robust201.planning.inputs import kept_code
    from robust201.planning.loading import is_training, load_training

    if is_training(sweep):
        refuse_options(
            architectures=architectures, datasets=datasets, keys=keys, tasks=tasks, max_parallel=max_parallel
        )
        trainings = load_training(sweep, store=out)
        wanted = select_trainings(trainings, recipes, limit)
        announce_code(trainings, sweep, allowed=allow_code or (), say=console.say)
        files = (path.absolute() for path in trainings.code_files().values())
        words = (*selection_words(recipes, limit), *consent_words(files))
        if dry_run:
            typer.echo(slurm_jobs.render_dry_trainings(trainings, sweep, options, words), nl=False)
            return
        submitted = slurm_jobs.submit_trainings(trainings, sweep, options, wanted, words, say=console.say)
        if submitted is None:
            console.say("Nothing is missing: all snapshots are in the store.")
            return
        # While the task is queued, there is no run whose status the store could give.
        _show_submission(submitted, "snapshot", str(sweep if out is None else trainings.store))
        return
    refuse_recipes(recipes)
    config = load_sweep(sweep, results=out)
    filters = make_filters(config, architectures, datasets, keys, limit)
    filters.check(config)
    announce_code(config, sweep, allowed=allow_code or (), say=console.say)
    # Tasks execute copies, which keep the content that is agreed to here while the files are edited.
    copies = (kept_code(config.results.absolute(), hash_file(path)) for path in config.code_files().values())
    words = (*narrowing_words(architectures, datasets, keys, limit), *consent_words(copies))
    selection = slurm_jobs.Narrowing(filters, words)
    if dry_run:
        typer.echo(slurm_jobs.render_dry(config, sweep, options, selection, say=console.say), nl=False)
        return
    submitted = slurm_jobs.submit_array(config, sweep, options, selection, say=console.say)
    if submitted is None:
        console.say(f"Nothing is missing. Export it with: robust201 export {quote(str(config.results))} --out DATASET")
        return
    _show_submission(submitted, "evaluation", str(config.results))


def _show_submission(submitted: "Submission", noun: str, place: str) -> None:
    typer.echo(submitted.job)
    finished = submitted.n_shares - submitted.n_tasks
    what = console.show_count(submitted.n_tasks, "task") + (
        f"; {finished} more would have nothing to do" if finished else ""
    )
    for line in (
        f"Submitted {console.show_count(submitted.n_missing, noun)} as array {submitted.job}: {what}.",
        f"Watch it:  squeue --job {submitted.job}; robust201 status {quote(place)}; logs: {submitted.logs}",
        f"Cancel it: scancel {submitted.job}",
        "Submit again to resume; finished work is kept.",
    ):
        console.say(line)
