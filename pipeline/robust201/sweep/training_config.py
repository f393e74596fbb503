"""The training YAML: networks, datasets, recipes and seeds (docs/training.md describes each field)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from robust201.core.errors import did_you_mean
from robust201.core.records import ArchitectureId, content_digest, format_architecture
from robust201.networks.spaces import DEFAULT_SPACE
from robust201.sweep.config import (
    MAX_NAME_LENGTH,
    ArchitectureNames,
    BaseConfig,
    DatasetSection,
    ExecutionSection,
    ImagesSection,
    NetworkSection,
    SpaceChoice,
    check_datasets,
    check_distinct,
)
from robust201.sweep.sweep_yaml import ConfigPath
from robust201.training.recipes import Recipe

_RECIPE_NAME = rf"[A-Za-z][\w.-]{{,{MAX_NAME_LENGTH - 1}}}"

Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Training seed, which the manifest of a checkpoint store holds as a 64-bit integer."""


class TrainingRun(NamedTuple):
    """A training run, identified by the names under which its weights are stored."""

    architecture: ArchitectureId
    dataset: str
    recipe: str
    seed: int

    @property
    def label(self) -> str:
        """Readable name for messages, such as ``#21 cifar10 std seed 0``."""
        return f"{format_architecture(self.architecture)} {self.dataset} {self.recipe} seed {self.seed}"

    @property
    def digest(self) -> str:
        """Hash of the names, as 32 hex digits. Weights are identified by `training.identity.hash_training`."""
        return content_digest(["training", *self])


class TrainedDataset(DatasetSection):
    """A dataset to train networks on, or one that only provides images for the `data` of recipes."""

    train: bool = True
    """False for a dataset that only provides images for the `data` of recipes."""


class TrainingConfig(BaseConfig):
    """Training runs, one per architecture, dataset, recipe and seed, with snapshots in a checkpoint store."""

    format: Literal[1] = 1
    """Version of the file format."""
    name: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=MAX_NAME_LENGTH)]
    """Name of the training plan: letters, digits, `_ . -`."""
    store: ConfigPath
    """Checkpoint store to fill (`--out` overrides it)."""
    space: SpaceChoice = DEFAULT_SPACE
    """As in a sweep."""
    architectures: ArchitectureNames
    """As in a sweep."""
    network: NetworkSection = NetworkSection()
    """As in a sweep."""
    datasets: dict[str, TrainedDataset] = Field(min_length=1)
    """As in a sweep, without `corruptions`. If `path` is a file, its images are the training images; only a folder with
    both splits also gives test accuracies."""
    images: ImagesSection = ImagesSection()
    """Class-stratified subset of each training split."""
    recipes: dict[str, Recipe] = Field(min_length=1)
    """Recipes by name; the name identifies the weights in the store."""
    seeds: Annotated[tuple[Seed, ...], AfterValidator(check_distinct)] = (0,)
    """Seeds of initial weights and of all random numbers."""
    precision: Literal["fp32", "tf32"] = "fp32"
    """Arithmetic of the training; `tf32` only on GPUs."""
    execution: ExecutionSection = ExecutionSection()
    """As in a sweep; on a cluster, `device` must be `cpu` or `cuda`, because the weights depend on the device."""

    @field_validator("datasets")
    @classmethod
    def _check_datasets(cls, sections: dict[str, TrainedDataset]) -> dict[str, TrainedDataset]:
        check_datasets(sections)
        for name, section in sections.items():
            if section.corruptions is not None:
                raise ValueError(f"{name}: `corruptions` is for sweeps only. Remove the field.")
        if not any(section.train for section in sections.values()):
            raise ValueError("expected at least one dataset to train on, got `train: false` for all of them.")
        return sections

    @field_validator("recipes")
    @classmethod
    def _check_names(cls, recipes: dict[str, Recipe]) -> dict[str, Recipe]:
        for name in recipes:
            if not re.fullmatch(_RECIPE_NAME, name):
                raise ValueError(
                    f"expected names of up to {MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores that "
                    f"begin with a letter, got {name!r}."
                )
        return recipes

    @model_validator(mode="after")
    def _check_recipes(self) -> Self:
        trained_datasets = [name for name, section in self.datasets.items() if section.train]
        for name, recipe in self.recipes.items():
            for dataset in recipe.on or ():
                if dataset not in trained_datasets:
                    raise ValueError(
                        f"recipes.{name}.on: expected datasets without `train: false`, got "
                        f"{dataset!r}.{did_you_mean(dataset, trained_datasets)}"
                    )
            if recipe.on == ():
                raise ValueError(
                    f"recipes.{name}.on: expected at least one dataset, got none. Remove the field to train on all "
                    "datasets."
                )
            for target in self.targets(name):
                for dataset in self.sources(name, target):
                    if dataset not in self.datasets:
                        raise ValueError(
                            f"recipes.{name}.data: expected names in `datasets`, got {dataset!r}."
                            f"{did_you_mean(dataset, self.datasets)}"
                        )
                self._check_start_classes(name, target)
                self._check_start_cycle(name, target)
        return self

    def _check_start_classes(self, recipe: str, dataset: str) -> None:
        start = self.recipes[recipe].start
        if start is None or start.dataset not in self.datasets:
            return
        n_classes, n_start_classes = (self.dataset_spec(name).n_classes for name in (dataset, start.dataset))
        if n_start_classes != n_classes:
            raise ValueError(
                f"recipes.{recipe}.start: {start.dataset} has {n_start_classes} classes, but {dataset} has {n_classes}"
                ". Choose another start, or restrict the recipe to other datasets with `on`."
            )

    def _check_start_cycle(self, recipe: str, dataset: str) -> None:
        visited: list[tuple[str, str]] = []
        current: tuple[str, str] | None = (recipe, dataset)
        while current is not None and current[0] in self.recipes:
            if current in visited:
                cycle = " from ".join(f"{link[0]} on {link[1]}" for link in (*visited, current))
                raise ValueError(
                    f"recipes.{recipe}.start: the `start` fields form a cycle: {cycle}. Remove one of them."
                )
            visited.append(current)
            start = self.recipes[current[0]].start
            current = None if start is None else (start.recipe, start.dataset)

    @model_validator(mode="after")
    def _check_architectures(self) -> Self:
        _ = self.selected_architectures  # raises an error if a name is invalid
        return self

    @property
    def results(self) -> Path:
        """Folder of the run's files: plan, lock, events, copies of images and code, and saved states."""
        return self.store / "training"

    def targets(self, recipe: str) -> tuple[str, ...]:
        """Return the datasets on which a recipe trains."""
        selected = self.recipes[recipe].on
        return tuple(
            name for name, section in self.datasets.items() if section.train and (selected is None or name in selected)
        )

    def sources(self, recipe: str, dataset: str) -> tuple[str, ...]:
        """Return the datasets whose images a recipe uses to train on `dataset`; for a mixture, natural images first."""
        data = self.recipes[recipe].data
        if data is not None and data.fusion is not None:
            return data.fusion.first, data.fusion.second
        return (dataset,) if data is None or data.mixture is None else (dataset, data.mixture.robust)

    def training_runs(self) -> Iterator[TrainingRun]:
        """Yield the training runs by recipe, dataset, seed and architecture, in the order of the YAML."""
        for recipe in self.recipes:
            for dataset in self.targets(recipe):
                for seed in self.seeds:
                    for architecture in self.selected_architectures:
                        yield TrainingRun(architecture, dataset, recipe, seed)

    def start_of(self, training: TrainingRun) -> TrainingRun | None:
        """Return the training run whose final weights `training` starts from; None for initial weights."""
        start = self.recipes[training.recipe].start
        return None if start is None else training._replace(recipe=start.recipe, dataset=start.dataset)
