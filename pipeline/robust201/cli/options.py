"""Arguments and options that several commands share, functions that parse selections, and JSON output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.core.errors import ConfigError
from robust201.core.files import resolve_bundled

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
    metavar="DATASET",
    help="A folder written by export, the published dataset, or the included bundled:benchmark_data/cells-cifar10.",
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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(payload: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(payload, indent=2))


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
    if not names or len({*names}) < len(names):
        raise ConfigError(
            f"Reading the command line failed for {text!r}: expected one or more names, each listed once. Correct the "
            "list."
        )
    return names


def load_yaml(
    path: Path, say: Callable[[str], None] = console.say, *, out: str | None = None, **overrides: Any
) -> SweepConfig | TrainingConfig:
    """Load the sweep of a YAML or results folder, or a training YAML, and report warnings about it.

    `out` replaces the results folder or the checkpoint store; for `overrides`, see `sweep.loading.load_config`.
    """
    from robust201.sweep.facts import load_sweep
    from robust201.sweep.loading import is_training_yaml, load_training
    from robust201.sweep.sweep_warnings import find_network_warnings, find_sweep_warnings

    config: SweepConfig | TrainingConfig
    if is_training_yaml(path):
        config = load_training(path, store=out, **overrides)
        warnings = [*find_network_warnings(config)]
    else:
        config = load_sweep(path, results=out, **overrides)
        warnings = find_sweep_warnings(config)
    for warning in warnings:
        say(f"warning: {warning}")
    return config


def results_of(path: Path) -> Path:
    """Return the results folder that a sweep YAML names; a path that is not a file is itself a results folder."""
    from robust201.sweep.loading import load_config

    path = resolve_bundled(path)
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


def reject_options(yaml_type: str, **options: object) -> None:
    """Reject options that are not None, because they do not apply to this type of YAML (sweep or training YAML)."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(
                f"Reading the command line failed for --{name}: it does not apply to a {yaml_type}. Remove the option."
            )
