"""Options that verbs about a training YAML share: which trainings are wanted, and what does not apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli.sweeps import split_names
from robust201.core.errors import ConfigError, closest

if TYPE_CHECKING:
    from robust201.planning.training_config import TrainingConfig
    from robust201.runtime.training_run import TrainingSelection

Recipes = Annotated[str | None, typer.Option(help="With a training YAML: only these recipes, separated by commas.")]


def select_trainings(config: TrainingConfig, recipes: str | None, limit: int | None) -> TrainingSelection:
    """Read which trainings of a YAML are wanted."""
    from robust201.runtime.training_run import TrainingSelection

    names = split_names(recipes)
    for name in names or ():
        if name not in config.recipes:
            raise ConfigError(
                f"Selecting trainings failed for {config.name}: expected one of its recipes, got {name!r}."
                f"{closest(name, config.recipes)}"
            )
    return TrainingSelection(names, limit)


def selection_words(recipes: str | None, limit: int | None) -> tuple[str, ...]:
    """Repeat the options that `select_trainings` reads, for a command that another machine runs."""
    given = {"--recipes": recipes, "--limit": limit}
    return tuple(word for option, value in given.items() if value is not None for word in (option, str(value)))


def refuse_recipes(recipes: str | None) -> None:
    """Refuse --recipes with a sweep."""
    if recipes is not None:
        raise ConfigError(
            "Reading the command line failed for --recipes: expected it only with a training YAML, got it with a "
            "sweep. Leave it out."
        )


def refuse_options(**given: object) -> None:
    """Refuse options that do not apply to a training YAML; None where one was not given."""
    for name, value in given.items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise ConfigError(
                f"Reading the command line failed for {option}: expected it only with a sweep, got it with a training "
                "YAML. Leave it out."
            )
