"""Parameters of every task as the sweep YAML gives them; the defaults are the paper's."""

import re
import reprlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from robust201.core.records import CLEAN_STRENGTH, ImageSelection, Split

PAPER_EPSILONS_255 = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
"""Epsilons of PGD, APGD-CE and Square in units of 1/255 (meta.json of the published dataset)."""

PAPER_FGSM_EPSILONS_255 = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 255.0)
"""Epsilons of FGSM in units of 1/255 (meta.json of the published dataset)."""

SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)

STRENGTH_FIELDS = ("epsilons", "epsilons_255", "severities")
"""Parameters that are lists of strengths, which name single evaluations."""

_LARGEST_USUAL = 32
_PIXEL_TOLERANCE = 0.015
"""Largest relative difference from k/255 at which a number is taken for it: 0.031 counts as 8/255."""

Epsilon255 = Annotated[float, Field(gt=0, le=255, allow_inf_nan=False)]
EpsilonL2 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Severity = Annotated[int, Field(ge=1, le=5)]
PositiveInt = Annotated[int, Field(ge=1)]


class Fields(BaseModel):
    """Base of what the sweep YAML gives: immutable; unknown fields, and yes or no for a number, are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_values(cls, value: object, info: ValidationInfo) -> object:
        # To Python true is the number 1.
        items = value if isinstance(value, list | tuple) else (value,)
        found = [item for item in items if isinstance(item, bool)]
        if found and cls.model_fields[str(info.field_name)].annotation is not bool:
            among = " among them" if isinstance(value, list | tuple) else ""
            raise ValueError(f"expected a value other than true or false, got {found[0]}{among}.")
        return value


class Parameters(Fields):
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

    def refusal(self, engine: str) -> str | None:
        """Say why an engine cannot compute with these parameters; None where it can."""
        del engine
        return None


def ascending(strengths: tuple[float, ...], name: str) -> tuple[float, ...]:
    """Sort strengths.

    Raises:
        ValueError: two are equal.
    """
    if len(set(strengths)) != len(strengths):
        raise ValueError(f"expected different {name}, got {list(strengths)}.")
    return tuple(sorted(strengths))


class CleanParameters(Parameters):
    """The images as they are."""

    @property
    def strengths(self) -> tuple[float, ...]:
        """One strength that says nothing."""
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

    other_spellings: ClassVar[tuple[str, ...]] = ("epsilons",)
    epsilons_255: tuple[Epsilon255, ...] = Field(default=PAPER_EPSILONS_255, min_length=1)

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

    @field_validator("epsilons_255")
    @classmethod
    def _sort_epsilons(cls, epsilons: tuple[float, ...]) -> tuple[float, ...]:
        return ascending(epsilons, "epsilons")

    @property
    def strengths(self) -> tuple[float, ...]:
        """Epsilons in units of 1/255, ascending."""
        return self.epsilons_255


class FgsmParameters(EpsilonParameters):
    """Fast gradient sign method (Goodfellow et al., 2015): one step of size epsilon, no random start."""

    epsilons_255: tuple[Epsilon255, ...] = Field(default=PAPER_FGSM_EPSILONS_255, min_length=1)


class PgdParameters(EpsilonParameters):
    """Projected gradient descent (Kurakin et al., 2017; Madry et al., 2018) as Foolbox runs it."""

    steps: PositiveInt = 40
    rel_stepsize: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01 / 0.3
    random_start: bool = True
    target: Literal["none", "least_likely"] = "none"


class PgdL2Parameters(Parameters):
    """Projected gradient descent in an L2 ball; the defaults are those of Wang and Horne (docs/protocol.md)."""

    epsilons: tuple[EpsilonL2, ...] = Field(default=(0.25, 0.5), min_length=1)
    step_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    steps: PositiveInt = 100
    random_start: bool = False
    iterate: Literal["last", "best"] = "last"

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
        """Epsilons in the units of pixels, ascending."""
        return self.epsilons

    def refusal(self, engine: str) -> str | None:
        """Foolbox knows the last iterate only (see `Parameters`)."""
        if engine == "reference" and self.iterate == "best":
            return (
                "expected iterate: last with engine: reference, since Foolbox returns the last, got best. "
                "Set engine: fused or iterate: last."
            )
        return None


class ApgdParameters(EpsilonParameters):
    """APGD-CE of AutoAttack (Croce and Hein, 2020)."""

    steps: PositiveInt = 100
    restarts: PositiveInt = 1


class SquareParameters(EpsilonParameters):
    """Square attack (Andriushchenko et al., 2020) as AutoAttack runs it."""

    queries: PositiveInt = 5000
    restarts: PositiveInt = 1
    p_init: Annotated[float, Field(gt=0, le=1)] = 0.8


class JacobianParameters(Parameters):
    """Frobenius norm of the input Jacobian; the defaults are those of Jung et al. (2023): 10 batches of 256 images."""

    split: Split = "test"
    images: PositiveInt | None = 2560
    image_seed: int = 0
    projections: PositiveInt | Literal["exact"] = 1
    input: Literal["normalised", "pixels"] = "normalised"

    @property
    def strengths(self) -> tuple[float, ...]:
        """One strength that says nothing."""
        return (CLEAN_STRENGTH,)

    @property
    def draws(self) -> bool:
        """Projections are drawn (see `Parameters`)."""
        return self.projections != "exact"

    @property
    def own_images(self) -> ImageSelection:
        """What is measured on, whatever the sweep selects."""
        return ImageSelection(self.split, self.images, self.image_seed)

    def identity(self) -> dict[str, Any]:
        """All but what the hash of the images says (see `Parameters`)."""
        return self.model_dump(mode="json", exclude={"split", "images", "image_seed"})


class CorruptionParameters(Parameters):
    """A common corruption (Hendrycks and Dietterich, 2019)."""

    severities: tuple[Severity, ...] = Field(default=(1, 2, 3, 4, 5), min_length=1)

    @field_validator("severities")
    @classmethod
    def _sort_severities(cls, severities: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(severity) for severity in ascending(severities, "severities"))

    @property
    def strengths(self) -> tuple[float, ...]:
        """Severities, ascending."""
        return tuple(float(severity) for severity in self.severities)
