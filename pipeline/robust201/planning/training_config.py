"""The training YAML: networks, datasets, recipes and seeds (docs/training.md describes each field)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from robust201.core.errors import closest
from robust201.core.records import ArchitectureId, content_digest, show_architecture
from robust201.planning.config import (
    MAX_NAME,
    ArchitectureNames,
    DatasetSection,
    ExecutionSection,
    ImagesSection,
    NetworkSection,
    SpaceChoice,
    SpaceFile,
    WorkSection,
    check_datasets,
    check_different,
)
from robust201.planning.plugins import SPACES_GROUP, is_installed
from robust201.planning.sweep_yaml import ConfigPath
from robust201.spaces import DEFAULT_SPACE
from robust201.training.recipes import Recipe

_RECIPE_NAME = rf"[A-Za-z][\w.-]{{,{MAX_NAME - 1}}}"

Seed = Annotated[int, Field(ge=0)]


class Training(NamedTuple):
    """A training run, identified by the names under which the store keeps its weights."""

    architecture: ArchitectureId
    dataset: str
    recipe: str
    seed: int

    @property
    def label(self) -> str:
        """Readable name for messages, such as ``#21 cifar10 std seed 0``."""
        return f"{show_architecture(self.architecture)} {self.dataset} {self.recipe} seed {self.seed}"

    @property
    def digest(self) -> str:
        """Hash of the names, as 32 hex digits; `weights.manifest.hash_training` hashes what affects the weights."""
        return content_digest(["training", *self])


class TrainedDataset(DatasetSection):
    """Images of a dataset; `train: false` if it only provides images for the `data` of recipes."""

    train: bool = True


class TrainingConfig(WorkSection):
    """Training runs, one per architecture, dataset, recipe and seed, with snapshots in a checkpoint store."""

    format: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=MAX_NAME)]
    store: ConfigPath
    space: SpaceChoice = DEFAULT_SPACE
    architectures: ArchitectureNames
    network: NetworkSection = NetworkSection()
    datasets: dict[str, TrainedDataset] = Field(min_length=1)
    images: ImagesSection = ImagesSection()
    recipes: dict[str, Recipe] = Field(min_length=1)
    seeds: Annotated[tuple[Seed, ...], AfterValidator(check_different)] = (0,)
    precision: Literal["fp32", "tf32"] = "fp32"
    execution: ExecutionSection = ExecutionSection()

    @field_validator("datasets")
    @classmethod
    def _check_datasets(cls, value: dict[str, TrainedDataset]) -> dict[str, TrainedDataset]:
        check_datasets(value)
        for name, section in value.items():
            if section.corruptions is not None:
                raise ValueError(f"expected no corruptions of training images, got some for {name!r}. Remove them.")
        if not any(section.train for section in value.values()):
            raise ValueError("expected at least one dataset to train on, got `train: false` for all of them.")
        return value

    @field_validator("recipes")
    @classmethod
    def _check_names(cls, value: dict[str, Recipe]) -> dict[str, Recipe]:
        for name in value:
            if not re.fullmatch(_RECIPE_NAME, name):
                raise ValueError(
                    f"expected names of up to {MAX_NAME} letters, digits, dots, dashes and underscores that begin with "
                    f"a letter, got {name!r}."
                )
        return value

    @model_validator(mode="after")
    def _check_recipes(self) -> Self:
        trained = [name for name, section in self.datasets.items() if section.train]
        for name, recipe in self.recipes.items():
            for dataset in recipe.on or ():
                if dataset not in trained:
                    raise ValueError(
                        f"recipes.{name}.on: expected datasets without `train: false`, got {dataset!r}."
                        f"{closest(dataset, trained)}"
                    )
            if recipe.on == ():
                raise ValueError(f"recipes.{name}.on: expected at least one dataset, got none. Remove it to use all.")
            for field, dataset in _data_names(recipe):
                if dataset not in self.datasets:
                    raise ValueError(
                        f"recipes.{name}.data.{field}: expected one of `datasets`, got {dataset!r}."
                        f"{closest(dataset, self.datasets)}"
                    )
            for trained_on in self.targets(name):
                self._check_data(name, trained_on)
        self._check_starts()
        return self

    def _check_data(self, name: str, target: str) -> None:
        spec = self.dataset_spec(target)
        for field, dataset in _data_names(self.recipes[name]):
            other = self.dataset_spec(dataset)
            for what, expected, got in (
                ("classes", spec.n_classes, other.n_classes),
                ("image_size", spec.image_size, other.image_size),
            ):
                if expected != got:
                    raise ValueError(
                        f"recipes.{name}.data.{field}: {what} of {target} is {expected}, but {what} of {dataset} is "
                        f"{got}. Choose another dataset, or limit the recipe with `on`."
                    )

    def _check_starts(self) -> None:
        for name, recipe in self.recipes.items():
            start = recipe.start
            if start is None:
                continue
            if start.recipe in self.recipes:
                targets = self.targets(start.recipe)
                if start.dataset not in targets:
                    raise ValueError(
                        f"recipes.{name}.start.dataset: expected a dataset of the recipe {start.recipe}, got "
                        f"{start.dataset!r}.{closest(start.dataset, targets)}"
                    )
            elif not re.fullmatch(_RECIPE_NAME, start.recipe):
                raise ValueError(
                    f"recipes.{name}.start.recipe: expected one of `recipes`, or of the recipes in the store, got "
                    f"{start.recipe!r}.{closest(start.recipe, self.recipes)}"
                )
            if start.dataset in self.datasets:
                classes = self.dataset_spec(start.dataset).n_classes
                for target in self.targets(name):
                    if self.dataset_spec(target).n_classes != classes:
                        raise ValueError(
                            f"recipes.{name}.start: {start.dataset} has {classes} classes, but {target} has "
                            f"{self.dataset_spec(target).n_classes}. Choose another start, or limit the recipe with "
                            "`on`."
                        )
            for target in self.targets(name):
                self._check_start_cycle(name, target)

    def _check_start_cycle(self, recipe: str, dataset: str) -> None:
        visited: list[tuple[str, str]] = []
        current: tuple[str, str] | None = (recipe, dataset)
        while current is not None and current[0] in self.recipes:
            if current in visited:
                path = " from ".join(f"{step[0]} on {step[1]}" for step in (*visited, current))
                raise ValueError(f"recipes.{recipe}.start: starts must not form a cycle, got {path}.")
            visited.append(current)
            start = self.recipes[current[0]].start
            current = None if start is None else (start.recipe, start.dataset)

    @model_validator(mode="after")
    def _check_architectures(self) -> Self:
        _ = self.selected_architectures  # raises an error if a name is invalid
        return self

    @property
    def results(self) -> Path:
        """Folder of the run's files: lease, progress, logs, images and saved states of trainings."""
        return self.store / "training"

    @property
    def installed_code(self) -> set[str]:
        """Fields of `code_files` whose files belong to packages that the user has installed."""
        space = self.space
        is_plugin = isinstance(space, SpaceFile) and is_installed(SPACES_GROUP, space.file, space.distribution)
        return {"space"} if is_plugin else set()

    def targets(self, recipe: str) -> tuple[str, ...]:
        """Return the datasets that a recipe trains on."""
        limits = self.recipes[recipe].on
        return tuple(
            name for name, section in self.datasets.items() if section.train and (limits is None or name in limits)
        )

    def sources(self, recipe: str, dataset: str) -> tuple[str, ...]:
        """Return the datasets whose images a recipe uses on `dataset`; for a mixture, natural images come first."""
        data = self.recipes[recipe].data
        if data is not None and data.fusion is not None:
            return data.fusion.first, data.fusion.second
        return (dataset,) if data is None or data.mixture is None else (dataset, data.mixture.robust)

    def trainings(self) -> Iterator[Training]:
        """Yield the training runs by recipe, dataset, seed and architecture, in the order of the YAML."""
        for recipe in self.recipes:
            for dataset in self.targets(recipe):
                for seed in self.seeds:
                    for architecture in self.selected_architectures:
                        yield Training(architecture, dataset, recipe, seed)

    def start_of(self, training: Training) -> Training | None:
        """Return the training run whose final weights `training` starts from; None for initial weights."""
        start = self.recipes[training.recipe].start
        return None if start is None else training._replace(recipe=start.recipe, dataset=start.dataset)


def _data_names(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    data = recipe.data
    if data is None:
        return ()
    if data.mixture is not None:
        return (("mixture.robust", data.mixture.robust),)
    assert data.fusion is not None  # noqa: S101 - a section has one of the two
    return ("fusion.first", data.fusion.first), ("fusion.second", data.fusion.second)
