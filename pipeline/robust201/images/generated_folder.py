"""Format of a folder of generated corrupted images: its manifest and its files.

The `.npy` files have the layout of the published ones. In addition there are `manifest.json` (source images, recipe and
file hashes), `indices.npy` ((N,) int64, the corrupted rows of the test split) and `base.npy` ((N, 32) uint8, SHA-256 of
each clean image), which a published folder never has.
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

from robust201.core.errors import DatasetError, FormatVersionError, describe_content
from robust201.core.files import atomic_write, load_json, write_text
from robust201.core.records import ImageSet

MANIFEST = "manifest.json"
INDICES = "indices.npy"
BASE = "base.npy"
LABELS = "labels.npy"
FORMAT = 1
N_SEVERITIES = 5

_OWN_FILES = (MANIFEST, INDICES, BASE)


@dataclass(frozen=True)
class GeneratorRecipe:
    """Everything that determines generated pixels except the clean images.

    `generator_version` is the version of the semantics; `frost` has the name and hash of the textures.
    """

    generator_version: int
    seed: int
    frost: Mapping[str, str]

    def identity(self, key: str, version: int) -> dict[str, Any]:
        """Return the protocol fields that identify the pixels of a version of a corruption."""
        identity: dict[str, Any] = {"generator_version": version, "seed": self.seed}
        return identity | ({"frost": dict(self.frost)} if key == "frost" else {})

    def matches(self, key: str, version: int, identity: Mapping[str, Any]) -> bool:
        """Return whether the identity of a corruption in a protocol is that of images generated with this recipe."""
        return dict(identity) == {
            "source": "generated",
            "sha256": identity.get("sha256"),
            **self.identity(key, version),
        }


@dataclass(frozen=True)
class Manifest:
    """Contents of `manifest.json`.

    Attributes:
        n_images: images per severity.
        images_sha256: `ImageSet.sha256` of the clean images.
        recipe: the recipe of the pixels.
        files: file name to its `sha256` and, for corrupted images, the `libraries` that generated it, and the
            `generator_version` if it differs from the recipe's.
    """

    dataset: str
    n_images: int
    images_sha256: str
    recipe: GeneratorRecipe
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        payload = {"format": FORMAT, "source": "generated", **asdict(self)}
        write_text(folder / MANIFEST, json.dumps(payload, indent=1, sort_keys=True) + "\n")

    def with_file(self, name: str, sha256: str, **facts: Any) -> "Manifest":
        return replace(self, files={**self.files, name: {"sha256": sha256, **facts}})

    def version_of(self, name: str) -> int:
        version: int = self.files.get(name, {}).get("generator_version", self.recipe.generator_version)
        return version


def is_generated(folder: Path) -> bool:
    """Return whether a folder has any file that only generated folders have, even a damaged one."""
    return any((folder / name).exists() for name in _OWN_FILES)


def read_folder_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder of generated images.

    Raises:
        DatasetError: there is no manifest, or it is damaged.
        FormatVersionError: it has another version's format.
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
            f"Opening generated corruptions failed for {path}: expected the manifest of generated images, got no such "
            "file. Run `robust201 corrupt`; if these are published files, set `source: published`."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"Opening generated corruptions failed for {path}: expected a manifest, got other content "
            f"({describe_content(error)}). The file is damaged; delete {folder} and generate the images again."
        ) from error


def unfinished_keys(folder: Path, versions: Mapping[str, int]) -> list[str]:
    """Return the corruptions of `versions` that lack a complete file of the required version.

    A file that is not in the manifest may come from a killed run.
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
    """Return the dtype of `labels.npy`: one byte as in published folders, or two beyond 256 classes."""
    return "uint8" if n_classes <= 256 else "uint16"


def image_digests(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the SHA-256 of each of (N, 3, H, W) uint8 images, (N, 32) uint8, to find it in a larger set."""
    digests = [hashlib.sha256(image.tobytes()).digest() for image in images]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def reject_published_folder(folder: Path) -> None:
    """Reject a folder of published images, which has arrays but no file of generated folders."""
    if not is_generated(folder) and any(folder.glob("*.npy")):
        raise DatasetError(
            f"Generating corruptions failed for {folder}: expected an empty folder, got .npy files without a manifest, "
            "like published ones. Choose another folder."
        )


def begin_folder(folder: Path, images: ImageSet, recipe: GeneratorRecipe) -> Manifest:
    """Write the labels, indices, hashes and manifest of a folder before its images, or resume an equal folder.

    Raises:
        DatasetError: the folder contains images of another selection or recipe.
    """
    if (folder / MANIFEST).exists():
        manifest = read_folder_manifest(folder)
        check_recipe(folder, manifest, recipe)
        if (manifest.dataset, manifest.images_sha256) != (images.dataset, images.sha256):
            raise DatasetError(
                f"Generating corruptions failed for {folder}: expected an empty folder or the same images, "
                f"got one of {manifest.n_images:,} images of {manifest.dataset} ({manifest.images_sha256[:16]}, not "
                f"{images.sha256[:16]}). Choose another folder, or delete this one."
            )
        return manifest
    manifest = Manifest(images.dataset, len(images), images.sha256, recipe)
    labels = np.tile(images.labels.astype(label_dtype(images.n_classes)), N_SEVERITIES)
    for name, array in ((LABELS, labels), (INDICES, images.indices), (BASE, image_digests(images.images))):
        content = npy_bytes(array)
        with atomic_write(folder / name) as stream:
            stream.write(content)
        manifest = manifest.with_file(name, hashlib.sha256(content).hexdigest())
    manifest.write(folder)
    return manifest


def check_recipe(folder: Path, manifest: Manifest, recipe: GeneratorRecipe) -> None:
    """Compare a folder's recipe with the requested one; a `DatasetError` names the first difference."""
    folder_recipe, requested = asdict(manifest.recipe), asdict(recipe)
    for name, value in requested.items():
        if folder_recipe[name] != value:
            raise DatasetError(
                f"Opening generated corruptions failed for {folder}: expected {name} {_show(value)}, got "
                f"{_show(folder_recipe[name])}. Choose another folder, or delete this one to regenerate the images."
            )


def _show(value: object) -> str:
    return f"{value['name']!r} ({value['sha256'][:16]})" if isinstance(value, Mapping) else str(value)


def write_corruption(folder: Path, name: str, shape: tuple[int, int, int, int], blocks: Iterable[Any]) -> str:
    """Write the images of one corruption in blocks (n, H, W, 3) uint8, and return the SHA-256 of the file.

    The file, such as ``"fog.npy"`` of shape (5 N, H, W, 3), appears when it is complete.
    """
    digest = hashlib.sha256()
    for left_over in folder.glob(f".{name}.*.tmp"):
        left_over.unlink(missing_ok=True)
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
    """Yield the bytes that `numpy.save` writes for a uint8 array, given consecutive blocks of its rows."""
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
