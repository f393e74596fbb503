"""A sweep's inputs: images, corrupted images and weights, opened in the same way by the driver and all workers."""

import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from robust201.core.errors import DatasetError
from robust201.core.files import atomic_write
from robust201.core.input_facts import DatasetFacts, ImageFacts, InputFacts
from robust201.core.records import ImageSelection, ImageSet, content_digest
from robust201.core.user_code import hash_file, hash_files, read_code
from robust201.images import load_images
from robust201.images.corrupted import CorruptedStore, open_generated, open_published
from robust201.images.store import ArrayFolder, read_image_set, write_image_set
from robust201.spaces.base import Space
from robust201.spaces.user_file import UserFileSpace
from robust201.sweep.config import CorruptionsSection, SweepConfig
from robust201.sweep.training_config import TrainingConfig
from robust201.sweep.weights import WeightsSource
from robust201.tasks import Task
from robust201.tasks.corruptions.folder import find_unfinished_corruptions, generate_corruptions
from robust201.tasks.corruptions.generator import (
    GENERATOR_VERSION,
    FrostTextures,
    corruption_recipes,
    load_frost,
    synthetic_frost,
)
from robust201.tasks.user_task import UserTask

Say = Callable[[str], None]

_REPORT_SECONDS = 30.0


class Inputs:
    """The inputs of a sweep, opened at first use.

    `say` is called with a line about each slow step. Published corrupted images are opened only for `keys` and
    `datasets`; None means all keys or datasets of the sweep.
    """

    def __init__(
        self,
        config: SweepConfig,
        say: Say = lambda _line: None,
        *,
        keys: Collection[str] | None = None,
        datasets: Collection[str] | None = None,
    ) -> None:
        self._config = config
        self._keys, self._datasets = keys, datasets
        self._say = say
        self._images: dict[tuple[str, ImageSelection | None], ImageSet] = {}

    @cached_property
    def weights(self) -> WeightsSource:
        return WeightsSource(self._config, self._config.make_space({}))

    def images(self, dataset: str, own_selection: ImageSelection | None = None) -> ImageSet:
        """Return the images that a measure selects, or by default the sweep's test images (cached)."""
        selection = own_selection or ImageSelection("test", self._config.images.count, self._config.images.seed)
        if (dataset, own_selection) not in self._images:
            section, spec = self._config.datasets[dataset], self._config.dataset_spec(dataset)
            if selection.split != "test" and section.path is not None and section.path.is_file():
                raise DatasetError(
                    f"Loading the {selection.split} images of {dataset} failed for {section.path}: expected a folder "
                    "with both splits, got a file, which contains only one split. Set `path` to a folder, or "
                    f"{self._test_split_advice(selection)}."
                )
            try:
                images = load_images(
                    spec,
                    form=section.form,
                    path=section.path,
                    split=selection.split,
                    count=selection.count,
                    seed=selection.seed,
                )
            except DatasetError as error:
                if selection.split == "test":
                    raise
                raise DatasetError(f"{error} Or {self._test_split_advice(selection)}.") from error
            self._images[dataset, own_selection] = images
        return self._images[dataset, own_selection]

    def _test_split_advice(self, own_selection: ImageSelection) -> str:
        keys = [key for key, parameters in self._config.parameters.items() if parameters.own_images == own_selection]
        return f"set `split: test` for {', '.join(keys)}"

    def copy_images(self) -> None:
        """Copy every dataset's selected images to the results folder (see `save_image_copy`)."""
        for dataset in self._config.datasets:
            for own_selection in (None, *self._config.own_images):
                save_image_copy(self._config, dataset, self.images(dataset, own_selection))

    def read_copied_images(self, dataset: str, sha256: str, own_selection: ImageSelection | None = None) -> ImageSet:
        """Read images that `copy_images` has copied (cached); their hash must be `sha256`."""
        if (dataset, own_selection) not in self._images:
            self._images[dataset, own_selection] = read_image_copy(self._config, dataset, sha256)
        return self._images[dataset, own_selection]

    def save_code_copies(self) -> None:
        """Copy the sweep's Python files to the results folder; workers execute the copies."""
        for path in self._config.code_files().values():
            copy_code(path, self._config.results, hash_file(path))

    def _corruptions_folder(self, dataset: str, section: CorruptionsSection) -> Path:
        if section.path is not None:
            return section.path
        # Every combination of images, seed, textures and version has a separate folder, so that generated images are
        # never overwritten.
        identity = [self.images(dataset).sha256, section.seed, self._frost_textures(section).sha256, GENERATOR_VERSION]
        return self._generated_folder / f"{dataset}-{content_digest(identity)[:12]}"

    @property
    def _generated_folder(self) -> Path:
        return self._config.results / "corruptions"

    def _has_no_generated_images(self, section: CorruptionsSection) -> bool:
        """Return whether the sweep generates corrupted images but the folder for them does not exist yet.

        This needs no frost textures, whose creation takes half a second.
        """
        return section.path is None and not self._generated_folder.exists()

    def _frost_textures(self, section: CorruptionsSection) -> FrostTextures:
        if section.frost == "imagecorruptions" and section.frost_path is not None:
            return load_frost(section.frost_path)
        return synthetic_frost(section.seed)

    def _corruption_recipes(
        self, dataset: str, section: CorruptionsSection, keys: Collection[str]
    ) -> dict[str, dict[str, Any]]:
        image_size, frost = self._config.dataset_spec(dataset).image_size, self._frost_textures(section)
        return corruption_recipes(keys, image_size, seed=section.seed, frost=frost)

    def _corruption_keys(self, dataset: str) -> tuple[str, ...]:
        return tuple(key for key in self._config.keys_of(dataset) if self._config.tasks[key].kind == "corruption")

    def selected_corruption_keys(self, dataset: str) -> tuple[str, ...]:
        """Return the corruptions of a dataset among the selected keys."""
        is_selected = self._datasets is None or dataset in self._datasets
        keys = self._corruption_keys(dataset) if is_selected else ()
        return tuple(key for key in keys if self._keys is None or key in self._keys)

    def open_corruptions(self, dataset: str, *, verify: Literal["shape", "full"] = "shape") -> CorruptedStore:
        """Open a dataset's corrupted images, which must exist."""
        section = self._config.datasets[dataset].corruptions
        assert section is not None  # noqa: S101 - without a section, keys_of returns no corruptions
        folder, images = self._corruptions_folder(dataset, section), self.images(dataset)
        if section.source == "published":
            n_images, keys = self._config.dataset_spec(dataset).n_test, self.selected_corruption_keys(dataset)
            return open_published(folder, images, n_images=n_images, verify=verify, keys=keys)
        return open_generated(folder, images)

    def missing_corruptions(self, dataset: str) -> frozenset[str]:
        """Return the corruptions of a dataset whose images have yet to be generated."""
        section = self._config.datasets[dataset].corruptions
        if section is None or section.source == "published":
            return frozenset()
        keys = self._corruption_keys(dataset)
        if self._has_no_generated_images(section):
            return frozenset(keys)
        recipes = self._corruption_recipes(dataset, section, keys)
        return frozenset(find_unfinished_corruptions(self._corruptions_folder(dataset, section), recipes))

    def generate_missing_corruptions(self, dataset: str, selected_keys: Collection[str] | None = None) -> None:
        """Generate the missing corruptions of a dataset, or only those in `selected_keys` if it is given."""
        section = self._config.datasets[dataset].corruptions
        missing = self.missing_corruptions(dataset)
        keys = [
            key
            for key in self._corruption_keys(dataset)
            if key in missing and (selected_keys is None or key in selected_keys)
        ]
        if section is None or not keys:
            return
        generate_corruptions(
            self._corruptions_folder(dataset, section),
            self.images(dataset),
            keys=keys,
            seed=section.seed,
            frost=self._frost_textures(section),
            progress=self._progress_reporter(f"Generating corrupted images of {dataset}"),
        )

    def _progress_reporter(self, step: str) -> Callable[[int, int], None]:
        """Return a callback that reports a step's progress at the first call, then every 30 seconds, and at the end."""
        last_report = -_REPORT_SECONDS

        def report(n_done: int, n_total: int) -> None:
            nonlocal last_report
            if n_done >= n_total:
                self._say(f"{step}: all {n_total:,} done")
            elif time.monotonic() - last_report >= _REPORT_SECONDS:
                last_report = time.monotonic()
                self._say(f"{step}: {n_done:,} of {n_total:,} done")

        return report

    def check(self) -> None:
        """Check all inputs before anything is written."""
        for path in self._config.code_files().values():
            hash_file(path)
        for dataset in self._config.datasets:
            for architecture in self._config.selected_architectures:
                self.weights.check(dataset, architecture)
        for dataset, section in self._config.datasets.items():
            for own_selection in (None, *self._config.own_images):
                self.images(dataset, own_selection)
            if section.corruptions:
                self._check_corruptions(dataset, section.corruptions)

    def _check_corruptions(self, dataset: str, section: CorruptionsSection) -> None:
        if section.source == "published":
            if self.selected_corruption_keys(dataset):
                self.open_corruptions(dataset)
            return
        if section.frost == "imagecorruptions":
            self._frost_textures(section)
        if self._has_no_generated_images(section):
            return
        if ArrayFolder(self._corruptions_folder(dataset, section)).exists:
            self.missing_corruptions(dataset)
            self.open_corruptions(dataset)

    def gather(self, earlier_facts: InputFacts | None = None) -> InputFacts:
        """Hash all inputs of the sweep that exist.

        If corrupted images do not exist yet, or are published and not selected, their hash is taken from
        `earlier_facts`, provided that the clean images are the same and, for generated images, also the generator's
        version and settings. Otherwise the hash is unknown.
        """
        datasets: dict[str, DatasetFacts] = {}
        for dataset in self._config.datasets:
            self._say(f"Reading the images of {dataset}")
            images = self.images(dataset)
            earlier_dataset_facts = earlier_facts.datasets.get(dataset) if earlier_facts else None
            corruptions = self._gather_corruptions(dataset, earlier_dataset_facts)
            own_images = {
                own_selection: self.images(dataset, own_selection) for own_selection in self._config.own_images
            }
            datasets[dataset] = DatasetFacts(
                len(images),
                images.sha256,
                corruptions,
                {
                    own_selection: ImageFacts(len(image_set), image_set.sha256)
                    for own_selection, image_set in own_images.items()
                },
                dict(images.decoder),
            )
        code = hash_files(self._config.code_files())
        weights = WeightsSource(self._config, self._config.make_space(code))
        return InputFacts(
            datasets,
            {
                dataset: {
                    architecture: weights.find(dataset, architecture)
                    for architecture in self._config.selected_architectures
                }
                for dataset in self._config.datasets
            },
            code,
            {
                sha256: accuracy
                for dataset in self._config.datasets
                for architecture in self._config.selected_architectures
                for sha256, accuracy in weights.test_accuracies(dataset, architecture).items()
            },
        )

    def _gather_corruptions(self, dataset: str, earlier_facts: DatasetFacts | None) -> dict[str, Mapping[str, Any]]:
        """Return the known identities of a dataset's corrupted images (source, hash and recipe), by key."""
        section, keys = self._config.datasets[dataset].corruptions, self._corruption_keys(dataset)
        identities: dict[str, Mapping[str, Any]] = {}
        if section is None:
            return identities
        is_published = section.source == "published"
        missing_keys = self.missing_corruptions(dataset)
        existing_keys = [key for key in keys if key not in missing_keys]
        if is_published:
            existing_keys = [*self.selected_corruption_keys(dataset)]
        if existing_keys:
            # The driver verifies all published bytes once per run; workers compare pixels with the planned hashes.
            store = self.open_corruptions(dataset, verify="full")
            identities = {key: store.identity(key) for key in existing_keys}
        if earlier_facts is not None and earlier_facts.images_sha256 == self.images(dataset).sha256:
            earlier_identities = {
                key: earlier_facts.corruptions[key]
                for key in keys
                if key not in identities and key in earlier_facts.corruptions
            }
            if is_published:
                identities |= {
                    key: identity for key, identity in earlier_identities.items() if identity["source"] == "published"
                }
            elif earlier_identities:
                recipes = self._corruption_recipes(dataset, section, earlier_identities)
                identities |= {
                    key: identity
                    for key, identity in earlier_identities.items()
                    if identity == {"source": "generated", "sha256": identity.get("sha256"), **recipes[key]}
                }
        return {key: identities[key] for key in keys if key in identities}


def save_image_copy(config: SweepConfig | TrainingConfig, dataset: str, images: ImageSet) -> None:
    """Copy images to the results folder for workers; a damaged copy is replaced."""
    try:
        read_image_copy(config, dataset, images.sha256)
    except DatasetError:
        write_image_set(_folder_of_copy(config, dataset, images.sha256), images)


def read_image_copy(config: SweepConfig | TrainingConfig, dataset: str, sha256: str) -> ImageSet:
    """Read images that `save_image_copy` wrote; they must have the planned hash."""
    return read_image_set(_folder_of_copy(config, dataset, sha256), config.dataset_spec(dataset), sha256)


def _folder_of_copy(config: SweepConfig | TrainingConfig, dataset: str, sha256: str) -> Path:
    return config.results / "images" / f"{dataset}-{sha256[:12]}"


def code_copy_path(results: Path, sha256: str) -> Path:
    """Return the path of the copy of a user's Python file that workers execute."""
    return results / "code" / f"{sha256}.py"


def copy_code(path: Path, results: Path, sha256: str) -> None:
    """Copy a user's Python file to the results folder for workers; a damaged copy is replaced."""
    copy_path = code_copy_path(results, sha256)
    if not copy_path.is_file() or hash_file(copy_path) != copy_path.stem:
        with atomic_write(copy_path) as stream:
            stream.write(read_code(path))


def make_worker_tasks(config: SweepConfig, code: Mapping[str, str]) -> dict[str, Task]:
    """Return a worker's tasks by key; custom tasks use the copies of their files in the results folder."""
    return {
        key: task.located(code_copy_path(config.results, code[f"keys.{key}"]), code[f"keys.{key}"])
        if isinstance(task, UserTask)
        else task
        for key, task in config.tasks.items()
    }


def make_worker_space(config: SweepConfig | TrainingConfig, code: Mapping[str, str]) -> Space:
    """Return the space for a worker; the space of a user's file uses the copy of the file in the results folder."""
    space = config.make_space(code)
    if isinstance(space, UserFileSpace):
        space.function = space.function.located(code_copy_path(config.results, code["space"]), code["space"])
    return space
