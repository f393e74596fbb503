"""Reader of corrupted images on disk, published or generated: `<folder>/<corruption>.npy`.

The layout is the same as in CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019). Each file is (5 N, H, W, 3)
uint8, with the N images at severity 1, then at severity 2, and so on. `labels.npy` (5 N,), uint8 or (for more than 256
classes) uint16, repeats the test labels five times. A folder of generated images also has a manifest
(`images.generated_folder`), so it cannot be opened as a published folder by mistake, or vice versa.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robust201.core.arrays import read_npy
from robust201.core.errors import DatasetError
from robust201.core.files import digest_of, sha256_of
from robust201.core.records import ImageSet, canonical_json
from robust201.images.downloads.registry import download
from robust201.images.generated_folder import (
    CLEAN_HASHES,
    INDICES,
    LABELS,
    N_SEVERITIES,
    GeneratorRecipe,
    Manifest,
    check_recipe,
    image_digests,
    is_generated,
    label_dtype,
    read_folder_manifest,
)
from robust201.images.specs import dataset

_BLOCK_ROWS = 512


class CorruptedStore:
    """Corrupted versions of a selection of test images, read from disk on demand.

    Args:
        folder: folder of the files.
        images: the selected clean images.
        rows: (n,) int64, rows of the selected images within the images of each severity.
        n_images: number of images per severity.
        manifest: manifest of generated images; None for published images.
    """

    def __init__(
        self,
        folder: Path,
        images: ImageSet,
        *,
        rows: NDArray[np.int64],
        n_images: int,
        manifest: Manifest | None = None,
    ) -> None:
        self.folder = folder
        self.source = "generated" if manifest else "published"
        self.dataset = images.dataset
        self.indices = images.indices
        self._image_size = images.images.shape[2:]
        self._rows = rows
        self._n_images = n_images
        self._manifest = manifest
        self._files: dict[str, NDArray[np.uint8]] = {}
        self._digests: dict[str, str] = {}

    def __call__(self, key: str, severity: int, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return corrupted images, (n, 3, H, W) uint8 and C-contiguous.

        `indices` are rows (n,) int64 of the full test split; all must be in the selection.

        Raises:
            DatasetError: the file is missing or has the wrong shape, or a severity or row is out of range.
        """
        if severity not in range(1, N_SEVERITIES + 1):
            raise DatasetError(
                f"Reading corrupted images failed for {self._path(key)}: expected a severity from 1 to {N_SEVERITIES}, "
                f"got {severity}. Correct the severities of the sweep."
            )
        positions = np.searchsorted(self.indices, indices)
        positions_in_range = np.minimum(positions, len(self.indices) - 1)
        unselected_positions = np.flatnonzero(self.indices[positions_in_range] != indices)
        if len(unselected_positions):
            row = int(indices[unselected_positions[0]])
            raise DatasetError(
                f"Reading corrupted images failed for {self._path(key)}: row {row} of the test split is not among the "
                f"{len(self.indices):,} selected images. Include it in the selection with which the store is opened."
            )
        pixels = self._open(key)[int(severity) - 1, self._rows[positions_in_range]]
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))

    def digest(self, key: str) -> str:
        """Return the hash of the selected images of a corruption at all five severities.

        The hash is the SHA-256 of the shape, the selected rows of the test split and the pixels. It is computed once
        per process.

        Raises:
            DatasetError: the file is missing or has the wrong shape, or a generated file has changed.
        """
        if key not in self._digests:
            array = self._open(key)
            if self._manifest is not None:
                self._check_unchanged(key, self._manifest)
            shape = [N_SEVERITIES, len(self._rows), *array.shape[2:]]
            digest = hashlib.sha256(canonical_json(shape).encode())
            digest.update(self.indices.astype("<i8").tobytes())
            for severity_images in array:
                for start in range(0, len(self._rows), _BLOCK_ROWS):
                    digest.update(severity_images[self._rows[start : start + _BLOCK_ROWS]].tobytes())
            self._digests[key] = digest.hexdigest()
        return self._digests[key]

    def identity(self, key: str) -> dict[str, Any]:
        """Return the protocol fields (JSON) that identify the pixels of a corruption.

        The fields are `source` and `sha256` (see `digest`). Generated images also have `generator_version`, `seed` and,
        for the corruption frost, `frost` (name and hash of the textures).
        """
        identity: dict[str, Any] = {"source": self.source, "sha256": self.digest(key)}
        if self._manifest is not None:
            identity |= self._manifest.recipe.identity(key, self._manifest.version_of(f"{key}.npy"))
        return identity

    def verify(self, key: str, *, expected: Mapping[str, Any]) -> None:
        """Check that a corruption's `identity` equals the planned one; the pixels are hashed once per process."""
        identity = self.identity(key)
        if canonical_json(identity) == canonical_json(dict(expected)):
            return
        field = next(field for field in sorted({*identity, *expected}) if identity.get(field) != expected.get(field))
        raise DatasetError(
            f"Verifying corrupted images failed for {self._path(key)}: expected `{field}` {expected.get(field)}, got "
            f"{identity.get(field)}. The file changed or was damaged after planning, or it differs between machines. "
            "Restore it and run the same command again."
        )

    def check(self, key: str) -> None:
        """Check that a corruption's file exists and has the right shape, without reading its pixels."""
        self._open(key)

    def _check_unchanged(self, key: str, manifest: Manifest) -> None:
        path = self._path(key)
        expected = manifest.files.get(path.name, {}).get("sha256")
        if expected is None:
            raise DatasetError(
                f"Verifying corrupted images failed for {path}: the manifest does not list this file, so its "
                "generation did not finish. Delete it; the next run or `robust201 corrupt` creates it again."
            )
        got = sha256_of(path)
        if got != expected:
            raise DatasetError(
                f"Verifying corrupted images failed for {path}: expected sha256 {expected}, got {got}. The file is "
                "damaged or incomplete. Delete it; the next run or `robust201 corrupt` creates it again."
            )

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npy"

    def _open(self, key: str) -> NDArray[np.uint8]:
        """Memory-map the images of a corruption, (5, N, H, W, 3) uint8."""
        if key not in self._files:
            array = _map_npy(self._path(key), (N_SEVERITIES * self._n_images, *self._image_size, 3), self.source)
            self._files[key] = array.reshape(N_SEVERITIES, self._n_images, *array.shape[1:])
        return self._files[key]


def open_published(
    folder: Path,
    images: ImageSet,
    *,
    n_images: int,
    verify: Literal["shape", "full"] = "shape",
    keys: Sequence[str] | None = None,
) -> CorruptedStore:
    """Open published corrupted images: `.npy` files in a folder or in its subfolder with the archive's name.

    `n_images` is the size of the full test split. With `verify` ``"full"``, each file is checked against its published
    MD5. `keys` are the corruptions to check immediately; None checks all existing files.

    Raises:
        DatasetError: the dataset has no published corruptions, the folder contains generated images, or a file is
            missing or has the wrong shape, labels or MD5.
    """
    archive = dataset(images.dataset).corruptions
    if archive is None:
        raise DatasetError(
            f"Opening published corruptions failed for {images.dataset}: this dataset has no published corruptions. "
            "Set `source: generated`."
        )
    entry = download(archive)
    if not (folder / LABELS).exists() and (folder / entry.folder / LABELS).exists():
        folder = folder / entry.folder
    if not (folder / LABELS).exists() and not is_generated(folder):
        raise DatasetError(
            f"Opening published corruptions failed for {folder}: {LABELS} of {archive} is neither in this folder nor "
            f"in {folder / entry.folder}. Fetch the files with `robust201 fetch {archive}`, or correct the folder."
        )
    if is_generated(folder):
        raise DatasetError(
            f"Opening published corruptions failed for {folder}: expected the files of {archive}, got images that "
            "robust201 generated. Set `source: generated`, or choose the folder of the published files."
        )
    _check_labels(folder, images, images.indices, n_images, "published")
    store = CorruptedStore(folder, images, rows=images.indices, n_images=n_images)
    if keys is None:
        file_names = [file_name for file_name in entry.members if (folder / file_name).exists()]
    else:
        file_names = [f"{key}.npy" for key in keys]
    for file_name in file_names:
        if file_name != LABELS:
            store.check(file_name.removesuffix(".npy"))
        if verify == "full":
            _check_md5(folder / file_name, entry.members[file_name].digest or "")
    return store


def open_generated(folder: Path, images: ImageSet, recipe: GeneratorRecipe) -> CorruptedStore:
    """Open corrupted images that were generated with a recipe from `images` or from a superset of them.

    Raises:
        DatasetError: there is no manifest, or the folder was generated from other images or with another recipe.
        FormatVersionError: the folder has the format of another version of robust201.
    """
    manifest = read_folder_manifest(folder)
    check_recipe(folder, manifest, recipe)
    if manifest.dataset != images.dataset:
        raise DatasetError(
            f"Opening generated corruptions failed for {folder}: expected images of {images.dataset}, got images of "
            f"{manifest.dataset}. Choose another folder."
        )
    rows = _find_rows(folder, images, manifest.n_images)
    _check_labels(folder, images, rows, manifest.n_images, "generated")
    return CorruptedStore(folder, images, rows=rows, n_images=manifest.n_images, manifest=manifest)


def _find_rows(folder: Path, images: ImageSet, n_images: int) -> NDArray[np.int64]:
    """Return the rows of the selected images among the corrupted images, after comparing indices and pixels."""
    corrupted_indices: NDArray[np.int64] = _load_npy(folder / INDICES, (n_images,), "int64", "generated")
    clean_digests = _load_npy(folder / CLEAN_HASHES, (n_images, 32), "uint8", "generated")
    rows = np.minimum(np.searchsorted(corrupted_indices, images.indices), n_images - 1)
    is_same = (corrupted_indices[rows] == images.indices) & (clean_digests[rows] == image_digests(images.images)).all(
        axis=1
    )
    if not is_same.all():
        raise DatasetError(
            f"Opening generated corruptions failed for {folder}: expected corruptions of all {len(images):,} selected "
            f"images of {images.dataset}, but test image {int(images.indices[~is_same][0])} is missing or has changed "
            f"since they were generated ({int((~is_same).sum()):,} such images). Generate them in another folder, or "
            "delete this folder."
        )
    return rows


def _check_labels(folder: Path, images: ImageSet, rows: NDArray[np.int64], n_images: int, source: str) -> None:
    path = folder / LABELS
    dtype = label_dtype(images.n_classes)
    labels = _load_npy(path, (N_SEVERITIES * n_images,), dtype, source).reshape(N_SEVERITIES, n_images)[:, rows]
    mismatches = np.argwhere(labels != images.labels)
    if len(mismatches):
        severity_index, position = mismatches[0]
        raise DatasetError(
            f"Opening {source} corruptions failed for {path}: expected the test labels repeated five times, got label "
            f"{labels[severity_index, position]} instead of {images.labels[position]} for row "
            f"{images.indices[position]} at severity {severity_index + 1}. The files belong to other images, or to the "
            "same images in another order. Choose the folder of this dataset's corruptions."
        )


def _load_npy(path: Path, shape: tuple[int, ...], dtype: str, source: str) -> NDArray[Any]:
    return np.array(_map_npy(path, shape, source, dtype))


def _map_npy(path: Path, shape: tuple[int, ...], source: str, dtype: str = "uint8") -> NDArray[Any]:
    remedy = "Fetch the files again" if source == "published" else f"Delete {path.parent} and generate the images again"
    try:
        array = read_npy(path, mapped=True)
    except FileNotFoundError as error:
        raise DatasetError(
            f"Opening {source} corruptions failed for {path}: expected an array of shape {shape}, but there is no such "
            f"file. {remedy}, or remove the key from the sweep."
        ) from error
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"Opening {source} corruptions failed for {path}: expected an array of shape {shape}, got an "
            f"incomplete or damaged .npy file ({error}). {remedy}."
        ) from error
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise DatasetError(
            f"Opening {source} corruptions failed for {path}: expected {dtype} {shape}, got {array.dtype} "
            f"{array.shape}. {remedy}, or check the dataset's name."
        )
    return array


def _check_md5(path: Path, expected: str) -> None:
    got = digest_of(path, lambda: hashlib.md5(usedforsecurity=False))
    if got != expected:
        raise DatasetError(
            f"Verifying published corruptions failed for {path}: expected md5 {expected}, got {got}. "
            "The file is damaged or not the published file; fetch it again."
        )
