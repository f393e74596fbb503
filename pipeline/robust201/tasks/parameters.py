"""Parameters of tasks but measures as the sweep YAML gives them; the defaults are the paper's."""

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

STRENGTH_FIELDS = ("epsilons", "epsilons_255", "severities")
"""Parameters that are lists of strengths, which name single evaluations."""

MAX_STRENGTHS = 1_000
"""Upper limit of the strengths of one key."""

MAX_GRID_POINTS = 10_000
"""Upper limit of rotations times shifts: the coordinates of all of them are in memory at once, 8 kB each at 32x32."""

_LARGEST_USUAL = 32
_PIXEL_TOLERANCE = 0.015
"""Largest relative difference from k/255 at which a number is taken for it: 0.031 counts as 8/255."""

Epsilons255 = Annotated[
    tuple[Annotated[float, Field(gt=0, le=255, allow_inf_nan=False)], ...],
    Field(min_length=1, max_length=MAX_STRENGTHS),
]
Radii = Annotated[tuple[PositiveFloat, ...], Field(min_length=1, max_length=MAX_STRENGTHS)]
Severity = Annotated[int, Field(ge=1, le=5)]
Norm = Literal["Linf", "L2", "L1", "L0"]
NORMS: tuple[Norm, ...] = ("Linf", "L2", "L1")
"""Norms in which AutoAttack has its attacks."""

MINIMUM_NORMS: tuple[Norm, ...] = get_args(Norm)
"""Norms that attacks for the smallest perturbation minimise."""


class Caution(NamedTuple):
    """A warning about valid parameters: the field, what is doubtful about its value, and the remedy."""

    field: str
    what: str
    fix: str


class Parameters(StrictModel):
    """Parameters of one key as the sweep YAML gives them; the defaults are the paper's."""

    other_spellings: ClassVar[tuple[str, ...]] = ()
    """Names other than those of the fields by which parameters may be given."""

    @property
    def strengths(self) -> tuple[float, ...]:
        """Strengths to evaluate, ascending."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Parameters that decide a number, without the strengths (those name single evaluations)."""
        return self.model_dump(mode="json", exclude={*STRENGTH_FIELDS})

    @property
    def draws(self) -> bool:
        """Whether a measure draws at random; of attacks the seed is always part of the protocol."""
        return False

    @property
    def own_images(self) -> ImageSelection | None:
        """The images that a measure asks for; None for those that the sweep selects."""
        return None

    @property
    def chosen_columns(self) -> tuple[str, ...]:
        """Columns of a measure that these parameters choose; empty for those of its row."""
        return ()

    fewest_classes: ClassVar[int] = 1
    """Classes that a task needs at least; `needs_classes` says what for."""

    needs_classes: ClassVar[str] = ""

    def class_refusal(self, n_classes: int) -> str | None:
        """Say why a network of some classes cannot be evaluated; None where it can."""
        if n_classes >= self.fewest_classes:
            return None
        return (
            f"expected {self.fewest_classes} classes or more, since {self.needs_classes}, got {n_classes}. Leave "
            "the key out."
        )

    def refusal(self, engine: str) -> str | None:
        """Say why an engine cannot compute with these parameters; None where it can."""
        del engine
        return None

    def shape_refusal(self, height: int, width: int) -> str | None:
        """Return why images of this size cannot be perturbed; None where they can."""
        del height, width
        return None

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings about values that are valid, but may be mistakes or make an attack weak."""
        return ()


_MADRYS_REACH = 2.5
"""Length of an attack's path in radii of its ball: from any start to the edge, and some way along it (Madry et al.,
2018, appendix B)."""


def _cautions_about_reach(field: str, step: float, steps: int, radius: float) -> tuple[Caution, ...]:
    """Warn of a path that is shorter than the radius of the ball: the attack never uses its epsilon.

    Args:
        field: parameter that holds the length of a step.
        step: length of a step.
        steps: number of steps.
        radius: radius of the largest ball, in the unit of `step`.
    """
    if steps * step >= radius * (1 - 1e-9):
        return ()
    ball = "the ball" if field == "rel_stepsize" else f"the ball of radius {radius:g}"
    what = (
        f"steps × {field} = {steps:,} × {step:.3g} = {steps * step:.4g}, so the attack does not reach the edge of "
        f"{ball} and accuracies come out too high"
    )
    enough = min(radius, _MADRYS_REACH * radius / steps)
    return (Caution("steps", what, f"Take more steps or longer ones, such as {field}: {enough:.3g}."),)


def ascending(strengths: tuple[float, ...], name: str) -> tuple[float, ...]:
    """Sort strengths.

    Raises:
        ValueError: two are equal.
    """
    if len(set(strengths)) != len(strengths):
        raise ValueError(f"expected different {name}, got {list(map(float, strengths))}.")
    return tuple(sorted(strengths))


class CleanParameters(Parameters):
    """The images as they are."""

    @property
    def strengths(self) -> tuple[float, ...]:
        return (CLEAN_STRENGTH,)


_RATIO = re.compile(r"\s*([\d.]{1,20})\s*/\s*([\d.]{1,20})\s*", re.ASCII)
_RADIUS_EXPECTED = "epsilons: expected numbers or text such as 8/255"


def parse_radius(value: object) -> Fraction:
    """Read a radius in the units of pixels, exactly: a number, or text such as ``8/255``.

    Raises:
        ValueError: it is neither.
    """
    try:
        if isinstance(value, str) and (ratio := _RATIO.fullmatch(value)):
            return Fraction(ratio[1]) / Fraction(ratio[2])
        if isinstance(value, str):
            return Fraction(float(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Fraction(value)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{_RADIUS_EXPECTED}, got {reprlib.repr(value)}.") from error
    raise ValueError(f"{_RADIUS_EXPECTED}, got {reprlib.repr(value)}.")


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def is_about_255th(value: float, k: float) -> bool:
    """Whether a number is k/255, as other tools write k, or that rounded."""
    return abs(value * 255 - k) <= _PIXEL_TOLERANCE * k


def looks_like_pixels(epsilon_255: float) -> int | None:
    """Give k where an epsilon in units of 1/255 is about k/255, as other tools write k; None elsewhere.

    Round decimals, such as the paper's 0.1 and 0.5, are meant as they are.
    """
    k = round(epsilon_255 * 255)
    is_near = 1 <= k <= _LARGEST_USUAL and is_about_255th(epsilon_255, k)
    return k if is_near and epsilon_255 != round(epsilon_255, 2) else None


class EpsilonParameters(Parameters):
    """Parameters of an Linf attack: epsilons in units of 1/255 of the pixel range [0, 1].

    `epsilons`, in the units of pixels, is another way to write them: ``epsilons: [8/255]`` is ``epsilons_255: [8]``.
    """

    norm: ClassVar[Norm] = "Linf"
    other_spellings: ClassVar[tuple[str, ...]] = ("epsilons",)
    epsilons_255: Epsilons255 = PAPER_EPSILONS_255

    @model_validator(mode="before")
    @classmethod
    def _read_epsilons(cls, fields: object) -> object:
        if not isinstance(fields, Mapping) or "epsilons" not in fields:
            return fields
        if "epsilons_255" in fields:
            raise ValueError("expected epsilons or epsilons_255, got both. Leave one of them out.")
        radii = [parse_radius(value) for value in _items(fields["epsilons"])]
        for radius in radii:
            if not 0 < radius <= 1:
                shown = f"{float(radius):g}"
                hint = f"Write {shown}/255, or epsilons_255: [{shown}]." if 1 < radius <= 255 else "Correct it."
                raise ValueError(
                    f"epsilons: expected numbers above 0 and up to 1, in units of pixels, got {shown}. {hint}"
                )
        # Twelve digits, so that 8/255 that was rounded to a float is 8 again.
        epsilons_255 = tuple(float(f"{float(radius * 255):.12g}") for radius in radii)
        return {name: value for name, value in fields.items() if name != "epsilons"} | {"epsilons_255": epsilons_255}

    @field_validator("epsilons_255", mode="before")
    @classmethod
    def _refuse_fractions(cls, epsilons: object) -> object:
        fraction = next((value for value in _items(epsilons) if isinstance(value, str) and "/" in value), None)
        if fraction is not None:
            shown = reprlib.repr(fraction)
            raise ValueError(
                f"expected numbers in units of 1/255, got {shown}. Write fractions as `epsilons: [8/255]`."
            )
        return epsilons

    @field_validator("epsilons_255")
    @classmethod
    def _sort_epsilons(cls, epsilons: tuple[float, ...]) -> tuple[float, ...]:
        return ascending(epsilons, "epsilons")

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.epsilons_255

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings about epsilons written in the unit of other tools, 8/255 for what is 8 here."""
        doubtful = [(epsilon, k) for epsilon in self.epsilons_255 if (k := looks_like_pixels(epsilon)) is not None]
        if not doubtful:
            return ()
        epsilon, k = doubtful[0]
        others = f" ({len(doubtful) - 1:,} more like it)" if len(doubtful) > 1 else ""
        what = f"{epsilon:g} is in units of 1/255, so it means {epsilon:g}/255{others}"
        return (Caution("epsilons_255", what, f"If {k}/255 is meant, write {k}, or `epsilons: [{k}/255]`."),)


class FgsmParameters(EpsilonParameters):
    """Fast gradient sign method (Goodfellow et al., 2015): one step of size epsilon, no random start."""

    epsilons_255: Epsilons255 = PAPER_FGSM_EPSILONS_255


class RelativeStepParameters(EpsilonParameters):
    """Parameters of an attack in an Linf ball whose steps have a length relative to epsilon."""

    steps: PositiveInt
    rel_stepsize: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return (*super().cautions, *_cautions_about_reach("rel_stepsize", self.rel_stepsize, self.steps, 1.0))


class PgdParameters(RelativeStepParameters):
    """Projected gradient descent (Kurakin et al., 2017; Madry et al., 2018) as Foolbox runs it."""

    steps: PositiveInt = 40
    rel_stepsize: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01 / 0.3
    random_start: bool = True
    target: Literal["none", "least_likely"] = "none"


class PgdVariants(Parameters):
    """What implementations of projected gradient descent differ in (docs/protocol.md)."""

    random_start: bool = False
    iterate: Literal["last", "best"] = "last"
    label: Literal["given", "predicted"] = "given"

    def refusal(self, engine: str) -> str | None:
        """Foolbox returns the last iterate, and keeps its random start to itself (see `Parameters`)."""
        if engine == "reference" and self.iterate == "best":
            return (
                "expected iterate: last with engine: reference, since Foolbox returns the last, got best. "
                "Set engine: fused or iterate: last."
            )
        if engine == "reference" and self.label == "predicted" and self.random_start:
            return (
                "expected label: given with engine: reference and random_start: true, since Foolbox does not show "
                "where it starts, got predicted. Set engine: fused or random_start: false."
            )
        return None


class PgdLinf7Parameters(RelativeStepParameters, PgdVariants):
    """Seven steps of projected gradient descent in an Linf ball, as Wang and Horne use it (docs/protocol.md)."""

    epsilons_255: Epsilons255 = (1.0, 2.0, 4.0, 8.0)
    rel_stepsize: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.25
    steps: PositiveInt = 7


class RadiusParameters(Parameters):
    """Parameters of an attack whose epsilons are radii in the units of pixels."""

    norm: ClassVar[Norm]
    epsilons: Radii

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
        return ascending(epsilons, "epsilons")

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


class L0Parameters(RadiusParameters):
    """Parameters of an attack that changes a number of values."""

    norm: ClassVar[Norm] = "L0"
    epsilons: Radii = (10.0, 24.0, 50.0)


class PgdL2Parameters(L2Parameters, PgdVariants):
    """Projected gradient descent in an L2 ball; the defaults are those of Wang and Horne (docs/protocol.md)."""

    step_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    steps: PositiveInt = 100

    def identity(self) -> dict[str, Any]:
        """All but the default label, which evaluations of before it was a parameter do not name."""
        identity = super().identity()
        if self.label == "given":
            del identity["label"]
        return identity

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return _cautions_about_reach("step_size", self.step_size, self.steps, max(self.epsilons))


class Attack(Parameters):
    """Parameters of a family of attacks in any ball (see `in_ball`)."""

    norm: ClassVar[Norm]
    family: ClassVar["type[Attack]"]

    def __reduce__(self) -> tuple[Any, ...]:
        # A class that was made by a call has no name by which pickle could find it.
        return _in_ball_with, (self.family, self.norm, self.model_dump())


AttackT = TypeVar("AttackT", bound=Attack)


class Apgd(Attack):
    """APGD of AutoAttack, on the cross-entropy (Croce and Hein, 2020)."""

    steps: PositiveInt = 100
    restarts: PositiveInt = 1


class ApgdL1(Apgd):
    """APGD in an L1 ball, which shrinks during a run with `larger_epsilons` (Croce and Hein, 2021)."""

    restarts: PositiveInt = 5
    larger_epsilons: bool = True


class DlrLoss(Parameters):
    """Requirements of attacks on the difference of logits ratio."""

    fewest_classes: ClassVar[int] = 3
    needs_classes: ClassVar[str] = "the DLR loss divides by the largest logit minus the third largest"


class ApgdDlr(Apgd, DlrLoss):
    """APGD on the difference of logits ratio (Croce and Hein, 2020)."""


class ApgdDlrL1(ApgdL1, DlrLoss):
    """APGD on the difference of logits ratio in an L1 ball."""


class TargetedDlrLoss(Parameters):
    """Requirements of attacks on the targeted difference of logits ratio."""

    fewest_classes: ClassVar[int] = 4
    needs_classes: ClassVar[str] = (
        "the targeted DLR loss divides by the largest logit minus the mean of the third and fourth largest"
    )


class Targeted(Parameters):
    """Requirements of attacks on one target class after the other."""

    if TYPE_CHECKING:
        targets: int

    def class_refusal(self, n_classes: int) -> str | None:
        """Reject more targets than there are other classes; the default means all of them if they are fewer."""
        others = n_classes - 1
        if self.targets > others and self.targets != type(self).model_fields["targets"].default:
            return (
                f"expected targets up to {others}, the number of classes other than the image's own, got "
                f"{self.targets}. Lower it."
            )
        return super().class_refusal(n_classes)


class ApgdTargeted(Apgd, TargetedDlrLoss, Targeted):
    """APGD on the targeted difference of logits ratio, one target class after the other (Croce and Hein, 2020)."""

    targets: PositiveInt = 9


class ApgdTargetedL1(ApgdL1, TargetedDlrLoss, Targeted):
    """Targeted APGD in an L1 ball."""

    restarts: PositiveInt = 1
    targets: PositiveInt = 5


class Fab(Attack):
    """Fast adaptive boundary attack of AutoAttack (Croce and Hein, 2020)."""

    steps: PositiveInt = 100
    restarts: PositiveInt = 1


class FabTargeted(Attack, Targeted):
    """Fast adaptive boundary attack towards one target class after the other, as AutoAttack runs it."""

    steps: PositiveInt = 100
    targets: PositiveInt = 9


class Square(Attack):
    """Square attack (Andriushchenko et al., 2020; in an L1 ball Croce and Hein, 2021) as AutoAttack runs it."""

    queries: PositiveInt = 5000
    restarts: PositiveInt = 1
    p_init: Annotated[float, Field(gt=0, le=1)] = 0.8


class Standard(Attack, TargetedDlrLoss):
    """AutoAttack's standard version (Croce and Hein, 2020): APGD-CE, APGD-T, FAB-T and Square by their defaults.

    Attributes:
        steps: of APGD and FAB.
        queries: of Square.
    """

    steps: PositiveInt = 100
    queries: PositiveInt = 5000


class Rand(Attack, DlrLoss):
    """AutoAttack's version for randomised networks (Croce and Hein, 2020): APGD-CE and APGD-DLR, averaged gradients.

    Attributes:
        steps: of both.
        passes: gradients that are averaged in each step (expectation over transformations).
    """

    steps: PositiveInt = 100
    passes: PositiveInt = 20


class MinimumNorm(Attack):
    """Parameters of an attack for the smallest perturbation that fools a network.

    One run serves all epsilons: an image withstands those below its distance.

    Attributes:
        steps: iterations, each a gradient.
        weak_below: steps below which distances come out too large.
    """

    weak_below: ClassVar[int]
    steps: PositiveInt = 100

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings about too few steps."""
        if self.steps >= self.weak_below:
            return super().cautions
        what = f"{self.steps:,} steps are few, so distances come out too large and accuracies too high"
        return (*super().cautions, Caution("steps", what, f"Take {self.weak_below:,} or more."))


class Fmn(MinimumNorm):
    """Fast minimum-norm attack (Pintor et al., 2021) as Foolbox runs it.

    Attributes:
        max_stepsize: L2 length of the first step; steps shrink to a hundredth of it.
        gamma: factor by which epsilon changes at first.
    """

    weak_below: ClassVar[int] = 50
    max_stepsize: PositiveFloat = 1.0
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.05


class FmnL2(Fmn):
    """Fast minimum-norm attack in L2.

    Attributes:
        projection: onto the ball of epsilon, as published, or none, as Foolbox 3.3.4 has it (docs/protocol.md).
    """

    projection: Literal["ball", "none"] = "ball"


class Ddn(MinimumNorm):
    """Decoupled direction and norm (Rony et al., 2019) as Foolbox runs it.

    Attributes:
        init_epsilon: radius of the first ball.
        gamma: factor by which it changes in each step.
    """

    weak_below: ClassVar[int] = 50
    init_epsilon: PositiveFloat = 1.0
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.05

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings about too few steps, also for the way from the first ball to the smallest epsilon."""
        smallest = self.init_epsilon * (1 - self.gamma) ** self.steps
        if smallest <= min(self.strengths):
            return super().cautions
        what = (
            f"init_epsilon × (1 - gamma)^steps = {smallest:.4g}, so the attack finds no perturbation as small as the "
            f"smallest epsilon, {min(self.strengths):g}"
        )
        return (*super().cautions, Caution("steps", what, "Take more steps, a larger gamma or a smaller init_epsilon."))


class SigmaZero(MinimumNorm):
    """σ-zero (Cinà et al., 2025): gradient descent on a smooth approximation of the L0 norm.

    Attributes:
        stepsize: of the first step of Adam; falls to a tenth of it.
        sigma: how sharp the approximation is.
        threshold: values below are set to 0, at first.
        threshold_factor: change of the threshold per step, in units of the step size.
    """

    weak_below: ClassVar[int] = 300
    steps: PositiveInt = 1000
    stepsize: PositiveFloat = 1.0
    sigma: PositiveFloat = 0.001
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.3
    threshold_factor: PositiveFloat = 0.01


class BrendelBethge(MinimumNorm):
    """Attack along the decision boundary (Brendel et al., 2019) as Foolbox runs it.

    Attributes:
        lr: radius of the trust region, in units of the number of values of a batch.
    """

    weak_below: ClassVar[int] = 100
    steps: PositiveInt = 1000
    lr: PositiveFloat = 0.001


_BALLS: dict[Norm, type[Parameters]] = {
    "Linf": EpsilonParameters,
    "L2": L2Parameters,
    "L1": L1Parameters,
    "L0": L0Parameters,
}
_FORMS: dict[tuple[type[Attack], Norm], type[Attack]] = {
    (Apgd, "L1"): ApgdL1,
    (ApgdDlr, "L1"): ApgdDlrL1,
    (ApgdTargeted, "L1"): ApgdTargetedL1,
    (Fmn, "L2"): FmnL2,
}
"""Forms of families of attacks that have more parameters in one norm, or others by default."""


@cache
def in_ball(family: type[AttackT], norm: Norm) -> type[AttackT]:
    """Return the parameters of a family of attacks in one ball: the family's own and the epsilons of that norm."""
    form = _FORMS.get((family, norm), family)
    bases: Any = (form, _BALLS[norm])
    parameters: type[AttackT] = create_model(f"{family.__name__}In{norm}", __base__=bases, __doc__=form.__doc__)
    parameters.family = family
    return parameters


def _in_ball_with(family: type[Attack], norm: Norm, fields: Mapping[str, Any]) -> Attack:
    parameters: Attack = in_ball(family, norm)(**fields)
    return parameters


class SpatialParameters(Parameters):
    """A grid of rotations and translations (Engstrom et al., 2019): both ends and what lies evenly between them.

    Attributes:
        rotations: angles.
        max_rotation: largest angle in degrees, to both sides.
        translations: shifts along each axis.
        max_translation: largest shift in pixels, to both sides.
    """

    rotations: PositiveInt = 31
    max_rotation: Annotated[float, Field(gt=0, le=180)] = 30.0
    translations: PositiveInt = 5
    max_translation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0

    @property
    def strengths(self) -> tuple[float, ...]:
        return (CLEAN_STRENGTH,)

    def shape_refusal(self, height: int, width: int) -> str | None:
        """Reject images that are not square (see `Parameters`).

        Foolbox maps both axes of an image to [-1, 1] before it rotates and translates, so that it shears other images,
        and gives a pixel two lengths.
        """
        if height == width:
            return None
        return (
            f"expected square images, since Foolbox's rotations and translations distort others, got {height}x{width}."
        )

    @property
    def points(self) -> int:
        return self.rotations * self.translations**2

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        # Of one number evenly between two ends the first end would be left.
        if self.rotations == 1 or (self.translations == 1 and self.max_translation):
            raise ValueError("expected two or more rotations, and max_translation: 0 with one translation, got one.")
        if self.points > MAX_GRID_POINTS:
            raise ValueError(
                f"expected up to {MAX_GRID_POINTS:,} grid points, got {self.points:,}: rotations ({self.rotations:,}) "
                f"times the square of translations ({self.translations:,}). Lower one of them."
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

    @field_validator("severities")
    @classmethod
    def _sort_severities(cls, severities: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(severity) for severity in ascending(severities, "severities"))

    @property
    def strengths(self) -> tuple[float, ...]:
        return tuple(float(severity) for severity in self.severities)
