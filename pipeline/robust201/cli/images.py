"""The verbs that make images: fuse, import-images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

if TYPE_CHECKING:
    from robust201.core.records import Split

SplitText = Annotated[str, typer.Option("--split", help="test or train.")]


def read_split(text: str) -> "Split":
    """Read the name of a split; ConfigError if it is none."""
    from robust201.core.records import Split
    from robust201.dataset.written_file import parse_choice

    return parse_choice("split", text, get_args(Split))


def fuse(
    out: Annotated[Path, typer.Option("--out", help="Folder to write; created if absent.")],
    first: Annotated[str, typer.Option(help="First dataset.")] = "mnist",
    second: Annotated[str, typer.Option(help="Second dataset.")] = "cifar10",
    first_path: Annotated[Path | None, typer.Option(help="Path of the first dataset's images.")] = None,
    second_path: Annotated[Path | None, typer.Option(help="Path of the second dataset's images.")] = None,
    label: Annotated[str, typer.Option(help="Whose labels the blends have: first or second.")] = "first",
    alpha: Annotated[float, typer.Option(help="Weight of the first dataset's pixels, 0 to 1.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of the pairing.")] = 0,
    split: SplitText = "test",
) -> None:
    """Blend the images of two datasets in fixed pairs, as test images of a sweep."""
    from robust201.dataset.written_file import parse_choice
    from robust201.images import load_images
    from robust201.images.fusion import LabelFrom, write_fusion
    from robust201.images.made import describe_made

    chosen, labelled = read_split(split), parse_choice("label", label, get_args(LabelFrom))
    images = [load_images(name, path=path, split=chosen) for name, path in ((first, first_path), (second, second_path))]
    write_fusion(out, images[0], images[1], split=chosen, alpha=alpha, label=labelled, seed=seed)
    n_classes = images[0 if labelled == "first" else 1].n_classes
    typer.echo(describe_made(out, n_classes, images[0].images.shape[-1]))


def import_images(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Folder of the published files CIFAR_ims and CIFAR_lab.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; created if absent.")],
    classes: Annotated[int, typer.Option(min=2, help="Number of classes.")] = 10,
    rounding: Annotated[
        str, typer.Option(help="half-up (to the nearest of 256 values), or down, as torchvision's ToPILImage.")
    ] = "half-up",
    split: SplitText = "train",
) -> None:
    """Convert published datasets of robust features (torch.save) to images that sweeps and trainings read."""
    from robust201.dataset.written_file import parse_choice
    from robust201.images.made import describe_made
    from robust201.images.torch_images import Rounding, import_torch_images

    chosen = parse_choice("rounding", rounding, get_args(Rounding))
    size = import_torch_images(source, out, n_classes=classes, split=read_split(split), rounding=chosen)
    typer.echo(describe_made(out, classes, size))
