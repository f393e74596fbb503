"""The store of generated images: a folder of `.npy` arrays, and `made.json` with the recipe of each array.

`made.json` is ``{"arrays": {<name>: {"sha256": …, "recipe": …, "info": …}}}``, where `sha256` is the hash of
`<name>.npy`. A recipe contains the settings that determine the array; `info` has other facts. Both are JSON objects.
An array is complete once `made.json` lists it, so an interrupted computation resumes with the missing arrays.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from robust201.core.arrays import read_npy
from robust201.core.errors import DatasetError, one_line
from robust201.core.files import atomic_write, load_json, sha256_of, write_text
from robust201.core.records import ImageSet, Split, canonical_json, image_hash
from robust201.images.checks import LabelledImages
from robust201.images.specs import DatasetSpec

MANIFEST = "made.json"

Recipe: TypeAlias = Mapping[str, Any]


class _Record(BaseModel):
    """Entry of one array in `made.json`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sha256: str
    recipe: dict[str, Any]
    info: dict[str, Any]


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    arrays: dict[str, _Record]


class ArrayFolder:
    """A folder of arrays with `made.json`, which the first `write` creates. Only one process at a time may write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        return (self.folder / MANIFEST).exists()

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"

    def info(self, name: str) -> dict[str, Any]:
        """Return the `info` of a complete array."""
        return self._records()[name].info

    def is_complete(self, name: str, recipe: Recipe) -> bool:
        """Return whether the folder has an array with this recipe.

        Raises:
            DatasetError: the array has another recipe, or `made.json` is damaged.
        """
        record = self._records().get(name)
        if record is None:
            return False
        requested = json.loads(canonical_json(recipe))
        for field in sorted({*record.recipe, *requested}):
            if record.recipe.get(field) != requested.get(field):
                raise DatasetError(
                    f"Generating images failed for {self.path(name)}: expected images with `{field}` "
                    f"{requested.get(field)!r}, got images with {record.recipe.get(field)!r}. "
                    "Choose another folder, or delete this folder."
                )
        return self.path(name).is_file()

    def write(
        self,
        name: str,
        content: NDArray[Any] | Iterable[NDArray[np.uint8]],
        *,
        recipe: Recipe,
        shape: tuple[int, ...] = (),
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Write an array, then list it in `made.json`. With `shape`, `content` is uint8 blocks of consecutive rows."""
        for unfinished_path in self.folder.glob(f".{name}.npy.*.tmp"):
            unfinished_path.unlink(missing_ok=True)
        stream = npy_stream(shape, content) if shape else iter([_npy_bytes(np.asarray(content))])
        digest = hashlib.sha256()
        with atomic_write(self.path(name)) as file:
            for chunk in stream:
                digest.update(chunk)
                file.write(chunk)
        record = _Record(sha256=digest.hexdigest(), recipe=json.loads(canonical_json(recipe)), info=dict(info or {}))
        self._write_manifest({**self._records(), name: record})

    def remove(self, names: Iterable[str]) -> None:
        """Remove complete arrays."""
        names = set(names)
        records = {name: record for name, record in self._records().items() if name not in names}
        self._write_manifest(records)
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def read(self, name: str) -> NDArray[Any]:
        """Memory-map a complete array after comparing its hash with that in `made.json`.

        Raises:
            DatasetError: the file is missing or damaged, or `made.json` does not list it or is damaged.
        """
        record = self._records().get(name)
        try:
            got = sha256_of(self.path(name))
        except OSError as error:
            got = one_line(error)
        if record is None or got != record.sha256:
            expected = f"a file that {MANIFEST} lists" if record is None else f"sha256 {record.sha256}"
            raise DatasetError(
                f"Reading images failed for {self.path(name)}: expected {expected}, got {got}. The file is damaged or "
                f"incomplete. Delete {self.folder}, and generate the images again."
            )
        return read_npy(self.path(name), mapped=True)

    def _records(self) -> dict[str, _Record]:
        path = self.folder / MANIFEST
        try:
            return _Manifest.model_validate(load_json(path)).arrays
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise DatasetError(
                f"Reading images failed for {path}: expected a list of arrays, got a damaged or unrelated file "
                f"({one_line(error, 100)}). Delete {self.folder}, and generate the images again."
            ) from error

    def _write_manifest(self, records: Mapping[str, _Record]) -> None:
        payload = {"arrays": {name: record.model_dump() for name, record in records.items()}}
        write_text(self.folder / MANIFEST, json.dumps(payload, indent=1, sort_keys=True, allow_nan=False) + "\n")


def _npy_bytes(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def npy_stream(shape: tuple[int, ...], blocks: Iterable[NDArray[np.uint8]]) -> Iterator[bytes]:
    """Yield the bytes that `numpy.save` writes for a uint8 array; `blocks` are consecutive rows of the array."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    yield stream.getvalue()
    for block in blocks:
        yield block.tobytes()


def to_8_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert floats in [0, 1] of any shape to 8 bits, rounded half up."""
    return np.floor(pixels.astype(np.float64) * 255 + 0.5).astype(np.uint8)


def find_generated_split(folder: Path, split: Split, recipe: Recipe) -> str | None:
    """Return the hash of a split that `write_generated_split` has written, or None.

    Raises:
        DatasetError: the folder has images of this split with another recipe.
    """
    store = ArrayFolder(folder / split)
    return str(store.info("images")["images_sha256"]) if store.is_complete("images", recipe) else None


def write_generated_split(
    folder: Path,
    split: Split,
    images: LabelledImages,
    *,
    recipe: Recipe,
    n_classes: int,
    info: Mapping[str, Any] | None = None,
    **arrays: NDArray[Any],
) -> str:
    """Write a split as the arrays `images` and `labels`, plus further `arrays`; sweeps read it like custom images.

    Equal arguments give equal bytes. Returns the hash with which sweeps identify the images (see
    `core.records.image_hash`).
    """
    store = ArrayFolder(folder / split)
    for name, array in {"labels": images.labels, **arrays}.items():
        store.write(name, array, recipe=recipe)
    digest = image_hash(images.images, images.labels, np.arange(len(images.labels)))
    size = {"classes": n_classes, "image_size": images.images.shape[-1], "images_sha256": digest}
    store.write("images", images.images, recipe=recipe, info={**size, **(info or {})})
    return digest


_SET_ARRAYS = ("images", "labels", "indices")


def write_image_set(folder: Path, images: ImageSet) -> None:
    """Write the images of a sweep to a folder, such as ``digits-<hash>``; existing files are replaced.

    The driver writes them, whatever form the dataset has, and workers read them. Thus workers never open a dataset's
    pickles or JPEGs, and all machines read the same bytes. Several drivers may write equal files, so there is no
    `made.json`; the hash of the images identifies them.
    """
    for name in _SET_ARRAYS:
        with atomic_write(folder / f"{name}.npy") as stream:
            np.save(stream, getattr(images, name), allow_pickle=False)


def read_image_set(folder: Path, spec: DatasetSpec, sha256: str) -> ImageSet:
    """Read the files of `write_image_set`, and compare their hash with `sha256`, the hash in the plan.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    try:
        images, labels, indices = (read_npy(folder / f"{name}.npy") for name in _SET_ARRAYS)
        digest = image_hash(images, labels, indices)
    except (OSError, ValueError) as error:
        digest = one_line(error)
    if digest != sha256:
        raise DatasetError(
            f"Reading the images of {spec.name} failed for {folder}: expected images with the planned hash "
            f"{sha256[:16]}, got {digest}. Check that the results folder is the same on every machine, and run the "
            "same command again to replace the files."
        )
    return ImageSet(spec.name, images, labels, indices, spec.n_classes, spec.normalisation, digest)
