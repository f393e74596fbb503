"""`robust201 train`: trains networks, by a training YAML or by the published recipe."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.given_options import given_options
from robust201.cli.help_texts import AllowCode
from robust201.cli.look import print_json
from robust201.cli.sweeps import Limit
from robust201.cli.trainings import select_trainings
from robust201.core.errors import ConfigError
from robust201.core.host import MAX_THREADS

if TYPE_CHECKING:
    from robust201.planning.training_config import TrainingConfig
    from robust201.runtime.training_run import TrainingSelection

_BY_YAML = "With a training YAML"
_BY_OPTIONS = "Without a YAML, by the published recipe"
_ALWAYS = {"trainings", "out"}


def train(
    context: typer.Context,
    trainings: Annotated[
        Path | None, typer.Argument(metavar="TRAININGS", help="A training YAML (docs/training.md).")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The checkpoint store to fill; created if absent.")] = None,
    executor: Annotated[
        str | None, typer.Option(help="inline or ray; overrides the YAML's.", rich_help_panel=_BY_YAML)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of workers; overrides the YAML's.", rich_help_panel=_BY_YAML)
    ] = None,
    recipes: Annotated[
        str | None, typer.Option(help="Only these recipes, separated by commas.", rich_help_panel=_BY_YAML)
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only the first N of the trainings.", rich_help_panel=_BY_YAML),
    ] = None,
    slurm_requeue: Annotated[
        bool,
        typer.Option(
            "--slurm-requeue",
            help="In a Slurm array: requeue the task if it stopped because of its time limit.",
            rich_help_panel=_BY_YAML,
        ),
    ] = False,
    allow_code: AllowCode = False,
    architectures: Annotated[
        str | None,
        typer.Option(help="Indices, ranges or cell strings, separated by commas.", rich_help_panel=_BY_OPTIONS),
    ] = None,
    dataset: Annotated[str, typer.Option(help="Dataset to train on.", rich_help_panel=_BY_OPTIONS)] = "digits",
    path: Annotated[Path | None, typer.Option(help="Path of its images.", rich_help_panel=_BY_OPTIONS)] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="Format of the image files; detected if absent.", rich_help_panel=_BY_OPTIONS),
    ] = None,
    channels: Annotated[
        int, typer.Option(min=1, help="Channels C of the first stage.", rich_help_panel=_BY_OPTIONS)
    ] = 16,
    cells: Annotated[int, typer.Option(min=1, help="Cells N in each stage.", rich_help_panel=_BY_OPTIONS)] = 5,
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the training images.", rich_help_panel=_BY_OPTIONS)
    ] = 200,
    batch_size: Annotated[int, typer.Option(min=2, help="Images per step.", rich_help_panel=_BY_OPTIONS)] = 256,
    learning_rate: Annotated[
        float,
        typer.Option(help="Initial learning rate; falls to 0 along a cosine.", rich_help_panel=_BY_OPTIONS),
    ] = 0.1,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of the initial weights and of all random draws.", rich_help_panel=_BY_OPTIONS),
    ] = 777,
    threads: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_THREADS,
            help="CPU threads; the last bits of the weights depend on them.",
            rich_help_panel=_BY_OPTIONS,
        ),
    ] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.", rich_help_panel=_BY_OPTIONS)] = "cpu",
) -> None:
    """Train networks into a checkpoint store, by a training YAML or by the published recipe.

    After an interruption, run the same YAML again: each training resumes from its last state, with the same weights.
    """
    by_yaml = {"executor", "workers", "recipes", "limit", "allow_code", "slurm_requeue"}
    _check_form(context, by_yaml, trainings)
    if trainings is not None:
        from robust201.planning.loading import load_training

        execution = {"executor": executor, "workers": workers}
        config = load_training(trainings, store=None if out is None else str(out), execution=execution)
        selection = select_trainings(config, recipes, limit)
        raise typer.Exit(_train_by_yaml(trainings, config, selection, allow_code, slurm_requeue))
    if out is None or architectures is None:
        raise ConfigError(
            "Reading the command line failed for robust201 train: expected a training YAML, or --out and "
            "--architectures, got neither. See: robust201 train --help"
        )
    from robust201.images import dataset as dataset_spec
    from robust201.images import load_images
    from robust201.spaces import DEFAULT_SPACE, SPACES
    from robust201.training.published import TrainingSettings, train_into_store
    from robust201.weights.store import CheckpointStore

    spec = dataset_spec(dataset)
    settings = TrainingSettings(
        channels=channels,
        cells=cells,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        flip=spec.horizontal_flip,
        crop_padding=spec.crop_padding,
        seed=seed,
        threads=threads,
        device=device,
    )
    indices = [int(index) for index in SPACES[DEFAULT_SPACE].select(architectures)]
    images = load_images(dataset, form=form, path=path, split="train")
    held_out = load_images(dataset, form=form, path=path, split="test")
    with CheckpointStore(out) as store, console.counting("Training, epochs") as progress:

        def tell(index: int, epoch: int, loss: float, accuracy: float) -> None:
            del loss, accuracy
            progress(indices.index(index) * epochs + epoch, len(indices) * epochs)

        for record in train_into_store(indices, images, held_out, settings, store, progress=tell):
            accuracy = record.training["outcome"]["test_accuracy"] if record.training else float("nan")
            named = f", recipe {record.recipe}" if record.recipe else ""
            typer.echo(f"#{record.index} test accuracy {accuracy:.4f}{named}")


def _check_form(context: typer.Context, by_yaml: set[str], trainings: Path | None) -> None:
    """Refuse options that belong to the other form of the command."""
    for name, option in given_options(context).items():
        if name not in _ALWAYS and (name in by_yaml) != (trainings is not None):
            expected = (
                f"no such option with the training YAML {trainings}" if trainings else "it with a training YAML only"
            )
            raise ConfigError(
                f"Reading the command line failed for {option}: expected {expected}, got one. Leave it out."
            )


def _train_by_yaml(
    place: Path, config: "TrainingConfig", selection: "TrainingSelection", allow_code: bool, slurm_requeue: bool
) -> int:
    from robust201.planning.code_consent import announce_code
    from robust201.runtime.code_check import check_code
    from robust201.runtime.executors import check_device
    from robust201.runtime.share_run import of_one_machine
    from robust201.runtime.training_files import saved_states
    from robust201.runtime.training_run import run_trainings
    from robust201.submission.slurm import ArrayTask

    task = ArrayTask.of(os.environ) if slurm_requeue else None
    if task is not None:
        config = of_one_machine(config)
    before = saved_states(config)
    check_device(config)
    announce_code(config, place, is_allowed=allow_code, say=console.say)
    check_code(config)
    display = console.RunDisplay("Training", "snapshots")
    with display.showing():
        tally = run_trainings(
            config,
            selection=selection,
            on_preview=lambda plan: console.say(
                f"Planned {console.show_count(plan.n_evaluations, 'snapshot')} of "
                f"{console.show_count(len(plan.trainings), 'training')}: {plan.n_done:,} done, "
                f"{plan.n_evaluations - plan.n_done:,} missing."
            ),
            on_progress=display.update,
            say=console.say,
        )
    code = console.show_training_tally(tally, config.store)
    if task is not None:
        task.requeue_if_unfinished(tally, console.say, has_new_states=bool(saved_states(config) - before))
    return code


def plan_trainings(place: Path, *, limit: Limit, check: bool, as_json: bool) -> None:
    """Count trainings and snapshots, and estimate hours; with `check`, also look at images, weights and the store."""
    from robust201.core.user_code import hash_files
    from robust201.planning.loading import load_training
    from robust201.planning.training_plan import estimate_trainings
    from robust201.runtime.training_run import TrainingSelection, preview_trainings

    config = load_training(place)
    hash_files(config.code_files())
    selection = TrainingSelection(limit=limit)
    summary = estimate_trainings(config, selection.select(config))
    if check:
        plan = preview_trainings(config, selection, console.say)
        summary |= {"snapshots": plan.n_evaluations, "snapshots_done": plan.n_done}
    if as_json:
        print_json(summary)
    else:
        console.show_training_plan(summary)
