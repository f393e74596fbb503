"""What a sweep reads: images, corrupted images and weights, opened the same way by the driver and by every worker."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.files import atomic_write
from robust201.core.records import ImageSelection, ImageSet, Part, content_digest
from robust201.core.user_code import hash_file, hash_files, read_code
from robust201.images import load_images
from robust201.images.adversarial import AdversarialStore
from robust201.images.corrupted import CorruptedStore, open_generated, open_published
from robust201.images.generated_folder import MANIFEST, GeneratorRecipe, unfinished_keys
from robust201.images.snapshot import read_snapshot, write_snapshot
from robust201.planning.config import CorruptionsSection, SweepConfig
from robust201.planning.input_facts import DatasetFacts, ImageFacts, InputFacts
from robust201.planning.plan import Plan
from robust201.planning.samples import Samples, choose_images
from robust201.planning.training_config import TrainingConfig
from robust201.planning.transfers import TransferParameters
from robust201.planning.weights import WeightsSource
from robust201.spaces.base import Space
from robust201.spaces.user_file import UserFileSpace
from robust201.tasks import Task
from robust201.tasks.corruptions.folder import generate_corruptions
from robust201.tasks.corruptions.generator import (
    GENERATOR_VERSION,
    FrostTextures,
    corruption_versions,
    load_frost,
    synthetic_frost,
)
from robust201.tasks.user_task import UserTask

Say = Callable[[str], None]

_TELL_SECONDS = 30.0


class Inputs:
    """The inputs of a sweep, opened at first use; `say` receives a line about each step that takes long.

    Of published corrupted images, those of `keys` and `datasets` alone are looked for; None for all of the sweep.
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
        self._samples: dict[str, ImageSet] = {}

    @cached_property
    def weights(self) -> WeightsSource:
        return WeightsSource(self._config, self._config.make_space({}))

    def images(self, dataset: str, own: ImageSelection | None = None) -> ImageSet:
        """Load, once, the test images that the sweep selects of a dataset, or what a measure asks for."""
        wanted = own or ImageSelection("test", self._config.images.count, self._config.images.seed)
        if (dataset, own) not in self._images:
            section, spec = self._config.datasets[dataset], self._config.dataset_spec(dataset)
            if wanted.split != "test" and section.path is not None and section.path.is_file():
                raise DatasetError(
                    f"Loading the {wanted.split} images of {dataset} failed for {section.path}: expected a folder with "
                    f"both splits, got a file, which holds one. Name the folder, or {self._without_split(wanted)}."
                )
            try:
                images = load_images(
                    spec,
                    form=section.form,
                    path=section.path,
                    split=wanted.split,
                    count=wanted.count,
                    seed=wanted.seed,
                )
            except DatasetError as error:
                if wanted.split == "test":
                    raise
                raise DatasetError(f"{error} Or {self._without_split(wanted)}.") from error
            self._images[dataset, own] = images
        return self._images[dataset, own]

    def _without_split(self, own: ImageSelection) -> str:
        keys = [key for key, given in self._config.parameters.items() if given.own_images == own]
        return f"set split: test for {', '.join(keys)}"

    def keep_images(self) -> None:
        """Copy every dataset's selected images to the results folder (see `keep_copy`)."""
        for dataset in self._config.datasets:
            for own in (None, *self._config.own_images):
                keep_copy(self._config, dataset, self.images(dataset, own))

    def keep_samples(self, samples: Samples | None) -> None:
        """Copy the images of every increment of samples to the results folder (see `keep_copy`)."""
        for (dataset, key), sample in {} if samples is None else samples.keys.items():
            images = self.images(dataset)
            if images.sha256 != sample.images_sha256:
                raise ConfigError(
                    f"Sampling failed for {dataset} {key}: expected the images {sample.images_sha256[:16]}, of which "
                    f"the sample in {self._config.results} was drawn, got {images.sha256[:16]}. Restore them, or "
                    "choose another results folder."
                )
            for increment in sample.increments:
                keep_copy(self._config, dataset, choose_images(images, increment.positions))

    def sampled_images(self, dataset: str, sha256: str) -> ImageSet:
        """Read images that `keep_samples` kept, once."""
        if sha256 not in self._samples:
            self._samples[sha256] = read_copy(self._config, dataset, sha256)
        return self._samples[sha256]

    def kept_images(self, dataset: str, sha256: str, own: ImageSelection | None = None) -> ImageSet:
        """Read images that `keep_images` kept, once; they must have the hash that was planned (see `images`)."""
        if (dataset, own) not in self._images:
            self._images[dataset, own] = read_copy(self._config, dataset, sha256)
        return self._images[dataset, own]

    def keep_code(self) -> None:
        """Keep the Python files that the sweep names in the results folder, from which workers execute them."""
        for path in self._config.code_files().values():
            copy_code(path, self._config.results, hash_file(path))

    def _image_size(self, dataset: str) -> int:
        return self._config.dataset_spec(dataset).image_size

    def _corruptions_folder(self, dataset: str, section: CorruptionsSection) -> Path:
        if section.path is not None:
            return section.path
        # Another selection, seed or texture gets a folder of its own: what was generated is never overwritten.
        recipe = [self.images(dataset).sha256, section.seed, self._frost(section).sha256, GENERATOR_VERSION]
        return self._generated / f"{dataset}-{content_digest(recipe)[:12]}"

    @property
    def _generated(self) -> Path:
        return self._config.results / "corruptions"

    def _none_are_generated(self, section: CorruptionsSection) -> bool:
        """Whether nothing was generated here yet: known without the textures, which take half a second to make."""
        return section.path is None and not self._generated.exists()

    def _frost(self, section: CorruptionsSection) -> FrostTextures:
        if section.frost == "imagecorruptions" and section.frost_path is not None:
            return load_frost(section.frost_path)
        return synthetic_frost(section.seed)

    def _recipe(self, section: CorruptionsSection) -> GeneratorRecipe:
        return GeneratorRecipe(GENERATOR_VERSION, section.seed, self._frost(section).identity())

    def _corruption_keys(self, dataset: str) -> tuple[str, ...]:
        return tuple(key for key in self._config.keys_of(dataset) if self._config.tasks[key].kind == "corruption")

    def _published_keys(self, dataset: str) -> tuple[str, ...]:
        is_asked = self._datasets is None or dataset in self._datasets
        keys = self._corruption_keys(dataset) if is_asked else ()
        return tuple(key for key in keys if self._keys is None or key in self._keys)

    def open_corruptions(self, dataset: str, *, verify: Literal["shape", "full"] = "shape") -> CorruptedStore:
        """Open a dataset's corrupted images, which are there already."""
        section = self._config.datasets[dataset].corruptions
        assert section is not None  # noqa: S101 - keys_of leaves corruptions out where there is no section
        folder, images = self._corruptions_folder(dataset, section), self.images(dataset)
        if section.source == "published":
            n_images, keys = self._config.dataset_spec(dataset).n_test, self._published_keys(dataset)
            return open_published(folder, images, n_images=n_images, verify=verify, keys=keys)
        return open_generated(folder, images, self._recipe(section))

    def unmade_corruptions(self, dataset: str) -> frozenset[str]:
        """List the corruptions of a dataset that are to be generated and have no images yet."""
        section = self._config.datasets[dataset].corruptions
        if section is None or section.source == "published":
            return frozenset()
        versions = corruption_versions(self._corruption_keys(dataset), self._image_size(dataset))
        if self._none_are_generated(section):
            return frozenset(versions)
        return frozenset(unfinished_keys(self._corruptions_folder(dataset, section), versions))

    def make_corruptions(self, dataset: str, wanted: Collection[str] | None = None) -> None:
        section = self._config.datasets[dataset].corruptions
        unmade = self.unmade_corruptions(dataset)
        keys = [key for key in self._corruption_keys(dataset) if key in unmade and (wanted is None or key in wanted)]
        if section is None or not keys:
            return
        generate_corruptions(
            self._corruptions_folder(dataset, section),
            self.images(dataset),
            keys=keys,
            seed=section.seed,
            frost=self._frost(section),
            progress=self._progress_of(f"Making corrupted images of {dataset}"),
        )

    def adversarial(self, dataset: str, protocol: str, indices: NDArray[np.int64]) -> AdversarialStore:
        """Open the images that a transfer shows, by its protocol; the folder need not exist yet."""
        folder = self._config.results / "adversarial" / f"{dataset}-{protocol[:16]}"
        return AdversarialStore(folder, indices, self._config.batch_size)

    def unmade_adversarial(self, plan: Plan, parts: Iterable[Part]) -> tuple[Part, ...]:
        """List what must be made on the sources of transfers before some parts can be computed, block by block."""
        transfers = self._config.transfers
        wanted: defaultdict[tuple[str, str], set[float]] = defaultdict(set)
        for part in parts:
            if part.unit.key in transfers:
                wanted[part.unit.dataset, part.unit.key].update(part.strengths)
        found = []
        for (dataset, key), strengths in wanted.items():
            unit = plan.source_unit(dataset, key)
            store = self.adversarial(dataset, unit.protocol, np.arange(unit.n_images))
            found += [Part(unit, *block) for block in store.missing(sorted(strengths))]
        return tuple(found)

    def _progress_of(self, what: str) -> Callable[[int, int], None]:
        """Tell of a step when it begins to count, now and then after that, and when it has ended."""
        reported = -_TELL_SECONDS

        def tell(done: int, total: int) -> None:
            nonlocal reported
            if done >= total:
                self._say(f"{what}: all {total:,} done")
            elif time.monotonic() - reported >= _TELL_SECONDS:
                reported = time.monotonic()
                self._say(f"{what}: {done:,} of {total:,} so far")

        return tell

    def check(self) -> None:
        """Read everything that can be wrong before anything is written."""
        for path in self._config.code_files().values():
            hash_file(path)
        for dataset in self._config.datasets:
            for architecture in self._config.selected_architectures:
                self.weights.check(dataset, architecture)
            for key, source in self._config.transfers.items():
                given = self._config.parameters[key]
                if isinstance(given, TransferParameters):
                    given.choose_weights(self.weights.find(dataset, source))
        for dataset, section in self._config.datasets.items():
            for own in (None, *self._config.own_images):
                self.images(dataset, own)
            if section.corruptions:
                self._check_corruptions(dataset, section.corruptions)

    def _check_corruptions(self, dataset: str, section: CorruptionsSection) -> None:
        if section.source == "published":
            if self._published_keys(dataset):
                self.open_corruptions(dataset)
            return
        if section.frost == "imagecorruptions":
            self._frost(section)
        if self._none_are_generated(section):
            return
        if (self._corruptions_folder(dataset, section) / MANIFEST).exists():
            self.open_corruptions(dataset)

    def gather(self, earlier: InputFacts | None = None) -> InputFacts:
        """Hash everything the sweep reads that is there.

        Of corrupted images that are not, or that are published and not asked for, the hash is what an `earlier`
        gathering found for the same recipe, or unknown.
        """
        datasets: dict[str, DatasetFacts] = {}
        for dataset in self._config.datasets:
            self._say(f"Reading the images of {dataset}")
            images = self.images(dataset)
            before = earlier.datasets.get(dataset) if earlier else None
            corruptions = self._gather_corruptions(dataset, before)
            own_images = {own: self.images(dataset, own) for own in self._config.own_images}
            datasets[dataset] = DatasetFacts(
                len(images),
                images.sha256,
                corruptions,
                {own: ImageFacts(len(found), found.sha256) for own, found in own_images.items()},
                dict(images.decoder),
            )
        code = hash_files(self._config.code_files())
        weights = WeightsSource(self._config, self._config.make_space(code))
        return InputFacts(
            datasets,
            {
                dataset: {name: weights.find(dataset, name) for name in self._config.selected_architectures}
                for dataset in self._config.datasets
            },
            code,
            {
                sha256: accuracy
                for dataset in self._config.datasets
                for name in self._config.selected_architectures
                for sha256, accuracy in weights.test_accuracies(dataset, name).items()
            },
        )

    def _gather_corruptions(self, dataset: str, earlier: DatasetFacts | None) -> dict[str, Mapping[str, Any]]:
        """Find what decides the pixels of each corruption of a dataset, as far as it is known."""
        section, keys = self._config.datasets[dataset].corruptions, self._corruption_keys(dataset)
        found: dict[str, Mapping[str, Any]] = {}
        if section is None:
            return found
        is_published = section.source == "published"
        unmade = self.unmade_corruptions(dataset)
        there = self._published_keys(dataset) if is_published else [key for key in keys if key not in unmade]
        if there:
            # The driver compares every published byte once a run; workers compare pixels with what it planned.
            store = self.open_corruptions(dataset, verify="full")
            found = {key: store.identity(key) for key in there}
        if earlier is not None and earlier.images_sha256 == self.images(dataset).sha256:
            known = {key: earlier.corruptions[key] for key in keys if key not in found and key in earlier.corruptions}
            if is_published:
                found |= {key: identity for key, identity in known.items() if identity["source"] == "published"}
            elif known:
                versions = corruption_versions(known, self._image_size(dataset))
                recipe = self._recipe(section)
                found |= {
                    key: identity for key, identity in known.items() if recipe.matches(key, versions[key], identity)
                }
        return {key: found[key] for key in keys if key in found}


def keep_copy(config: SweepConfig | TrainingConfig, dataset: str, images: ImageSet) -> None:
    """Copy images to the results folder, from which workers read them; a damaged copy is replaced."""
    try:
        read_copy(config, dataset, images.sha256)
    except DatasetError:
        write_snapshot(_copy_folder(config, dataset, images.sha256), images)


def read_copy(config: SweepConfig | TrainingConfig, dataset: str, sha256: str) -> ImageSet:
    """Read what `keep_copy` wrote; the images must have the hash that was planned."""
    return read_snapshot(_copy_folder(config, dataset, sha256), config.dataset_spec(dataset), sha256)


def _copy_folder(config: SweepConfig | TrainingConfig, dataset: str, sha256: str) -> Path:
    return config.results / "images" / f"{dataset}-{sha256[:12]}"


def kept_code(results: Path, sha256: str) -> Path:
    """Where the copy of a user's Python file lies that workers execute."""
    return results / "code" / f"{sha256}.py"


def copy_code(path: Path, results: Path, sha256: str) -> None:
    """Copy a user's Python file to where workers execute it; a damaged copy is replaced."""
    kept = kept_code(results, sha256)
    if not kept.is_file() or hash_file(kept) != kept.stem:
        with atomic_write(kept) as stream:
            stream.write(read_code(path))


def locate_tasks(config: SweepConfig, code: Mapping[str, str]) -> dict[str, Task]:
    """Find what a worker does by key: the user's own tasks lie in the results folder (see `Inputs.keep_code`)."""
    return {
        key: row.located(kept_code(config.results, code[f"keys.{key}"]), code[f"keys.{key}"])
        if isinstance(row, UserTask)
        else row
        for key, row in config.tasks.items()
    }


def locate_space(config: SweepConfig | TrainingConfig, code: Mapping[str, str]) -> Space:
    """Find the space of a worker: a user's own file lies in the results folder."""
    space = config.make_space(code)
    if isinstance(space, UserFileSpace):
        space.function = space.function.located(kept_code(config.results, code["space"]), code["space"])
    return space
