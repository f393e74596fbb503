"""The form of a folder of generated corrupted images: what its manifest says and how its files are written.

The `.npy` files are laid out as the published ones are. Beside them lie `manifest.json` (made from what, how, and each
file's hash), `indices.npy` ((N,) int64, the rows of the test split that were corrupted) and `base.npy` ((N, 32) uint8,
SHA-256 of each clean image), which a published folder never has.
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

_MARKS = (MANIFEST, INDICES, BASE)


@dataclass(frozen=True)
class GeneratorRecipe:
    """Everything but the clean images that determines generated pixels; the version is that of the semantics.

    `frost` is the name and the hash of the textures.
    """

    generator_version: int
    seed: int
    frost: Mapping[str, str]

    def identity(self, key: str, version: int) -> dict[str, Any]:
        """Say what decides the pixels of a version of a corruption, as a protocol holds it (see `made`)."""
        identity: dict[str, Any] = {"generator_version": version, "seed": self.seed}
        return identity | ({"frost": dict(self.frost)} if key == "frost" else {})

    def made(self, key: str, version: int, identity: Mapping[str, Any]) -> bool:
        """Whether a corruption's identity, as a protocol holds it, is that of images made by this recipe."""
        return dict(identity) == {
            "source": "generated",
            "sha256": identity.get("sha256"),
            **self.identity(key, version),
        }


@dataclass(frozen=True)
class Manifest:
    """Contents of `manifest.json`.

    Attributes:
        n_images: images a severity.
        images_sha256: `ImageSet.sha256` of the clean images.
        recipe: what else decided the pixels.
        files: file name to its `sha256` and, for corrupted images, the `libraries` that made it, and the
            `generator_version` where it is not that of the recipe.
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
    """Say whether a folder bears any mark of generated images, a damaged one included."""
    return any((folder / name).exists() for name in _MARKS)


def read_folder_manifest(folder: Path) -> Manifest:
    """Read what a folder of generated images says of itself.

    Raises:
        DatasetError: there is no manifest, or it is damaged.
        FormatVersionError: another version wrote it.
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
    """List the corruptions, of those with the versions that are wanted, without a whole file of that version.

    A file that is not in the manifest may be of a run that was killed.
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
    """Return the type of `labels.npy`: one byte, as in published folders, or two beyond 256 classes."""
    return "uint8" if n_classes <= 256 else "uint16"


def image_digests(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Hash each of (N, 3, H, W) uint8 images by itself, to (N, 32) uint8, so that it is found again in a larger set."""
    digests = [hashlib.sha256(image.tobytes()).digest() for image in images]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def refuse_published(folder: Path) -> None:
    """Keep generated images out of a folder of published ones, which has arrays and no mark of generated ones."""
    if not is_generated(folder) and any(folder.glob("*.npy")):
        raise DatasetError(
            f"Generating corruptions failed for {folder}: expected an empty folder, got .npy files without a manifest, "
            "as published ones are. Choose another folder."
        )


def begin_folder(folder: Path, images: ImageSet, recipe: GeneratorRecipe) -> Manifest:
    """Write what generated images are made from, before any of them; an equal folder is taken up as it is.

    Raises:
        DatasetError: the folder holds images of another selection or recipe.
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
    """Compare what made a folder with what was asked for; a `DatasetError` names the first difference."""
    found, wanted = asdict(manifest.recipe), asdict(recipe)
    for name, value in wanted.items():
        if found[name] != value:
            raise DatasetError(
                f"Opening generated corruptions failed for {folder}: expected {name} {_show(value)}, got "
                f"{_show(found[name])}. Choose another folder, or delete this one to regenerate the images."
            )


def _show(value: object) -> str:
    return f"{value['name']!r} ({value['sha256'][:16]})" if isinstance(value, Mapping) else str(value)


def write_corruption(folder: Path, name: str, shape: tuple[int, int, int, int], blocks: Iterable[Any]) -> str:
    """Write the images of one corruption, block by block (n, H, W, 3) uint8; give the SHA-256 of the file.

    The file, such as ``"fog.npy"`` of shape (5 N, H, W, 3), appears when it is whole.
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
    """The bytes that `numpy.save` writes for an array."""
    stream = BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def npy_stream(shape: tuple[int, ...], blocks: Iterable[NDArray[np.uint8]]) -> Iterator[bytes]:
    """The bytes that `numpy.save` writes for a uint8 array, from consecutive blocks of its rows."""
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    yield stream.getvalue()
    for block in blocks:
        yield block.tobytes()


def library_versions() -> dict[str, str]:
    """Versions of the libraries that generated pixels may depend on."""
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
