"""Custom tasks in the sweep YAML: a Python file and the properties of its function that planning needs."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from robust201.core.records import CLEAN_STRENGTH, ImageSelection, Split
from robust201.core.strict_model import PositiveInt
from robust201.core.user_code import UserFunction
from robust201.evaluation.user_task import UserTask
from robust201.sweep.sweep_yaml import ConfigPath
from robust201.tasks import TASKS, Task
from robust201.tasks.columns import RESERVED_NAMES
from robust201.tasks.constraints import CONSTRAINTS, Norm
from robust201.tasks.parameters import MAX_STRENGTHS, Caution, Parameters, sort_strengths

MAX_NAME_BYTES = 100
"""Maximum length of a key, which becomes part of file names."""

_SMALL_STRENGTH = 0.1
"""If all radii of an attack are below this value (in units of 1/255), they were probably meant for pixels in [0, 1]."""


def is_custom_name(name: str) -> bool:
    """Return whether a name is valid for a custom key: a letter, then letters, digits, ``_``, ``.`` and ``-``."""
    return len(name.encode()) <= MAX_NAME_BYTES and re.fullmatch(r"[A-Za-z][\w.-]*", name) is not None


class UserTaskParameters(Parameters):
    """A custom task: a function in a user's Python file, and the properties that planning needs.

    An attack is ``perturb(model, images, labels, strength, **parameters)`` and returns images; a measure is
    ``measure(model, images, labels, **parameters)`` and returns numbers by column (docs/your-own.md).
    """

    file: ConfigPath
    """Python file with the function."""
    kind: Literal["attack", "measure"] = "attack"
    """`attack` or `measure`."""
    function: str = ""
    """Name of the function; by default `perturb` or `measure`."""
    norm: Norm | None = None
    """Attacks only: norm (`Linf`, `L2` or `L1`) of the ball around an image in which the perturbed image must lie."""
    requested_strengths: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = Field(
        default=(CLEAN_STRENGTH,), min_length=1, max_length=MAX_STRENGTHS, alias="strengths"
    )
    """Attacks only: strengths at which the function is called (field `strengths` in the YAML), as numbers in the
    unit of the norm or text such as ``8/255`` for pixels in [0, 1]."""
    columns: tuple[Annotated[str, Field(pattern=r"^[a-z]\w*$")], ...] = ()
    """Measures only: names of the numbers that the function returns."""
    passes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Cost of one image at one strength, in forward passes; used for estimates. By default, a sweep assumes one pass,
    and `evaluate` counts the passes of an attack on a few images."""
    split: Split = "test"
    """Measures only: split of the images."""
    images: PositiveInt | None = None
    """Measures only: number of images; by default the images of the sweep."""
    image_seed: int = 0
    """Measures only: seed of the selection of images."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == "measure":
            is_unique = len(set(self.columns)) == len(self.columns)
            reserved = [name for name in self.columns if name in RESERVED_NAMES]
            if not self.columns or not is_unique or reserved:
                raise ValueError(
                    "columns: expected one or more different names for a measure's numbers, other than the reserved "
                    f"names of result columns, got {reserved or list(self.columns)}."
                )
            if self.norm is not None or "requested_strengths" in self.model_fields_set:
                raise ValueError("`norm` and `strengths`: allowed only with `kind: attack`, got `kind: measure`.")
        elif self.columns or "split" in self.model_fields_set or "images" in self.model_fields_set:
            raise ValueError("`columns`, `split` and `images`: allowed only with `kind: measure`, got `kind: attack`.")
        elif self.norm is not None and "requested_strengths" not in self.model_fields_set:
            raise ValueError("strengths: expected the radii of the norm's ball, got none.")
        return self

    @field_validator("requested_strengths", mode="before")
    @classmethod
    def _read_fractions(cls, strengths: Any, info: ValidationInfo) -> Any:
        constraint = CONSTRAINTS.get(info.data.get("norm", ""))
        if constraint is None or not isinstance(strengths, list | tuple):
            return strengths
        return [constraint.strength_of(strength) if "/" in str(strength) else strength for strength in strengths]

    @field_validator("requested_strengths")
    @classmethod
    def _sort_strengths(cls, strengths: tuple[float, ...]) -> tuple[float, ...]:
        return sort_strengths(strengths, "strengths")

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.requested_strengths

    def n_passes(self, n_classes: int) -> float:
        return self.passes or 1.0

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Caution about an attack whose strengths are missing (it is called with 0) or seem to be in another unit."""
        if self.kind == "measure":
            return ()
        if "requested_strengths" in self.model_fields_set:
            problem = f"at most {max(self.strengths):g}/255, which hardly changes an image"
            is_tiny = self.norm == "Linf" and max(self.strengths) < _SMALL_STRENGTH
            return (Caution("strengths", problem, "Write radii in units of 1/255, such as 8."),) if is_tiny else ()
        problem = f"not set, so {self.function_name} is called once, with strength {CLEAN_STRENGTH:g}"
        return (Caution("strengths", problem, "Set them, unless the attack ignores its strength."),)

    @property
    def uses_random_numbers(self) -> bool:
        """Always True: whether the function draws random numbers is unknown, so the protocol contains the seed."""
        return True

    @property
    def image_selection(self) -> ImageSelection | None:
        if self.kind == "attack" or (self.split == "test" and self.images is None):
            return None
        return ImageSelection(self.split, self.images, self.image_seed)

    def identity(self) -> dict[str, Any]:
        """Return the function's arguments and properties; the protocol also contains the hash of its file."""
        return {
            "kind": self.kind,
            "function": self.function_name,
            "norm": self.norm,
            "columns": list(self.columns),
            "parameters": self.parameters,
        }

    @property
    def function_name(self) -> str:
        return self.function or ("perturb" if self.kind == "attack" else "measure")

    def to_task(self, key: str) -> UserTask:
        return UserTask(
            key=key,
            kind=self.kind,
            model=type(self),
            module="",
            constraint=None if self.norm is None else CONSTRAINTS[self.norm],
            columns=self.columns,
            function=UserFunction(self.file, self.function_name),
            function_parameters=self.parameters,
        )


def make_task(key: str, parameters: Parameters) -> Task:
    """Return the task of a key of a sweep, built-in or custom."""
    if isinstance(parameters, UserTaskParameters):
        return parameters.to_task(key)
    return TASKS[key].with_parameters(parameters)
