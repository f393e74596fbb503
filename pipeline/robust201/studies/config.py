"""The YAML of a study: the steps that make its images and weights, its sweeps, and the names in its tables."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from robust201.core.errors import ConfigError, closest
from robust201.core.strict_model import PositiveInt, StrictModel
from robust201.planning.code_consent import ALLOW_CODE
from robust201.planning.field_errors import describe_problem, steps_of
from robust201.planning.sweep_yaml import ConfigPath, find_line, read_fields, substitute_variables
from robust201.studies.comparisons import GROUPS

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
_Names = Annotated[tuple[str, ...], Field(min_length=1)]


STEP_VERBS = ("fetch", "import-images", "fuse", "train", "robustify")
"""Verbs allowed in steps: they make images and weights."""


def _check_step(line: str) -> str:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ValueError(f"expected a command line, got {line!r} ({error}).") from error
    if len(words) < 2 or words[0] != "robust201" or words[1] not in STEP_VERBS:
        raise ValueError(f"expected robust201 with one of {', '.join(STEP_VERBS)}, got {line!r}.")
    return line


def _check_group(name: str) -> str:
    if name not in GROUPS:
        raise ValueError(f"expected groups among {', '.join(GROUPS)}, got {name!r}.{closest(name, GROUPS)}")
    return name


class _Study(StrictModel):
    """Fields of every study.

    Attributes:
        format: version of the file's format.
        study: one of the five studies.
        name: name of the study.
        steps: command lines that make its images and weights, in order. Each resumes after an interruption, and does
            nothing if it is complete.
        sweeps: sweep YAMLs, run and exported after the steps.
        note: text at the top of its page, such as how it was scaled down.
    """

    format: Literal[1] = 1
    name: _Name
    steps: tuple[Annotated[str, AfterValidator(_check_step)], ...] = ()
    sweeps: tuple[ConfigPath, ...] = Field(min_length=1)
    note: str = ""

    def step_words(self) -> list[list[str]]:
        """Words of each step after ``robust201``, with variables such as ``${ROBUST201_DATA}`` replaced.

        Raises:
            ConfigError: a variable is not set, or a step consents to the execution of code, which only users can.
        """
        try:
            steps = [[substitute_variables(word) for word in shlex.split(line)[1:]] for line in self.steps]
        except ValueError as error:
            raise ConfigError(f"Reading the steps failed for the study {self.name}: {error}") from error
        for words in steps:
            if any(word.partition("=")[0] == ALLOW_CODE for word in words):
                raise ConfigError(
                    f"Reading the steps failed for the study {self.name}: expected no {ALLOW_CODE}, got "
                    f"{shlex.join(words)!r}. Remove it; give it to robust201 study instead."
                )
        return steps


class StudyNetwork(StrictModel):
    """An architecture of the study of image distributions.

    Attributes:
        architecture: its id in the space of the sweeps.
        printed_epochs: printed epoch with which each epoch is compared; by default, equal epochs.
    """

    architecture: str | int
    printed_epochs: dict[int, int] | None = None

    def printed_epoch(self, epoch: int) -> int | None:
        """The printed epoch with which one of ours is compared, if any."""
        return epoch if self.printed_epochs is None else self.printed_epochs.get(epoch)


class StudyGroup(StrictModel):
    """Networks of the study of image distributions that were trained alike.

    Attributes:
        dataset: that they were trained for and are attacked on.
        recipes: of their trainings; architectures may have different ones.
    """

    dataset: str
    recipes: _Names


class ImageDistributionStudy(_Study):
    """Robustness R of networks by the images and labels that they were trained on.

    Attributes:
        key: the attack.
        networks: by their name in the tables; LeNet, ResNet50 and FullyConnectedNet are compared with printed numbers.
        groups: by their name in `studies.comparisons.GROUPS`.
        mixed_model: whether the page has mixed models over seeds (see `studies.mixed_effects`).
    """

    study: Literal["image-distribution"]
    key: str = "fgsm"
    mixed_model: bool = False
    networks: Annotated[dict[str, StudyNetwork], Field(min_length=1)]
    groups: Annotated[dict[Annotated[str, AfterValidator(_check_group)], StudyGroup], Field(min_length=1)]


_PRINTED_APART = 625
"""Iterations between two printed snapshots, at least: shorter trainings keep these apart."""


class DynamicsStudy(_Study):
    """Accuracy and attack success over the snapshots of a training.

    Attributes:
        dataset: whose images are attacked.
        architecture: of all trainings.
        runs: recipe by name of the run; `std` and `std*` are compared with printed numbers.
        attacks: keys, each at all its strengths.
        iterations_per_epoch: of the trainings, so that snapshots after epochs stand on the same axis.
        iterations_per_printed: iterations of the trainings for each printed one, below 1 where they are shorter;
            numbers at the same share of the training are compared.
    """

    study: Literal["robust-features-dynamics"]
    dataset: str
    architecture: str | int
    runs: Annotated[dict[str, str], Field(min_length=1)]
    attacks: _Names
    iterations_per_epoch: PositiveInt
    iterations_per_printed: Annotated[float, Field(ge=1 / _PRINTED_APART, allow_inf_nan=False)] = 1.0


class MixingStudy(_Study):
    """Accuracy over the share of robust images in training.

    Attributes:
        dataset: whose images are attacked.
        networks: architecture by its name in the tables; ResNet-50, ResNet-18 and VGG-16 have printed numbers.
        alphas: recipe by the share of robust images.
        epochs: length of the trainings.
        panels: keys of each panel of the figure, by its title.
    """

    study: Literal["robust-features-mixing"]
    dataset: str
    networks: Annotated[dict[str, str | int], Field(min_length=1)]
    alphas: Annotated[dict[Annotated[float, Field(ge=0, le=1)], str], Field(min_length=2)]
    epochs: PositiveInt
    panels: dict[str, _Names]


class EquivarianceStudy(_Study):
    """Accuracy under spatial attacks by architecture, training images and augmentation.

    Attributes:
        dataset: whose images are attacked.
        networks: architectures that compete for a column, {column: {name: architecture}}; the columns ResNet-50,
            G-ResNet and STN have printed numbers, and so have the names G-ResNet-18, STN-ResNet-34 and the like.
        settings: recipes that compete for a column (learning rates), by setting; D, D_R, D* and D_R* have printed ones.
        attacks: keys.
        epochs: length of the trainings.
        selection_seed: of the draw of the images by which the best is chosen.
    """

    study: Literal["robust-features-equivariance"]
    dataset: str
    networks: Annotated[dict[str, dict[str, str | int]], Field(min_length=1)]
    settings: Annotated[dict[str, _Names], Field(min_length=1)]
    attacks: _Names
    epochs: PositiveInt
    selection_seed: Annotated[int, Field(ge=0)] = 0


class DatasetStudy(_Study):
    """The dataset paper's claims, medians and figures beside those of some results.

    Attributes:
        dataset: the images whose results are compared.
    """

    study: Literal["dataset"]
    dataset: str


Study = ImageDistributionStudy | DynamicsStudy | MixingStudy | EquivarianceStudy | DatasetStudy

STUDIES: dict[str, type[Any]] = {
    "image-distribution": ImageDistributionStudy,
    "robust-features-dynamics": DynamicsStudy,
    "robust-features-mixing": MixingStudy,
    "robust-features-equivariance": EquivarianceStudy,
    "dataset": DatasetStudy,
}
"""Schemas by the field `study`."""


def load_study(path: Path) -> Study:
    """Read and check the YAML of a study.

    Raises:
        ConfigError: the file is missing, is no YAML, or a field is unknown or wrong; the closest name is given.
    """
    fields = read_fields(path, "study")
    kind = fields.get("study")
    if not isinstance(kind, str) or kind not in STUDIES:
        raise ConfigError(
            f"Reading the study failed for {path}: expected the field study to be one of {', '.join(STUDIES)}, got "
            f"{kind!r}.{closest(str(kind), STUDIES)} docs/studies.md explains every field."
        )
    model = STUDIES[kind]
    try:
        study: Study = TypeAdapter(model).validate_python(fields)
    except ValidationError as error:
        line = find_line(path, steps_of(error.errors(include_url=False)[0]["loc"]))
        where = str(path) if line is None else f"{path}, line {line}"
        raise ConfigError(
            f"Reading the study failed for {where}: {describe_problem(error, model)} docs/studies.md explains every "
            "field."
        ) from error
    return study
