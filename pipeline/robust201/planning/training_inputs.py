"""Images of trainings, opened in the same way by the driver and by every worker. No torch."""

from collections.abc import Callable, Mapping

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.records import ImageSet, Split
from robust201.images import load_images, select
from robust201.planning.inputs import copy_code, keep_copy, read_copy
from robust201.planning.training_config import Training, TrainingConfig
from robust201.training.data import Fusion, Mixture, OneSource, TrainingData

Hashes = Mapping[tuple[str, Split], str]
"""`ImageSet.sha256` by dataset and split."""


class TrainingInputs:
    """Images of trainings, each opened at first use; with `kept`, from the copies that another instance's `keep` wrote.

    `say` receives a line about each step that takes long.
    """

    def __init__(
        self, config: TrainingConfig, say: Callable[[str], None] = lambda _line: None, *, kept: Hashes | None = None
    ) -> None:
        self._config = config
        self._say = say
        self._kept = kept
        self._images: dict[tuple[str, Split], ImageSet] = {}
        self._data: dict[tuple[str, str], TrainingData] = {}

    def data(self, recipe: str, dataset: str) -> TrainingData:
        """Training data of a recipe on a dataset, with the normalisation of that dataset."""
        if (recipe, dataset) not in self._data:
            section = self._config.recipes[recipe].data
            images = [self._open(name, "train") for name in self._config.sources(recipe, dataset)]
            data: TrainingData
            if section is not None and section.mixture is not None:
                data = Mixture(images[0], images[1], section.mixture.alpha)
            elif section is not None and section.fusion is not None:
                given, normalisation = section.fusion, self._config.dataset_spec(dataset).normalisation
                data = Fusion(images[0], images[1], given.alpha, given.label, normalisation)
            else:
                data = OneSource(images[0])
            self._check_classes(recipe, dataset, data)
            self._data[recipe, dataset] = data
        return self._data[recipe, dataset]

    def _check_classes(self, recipe: str, dataset: str, data: TrainingData) -> None:
        expected = self._config.dataset_spec(dataset).n_classes
        if data.n_classes != expected:
            raise ConfigError(
                f"Reading training data failed for {recipe} on {dataset}: expected {expected} classes, as {dataset} "
                f"has, got {data.n_classes} of {data.name}. Correct `data` of the recipe, or limit it with `on`."
            )

    def test_images(self, dataset: str) -> ImageSet | None:
        """The whole test split of a dataset; None, with a message, where it cannot be read."""
        if self._kept is not None:
            return self._open(dataset, "test") if (dataset, "test") in self._kept else None
        try:
            return self._open(dataset, "test")
        except DatasetError as error:  # test accuracies are only informative
            self._say(f"Without test accuracies: {error}")
            return None

    def _open(self, dataset: str, split: Split) -> ImageSet:
        place = dataset, split
        if place not in self._images:
            spec, section = self._config.dataset_spec(dataset), self._config.datasets[dataset]
            if self._kept is not None:
                self._images[place] = read_copy(self._config, dataset, self._kept[place])
                return self._images[place]
            if split == "test" and section.path is not None and section.path.is_file():
                raise DatasetError(
                    f"Loading the test images of {dataset} failed for {section.path}: expected a folder with both "
                    "splits, got a single file, whose images are used for training. Name the folder."
                )
            self._say(f"Reading the {'training' if split == 'train' else split} images of {dataset}")
            images = load_images(spec, form=section.form, path=section.path, split=split)
            chosen = self._config.images
            if split == "train" and chosen.count is not None:
                images = select(images, count=chosen.count, seed=chosen.seed)
            self._images[place] = images
        return self._images[place]

    def keep(self) -> Hashes:
        """Write all opened images to the run's folder, for workers; give their hashes. Damaged copies are replaced."""
        for (dataset, _), images in self._images.items():
            keep_copy(self._config, dataset, images)
        return {place: images.sha256 for place, images in self._images.items()}

    def keep_code(self, hashes: Mapping[str, str]) -> None:
        """Copy the Python files of the trainings to the run's folder, from which workers execute them."""
        for field, path in self._config.code_files().items():
            copy_code(path, self._config.results, hashes[field])


def count_epoch_images(config: TrainingConfig, training: Training) -> int | None:
    """Count the images of an epoch from the table of datasets alone; None if it has no number of images."""
    names = config.sources(training.recipe, training.dataset)
    data = config.recipes[training.recipe].data
    counted = names if data is not None and data.fusion is not None else names[:1]
    counts = [config.images.count or config.dataset_spec(name).n_train for name in counted]
    return None if 0 in counts else min(counts)
