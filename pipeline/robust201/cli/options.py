"""Arguments and options that several commands share, and functions that parse selections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.core.errors import ConfigError

if TYPE_CHECKING:
    from robust201.sweep.config import SweepConfig
    from robust201.sweep.filters import Filters
    from robust201.sweep.training_config import TrainingConfig

Sweep = Annotated[
    Path,
    typer.Argument(
        metavar="SWEEP",
        help="A sweep YAML (docs/configuration.md), a sweep's results folder, or a training YAML (docs/training.md).",
    ),
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
Recipes = Annotated[str | None, typer.Option(help="Only these recipes of a training YAML, separated by commas.")]
Executor = Annotated[str | None, typer.Option(help="inline (in this process) or ray; overrides the YAML.")]
Workers = Annotated[int | None, typer.Option(help="Number of workers; overrides the YAML.")]
SlurmRequeue = Annotated[
    bool,
    typer.Option("--slurm-requeue", help="In a Slurm array: requeue the task if its time limit stops it."),
]
DATASET_ARGUMENT = typer.Argument(
    metavar="DATASET", help="A folder written by export, its parquet subfolder, or the published dataset."
)
DatasetPath = Annotated[Path, DATASET_ARGUMENT]
ImageDataset = Annotated[
    str | None, typer.Option("--data", help="Image dataset to use, such as cifar10, if DATASET has several.")
]
WeightsName = Annotated[
    str | None, typer.Option("--weights-name", help="Weights to use, if DATASET has several per architecture.")
]
TableFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Also write the table: CSV (.csv) or LaTeX (.tex).")
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Allow the execution of the Python files that the YAML names.")
]


def explicit_options(context: typer.Context) -> dict[str, str]:
    """Return the option, such as ``--data``, of every parameter that was set on the command line."""
    options = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            options[str(parameter.name)] = max(parameter.opts, key=len)
    return options


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Parse comma-separated names; return None if the option is absent, and raise ConfigError for a repeated name."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError(
            f"Reading the command line failed for {text!r}: the list of names is empty. List at least one name, or "
            "omit the option."
        )
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Reading the command line failed for {text!r}: {name} is listed more than once. List each name once."
            )
    return names


def load_sweep(path: Path, /, *, say: Callable[[str], None] = console.say, **overrides: Any) -> SweepConfig:
    """Load the sweep of a YAML or results folder, and say warnings about it.

    `overrides` are passed to `sweep.loading.load_config`.
    """
    from robust201.sweep import facts
    from robust201.sweep.sweep_warnings import find_sweep_warnings

    config = facts.load_sweep(path, **overrides)
    for warning in find_sweep_warnings(config):
        say(f"warning: {warning}")
    return config


def results_of(path: Path) -> Path:
    """Return the results folder that a sweep YAML names; a path that is not a file is itself a results folder."""
    from robust201.sweep.loading import load_config

    return load_config(path).results if path.is_file() else path


def make_filters(
    config: SweepConfig | TrainingConfig,
    architectures: str | None,
    datasets: str | None,
    keys: str | None = None,
    recipes: str | None = None,
) -> Filters:
    """Parse and check the options that select a subset of a sweep or of training runs."""
    from robust201.sweep.config import SweepConfig
    from robust201.sweep.filters import Filters

    key_names = split_names(keys)
    if key_names is not None and isinstance(config, SweepConfig):
        key_names = config.resolve_keys(key_names)
    selected = None if architectures is None else config.make_space({}).select(architectures)
    filters = Filters(selected, split_names(datasets), key_names, split_names(recipes))
    filters.check(config)
    return filters


def option_argv(**options: object) -> tuple[str, ...]:
    """Return the options that are not None as command-line arguments."""
    return tuple(
        argument for name, value in options.items() if value is not None for argument in (_option_of(name), str(value))
    )


def reject_options(yaml_type: str, **options: object) -> None:
    """Reject options that are not None, because they do not apply to this type of YAML.

    `yaml_type` is ``"sweep"`` or ``"training YAML"``.
    """
    for name, value in options.items():
        if value is not None:
            required_yaml = "a sweep" if yaml_type == "training YAML" else "a training YAML"
            raise ConfigError(
                f"Reading the command line failed for {_option_of(name)}: it applies only to {required_yaml}, not to a "
                f"{yaml_type}. Remove the option."
            )


def _option_of(name: str) -> str:
    return "--" + name.replace("_", "-")
