"""Parameters of all tasks except measures, named as in the sweep YAML.

A class describes a family of attacks; the rows of `tasks.TASKS` contain the norm and the defaults of each key.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from robust201.core.radii import parse_radius
from robust201.core.records import CLEAN_STRENGTH, ImageSelection
from robust201.core.strict_model import PositiveFloat, PositiveInt, StrictModel
from robust201.tasks.constraints import CONSTRAINTS, Norm

SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)
"""Severities of corruptions, from weak to strong."""

STRENGTH_FIELDS = ("epsilons", "severities")
"""Names of the parameters that are lists of strengths. Each strength is a separate evaluation."""

MAX_STRENGTHS = 1_000
"""Maximum number of strengths per key."""

MAX_GRID_POINTS = 10_000
"""Maximum number of grid points. The coordinates of all points are in memory at once, and take 8 kB per point for
images of 32x32 pixels."""

Role = Literal["single step", "white box", "black box", "nearest", "ensemble"]
"""Kind of an attack: one gradient, many gradients, queries only, the nearest boundary, or several attacks."""

Severity = Annotated[int, Field(ge=1, le=5)]


class Caution(NamedTuple):
    """A warning about the value of a parameter, which is valid but may be a mistake.

    Attributes:
        field: name of the parameter.
        problem: the problem with its value.
        remedy: the remedy.
    """

    field: str
    problem: str
    remedy: str


class Parameters(StrictModel):
    """Base class of the parameters of a key, as in the sweep YAML. Clean images have no further parameters."""

    min_classes: ClassVar[int] = 1
    """Minimum number of classes that the task supports."""

    only_in: ClassVar[Mapping[str, Norm]] = {}
    """Parameters that exist in one norm only, with this norm."""

    role: ClassVar[Role] = "white box"
    """What an attack is compared with in searches for weak attacks (`dataset.attack_flags`)."""

    @classmethod
    def field_names(cls, norm: Norm | None) -> tuple[str, ...]:
        """Return the names of the parameters that a key has in a norm."""
        return tuple(name for name in cls.model_fields if name != "norm" and cls.only_in.get(name, norm) == norm)

    @property
    def strengths(self) -> tuple[float, ...]:
        """Strengths to evaluate, ascending."""
        return (CLEAN_STRENGTH,)

    def identity(self) -> dict[str, Any]:
        """Return the parameters that affect results, except the strengths, which each evaluation has separately."""
        return self.model_dump(mode="json", exclude={*STRENGTH_FIELDS})

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
        """The file that chooses the images; None if no file does."""
        return self._images_file

    @property
    def own_images(self) -> ImageSelection | None:
        """The selection of images that a measure or a file requests; None for the sweep's selection."""
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
        raise ValueError(f"expected different {name}, got {list(map(float, strengths))}.")
    return tuple(sorted(strengths))


class Attack(Parameters):
    """Base class of the parameters of attacks in a norm ball."""

    norm: Norm
    """Norm of the ball, given by the key."""
    epsilons: Annotated[tuple[float | str, ...], Field(min_length=1, max_length=MAX_STRENGTHS)]
    """Radii for pixels in [0, 1]: numbers, or text such as `8/255`."""

    @field_validator("epsilons", mode="before")
    @classmethod
    def _check_epsilons(cls, epsilons: object) -> object:
        listed = list(epsilons) if isinstance(epsilons, list | tuple) else [epsilons]
        for epsilon in listed:
            parse_radius(epsilon)
        return listed

    @model_validator(mode="after")
    def _check_balls(self) -> Self:
        largest = float(max(map(parse_radius, self.epsilons)))
        if self.norm == "Linf" and largest > 1:
            raise ValueError(
                f"epsilons: expected numbers up to 1, for pixels in [0, 1], such as 8/255, got {largest:g}."
            )
        _ = self.strengths
        foreign = [name for name in self.model_fields_set if self.only_in.get(name, self.norm) != self.norm]
        if foreign:
            raise ValueError(f"{foreign[0]}: expected no value in {self.norm}, got one. Remove it.")
        return self

    @model_serializer(mode="wrap")
    def _dump_fields_of_norm(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        names = self.field_names(self.norm)
        return {name: value for name, value in handler(self).items() if name in names}

    @property
    def strengths(self) -> tuple[float, ...]:
        return sort_strengths(tuple(map(CONSTRAINTS[self.norm].strength_of, self.epsilons)), "epsilons")


class Fgsm(Attack):
    """Fast gradient sign method (Goodfellow et al., 2015): one step of size epsilon, no random start."""

    role: ClassVar[Role] = "single step"


_SUFFICIENT_PATH_RADII = 2.5
"""Sufficient length of an attack's path in radii of its ball: the attack can reach the edge from any starting point and
then move along the edge (Madry et al., 2018, appendix B)."""


def _cautions_about_reach(field: str, step: float, steps: int, radius: float) -> tuple[Caution, ...]:
    """Return a warning if the path is shorter than the ball's radius, so that the attack cannot reach the edge.

    Args:
        field: parameter of the step length, for the message.
        step: length of a step.
        steps: number of steps.
        radius: radius of the largest ball, in the same unit as `step`.
    """
    if steps * step >= radius * (1 - 1e-9):
        return ()
    problem = (
        f"steps × {field} = {steps:,} × {step:.3g} = {steps * step:.4g}, so the attack does not reach the edge of a "
        f"ball of radius {radius:g} and accuracies come out too high"
    )
    sufficient = min(radius, _SUFFICIENT_PATH_RADII * radius / steps)
    return (Caution("steps", problem, f"Take more steps or longer ones, such as {field}: {sufficient:.3g}."),)


class Pgd(Attack):
    """Projected gradient descent (Kurakin et al., 2017; Madry et al., 2018), as in Foolbox."""

    steps: PositiveInt = 40
    """Number of steps."""
    rel_stepsize: PositiveFloat = 0.01 / 0.3
    """Length of a step as a fraction of epsilon."""
    random_start: bool = True
    """Start at a random point of the ball."""
    target: Literal["none", "least_likely"] = "none"
    """`none` for an untargeted attack; `least_likely` for the targeted attack of the paper's equation 2."""

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return _cautions_about_reach("rel_stepsize", self.rel_stepsize, self.steps, 1.0)


class PgdVariant(Attack):
    """Projected gradient descent as Wang and Horne use it, with parameters in which implementations differ."""

    only_in: ClassVar[Mapping[str, Norm]] = {"rel_stepsize": "Linf", "step_size": "L2"}

    steps: PositiveInt
    """Number of steps."""
    rel_stepsize: PositiveFloat = 0.25
    """Length of a step as a fraction of epsilon (Linf)."""
    step_size: PositiveFloat = 0.1
    """Length of a step (L2)."""
    random_start: bool = False
    """Start at a random point of the ball."""
    iterate: Literal["last", "best"] = "last"
    """Iterate that the attack returns; `best` (highest cross-entropy) needs the fused engine."""
    label: Literal["given", "predicted"] = "given"
    """Class that the attack leads away from: the image's label (`given`), or the class predicted at the starting point
    (`predicted`). With a random start, `predicted` needs the fused engine."""

    @property
    def cautions(self) -> tuple[Caution, ...]:
        if self.norm == "Linf":
            return _cautions_about_reach("rel_stepsize", self.rel_stepsize, self.steps, 1.0)
        return _cautions_about_reach("step_size", self.step_size, self.steps, max(self.strengths))

    def unsupported_engine_reason(self, engine: str) -> str | None:
        """Return why Foolbox cannot run this variant: it returns neither its starting points nor other iterates."""
        if engine == "reference" and self.iterate == "best":
            return (
                "expected iterate: last with engine: reference, since Foolbox returns the last iterate, got best. "
                "Set engine: fused or iterate: last."
            )
        if engine == "reference" and self.label == "predicted" and self.random_start:
            return (
                "expected label: given with engine: reference and random_start: true, since Foolbox does not return "
                "its starting points, got predicted. Set engine: fused or random_start: false."
            )
        return None


class Apgd(Attack):
    """AutoAttack's APGD on the cross-entropy (Croce and Hein, 2020; in an L1 ball 2021)."""

    only_in: ClassVar[Mapping[str, Norm]] = {"larger_epsilons": "L1"}

    steps: PositiveInt = 100
    """Number of iterations."""
    restarts: PositiveInt = 1
    """Number of runs."""
    larger_epsilons: bool = True
    """Whether the first three fifths of the iterations use balls of 3 and 2 epsilon (L1)."""


class ApgdTargeted(Apgd):
    """APGD on the targeted difference of logits ratio, one target class after the other (Croce and Hein, 2020)."""

    min_classes: ClassVar[int] = 4
    targets: PositiveInt = 9
    """Number of target classes, limited by the number of other classes."""


class FabTargeted(Attack):
    """Fast adaptive boundary attack towards one target class after the other, as in AutoAttack."""

    role: ClassVar[Role] = "nearest"
    steps: PositiveInt = 100
    """Number of iterations."""
    targets: PositiveInt = 9
    """Number of target classes, limited by the number of other classes."""


def _untileable_reason(norm: Norm, height: int, width: int) -> str | None:
    """Return why Square cannot start on images of this size in a norm, or None if it can."""
    if norm == "Linf" or height >= 5:
        return None
    return (
        f"expected images of 5 pixels or more, since Square starts in {norm} with tiles of a fifth of the height, got "
        f"{height}x{width}."
    )


class Square(Attack):
    """Square attack (Andriushchenko et al., 2020; in an L1 ball Croce and Hein, 2021), as in AutoAttack."""

    role: ClassVar[Role] = "black box"
    queries: PositiveInt = 5000
    """Maximum number of queries per image."""
    restarts: PositiveInt = 1
    """Number of runs."""
    p_init: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Fraction of the pixels that the first squares change."""

    def unsupported_shape_reason(self, height: int, width: int) -> str | None:
        return _untileable_reason(self.norm, height, width)


class Standard(Attack):
    """AutoAttack's standard version (Croce and Hein, 2020): APGD-CE, APGD-T, FAB-T and Square."""

    role: ClassVar[Role] = "ensemble"
    min_classes: ClassVar[int] = 4
    steps: PositiveInt = 100
    """Number of steps of APGD-CE, APGD-T and FAB-T."""
    queries: PositiveInt = 5000
    """Maximum number of queries of Square per image."""

    def unsupported_shape_reason(self, height: int, width: int) -> str | None:
        return _untileable_reason(self.norm, height, width)


class Fmn(Attack):
    """Fast minimum-norm attack (Pintor et al., 2021), as in Foolbox.

    The attack searches for the smallest perturbation that fools a network. One run serves all epsilons: an image counts
    as fooled at every epsilon that is not below its distance.
    """

    only_in: ClassVar[Mapping[str, Norm]] = {"projection": "L2"}
    min_strong_steps: ClassVar[int] = 50
    """Number of steps below which distances are overestimated."""

    steps: PositiveInt = 100
    """Number of iterations, with one gradient each."""
    max_stepsize: PositiveFloat = 1.0
    """L2 length of the first step; the length decreases to a hundredth of it."""
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Relative change of epsilon in the first step; later changes are smaller."""
    projection: Literal["ball", "none", "both"] = "both"
    """In L2, `ball` projects onto the ball of epsilon, as published; `none` does not, like Foolbox 3.3.4; `both` runs
    the attack with and without, and takes the nearer image (docs/protocol/attacks.md)."""

    @property
    def n_runs(self) -> int:
        """Number of runs of the attack."""
        return 2 if self.norm == "L2" and self.projection == "both" else 1

    @property
    def cautions(self) -> tuple[Caution, ...]:
        if self.steps >= self.min_strong_steps:
            return ()
        problem = f"{self.steps:,} steps are few, so distances come out too large and accuracies too high"
        return (Caution("steps", problem, f"Take {self.min_strong_steps:,} or more."),)


class Spatial(Parameters):
    """A grid of evenly spaced rotations and translations (Engstrom et al., 2019)."""

    role: ClassVar[Role] = "black box"
    rotations: PositiveInt = 31
    """Number of angles."""
    max_rotation: Annotated[float, Field(gt=0, le=180)] = 30.0
    """Largest angle in degrees, in both directions."""
    translations: PositiveInt = 5
    """Number of shifts along each axis."""
    max_translation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
    """Largest shift in pixels, in both directions."""

    def unsupported_shape_reason(self, height: int, width: int) -> str | None:
        """Return why images that are not square cannot be rotated, or None if the images are square.

        Foolbox maps both axes of an image to [-1, 1] before it rotates and translates. Rotations therefore shear images
        that are not square, and a shift of one pixel has different lengths along the two axes.
        """
        if height == width:
            return None
        return (
            f"expected square images, since Foolbox's rotations and translations distort others, got {height}x{width}."
        )

    @property
    def n_points(self) -> int:
        return self.rotations * self.translations**2

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        # A single grid point would be the lower end of the range instead of its centre.
        if self.rotations == 1 or (self.translations == 1 and self.max_translation):
            raise ValueError(
                "expected two or more rotations, and two or more translations unless max_translation is 0, got one."
            )
        if self.n_points > MAX_GRID_POINTS:
            raise ValueError(
                f"expected up to {MAX_GRID_POINTS:,} grid points, got {self.n_points:,}: rotations "
                f"({self.rotations:,}) times the square of translations ({self.translations:,}). Lower one of them."
            )
        return self


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
