"""Measures: their parameters in the sweep YAML, with the published defaults (docs/measures.md), and their `Task`s."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from robust201.core.records import ImageSelection, Split
from robust201.core.strict_model import PositiveInt
from robust201.tasks.parameters import Parameters
from robust201.tasks.task import Task

DerivativeInput = Literal["normalised", "pixels"]
"""Input that is differentiated: the network's normalised input, or pixels in [0, 1]."""

Mode = Literal["evaluation", "training"]
"""Mode of the network. BatchNorm uses running statistics (`evaluation`) or those of each batch (`training`)."""


class MeasureParameters(Parameters):
    """Base class of the parameters of measures.

    A measure selects its images independently of the sweep, and has a single placeholder strength.
    """

    default_columns: ClassVar[tuple[str, ...]]

    split: Split = "test"
    """Split of the images, which does not depend on the sweep's `images`."""
    images: PositiveInt | None = 2560
    """Number of images, distributed evenly over the classes; null for all, unless batches affect results."""
    image_seed: int = 0
    """Seed of the random selection of images."""

    @property
    def image_selection(self) -> ImageSelection:
        return ImageSelection(self.split, self.images, self.image_seed)

    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"split", "images", "image_seed"})


class DerivativeParameters(MeasureParameters):
    """Parameters of measures that may depend on batches, through BatchNorm or because they are computed per batch.

    Attributes:
        mode: mode of the network; in training mode, BatchNorm uses the statistics of each batch.
        batch: images per batch; a batch consists of consecutive images of the selection.
        columns: columns to measure; by default the key's default columns, or all others if training mode excludes them.
    """

    available_columns: ClassVar[tuple[str, ...]]
    per_image_columns: ClassVar[tuple[str, ...]] = ()
    """Columns that are undefined in training mode, since an image's logits then depend on the other images of its
    batch."""

    mode: Mode = "evaluation"
    batch: PositiveInt = 256
    columns: tuple[str, ...] | None = None

    @property
    def selected_columns(self) -> tuple[str, ...]:
        requested = self.columns or self.default_columns
        if self.columns is None and self.mode == "training" and {*self.default_columns} <= {*self.per_image_columns}:
            return tuple(name for name in self.available_columns if name not in self.per_image_columns)
        return tuple(name for name in self.available_columns if name in requested)

    @property
    def depends_on_batches(self) -> bool:
        """Whether a column depends on how images are split into batches."""
        return self.mode == "training" or any(name.startswith("batch_") for name in self.selected_columns)

    def identity(self) -> dict[str, Any]:
        """Return the parameters that affect results, without `batch` where it has no effect."""
        identity = super().identity() | {"columns": list(self.selected_columns)}
        if not self.depends_on_batches:
            del identity["batch"]
        return identity

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        columns = self.selected_columns if self.columns is None else self.columns
        if not columns or len(set(columns)) < len(columns) or not set(columns) <= set(self.available_columns):
            names = ", ".join(self.available_columns)
            raise ValueError(f"columns: expected distinct names among {names}, got {list(columns)}.")
        invalid = [name for name in columns if name in self.per_image_columns]
        if self.mode == "training" and invalid:
            raise ValueError(
                f"expected mode: evaluation for the columns {', '.join(invalid)}, got training, where every image of a "
                "batch changes the other images' logits. Set columns: [batch_largest]."
            )
        return self

    @model_validator(mode="after")
    def _check_batches(self) -> Self:
        if not self.depends_on_batches:
            return self
        if self.images is None:
            raise ValueError(f"expected a number of images in batches of {self.batch}, got null. Set images.")
        # Means over batches weigh images equally only if batches are equal.
        if self.images > self.batch and self.images % self.batch:
            raise ValueError(
                f"expected images to be at most batch ({self.batch}) or a multiple of it, got {self.images}. Set "
                f"images: {self.images // self.batch * self.batch}, or another batch."
            )
        if self.mode == "training" and min(self.images, self.batch) < 2:
            raise ValueError("expected batches of 2 images or more for mode: training, got 1. Set batch and images.")
        return self


class JacobianParameters(DerivativeParameters):
    """Frobenius norm of the input Jacobian; the defaults follow Jung et al. (2023): 10 batches of 256 images."""

    available_columns: ClassVar[tuple[str, ...]] = ("squared_norm", "squared_norm_sd", "norm")
    default_columns: ClassVar[tuple[str, ...]] = ("squared_norm", "squared_norm_sd")

    projections: PositiveInt | Literal["exact"] = 1
    """Number of random projections per image, or `exact` for one gradient per class."""
    input: DerivativeInput = "normalised"
    """Input that is differentiated: `normalised`, or `pixels` in [0, 1]."""

    @property
    def uses_random_numbers(self) -> bool:
        return self.projections != "exact"

    def n_passes(self, n_classes: int) -> float:
        return 3.0 * (n_classes if self.projections == "exact" else self.projections)

    @model_validator(mode="after")
    def _check_projections(self) -> Self:
        if self.mode == "training" and self.projections == "exact":
            raise ValueError(
                "expected projections to be a number with mode: training, got exact. A batch of B images of C classes "
                "would take B times C gradients. Set projections: 10, for example, which has less noise than 1."
            )
        return self


class InputGradientParameters(MeasureParameters):
    """Gradient of the loss with respect to the pixels. It has no parameters except those that select the images."""

    default_columns: ClassVar[tuple[str, ...]] = ("norm", "zero_share")

    def n_passes(self, n_classes: int) -> float:
        return 3.0


_LANCZOS_STEPS = 16
"""Typical number of Lanczos iterations on a network's weights (docs/measures.md)."""

_HESSIAN_PASSES = 9.0
"""Forward-pass equivalents of one Hessian-vector product for the weights, which takes two derivatives."""

_INPUT_HESSIAN_PASSES = 6.0
"""Forward-pass equivalents of one Hessian-vector product for the input, for which the first derivative is stored."""


class LanczosParameters(DerivativeParameters):
    """Largest eigenvalue, computed by the Lanczos iteration from a random start.

    Attributes:
        tolerance: residual, relative to the largest absolute Ritz value, at which an eigenvalue is accepted. The
            residual bounds the eigenvalue's error, which is usually about the square of the residual.
        steps: maximum number of Hessian-vector products.
    """

    tolerance: Annotated[float, Field(ge=1e-6, lt=1)] = 0.01
    steps: PositiveInt = 100

    @property
    def uses_random_numbers(self) -> bool:
        return True


class HessianWeightsParameters(LanczosParameters):
    """Largest eigenvalue of the loss's Hessian with respect to the weights.

    The protocol always contains the batch size, since the published code adds the Hessians of batches.
    """

    available_columns: ClassVar[tuple[str, ...]] = ("largest", "largest_summed", "batch_largest", "batch_largest_sd")
    default_columns: ClassVar[tuple[str, ...]] = ("largest", "largest_summed")

    images: PositiveInt = 2560

    @property
    def depends_on_batches(self) -> bool:
        """True, since `largest_summed` grows with the number of batches (even if this column is not selected)."""
        return True

    def n_passes(self, n_classes: int) -> float:
        # One Lanczos run covers all images. Per-batch columns need one run per batch; together, these runs cost as
        # much as the run on all images.
        is_per_batch = [name.startswith("batch_") for name in self.selected_columns]
        n_runs = any(is_per_batch) + (not all(is_per_batch))
        return _HESSIAN_PASSES * min(self.steps, _LANCZOS_STEPS) * n_runs


class InputHessianParameters(LanczosParameters):
    """Largest eigenvalue of the loss's Hessian with respect to one image, or to all images of a batch."""

    available_columns: ClassVar[tuple[str, ...]] = ("largest", "largest_sd", "batch_largest", "batch_largest_sd")
    default_columns: ClassVar[tuple[str, ...]] = ("largest", "largest_sd")
    per_image_columns: ClassVar[tuple[str, ...]] = default_columns

    input: DerivativeInput = "normalised"
    """Input that is differentiated: `normalised`, or `pixels` in [0, 1]."""

    def n_passes(self, n_classes: int) -> float:
        # ReLUs make the logits piecewise linear, so the Hessian's rank is below the number of classes. In training
        # mode, BatchNorm makes the logits non-linear, and all images of a batch share one Hessian.
        max_steps = n_classes + 2 if self.mode == "evaluation" else _LANCZOS_STEPS
        return 6.0 + _INPUT_HESSIAN_PASSES * min(self.steps, max_steps)


def _measure(key: str, model: type[MeasureParameters]) -> Task:
    return Task(key, "measure", model, f"measures.{key}", columns=model.default_columns)


MEASURES: tuple[Task, ...] = (
    _measure("jacobian", JacobianParameters),
    _measure("input_gradient", InputGradientParameters),
    _measure("hessian_weights", HessianWeightsParameters),
    _measure("hessian_input", InputHessianParameters),
)
"""Measures, in the order in which results are listed."""
