"""The class `Task`: one attack, corruption or measure, described without importing torch.

A task has the data that planning needs (parameters, strengths, how an attack is run) and the name of the module that
does the work. Only evaluations import these modules (`Task.load`), so planning, status and export never import torch.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from robust201.core.errors import ConfigError, did_you_mean
from robust201.tasks.constraints import Constraint, Norm
from robust201.tasks.parameters import Parameters

ENGINES = ("reference", "fused")
"""Implementations of attacks. `reference` calls the published libraries, for each epsilon separately (except FMN).
`fused` is this package's implementation, which attacks at all epsilons together."""

Kind = Literal["clean", "attack", "corruption", "measure"]


@dataclass(frozen=True)
class Procedure:
    """How an attack of this package is run on images at several strengths (see `attacks.runner`).

    Attributes:
        grouping: samples that are attacked together; a sample is one image at one strength. `sample`: one batch of
            samples. `image`: one batch of images at all strengths, for attacks that serve all strengths with one run.
            `pool`: as many images at all strengths as fit into memory; the attack itself divides them into batches.
        images: attacked images: `all`, or only those that are classified correctly without an attack (`correct`).
        count_runs: (parameters, number of classes) → number of runs. After each run, the results are classified, and
            only images that resist are attacked again. Images that resist all runs are returned unchanged. None for a
            single run whose results are returned as they are.
    """

    grouping: Literal["sample", "image", "pool"] = "sample"
    images: Literal["all", "correct"] = "all"
    count_runs: Callable[[Any, int], int] | None = None


@dataclass(frozen=True)
class Task:
    """One attack, corruption or measure, or the clean images, with the data that planning needs.

    Attributes:
        key: name of the task, such as ``aa_square``.
        kind: kind of task; a `measure` evaluates a property of the network itself, without perturbing images.
        model: class of the key's parameters.
        module: module of the package, such as ``attacks.pgd``, with a function that is named after the task's kind.
        defaults: default parameters of the key where they differ from those of `model`.
        procedure: how an attack is run.
        constraint: the ball that contains the perturbed images; None if they are unbounded.
        attack: `key`, without the norm's suffix if the attack exists in all norms; empty if the task is not an attack.
        group: group of a corruption (Hendrycks and Dietterich, ICLR 2019), which figures show together.
        engines: engines that implement the task.
        columns: a measure's columns, unless its parameters select others (see `with_parameters`); empty for a
            perturbation, whose columns follow from the sweep's measurements.
        semantics_version: increased only when results change although the parameters are equal.
        images_version: version of a corruption's generator, changed only when pixels change; `GENERATOR_VERSION` in
            `corruptions.generator` says how to choose the new number. Not used for published corrupted images.
        name: name in figures; if empty, the key with spaces.
    """

    key: str
    kind: Kind
    model: type[Parameters]
    module: str
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    procedure: Procedure = Procedure()
    constraint: Constraint | None = None
    attack: str = ""
    group: str = ""
    engines: tuple[str, ...] = ENGINES
    columns: tuple[str, ...] = ()
    semantics_version: int = 1
    images_version: int = 1
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or self.key.replace("_", " ").capitalize()

    @property
    def norm(self) -> Norm | None:
        return None if self.constraint is None else self.constraint.name

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the key's parameters in the sweep YAML."""
        return self.model.field_names(self.norm)

    def complete_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Add the key's norm and defaults to parameters from a sweep; the result has the fields of `model`.

        Raises:
            ValueError: the fields contain the norm, which the key determines.
        """
        if self.kind != "attack" or self.constraint is None:
            return {**self.defaults, **fields}
        if "norm" in fields:
            raise ValueError(f"norm: expected no value, since {self.key} is an attack in {self.norm}. Remove it.")
        return {"norm": self.norm, **self.defaults, **fields}

    def parameters(self, **fields: Any) -> Any:
        """Return the key's parameters, an object of `model`.

        Raises:
            ValueError: a field is invalid (pydantic's ValidationError is a subclass).
        """
        return self.model(**self.complete_fields(fields))

    @property
    def is_divisible(self) -> bool:
        """Whether a network may be evaluated on a few images at a time. A measure needs all images at once."""
        return self.kind != "measure"

    def with_parameters(self, parameters: Parameters) -> "Task":
        """Return the task with the columns that the parameters select."""
        selected = parameters.selected_columns
        return self if selected in ((), self.columns) else replace(self, columns=selected)

    @property
    def published_key(self) -> str:
        """The key as published, with the name of the norm, such as ``pgd@Linf``."""
        return self.key if self.constraint is None else f"{self.key}@{self.constraint.name}"

    def uses_runner(self, engine: str) -> bool:
        """Whether the engine's function is an attack that `attacks.runner` runs."""
        return engine == "fused" and self.kind == "attack"

    def shares_random_numbers_in_batch(self, engine: str) -> bool:
        """Whether images may be split only between batches, because the images of a batch may share random numbers."""
        return engine == "reference" or (self.kind == "attack" and not self.uses_runner(engine))

    def load(self, engine: str = "reference") -> Callable[..., Any]:
        """Import the task's module, which imports torch, and return its function.

        Raises:
            ConfigError: the engine does not implement the task.
        """
        if engine not in self.engines:
            raise ConfigError(
                f"Loading {self.key} failed for engine {engine!r}: expected one of {', '.join(self.engines)}, got "
                f"{engine!r}.{did_you_mean(engine, self.engines)}"
            )
        is_library = self.kind == "attack" and engine == "reference"
        module = importlib.import_module(f"robust201.{'attacks.reference' if is_library else self.module}")
        function: Callable[..., Any] = getattr(module, self.kind)
        return function
