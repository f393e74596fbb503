"""The command line: a thin function per command. Exit codes: 0 complete, 2 bad input, 3 incomplete, 4 storage error."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from robust201 import __version__
from robust201.cli import console
from robust201.cli.analyse import analyse_app
from robust201.cli.compare import compare, curves
from robust201.cli.dataset import export
from robust201.cli.demo import demo
from robust201.cli.evaluate import DATA_OPTION, Images, ResizeRule, evaluate, load_data
from robust201.cli.exits import run_to_exit_code
from robust201.cli.help_texts import ABOUT, DATASET_PANEL, DOWNLOADS_HELP, EPILOG, HELP_OPTIONS, RUN_PANEL, add_commands
from robust201.cli.merge import merge
from robust201.cli.monitoring import AsJson, doctor, status
from robust201.cli.options import (
    AllowCode,
    Architectures,
    DatasetPath,
    Datasets,
    Executor,
    Keys,
    Recipes,
    SlurmRequeue,
    Sweep,
    WeightsName,
    Workers,
    reject_options,
    split_names,
)
from robust201.cli.plot import ShownKeys, ShownNetworks, plot
from robust201.cli.rank import rank
from robust201.cli.search import search
from robust201.cli.submit import submit_app
from robust201.cli.train import plan_training_runs, run_training_runs
from robust201.cli.user_file import parse_space
from robust201.cli.verify import verify
from robust201.networks.spaces import DEFAULT_SPACE, SPACES

app = typer.Typer(
    name="robust201",
    context_settings=HELP_OPTIONS,
    pretty_exceptions_enable=False,
    help=ABOUT,
    epilog=EPILOG,
)


def main() -> None:
    """Run the command line (see `cli.exits`)."""
    sys.exit(run_to_exit_code(app))


def _show_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"robust201 {__version__}")
        raise typer.Exit


@app.callback()
def _read_global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def plan(
    sweep: Sweep,
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Save the plan and the images in the results folder; `run --share` needs them."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Also read the images and check that the weights exist; `doctor` checks more."),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also read the inputs and say why evaluations are missing, one line per cause."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate the size, disk space and hours of a sweep or training YAML."""
    from robust201.sweep.loading import is_training_yaml

    if is_training_yaml(sweep):
        reject_options(
            "training YAML",
            keys=keys,
            save=save or None,
            explain=explain or None,
        )
        plan_training_runs(sweep, architectures=architectures, datasets=datasets, check=check, as_json=as_json)
        return
    from robust201.cli.plan import plan_sweep

    plan_sweep(
        sweep,
        architectures=architectures,
        datasets=datasets,
        keys=keys,
        save=save,
        check=check,
        explain=explain,
        as_json=as_json,
    )


def run(
    sweep: Sweep,
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    recipes: Recipes = None,
    executor: Executor = None,
    workers: Workers = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Results folder or checkpoint store; overrides the YAML.")
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Run only share I of N (counted from 1, such as 3/64) of a sweep that `plan --save` saved.",
        ),
    ] = None,
    slurm_requeue: SlurmRequeue = False,
    allow_code: AllowCode = False,
) -> None:
    """Run a sweep's missing evaluations or a training YAML's missing training, in this process or on Ray.

    Ctrl-C finishes the work in progress; a second Ctrl-C stops immediately. Run the command again to resume.
    """
    from robust201.sweep.loading import is_training_yaml

    if is_training_yaml(sweep):
        reject_options("training YAML", keys=keys, share=share)
        code = run_training_runs(
            sweep,
            architectures=architectures,
            datasets=datasets,
            recipes=recipes,
            executor=executor,
            workers=workers,
            out=out,
            slurm_requeue=slurm_requeue,
            allow_code=allow_code,
        )
        raise typer.Exit(code)
    reject_options("sweep", recipes=recipes)
    from robust201.cli.run import run_sweep_command

    code = run_sweep_command(
        sweep,
        architectures=architectures,
        datasets=datasets,
        keys=keys,
        executor=executor,
        workers=workers,
        out=out,
        share=share,
        slurm_requeue=slurm_requeue,
        allow_code=allow_code,
    )
    raise typer.Exit(code)


def report(
    dataset: DatasetPath,
    out: Annotated[Path | None, typer.Option("--out", help="HTML file to write. Default: DATASET-report.html.")] = None,
    weights: WeightsName = None,
    keys: ShownKeys = None,
    architectures: ShownNetworks = None,
) -> None:
    """Write a report on a dataset as one HTML file that works offline: best networks, tables and figures."""
    from robust201.dataset.reader import Dataset
    from robust201.figures.report import write_report

    folder = dataset if dataset.name not in {"", ".."} else dataset.resolve()  # `.` and `..` do not name the folder
    page = out or folder.parent / f"{folder.name}-report.html"
    reader = Dataset(dataset, weights=weights).select(split_names(architectures), split_names(keys))
    typer.echo(write_report(reader, page))


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help=DOWNLOADS_HELP)],
    out: Annotated[
        Path, typer.Option("--out", envvar="ROBUST201_DATA", help="Data folder; the dataset is written to a subfolder.")
    ] = Path("data"),
) -> None:
    """Download and verify an image dataset, or print where to get it."""
    from robust201.images.downloads.fetch import fetch as fetch_dataset

    typer.echo(fetch_dataset(name, out, progress=console.DownloadProgress(f"Downloading {name}")))


def import_(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Archive of weights, its split parts, or a folder of state_dicts.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Checkpoint store to write; created if absent.")],
    architectures: Architectures = None,
    datasets: Datasets = None,
    space: Annotated[
        str,
        typer.Option(
            help=f"Space of the networks: {', '.join(SPACES)}, or a custom space as FILE:FUNCTION, which is executed. "
            f"Except in {DEFAULT_SPACE}, files are named after their networks, such as resnet18.safetensors."
        ),
    ] = DEFAULT_SPACE,
    recipe: Annotated[
        str, typer.Option(help="Name for these weights, to distinguish training runs of the same length and seed.")
    ] = "",
    classes: Annotated[
        int | None,
        typer.Option(min=2, help=f"Number of classes of a custom dataset, in a space other than {DEFAULT_SPACE}."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Training length of the weights to import, in epochs: 200 or 12.")] = 200,
    seed: Annotated[
        int, typer.Option(help="Training seed of the weights to import; if SOURCE lacks it, its lowest seed is used.")
    ] = 777,
) -> None:
    """Convert published weights to safetensors in a checkpoint store; the only command that unpickles weights."""
    from robust201.weights.importing import import_weights
    from robust201.weights.store import CheckpointStore

    selected_space = parse_space(space)
    indices = None if architectures is None else selected_space.select(architectures)
    with CheckpointStore(out) as store, console.showing_progress("Importing networks") as progress:
        report = import_weights(
            source,
            store,
            space=selected_space,
            indices=indices,
            datasets=split_names(datasets),
            n_classes=classes,
            recipe=recipe,
            epochs=epochs,
            seed=seed,
            progress=progress,
        )
    raise typer.Exit(console.show_import(report, out))


def corrupt(
    out: Annotated[Path, typer.Option("--out", help="Folder for the .npy files, laid out like CIFAR-10-C.")],
    data: Annotated[str, DATA_OPTION],
    resize: ResizeRule = None,
    keys: Annotated[
        str | None, typer.Option(help="Only these corruptions, separated by commas, such as fog,frost.")
    ] = None,
    images: Images = None,
    seed: Annotated[int, typer.Option(help="Seed of the subset and of the corruptions.")] = 0,
    frost: Annotated[
        Path | None, typer.Option(help="Folder with the six frost images. Default: synthetic frost.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
) -> None:
    """Generate corrupted images, reproducible from the seed.

    Images smaller than 224 pixels get the corruption parameters of CIFAR-10-C; other images get the parameters of
    ImageNet-C.
    """
    from robust201.corruptions.folder import corrupt_dataset
    from robust201.tasks import expand_keys

    key_names = split_names(keys)
    image_set = load_data(data, resize=resize, count=images, seed=seed)
    with console.showing_progress("Corrupting") as progress:
        line = corrupt_dataset(
            out,
            image_set,
            keys=None if key_names is None else expand_keys(key_names),
            seed=seed,
            frost_folder=frost,
            workers=workers,
            progress=progress,
        )
    typer.echo(line)


add_commands(
    app,
    *(demo, doctor, fetch, import_, corrupt),
    *(plan, run, status, merge),
    *(verify, export),
    *(report, plot, rank, search),
    *(evaluate, compare, curves),
)
app.add_typer(submit_app, rich_help_panel=RUN_PANEL)
app.add_typer(analyse_app, rich_help_panel=DATASET_PANEL)
