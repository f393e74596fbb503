"""Parameters of every task as the sweep YAML gives them; the defaults are the paper's."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from robust201.core.records import CLEAN_STRENGTH

PAPER_EPSILONS_255 = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
"""Epsilons of PGD, APGD-CE and Square in units of 1/255 (meta.json of the published dataset)."""

PAPER_FGSM_EPSILONS_255 = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 255.0)
"""Epsilons of FGSM in units of 1/255 (meta.json of the published dataset)."""

SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)

Epsilon255 = Annotated[float, Field(gt=0, le=255, allow_inf_nan=False)]
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
            raise ValueError(f"expected no yes or no here, got {found[0]}{among}.")
        return value


class Parameters(Fields):
    """Parameters of one key as the sweep YAML gives them; the defaults are the paper's."""

    @property
    def strengths(self) -> tuple[float, ...]:
        """Strengths to evaluate, ascending."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Parameters that decide a number, without the strengths (those name single evaluations)."""
        return self.model_dump(mode="json", exclude={"epsilons_255", "severities"})


class CleanParameters(Parameters):
    """The images as they are."""

    @property
    def strengths(self) -> tuple[float, ...]:
        """One strength that says nothing."""
        return (CLEAN_STRENGTH,)


class EpsilonParameters(Parameters):
    """Parameters of an Linf attack: epsilons in units of 1/255 of the pixel range [0, 1]."""

    epsilons_255: tuple[Epsilon255, ...] = Field(default=PAPER_EPSILONS_255, min_length=1)

    @field_validator("epsilons_255")
    @classmethod
    def _ascending(cls, epsilons: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(epsilons)) != len(epsilons):
            raise ValueError(f"expected different epsilons, got {list(epsilons)}.")
        return tuple(sorted(epsilons))

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


class ApgdParameters(EpsilonParameters):
    """APGD-CE of AutoAttack (Croce and Hein, 2020)."""

    steps: PositiveInt = 100
    restarts: PositiveInt = 1


class SquareParameters(EpsilonParameters):
    """Square attack (Andriushchenko et al., 2020) as AutoAttack runs it."""

    queries: PositiveInt = 5000
    restarts: PositiveInt = 1
    p_init: Annotated[float, Field(gt=0, le=1)] = 0.8


class CorruptionParameters(Parameters):
    """A common corruption (Hendrycks and Dietterich, 2019)."""

    severities: tuple[Severity, ...] = Field(default=(1, 2, 3, 4, 5), min_length=1)

    @field_validator("severities")
    @classmethod
    def _ascending(cls, severities: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(severities)) != len(severities):
            raise ValueError(f"expected different severities, got {list(severities)}.")
        return tuple(sorted(severities))

    @property
    def strengths(self) -> tuple[float, ...]:
        """Severities, ascending."""
        return tuple(float(severity) for severity in self.severities)
