"""The table of tasks: everything that can be done with a network and images.

A row holds what planning needs (parameters, strengths, cost) and names the functions that do the work. Their module is
imported by `Task.load` in a worker only: planning, status and export never import torch.

To add an attack: a module in `tasks/perturbations` with a `reference` function, a `fused` one or both, a parameter
class in `tasks/parameters.py`, and a row here. The table-wide tests then cover it.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from robust201.core.errors import ConfigError, closest
from robust201.tasks.constraints import L2, LINF, Constraint
from robust201.tasks.parameters import (
    ApgdParameters,
    CleanParameters,
    CorruptionParameters,
    FgsmParameters,
    JacobianParameters,
    Parameters,
    PgdL2Parameters,
    PgdParameters,
    SquareParameters,
)

ENGINES = ("reference", "fused")
"""What runs the attacks: the libraries called once an epsilon, or the project's own, all epsilons together."""


Kind = Literal["clean", "attack", "corruption", "measure"]

Passes = Callable[[Any, int], float]


@dataclass(frozen=True)
class Task:
    """One row of the table.

    Attributes:
        key: the key in the paper's style.
        kind: what family the key belongs to; a `measure` measures the network itself, and perturbs nothing.
        parameters: class of the key's parameters.
        semantics_version: raised only when the numbers change for equal parameters.
        functions: what does the work, as ``module.function`` of `tasks.perturbations` or, for a measure, of
            `tasks.measures`, by name of the engine.
        passes: (parameters, number of classes) → forward-pass equivalents that one image costs at one strength (a
            gradient counts 3), for planning.
        constraint: the ball that perturbed images keep to; None for no bound.
        columns: what a measure gives; empty for a perturbation, whose columns follow from the sweep's measurements.
    """

    key: str
    kind: Kind
    parameters: type[Parameters]
    semantics_version: int
    functions: Mapping[str, str]
    passes: Passes
    constraint: Constraint | None = None
    columns: tuple[str, ...] = ()

    @property
    def is_divisible(self) -> bool:
        """Whether a unit may be cut by images: answers to images merge exactly, a measure is taken as a whole."""
        return self.kind != "measure"

    @property
    def published_key(self) -> str:
        """The key as the published files spell it."""
        return self.key if self.constraint is None else f"{self.key}@{self.constraint.name}"

    def wants_job(self, engine: str) -> bool:
        """Whether its function takes a job of the fused engine (see `engine.attack_job`), not a request."""
        return engine == "fused" and self.kind == "attack"

    def draws_by_batch(self, engine: str) -> bool:
        """Whether images share random numbers with their batch, so that a unit may be cut at whole batches only."""
        return engine == "reference" or (self.kind == "attack" and not self.wants_job(engine))

    def load(self, engine: str = "reference") -> Callable[..., Any]:
        """Import the function of this row (imports torch).

        Args:
            engine: a name from `ENGINES`.

        Raises:
            ConfigError: no such engine, or the row has no function for it; the closest is named.
        """
        if engine not in self.functions:
            raise ConfigError(
                f"Loading {self.key} failed for engine {engine!r}: expected one of {', '.join(self.functions)}, got "
                "another."
                f"{closest(engine, self.functions)}"
            )
        module, name = self.functions[engine].split(".")
        room = "measures" if self.kind == "measure" else "perturbations"
        function: Callable[..., Any] = getattr(importlib.import_module(f"robust201.tasks.{room}.{module}"), name)
        return function


def _attack(
    key: str,
    module: str,
    parameters: type[Parameters],
    passes: Passes,
    constraint: Constraint = LINF,
) -> Task:
    functions = {engine: f"{module}.{engine}" for engine in ENGINES}
    return Task(key, "attack", parameters, 1, functions, passes, constraint)


def _shown(key: str, kind: Literal["clean", "corruption"], parameters: type[Parameters]) -> Task:
    module = "clean" if kind == "clean" else "corruption"
    return Task(key, kind, parameters, 1, dict.fromkeys(ENGINES, f"{module}.show"), lambda _p, _c: 1.0)


def _measure(key: str, parameters: type[Parameters], passes: Passes, columns: tuple[str, ...]) -> Task:
    functions = dict.fromkeys(ENGINES, f"{key}.measure")
    return Task(key, "measure", parameters, 1, functions, passes, columns=columns)


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

TASKS: dict[str, Task] = {
    row.key: row
    for row in (
        _shown("clean", "clean", CleanParameters),
        _attack("aa_apgd-ce", "apgd", ApgdParameters, lambda p, _c: 3.0 * (p.steps + 1) * p.restarts + 6),
        # A Square query is one forward pass, and images that are fooled drop out: about .39 of the queries remain over
        # the paper's epsilons on CIFAR-10, fewer on the other datasets (docs/protocol.md, "Cost").
        _attack("aa_square", "square", SquareParameters, lambda p, _c: 0.39 * p.queries * p.restarts + 6),
        _attack("fgsm", "fgsm", FgsmParameters, lambda _p, _c: 5.0),
        _attack("pgd", "pgd", PgdParameters, lambda p, _c: 3.0 * p.steps + 2),
        _attack("pgd_l2", "pgd_l2", PgdL2Parameters, lambda p, _c: 3.0 * p.steps + 2, L2),
        *(_shown(key, "corruption", CorruptionParameters) for key in CORRUPTIONS),
        # Exact, a gradient per class.
        _measure(
            "jacobian",
            JacobianParameters,
            lambda p, c: 3.0 * (c if p.projections == "exact" else p.projections),
            ("squared_norm", "squared_norm_sd"),
        ),
    )
}
"""Key to row, in the order in which results are listed."""

PAPER_KEYS = ("clean", "aa_apgd-ce", "aa_square", "fgsm", "pgd", *CORRUPTIONS)
"""What a sweep evaluates that names no keys: the twenty of the paper."""


def find_task(key: str) -> Task:
    """Look up a key, in the paper's style or as published (``pgd`` or ``pgd@Linf``).

    Raises:
        ConfigError: no such key; the closest is named.
    """
    row = next((row for row in TASKS.values() if key in (row.key, row.published_key)), None)
    if row is None:
        raise ConfigError(f"Looking up a key failed for {key!r}: no such key.{closest(key, TASKS)}")
    return row
