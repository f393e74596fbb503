"""Corrupted images on disk: `<folder>/<corruption>.npy`.

The layout is that of CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019). Each file is (5 N, H, W, 3) uint8,
with the N images at severity 1, then at severity 2, and so on. `labels.npy` (5 N,), uint8 or (for more than 256
classes) uint16, repeats the test labels five times. A folder that `robust201 corrupt` writes is a store
(`images.store`) with one more array, `indices` (rows of the clean images in the test split, (N,) int64), so it cannot
be opened as a published folder by mistake. Sweeps do not read it; they generate images themselves (`run.images`).
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.arrays import read_npy
from robust201.core.errors import DatasetError
from robust201.core.records import ImageSet, canonical_json
from robust201.images.downloads.registry import find_download
from robust201.images.specs import DATASETS
from robust201.images.store import ArrayFolder, Recipe

N_SEVERITIES = 5
LABELS, INDICES = "labels", "indices"

_BLOCK_ROWS = 512


class CorruptedStore:
    """Corrupted versions of a selection of test images, read from disk on demand.

    Args:
        folder: folder of the files.
        images: the selected clean images.
        rows: (n,) int64, rows of the selected images within the images of each severity.
        n_images: number of images per severity.
    """

    source = "published"

    def __init__(self, folder: Path, images: ImageSet, *, rows: NDArray[np.int64], n_images: int) -> None:
        self.folder = folder
        self.dataset = images.dataset
        self.indices = images.indices
        self._image_size = images.images.shape[2:]
        self._rows = rows
        self._n_images = n_images
        self._files: dict[str, NDArray[np.uint8]] = {}
        self._digests: dict[tuple[str | int, ...], str] = {}

    def __call__(self, key: str, severity: int, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return corrupted images, (n, 3, H, W) uint8 and C-contiguous.

        `indices` are rows (n,) int64 of the full test split; all must be in the selection.

        Raises:
            DatasetError: the file is missing or has the wrong shape.
        """
        rows = self._rows[np.searchsorted(self.indices, indices)]
        pixels = self.pixels(key, int(severity))[rows]
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))

    def digest(self, key: str, severities: Sequence[int] = range(1, N_SEVERITIES + 1)) -> str:
        """Return the hash of the selected images of a corruption, by default at all five severities.

        The hash is the SHA-256 of the shape, the selected rows of the test split and the pixels. This object caches it.

        Raises:
            DatasetError: the file is missing or has the wrong shape.
        """
        if (key, *severities) not in self._digests:
            arrays = [self.pixels(key, severity) for severity in severities]
            digest = begin_digest(self.indices, (len(severities), len(self._rows), *arrays[0].shape[1:]))
            for array in arrays:
                for start in range(0, len(self._rows), _BLOCK_ROWS):
                    digest.update(array[self._rows[start : start + _BLOCK_ROWS]].tobytes())
            self._digests[key, *severities] = digest.hexdigest()
        return self._digests[key, *severities]

    def identity(self, key: str) -> dict[str, Any]:
        """Return the protocol fields (JSON) that identify a corruption's published pixels by their `digest`."""
        return {"source": self.source, "sha256": self.digest(key)}

    def check(self, key: str) -> None:
        """Check that a corruption's file exists and has the right shape, without reading its pixels."""
        self._open(key)

    def pixels(self, key: str, severity: int) -> NDArray[np.uint8]:
        """Return all images of a corruption at a severity, (N, H, W, 3) uint8, from a memory-mapped file."""
        pixels: NDArray[np.uint8] = self._open(key)[severity - 1]
        return pixels

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npy"

    def _open(self, key: str) -> NDArray[np.uint8]:
        """Memory-map the images of a corruption, (5, N, H, W, 3) uint8."""
        if key not in self._files:
            array = _map_array(self._path(key), (N_SEVERITIES * self._n_images, *self._image_size, 3))
            self._files[key] = array.reshape(N_SEVERITIES, self._n_images, *array.shape[1:])
        return self._files[key]


def begin_digest(indices: NDArray[np.int64], shape: tuple[int, ...]) -> "hashlib._Hash":
    """Begin the hash of corrupted images; the caller adds their pixels (see `CorruptedStore.digest`)."""
    digest = hashlib.sha256(canonical_json(shape).encode())
    digest.update(indices.astype("<i8").tobytes())
    return digest


def open_published(
    folder: Path,
    images: ImageSet,
    *,
    n_images: int,
    keys: Sequence[str],
    verify: bool = False,
) -> CorruptedStore:
    """Open published corrupted images: `.npy` files in a folder or in its subfolder with the archive's name.

    `n_images` is the size of the full test split, and `keys` are the corruptions whose files are checked immediately;
    `verify` also checks their published MD5.

    Raises:
        DatasetError: the dataset has no published corruptions, the folder contains generated images, or a file is
            missing or has the wrong shape, labels or MD5.
    """
    archive = DATASETS[images.dataset].corruptions if images.dataset in DATASETS else None
    if archive is None:
        raise DatasetError(
            f"Opening published corruptions failed for {images.dataset}: this dataset has no published corruptions. "
            "Set `source: generated`."
        )
    entry = find_download(archive)
    if not (folder / "labels.npy").exists() and (folder / entry.folder / "labels.npy").exists():
        folder = folder / entry.folder
    if ArrayFolder(folder).exists or (folder / f"{INDICES}.npy").exists():
        raise DatasetError(
            f"Opening published corruptions failed for {folder}: expected the files of {archive}, got images that "
            "robust201 generated. Set `source: generated`, or choose the folder of the published files. If made.json "
            "is missing, delete this folder."
        )
    if not (folder / "labels.npy").exists():
        raise DatasetError(
            f"Opening published corruptions failed for {folder}: labels.npy of {archive} is neither in this folder nor "
            f"in {folder / entry.folder}. Fetch the files with `robust201 fetch {archive}`, or correct the folder."
        )
    _check_labels(folder, images, n_images)
    store = CorruptedStore(folder, images, rows=images.indices, n_images=n_images)
    for key in keys:
        store.check(key)
        if verify:
            entry.members[f"{key}.npy"].check_file(folder / f"{key}.npy")
    return store


def write_clean_set(output: ArrayFolder, images: ImageSet) -> None:
    """Begin a folder of corruptions with the labels and rows of the clean images, or check an existing one.

    Raises:
        DatasetError: the folder has corruptions of other images, or published ones.
    """
    if not output.exists and any(output.folder.glob("*.npy")):
        raise DatasetError(
            f"Generating corruptions failed for {output.folder}: the folder contains .npy files that robust201 did not "
            "make; they may be published files. Choose another folder."
        )
    recipe: Recipe = {"dataset": images.dataset, "images_sha256": images.sha256}
    labels = images.labels.astype("uint8" if images.n_classes <= 256 else "uint16")  # published labels are uint8
    for name, array in ((LABELS, np.tile(labels, N_SEVERITIES)), (INDICES, images.indices)):
        if not output.is_complete(name, recipe):
            output.write(name, array, recipe=recipe)


def _check_labels(folder: Path, images: ImageSet, n_images: int) -> None:
    path = folder / "labels.npy"
    labels = _map_array(path, (N_SEVERITIES * n_images,)).reshape(N_SEVERITIES, n_images)[:, images.indices]
    mismatches = np.argwhere(labels != images.labels)
    if len(mismatches):
        severity_index, position = mismatches[0]
        raise DatasetError(
            f"Opening corruptions failed for {path}: expected the test labels repeated five times, got label "
            f"{labels[severity_index, position]} instead of {images.labels[position]} for row "
            f"{images.indices[position]} at severity {severity_index + 1}. The files belong to other images, or to the "
            "same images in another order. Choose the folder of this dataset's corruptions."
        )


def _map_array(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Memory-map a uint8 file, after checking its shape."""
    try:
        array = read_npy(path, mapped=True)
        if (array.shape, array.dtype) == (shape, np.dtype(np.uint8)):
            return array
        got = f"{array.dtype} {array.shape}"
    except FileNotFoundError:
        got = "no such file"
    except (OSError, ValueError) as error:
        got = f"an incomplete or damaged .npy file ({error})"
    raise DatasetError(
        f"Opening corruptions failed for {path}: expected uint8 {shape}, got {got}. Fetch the published files "
        "again, or correct the name of the dataset or key."
    )
