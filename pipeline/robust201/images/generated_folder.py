"""Format of a folder of generated corrupted images: the manifest and the other files.

The `.npy` files have the layout of published corruptions. Three files do not occur in published folders:
`manifest.json` (source images, recipe and file hashes), `indices.npy` ((N,) int64, rows of the clean images in the test
split) and `base.npy` ((N, 32) uint8, SHA-256 of each clean image).
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, FormatVersionError, describe_read_error
from robust201.core.files import atomic_write, load_json, write_text
from robust201.core.records import ImageSet

MANIFEST = "manifest.json"
INDICES = "indices.npy"
CLEAN_HASHES = "base.npy"
LABELS = "labels.npy"
FORMAT = 1
N_SEVERITIES = 5

_FILES_OF_GENERATED_FOLDERS = (MANIFEST, INDICES, CLEAN_HASHES)


@dataclass(frozen=True)
class GeneratorRecipe:
    """Settings that, together with the clean images, determine the generated pixels.

    `generator_version` is the version of the corruptions' definitions; `frost` has the name and hash of the textures.
    """

    generator_version: int
    seed: int
    frost: Mapping[str, str]

    def identity(self, key: str, version: int) -> dict[str, Any]:
        """Return the protocol fields that identify a corruption's pixels under a version of the generator."""
        identity: dict[str, Any] = {"generator_version": version, "seed": self.seed}
        return identity | ({"frost": dict(self.frost)} if key == "frost" else {})

    def matches(self, key: str, version: int, identity: Mapping[str, Any]) -> bool:
        """Return whether a corruption's identity in a protocol belongs to images generated with this recipe."""
        return dict(identity) == {
            "source": "generated",
            "sha256": identity.get("sha256"),
            **self.identity(key, version),
        }


@dataclass(frozen=True)
class Manifest:
    """Content of `manifest.json`.

    Attributes:
        dataset: name of the dataset.
        n_images: number of images per severity.
        images_sha256: `ImageSet.sha256` of the clean images.
        recipe: recipe of the pixels.
        files: fields of each file, by name: its `sha256` and, for corrupted images, the `libraries` that generated it,
            and the `generator_version` if it differs from the recipe's.
    """

    dataset: str
    n_images: int
    images_sha256: str
    recipe: GeneratorRecipe
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        payload = {"format": FORMAT, "source": "generated", **asdict(self)}
        write_text(folder / MANIFEST, json.dumps(payload, indent=1, sort_keys=True) + "\n")

    def with_file(self, name: str, sha256: str, **fields: Any) -> "Manifest":
        return replace(self, files={**self.files, name: {"sha256": sha256, **fields}})

    def version_of(self, name: str) -> int:
        """Return the generator version that made a file."""
        version: int = self.files.get(name, {}).get("generator_version", self.recipe.generator_version)
        return version


def is_generated(folder: Path) -> bool:
    """Return whether a folder has any file that only generated folders have, even a damaged one."""
    return any((folder / name).exists() for name in _FILES_OF_GENERATED_FOLDERS)


def read_folder_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder of generated images.

    Raises:
        DatasetError: there is no manifest, or it is damaged.
        FormatVersionError: the manifest has the format of another version of robust201.
    """
    path = folder / MANIFEST
    try:
        payload = load_json(path)
        version = payload.pop("format")
        if version != FORMAT:
            raise FormatVersionError(
                f"Opening generated corruptions failed for {path}: expected format {FORMAT}, got {version}. "
                "Open the folder with the version of robust201 that wrote it, or generate the images in another folder."
            )
        payload.pop("source")
        return Manifest(**{**payload, "recipe": GeneratorRecipe(**payload["recipe"])})
    except FileNotFoundError as error:
        raise DatasetError(
            f"Opening generated corruptions failed for {path}: the folder has no manifest of generated images. "
            "Run `robust201 corrupt` to generate them; for published files, set `source: published`."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"Opening generated corruptions failed for {path}: the manifest is damaged ({describe_read_error(error)}). "
            f"Delete {folder} and generate the images again."
        ) from error


def find_unfinished_keys(folder: Path, versions: Mapping[str, int]) -> list[str]:
    """Return the corruptions without a complete file of the required version.

    `versions` has the required version of each corruption. A file that is not in the manifest does not count as
    complete, because a killed run may have left it.
    """
    if not (folder / MANIFEST).exists():
        return list(versions)
    manifest = read_folder_manifest(folder)
    return [
        key
        for key, version in versions.items()
        if f"{key}.npy" not in manifest.files
        or not (folder / f"{key}.npy").exists()
        or manifest.version_of(f"{key}.npy") != version
    ]


def label_dtype(n_classes: int) -> str:
    """Return the dtype of `labels.npy`: one byte as in published folders, or two for more than 256 classes."""
    return "uint8" if n_classes <= 256 else "uint16"


def image_digests(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the SHA-256 of each image, (N, 32) uint8, for images (N, 3, H, W) uint8."""
    digests = [hashlib.sha256(image.tobytes()).digest() for image in images]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def reject_published_folder(folder: Path) -> None:
    """Raise a DatasetError for a folder of published images, which has arrays but no manifest."""
    if not is_generated(folder) and any(folder.glob("*.npy")):
        raise DatasetError(
            f"Generating corruptions failed for {folder}: the folder contains .npy files without a manifest, "
            "which seem to be published. Choose another folder."
        )


def begin_folder(folder: Path, images: ImageSet, recipe: GeneratorRecipe) -> Manifest:
    """Write the labels, indices, hashes and manifest of a new folder, or reuse the folder if it has the same images.

    Raises:
        DatasetError: the folder contains images of another selection or another recipe.
    """
    if (folder / MANIFEST).exists():
        manifest = read_folder_manifest(folder)
        check_recipe(folder, manifest, recipe)
        if (manifest.dataset, manifest.images_sha256) != (images.dataset, images.sha256):
            raise DatasetError(
                f"Generating corruptions failed for {folder}: it contains corruptions of {manifest.n_images:,} images "
                f"of {manifest.dataset} with the hash {manifest.images_sha256[:16]}, not {images.sha256[:16]}. Choose "
                "another folder, or delete this folder."
            )
        return manifest
    manifest = Manifest(images.dataset, len(images), images.sha256, recipe)
    labels = np.tile(images.labels.astype(label_dtype(images.n_classes)), N_SEVERITIES)
    for name, array in ((LABELS, labels), (INDICES, images.indices), (CLEAN_HASHES, image_digests(images.images))):
        content = npy_bytes(array)
        with atomic_write(folder / name) as stream:
            stream.write(content)
        manifest = manifest.with_file(name, hashlib.sha256(content).hexdigest())
    manifest.write(folder)
    return manifest


def check_recipe(folder: Path, manifest: Manifest, recipe: GeneratorRecipe) -> None:
    """Raise a `DatasetError` that states the first difference between the folder's recipe and the requested one."""
    folder_recipe, requested_recipe = asdict(manifest.recipe), asdict(recipe)
    for name, value in requested_recipe.items():
        if folder_recipe[name] != value:
            raise DatasetError(
                f"Opening generated corruptions failed for {folder}: expected `{name}` {_describe_value(value)}, got "
                f"{_describe_value(folder_recipe[name])}. Choose another folder, or delete this folder to regenerate "
                "the images."
            )


def _describe_value(value: object) -> str:
    return f"{value['name']!r} ({value['sha256'][:16]})" if isinstance(value, Mapping) else str(value)


def write_corruption(folder: Path, name: str, shape: tuple[int, int, int, int], blocks: Iterable[Any]) -> str:
    """Write the images of one corruption, and return the SHA-256 of the file.

    `name` is the name of the file, such as ``"fog.npy"``, and `shape` is (5 N, H, W, 3). `blocks` are consecutive
    images (n, H, W, 3) uint8. The file appears only when it is complete.
    """
    digest = hashlib.sha256()
    for unfinished_path in folder.glob(f".{name}.*.tmp"):
        unfinished_path.unlink(missing_ok=True)
    with atomic_write(folder / name) as stream:
        for content in npy_stream(shape, blocks):
            digest.update(content)
            stream.write(content)
    return digest.hexdigest()


def npy_bytes(array: NDArray[Any]) -> bytes:
    """Return the bytes that `numpy.save` writes for an array."""
    stream = BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def npy_stream(shape: tuple[int, ...], blocks: Iterable[NDArray[np.uint8]]) -> Iterator[bytes]:
    """Yield the bytes that `numpy.save` writes for a uint8 array; `blocks` are consecutive rows of the array."""
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    yield stream.getvalue()
    for block in blocks:
        yield block.tobytes()


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that may affect generated pixels."""
    import PIL
    import scipy
    from PIL import features

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pillow": PIL.__version__,
        "libjpeg": features.version("jpg") or "",
    }
