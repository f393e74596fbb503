"""Pictures of single images: `robust201 show`, and the sheets of `corrupt` and `fuse`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.evaluate import (
    DATA,
    Channels,
    Device,
    ImageSize,
    Mean,
    ResizeRule,
    Seed,
    Settings,
    Std,
    build_module,
    calling_user_code,
    load_data,
    read_keys,
    read_normalisation,
)
from robust201.core.errors import ConfigError
from robust201.core.files import check_output_file

if TYPE_CHECKING:
    from robust201.core.records import ImageSet

_N_BLENDS = 8
"""Blends side by side in a sheet."""

_FORMATS = (".png", ".svg", ".pdf")


def show(
    network: Annotated[
        str, typer.Argument(metavar="FILE:FUNCTION", help="A Python file, and its function that returns the network.")
    ],
    data: Annotated[str, DATA],
    out: Annotated[Path, typer.Option("--out", help="The figure: a PNG, SVG or PDF file.")],
    images: Annotated[str, typer.Option(help="Positions of the images, separated by commas.")] = "0,1,2,3",
    key: Annotated[str, typer.Option(help="An attack.")] = "pgd",
    settings: Settings = None,
    weights: Annotated[Path | None, typer.Option(help="A file of its state_dict, safetensors or PyTorch.")] = None,
    mean: Mean = None,
    std: Std = None,
    image_size: ImageSize = None,
    resize: ResizeRule = None,
    channels: Channels = 3,
    seed: Seed = 0,
    device: Device = "cpu",
) -> None:
    """Draw single images before and after an attack, with the predicted classes. FILE is executed."""
    from robust201.gallery import show as show_images
    from robust201.images import DATASETS
    from robust201.studies.drawings import save_figure

    check_drawing(out)
    normalisation = read_normalisation(mean, std)
    parameters = read_keys(key, settings or []) or {}
    every = load_data(data, image_size=image_size, resize=resize, channels=channels)
    places = _read_places(images, len(every))
    module = build_module(network, weights)
    name, given = next(iter(parameters.items()))
    with calling_user_code(network):
        figure = show_images(
            module,
            every.images[places],
            every.labels[places],
            name,
            normalisation=normalisation,
            class_names=DATASETS[data].class_names if data in DATASETS else every.class_names or None,
            seed=seed,
            device=device,
            **given,
        )
    typer.echo(save_figure(figure, out))


def check_drawing(path: Path) -> None:
    """Check the name of a figure's file before anything is computed for it."""
    if path.suffix not in _FORMATS:
        raise ConfigError(
            f"Drawing failed for {path}: expected a name that ends in {', '.join(_FORMATS)}, got "
            f"{path.suffix or 'none'}. Name the file otherwise."
        )
    check_output_file(path)


def _read_places(text: str, n_images: int) -> list[int]:
    try:
        places = [int(part) for part in text.split(",")]
    except ValueError:
        places = []
    if not places or not all(0 <= place < n_images for place in places):
        raise ConfigError(
            f"Reading the command line failed for --images {text!r}: expected positions from 0 to {n_images - 1:,}, "
            "separated by commas. Correct them."
        )
    return places


def draw_corruption_sheet(folder: Path, images: "ImageSet", out: Path) -> None:
    """Draw the first image under every corruption that a folder of `robust201 corrupt` has."""
    import numpy as np

    from robust201.studies.drawings import draw_corruptions, save_figure
    from robust201.tasks import CORRUPTIONS

    corrupted = {}
    for key in CORRUPTIONS:
        path = folder / f"{key}.npy"
        if path.is_file():
            rows = np.load(path, mmap_mode="r", allow_pickle=False)[:: len(images)]
            corrupted[key] = rows.transpose(0, 3, 1, 2).astype(np.float32) / 255
    save_figure(draw_corruptions(images.images[0].astype(np.float32) / 255, corrupted), out)
    console.say(f"Drawn: {out}")


def draw_blend_sheet(blends: Path, sources: "Sequence[ImageSet]", out: Path) -> None:
    """Draw the first blends that `robust201 fuse` wrote below the images that they are made of."""
    import numpy as np

    from robust201.figures.image_grid import Tile, draw_image_grid
    from robust201.studies.drawings import FIGURE_WIDTH, save_figure

    with np.load(blends, allow_pickle=False) as arrays:
        blended = arrays["images"][:_N_BLENDS]
        rows = [arrays[name][:_N_BLENDS] for name in ("first_rows", "second_rows")]
    parts = [images.images[chosen] for images, chosen in zip(sources, rows, strict=True)]
    tiles = [[Tile(image.astype(np.float32) / 255) for image in several] for several in (*parts, blended)]
    labels = [*(images.dataset for images in sources), "blend"]
    save_figure(draw_image_grid(tiles, columns=[""] * len(blended), row_labels=labels, width=FIGURE_WIDTH), out)
    console.say(f"Drawn: {out}")
