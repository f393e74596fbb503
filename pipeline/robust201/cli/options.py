"""Arguments and options that several commands share, and the selections that they describe."""

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
    typer.Argument(metavar="SWEEP", help="A sweep YAML (docs/configuration.md), or a sweep's results folder."),
]
Results = Annotated[Path, typer.Argument(metavar="RESULTS", help="A results folder, or the sweep YAML that names it.")]
Architectures = Annotated[
    str | None,
    typer.Option(
        help="Only these architectures: indices, ranges and cell strings, separated by commas, such as 0-99,309."
    ),
]
Datasets = Annotated[
    str | None, typer.Option(help="Only these datasets, separated by commas, such as cifar10,cifar100.")
]
Keys = Annotated[str | None, typer.Option(help="Only these keys, separated by commas, such as clean,pgd,corruptions.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N architectures.")]
Recipes = Annotated[str | None, typer.Option(help="With a training YAML: only these recipes, separated by commas.")]
Executor = Annotated[str | None, typer.Option(help="inline (in this process) or ray; overrides the YAML.")]
Workers = Annotated[int | None, typer.Option(help="Number of workers; overrides the YAML.")]
SlurmRequeue = Annotated[
    bool,
    typer.Option("--slurm-requeue", help="In a Slurm array: requeue the task if its time limit stopped it."),
]
DATASET_ARGUMENT = typer.Argument(
    metavar="DATASET", help="A folder written by export, its parquet subfolder, or the published dataset."
)
Dataset = Annotated[Path, DATASET_ARGUMENT]
ImageDataset = Annotated[
    str | None, typer.Option("--dataset", help="Use this image dataset, such as cifar10, if DATASET has several.")
]
WeightsName = Annotated[
    str | None, typer.Option("--weights-name", help="Use only these weights, if DATASET has several per architecture.")
]
TableFile = Annotated[
    Path | None, typer.Option("--out", help="Also write the table to this file: CSV (.csv) or LaTeX (.tex).")
]
AllowCode = Annotated[
    list[Path] | None,
    typer.Option(
        "--allow-code",
        metavar="FILE",
        help="Execute this Python file, which the YAML names, even if the file or the YAML lies in a data folder. "
        "Repeatable.",
    ),
]


def explicit_options(context: typer.Context) -> dict[str, str]:
    """Map the parameters set on the command line to their options, such as ``data`` to ``--dataset``."""
    options = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            options[str(parameter.name)] = max(parameter.opts, key=len)
    return options


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Parse comma-separated names; None if the option is absent. A repeated name is a ConfigError."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError(
            f"Reading the command line failed for {text!r}: expected names separated by commas, got none. "
            "List at least one name, or omit the option."
        )
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Reading the command line failed for {text!r}: {name} is listed more than once. List each name once."
            )
    return names


def load_sweep(path: Path, /, **overrides: Any) -> SweepConfig:
    """Load the sweep of a YAML or results folder, and print warnings about it.

    `overrides` are passed to `planning.loading.load_config`.
    """
    from robust201.planning.plan_file import load_any_sweep
    from robust201.planning.sweep_warnings import find_sweep_warnings

    config = load_any_sweep(path, **overrides)
    for warning in find_sweep_warnings(config):
        console.say(f"warning: {warning}")
    return config


def results_of(path: Path) -> Path:
    """Return the results folder that a sweep YAML names; any other path is a results folder itself."""
    from robust201.planning.loading import load_config

    return load_config(path).results if path.is_file() else path


def make_filters(
    config: SweepConfig, architectures: str | None, datasets: str | None, keys: str | None, limit: int | None
) -> Filters:
    """Parse the options that select a part of a sweep."""
    from robust201.planning.filters import Filters

    chosen = None if architectures is None else config.make_space({}).select(architectures)
    if limit is not None:
        in_sweep = config.selected_architectures
        known = set(in_sweep)
        candidates = in_sweep if chosen is None else tuple(name for name in chosen if name in known) or chosen
        chosen = candidates[:limit]
    named = split_names(keys)
    return Filters(chosen, split_names(datasets), None if named is None else config.keys_named(named))


def option_argv(**options: object) -> tuple[str, ...]:
    """Return options as arguments of a command that another machine runs, without options that are None."""
    return tuple(
        word for name, value in options.items() if value is not None for word in (_option_of(name), str(value))
    )


def reject_with_budget(**options: object) -> None:
    """Reject options that are not None and select a part of a sweep: a budget is for the whole sweep."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(
                f"Reading the command line failed for {_option_of(name)}: --budget is for the whole sweep, as its "
                "designs are fields of the YAML. Leave one of them out."
            )


def reject_options(kind: str, **options: object) -> None:
    """Reject options that are not None and do not apply to a YAML of this kind, "sweep" or "training YAML"."""
    for name, value in options.items():
        if value is not None:
            other = "a sweep" if kind == "training YAML" else "a training YAML"
            raise ConfigError(
                f"Reading the command line failed for {_option_of(name)}: it applies only to {other}, not to a {kind}. "
                "Leave it out."
            )


def _option_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def select_trainings(config: TrainingConfig, recipes: str | None, limit: int | None) -> TrainingSelection:
    """Parse the options that select a part of a training YAML."""
    from robust201.runtime.training_run import TrainingSelection

    names = split_names(recipes)
    for name in names or ():
        if name not in config.recipes:
            raise ConfigError(
                f"Selecting trainings failed for {config.name}: expected one of its recipes, got {name!r}."
                f"{closest(name, config.recipes)}"
            )
    return TrainingSelection(names, limit)
