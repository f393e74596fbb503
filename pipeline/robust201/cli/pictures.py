"""The contact sheet of `corrupt`."""

from pathlib import Path
from typing import TYPE_CHECKING

from robust201.cli import console
from robust201.core.errors import ConfigError
from robust201.core.files import check_output_file

if TYPE_CHECKING:
    from robust201.core.records import ImageSet

_FORMATS = (".png", ".svg", ".pdf")


def check_drawing(path: Path) -> None:
    """Check that a figure can be written to a file; its name must end in .png, .svg or .pdf."""
    if path.suffix not in _FORMATS:
        raise ConfigError(
            f"Drawing failed for {path}: the file name must end in {', '.join(_FORMATS)}. Choose another name."
        )
    check_output_file(path)


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
