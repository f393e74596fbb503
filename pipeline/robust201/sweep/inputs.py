"""A sweep's inputs: images, corrupted images, weights and code, and the copies of images and code that workers read."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from robust201.core.errors import DatasetError
from robust201.core.files import atomic_write
from robust201.core.records import ImageSelection, ImageSet
from robust201.core.user_code import hash_file, read_code
from robust201.corruptions.frost_textures import FrostTextures, load_frost, synthetic_frost
from robust201.evaluation.user_task import UserTask
from robust201.images import load_images
from robust201.images.corrupted import CorruptedStore, open_published
from robust201.images.selection import select_listed
from robust201.images.store import read_image_set, write_image_set
from robust201.networks.space import Space
from robust201.networks.user_file import UserFileSpace
from robust201.sweep.config import CorruptionsSection, SweepConfig
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.training_config import TrainingConfig
from robust201.sweep.weights import WeightsSource
from robust201.tasks import Task


class Inputs:
    """The inputs of a sweep, opened at first use.

    Published corrupted images and weights need to exist only for keys and networks that `filters` selects.
    """

    def __init__(self, config: SweepConfig, filters: Filters = EVERYTHING) -> None:
        self._config = config
        self.filters = filters
        self._images: dict[tuple[str, ImageSelection | None], ImageSet] = {}
        self._copies: dict[tuple[str, str], ImageSet] = {}

    @cached_property
    def weights(self) -> WeightsSource:
        return WeightsSource(self._config, self._config.make_space({}))

    def images(self, dataset: str, key_selection: ImageSelection | None = None) -> ImageSet:
        """Return the images that a key selects, or by default the sweep's test images (cached)."""
        selection = key_selection or ImageSelection("test", self._config.images.count, self._config.images.seed)
        if (dataset, key_selection) not in self._images:
            section, spec = self._config.datasets[dataset], self._config.dataset_spec(dataset)
            if selection.split != "test" and section.path is not None and section.path.is_file():
                raise DatasetError(
                    f"Loading the {selection.split} images of {dataset} failed for {section.path}: expected a folder "
                    "with both splits, got a file, which contains only one split. Set `path` to a folder, or set "
                    "`split: test` for the measures."
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
                raise DatasetError(f"{error} Or set `split: test` for the measures.") from error
            if selection.file is not None:
                images = select_listed(images, Path(selection.file))
            self._images[dataset, key_selection] = images
        return self._images[dataset, key_selection]

    def copy_images(self) -> None:
        """Copy every dataset's selected images to the results folder (see `save_image_copy`)."""
        for dataset in self._config.datasets:
            for key_selection in (None, *self._config.image_selections):
                save_image_copy(self._config, dataset, self.images(dataset, key_selection))

    def read_copied_images(self, dataset: str, sha256: str) -> ImageSet:
        """Read images that `copy_images` has copied (cached); their hash must be `sha256`."""
        if (dataset, sha256) not in self._copies:
            self._copies[dataset, sha256] = read_image_copy(self._config, dataset, sha256)
        return self._copies[dataset, sha256]

    def save_code_copies(self) -> None:
        """Copy the sweep's Python files to the results folder; workers execute the copies."""
        for path in self._config.code_files().values():
            copy_code(path, self._config.results, hash_file(path))

    def _corruption_keys(self, dataset: str) -> tuple[str, ...]:
        return tuple(key for key in self._config.keys_of(dataset) if self._config.tasks[key].kind == "corruption")

    def selected_corruption_keys(self, dataset: str) -> tuple[str, ...]:
        """Return the corruptions of a dataset among the selected keys."""
        datasets, keys = self.filters.datasets, self.filters.keys
        known = self._corruption_keys(dataset) if datasets is None or dataset in datasets else ()
        return tuple(key for key in known if keys is None or key in keys)

    def open_published_corruptions(
        self, dataset: str, images: ImageSet | None = None, *, verify: bool = False
    ) -> CorruptedStore:
        """Open the published corrupted versions of clean images, by default the sweep's; their files must exist."""
        section = self._config.datasets[dataset].corruptions
        assert section is not None and section.path is not None  # noqa: S101, PT018 - the schema requires a path
        n_images, keys = self._config.dataset_spec(dataset).n_test, self.selected_corruption_keys(dataset)
        images = self.images(dataset) if images is None else images
        return open_published(section.path, images, n_images=n_images, verify=verify, keys=keys)

    def check(self) -> None:
        """Check all inputs before anything is written."""
        for path in self._config.code_files().values():
            hash_file(path)
        for dataset in self._config.datasets:
            for architecture in self._config.selected_architectures:
                if self.filters.selects(dataset, architecture):
                    self.weights.check(dataset, architecture)
        for dataset, section in self._config.datasets.items():
            for key_selection in (None, *self._config.image_selections):
                self.images(dataset, key_selection)
            if section.corruptions:
                self._check_corruptions(dataset, section.corruptions)

    def _check_corruptions(self, dataset: str, section: CorruptionsSection) -> None:
        if section.source == "published" and self.selected_corruption_keys(dataset):
            self.open_published_corruptions(dataset)
        if section.source == "generated" and section.frost == "imagecorruptions":
            frost_textures(section)


def frost_textures(section: CorruptionsSection) -> FrostTextures:
    """Return the frost textures of generated corruptions; computing synthetic textures takes half a second."""
    if section.frost == "imagecorruptions" and section.frost_path is not None:
        return load_frost(section.frost_path)
    return synthetic_frost(section.seed)


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
