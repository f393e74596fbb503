"""Fields of a study YAML: steps that create images and weights, sweeps, and names for the tables."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.strict_model import PositiveInt, StrictModel
from robust201.planning.field_errors import describe_problem, field_names_of
from robust201.planning.sweep_yaml import ConfigPath, find_line, read_fields, substitute_variables
from robust201.studies.comparisons import GROUPS

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
_Names = Annotated[tuple[str, ...], Field(min_length=1)]


STEP_VERBS = ("fetch", "import-images", "fuse", "run", "robustify")
"""Commands that are allowed in steps; they create images and weights."""


def _check_step(command_line: str) -> str:
    try:
        argv = shlex.split(command_line)
    except ValueError as error:
        raise ValueError(f"not a valid command line: {command_line!r} ({error}).") from error
    if len(argv) < 2 or argv[0] != "robust201" or argv[1] not in STEP_VERBS:
        raise ValueError(
            f"a step must call robust201 with one of the commands {', '.join(STEP_VERBS)}, got {command_line!r}."
        )
    return command_line


def _check_group(name: str) -> str:
    if name not in GROUPS:
        raise ValueError(f"unknown group {name!r} (known: {', '.join(GROUPS)}).{did_you_mean(name, GROUPS)}")
    return name


class _Study(StrictModel):
    """Fields of every study.

    Attributes:
        format: version of the file's format.
        study: kind of study, which determines the other fields.
        name: name of the study.
        steps: command lines that create images and weights, in order. Each step resumes after an interruption, and does
            nothing if it is already complete.
        sweeps: paths of the sweep YAMLs to run and export after the steps.
        note: text at the top of the study's page, for example how the study was scaled down.
    """

    format: Literal[1] = 1
    name: _Name
    steps: tuple[Annotated[str, AfterValidator(_check_step)], ...] = ()
    sweeps: tuple[ConfigPath, ...] = Field(min_length=1)
    note: str = ""

    def step_arguments(self) -> list[list[str]]:
        """Return each step's arguments after ``robust201``, with variables (``${ROBUST201_DATA}``) substituted.

        Raises:
            ConfigError: a variable is not set, or a step allows the execution of user code, which only the user of a
                study may do.
        """
        try:
            steps = [[substitute_variables(argument) for argument in shlex.split(step)[1:]] for step in self.steps]
        except ValueError as error:
            raise ConfigError(f"Reading the steps failed for the study {self.name}: {error}") from error
        for argv in steps:
            if any(argument.partition("=")[0] == "--allow-code" for argument in argv):
                raise ConfigError(
                    f"Reading the steps failed for the study {self.name}: {'--allow-code'} is not allowed in "
                    f"{shlex.join(argv)!r}. Remove it, and pass it to robust201 study instead."
                )
        return steps


class StudyNetwork(StrictModel):
    """An architecture of the study of image distributions.

    Attributes:
        architecture: the architecture's id in the space of the sweeps.
        printed_epochs: for each epoch, the published epoch with which it is compared; by default, the same epoch.
    """

    architecture: str | int
    printed_epochs: dict[int, int] | None = None

    def printed_epoch(self, epoch: int) -> int | None:
        """Return the published epoch with which an epoch is compared, or None."""
        return epoch if self.printed_epochs is None else self.printed_epochs.get(epoch)


class StudyGroup(StrictModel):
    """A group of networks in the study of image distributions, with the same training data.

    Attributes:
        dataset: dataset on which the networks are evaluated and attacked.
        recipes: recipes of their training runs; they may differ between architectures.
    """

    dataset: str
    recipes: _Names


class ImageDistributionStudy(_Study):
    """Robustness R of networks as a function of their training images and labels.

    Attributes:
        key: key of the attack.
        networks: networks by name in the tables; LeNet, ResNet50 and FullyConnectedNet have published numbers.
        groups: groups by name (`studies.comparisons.GROUPS`).
        mixed_model: whether the page includes mixed models over seeds (see `studies.mixed_effects`).
    """

    study: Literal["image-distribution"]
    key: str = "fgsm"
    mixed_model: bool = False
    networks: Annotated[dict[str, StudyNetwork], Field(min_length=1)]
    groups: Annotated[dict[Annotated[str, AfterValidator(_check_group)], StudyGroup], Field(min_length=1)]


_PUBLISHED_SPACING = 625
"""Smallest number of iterations between published snapshots. It bounds how short a run may be, because the snapshots of
shorter runs would coincide."""


class DynamicsStudy(_Study):
    """Accuracy and attack success at the snapshots of training runs.

    Attributes:
        dataset: dataset whose images are attacked.
        architecture: architecture of all training runs.
        runs: recipe of each run, by the run's name; the runs `std` and `std*` have published numbers.
        attacks: keys of the attacks, each at all its strengths.
        iterations_per_epoch: training iterations per epoch, to convert snapshot lengths from epochs to iterations.
        iterations_per_printed: ratio of our iterations to the published ones: below 1 if training is shorter. Numbers
            at the same fraction of training are compared.
    """

    study: Literal["robust-features-dynamics"]
    dataset: str
    architecture: str | int
    runs: Annotated[dict[str, str], Field(min_length=1)]
    attacks: _Names
    iterations_per_epoch: PositiveInt
    iterations_per_printed: Annotated[float, Field(ge=1 / _PUBLISHED_SPACING, allow_inf_nan=False)] = 1.0


class MixingStudy(_Study):
    """Accuracy as a function of the fraction of robust images in training.

    Robust images are generated with an adversarially trained network, so that they contain only features that this
    network uses.

    Attributes:
        dataset: dataset whose images are attacked.
        networks: architecture by name in the tables; ResNet-50, ResNet-18 and VGG-16 have published numbers.
        alphas: recipe for each fraction of robust images.
        epochs: number of training epochs.
        panels: keys in each panel of the figure, by panel title.
    """

    study: Literal["robust-features-mixing"]
    dataset: str
    networks: Annotated[dict[str, str | int], Field(min_length=1)]
    alphas: Annotated[dict[Annotated[float, Field(ge=0, le=1)], str], Field(min_length=2)]
    epochs: PositiveInt
    panels: dict[str, _Names]


class EquivarianceStudy(_Study):
    """Accuracy under spatial attacks, by architecture, training images and augmentation.

    Attributes:
        dataset: dataset whose images are attacked.
        networks: candidate architectures per column, {column: {name: architecture}}; there are published numbers for
            the columns ResNet-50, G-ResNet and STN, and for names such as G-ResNet-18 and STN-ResNet-34.
        settings: candidate recipes (learning rates) per setting; there are published numbers for D, D_R, D* and D_R*.
        attacks: keys of the attacks.
        epochs: number of training epochs.
        selection_seed: seed for splitting the images into halves; one half selects the best candidate.
    """

    study: Literal["robust-features-equivariance"]
    dataset: str
    networks: Annotated[dict[str, dict[str, str | int]], Field(min_length=1)]
    settings: Annotated[dict[str, _Names], Field(min_length=1)]
    attacks: _Names
    epochs: PositiveInt
    selection_seed: Annotated[int, Field(ge=0)] = 0


Study = ImageDistributionStudy | DynamicsStudy | MixingStudy | EquivarianceStudy

STUDIES: dict[str, type[Any]] = {
    "image-distribution": ImageDistributionStudy,
    "robust-features-dynamics": DynamicsStudy,
    "robust-features-mixing": MixingStudy,
    "robust-features-equivariance": EquivarianceStudy,
}
"""Model of the YAML for each value of the field `study`."""


def load_study(path: Path) -> Study:
    """Read and validate the YAML of a study.

    Raises:
        ConfigError: the file is missing or not YAML, or a field is unknown or invalid. The message suggests the closest
            name.
    """
    fields = read_fields(path, "study")
    study_name = fields.get("study")
    if not isinstance(study_name, str) or study_name not in STUDIES:
        raise ConfigError(
            f"Reading the study failed for {path}: the field `study` must be one of {', '.join(STUDIES)}, got "
            f"{study_name!r}.{did_you_mean(str(study_name), STUDIES)} docs/studies.md explains every field."
        )
    model = STUDIES[study_name]
    try:
        study: Study = TypeAdapter(model).validate_python(fields)
    except ValidationError as error:
        line_number = find_line(path, field_names_of(error.errors(include_url=False)[0]["loc"]))
        location = str(path) if line_number is None else f"{path}, line {line_number}"
        raise ConfigError(
            f"Reading the study failed for {location}: {describe_problem(error, model)} docs/studies.md explains every "
            "field."
        ) from error
    return study
