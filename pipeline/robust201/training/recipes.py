"""Recipes: everything that determines the weights except network, images and seed (docs/training.md).

Does not import torch, because planning reads recipes.
"""

import itertools
import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from robust201.core.errors import ConfigError, closest
from robust201.core.strict_model import PositiveFloat, StrictModel

MAX_STEPS = 999_999_999
"""Maximum number of steps: the names of saved states have nine digits."""

Count = Annotated[int, Field(ge=0, le=MAX_STEPS)]
StepCount = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Fraction = Annotated[float, Field(ge=0, le=1)]

MAX_SHIFT = 1024
"""Largest shift of an image in pixels."""


def _check_rising(numbers: tuple[float, ...]) -> tuple[float, ...]:
    if not numbers or any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
        raise ValueError(f"expected one or more numbers, each above the one before, got {list(numbers)}.")
    return numbers


class Augmentation(StrictModel):
    """Random changes of training images, in the order of the fields; a value of 0 means no change.

    Attributes:
        flip: mirror left to right with probability 1/2; not for digits.
        crop_padding: pixels of zero padding on each side before a random crop to the original size, a translation by
            whole pixels.
        jitter: largest relative change of brightness, contrast and saturation, each uniform, in a random order.
        rotate_degrees: largest angle of a rotation about the centre, uniform in both directions.
        translate: largest translation in pixels along each axis, uniform, not rounded; pixels outside are black.
        interpolation: interpolation of rotation and `translate`, which are applied in one resampling.
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
"""Augmentations by name: `flip-crop` of NAS-Bench-201; `std` and `std*` of the study of robust features in its PyTorch
code, `std-tf` and `std*-tf` in its TensorFlow code (docs/protocol.md)."""


def _find_augmentation(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in AUGMENTATIONS:
        raise ValueError(
            f"expected fields, or one of {', '.join(AUGMENTATIONS)}, got {value!r}.{closest(value, AUGMENTATIONS)}"
        )
    return AUGMENTATIONS[value]


class _OneOf(StrictModel):
    """Base of sections with exactly one of the fields whose default is None."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        _exactly_one(self, *(name for name, field in type(self).model_fields.items() if field.default is None))
        return self


class CosineSchedule(StrictModel):
    """The learning rate decreases to 0 along half a cosine, updated at each step."""


class StepSchedule(_OneOf):
    """The learning rate is multiplied by `factor` at each given point, from the first step at or after it."""

    at_epochs: Annotated[tuple[PositiveFloat, ...], AfterValidator(_check_rising)] | None = None
    """Points in epochs, such as 62.5."""
    at_iterations: Annotated[tuple[StepCount, ...], AfterValidator(_check_rising)] | None = None
    """Points in steps."""
    factor: Annotated[float, Field(gt=0, lt=1e3)] = 0.1
    """Factor of the learning rate at each point."""


class Schedule(_OneOf):
    """Schedule of the learning rate: exactly one of the two fields."""

    cosine: CosineSchedule | None = None
    """Falls to 0 along half a cosine, at every step."""
    steps: StepSchedule | None = None
    """Is multiplied by a factor at given points."""


class _Attack(StrictModel):
    """The attack of adversarial training: projected gradient ascent in an Linf ball around the augmented image.

    Radius and step are in units of 1/255. `mode` is the network's mode during the attack: `training` normalises with
    batch statistics, and `update_statistics` sets whether the attack's passes update BatchNorm's running averages.
    """

    epsilon_255: Annotated[float, Field(ge=0, le=255)] = 8.0
    """Radius in units of 1/255."""
    step_255: Annotated[float, Field(ge=0, le=255)] = 2.0
    """Length of a step in units of 1/255."""
    mode: Literal["evaluation", "training"] = "evaluation"
    """Mode of the network during the attack; in `training` mode, BatchNorm normalises by the batch."""
    update_statistics: bool = False
    """Whether the attack's passes update BatchNorm's running averages (only with `mode: training`)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.update_statistics and self.mode == "evaluation":
            raise ValueError(
                "expected `mode: training` with `update_statistics`, got evaluation, which never updates them."
            )
        return self


class PgdTraining(_Attack):
    """Training on adversarial images only (Madry et al., ICLR 2018); the defaults are NAS-RobBench-201's."""

    steps: StepCount = 7
    """Number of steps along the sign of the gradient."""
    start: Literal["none", "uniform"] = "uniform"
    """Random start in the ball."""


class TradesTraining(_Attack):
    """Cross-entropy of the image plus beta times KL(its prediction || the adversarial one) (Zhang et al., 2019).

    `beta` is the weight of the mean divergence, which the attack maximises. A `normal` start has the standard deviation
    0.001 of the authors' code; a start is needed because the divergence has no gradient at the image itself.
    """

    steps: StepCount = 10
    """Number of steps along the sign of the gradient."""
    start: Literal["normal", "uniform"] = "normal"
    """Random start; `normal` has standard deviation 0.001."""
    beta: Annotated[float, Field(ge=0, lt=1e38)] = 6.0
    """Weight of the divergence."""


class AdversarialTraining(_OneOf):
    """Adversarial training: exactly one of the two fields."""

    pgd: PgdTraining | None = None
    """Training on adversarial images only."""
    trades: TradesTraining | None = None
    """Training on the images and on the divergence between the predictions on them and on adversarial images."""


class MixtureData(StrictModel):
    """A fraction alpha of every batch are robust images from another dataset."""

    robust: str
    """Dataset of robust images."""
    alpha: Fraction
    """Fraction of robust images in every batch."""


class FusionData(StrictModel):
    """Each image is a blend of two images, one from each dataset."""

    first: str
    """First dataset."""
    second: str
    """Second dataset."""
    alpha: Fraction = 0.5
    """Weight of the first."""
    label: Literal["first", "second"]
    """Dataset whose label counts: `first` or `second`."""


class DataSection(_OneOf):
    """Training data other than the dataset's training images: exactly one of the two fields."""

    mixture: MixtureData | None = None
    """Natural and robust images (docs/training-data.md)."""
    fusion: FusionData | None = None
    """Blends of two datasets (docs/training-data.md)."""


class Start(StrictModel):
    """Initial weights: the final weights of another training of the same network and seed, in the same store."""

    recipe: str
    """Recipe of the training whose last weights are the start, of the same network and seed."""
    dataset: str
    """Its dataset."""


class Snapshots(StrictModel):
    """Snapshots stored in addition to the final weights; not part of the identity of a training."""

    epochs: Annotated[tuple[Count, ...], AfterValidator(_check_rising)] | None = None
    """Snapshots after these epochs; 0 is the initial weights."""
    iterations: Annotated[tuple[Count, ...], AfterValidator(_check_rising)] | None = None
    """Snapshots after these steps."""
    every_epochs: StepCount | None = None
    """Snapshots after every so many epochs."""


class Recipe(StrictModel):
    """Everything that determines the weights except network, images and seed.

    `learning_rate` is that of the first step. `weight_decay` is SGD's factor of half the squared norm in the loss;
    `decay` sets whether it applies to all parameters, or only to the weights of convolutions and linear layers.
    """

    epochs: StepCount | None = None
    """Length in passes over the training images; either this or `iterations`."""
    iterations: StepCount | None = None
    """Length in steps."""
    batch_size: Annotated[int, Field(ge=2, le=MAX_STEPS)]
    """Images per step, at most the number of training images; the last batch of an epoch may be smaller."""
    learning_rate: Annotated[float, Field(gt=0, lt=1e38)]
    """Learning rate of SGD at the first step."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Whether the momentum is Nesterov's."""
    weight_decay: Annotated[float, Field(ge=0, lt=1e38)]
    """Λ: adds λ/2 times the squared norm of the parameters to the loss, like PyTorch's SGD."""
    decay: Literal["all", "weights"] = "all"
    """Parameters with weight decay: `all`, or `weights` of convolutions and linear layers, without biases and
    BatchNorm."""
    schedule: Schedule
    """Schedule of the learning rate."""
    augmentation: Annotated[Augmentation, BeforeValidator(_find_augmentation)] = Augmentation()
    """A name or fields (docs/training.md)."""
    adversarial: AdversarialTraining | None = None
    """Adversarial training (docs/training.md)."""
    data: DataSection | None = None
    """Training images other than the dataset's."""
    start: Start | None = None
    """Training whose last weights are the start; the output layer is kept, optimiser and schedule start anew."""
    on: tuple[str, ...] | None = None
    """Datasets to which the recipe applies; by default all."""
    snapshots: Snapshots = Snapshots()
    """States to keep; the last one is always kept."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _exactly_one(self, "epochs", "iterations")
        if self.nesterov and not self.momentum:
            raise ValueError("expected a momentum above 0 with `nesterov`, got 0.")
        latest = max(self.snapshots.epochs or (0,))
        if self.epochs is not None and latest > self.epochs:
            raise ValueError(f"expected snapshots within {self.epochs} epochs, got one after {latest}.")
        latest = max(self.snapshots.iterations or (0,))
        if self.iterations is not None and latest > self.iterations:
            raise ValueError(f"expected snapshots within {self.iterations} iterations, got one after {latest}.")
        drops = self.schedule.steps
        if drops is not None:
            for length, points, unit in (
                (self.epochs, drops.at_epochs, "epochs"),
                (self.iterations, drops.at_iterations, "iterations"),
            ):
                if length is not None and points is not None and points[-1] >= length:
                    raise ValueError(
                        f"expected drops of the learning rate before the end, after {length} {unit}, got one at "
                        f"{points[-1]:g}."
                    )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the fields that determine the weights, as JSON; data and start enter the id by content."""
        return self.model_dump(mode="json", exclude={"data", "start", "on", "snapshots"}, exclude_none=True)

    def n_steps(self, n_batches: int) -> int:
        """Return the number of steps of a training with `n_batches` per epoch."""
        return self.iterations if self.iterations is not None else n_batches * (self.epochs or 0)

    def snapshot_steps(self, n_batches: int) -> tuple[int, ...]:
        """Return the steps after which a snapshot is taken, ascending, including the last step."""
        last, snapshots = self.n_steps(n_batches), self.snapshots
        if last > MAX_STEPS:
            raise ConfigError(
                f"Planning a training failed for its epochs: expected at most {MAX_STEPS:,} steps, got {last:,} "
                f"({n_batches:,} per epoch). Correct `epochs`."
            )
        drops = self._drop_steps(n_batches)
        if drops and drops[-1] >= last:
            raise ConfigError(
                f"Planning a training failed for its schedule: expected drops of the learning rate before the end, "
                f"after {last:,} steps ({n_batches:,} per epoch), got one at step {drops[-1]:g}. Correct `schedule`."
            )
        steps = {last, *(snapshots.iterations or ()), *(epoch * n_batches for epoch in snapshots.epochs or ())}
        if snapshots.every_epochs is not None:
            steps |= {*range(snapshots.every_epochs * n_batches, last, snapshots.every_epochs * n_batches)}
        if max(steps) > last:
            raise ConfigError(
                f"Planning a training failed for its snapshots: expected them within its {last:,} steps ({n_batches:,} "
                f"per epoch), got one after step {max(steps):,}. Correct `snapshots`."
            )
        return tuple(sorted(steps))

    def learning_rate_of(self, step: int, n_batches: int) -> float:
        """Return the learning rate of a step, counted from 0, in a training with `n_batches` per epoch."""
        if self.schedule.steps is None:
            fraction_done = step / self.n_steps(n_batches)
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * fraction_done))
        n_drops = sum(step >= drop for drop in self._drop_steps(n_batches))
        return self.learning_rate * self.schedule.steps.factor**n_drops

    def _drop_steps(self, n_batches: int) -> tuple[float, ...]:
        """Return the points, in possibly fractional steps, at which the learning rate drops, ascending."""
        drops = self.schedule.steps
        if drops is None:
            return ()
        return drops.at_iterations or tuple(n_batches * epoch for epoch in drops.at_epochs or ())


def _exactly_one(fields: StrictModel, first: str, second: str) -> None:
    given = [name for name in (first, second) if getattr(fields, name) is not None]
    if len(given) != 1:
        raise ValueError(f"expected exactly one of {first} and {second}, got {' and '.join(given) or 'none'}.")
