"""Figures of single images: `robust201 show`, and the contact sheet of `corrupt`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.evaluate import (
    DATA_OPTION,
    NETWORK_ARGUMENT,
    ClassOrderName,
    Device,
    Mean,
    ResizeRule,
    Seed,
    Settings,
    Std,
    WeightsFile,
    build_module,
    calling_user_code,
    choose_device,
    load_data,
    read_keys,
    read_normalisation,
)
from robust201.core.errors import ConfigError
from robust201.core.files import check_output_file

if TYPE_CHECKING:
    from robust201.core.records import ImageSet

_FORMATS = (".png", ".svg", ".pdf")


def show(
    network: Annotated[str, NETWORK_ARGUMENT],
    data: Annotated[str, DATA_OPTION],
    out: Annotated[Path, typer.Option("--out", help="Figure to write: a .png, .svg or .pdf file.")],
    images: Annotated[
        str, typer.Option(help="Indices of the images to show, counted from 0 and separated by commas.")
    ] = "0,1,2,3",
    key: Annotated[str, typer.Option(help="Key of an attack.")] = "pgd",
    settings: Settings = None,
    weights: WeightsFile = None,
    mean: Mean = None,
    std: Std = None,
    resize: ResizeRule = None,
    class_order: ClassOrderName = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Draw images before and after an attack, with the predicted classes. FILE is executed."""
    from robust201.figures.image_grid import save_figure
    from robust201.gallery import show as show_images
    from robust201.images import DATASETS

    check_drawing(out)
    normalisation = read_normalisation(mean, std)
    parameters = read_keys(key, settings or []) or {}
    image_set = load_data(data, resize=resize, normalisation=normalisation, class_order=class_order)
    indices = _read_indices(images, len(image_set))
    module = build_module(network, weights)
    name, fields = next(iter(parameters.items()))
    with calling_user_code(network):
        figure = show_images(
            module,
            image_set.images[indices],
            image_set.labels[indices],
            name,
            normalisation=normalisation,
            class_names=DATASETS[data].class_names if data in DATASETS else image_set.class_names or None,
            seed=seed,
            device=choose_device(device),
            **fields,
        )
    typer.echo(save_figure(figure, out))


def check_drawing(path: Path) -> None:
    """Check that a figure can be written to a file; its name must end in .png, .svg or .pdf."""
    if path.suffix not in _FORMATS:
        raise ConfigError(
            f"Drawing failed for {path}: the file name must end in {', '.join(_FORMATS)}. Choose another name."
        )
    check_output_file(path)


def _read_indices(text: str, n_images: int) -> list[int]:
    try:
        indices = [int(number) for number in text.split(",")]
    except ValueError:
        indices = []
    if not indices or not all(0 <= index < n_images for index in indices):
        raise ConfigError(
            f"Reading the command line failed for --images {text!r}: expected indices from 0 to {n_images - 1:,}, "
            "separated by commas. Correct the option."
        )
    return indices


def draw_corruption_sheet(folder: Path, images: "ImageSet", out: Path) -> None:
    """Draw the first image under every corruption in a folder written by `robust201 corrupt`."""
    import numpy as np

    from robust201.figures.image_grid import draw_corruptions, save_figure
    from robust201.tasks import CORRUPTIONS

    corrupted_images = {}
    for key in CORRUPTIONS:
        path = folder / f"{key}.npy"
        if path.is_file():
            # The file contains all images at severity 1, then all images at severity 2, and so on.
            first_images = np.load(path, mmap_mode="r", allow_pickle=False)[:: len(images)]
            corrupted_images[key] = first_images.transpose(0, 3, 1, 2).astype(np.float32) / 255
    save_figure(draw_corruptions(images.images[0].astype(np.float32) / 255, corrupted_images), out)
    console.say(f"Wrote {out}.")
