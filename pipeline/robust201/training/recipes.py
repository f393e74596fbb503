"""Recipes: everything that determines trained weights, except network, images, seed and device (docs/training.md).

This module does not import torch, because planning reads recipes.
"""

import itertools
import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.radii import parse_radius
from robust201.core.strict_model import PositiveFloat, StrictModel

MAX_STEPS = 999_999_999
"""Maximum number of steps, because the file names of saved states have nine digits."""

Count = Annotated[int, Field(ge=0, le=MAX_STEPS)]
StepCount = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Fraction = Annotated[float, Field(ge=0, le=1)]

MAX_SHIFT = 1024
"""Maximum shift of an image in pixels."""


def _check_increasing(values: tuple[float, ...]) -> tuple[float, ...]:
    if not values or any(later <= earlier for earlier, later in itertools.pairwise(values)):
        raise ValueError(f"expected one or more strictly increasing numbers, got {list(values)}.")
    return values


class Augmentation(StrictModel):
    """Random changes of training images, applied in the order of the fields; a value of 0 means no change.

    Attributes:
        flip: mirror left to right with probability 1/2; unsuitable for digits.
        crop_padding: pixels of zero padding on each side, before a random crop to the original size (a translation by
            whole pixels).
        jitter: maximum relative change of brightness, contrast and saturation, each uniform, applied in random order.
        rotate_degrees: maximum angle of a rotation about the centre; angles are uniform in both directions.
        translate: maximum translation in pixels along each axis; translations are uniform and not rounded. Pixels
            outside the image are black.
        interpolation: interpolation for rotation and translation, which are applied in a single resampling.
    """

    flip: bool = False
    crop_padding: Annotated[int, Field(ge=0, le=MAX_SHIFT)] = 0
    jitter: Fraction = 0.0
    rotate_degrees: Annotated[float, Field(ge=0, le=180)] = 0.0
    translate: Annotated[float, Field(ge=0, le=MAX_SHIFT)] = 0.0
    interpolation: Literal["nearest", "bilinear"] = "bilinear"


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": Augmentation(),
    "flip-crop": Augmentation(flip=True, crop_padding=4),
    "std": Augmentation(flip=True, crop_padding=4, jitter=0.25, rotate_degrees=2, interpolation="nearest"),
    "std*": Augmentation(flip=True, crop_padding=3, jitter=0.25, rotate_degrees=30, interpolation="nearest"),
    "std-tf": Augmentation(flip=True, translate=4),
    "std*-tf": Augmentation(flip=True, translate=3, rotate_degrees=30),
}
"""Augmentations by name. `flip-crop` is the augmentation of NAS-Bench-201. Wang and Horne's study of robust features
uses `std` and `std*` in its PyTorch code, and `std-tf` and `std*-tf` in its TensorFlow code
(docs/protocol/training.md)."""


def _find_augmentation(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in AUGMENTATIONS:
        raise ValueError(
            f"unknown augmentation {value!r}; use fields, or one of {', '.join(AUGMENTATIONS)}."
            f"{did_you_mean(value, AUGMENTATIONS)}"
        )
    return AUGMENTATIONS[value]


class _OneFieldSection(StrictModel):
    """Base class of sections in which exactly one of the two fields with default None must be set."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        _check_exactly_one(self, *(name for name, field in type(self).model_fields.items() if field.default is None))
        return self


class CosineSchedule(StrictModel):
    """The learning rate decreases to 0 along half a cosine, updated at each step."""


class StepSchedule(_OneFieldSection):
    """At each point, or at the first step after it, the learning rate is multiplied by `factor`."""

    at_epochs: Annotated[tuple[PositiveFloat, ...], AfterValidator(_check_increasing)] | None = None
    """Points at which the learning rate changes, in epochs, such as 62.5."""
    at_iterations: Annotated[tuple[StepCount, ...], AfterValidator(_check_increasing)] | None = None
    """Points at which the learning rate changes, in steps."""
    factor: Annotated[float, Field(gt=0, lt=1e3)] = 0.1
    """Factor by which the learning rate is multiplied at each point."""


class Schedule(_OneFieldSection):
    """Schedule of the learning rate: exactly one of the two fields."""

    cosine: CosineSchedule | None = None
    """Learning rate that decreases to 0 along half a cosine, updated at each step."""
    steps: StepSchedule | None = None
    """Learning rate that is multiplied by a factor at given points."""


def _check_distance(value: object) -> object:
    if value != 0 and parse_radius(value) > 1:
        raise ValueError(f"expected numbers up to 1, for pixels in [0, 1], such as 8/255, got {value}.")
    return value


Distance = Annotated[float | str, BeforeValidator(_check_distance)]
"""Distance between images as written in the YAML: a number, or text such as ``8/255``."""


def parse_distance(distance: float | str) -> float:
    """Return a distance as a number."""
    return float(parse_radius(distance)) if distance else 0.0


class _Attack(StrictModel):
    """The attack of adversarial training: projected gradient ascent in an Linf ball around the augmented image.

    The attack takes steps along the sign of the gradient.
    """

    epsilon: Distance = "8/255"
    """Radius for pixels in [0, 1]: a number, or text such as `8/255`."""
    step: Distance = "2/255"
    """Step size, in the same format as `epsilon`."""
    mode: Literal["evaluation", "training"] = "evaluation"
    """Mode of the network during the attack; in `training` mode, BatchNorm uses batch statistics."""
    update_statistics: bool = False
    """Whether the attack's passes update BatchNorm's running averages (only with `mode: training`)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.update_statistics and self.mode == "evaluation":
            raise ValueError(
                "`update_statistics` needs `mode: training`, because evaluation mode never updates statistics."
            )
        return self


class PgdTraining(_Attack):
    """Training on adversarial images only (Madry et al., ICLR 2018), by default with NAS-RobBench-201's settings."""

    steps: StepCount = 7
    """Number of steps along the sign of the gradient."""
    start: Literal["none", "uniform"] = "uniform"
    """Start of the attack: a random point in the ball (`uniform`), or the image itself (`none`)."""


class TradesTraining(_Attack):
    """Cross-entropy on the image, plus beta times KL(clean || adversarial prediction) (Zhang et al., 2019).

    The attack maximises the divergence. A random start is needed because the divergence's gradient is 0 at the image
    itself. A `normal` start has a standard deviation of 0.001, as in the authors' code.
    """

    steps: StepCount = 10
    """Number of steps along the sign of the gradient."""
    start: Literal["normal", "uniform"] = "normal"
    """Random start of the attack: `uniform` in the ball, or `normal` with standard deviation 0.001."""
    beta: Annotated[float, Field(ge=0, lt=1e38)] = 6.0
    """Weight of the mean divergence in the loss."""


class AdversarialTraining(_OneFieldSection):
    """Adversarial training: exactly one of the two fields."""

    pgd: PgdTraining | None = None
    """Training on adversarial images only."""
    trades: TradesTraining | None = None
    """TRADES: training on the images, and on the divergence between predictions on images and on adversarial images."""


class MixtureData(StrictModel):
    """A fraction alpha of every batch consists of images with only robust features, from another dataset."""

    robust: str
    """Dataset of robust images, which contain only features that a robust network uses."""
    alpha: Fraction
    """Fraction of robust images in every batch."""


class FusionData(StrictModel):
    """Each image is a blend of two images, one from each dataset."""

    first: str
    """First dataset."""
    second: str
    """Second dataset."""
    alpha: Fraction = 0.5
    """Weight of the first dataset's image."""
    label: Literal["first", "second"]
    """Dataset whose labels are used: `first` or `second`."""


class DataSection(_OneFieldSection):
    """Training data other than the dataset's training images: exactly one of the two fields."""

    mixture: MixtureData | None = None
    """Mixture of natural and robust images (docs/training-data.md)."""
    fusion: FusionData | None = None
    """Blends of two datasets (docs/training-data.md)."""


class Start(StrictModel):
    """Initial weights: the final weights of another training run with the same network and seed, in the same store."""

    recipe: str
    """Recipe of the other training run."""
    dataset: str
    """Dataset of the other training run."""


class Snapshots(StrictModel):
    """Snapshots stored in addition to the final weights; they do not affect the identity of a training run."""

    epochs: Annotated[tuple[Count, ...], AfterValidator(_check_increasing)] | None = None
    """Snapshots after these epochs; 0 is the initial weights."""
    iterations: Annotated[tuple[Count, ...], AfterValidator(_check_increasing)] | None = None
    """Snapshots after these steps."""
    every_epochs: StepCount | None = None
    """Snapshots at regular intervals of this many epochs."""


class Recipe(StrictModel):
    """Everything that determines trained weights, except network, images, seed and device."""

    epochs: StepCount | None = None
    """Length of training in passes over the images; set either this or `iterations`."""
    iterations: StepCount | None = None
    """Length of training in steps."""
    batch_size: Annotated[int, Field(ge=2, le=MAX_STEPS)]
    """Images per step, at most the number of training images; the last batch of an epoch may be smaller."""
    learning_rate: Annotated[float, Field(gt=0, lt=1e38)]
    """Learning rate of SGD at the first step."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Whether SGD uses Nesterov momentum."""
    weight_decay: Annotated[float, Field(ge=0, lt=1e38)]
    """Factor λ: adds λ/2 times the squared norm of the parameters to the loss, like PyTorch's SGD."""
    decay: Literal["all", "weights"] = "all"
    """Parameters with weight decay: `all`, or only `weights` of convolutions and linear layers (no biases, no
    BatchNorm)."""
    schedule: Schedule
    """Schedule of the learning rate."""
    augmentation: Annotated[Augmentation, BeforeValidator(_find_augmentation)] = Augmentation()
    """Augmentation of the training images: a name, or fields (docs/training.md)."""
    adversarial: AdversarialTraining | None = None
    """Adversarial training (docs/training.md)."""
    data: DataSection | None = None
    """Training images other than those of the dataset."""
    start: Start | None = None
    """Training run whose final weights, including the output layer, are the initial weights. The optimiser and the
    schedule start anew."""
    on: tuple[str, ...] | None = None
    """Datasets to which the recipe applies; by default all."""
    snapshots: Snapshots = Snapshots()
    """Snapshots to store; the final weights are always stored."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_exactly_one(self, "epochs", "iterations")
        if self.nesterov and not self.momentum:
            raise ValueError("`nesterov` needs a `momentum` above 0.")
        return self

    def identity(self) -> dict[str, Any]:
        """Return the fields that determine the weights, as JSON, without `data` and `start`."""
        return self.model_dump(mode="json", exclude={"data", "start", "on", "snapshots"}, exclude_none=True)

    def n_steps(self, n_batches: int) -> int:
        """Return the number of training steps, given the number of batches per epoch."""
        return self.iterations if self.iterations is not None else n_batches * (self.epochs or 0)

    def snapshot_steps(self, n_batches: int) -> tuple[int, ...]:
        """Return the steps of all snapshots, ascending; the last is the end of training.

        Raises:
            ConfigError: there are too many steps, or a snapshot or change of the learning rate comes too late.
        """
        last_step, snapshots = self.n_steps(n_batches), self.snapshots
        if last_step > MAX_STEPS:
            raise ConfigError(
                f"Planning a training run failed for its epochs: {last_step:,} steps ({n_batches:,} per epoch) exceed "
                f"the maximum of {MAX_STEPS:,}. Correct `epochs`."
            )
        drop_steps = self._drop_steps(n_batches)
        if drop_steps and drop_steps[-1] >= last_step:
            raise ConfigError(
                f"Planning a training run failed for its schedule: training ends after {last_step:,} steps "
                f"({n_batches:,} per epoch), but the learning rate drops at step {drop_steps[-1]:g}. Correct "
                "`schedule`."
            )
        steps = {last_step, *(snapshots.iterations or ()), *(epoch * n_batches for epoch in snapshots.epochs or ())}
        if snapshots.every_epochs is not None:
            steps |= {*range(snapshots.every_epochs * n_batches, last_step, snapshots.every_epochs * n_batches)}
        if max(steps) > last_step:
            raise ConfigError(
                f"Planning a training run failed for its snapshots: training ends after {last_step:,} steps "
                f"({n_batches:,} per epoch), but a snapshot is due after step {max(steps):,}. Correct `snapshots`."
            )
        return tuple(sorted(steps))

    def learning_rate_of(self, step: int, n_batches: int) -> float:
        """Return the learning rate of a step, counted from 0, given the number of batches per epoch."""
        if self.schedule.steps is None:
            fraction_done = step / self.n_steps(n_batches)
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * fraction_done))
        n_drops = sum(step >= drop for drop in self._drop_steps(n_batches))
        return self.learning_rate * self.schedule.steps.factor**n_drops

    def _drop_steps(self, n_batches: int) -> tuple[float, ...]:
        """Return the steps at which the learning rate drops, ascending. They may be fractional."""
        step_schedule = self.schedule.steps
        if step_schedule is None:
            return ()
        return step_schedule.at_iterations or tuple(n_batches * epoch for epoch in step_schedule.at_epochs or ())


def _check_exactly_one(section: StrictModel, first: str, second: str) -> None:
    set_names = [name for name in (first, second) if getattr(section, name) is not None]
    if len(set_names) != 1:
        raise ValueError(f"set exactly one of {first} and {second} ({'both are' if set_names else 'neither is'} set).")
