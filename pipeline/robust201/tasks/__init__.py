"""The table of everything that can be done to images: clean, four attacks, fifteen corruptions.

A row holds what planning needs (parameters, strengths, cost) and the name of the module that does the work. The module
is imported by `Perturbation.load` in a worker only: planning, status and export never import torch.

To add an attack: write one module with a `perturb` function (see `tasks.perturbations.contract`), another in `fused/`,
a parameter class and a row here. The table-wide tests then cover it.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from robust201.core.errors import ConfigError, closest
from robust201.core.records import CLEAN_STRENGTH

PAPER_EPSILONS_255 = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
"""Epsilons of PGD, APGD-CE and Square in units of 1/255 (meta.json of the published dataset)."""

PAPER_FGSM_EPSILONS_255 = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 255.0)
"""Epsilons of FGSM in units of 1/255 (meta.json of the published dataset)."""

ENGINES = ("reference", "fused")
"""What runs the attacks: the libraries called once an epsilon, or the project's own, all epsilons together."""

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


@dataclass(frozen=True)
class Perturbation:
    """One row of the table.

    Attributes:
        key: the key in the paper's style.
        kind: what family the key belongs to.
        published_key: the key as the published files spell it.
        parameters: class of the key's parameters.
        semantics_version: raised only when the numbers change for equal parameters.
        module: module of `tasks` that holds `perturb`; attacks have one of the same name in
            `tasks.perturbations.fused`, for the fused engine.
        passes: forward-pass equivalents that one image costs at one strength (a gradient counts 3), for planning.
    """

    key: str
    kind: Literal["clean", "attack", "corruption"]
    published_key: str
    parameters: type[Parameters]
    semantics_version: int
    module: str
    passes: Callable[[Any], float]

    def load(self, engine: str = "reference") -> Callable[..., Any]:
        """Import the `perturb` function of this row (imports torch).

        Args:
            engine: a name from `ENGINES`.

        Raises:
            ConfigError: no such engine; the closest is named.
        """
        if engine not in ENGINES:
            raise ConfigError(
                f"Loading an attack failed for engine {engine!r}: no such engine.{closest(engine, ENGINES)}"
            )
        folder = "fused." if engine == "fused" and self.kind == "attack" else ""
        function: Callable[..., Any] = importlib.import_module(
            f"robust201.tasks.perturbations.{folder}{self.module}"
        ).perturb
        return function


def _attack(key: str, module: str, parameters: type[EpsilonParameters], passes: Callable[[Any], float]) -> Perturbation:
    return Perturbation(key, "attack", f"{key}@Linf", parameters, 1, module, passes)


def _corruption(key: str) -> Perturbation:
    return Perturbation(key, "corruption", key, CorruptionParameters, 1, "corrupted", lambda _: 1.0)


CORRUPTIONS = (
    "brightness",
    "contrast",
    "defocus_blur",
    "elastic_transform",
    "fog",
    "frost",
    "gaussian_noise",
    "glass_blur",
    "impulse_noise",
    "jpeg_compression",
    "motion_blur",
    "pixelate",
    "shot_noise",
    "snow",
    "zoom_blur",
)
"""The 15 corruptions of the paper, in the order of the published helper."""

PERTURBATIONS: dict[str, Perturbation] = {
    row.key: row
    for row in (
        Perturbation("clean", "clean", "clean", CleanParameters, 1, "clean", lambda _: 1.0),
        _attack("aa_apgd-ce", "apgd", ApgdParameters, lambda p: 3.0 * (p.steps + 1) * p.restarts + 6),
        # A Square query is one forward pass, and images that are fooled drop out: about .39 of the queries remain over
        # the paper's epsilons on CIFAR-10, fewer on the other datasets (docs/protocol.md, "Cost").
        _attack("aa_square", "square", SquareParameters, lambda p: 0.39 * p.queries * p.restarts + 6),
        _attack("fgsm", "fgsm", FgsmParameters, lambda _: 5.0),
        _attack("pgd", "pgd", PgdParameters, lambda p: 3.0 * p.steps + 2),
        *(_corruption(key) for key in CORRUPTIONS),
    )
}
"""Key to row, in the order in which results are listed."""


def perturbation(key: str) -> Perturbation:
    """Look up a key, in the paper's style or as published (``pgd`` or ``pgd@Linf``).

    Raises:
        ConfigError: no such key; the closest is named.
    """
    row = next((row for row in PERTURBATIONS.values() if key in (row.key, row.published_key)), None)
    if row is None:
        raise ConfigError(f"Looking up a key failed for {key!r}: no such key.{closest(key, PERTURBATIONS)}")
    return row
