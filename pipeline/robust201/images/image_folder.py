"""Folders of images that robust201 writes: for each split, an .npz file in the format of custom images and a manifest.

The files are `test.npz` or `train.npz` (see `images.npz`), and `test.json` or `train.json`. The .npz file may contain
further arrays, such as the origin of each image. A sweep reads such a folder like custom images (`path`, `classes`,
`image_size`).
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, one_line
from robust201.core.files import atomic_write, load_json, make_folder, write_text
from robust201.core.records import Split, canonical_json, image_hash
from robust201.images.checks import LabelledImages

_FORMAT = 1

Rounding: TypeAlias = Literal["half-up", "down"]
"""Rounding of pixels to 8 bits: half up, or down like torchvision's `ToPILImage` before augmentation."""


def to_8_bits(pixels: NDArray[Any], rounding: Rounding = "half-up") -> NDArray[np.uint8]:
    """Round floats in [0, 1] of any shape to 8 bits."""
    rounded: NDArray[np.uint8] = np.floor(pixels.astype(np.float64) * 255 + (0.5 if rounding == "half-up" else 0.0))
    return rounded.astype(np.uint8)


def check_split(folder: Path, split: Split, recipe: Mapping[str, Any]) -> str | None:
    """Check that a split may be written to a folder, and return the split's hash if it already exists.

    Raises:
        DatasetError: the folder contains images of this split without a manifest, or with another recipe.
    """
    images_path, manifest_path = folder / f"{split}.npz", folder / f"{split}.json"
    if not manifest_path.exists():
        if images_path.exists():
            raise DatasetError(
                f"Creating images failed for {images_path}: the file exists without its manifest "
                f"{manifest_path.name}, so this command did not write it. Choose another folder."
            )
        return None
    try:
        fields = load_json(manifest_path)
        folder_recipe, digest = dict(fields["made"]), str(fields["images_sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"Creating images failed for {manifest_path}: the file is not a manifest of images "
            f"({one_line(error)}). Choose another folder, or delete this folder."
        ) from error
    requested_recipe = json.loads(canonical_json(recipe))
    if folder_recipe != requested_recipe:
        differing_field = next(
            name
            for name in sorted({*folder_recipe, *requested_recipe})
            if folder_recipe.get(name) != requested_recipe.get(name)
        )
        raise DatasetError(
            f"Creating images failed for {folder}: expected images with `{differing_field}` "
            f"{requested_recipe.get(differing_field)!r}, got images with {folder_recipe.get(differing_field)!r}. "
            "Choose another folder, or delete this folder."
        )
    return digest if images_path.is_file() else None


def write_split(
    folder: Path,
    split: Split,
    images: LabelledImages,
    *,
    recipe: Mapping[str, Any],
    n_classes: int,
    fields: Mapping[str, Any] | None = None,
    **arrays: NDArray[Any],
) -> str:
    """Write the manifest and the images of a split; equal arguments give equal bytes.

    `recipe` is everything that determines the images, and `fields` are further fields of the manifest; both are JSON.
    `arrays` are further arrays of the .npz file. Returns the hash with which sweeps identify the images (see
    `core.records.image_hash`).
    """
    make_folder(folder)
    digest = image_hash(images.images, images.labels, np.arange(len(images.labels)))
    manifest = {
        "format": _FORMAT,
        "made": recipe,
        "images": len(images.labels),
        "classes": n_classes,
        "image_size": images.images.shape[-1],
        "images_sha256": digest,
        **(fields or {}),
    }
    write_text(folder / f"{split}.json", json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False) + "\n")
    content = io.BytesIO()
    all_arrays: dict[str, Any] = {"images": images.images, "labels": images.labels, **arrays}
    np.savez(content, **all_arrays)
    with atomic_write(folder / f"{split}.npz") as stream:
        stream.write(content.getbuffer())
    return digest
