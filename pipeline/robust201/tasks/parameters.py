"""The base class of the parameters of a key, named as in the sweep YAML, and the parameters of corruptions."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr, field_validator

from robust201.core.records import CLEAN_STRENGTH, ImageSelection
from robust201.core.strict_model import StrictModel
from robust201.tasks.constraints import Norm

SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)
"""Severities of corruptions, from weak to strong."""

STRENGTH_FIELDS = ("epsilons", "severities")
"""Names of the parameters that are lists of strengths. Each strength is a separate evaluation."""

MAX_STRENGTHS = 1_000
"""Maximum number of strengths per key."""

Role = Literal["single step", "white box", "black box", "nearest", "ensemble"]
"""Kind of an attack: one gradient, many gradients, queries only, the nearest boundary, or several attacks."""

Severity = Annotated[int, Field(ge=1, le=5)]


class Caution(NamedTuple):
    """A warning about a parameter whose value is valid but may be a mistake, with the problem and the remedy."""

    field: str
    problem: str
    remedy: str


class Parameters(StrictModel):
    """Base class of the parameters of a key, as in the sweep YAML. The key `clean` has no parameters, and uses it."""

    min_classes: ClassVar[int] = 1
    """Minimum number of classes that the task supports."""

    norm_by_parameter: ClassVar[Mapping[str, Norm]] = {}
    """Norm of each parameter that exists in only one norm."""

    role: ClassVar[Role] = "white box"
    """Kind of attack, by which `evaluation.attack_flags` selects accuracies to compare for signs of weak attacks."""

    finds_distances: ClassVar[bool] = False
    """Whether the attack searches for the smallest perturbation that fools a network, independently of epsilons."""

    @classmethod
    def field_names(cls, norm: Norm | None) -> tuple[str, ...]:
        """Return the names of the parameters that a key has in a norm."""
        names = (name for name in cls.model_fields if name != "norm")
        return tuple(name for name in names if cls.norm_by_parameter.get(name, norm) == norm)

    @property
    def strengths(self) -> tuple[float, ...]:
        """Strengths to evaluate, ascending."""
        return (CLEAN_STRENGTH,)

    def identity(self) -> dict[str, Any]:
        """Return the parameters that affect results, except the strengths, which each evaluation has separately."""
        return self.model_dump(mode="json", exclude={*STRENGTH_FIELDS})

    def stages(self, key: str) -> tuple[tuple[str, "Parameters"], ...]:
        """Return the key and the parameters of each attack of an ensemble, or of the key itself."""
        return ((key, self),)

    def n_passes(self, n_classes: int) -> float:
        """Estimate the cost per image and strength in forward passes; a gradient counts as three."""
        del n_classes
        return 1.0

    @property
    def uses_random_numbers(self) -> bool:
        """Whether a measure uses random numbers. Attacks ignore this: the seed is always part of their protocol."""
        return False

    _images_file: str | None = PrivateAttr(default=None)

    def with_images(self, file: str) -> Self:
        """Return these parameters with the images of a file (see `images.selection`) instead of the sweep's."""
        parameters = self.model_copy()
        parameters._images_file = file
        return parameters

    @property
    def images_file(self) -> str | None:
        """File that selects the images, or None."""
        return self._images_file

    @property
    def image_selection(self) -> ImageSelection | None:
        """Images that a measure or a file selects; None for the sweep's images."""
        return None if self._images_file is None else ImageSelection("test", file=self._images_file)

    @property
    def selected_columns(self) -> tuple[str, ...]:
        """Columns that the parameters of a measure select; empty for the columns of the measure's task."""
        return ()

    def unsupported_classes_reason(self, n_classes: int) -> str | None:
        """Return why a network with `n_classes` classes cannot be evaluated, or None."""
        if n_classes >= self.min_classes:
            return None
        return (
            f"expected {self.min_classes} classes or more, since the targeted DLR loss divides by the largest logit "
            f"minus the mean of the third and fourth largest, got {n_classes}. Leave the key out."
        )

    def unsupported_engine_reason(self, engine: str) -> str | None:
        """Return why an engine does not support these parameters, or None."""
        del engine
        return None

    def unsupported_shape_reason(self, height: int, width: int) -> str | None:
        """Return why images of this size cannot be perturbed, or None."""
        del height, width
        return None

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings about values that are valid, but may be mistakes or make an attack weak."""
        return ()


def sort_strengths(strengths: tuple[float, ...], name: str) -> tuple[float, ...]:
    """Return strengths in ascending order.

    Raises:
        ValueError: two strengths are equal.
    """
    if len(set(strengths)) != len(strengths):
        raise ValueError(f"expected distinct {name}, got {list(map(float, strengths))}.")
    return tuple(sorted(strengths))


class Corruption(Parameters):
    """A common corruption (Hendrycks and Dietterich, 2019)."""

    severities: tuple[Severity, ...] = Field(default=(1, 2, 3, 4, 5), min_length=1)
    """Severities to evaluate, from 1 to 5."""

    @field_validator("severities")
    @classmethod
    def _sort_severities(cls, severities: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(severity) for severity in sort_strengths(severities, "severities"))

    @property
    def strengths(self) -> tuple[float, ...]:
        return tuple(float(severity) for severity in self.severities)
