"""`robust201 fetch`, `import` and `corrupt`: images and weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from robust201.cli import console
from robust201.cli.evaluate import DATA_OPTION, Images, ResizeRule, announce_function, load_data
from robust201.cli.help_texts import DOWNLOADS_HELP
from robust201.cli.options import Architectures, Datasets, split_names
from robust201.core.errors import ConfigError, did_you_mean
from robust201.networks.spaces import DEFAULT_SPACE, SPACES
from robust201.networks.user_file import UserFileSpace

if TYPE_CHECKING:
    from robust201.networks.space import Space


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help=DOWNLOADS_HELP)],
    out: Annotated[
        Path, typer.Option("--out", envvar="ROBUST201_DATA", help="Data folder; the dataset is written to a subfolder.")
    ] = Path("data"),
) -> None:
    """Download and verify an image dataset."""
    from robust201.images.downloads.fetch import fetch as fetch_dataset

    typer.echo(fetch_dataset(name, out, progress=_DownloadProgress(f"Downloading {name}")))


class _DownloadProgress:
    """Shows bytes, rate and remaining time of a download (see `images.downloads.fetch.fetch`)."""

    def __init__(self, label: str) -> None:
        self.total = 0
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._live = Progress(*columns, TimeRemainingColumn(), console=console.err, disable=not console.err.is_terminal)
        self._task = self._live.add_task(label, total=None)

    def update(self, n_bytes: int) -> None:
        self._live.start()
        self._live.update(self._task, advance=n_bytes, total=self.total or None)

    def reset(self) -> None:
        self._live.reset(self._task)

    def close(self) -> None:
        self._live.stop()


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
        int, typer.Option(help="Training seed of the weights to import; if SOURCE lacks it, the lowest seed in SOURCE.")
    ] = 777,
) -> None:
    """Convert published weights to safetensors in a checkpoint store.

    Pickled weights are read with a list of allowed globals.
    """
    from robust201.weights.importing import import_weights
    from robust201.weights.store import CheckpointStore

    selected_space = _parse_space(space)
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
    console.out.print(f"Imported {console.format_count(len(report.imported), 'network')} into {out}.")
    console.say_each([f"rejected: {reason}" for reason in report.rejected])
    raise typer.Exit(3 if report.rejected else 0)


def _parse_space(text: str) -> "Space":
    """Return the search space with this name, or the custom space that FILE:FUNCTION defines."""
    if text in SPACES:
        return SPACES[text]
    if ":" not in text:
        raise ConfigError(
            f"Reading the command line failed for --space: expected {', '.join(SPACES)} or FILE:FUNCTION, got {text!r}."
            f"{did_you_mean(text, SPACES)}"
        )
    return UserFileSpace(announce_function(text))


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
        Path | None, typer.Option(help="Folder with the five frost images. Default: synthetic frost.")
    ] = None,
) -> None:
    """Generate corrupted images, reproducible from the seed.

    Images smaller than 224 pixels get the corruption parameters of CIFAR-10-C; other images get the parameters of
    ImageNet-C.
    """
    from robust201.corruptions.folder import generate_corruptions
    from robust201.corruptions.frost_textures import load_frost, synthetic_frost
    from robust201.tasks import CORRUPTION_GROUP, expand_keys

    names = expand_keys(split_names(keys) or [CORRUPTION_GROUP])
    image_set = load_data(data, resize=resize, count=images, seed=seed)
    textures = load_frost(frost) if frost is not None else synthetic_frost(seed)
    with console.showing_progress("Corrupting") as progress:
        generate_corruptions(out, image_set, keys=names, seed=seed, frost=textures, progress=progress)
    typer.echo(
        f"{len(names)} corruptions of {len(image_set):,} images of {image_set.dataset} at 5 severities are in {out} "
        f"(generated, seed {seed}, frost {textures.name})."
    )
