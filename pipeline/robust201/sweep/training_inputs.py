"""Images of training runs, opened by the driver and copied for workers. The module does not need torch."""

from collections.abc import Callable, Mapping

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.records import ImageSet, Split
from robust201.images import load_images, select
from robust201.sweep.inputs import copy_code, read_image_copy, save_image_copy
from robust201.sweep.training_config import TrainingConfig, TrainingRun
from robust201.training.data import Fusion, Mixture, OneSource, TrainingData

Hashes = Mapping[tuple[str, Split], str]
"""`ImageSet.sha256` by dataset and split."""


class TrainingInputs:
    """Images of training runs, opened at first use.

    `report` is called with a line about each slow step. If `copy_hashes` is not None, images are read from the copies
    written by `save_copies` of another instance.
    """

    def __init__(
        self,
        config: TrainingConfig,
        report: Callable[[str], None] = lambda _line: None,
        *,
        copy_hashes: Hashes | None = None,
    ) -> None:
        self._config = config
        self._report = report
        self._copy_hashes = copy_hashes
        self._images: dict[tuple[str, Split], ImageSet] = {}
        self._data: dict[tuple[str, str], TrainingData] = {}

    def data(self, recipe: str, dataset: str) -> TrainingData:
        """Return a recipe's training data on a dataset, with that dataset's normalisation."""
        if (recipe, dataset) not in self._data:
            section = self._config.recipes[recipe].data
            images = [self._load_images(name, "train") for name in self._config.sources(recipe, dataset)]
            data: TrainingData
            if section is not None and section.mixture is not None:
                data = Mixture(images[0], images[1], section.mixture.alpha)
            elif section is not None and section.fusion is not None:
                fusion, normalisation = section.fusion, self._config.dataset_spec(dataset).normalisation
                data = Fusion(images[0], images[1], fusion.alpha, fusion.label, normalisation)
            else:
                data = OneSource(images[0])
            self._check_classes(recipe, dataset, data)
            self._data[recipe, dataset] = data
        return self._data[recipe, dataset]

    def _check_classes(self, recipe: str, dataset: str, data: TrainingData) -> None:
        expected = self._config.dataset_spec(dataset).n_classes
        if data.n_classes != expected:
            raise ConfigError(
                f"Reading training data failed for {recipe} on {dataset}: {dataset} has {expected} classes, but the "
                f"training data ({data.name}) has {data.n_classes}. Correct the recipe's `data`, or restrict the "
                "recipe to other datasets with `on`."
            )

    def test_images(self, dataset: str) -> ImageSet | None:
        """Return all test images of a dataset; if they cannot be read, report the reason and return None."""
        if self._copy_hashes is not None:
            return self._load_images(dataset, "test") if (dataset, "test") in self._copy_hashes else None
        try:
            return self._load_images(dataset, "test")
        except DatasetError as error:  # test accuracies are only informative
            self._report(f"Test accuracies will not be computed: {error}")
            return None

    def _load_images(self, dataset: str, split: Split) -> ImageSet:
        selection = dataset, split
        if selection not in self._images:
            spec, section = self._config.dataset_spec(dataset), self._config.datasets[dataset]
            if self._copy_hashes is not None:
                self._images[selection] = read_image_copy(self._config, dataset, self._copy_hashes[selection])
                return self._images[selection]
            if split == "test" and section.path is not None and section.path.is_file():
                raise DatasetError(
                    f"Loading the test images of {dataset} failed for {section.path}: expected a folder with both "
                    "splits, got a single file; its images are used for training. Set `path` to the folder."
                )
            self._report(f"Reading the {'training' if split == 'train' else split} images of {dataset}")
            images = load_images(spec, form=section.form, path=section.path, split=split)
            subset = self._config.images
            if split == "train" and subset.count is not None:
                images = select(images, count=subset.count, seed=subset.seed)
            self._images[selection] = images
        return self._images[selection]

    def save_copies(self) -> Hashes:
        """Copy all opened images to the run's folder for workers, replacing damaged copies; return their hashes."""
        for (dataset, _), images in self._images.items():
            save_image_copy(self._config, dataset, images)
        return {selection: images.sha256 for selection, images in self._images.items()}

    def save_code_copies(self, hashes: Mapping[str, str]) -> None:
        """Copy the YAML's Python files to the run's folder; workers execute the copies."""
        for field, path in self._config.code_files().items():
            copy_code(path, self._config.results, hashes[field])


def count_epoch_images(config: TrainingConfig, training: TrainingRun) -> int | None:
    """Return the number of images per epoch, from the YAML and the table of datasets; None if it is unknown."""
    source_names = config.sources(training.recipe, training.dataset)
    data_section = config.recipes[training.recipe].data
    counted_names = source_names if data_section is not None and data_section.fusion is not None else source_names[:1]
    image_counts = [config.images.count or config.dataset_spec(name).n_train for name in counted_names]
    return None if 0 in image_counts else min(image_counts)
