"""Corrupted images of a sweep: parts that make them, at the start of a run, and the stores that workers read.

A part makes the images of a key at one severity, in ``<dataset>-<key>-<digest>/<severity>.npy``, (N, H, W, 3) uint8.
The digest covers the clean images and the recipe. The hash of the corrupted images (`CorruptedStore.digest`) is
written after them, to ``<severity>.sha256``. If two workers make the same images at once, they write the same bytes,
because equal recipes give equal pixels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.arrays import read_npy
from robust201.core.errors import DatasetError
from robust201.core.files import atomic_write, make_folder, remove_leftovers, write_text
from robust201.core.records import ImageSet, canonical_json, content_digest
from robust201.corruptions.folder import corrupt_blocks, library_versions
from robust201.corruptions.frost_textures import FrostTextures
from robust201.images.corrupted import CorruptedStore, begin_digest
from robust201.images.store import npy_stream
from robust201.sweep.config import CorruptionsSection, SweepConfig
from robust201.sweep.facts import Facts, pixel_libraries
from robust201.sweep.inputs import Inputs, frost_textures
from robust201.sweep.parts import SweepState

DEFAULT_FOLDER = "corruptions"


@dataclass(frozen=True, slots=True)
class ImagePart:
    """The corrupted images of a key at one severity, which a worker makes before others need them."""

    dataset: str
    key: str
    severity: int

    @property
    def id(self) -> tuple[str, str, str, int]:
        return "images", self.dataset, self.key, self.severity

    @property
    def label(self) -> str:
        return f"images of {self.dataset} {self.key} at severity {self.severity}"

    @property
    def network(self) -> tuple[str, str, str, int]:
        """No network; each part has its own queue, so that all workers share the parts."""
        return self.id

    @property
    def fields(self) -> dict[str, Any]:
        return {"part": self.label, "dataset": self.dataset, "key": self.key, "severity": self.severity}


class CorruptedImages:
    """Corrupted images of a sweep, either published or made by runs."""

    def __init__(self, config: SweepConfig, facts: Facts, inputs: Inputs) -> None:
        self._config, self._facts, self._inputs = config, facts, inputs
        self._stores: dict[tuple[str, str], CorruptedStore] = {}

    def missing_parts(self, state: SweepState) -> Iterator[ImagePart]:
        """Yield the parts whose images have yet to be made for the missing evaluations of a sweep."""
        for key_state in state.keys:
            key = key_state.key
            if key.task.kind == "corruption" and self._section(key.dataset).source == "generated":
                for severity, is_done in zip(key.strengths, key_state.done.T, strict=True):
                    part = ImagePart(key.dataset, key.key, int(severity))
                    if not (is_done.all() or self._digest_path(part).exists()):
                        yield part

    def make(self, part: ImagePart) -> None:
        """Make the images of a part from the copied clean images, unless they exist.

        Raises:
            DatasetError: this process's libraries might make different pixels than planned.
            StorageError: the images cannot be written.
        """
        if not self._digest_path(part).exists():
            self._make(part)

    def _make(self, part: ImagePart) -> None:
        section, images = self._section(part.dataset), self._clean_images(part.dataset)
        planned = self._facts.datasets[part.dataset].corruptions[part.key]["libraries"]
        if pixel_libraries(library_versions()) != planned:
            raise DatasetError(
                f"Making corrupted images failed for {part.dataset} {part.key}: expected the libraries of the plan, "
                f"{planned}, got {pixel_libraries(library_versions())}. Install the same versions on all machines."
            )
        frost = frost_textures(section) if part.key == "frost" else FrostTextures.of("none", ())
        n_images, channels, height, width = images.images.shape
        shape = n_images, height, width, channels
        digest = begin_digest(images.indices, (1, *shape))

        def hashed_blocks() -> Iterator[NDArray[np.uint8]]:
            for block in corrupt_blocks(images, part.key, part.severity, seed=section.seed, frost=frost):
                digest.update(block.tobytes())
                yield block

        make_folder(self.path(part).parent)
        with atomic_write(self.path(part)) as stream:
            for chunk in npy_stream(shape, hashed_blocks()):
                stream.write(chunk)
        write_text(self._digest_path(part), digest.hexdigest())

    def open_store(self, dataset: str, key: str) -> CorruptedStore:
        """Open the images of a key; each severity is made when it is first read, unless it exists.

        Raises:
            DatasetError: published images differ from the planned ones.
        """
        if (dataset, key) not in self._stores:
            self._stores[dataset, key] = self._open(dataset, key)
        return self._stores[dataset, key]

    def _open(self, dataset: str, key: str) -> CorruptedStore:
        images, planned = self._clean_images(dataset), self._facts.datasets[dataset].corruptions[key]
        if self._section(dataset).source == "generated":
            return _MadeStore(self, self._base(dataset), images)
        store = self._inputs.open_published_corruptions(dataset, images)
        if canonical_json(store.identity(key)) != canonical_json(planned):
            raise DatasetError(
                f"Opening corrupted images failed for {store.folder} {key}: expected {planned}, got "
                f"{store.identity(key)}. Fetch the published files again, and run the same command again."
            )
        return store

    def make_again(self, part: ImagePart) -> NDArray[np.uint8]:
        """Make missing or damaged images (see `make`), and return them, memory-mapped."""
        self._make(part)
        return read_npy(self.path(part), mapped=True)

    def find_intact(self, part: ImagePart) -> NDArray[np.uint8] | None:
        """Return the images of a part, memory-mapped; None if they are missing or damaged."""
        try:
            pixels, expected = (
                read_npy(self.path(part), mapped=True),
                self._digest_path(part).read_text(encoding="utf-8"),
            )
        except (OSError, ValueError):
            return None
        digest = begin_digest(self._clean_images(part.dataset).indices, (1, *pixels.shape))
        digest.update(pixels.data)
        return pixels if digest.hexdigest() == expected else None

    def remove_leftovers(self) -> None:
        """Remove temporary files of killed workers."""
        for dataset in self._facts.datasets:
            if self._config.datasets[dataset].corruptions:
                remove_leftovers(self._base(dataset))

    def _section(self, dataset: str) -> CorruptionsSection:
        section = self._config.datasets[dataset].corruptions
        assert section is not None  # noqa: S101 - without a section, a dataset has no corruptions
        return section

    def _clean_images(self, dataset: str) -> ImageSet:
        return self._inputs.read_copied_images(dataset, self._facts.datasets[dataset].images_of().sha256)

    def _base(self, dataset: str) -> Path:
        return self._section(dataset).path or self._config.results / DEFAULT_FOLDER

    def path(self, part: ImagePart) -> Path:
        """Return the file of a part's images."""
        facts = self._facts.datasets[part.dataset]
        digest = content_digest([facts.images_of().sha256, facts.corruptions[part.key]])
        return self._base(part.dataset) / f"{part.dataset}-{part.key}-{digest[:12]}" / f"{part.severity}.npy"

    def _digest_path(self, part: ImagePart) -> Path:
        return self.path(part).with_suffix(".sha256")


class _MadeStore(CorruptedStore):
    """Images that workers make, one file per severity."""

    source = "generated"

    def __init__(self, owner: CorruptedImages, folder: Path, images: ImageSet) -> None:
        super().__init__(folder, images, rows=np.arange(len(images)), n_images=len(images))
        self._owner = owner
        self._arrays: dict[tuple[str, int], NDArray[np.uint8]] = {}

    def pixels(self, key: str, severity: int) -> NDArray[np.uint8]:
        if (key, severity) not in self._arrays:
            part = ImagePart(self.dataset, key, severity)
            found = self._owner.find_intact(part)
            self._arrays[key, severity] = self._owner.make_again(part) if found is None else found
        return self._arrays[key, severity]

    def _path(self, key: str) -> Path:
        return self._owner.path(ImagePart(self.dataset, key, 1)).parent
