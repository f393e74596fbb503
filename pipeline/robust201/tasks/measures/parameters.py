"""Parameters of measures as the sweep YAML gives them; the defaults are the published ones (docs/measures.md)."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from robust201.core.fields import PositiveInt
from robust201.core.records import CLEAN_STRENGTH, ImageSelection, Split
from robust201.tasks.parameters import Parameters

Shown = Literal["normalised", "pixels"]
"""What an input derivative is taken with respect to."""


PROXIES = (
    *("synflow", "snip", "grasp", "jacov", "nwot", "fisher", "grad_norm", "plain", "l2_norm", "zen", "epe_nas"),
    *("params", "flops"),
)
"""Columns of the task `proxies`."""


class MeasureParameters(Parameters):
    """What all measures share: images of their own, and one strength that says nothing."""

    split: Split = "test"
    images: PositiveInt | None = 2560
    image_seed: int = 0

    @property
    def strengths(self) -> tuple[float, ...]:
        """One strength that says nothing."""
        return (CLEAN_STRENGTH,)

    @property
    def own_images(self) -> ImageSelection:
        """What is measured on, whatever the sweep selects."""
        return ImageSelection(self.split, self.images, self.image_seed)

    def identity(self) -> dict[str, Any]:
        """All but what the hash of the images says (see `Parameters`)."""
        return self.model_dump(mode="json", exclude={"split", "images", "image_seed"})


class JacobianParameters(MeasureParameters):
    """Frobenius norm of the input Jacobian; the defaults are those of Jung et al. (2023): 10 batches of 256 images."""

    projections: PositiveInt | Literal["exact"] = 1
    input: Shown = "normalised"

    @property
    def draws(self) -> bool:
        """Projections are drawn (see `Parameters`)."""
        return self.projections != "exact"


class InputGradientParameters(MeasureParameters):
    """Gradient of the loss with respect to the pixels: nothing beyond the images."""


class LanczosParameters(MeasureParameters):
    """A largest eigenvalue by the Lanczos iteration from a random start.

    Attributes:
        tolerance: residual, relative to the largest absolute Ritz value, at which an eigenvalue is accepted; its error
            is at most this, and mostly about the square of it.
        steps: Hessian-vector products after which the iteration is given up.
    """

    tolerance: Annotated[float, Field(ge=1e-6, lt=1)] = 0.01
    steps: PositiveInt = 100

    @property
    def draws(self) -> bool:
        """The start is drawn (see `Parameters`)."""
        return True


class HessianWeightsParameters(LanczosParameters):
    """Largest eigenvalue of the loss's Hessian with respect to the weights.

    Attributes:
        batch: images per batch of the published code, which adds up the Hessians of batches.
    """

    images: PositiveInt = 2560
    batch: PositiveInt = 256

    @model_validator(mode="after")
    def _check_batches(self) -> Self:
        # Of unequal batches the sum is no multiple of the mean over images.
        if self.images > self.batch and self.images % self.batch:
            raise ValueError(
                f"expected images to be a multiple of batch ({self.batch}), or fewer, got {self.images}. Set images: "
                f"{self.images // self.batch * self.batch}, or another batch."
            )
        return self


class HessianInputParameters(LanczosParameters):
    """Largest eigenvalue of the loss's Hessian with respect to each image."""

    input: Shown = "normalised"


class ProxyParameters(MeasureParameters):
    """Zero-cost proxies: one batch of training images, all in one pass."""

    split: Split = "train"
    images: Annotated[int, Field(ge=2, le=1024)] = 64

    @property
    def draws(self) -> bool:
        """Zen's weights and images are drawn, and what a network in training mode draws (see `Parameters`)."""
        return True


class CrozeParameters(ProxyParameters):
    """CRoZe (Ha et al., 2023); the defaults are those of its code.

    Attributes:
        weight_step: length of the step that the weights of a layer go, relative to their norm.
        image_step: length of the step that each value of an image goes, in units of pixels.
    """

    weight_step: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    image_step: Annotated[float, Field(gt=0, le=1)] = 0.01
