"""Corrupted images of a sweep: parts that make them, at the front of a run, and the folders that workers read.

Each key of a dataset has a folder of its own, whose name has a digest of the clean images and of the recipe. Workers
make it under a temporary name and rename it. If two make the same images at once, the first folder stays, because equal
recipes give equal pixels.
"""

import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robust201.core.errors import DatasetError
from robust201.core.files import make_folder, remove_old
from robust201.core.records import ImageSet, canonical_json, content_digest
from robust201.corruptions.folder import generate_corruptions, library_versions
from robust201.corruptions.generator import FrostTextures
from robust201.images.corrupted import CorruptedStore, open_generated
from robust201.images.store import ArrayFolder
from robust201.sweep.config import CorruptionsSection, SweepConfig
from robust201.sweep.facts import Facts, pixel_libraries
from robust201.sweep.inputs import Inputs, frost_textures
from robust201.sweep.parts import SweepState

DEFAULT_FOLDER = "corruptions"


@dataclass(frozen=True, slots=True)
class ImagePart:
    """The corrupted images of a key, which a worker makes before others need them."""

    dataset: str
    key: str

    @property
    def id(self) -> tuple[str, str, str]:
        return "images", self.dataset, self.key

    @property
    def label(self) -> str:
        return f"images of {self.dataset} {self.key}"

    @property
    def network(self) -> tuple[str, str, str]:
        """No network; each part has its own queue, so that all workers share the parts."""
        return self.id

    @property
    def fields(self) -> dict[str, Any]:
        return {"part": self.label, "dataset": self.dataset, "key": self.key}


class CorruptedImages:
    """Corrupted images of a sweep, published ones or those that runs make."""

    def __init__(self, config: SweepConfig, facts: Facts, inputs: Inputs) -> None:
        self._config, self._facts, self._inputs = config, facts, inputs
        self._stores: dict[tuple[str, str], CorruptedStore] = {}

    def check(self) -> None:
        """Compare images that `robust201 corrupt` has made with the planned ones.

        Raises:
            DatasetError: they were made from other images or with another recipe.
        """
        for dataset, facts in self._facts.datasets.items():
            planned = {key: value for key, value in facts.corruptions.items() if value["source"] == "generated"}
            made = ArrayFolder(self._base(dataset)) if planned else None
            if made is not None and made.exists:
                open_generated(made.folder, self._inputs.images(dataset))
                for key in filter(made.lists, planned):
                    _check_recipe(made.folder, key, _identify(made, key), planned[key])

    def missing_parts(self, state: SweepState) -> Iterator[ImagePart]:
        """Yield the parts whose images have yet to be made for the missing evaluations of a sweep."""
        for key_state in state.keys:
            part = ImagePart(key_state.key.dataset, key_state.key.key)
            is_corruption = key_state.key.task.kind == "corruption"
            if is_corruption and not key_state.done.all() and not self.is_made(part):
                yield part

    def is_made(self, part: ImagePart) -> bool:
        """Return whether the images of a part exist."""
        return self._section(part.dataset).source == "published" or ArrayFolder(self._folder(part)).exists

    def make(self, part: ImagePart) -> None:
        """Make the images of a part from the copied clean images, unless they exist.

        Raises:
            DatasetError: libraries of this process would make other pixels than planned.
            StorageError: the images cannot be written.
        """
        folder, section = self._folder(part), self._section(part.dataset)
        if self.is_made(part):
            return
        planned = self._facts.datasets[part.dataset].corruptions[part.key]["libraries"]
        if pixel_libraries(library_versions()) != planned:
            raise DatasetError(
                f"Making corrupted images failed for {part.dataset} {part.key}: expected the libraries of the plan, "
                f"{planned}, got {pixel_libraries(library_versions())}. Install the same versions on all machines."
            )
        make_folder(folder.parent)
        temporary = folder.parent / f".{secrets.token_hex(6)}.tmp"
        try:
            images = self._clean_images(part.dataset)
            frost = frost_textures(section) if part.key == "frost" else FrostTextures.of("none", ())
            generate_corruptions(temporary, images, keys=[part.key], seed=section.seed, frost=frost)
            _rename(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def open_store(self, dataset: str, key: str) -> CorruptedStore:
        """Open the images of a key, and make them first if they are missing.

        Raises:
            DatasetError: they were made with another recipe, or published images differ from the planned ones.
        """
        if (dataset, key) not in self._stores:
            store = self._open(ImagePart(dataset, key))
            is_made = store.source == "generated"
            actual = _identify(ArrayFolder(store.folder), key) if is_made else store.identity(key)
            _check_recipe(store.folder, key, actual, self._facts.datasets[dataset].corruptions[key])
            self._stores[dataset, key] = store
        return self._stores[dataset, key]

    def _open(self, part: ImagePart) -> CorruptedStore:
        images = self._clean_images(part.dataset)
        if self._section(part.dataset).source == "published":
            return self._inputs.open_published_corruptions(part.dataset, images)
        self.make(part)
        return open_generated(self._folder(part), images)

    def remove_leftovers(self) -> None:
        """Remove temporary folders of killed workers."""
        for dataset in self._facts.datasets:
            if self._config.datasets[dataset].corruptions:
                remove_old(self._base(dataset).glob(".*.tmp"))

    def _section(self, dataset: str) -> CorruptionsSection:
        section = self._config.datasets[dataset].corruptions
        assert section is not None  # noqa: S101 - without a section, a dataset has no corruptions
        return section

    def _clean_images(self, dataset: str) -> ImageSet:
        return self._inputs.read_copied_images(dataset, self._facts.datasets[dataset].images_of().sha256)

    def _base(self, dataset: str) -> Path:
        return self._section(dataset).path or self._config.results / DEFAULT_FOLDER

    def _folder(self, part: ImagePart) -> Path:
        """Return the folder of a key's images: the folder in the YAML if `robust201 corrupt` has made it."""
        base, facts = self._base(part.dataset), self._facts.datasets[part.dataset]
        if ArrayFolder(base).lists(part.key):
            return base
        digest = content_digest([facts.images_of().sha256, facts.corruptions[part.key]])
        return base / f"{part.dataset}-{part.key}-{digest[:12]}"


def _rename(temporary: Path, folder: Path) -> None:
    """Give a folder its name, unless another worker has made the same images in the meantime."""
    try:
        temporary.rename(folder)
    except OSError:
        if not ArrayFolder(folder).exists:
            raise


def _identify(made: ArrayFolder, key: str) -> dict[str, Any]:
    """Return what identifies generated pixels; the shard records their hash."""
    return {"source": "generated", **made.recipe(key), "libraries": pixel_libraries(made.info(key)["libraries"])}


def _check_recipe(folder: Path, key: str, actual: dict[str, Any], planned: dict[str, Any]) -> None:
    if canonical_json(actual) != canonical_json(planned):
        raise DatasetError(
            f"Opening corrupted images failed for {folder} {key}: expected {planned}, got {actual}. Delete the "
            "folder, and run the same command again."
        )
