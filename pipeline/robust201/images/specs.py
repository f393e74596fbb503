"""The table of datasets: what a network trained on one needs to know, and in which forms its images are read."""

from dataclasses import dataclass

from robust201.core.errors import ConfigError, closest
from robust201.core.records import Normalisation

UNKNOWN_COUNT = 0
"""Images of a split that nobody knows before it is read."""


_UNCHANGED = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """One row of the table of datasets; the defaults are those of a dataset of the user's own.

    Attributes:
        name: the name in sweeps and exported files, such as ``"ImageNet16-120"``.
        image_size: height and width in pixels.
        n_train: images in the full training split.
        n_test: images in the full test split.
        class_names: one name a class, in the order of the labels.
        normalisation: per-channel mean and standard deviation of pixels in [0, 1].
        forms: names of the forms (see `images.FORMS`) they are read in, tried in this order.
        corruptions: name of the published corrupted test split in the registry of downloads, or None.
    """

    name: str
    n_classes: int
    image_size: int
    class_names: tuple[str, ...]
    n_train: int = UNKNOWN_COUNT
    n_test: int = UNKNOWN_COUNT
    normalisation: Normalisation = _UNCHANGED
    licence: str = "not stated"
    citation: str = "a dataset of the user's own"
    forms: tuple[str, ...] = ("npz", "parquet")
    corruptions: str | None = None


def _pixels(mean: tuple[float, float, float], std: tuple[float, float, float]) -> Normalisation:
    """Turn a normalisation in units of 1/255 into one in units of the pixel range [0, 1]."""
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
"""  # the fine labels, alphabetical as in `fine_label_names.txt` of the official archive


def _cifar(name: str, class_names: tuple[str, ...], normalisation: Normalisation, corruptions: str) -> DatasetSpec:
    return DatasetSpec(
        name=name,
        n_classes=len(class_names),
        image_size=32,
        n_train=50_000,
        n_test=10_000,
        class_names=class_names,
        normalisation=normalisation,
        licence="none stated; the authors ask to be cited",
        citation="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        forms=("binary", "python", "parquet"),
        corruptions=corruptions,
    )


_ROWS = (
    # Normalisations (in units of 1/255) of the first three: the training code of NAS-Bench-201
    # (AutoDL-Projects, get_dataset_with_transform.py).
    _cifar("cifar10", _CIFAR10_CLASSES, _pixels((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)), "CIFAR-10-C"),
    _cifar(
        "cifar100",
        tuple(_CIFAR100_CLASSES.split()),
        _pixels((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
        "CIFAR-100-C",
    ),
    DatasetSpec(
        name="ImageNet16-120",
        n_classes=120,
        image_size=16,
        n_train=151_700,
        n_test=6_000,
        # Chrabaszcz et al. number the classes their own way, not by WordNet id, and publish no names with the files.
        class_names=tuple(f"ImageNet16 label {label}" for label in range(1, 121)),
        normalisation=_pixels((122.68, 116.66, 104.01), (63.22, 61.26, 65.09)),
        licence="ImageNet terms of access: non-commercial research and education",
        citation="P. Chrabaszcz, I. Loshchilov, F. Hutter, A Downsampled Variant of ImageNet, 2017; "
        "first 120 classes: X. Dong, Y. Yang, NAS-Bench-201, ICLR 2020",
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
        licence="CC BY 4.0",
        citation="E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, "
        "1998; the 1,797 images that scikit-learn ships",
        forms=("digits", "parquet"),
    ),
    DatasetSpec(
        name="mnist",
        n_classes=10,
        image_size=32,
        n_train=60_000,
        n_test=10_000,
        class_names=tuple("0123456789"),
        # Pixels as they are, as in the study of image distributions (Kunhardt, Deza and Poggio, 2021).
        licence="CC BY-SA 3.0",
        citation="Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST Database of Handwritten Digits, 1998",
        forms=("idx", "parquet"),
    ),
)

DATASETS: dict[str, DatasetSpec] = {row.name: row for row in _ROWS}
"""Name to row, in the order in which results are listed."""


def dataset(name: str) -> DatasetSpec:
    """Find a dataset's row of `DATASETS`; a `ConfigError` names the closest where there is none."""
    row = DATASETS.get(name)
    if row is None:
        raise ConfigError(f"Looking up a dataset failed for {name!r}: no such dataset.{closest(name, DATASETS)}")
    return row


def own_dataset(name: str, *, n_classes: int, image_size: int) -> DatasetSpec:
    """Make the row of a dataset that is in no table, whose networks are shown pixels in [0, 1] as they are."""
    class_names = tuple(map(str, range(n_classes)))
    return DatasetSpec(name=name, n_classes=n_classes, image_size=image_size, class_names=class_names)
