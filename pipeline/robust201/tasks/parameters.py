"""Parameters of all tasks except measures, named as in the sweep YAML.

Unless a class names another source, the defaults are the settings of the paper (Jung et al., ICLR 2023).
"""

import re
import reprlib
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import Field, create_model, field_validator, model_validator

from robust201.core.records import CLEAN_STRENGTH, ImageSelection
from robust201.core.strict_model import PositiveFloat, PositiveInt, StrictModel

PAPER_EPSILONS_255 = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
"""Epsilons of PGD, APGD-CE and Square in units of 1/255 (meta.json of the published dataset)."""

PAPER_FGSM_EPSILONS_255 = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 255.0)
"""Epsilons of FGSM in units of 1/255 (meta.json of the published dataset)."""

SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)
"""Severities of corruptions, from weak to strong."""

STRENGTH_FIELDS = ("epsilons", "epsilons_255", "severities")
"""Names of the parameters that are lists of strengths. Each strength is a separate evaluation."""

MAX_STRENGTHS = 1_000
"""Maximum number of strengths per key."""

MAX_GRID_POINTS = 10_000
"""Maximum number of grid points. The coordinates of all points are in memory at once, and take 8 kB per point for
images of 32x32 pixels."""

_MIN_COMMON_EPSILON_255 = 0.05
"""Smallest plausible epsilon in units of 1/255, half of the paper's smallest; 0.03 is probably meant as 8/255."""
_MAX_COMMON_K = 32
"""Largest k for which a decimal number is recognised as k/255."""
_PIXEL_TOLERANCE = 0.015
"""Maximum relative difference between k/255 and a number that is recognised as k/255: 0.031 counts as 8/255."""

Epsilons255 = Annotated[
    tuple[Annotated[float, Field(gt=0, le=255, allow_inf_nan=False)], ...],
    Field(min_length=1, max_length=MAX_STRENGTHS),
]
Radii = Annotated[tuple[PositiveFloat, ...], Field(min_length=1, max_length=MAX_STRENGTHS)]
Severity = Annotated[int, Field(ge=1, le=5)]
Norm = Literal["Linf", "L2", "L1"]
NORMS: tuple[Norm, ...] = get_args(Norm)


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
    """Base class of the parameters of a key, as in the sweep YAML."""

    field_aliases: ClassVar[tuple[str, ...]] = ()
    """Names of fields in YAML files that set another field, such as `epsilons` for `epsilons_255`."""

    @property
    def strengths(self) -> tuple[float, ...]:
        """Strengths to evaluate, ascending."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return the parameters that affect results, except the strengths, which each evaluation has separately."""
        return self.model_dump(mode="json", exclude={*STRENGTH_FIELDS})

    @property
    def uses_random_numbers(self) -> bool:
        """Whether a measure uses random numbers. Attacks ignore this: the seed is always part of their protocol."""
        return False

    @property
    def own_images(self) -> ImageSelection | None:
        """The selection of images that a measure requests; None for the sweep's selection."""
        return None

    @property
    def selected_columns(self) -> tuple[str, ...]:
        """Columns that the parameters of a measure select; empty for the columns of the measure's task."""
        return ()

    min_classes: ClassVar[int] = 1
    """Minimum number of classes that the task supports."""

    min_classes_reason: ClassVar[str] = ""
    """Reason for `min_classes`, for messages."""

    def unsupported_classes_reason(self, n_classes: int) -> str | None:
        """Return why a network with `n_classes` classes cannot be evaluated, or None."""
        if n_classes >= self.min_classes:
            return None
        return (
            f"expected {self.min_classes} classes or more, since {self.min_classes_reason}, got {n_classes}. Leave "
            "the key out."
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
    ball = "the ball" if field == "rel_stepsize" else f"the ball of radius {radius:g}"
    problem = (
        f"steps × {field} = {steps:,} × {step:.3g} = {steps * step:.4g}, so the attack does not reach the edge of "
        f"{ball} and accuracies come out too high"
    )
    sufficient = min(radius, _SUFFICIENT_PATH_RADII * radius / steps)
    return (Caution("steps", problem, f"Take more steps or longer ones, such as {field}: {sufficient:.3g}."),)


def sort_strengths(strengths: tuple[float, ...], name: str) -> tuple[float, ...]:
    """Return strengths in ascending order.

    Raises:
        ValueError: two strengths are equal.
    """
    if len(set(strengths)) != len(strengths):
        raise ValueError(f"expected different {name}, got {list(map(float, strengths))}.")
    return tuple(sorted(strengths))


class CleanParameters(Parameters):
    """Unchanged images."""

    @property
    def strengths(self) -> tuple[float, ...]:
        return (CLEAN_STRENGTH,)


_RATIO = re.compile(r"\s*([\d.]{1,20})\s*/\s*([\d.]{1,20})\s*", re.ASCII)
_EXPECTED_RADII = "epsilons: expected numbers or text such as 8/255"


def parse_radius(value: object) -> Fraction:
    """Return a radius for pixels in [0, 1] as an exact fraction, from a number or text such as ``8/255``.

    Raises:
        ValueError: the value is neither.
    """
    try:
        if isinstance(value, str) and (ratio := _RATIO.fullmatch(value)):
            return Fraction(ratio[1]) / Fraction(ratio[2])
        if isinstance(value, str):
            return Fraction(float(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Fraction(value)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{_EXPECTED_RADII}, got {reprlib.repr(value)}.") from error
    raise ValueError(f"{_EXPECTED_RADII}, got {reprlib.repr(value)}.")


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def is_about_255th(value: float, k: float) -> bool:
    """Return whether a number is about k/255. Other tools expect k/255 where robust201 expects k."""
    return abs(value * 255 - k) <= _PIXEL_TOLERANCE * k


def probable_255th(epsilon_255: float) -> int | None:
    """Return k if an epsilon in units of 1/255 is probably meant as k/255, otherwise None.

    Round decimals from 0.05, such as the paper's 0.1 and 0.5, are taken literally.
    """
    k = round(epsilon_255 * 255)
    if 0 < epsilon_255 < _MIN_COMMON_EPSILON_255:
        return max(k, 1)
    is_near = 1 <= k <= _MAX_COMMON_K and is_about_255th(epsilon_255, k)
    return k if is_near and epsilon_255 != round(epsilon_255, 2) else None


class EpsilonParameters(Parameters):
    """Parameters of an Linf attack: epsilons in units of 1/255 of the pixel range [0, 1].

    `epsilons`, for pixels in [0, 1], is an alternative: ``epsilons: [8/255]`` is the same as ``epsilons_255: [8]``.
    """

    norm: ClassVar[Norm] = "Linf"
    field_aliases: ClassVar[tuple[str, ...]] = ("epsilons",)
    epsilons_255: Epsilons255 = PAPER_EPSILONS_255
    """Linf radii in units of 1/255. Alternative: `epsilons: [8/255]`, for pixels in [0, 1]."""

    @model_validator(mode="before")
    @classmethod
    def _read_epsilons(cls, fields: object) -> object:
        if not isinstance(fields, Mapping) or "epsilons" not in fields:
            return fields
        if "epsilons_255" in fields:
            raise ValueError("expected epsilons or epsilons_255, got both. Leave one of them out.")
        radii = [parse_radius(value) for value in _as_list(fields["epsilons"])]
        for radius in radii:
            if not 0 < radius <= 1:
                radius_text = f"{float(radius):g}"
                hint = (
                    f"Write {radius_text}/255, or epsilons_255: [{radius_text}]."
                    if 1 < radius <= 255
                    else "Correct it."
                )
                raise ValueError(
                    f"epsilons: expected numbers above 0 and up to 1, for pixels in [0, 1], got {radius_text}. {hint}"
                )
        # Twelve digits, so that 8/255 rounded to a float becomes 8 again.
        epsilons_255 = tuple(float(f"{float(radius * 255):.12g}") for radius in radii)
        return {name: value for name, value in fields.items() if name != "epsilons"} | {"epsilons_255": epsilons_255}

    @field_validator("epsilons_255", mode="before")
    @classmethod
    def _reject_fractions(cls, epsilons: object) -> object:
        fraction = next((value for value in _as_list(epsilons) if isinstance(value, str) and "/" in value), None)
        if fraction is not None:
            fraction_text = reprlib.repr(fraction)
            raise ValueError(
                f"expected numbers in units of 1/255, got {fraction_text}. Write fractions as `epsilons: [8/255]`."
            )
        return epsilons

    @field_validator("epsilons_255")
    @classmethod
    def _sort_epsilons(cls, epsilons: tuple[float, ...]) -> tuple[float, ...]:
        return sort_strengths(epsilons, "epsilons")

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.epsilons_255

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings about epsilons that may be meant for pixels in [0, 1], as in other tools."""
        doubtful = [(epsilon, k) for epsilon in self.epsilons_255 if (k := probable_255th(epsilon)) is not None]
        if not doubtful:
            return ()
        epsilon, k = doubtful[0]
        further_epsilons = f" ({len(doubtful) - 1:,} more epsilons are similar)" if len(doubtful) > 1 else ""
        problem = f"{epsilon:g} is in units of 1/255, so it means {epsilon:g}/255{further_epsilons}"
        return (Caution("epsilons_255", problem, f"If {k}/255 is meant, write {k}, or `epsilons: [{k}/255]`."),)


class FgsmParameters(EpsilonParameters):
    """Fast gradient sign method (Goodfellow et al., 2015): one step of size epsilon, no random start."""

    epsilons_255: Epsilons255 = PAPER_FGSM_EPSILONS_255


class RelativeStepParameters(EpsilonParameters):
    """Parameters of an attack in an Linf ball whose step length is relative to epsilon."""

    steps: PositiveInt
    """Number of steps."""
    rel_stepsize: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Length of a step as a fraction of epsilon."""

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return (*super().cautions, *_cautions_about_reach("rel_stepsize", self.rel_stepsize, self.steps, 1.0))


class PgdParameters(RelativeStepParameters):
    """Projected gradient descent (Kurakin et al., 2017; Madry et al., 2018), as in Foolbox."""

    steps: PositiveInt = 40
    rel_stepsize: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01 / 0.3
    random_start: bool = True
    """Start at a random point of the ball."""
    target: Literal["none", "least_likely"] = "none"
    """`none` for an untargeted attack; `least_likely` for the targeted attack of the paper's equation 2."""


class PgdVariantParameters(Parameters):
    """Parameters in which implementations of projected gradient descent differ (docs/protocol.md)."""

    random_start: bool = False
    """Start at a random point of the ball."""
    iterate: Literal["last", "best"] = "last"
    """Iterate that the attack returns; `best` (highest cross-entropy) needs the fused engine."""
    label: Literal["given", "predicted"] = "given"
    """Class that the attack leads away from: the image's label (`given`), or the class predicted at the starting point
    (`predicted`). With a random start, `predicted` needs the fused engine."""

    def unsupported_engine_reason(self, engine: str) -> str | None:
        """Return why Foolbox cannot run this variant, or None.

        Foolbox returns neither its starting points nor any iterate except the last.
        """
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


class PgdLinf7Parameters(RelativeStepParameters, PgdVariantParameters):
    """Seven steps of projected gradient descent in an Linf ball, as Wang and Horne use them (docs/protocol.md)."""

    epsilons_255: Epsilons255 = (1.0, 2.0, 4.0, 8.0)
    rel_stepsize: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.25
    steps: PositiveInt = 7


class RadiusParameters(Parameters):
    """Parameters of an attack whose epsilons are radii for pixels in [0, 1]."""

    norm: ClassVar[Norm]
    epsilons: Radii
    """Radii for pixels in [0, 1]."""

    @field_validator("epsilons", mode="before")
    @classmethod
    def _read_fractions(cls, epsilons: object) -> object:
        """Accept text such as ``128/255`` as well as numbers."""
        if not isinstance(epsilons, list | tuple):
            return epsilons
        return [float(parse_radius(value)) if isinstance(value, str) else value for value in epsilons]

    @field_validator("epsilons")
    @classmethod
    def _sort_epsilons(cls, epsilons: tuple[float, ...]) -> tuple[float, ...]:
        return sort_strengths(epsilons, "epsilons")

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.epsilons


class L2Parameters(RadiusParameters):
    """Parameters of an attack in an L2 ball."""

    norm: ClassVar[Norm] = "L2"
    epsilons: Radii = (0.25, 0.5)


class L1Parameters(RadiusParameters):
    """Parameters of an attack in an L1 ball."""

    norm: ClassVar[Norm] = "L1"
    epsilons: Radii = (3.0, 6.0, 12.0)


class PgdL2Parameters(L2Parameters, PgdVariantParameters):
    """Projected gradient descent in an L2 ball; the defaults follow Wang and Horne (docs/protocol.md)."""

    step_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """L2 length of a step."""
    steps: PositiveInt = 100
    """Number of steps."""

    def identity(self) -> dict[str, Any]:
        """Return the parameters without the default label, since older evaluations do not have this parameter."""
        identity = super().identity()
        if self.label == "given":
            del identity["label"]
        return identity

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return _cautions_about_reach("step_size", self.step_size, self.steps, max(self.epsilons))


class Attack(Parameters):
    """Parameters of a family of attacks, such as APGD, in any ball (see `parameters_in_ball`)."""

    norm: ClassVar[Norm]
    family: ClassVar["type[Attack]"]

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle cannot find a dynamically created class by its name.
        return _parameters_from_fields, (self.family, self.norm, self.model_dump())


AttackT = TypeVar("AttackT", bound=Attack)


class Apgd(Attack):
    """AutoAttack's APGD on the cross-entropy (Croce and Hein, 2020)."""

    steps: PositiveInt = 100
    """Number of iterations."""
    restarts: PositiveInt = 1
    """Number of runs."""


class ApgdL1(Apgd):
    """APGD in an L1 ball; with `larger_epsilons`, the ball shrinks during a run (Croce and Hein, 2021)."""

    restarts: PositiveInt = 5
    larger_epsilons: bool = True
    """Whether the first three fifths of the iterations use balls of 3 and 2 epsilon."""


class TargetedDlrParameters(Parameters):
    """Parameters of attacks on the targeted difference of logits ratio, which need at least four classes."""

    min_classes: ClassVar[int] = 4
    min_classes_reason: ClassVar[str] = (
        "the targeted DLR loss divides by the largest logit minus the mean of the third and fourth largest"
    )


class TargetsParameters(Parameters):
    """Parameters of attacks that target one class after another, with a limit on the number of targets."""

    if TYPE_CHECKING:
        targets: int

    def unsupported_classes_reason(self, n_classes: int) -> str | None:
        """Return why there are too many targets or too few classes, or None.

        If the default number of targets is too large, the attack reduces it.
        """
        max_targets = n_classes - 1
        if self.targets > max_targets and self.targets != type(self).model_fields["targets"].default:
            return (
                f"expected `targets` up to {max_targets}, the number of classes other than the label, got "
                f"{self.targets}. Lower `targets`."
            )
        return super().unsupported_classes_reason(n_classes)


class ApgdTargeted(Apgd, TargetedDlrParameters, TargetsParameters):
    """APGD on the targeted difference of logits ratio, one target class after the other (Croce and Hein, 2020)."""

    targets: PositiveInt = 9
    """Number of target classes, limited by the number of other classes."""


class ApgdTargetedL1(ApgdL1, TargetedDlrParameters, TargetsParameters):
    """Targeted APGD in an L1 ball."""

    restarts: PositiveInt = 1
    targets: PositiveInt = 5
    """Number of target classes, limited by the number of other classes."""


class FabTargeted(Attack, TargetsParameters):
    """Fast adaptive boundary attack towards one target class after the other, as in AutoAttack."""

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

    queries: PositiveInt = 5000
    """Maximum number of queries per image."""
    restarts: PositiveInt = 1
    """Number of runs."""
    p_init: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Fraction of the pixels that the first squares change."""

    def unsupported_shape_reason(self, height: int, width: int) -> str | None:
        return _untileable_reason(self.norm, height, width)


class Standard(Attack, TargetedDlrParameters):
    """AutoAttack's standard version (Croce and Hein, 2020): APGD-CE, APGD-T, FAB-T and Square.

    Attributes:
        steps: number of steps of APGD-CE, APGD-T and FAB-T.
        queries: maximum number of queries of Square per image.
    """

    steps: PositiveInt = 100
    queries: PositiveInt = 5000

    def unsupported_shape_reason(self, height: int, width: int) -> str | None:
        return _untileable_reason(self.norm, height, width)


class Fmn(Attack):
    """Fast minimum-norm attack (Pintor et al., 2021), as in Foolbox.

    The attack searches for the smallest perturbation that fools a network. One run serves all epsilons: an image counts
    as fooled at every epsilon that is not below its distance.

    Attributes:
        steps: number of iterations, with one gradient each.
        max_stepsize: L2 length of the first step; the length decreases to a hundredth of it.
        gamma: relative change of epsilon in the first step; later changes are smaller.
    """

    min_strong_steps: ClassVar[int] = 50
    """Number of steps below which distances are overestimated."""
    steps: PositiveInt = 100
    max_stepsize: PositiveFloat = 1.0
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.05

    @property
    def n_runs(self) -> int:
        """Number of runs of the attack."""
        return 1

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings about too few steps."""
        if self.steps >= self.min_strong_steps:
            return super().cautions
        problem = f"{self.steps:,} steps are few, so distances come out too large and accuracies too high"
        return (*super().cautions, Caution("steps", problem, f"Take {self.min_strong_steps:,} or more."))


class FmnL2(Fmn):
    """Fast minimum-norm attack in L2.

    Attributes:
        projection: `ball` projects onto the ball of epsilon, as published; `none` does not, like Foolbox 3.3.4; `both`
            runs the attack with and without, and takes the nearer image (docs/protocol.md).
    """

    projection: Literal["ball", "none", "both"] = "both"

    @property
    def n_runs(self) -> int:
        return 2 if self.projection == "both" else 1


_NORM_PARAMETERS: dict[Norm, type[Parameters]] = {
    "Linf": EpsilonParameters,
    "L2": L2Parameters,
    "L1": L1Parameters,
}
"""Base class that defines the epsilons of each norm."""

_NORM_SPECIFIC: dict[tuple[type[Attack], Norm], type[Attack]] = {
    (Apgd, "L1"): ApgdL1,
    (ApgdTargeted, "L1"): ApgdTargetedL1,
    (Fmn, "L2"): FmnL2,
}
"""Parameter classes of families that have additional parameters, or other defaults, in one norm."""


@cache
def parameters_in_ball(family: type[AttackT], norm: Norm) -> type[AttackT]:
    """Return the parameter class of a family in one norm, with the family's parameters and the norm's epsilons."""
    base = _NORM_SPECIFIC.get((family, norm), family)
    bases: Any = (base, _NORM_PARAMETERS[norm])
    parameters: type[AttackT] = create_model(f"{family.__name__}In{norm}", __base__=bases, __doc__=base.__doc__)
    parameters.family = family
    return parameters


def _parameters_from_fields(family: type[Attack], norm: Norm, fields: Mapping[str, Any]) -> Attack:
    parameters: Attack = parameters_in_ball(family, norm)(**fields)
    return parameters


class SpatialParameters(Parameters):
    """A grid of evenly spaced rotations and translations (Engstrom et al., 2019).

    Attributes:
        rotations: number of angles.
        max_rotation: largest angle in degrees, in both directions.
        translations: number of shifts along each axis.
        max_translation: largest shift in pixels, in both directions.
    """

    rotations: PositiveInt = 31
    max_rotation: Annotated[float, Field(gt=0, le=180)] = 30.0
    translations: PositiveInt = 5
    max_translation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0

    @property
    def strengths(self) -> tuple[float, ...]:
        return (CLEAN_STRENGTH,)

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


class Grid135Parameters(SpatialParameters):
    """Nine translations and fifteen angles of up to 30 degrees."""

    rotations: PositiveInt = 15
    translations: PositiveInt = 3


class Grid775SmallAnglesParameters(SpatialParameters):
    """The grid of 775 points with angles of up to 10 degrees."""

    max_rotation: Annotated[float, Field(gt=0, le=180)] = 10.0


class RotationParameters(SpatialParameters):
    """Angles of up to 30 degrees, no translation."""

    translations: PositiveInt = 1
    max_translation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class SmallRotationParameters(RotationParameters):
    """Angles of up to 10 degrees, no translation."""

    max_rotation: Annotated[float, Field(gt=0, le=180)] = 10.0


class CorruptionParameters(Parameters):
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
