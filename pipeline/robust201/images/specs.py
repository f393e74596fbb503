"""The table of datasets, with the classes, sizes, normalisation and file forms of each dataset."""

from dataclasses import dataclass

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import NO_NORMALISATION, Normalisation

UNKNOWN_COUNT = 0
"""Marker for a number (of images, classes or pixels per side) that is unknown until images are read."""

RESAMPLING_FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
"""Names of Pillow's filters. When an image shrinks, every filter except `nearest` averages over the source pixels."""

MAX_SHORTER_SIDE = 8192
"""Upper limit of the shorter side in pixels after resizing."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Rule that brings images to one size: resize the shorter side, then crop the central square.

    The side of the square is the image size of the dataset. With an image size of 224, the defaults are torchvision's
    rule for evaluating most of its networks on ImageNet.

    Attributes:
        shorter_side: pixels of the shorter side after resizing; the other side keeps the aspect ratio, rounded down.
        resampling: one of `RESAMPLING_FILTERS`.
    """

    shorter_side: int = 256
    resampling: str = "bilinear"

    def check(self, image_size: int) -> None:
        """Raise a `ConfigError` for an unknown filter, an unknown image size, or a shorter side out of range."""
        if self.resampling not in RESAMPLING_FILTERS:
            raise ConfigError(
                f"Resizing images failed for resampling {self.resampling!r}: there is no such filter."
                f"{did_you_mean(self.resampling, RESAMPLING_FILTERS)}"
            )
        if image_size == UNKNOWN_COUNT:
            raise ConfigError(
                "Resizing images failed: the size of the square to crop is missing. Set an image size, such as 224."
            )
        if not image_size <= self.shorter_side <= MAX_SHORTER_SIDE:
            raise ConfigError(
                f"Resizing images failed: expected a shorter side of {image_size} (the image size) to "
                f"{MAX_SHORTER_SIDE:,} pixels, got {self.shorter_side}. Correct the shorter side or the image size."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """Properties of a dataset; the defaults are for custom datasets.

    Attributes:
        name: name in sweeps and exported files, such as ``"ImageNet16-120"``.
        n_classes: number of classes; if `UNKNOWN_COUNT`, it is taken from the files.
        image_size: height and width in pixels; if `UNKNOWN_COUNT`, they are taken from the first image.
        channels: 3 (RGB), or 1 (grey).
        resize: rule for images in Parquet files and class folders; None rejects images of other sizes.
        n_train: number of images in the full training split.
        n_test: number of images in the full test split.
        class_names: one name per class, in label order.
        normalisation: per-channel mean and standard deviation of pixels in [0, 1].
        forms: names of the file forms (see `images.loading.FORMS`), in the order in which a loader tries them.
        corruptions: name of the published corrupted test split in the registry of downloads, or None.
        folder: name of the dataset's download, and of a folder to search in the data folder; if empty, `name`.
    """

    name: str
    n_classes: int
    image_size: int
    class_names: tuple[str, ...]
    channels: int = 3
    resize: Resize | None = None
    n_train: int = UNKNOWN_COUNT
    n_test: int = UNKNOWN_COUNT
    normalisation: Normalisation = NO_NORMALISATION
    forms: tuple[str, ...] = ("npz", "parquet", "folders")
    corruptions: str | None = None
    folder: str = ""

    @property
    def folder_name(self) -> str:
        return self.folder or self.name


def _normalisation_from_8_bits(mean: tuple[float, float, float], std: tuple[float, float, float]) -> Normalisation:
    """Convert a normalisation from units of 1/255 to the pixel range [0, 1]."""
    return Normalisation(
        (mean[0] / 255, mean[1] / 255, mean[2] / 255),
        (std[0] / 255, std[1] / 255, std[2] / 255),
    )


_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_CIFAR100_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""  # fine labels in alphabetical order, as in `fine_label_names.txt` of the official archive


def _cifar_spec(name: str, class_names: tuple[str, ...], normalisation: Normalisation, corruptions: str) -> DatasetSpec:
    return DatasetSpec(
        name=name,
        n_classes=len(class_names),
        image_size=32,
        n_train=50_000,
        n_test=10_000,
        class_names=class_names,
        normalisation=normalisation,
        forms=("binary", "python", "parquet"),
        corruptions=corruptions,
    )


_SPECS = (
    # The normalisations of the first three datasets, in units of 1/255, come from the training code of NAS-Bench-201
    # (AutoDL-Projects, get_dataset_with_transform.py).
    _cifar_spec(
        "cifar10", _CIFAR10_CLASSES, _normalisation_from_8_bits((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)), "CIFAR-10-C"
    ),
    _cifar_spec(
        "cifar100",
        tuple(_CIFAR100_CLASSES.split()),
        _normalisation_from_8_bits((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
        "CIFAR-100-C",
    ),
    DatasetSpec(
        name="ImageNet16-120",
        n_classes=120,
        image_size=16,
        n_train=151_700,
        n_test=6_000,
        # Chrabaszcz et al. do not number the classes by WordNet id, and publish no names with the files.
        class_names=tuple(f"ImageNet16 label {label}" for label in range(1, 121)),
        normalisation=_normalisation_from_8_bits((122.68, 116.66, 104.01), (63.22, 61.26, 65.09)),
        forms=("imagenet16", "parquet"),
    ),
    DatasetSpec(
        name="digits",
        n_classes=10,
        image_size=32,
        n_train=1_347,
        n_test=450,
        class_names=tuple("0123456789"),
        # Mean and standard deviation of the 1,347 upscaled training images.
        normalisation=Normalisation((0.3059, 0.3059, 0.3059), (0.3241, 0.3241, 0.3241)),
        forms=("digits", "parquet"),
    ),
    DatasetSpec(
        name="mnist",
        n_classes=10,
        image_size=32,
        n_train=60_000,
        n_test=10_000,
        class_names=tuple("0123456789"),
        # There is no normalisation, as in the study of image distributions (Kunhardt, Deza and Poggio, 2021).
        forms=("idx", "parquet"),
    ),
    DatasetSpec(
        name="mnist-28",
        n_classes=10,
        image_size=28,
        channels=1,
        n_train=60_000,
        n_test=10_000,
        class_names=tuple("0123456789"),
        # There is no normalisation. The dataset is for networks with one input channel.
        forms=("idx", "parquet"),
        normalisation=NO_NORMALISATION.of_channels(1),
        folder="mnist",
    ),
)

DATASETS: dict[str, DatasetSpec] = {spec.name: spec for spec in _SPECS}
"""Table of datasets by name, in the order in which results are listed."""


def dataset(name: str) -> DatasetSpec:
    """Return a dataset's entry in `DATASETS`; if there is none, a `ConfigError` suggests the closest name."""
    spec = DATASETS.get(name)
    if spec is None:
        raise ConfigError(f"Looking up a dataset failed for {name!r}: no such dataset.{did_you_mean(name, DATASETS)}")
    return spec


def custom_dataset(
    name: str,
    *,
    n_classes: int = UNKNOWN_COUNT,
    image_size: int = UNKNOWN_COUNT,
    channels: int = 3,
    resize: Resize | None = None,
) -> DatasetSpec:
    """Return the spec of a custom dataset, without a normalisation.

    Raises:
        ConfigError: the resize rule is invalid, or the number of channels is neither 3 nor 1.
    """
    if channels not in {1, 3}:
        raise ConfigError(
            f"Reading images failed for {name}: expected 3 channels (RGB) or 1 (grey), got {channels}. Correct the "
            "number of channels."
        )
    if resize is not None:
        resize.check(image_size)
    return DatasetSpec(
        name=name,
        n_classes=n_classes,
        image_size=image_size,
        class_names=tuple(map(str, range(n_classes))),
        channels=channels,
        resize=resize,
        normalisation=NO_NORMALISATION.of_channels(channels),
    )
