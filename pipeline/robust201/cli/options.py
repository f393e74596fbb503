"""Arguments and options that several verbs share, and what they select of a sweep or of trainings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.core.errors import ConfigError, closest

if TYPE_CHECKING:
    from robust201.planning.config import SweepConfig
    from robust201.planning.filters import Filters
    from robust201.planning.training_config import TrainingConfig
    from robust201.runtime.training_run import TrainingSelection

Sweep = Annotated[
    Path,
    typer.Argument(metavar="SWEEP", help="A sweep YAML (see docs/configuration.md), or the results folder of a sweep."),
]
Results = Annotated[Path, typer.Argument(metavar="RESULTS", help="A results folder, or the sweep YAML that names it.")]
Architectures = Annotated[
    str | None, typer.Option(help="Indices, ranges and cell strings, separated by commas, such as 0-99,309.")
]
Datasets = Annotated[str | None, typer.Option(help="Names separated by commas, such as cifar10,cifar100.")]
Keys = Annotated[str | None, typer.Option(help="Keys separated by commas, such as clean,pgd,corruptions.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N of the architectures.")]
Recipes = Annotated[str | None, typer.Option(help="With a training YAML: only these recipes, separated by commas.")]
Executor = Annotated[str | None, typer.Option(help="inline or ray; overrides the YAML's.")]
Workers = Annotated[int | None, typer.Option(help="Number of workers; overrides the YAML's.")]
SlurmRequeue = Annotated[
    bool,
    typer.Option("--slurm-requeue", help="In a Slurm array: requeue the task if it stopped because of its time limit."),
]
DATASET_ARGUMENT = typer.Argument(
    metavar="DATASET", help="A folder that export wrote, its parquet folder, or the published dataset."
)
Dataset = Annotated[Path, DATASET_ARGUMENT]
WeightsName = Annotated[
    str | None, typer.Option("--weights-name", help="Only this training, if DATASET has several per architecture.")
]
AllowCode = Annotated[
    list[Path] | None,
    typer.Option(
        "--allow-code",
        metavar="FILE",
        help="Python file that the YAML names and that may be executed, although the YAML or the file lies in a folder "
        "of data. Repeatable.",
    ),
]


def explicit_options(context: typer.Context) -> dict[str, str]:
    """Map the parameters that the command line itself gives to their spellings, such as ``data`` to ``--dataset``."""
    given = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            given[str(parameter.name)] = max(parameter.opts, key=len)
    return given


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Read names that are separated by commas, each once; None where the option was not given."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(
            f"Reading the command line failed for {text!r}: expected names separated by commas, got none. "
            "Name some, or leave the option out."
        )
    return names


def load_sweep(place: Path, /, **overrides: Any) -> SweepConfig:
    """Read the sweep of a YAML, or of a results folder, and warn of what it leaves out or may not mean.

    Overrides are those of `planning.loading.load_config`.
    """
    from robust201.planning.plan_file import load_any_sweep
    from robust201.planning.sweep_warnings import find_sweep_warnings

    config = load_any_sweep(place, **overrides)
    for warning in find_sweep_warnings(config):
        console.say(f"warning: {warning}")
    return config


def results_of(place: Path) -> Path:
    """The results folder itself, or the one that a sweep YAML names."""
    from robust201.planning.loading import load_config

    return load_config(place).results if place.is_file() else place


def make_filters(
    config: SweepConfig, architectures: str | None, datasets: str | None, keys: str | None, limit: int | None
) -> Filters:
    """Read what a command narrows a sweep to."""
    from robust201.planning.filters import Filters

    chosen = None if architectures is None else config.make_space({}).select(architectures)
    if limit is not None:
        in_sweep = config.selected_architectures
        known = set(in_sweep)
        asked = in_sweep if chosen is None else tuple(name for name in chosen if name in known) or chosen
        chosen = asked[:limit]
    named = split_names(keys)
    return Filters(chosen, split_names(datasets), None if named is None else config.keys_named(named))


def option_words(**given: object) -> tuple[str, ...]:
    """Write out options, None where one was not given, for a command that another machine runs."""
    return tuple(word for name, value in given.items() if value is not None for word in (_option_of(name), str(value)))


def reject_with_budget(**given: object) -> None:
    """Reject options that narrow a sweep, None where one was not given: a budget is for all of it."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"Reading the command line failed for {_option_of(name)}: --budget is for the whole sweep, as its "
                "designs are fields of the YAML. Leave one of them out."
            )


def reject_options(kind: str, **given: object) -> None:
    """Reject options, None where one was not given, that do not apply to a YAML of a kind, sweep or training YAML."""
    for name, value in given.items():
        if value is not None:
            other = "a sweep" if kind == "training YAML" else "a training YAML"
            raise ConfigError(
                f"Reading the command line failed for {_option_of(name)}: expected it only with {other}, got it with a "
                f"{kind}. Leave it out."
            )


def _option_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def select_trainings(config: TrainingConfig, recipes: str | None, limit: int | None) -> TrainingSelection:
    """Read which trainings of a YAML are selected."""
    from robust201.runtime.training_run import TrainingSelection

    names = split_names(recipes)
    for name in names or ():
        if name not in config.recipes:
            raise ConfigError(
                f"Selecting trainings failed for {config.name}: expected one of its recipes, got {name!r}."
                f"{closest(name, config.recipes)}"
            )
    return TrainingSelection(names, limit)
