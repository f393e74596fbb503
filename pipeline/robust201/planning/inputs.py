"""What a sweep reads: images, corrupted images and weights, opened the same way by the driver and by every worker."""

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Literal

from robust201.core.errors import CheckpointError, DatasetError
from robust201.core.records import ImageSet, content_digest
from robust201.images import DATASETS, load_images, select
from robust201.images.corrupted import CorruptedStore, open_generated, open_published
from robust201.images.generated_folder import MANIFEST
from robust201.images.snapshot import read_snapshot, write_snapshot
from robust201.planning.config import (CorruptionsSection, SweepConfig)
from robust201.planning.facts import (DatasetFacts, Facts)
from robust201.tasks import (PERTURBATIONS)
from robust201.tasks.corruptions.folder import generate_corruptions
from robust201.tasks.corruptions.generator import GENERATOR_VERSION, FrostTextures, load_frost, synthetic_frost
from robust201.weights.store import CheckpointRecord, CheckpointStore

Say = Callable[[str], None]

_TELL_SECONDS = 30.0


class Inputs:
    """The inputs of a sweep, opened when they are first asked for.

    Args:
        config: the sweep.
        say: told of steps that take long.
    """

    def __init__(self, config: SweepConfig, say: Say = lambda _line: None) -> None:
        self._config = config
        self._say = say
        self._images: dict[str, ImageSet] = {}

    @cached_property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoint store."""
        return CheckpointStore(self._config.checkpoints.path)

    def checkpoint(self, dataset: str, index: int) -> CheckpointRecord:
        """Find the weights of one network.

        Raises:
            CheckpointError: there are none, or they belong to a network of another size.
        """
        section, network = self._config.checkpoints, self._config.network
        record = self.checkpoints.find(index, dataset, epochs=section.epochs, seed=section.seed)
        expected = network.channels, network.cells, DATASETS[dataset].n_classes
        got = record.channels, record.cells, record.n_classes
        if got != expected:
            raise CheckpointError(
                f"Choosing weights failed for #{index} {dataset} in {section.path}: expected a network of "
                f"{expected[0]} channels, {expected[1]} cells and {expected[2]} classes, got {got[0]}, {got[1]} and "
                f"{got[2]}. Set `network` to what the weights were trained with."
            )
        return record

    def images(self, dataset: str) -> ImageSet:
        """Load a dataset's selected test images; once.

        Raises:
            DatasetError: images are missing, damaged or fewer than asked for.
        """
        if dataset not in self._images:
            section, selection = self._config.datasets[dataset], self._config.images
            images = load_images(dataset, form=section.form, path=section.path)
            if selection.count is not None:
                images = select(images, count=selection.count, seed=selection.seed)
            self._images[dataset] = images
        return self._images[dataset]

    def _snapshot_folder(self, dataset: str, sha256: str) -> Path:
        return self._config.results / "images" / f"{dataset}-{sha256[:12]}"

    def keep_images(self) -> None:
        """Keep every dataset's selected images in the results folder, for workers to read; mend damaged ones."""
        for dataset in self._config.datasets:
            images = self.images(dataset)
            folder = self._snapshot_folder(dataset, images.sha256)
            try:
                read_snapshot(folder, dataset, images.sha256)
            except DatasetError:
                write_snapshot(folder, images)

    def kept_images(self, dataset: str, sha256: str) -> ImageSet:
        """Read the images that `keep_images` kept; once.

        Args:
            dataset: name of the dataset.
            sha256: hash that was planned.

        Raises:
            DatasetError: they are missing or damaged.
        """
        if dataset not in self._images:
            self._images[dataset] = read_snapshot(self._snapshot_folder(dataset, sha256), dataset, sha256)
        return self._images[dataset]

    def _corruptions_folder(self, dataset: str, section: CorruptionsSection) -> Path:
        if section.path is not None:
            return section.path
        # Another selection, seed or texture gets a folder of its own: what was generated is never overwritten.
        recipe = [self.images(dataset).sha256, section.seed, self._frost(section).sha256, GENERATOR_VERSION]
        return self._config.results / "corruptions" / f"{dataset}-{content_digest(recipe)[:12]}"

    def _frost(self, section: CorruptionsSection) -> FrostTextures:
        if section.frost == "imagecorruptions" and section.frost_path is not None:
            return load_frost(section.frost_path)
        return synthetic_frost(section.seed)

    def _corruption_keys(self, dataset: str) -> tuple[str, ...]:
        return tuple(key for key in self._config.keys_of(dataset) if PERTURBATIONS[key].kind == "corruption")

    def open_corruptions(self, dataset: str, *, verify: Literal["shape", "full"] = "shape") -> CorruptedStore:
        """Open a dataset's corrupted images, which are there already.

        Args:
            dataset: its name.
            verify: ``"full"`` also compares published files with their published MD5.

        Raises:
            DatasetError: they are missing, damaged, or were made from other images or with other settings.
        """
        section = self._config.datasets[dataset].corruptions
        assert section is not None  # noqa: S101 - keys_of leaves corruptions out where there is no section
        folder, images = self._corruptions_folder(dataset, section), self.images(dataset)
        if section.source == "published":
            keys = self._corruption_keys(dataset)
            return open_published(folder, images, n_images=DATASETS[dataset].n_test, verify=verify, keys=keys)
        frost = self._frost(section)
        return open_generated(folder, images, seed=section.seed, frost=frost, generator_version=GENERATOR_VERSION)

    def make_corruptions(self, dataset: str) -> None:
        """Generate the corrupted images that a sweep needs and that are not there yet."""
        section = self._config.datasets[dataset].corruptions
        keys = self._corruption_keys(dataset)
        if section is None or section.source == "published" or not keys:
            return
        generate_corruptions(
            self._corruptions_folder(dataset, section),
            self.images(dataset),
            keys=keys,
            seed=section.seed,
            frost=self._frost(section),
            progress=self._progress_of(f"Making corrupted images of {dataset}"),
        )

    def _progress_of(self, what: str) -> Callable[[int, int], None]:
        """Tell of a step when it begins to count, now and then after that, and when it has ended."""
        told = -_TELL_SECONDS

        def tell(done: int, total: int) -> None:
            nonlocal told
            if done >= total:
                self._say(f"{what}: all {total:,} done")
            elif time.monotonic() - told >= _TELL_SECONDS:
                told = time.monotonic()
                self._say(f"{what}: {done:,} of {total:,} so far")

        return tell

    def check(self) -> None:
        """Read everything that can be wrong before anything is written.

        Raises:
            InputError: weights or images are missing or damaged, or corrupted images that should be there already.
        """
        for dataset in self._config.datasets:
            for index in self._config.architecture_indices:
                self.checkpoints.check(self.checkpoint(dataset, index))
        for dataset, section in self._config.datasets.items():
            self.images(dataset)
            given = section.corruptions
            if given and (
                given.source == "published" or (self._corruptions_folder(dataset, given) / MANIFEST).exists()
            ):
                self.open_corruptions(dataset)

    def gather(self) -> Facts:
        """Hash everything the sweep reads, generating missing corrupted images first."""
        datasets: dict[str, DatasetFacts] = {}
        for dataset in self._config.datasets:
            self._say(f"Reading {dataset}")
            self.make_corruptions(dataset)
            keys = self._corruption_keys(dataset)
            images = self.images(dataset)
            corruptions = {}
            if keys:
                # The driver compares every published byte once a run; workers compare pixels with what it planned.
                store = self.open_corruptions(dataset, verify="full")
                corruptions = {key: store.identity(key) for key in keys}
            datasets[dataset] = DatasetFacts(len(images), images.sha256, corruptions)
        return Facts(
            datasets,
            {
                dataset: {index: self.checkpoint(dataset, index).sha256 for index in self._config.architecture_indices}
                for dataset in self._config.datasets
            },
        )
